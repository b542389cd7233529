"""Place no node on a host until it is undrained, or on a node in quarantine until that is released."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from ...core.bed import selection
from ...model.bed import BedSpec
from ...model.errors import UsageError
from ...model.frozen import MISSING, dataclass
from ...store import beds as store
from .. import audited, beds
from ..places import short_list
from ..requests import BedRef, argument, bed_name, option
from ..session import Session
from . import quarantine


@dataclass(frozen=True, slots=True, kw_only=True)
class UndrainRequest:
    """The request of `ccbed undrain`."""

    hosts: tuple[str, ...] = argument(metavar="HOST…", completes="hosts")
    bed: str | None = bed_name()
    inventory: Path | None = option(None, "The inventory of the bed, if it is not up.", flags=("-i", "--inventory"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest(UndrainRequest):
    """The request of `ccbed drain`."""

    reason: str = option(MISSING, "The reason, which `status` and `up` print.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """The hosts of a bed that were drained. ``open_run``: keeps its ranks; ``effect``: in words."""

    bed: str
    added: tuple[str, ...]
    open_run: str
    effect: str

    @property
    def document(self) -> object:
        return {"bed": self.bed, "drained": list(self.added)}


def drain(session: Session, request: DrainRequest) -> Drained:
    """Place no node on the hosts from now on. Raises UsageError."""
    reason = " ".join(request.reason.split())
    if not reason:
        raise UsageError("--reason is empty; `status` and `up` print it", hint='--reason "a fan is replaced"')
    spec, chosen = _choose(session, request)
    new = quarantine.Drain(by=audited.user(), since=audited.now(), reason=reason)
    added = quarantine.drain(Path(spec.workdir), chosen, new)
    audited.record(session, spec, f"drain: {reason}", dict.fromkeys(added, audited.OK))
    for host, before in quarantine.read(Path(spec.workdir)).drained.items():
        if host in chosen and host not in added:
            session.terminal.warn(f"host {host} {before.text}; it stays so")
    run = store.open_run(Path(spec.workdir)) if added else None
    open_run, effect = run.run if run else "", _effect(session, spec, added)
    return Drained(bed=spec.name, added=tuple(added), open_run=open_run, effect=effect)


def _effect(session: Session, bed: BedSpec, hosts: Collection[str]) -> str:
    """Which nodes get no rank, and the command that ends them; only containers of a bed that is up end by host."""
    nodes = [node.name for node in bed.nodes if node.host in hosts]
    if not nodes:
        return "no node is there"
    ends = bed.provider == "docker" and bed.name in store.names(session.state)
    end = f"     end the nodes there: ccbed down {bed.name} --limit {','.join(hosts)}" if ends else ""
    return f"{short_list(nodes)} {'get' if len(nodes) > 1 else 'gets'} no rank{end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undrained:
    """The hosts of a bed on which nodes are placed again, and their drains as they were."""

    bed: BedSpec
    hosts: tuple[str, ...]
    ended: Mapping[str, quarantine.Drain]

    @property
    def document(self) -> object:
        return {"bed": self.bed.name, "undrained": list(self.hosts)}


def undrain(session: Session, request: UndrainRequest) -> Undrained:
    """End the drains of the hosts. Raises UsageError."""
    spec, chosen = _choose(session, request, with_drained=True)
    ended = quarantine.undrain(Path(spec.workdir), chosen)
    audited.record(session, spec, "undrain", dict.fromkeys(chosen, audited.OK))
    return Undrained(bed=spec, hosts=chosen, ended=ended)


def _choose(
    session: Session, request: UndrainRequest, *, with_drained: bool = False
) -> tuple[BedSpec, tuple[str, ...]]:
    """Return the bed and the hosts, in its order. ``with_drained``: also drained hosts that left it. Raises UsageError."""
    ref = BedRef(bed=request.bed, inventory=request.inventory)
    if not (ref.bed or ref.inventory or store.names(session.state)):
        raise UsageError("no bed is up", hint="-i INVENTORY, with the inventory of the bed")
    spec = beds.meant(session, ref)
    if spec.provider == "slurm":
        raise UsageError(
            f"bed {spec.name}: Slurm chooses the nodes of its job, and drains them itself",
            hint="scontrol update NodeName=… State=DRAIN Reason=…, or ccbed_exclude in the inventory",
        )
    drained = tuple(quarantine.read(Path(spec.workdir)).drained) if with_drained else ()
    return spec, selection.require_hosts(spec, request.hosts, others=drained)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineRequest:
    """The request of `ccbed quarantine`."""

    bed: str | None = bed_name()
    release: str | None = option(None, "Take NODE out of quarantine: it was repaired or replaced.", metavar="NODE")


def release(session: Session, request: QuarantineRequest, node: str) -> None:
    """Take the node out of quarantine. Raises UsageError."""
    spec = beds.choose(session, request.bed)
    quarantine.release(Path(spec.workdir), node, beds.identify_nodes(session, spec))
    hosts = {item.name: item.host for item in spec.nodes}
    host = hosts.get(node) or node.partition("@")[2] or audited.UNKNOWN
    audited.record(session, spec, f"quarantine: release {node}", {host: audited.OK})


def in_quarantine(session: Session, request: QuarantineRequest) -> Mapping[str, quarantine.Entry]:
    """Return the nodes in quarantine, each with what put it there. Raises UsageError, InfrastructureError."""
    spec = beds.choose(session, request.bed)
    return quarantine.read(Path(spec.workdir)).nodes(beds.identify_nodes(session, spec))
