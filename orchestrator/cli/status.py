"""Show beds, nodes, leases, leftover faults and open runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from ..core import diff
from ..model import codec
from ..model.bed import BedSpec, BedStatus
from ..store import beds as store
from . import beds, bedview, options
from .session import Session
from .terminal import age


@options.command()
@click.argument("bed", required=False)
@options.as_json
@click.pass_obj
def command(session: Session, bed: str | None, as_json: bool) -> int:
    """Show beds, nodes, leases, leftover faults and open runs."""
    names = (bed,) if bed else (*store.names(session.state), *store.strays(session.state))
    found = [_look(session, name) for name in names]
    if as_json:
        session.terminal.json([_plain(*one) for one in found])
        return 0
    if not found:
        session.terminal.line(f"no bed is up     try: ccbed up {beds.EXAMPLE}")
    for spec, status, run in found:
        _show(session, spec, status, run)
    return 0


def _look(session: Session, name: str) -> tuple[BedSpec, BedStatus, store.OpenRun | None]:
    strays = store.strays(session.state)
    spec = store.remembered(session.state, name) if name in strays else beds.choose(session, name)
    status = session.provider(spec).observe(spec)
    return spec, status, store.open_run(Path(spec.workdir), time.time())


def _plain(spec: BedSpec, status: BedStatus, run: store.OpenRun | None) -> dict[str, Any]:
    changes = diff.diff(spec, status)
    return {
        "bed": spec.name,
        "provider": spec.provider,
        "inventory": spec.inventory,
        "as_wanted": changes.empty,
        "keeper_pid": status.keeper_pid,
        "nodes": codec.plain(status.nodes),
        "leases": list(status.leases),
        "open_run": codec.plain(run) if run else None,
    }


def _show(session: Session, spec: BedSpec, status: BedStatus, run: store.OpenRun | None) -> None:
    terminal = session.terminal
    keeper = f"keeper pid {status.keeper_pid}" if status.keeper_pid else "no keeper"
    if spec.nodes:
        origin = f"{bedview.count(spec, status)} · from {beds.shown(spec.inventory)}"
    else:
        origin = f"its bed file is gone; end it with: ccbed down {spec.name}"
    terminal.line(f"bed {spec.name} · {spec.provider} provider · {keeper} · {origin}")
    bedview.table(terminal, spec, status)
    for lease in status.leases:
        terminal.line(f"  lease     {lease}: a fault that is not healed yet     heal it: ccbed heal {spec.name}")
    if run:
        _show_run(session, spec, run)
    changes = diff.diff(spec, status) if spec.nodes else None
    if changes and not changes.empty and not run:
        terminal.line(f"  not as wanted: ccbed up {beds.shown(spec.inventory)}")
        bedview.plan(terminal, spec, changes)


def _show_run(session: Session, spec: BedSpec, run: store.OpenRun) -> None:
    directory = beds.shown(run.directory)
    if run.driver:
        ways = f"watch it: ccbed watch {directory}"
        who = f"driven by pid {run.driver}"
    else:
        ways = f"go on: ccbed resume {directory}     give it up: ccbed heal {spec.name}"
        who = "its orchestrator is gone"
    session.terminal.line(f"  open run  {run.run}, for {age(run.age_s)}, {who}     {ways}")
