"""Show beds, nodes, leases, leftover faults and open runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from ...core.bed import diff, links
from ...model import codec
from ...model.bed import BedSpec, BedStatus
from ...model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS, CcbedError, UnreachedError, UsageError
from ...store import beds as store
from ...store import bundle
from ..inputs import beds, options
from ..inputs.session import Session
from ..render import bed_view
from ..render.terminal import age, size
from . import prune


@dataclass(frozen=True, kw_only=True)
class Found:
    """A bed. ``away``: why a host does not say what it has. ``kept``: what ended runs left; None: not known."""

    spec: BedSpec
    status: BedStatus
    run: store.OpenRun | None
    away: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, int] | None = None


@options.command()
@click.argument("bed", required=False)
@options.as_json
@click.pass_obj
def command(session: Session, bed: str | None, as_json: bool) -> int:
    """Show beds, nodes, leases, leftover faults and open runs."""
    names = (bed,) if bed else (*store.names(session.state), *store.strays(session.state))
    found = [_look(session, name) for name in names if not _is_unknown(session, name)]
    if as_json:
        session.terminal.json([_plain(one) for one in found])
        return _code(found)
    if not found:
        session.terminal.line(f"no bed is up     try: ccbed up {beds.EXAMPLE}")
    for one in found:
        _show(session, one)
    return _code(found)


def _code(found: list[Found]) -> int:
    return EXIT_INFRASTRUCTURE if any(one.away for one in found) else EXIT_PASS


def _is_unknown(session: Session, name: str) -> bool:
    """A bed whose hosts nobody knows any more is told, and does not hide the others."""
    try:
        if name in store.strays(session.state):
            store.remembered(session.state, name)
    except UsageError as error:
        session.terminal.warn(f"{error}; {error.hint}")
        return True
    return False


def _look(session: Session, name: str) -> Found:
    strays = store.strays(session.state)
    spec = store.remembered(session.state, name) if name in strays else beds.choose(session, name)
    run = store.open_run(Path(spec.workdir), time.time())
    provider = session.provider(spec)
    try:
        return Found(spec=spec, status=provider.observe(spec), run=run, kept=prune.kept(spec, provider))
    except UnreachedError as error:
        return Found(spec=spec, status=error.status, run=run, away=error.hosts)


def _plain(found: Found) -> dict[str, Any]:
    spec, status, run = found.spec, found.status, found.run
    changes = diff.diff(spec, status)
    return {
        "bed": spec.name,
        "provider": spec.provider,
        "inventory": spec.inventory,
        "as_wanted": changes.empty,
        "keeper_pid": status.keeper_pid,
        "link": codec.plain(spec.link) if spec.link else None,
        "nodes": codec.plain(status.nodes),
        "leases": list(status.leases),
        "open_run": {**codec.plain(run), "stage": _stage(run)} if run else None,
        "away": dict(found.away),
        "leftovers": found.kept,
        "departed": [departed.host.name for departed in spec.departed],
    }


def _show(session: Session, found: Found) -> None:
    terminal, spec, status, run = session.terminal, found.spec, found.status, found.run
    if spec.nodes:
        origin = f"{bed_view.count(spec, status)} · from {beds.shown(spec.inventory)}"
    else:
        origin = f"its bed file is gone; end it with: ccbed down {spec.name}"
    terminal.line(f"bed {spec.name} · {spec.provider} provider · {bed_view.keeper(spec, status)} · {origin}")
    if spec.fabric:
        addresses = f"{spec.nodes[0].address} to {spec.nodes[-1].address}"
        terminal.line(
            f"  fabric    a network namespace per node, {addresses} on one switch; links {links.text(spec.link)}"
        )
    bed_view.table(terminal, spec, status)
    for host, reason in found.away.items():
        terminal.line(f"  host {host}: {reason}")
    for departed in spec.departed:
        terminal.line(
            f"  host {departed.host.name}: no longer in the inventory; end what is there: ccbed up {beds.shown(spec.inventory)}"
        )
    for lease in status.leases:
        terminal.line(f"  lease     {lease}: a fault that is not healed yet     heal it: ccbed heal {spec.name}")
    if run:
        _show_run(session, spec, run)
    if found.kept and found.kept["count"]:
        terminal.line(
            f"  leftovers {found.kept['count']} of ended runs, {size(found.kept['size_bytes'])}     see: ccbed prune --dry-run"
        )
    changes = diff.diff(spec, status) if spec.nodes else None
    if changes and not changes.empty and not run:
        terminal.line(f"  not as wanted: ccbed up {beds.shown(spec.inventory)}")
        bed_view.plan(terminal, spec, changes)


def _show_run(session: Session, spec: BedSpec, run: store.OpenRun) -> None:
    who, ways = _ways(spec, run)
    session.terminal.line(f"  open run  {run.run}, for {age(run.age_s)}, {who}     {ways}")


def _ways(spec: BedSpec, run: store.OpenRun) -> tuple[str, str]:
    """Who drives the run, and which command goes on with it."""
    directory, give_up = beds.shown(run.directory), f"give it up: ccbed heal {spec.name}"
    if run.driver:
        return f"driven by pid {run.driver}", f"watch it: ccbed watch {directory}"
    match _stage(run):
        case "none" if not run.begun:
            return "its orchestrator died before it began", f"again: {run.command}"
        case "ended" | "closed":
            return "it has ended, and its orchestrator died before it was judged", f"judge it: ccbed resume {directory}"
    gone = "its orchestrator is gone"
    return f"{gone} while it made its twin" if run.twin else gone, f"go on: ccbed resume {directory}     {give_up}"


def _stage(run: store.OpenRun) -> bundle.Stage:
    """How far the run has come; open where its history cannot be read."""
    try:
        return bundle.stage(Path(run.directory))
    except CcbedError:
        return "open"
