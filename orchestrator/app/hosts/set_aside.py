"""Set hosts aside, which hold no node then, list what is set aside, and take hosts and accused nodes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...core.bed import selection
from ...model.bed import BedSpec
from ...model.errors import UsageError
from ...model.frozen import dataclass
from ...store import bed_files as store
from .. import audited, beds
from ..places import moment, short_list, short_path
from ..requests import BedRef, argument, bed_name, option
from ..session import Session
from . import quarantine
from .node_names import Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAsideRequest:
    """The request of `ccbed set-aside`. ``names``: hosts, and with ``end`` also nodes that nights accused; empty: list all."""

    names: tuple[str, ...] = argument((), metavar="[HOST|NODE]…", completes="hosts")
    reason: str = option("", "The reason, which `status` and `up` print.")
    until: str | None = option(None, "End it then, such as 3d or 2026-12-01; default: with --end.", metavar="TIME")
    end: bool = option(False, "Take HOST or NODE back: it was repaired or replaced.")
    bed: str | None = bed_name()
    inventory: Path | None = option(None, "The inventory of the bed, if it is not up.", flags=("-i", "--inventory"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """A host that a person set aside, or a node that nights accused (``by``: nights). ``until``: empty until a person ends it."""

    name: str
    host: str
    by: str
    since: str
    until: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """``asides``: what is set aside, or what has ended; ``lines``: in words; ``warnings``: what stays as it is."""

    bed: str
    asides: tuple[Aside, ...]
    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def document(self) -> object:
        return {"bed": self.bed, "set_aside": self.asides}


def run(session: Session, request: SetAsideRequest) -> Changed:
    """Set aside, end it, or list. Raises UsageError, InfrastructureError."""
    ref = BedRef(bed=request.bed, inventory=request.inventory)
    if not (ref.bed or ref.inventory or store.names(session.state)):
        raise UsageError("no bed is up", hint="-i INVENTORY, with the inventory of the bed")
    bed = beds.meant(session, ref)
    if request.end:
        return _end(session, bed, request.names)
    if request.names:
        return _begin(session, bed, request)
    if request.reason or request.until:
        raise UsageError("no host is named", hint="ccbed set-aside HOST --reason TEXT; ccbed set-aside lists what is")
    listed = tuple(_listed(bed, beds.identify_nodes(session, bed)))
    return Changed(bed=bed.name, asides=listed, lines=() if listed else (f"nothing of bed {bed.name} is set aside",))


def _listed(bed: BedSpec, present: Nodes) -> Iterator[Aside]:
    known = quarantine.read(Path(bed.workdir))
    for host, drain in known.drained.items():
        yield _of_host(host, drain)
    for node, entry in known.nodes(present).items():
        yield Aside(
            name=node, host=entry.last.host, by="nights", since=entry.since.night, until="", reason=entry.last.reason
        )


def _of_host(host: str, drain: quarantine.Drain) -> Aside:
    return Aside(name=host, host=host, by=drain.by, since=drain.since, until=drain.until, reason=drain.reason)


def _begin(session: Session, bed: BedSpec, request: SetAsideRequest) -> Changed:
    """Place no node on the hosts from now on."""
    reason = " ".join(request.reason.split())
    if not reason:
        raise UsageError("--reason is empty; `status` and `up` print it", hint='--reason "a fan is replaced"')
    if bed.provider == "slurm":
        raise UsageError(
            f"bed {bed.name}: Slurm chooses the nodes of its job, and drains them itself",
            hint="scontrol update NodeName=… State=DRAIN Reason=…, or ccbed_exclude in the inventory",
        )
    chosen = selection.require_hosts(bed, request.names)
    until = moment("--until", request.until) if request.until else ""
    new = quarantine.Drain(by=audited.user(), since=audited.now(), reason=reason, until=until)
    added = quarantine.drain(Path(bed.workdir), chosen, new)
    audited.record(session, bed, f"set-aside: {reason}", dict.fromkeys(added, audited.OK))
    before = quarantine.read(Path(bed.workdir)).drained
    warnings = [f"host {host} {before[host].text}; it stays so" for host in chosen if host not in added]
    if added and (open_run := store.open_run(Path(bed.workdir))):
        warnings.append(
            f"run {open_run.run} is open on bed {bed.name}, and keeps its ranks; runs that begin later leave "
            f"{short_list(added)} alone (repeats of --repeat and of a cell of a night keep their nodes)"
        )
    return Changed(
        bed=bed.name, asides=tuple(_of_host(host, new) for host in added), warnings=tuple(warnings),
        lines=(f"set aside {short_list(added)}: {_effect(session, bed, added)}",) if added else (),
    )  # fmt: skip


def _effect(session: Session, bed: BedSpec, hosts: tuple[str, ...]) -> str:
    """Return which nodes get no rank, and the command that ends them; only containers of a bed that is up end by host."""
    nodes = [node.name for node in bed.nodes if node.host in hosts]
    if not nodes:
        return "no node is there"
    ends = bed.provider == "docker" and bed.name in store.names(session.state)
    end = f"     end the nodes there: ccbed down {bed.name} --limit {','.join(hosts)}" if ends else ""
    return f"{short_list(nodes)} {'get' if len(nodes) > 1 else 'gets'} no rank{end}"


def _end(session: Session, bed: BedSpec, names: tuple[str, ...]) -> Changed:
    """Take hosts back that were set aside, also those that left the bed, and nodes that nights accused."""
    if not names:
        raise UsageError("--end needs the names of hosts or nodes", hint="ccbed set-aside lists them")
    workdir = Path(bed.workdir)
    known, present = quarantine.read(workdir), beds.identify_nodes(session, bed)
    hosts = (*selection.host_names(bed), *known.drained)
    accused, members = known.nodes(present).keys() - known.drained.keys(), {node.name for node in bed.nodes}
    nodes = [name for name in names if name in accused or (name not in hosts and ("@" in name or name in members))]
    rest = [name for name in names if name not in nodes]
    chosen = selection.require_hosts(bed, rest, others=hosts) if rest else ()
    listed = {aside.name: aside for aside in _listed(bed, present)}
    quarantine.end(workdir, chosen, nodes, present)
    places = {node.name: node.host for node in bed.nodes} | dict(zip(chosen, chosen, strict=True))
    for name in (*chosen, *nodes):
        host = places.get(name) or name.partition("@")[2] or audited.UNKNOWN
        audited.record(session, bed, f"set-aside: end {name}", {host: audited.OK})
    ended = tuple(listed[name] for name in (*chosen, *nodes))
    lines = [f"  {aside.name} was set aside since {aside.since} by {aside.by}: {aside.reason}" for aside in ended]
    start = f"     start its nodes: ccbed up {short_path(bed.inventory)}" if chosen else ""
    return Changed(bed=bed.name, asides=ended, lines=(*lines, f"back in use: {short_list((*chosen, *nodes))}{start}"))
