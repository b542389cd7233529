"""End a bed: all its processes and directories; verified."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from ..core.bed import departed, selection
from ..core.spec import written_values
from ..model.bed import BedSpec, BedStatus, NodeStatus
from ..model.errors import InfrastructureError, OwnedError, UnreachedError, UsageError
from ..model.frozen import dataclass, replace
from ..model.provider import Provider
from ..store import bed_files as store
from . import audited, beds, prepared_hosts
from .places import short_list, short_path
from .requests import DownRequest
from .session import Session

#: How long a run has to heal its faults and to stop its ranks.
_ORCHESTRATOR_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The processes of a bed that were ended. ``hosts``: None where it is all of the bed."""

    bed: str
    ended: tuple[int, ...]
    hosts: tuple[str, ...] | None = None


def run(session: Session, request: DownRequest) -> tuple[Ended, ...]:
    """End beds, or a bed on some hosts, and return what ended. Raises UsageError, InfrastructureError."""
    if request.limit and (request.all or request.abandon or request.reset):
        raise UsageError("--limit excludes --all, --abandon and --reset", hint="give --limit alone")
    specs = _selected(session, request.bed, request.all)
    if request.limit and specs:
        return (_end_part(session, specs[0], request),)
    if request.limit:  # an unknown host is an error also where nothing is up
        for spec in _unlisted(session, request.bed):
            beds.limited_hosts(session, spec, request.limit)
    if not specs:
        nothing = f"bed {request.bed}: not up, nothing to end" if request.bed else "no bed is up, nothing to end"
        session.terminal.line(nothing)
    for spec in specs if request.reset else ():
        prepared_hosts.check_settings(session, spec)
    ended = [end(session, spec, force=request.force, abandon=request.abandon) for spec in specs]
    for spec in specs or (_unlisted(session, request.bed) if request.reset else ()):
        if request.reset:
            prepared_hosts.reset(session, spec, force=request.force)
    return tuple(Ended(bed=spec.name, ended=pids) for spec, pids in zip(specs, ended, strict=True))


def _end_part(session: Session, bed: BedSpec, request: DownRequest) -> Ended:
    hosts = beds.limited_hosts(session, departed.with_departed_hosts(bed), request.limit)
    return Ended(bed=bed.name, ended=end_hosts(session, bed, hosts, force=request.force), hosts=hosts)


def _unlisted(session: Session, bed: str | None) -> tuple[BedSpec, ...]:
    """Return the bed of an inventory that is not up: its hosts may be prepared."""
    return (beds.wanted(session, Path(bed)),) if bed and Path(bed).exists() else ()


def _selected(session: Session, bed: str | None, every: bool) -> tuple[BedSpec, ...]:
    known = (*store.names(session.state), *store.names_without_file(session.state))
    if bed is None:
        if len(known) > 1 and not every:
            raise UsageError(f"several beds are up: {', '.join(known)}", hint=f"ccbed down {known[0]}, or --all")
        return tuple(_read(session, name) for name in known)
    if bed in known:
        return (_read(session, bed),)
    if not bed.endswith((".yml", ".yaml")) and not Path(bed).is_file():
        if known:
            near = written_values.nearest(bed, known).replace("known:", "up:")
            raise UsageError(f"no bed {bed} is up; {near}", hint="ccbed status")
        return ()
    return _of_inventory(session, Path(bed))


def _of_inventory(session: Session, inventory: Path) -> tuple[BedSpec, ...]:
    """Return the bed of an inventory as it was brought up, so that a changed file leaves nothing running.

    A bed of provider slurm may have a job without a file on this machine.
    """
    wanted = beds.wanted(session, inventory)
    recorded = beds.read(session, wanted.name)
    return (recorded or wanted,) if recorded or wanted.slurm or Path(wanted.workdir).exists() else ()


def _read(session: Session, name: str) -> BedSpec:
    return beds.read(session, name) or store.minimal_spec(session.state, name)


def end(session: Session, bed: BedSpec, *, force: bool = False, abandon: bool = False) -> tuple[int, ...]:
    """End one bed, print what ended, and return the pids. Raises UsageError, InfrastructureError."""
    bed = departed.with_departed_hosts(bed)
    if force:
        _end_orchestrator(session, bed)
    with store.lock(session.state, bed.name):
        if not force:
            beds.refuse_open(session, bed, "down")
        provider = session.provider(bed)
        status, unreached = _observe(provider, bed, force)
        nodes = [node for node in status.nodes if node.pid]
        hosts = [host for host in selection.host_names(bed) if not (abandon and host in unreached)]
        with audited.act(session, bed, provider, "down", dict.fromkeys(hosts, "")):
            ended = _retire(session, provider, bed, unreached, abandon)
        store.forget(session.state, bed.name)
    text = (
        f"{written_values.count(len(ended), 'process')} ended{_names(nodes, len(ended), len(bed.hosts))}, none is left"
        if ended
        else "no process was left"
    )
    session.terminal.line(f"bed {bed.name} is down: {text} ({session.took()})")
    return ended


def _end_orchestrator(session: Session, bed: BedSpec) -> None:
    """End the `ccbed` that drives a run or a night on the bed: it would start the nodes again.

    Raises UsageError for another program, which a user may need, and for a `ccbed` that does not end.
    """
    workdir = Path(bed.workdir)
    pid = store.orchestrator(workdir)
    if pid == os.getpid():
        return
    try:
        program = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return
    if not is_ccbed(program):
        raise UsageError(
            f"bed {bed.name} is driven by process {pid}: {program[:80]}", hint=f"end that first: kill {pid}"
        )
    session.terminal.line(f"process {pid} drives bed {bed.name}, and is ended: {program[:80]}")
    try:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    except PermissionError:
        raise UsageError(f"process {pid} is of another user", hint=f"end that first: sudo kill {pid}") from None
    end = time.monotonic() + _ORCHESTRATOR_S
    while store.orchestrator(workdir) == pid and time.monotonic() < end:
        time.sleep(0.02)
    if store.orchestrator(workdir) == pid:
        raise UsageError(
            f"process {pid}, which drives bed {bed.name}, did not end in {_ORCHESTRATOR_S} s", hint=f"kill -9 {pid}"
        )


def is_ccbed(program: str) -> bool:
    """Tell whether a command line is that of ``ccbed``, not of a program that uses it as a library."""
    return any(Path(word).name == "ccbed" for word in program.split()[:2]) or "-m orchestrator.cli" in program


def end_hosts(session: Session, bed: BedSpec, hosts: tuple[str, ...], *, force: bool = False) -> tuple[int, ...]:
    """End the bed on some hosts, print what ended, and return the pids. The bed stays as it is wanted.

    Raises UsageError; InfrastructureError with the hosts that cannot be reached, once the others have ended.
    """
    bed = selection.on_hosts(departed.with_departed_hosts(bed), hosts)
    with store.lock(session.state, bed.name):
        if not force:
            beds.refuse_open(session, bed, "down")
        provider = session.provider(bed)
        _, unreached = _observe(provider, bed, force)
        with audited.act(session, bed, provider, "down", dict.fromkeys(hosts, "")):
            ended = _retire_hosts(provider, bed, unreached)
        text = f"{written_values.count(len(ended), 'process')} ended, none is left" if ended else "no process was left"
    start = f"ccbed up {short_path(bed.inventory)} --limit {','.join(hosts)}"
    session.terminal.line(
        f"bed {bed.name} is down on {short_list(hosts)}: {text} ({session.took()})     start it there: {start}"
    )
    return ended


def _retire_hosts(provider: Provider, bed: BedSpec, unreached: tuple[str, ...]) -> tuple[int, ...]:
    """End what can be reached of a part of a bed, and return the pids. Raises InfrastructureError with what is left."""
    try:
        ended = provider.retire_hosts(bed, bed.hosts) if bed.hosts else provider.retire(bed)
        _refuse_left(bed, provider)
        return ended
    except InfrastructureError as error:
        done = [host.name for host in bed.hosts if unreached and host.name not in unreached]
        head = f"{short_list(done)} ended; once the others are back: " if done else "to try again: "
        rest = ",".join(unreached or [host.name for host in bed.hosts])
        raise InfrastructureError(*error.problems, hint=f"{head}ccbed down {bed.name} --limit {rest}") from error


def _names(nodes: list[NodeStatus], ended: int, hosts: int = 1) -> str:
    """Return ``(n0 n1 n2 and the keeper)``: other processes are keepers, and programs that ran in the nodes."""
    names = sorted((node.name for node in nodes), key=lambda name: (len(name), name))
    more = ended - len(nodes)
    keepers = "the host agent" if more == 1 else f"{more} host agents" if more == hosts else f"{more} more"
    rest = [keepers] if more > 0 else []
    return f" ({' and '.join([part for part in [short_list(names)] if part] + rest)})" if names else ""


def _observe(provider: Provider, bed: BedSpec, force: bool) -> tuple[BedStatus, tuple[str, ...]]:
    """Return the status and the hosts that cannot be reached. Raises OwnedError for a bed of another owner, unless forced."""
    try:
        return provider.observe(bed), ()
    except UnreachedError as error:
        return error.status, tuple(error.hosts)
    except OwnedError:
        if not force:
            raise
        return BedStatus(name=bed.name), ()


def _retire(
    session: Session, provider: Provider, bed: BedSpec, unreached: tuple[str, ...], abandon: bool
) -> tuple[int, ...]:
    """End every process that can be reached, and return the pids. Raises InfrastructureError with what is left."""
    if abandon and unreached:
        session.terminal.warn(f"{short_list(unreached)}: abandoned; the processes of bed {bed.name} there stay")
        hosts = tuple(host for host in bed.hosts if host.name not in unreached)
        bed = replace(bed, hosts=hosts, nodes=tuple(node for node in bed.nodes if node.host not in unreached))
    try:
        ended = provider.retire(bed)
    except InfrastructureError as error:
        rest = [host.name for host in bed.hosts if host.name not in unreached]
        done = f"{short_list(rest)} ended; " if unreached and rest else ""
        hint = f"{done}once the host is back: ccbed down {bed.name}     or abandon it: ccbed down {bed.name} --abandon"
        retry = f"try again: ccbed down {bed.name}"
        raise InfrastructureError(*error.problems, hint=hint if unreached else retry) from error
    _refuse_left(bed, provider)
    return ended


def _refuse_left(bed: BedSpec, provider: Provider) -> None:
    """Raises InfrastructureError with a line for each node that is left."""
    left = [node for node in provider.observe(bed).nodes if node.state not in ("absent", "dead")]
    if left:
        lines = (f"node {node.name} is still {node.state} (pid {node.pid})" for node in left)
        raise InfrastructureError(*lines, hint=f"try again: ccbed down {bed.name}")
