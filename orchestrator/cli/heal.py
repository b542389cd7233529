"""Undo what an abandoned run left: faults, leases, gangs; the run is closed and the bed as `up` left it."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import click

from ..model.bed import BedSpec, BedStatus
from ..model.errors import InfrastructureError, UsageError
from ..model.event import History
from ..model.provider import Provider
from ..providers import heal
from ..store import beds as store
from ..store import bundle
from . import beds, closing, options
from .session import Session


@options.command()
@click.argument("bed", required=False)
@click.pass_obj
def command(session: Session, bed: str | None) -> int:
    """Heal the faults that are left on BED, stop the gang of a run whose orchestrator is gone, and close that run."""
    spec = beds.choose(session, bed)
    with store.lock(session.state, spec.name):
        return _heal(session, spec)


def _heal(session: Session, bed: BedSpec) -> int:
    run = store.open_run(Path(bed.workdir), time.time())
    if run and run.driver:
        raise UsageError(
            f"bed {bed.name}: run {run.run} goes on, driven by pid {run.driver}",
            hint=f"interrupt it there (Ctrl-C), or watch it: ccbed watch {run.directory}",
        )
    provider = session.provider(bed)
    status = provider.observe(bed)
    done = _faults(session, bed, provider, status, run)
    _nodes(session, bed, provider)
    if done.problems:
        raise InfrastructureError(
            *done.problems, hint=f"ccbed down {bed.name} --force, then: ccbed up {beds.shown(bed.inventory)}"
        )
    if run:
        _close(session, bed, run, provider, done)
    elif not status.leases:
        session.terminal.line(f"bed {bed.name}: nothing to heal ({session.took()})")
    return 0


def _faults(
    session: Session, bed: BedSpec, provider: Provider, status: BedStatus, run: store.OpenRun | None
) -> heal.Healed:
    history = _history(run)
    name = run.run if run else "bed"
    done = heal.heal(provider, bed, status, name, history, secrets.token_hex(3))
    for line in done.done:
        session.terminal.line(f"  {line}")
    return done


def _history(run: store.OpenRun | None) -> History:
    if run is None or not Path(run.directory).is_dir():
        return History()
    return bundle.read_history(Path(run.directory))


def _nodes(session: Session, bed: BedSpec, provider: Provider) -> None:
    """Nodes that are missing or still stopped are brought back, as `up` would."""
    from ..core import diff
    from ..providers import apply

    changes = diff.diff(bed, provider.observe(bed), bed)
    if changes.empty:
        return
    apply.apply(provider, bed, changes, token=f"heal-{secrets.token_hex(3)}")
    named = " ".join(change.node for change in changes.changes if change.action != "keep")
    session.terminal.line(f"  {named}: warm again")


def _close(session: Session, bed: BedSpec, run: store.OpenRun, provider: Provider, done: heal.Healed) -> None:
    directory = Path(run.directory)
    if (directory / bundle.TRIAL).is_file() and not bundle.is_sealed(directory):
        closing.give_up(directory, provider, done.heard, f"given up by ccbed heal (pid {os.getpid()})")
    store.end_run(Path(bed.workdir), run.run)
    session.terminal.line(f"  run {run.run} is closed: interrupted; its bundle is sealed as it is")
    session.terminal.line(
        f"bed {bed.name} is healed ({session.took()})     see it: ccbed check {beds.shown(directory)}"
    )
