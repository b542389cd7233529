"""Find the bed that the user means: of an inventory, the only one that is up, or one of several by name."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.bed import engine_kind, selection
from ..model import codec, vaulted
from ..model.bed import BedSpec
from ..model.errors import InfrastructureError, UsageError
from ..model.plan import Placement
from ..store import bed_files, shipped
from . import session as sessions
from .places import short_path
from .requests import BedRef

if TYPE_CHECKING:
    from ..prepare import read_inventory
    from .hosts.node_names import Nodes
    from .hosts.quarantine import Drain

EXAMPLE = "inventories/local.yml"
#: What an inventory says once for a whole bed.
_DESCRIBES_BED = re.compile(r"^[^#\n]*\bccbed_(?:provider|bed)\b[\"']?\s*[:=]", re.MULTILINE)


def meant(session: sessions.Session, ref: BedRef) -> BedSpec:
    """Return the bed that is up, or the one that the inventory describes. Raises UsageError."""
    if ref.inventory and ref.bed:
        raise UsageError("--bed and --inventory exclude each other; give one of them")
    return wanted(session, ref.inventory) if ref.inventory else choose(session, ref.bed)


def wanted(session: sessions.Session, inventory: Path) -> BedSpec:
    """Return the bed that an inventory describes. Raises UsageError with every error in it."""
    from ..core.bed import nodes_from_inventory
    from ..prepare import read_inventory as inventories

    inventory = shipped.find(inventory if inventory.name else inventory.absolute())  # the folder "." has a name
    if not inventory.exists():
        raise _missing(session, inventory)
    _require_one_bed(inventory)
    try:
        document = inventories.read(inventory, session.vault, session.state)
        session.terminal.secrets.update(document.secrets)
        spec = nodes_from_inventory.assemble_bed(
            document.inventory,
            agent=session.agent(),
            state=str(session.state),
            home=str(Path.home()),
            recorded=lambda name: read(session, name),
            owner=lambda: sessions.owner_id(session.state),
            engine=engine_kind.local_socket(os.environ),
        )
    except UsageError as error:
        problems = dict.fromkeys(vaulted.hide(problem, tuple(session.terminal.secrets)) for problem in error.problems)
        hint = error.hint or f"correct {inventory}, then: ccbed up {inventory}"
        raise UsageError(*problems, hint=hint) from None
    _mention_settings(session, spec, document)
    bed = replace(nodes_from_inventory.with_inventory_path(spec, str(inventory.absolute())), vault=document.secrets)
    before = read(session, bed.name)
    return _require_own(session, bed, before) if before and before.inventory not in ("", bed.inventory) else bed


def _mention_settings(session: sessions.Session, bed: BedSpec, document: read_inventory.Read) -> None:
    """Say what follows from Ansible's settings, and from the connections of hosts."""
    from ..core.inventory import ansible_defaults

    inventory = document.inventory
    if document.settings:
        session.terminal.note(f"Ansible's settings: {document.settings}")
    if bed.provider == "docker" and not ansible_defaults.names_provider(inventory):
        session.terminal.note("provider docker: the hosts are behind SSH, and the inventory sets no ccbed_provider")
    open_hosts = {host.name for host in bed.hosts if host.first_contact}
    openings = [ansible_defaults.opening(host) for host in inventory.hosts if host.name in open_hosts]
    if where := next(filter(None, openings), ""):
        session.terminal.warn(
            f"{where}: off: keys of new hosts are accepted unseen; a known host that shows another key is still refused"
        )


def _require_own(session: sessions.Session, bed: BedSpec, before: BedSpec) -> BedSpec:
    """The bed, with the inventory from which it is up unless that was moved. Raises UsageError where it is another one."""
    old = Path(before.inventory)
    is_gone = not old.is_file() and not old.is_dir()
    if is_gone and set(selection.host_names(bed)) & set(selection.host_names(before)):
        session.terminal.warn(f"bed {bed.name} came up from {old}, which is gone; taken to be moved to {bed.inventory}")
        return bed
    if is_gone or (not old.samefile(bed.inventory) and _description(bed) != _description(before)):
        raise UsageError(
            f"bed {bed.name} is up from {old}; {bed.inventory} describes another bed of this name",
            hint=f"set another name in one of them, such as ccbed_bed: {bed.name}-2; or end that bed: ccbed down {bed.name}",
        )
    return replace(bed, inventory=before.inventory)


def _description(bed: BedSpec) -> BedSpec:
    """The bed as the content of its inventory describes it: copies describe the same bed."""
    nodes, replacements = (tuple(replace(node, hash="") for node in part) for part in (bed.nodes, bed.replacements))
    return replace(bed, inventory="", agent="", hash="", nodes=nodes, replacements=replacements)


def _missing(session: sessions.Session, inventory: Path) -> UsageError:
    """The error for a file that does not exist, with the nearest inventory here, below inventories/ or of those that ccbed ships."""
    from ..core.spec import written_values

    known = {short_path(path) for path in shipped.inventories()}
    bed = read(session, str(inventory)) if str(inventory) in bed_files.names(session.state) else None
    named = [bed.inventory] if bed and bed.inventory else [path for path in known if Path(path).stem == str(inventory)]
    if named:
        what = "is the name of a bed" if bed else "is no file"
        return UsageError(
            f"{inventory}: {what}; its inventory is {short_path(named[0])}", hint=f"ccbed up {short_path(named[0])}"
        )
    near = written_values.nearest(short_path(inventory), known)
    near = f"; {near}" if near.startswith("did") else ""
    return UsageError(
        f"{inventory}: cannot be read: No such file or directory{near}",
        hint=f"ccbed list inventories, or write one: ccbed init inventory {inventory}",
    )


def _require_one_bed(inventory: Path) -> None:
    """Raises UsageError for a folder in which several files describe a bed each; Ansible would merge them into one."""
    if not inventory.is_dir():
        return
    described = [
        file for file in shipped.inventory_files(inventory) if _DESCRIBES_BED.search(file.read_text(errors="replace"))
    ]
    if len(described) > 1:
        names = ", ".join(file.name for file in described)
        raise UsageError(
            f"{inventory}: a folder of {len(described)} beds ({names}); a bed has one inventory",
            hint=f"ccbed up {short_path(described[0])}",
        )


def read(session: sessions.Session, name: str) -> BedSpec | None:
    """Read the bed file of ``name``; this process does not print its values from a vault."""
    bed = bed_files.read(session.state, name)
    if bed is not None:
        session.terminal.secrets.update(bed.vault)
    return bed


def choose(session: sessions.Session, name: str | None, *, hint: str = "--bed {bed}") -> BedSpec:
    """Return the bed ``name``, or the only bed. ``hint``: how the verb names a bed. Raises UsageError when none or several are up."""
    known = bed_files.names(session.state)
    if name is not None:
        bed = read(session, name)
        if bed is None:
            raise _unknown(name, known)
        if vaulted.is_masked(codec.plain(bed)):
            raise InfrastructureError(
                f"bed {name}: the values from its inventory's vault are lost",
                hint=f"ccbed up {short_path(bed.inventory)}",
            )
        return bed
    if not known:
        raise UsageError("no bed is up", hint=f"ccbed up {EXAMPLE}")
    if len(known) > 1:
        raise UsageError(f"several beds are up: {', '.join(known)}", hint=hint.format(bed=known[0]))
    return choose(session, known[0])


def _unknown(name: str, known: Sequence[str]) -> UsageError:
    """The error for a bed that is not up. The hint names its inventory where ccbed knows one of that name."""
    from ..core.spec import written_values

    inventory = shipped.find(Path(f"inventories/{name}.yml"))
    start = f"ccbed up {inventory if inventory.exists() and 'inventories' in inventory.parts else EXAMPLE}"
    if not known:
        return UsageError(f"no bed {name} is up; up: none", hint=start)
    near = written_values.nearest(name, known)
    return UsageError(
        f"no bed {name} is up; {near.replace('known:', 'up:')}", hint=start if inventory.exists() else "ccbed status"
    )


def node_name(bed: BedSpec, name: str, *others: str) -> str:
    """Return ``name`` if the bed has that node, or it is one of ``others``. Raises UsageError with the nearest one."""
    from ..core.spec import written_values

    known = [*(node.name for node in bed.nodes), *others]
    if name in known:
        return name
    rest = written_values.nearest(name, known).replace("known: ", "it has ")
    raise UsageError(f"bed {bed.name} has no node {name}; {rest}", hint=f"ccbed status {bed.name}")


def identify_nodes(session: sessions.Session, bed: BedSpec) -> Nodes:
    """The nodes with the names that their hosts have outside of the bed. Raises InfrastructureError."""
    from .hosts.node_names import Nodes

    machines = session.provider(bed).machines(bed)
    names = {host: machine.name for host, machine in machines.items()}
    return Nodes({node.name: names.get(node.host, node.host) for node in bed.nodes})


def acting_hosts(session: sessions.Session, bed: BedSpec, limit: Sequence[str] = ()) -> tuple[str, ...]:
    """The hosts of ``--limit``, else all that are not drained. Raises UsageError: unknown, drained, or none is left."""
    listed, drained = selection.host_names(bed), drains(bed)
    if limit:
        chosen = limited_hosts(session, bed, limit)
        problems = [f"host {host} {drained[host].text}" for host in chosen if host in drained]
        if problems:
            raise UsageError(*problems, hint=end_command(bed, *(host for host in chosen if host in drained)))
        return chosen
    active = tuple(host for host in listed if host not in drained)
    if not active:
        problems = [f"host {host} {drain.text}" for host, drain in drained.items()]
        raise UsageError(*problems, hint=end_command(bed, *drained))
    return active


def limited_hosts(session: sessions.Session, bed: BedSpec, limit: Sequence[str]) -> tuple[str, ...]:
    """The hosts that ``--limit`` names, in the order of the bed; where it names no hosts, as a pattern of Ansible. Raises UsageError."""
    try:
        chosen = selection.require_hosts(bed, limit)
    except UsageError:
        is_local = all(host.connection == "local" for host in bed.hosts)
        if (
            is_local or not all(",".join(limit).split(",")) or not Path(bed.inventory).exists()
        ):  # an empty name would mean all to Ansible
            raise
        from ..prepare import ansible_listing, ansible_settings

        ansible_settings.read(session.state)  # refuses a stranger's, before Ansible runs
        matches = ansible_listing.matching(Path(bed.inventory), ",".join(limit), session.vault)
        chosen = tuple(host for host in selection.host_names(bed) if host in matches)
        if not chosen:
            raise
    if len(chosen) < len(selection.host_names(bed)):
        require_separate_hosts(bed, "--limit")
    return chosen


def require_separate_hosts(bed: BedSpec, option: str) -> None:
    """Raises UsageError where ``option`` cannot choose between the hosts of the bed."""
    reasons = {
        "process": "all its hosts are this machine, with one host agent",
        "slurm": "its hosts are the nodes of one job, which Slurm chooses",
    }
    if reason := reasons.get(bed.provider):
        raise UsageError(f"bed {bed.name}: {option} cannot choose between hosts: {reason}", hint=f"without {option}")


def drains(bed: BedSpec) -> Mapping[str, Drain]:
    """Host of the bed -> its drain. Raises InfrastructureError where they are not known."""
    if not (Path(bed.workdir) / bed_files.QUARANTINE).exists():
        return {}
    from .hosts import quarantine

    known = selection.host_names(bed)
    return {host: drain for host, drain in quarantine.read(Path(bed.workdir)).drained.items() if host in known}


def end_command(bed: BedSpec, *hosts: str) -> str:
    """The command that takes the hosts back, whether the bed is up or not; by the bed where its inventory is gone."""
    has_inventory = bool(bed.inventory) and Path(bed.inventory).exists()
    which = f"-i {short_path(bed.inventory)}" if has_inventory else f"--bed {bed.name}"
    return f"ccbed set-aside {' '.join(hosts)} --end {which}"


def mention_drains(session: sessions.Session, bed: BedSpec) -> None:
    """Warn of the hosts on which no node is placed."""
    for host, drain in drains(bed).items():
        session.terminal.warn(f"host {host} {drain.text}     end it: {end_command(bed, host)}")


def drained_nodes(bed: BedSpec) -> dict[str, str]:
    """Node on a drained host -> why it gets no rank."""
    hosts = drains(bed)
    return {
        node.name: f"is on host {node.host}, which {hosts[node.host].text}" for node in bed.nodes if node.host in hosts
    }


def without_drained_hosts(session: sessions.Session, bed: BedSpec) -> BedSpec:
    """The bed without its drained hosts and their nodes, which are named. Raises UsageError where none is left."""
    if not drains(bed):
        return bed
    mention_drains(session, bed)
    return selection.on_hosts(bed, acting_hosts(session, bed))


def usable(bed: BedSpec) -> BedSpec:
    """The bed with all its nodes, where no drained host is contacted: it may be switched off."""
    hosts = drains(bed)
    return selection.reaching(bed, [host for host in selection.host_names(bed) if host not in hosts]) if hosts else bed


def mention_quarantine(session: sessions.Session, bed: BedSpec) -> None:
    """Warn of the nodes that two recorded nights accused."""
    from .hosts import quarantine

    for line in quarantine.lines(Path(bed.workdir), identify_nodes(session, bed)):
        session.terminal.warn(line)


def placement(session: sessions.Session, bed: BedSpec, *, include_quarantined: bool) -> Placement:
    """Return what the run must not use: nodes in quarantine, and on drained hosts. Raises InfrastructureError where they are not known."""
    drained = drained_nodes(bed)
    if not (Path(bed.workdir) / bed_files.QUARANTINE).exists():
        return Placement(drained=drained)
    from .hosts import quarantine

    if not include_quarantined:
        quarantined = quarantine.reasons(Path(bed.workdir), identify_nodes(session, bed))
        return Placement(quarantined=quarantined, drained=drained)
    mention_quarantine(session, bed)
    return Placement(drained=drained)


def refuse_open(session: sessions.Session, bed: BedSpec, what: str) -> None:
    """Raises UsageError with the name of the night or run while one is open on the bed. A run that has ended is closed first."""
    bed_files.refuse_night(Path(bed.workdir))
    settle(session, bed)
    run = bed_files.open_run(Path(bed.workdir), time.time())
    if run is None:
        return
    if run.driver:
        hint = f"wait for it: ccbed watch {short_path(run.directory)}"
    else:
        hint = f"ccbed resume {short_path(run.directory)}; to end it: ccbed resume --close {short_path(run.directory)}"
    raise UsageError(
        f"bed {bed.name} has an open run, {run.run}; {what} would end it", hint=f"{hint}; or --force to end it now"
    )


def settle(session: sessions.Session, bed: BedSpec) -> None:
    """Remove or judge the open run of an orchestrator that died, where the run cannot continue; print what was done."""
    workdir = Path(bed.workdir)
    run = bed_files.open_run(workdir)
    if run is None or run.driver:
        return
    from ..run import abandon

    with bed_files.run_lock(workdir, run.run, Path(run.directory)):
        abandon.settle(bed, session.provider(bed), session.catalogue, session.terminal.warn)
