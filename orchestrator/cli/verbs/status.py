"""Show beds, nodes, leases, leftover faults and open runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ...app import beds
from ...app import leftovers as ended_runs
from ...app.places import age, short_path, size
from ...core.bed import diff, links, selection
from ...model import codec
from ...model.bed import BedSpec, BedStatus, Diff
from ...model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS, CcbedError, UnreachedError, UsageError
from ...model.frozen import dataclass, field
from ...nightly.culprits.quarantine import Drain
from ...store import beds as store
from ...store import bundle
from ..inputs import options
from ..inputs.session import Session
from ..render import bed_view


@dataclass(frozen=True, kw_only=True)
class Status:
    """A bed. ``unreached``: host -> why it cannot be reached. ``leftovers``: of ended runs; None: not known."""

    spec: BedSpec
    status: BedStatus
    run: store.OpenRun | None
    unreached: Mapping[str, str] = field(default_factory=dict)
    leftovers: Mapping[str, int] | None = None
    drained: Mapping[str, Drain] = field(default_factory=dict)


@options.command()
@options.of_bed()
@options.as_json
@click.pass_obj
def command(session: Session, bed: str | None, as_json: bool) -> int:
    """Show beds, nodes, leases, leftover faults and open runs."""
    names = (bed,) if bed else (*store.names(session.state), *store.names_without_file(session.state))
    statuses = [_observe(session, name) for name in names if not _is_unknown(session, name)]
    if as_json:
        session.terminal.json([_plain(status) for status in statuses])
        return _code(statuses)
    if not statuses:
        session.terminal.line(f"no bed is up     try: ccbed up {beds.EXAMPLE}")
    for status in statuses:
        _show(session, status)
    return _code(statuses)


def document(session: Session, name: str) -> dict[str, Any]:
    return _plain(_observe(session, name))


def _code(statuses: list[Status]) -> int:
    """A drained host may be switched off."""
    return EXIT_INFRASTRUCTURE if any(bed.unreached.keys() - bed.drained.keys() for bed in statuses) else EXIT_PASS


def _is_unknown(session: Session, name: str) -> bool:
    """Warn of a bed whose hosts are not known any more; the other beds are shown."""
    try:
        if name in store.names_without_file(session.state):
            store.minimal_spec(session.state, name)
    except UsageError as error:
        session.terminal.warn(f"{error}; {error.hint}")
        return True
    return False


def _observe(session: Session, name: str) -> Status:
    strays = store.names_without_file(session.state)
    spec = store.minimal_spec(session.state, name) if name in strays else beds.choose(session, name)
    run = store.open_run(Path(spec.workdir), time.time())
    provider, drained = session.provider(spec), beds.drains(spec)
    try:
        status = provider.observe(spec)
    except UnreachedError as error:
        return Status(spec=spec, status=error.status, run=run, unreached=error.hosts, drained=drained)
    leftovers = ended_runs.count_leftovers(spec, provider)
    return Status(spec=spec, status=status, run=run, leftovers=leftovers, drained=drained)


def _plain(bed: Status) -> dict[str, Any]:
    spec, status, run = bed.spec, bed.status, bed.run
    changes = _changes(bed)
    return {
        "bed": spec.name,
        "provider": spec.provider,
        "inventory": spec.inventory,
        "as_wanted": changes.empty,
        "keeper_pid": status.keeper_pid,
        "link": codec.plain(spec.link) if spec.link else None,
        "keepers": [
            {"host": host.name, "pid": host.keeper_pid, "unit": host.unit, "unit_problem": host.unit_problem}
            for host in status.hosts
        ],
        "nodes": codec.plain(status.nodes),
        "job": status.job or None,
        "leases": list(status.leases),
        "open_run": {**codec.plain(run), "stage": _stage(run)} if run else None,
        "away": dict(bed.unreached),
        "leftovers": bed.leftovers,
        "departed": [departed.host.name for departed in spec.departed],
        "drained": {host: codec.plain(drain) for host, drain in bed.drained.items()},
    }


def _changes(bed: Status) -> Diff:
    """What `up` would change: nothing on a drained host."""
    hosts = [host for host in selection.host_names(bed.spec) if host not in bed.drained]
    return selection.limit(diff.diff(bed.spec, bed.status), bed.spec, hosts)


def _show(session: Session, bed: Status) -> None:
    terminal, spec, status, run = session.terminal, bed.spec, bed.status, bed.run
    if spec.nodes:
        origin = f"{bed_view.count(spec, status)} · from {short_path(spec.inventory)}"
    else:
        origin = f"its bed file is missing; end it with: ccbed down {spec.name}"
    terminal.line(f"bed {spec.name} · {spec.provider} provider · {bed_view.keeper(spec, status)} · {origin}")
    if spec.fabric:
        addresses = f"{spec.nodes[0].address} to {spec.nodes[-1].address}"
        terminal.line(
            f"  fabric    a network namespace per node, {addresses} on one switch; links {links.bed_text(spec)}"
        )
    if status.job:
        terminal.line(f"  job       {status.job}")
    bed_view.table(terminal, spec, status, bed.drained)
    for text in bed_view.after_reboot(status):
        terminal.line(f"  reboot    {text}")
    _show_hosts(session, bed)
    for lease in status.leases:
        terminal.line(f"  lease     {lease}: a fault that is not healed yet     heal it: ccbed heal {spec.name}")
    if run:
        _show_run(session, spec, run)
    if bed.leftovers and bed.leftovers["count"]:
        terminal.line(
            f"  leftovers {bed.leftovers['count']} of ended runs, {size(bed.leftovers['size_bytes'])}     see: ccbed prune --dry-run"
        )
    for text in _outdated(session, spec):
        terminal.line(f"  {text}: ccbed up {short_path(spec.inventory)}")
    changes = _changes(bed) if spec.nodes else None
    if changes and not changes.empty and not run:
        terminal.line(f"  differs from the inventory: ccbed up {short_path(spec.inventory)}")
        bed_view.plan(terminal, spec, changes)


def _outdated(session: Session, spec: BedSpec) -> Iterator[str]:
    """What has changed since `up`: the inventory, of which only the time is compared, and the version of ccbed."""
    inventory, file = Path(spec.inventory), session.state / "beds" / f"{spec.name}.json"
    if not spec.nodes or not inventory.is_absolute():
        return
    if not inventory.exists():
        yield f"its inventory is gone; `ccbed down {spec.name}` needs none, and with the file back"
    elif inventory.is_file() and inventory.stat().st_mtime > file.stat().st_mtime:
        yield "its inventory was written after the last `up`"
    if spec.agent != session.agent():
        yield f"its agents are of another version of ccbed ({spec.agent[:6]}, not {session.agent()[:6]})"


def _show_hosts(session: Session, bed: Status) -> None:
    for host, drain in bed.drained.items():
        session.terminal.line(f"  host {host} {drain.text}     end it: {beds.undrain_command(bed.spec, host)}")
    for host, reason in bed.unreached.items():
        session.terminal.line(f"  host {host}: {reason}")
    for departed in bed.spec.departed:
        session.terminal.line(
            f"  host {departed.host.name}: no longer in the inventory; to end its processes: ccbed up {short_path(bed.spec.inventory)}"
        )


def _show_run(session: Session, spec: BedSpec, run: store.OpenRun) -> None:
    state, command = _state(spec, run)
    session.terminal.line(f"  open run  {run.run}, for {age(run.age_s)}, {state}     {command}")


def _state(spec: BedSpec, run: store.OpenRun) -> tuple[str, str]:
    """Return who drives the run, and which command continues it."""
    directory = short_path(run.directory)
    if run.driver:
        return f"driven by pid {run.driver}", f"watch it: ccbed watch {directory}"
    match _stage(run):
        case "none" if not run.begun:
            return "its orchestrator died before it began", f"run it again: {run.command}"
        case "ended" | "closed":
            return "it has ended, and its orchestrator died before it was judged", f"judge it: ccbed resume {directory}"
    state = "its orchestrator is gone" + (" while it made its twin" if run.twin else "")
    return state, f"resume it: ccbed resume {directory}     abandon it: ccbed heal {spec.name}"


def _stage(run: store.OpenRun) -> bundle.Stage:
    """Return the stage of the run; ``open`` where its history cannot be read."""
    try:
        return bundle.stage(Path(run.directory))
    except CcbedError:
        return "open"
