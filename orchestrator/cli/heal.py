"""Undo what an abandoned run left: faults, leases, gangs; the run is closed and the bed as `up` left it."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import click

from ..model.bed import BedSpec
from ..model.errors import InfrastructureError, UsageError
from ..model.provider import Provider
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
        run = store.open_run(Path(spec.workdir), time.time())
        if run and run.driver:
            raise UsageError(
                f"bed {spec.name}: run {run.run} goes on, driven by pid {run.driver}",
                hint=f"interrupt it there (Ctrl-C), or watch it: ccbed watch {beds.shown(run.directory)}",
            )
        return _heal(session, spec, run)


def _heal(session: Session, bed: BedSpec, run: store.OpenRun | None) -> int:
    provider = session.provider(bed)
    if run:
        _end_run(session, bed, provider, run)
    named = _bring_back(bed, provider)
    if named:
        session.terminal.line(f"  {named}: warm again")
    for lease in provider.observe(bed).leases:
        session.terminal.line(f"  lease     {lease}")
    done = "is healed" if run or named else "has nothing to heal"
    session.terminal.line(f"bed {bed.name} {done} ({session.took()})")
    return 0


def _end_run(session: Session, bed: BedSpec, provider: Provider, run: store.OpenRun) -> None:
    from ..providers import heal

    directory = Path(run.directory)
    if (directory / bundle.TRIAL).is_file():
        closing.give_up(session, bed, provider, directory)
        session.terminal.line(f"  run {run.run} is closed; its bundle is sealed as it is: {beds.shown(directory)}")
    else:
        problems = heal.stop(provider, bed, provider.observe(bed), run.run, secrets.token_hex(3))
        if problems:
            hint = f"ccbed down {bed.name} --force, then: ccbed up {beds.shown(bed.inventory)}"
            raise InfrastructureError(*problems, hint=hint)
        session.terminal.line(f"  run {run.run} is ended; its directory is gone: {run.directory}")
    store.end_run(Path(bed.workdir), run.run)


def _bring_back(bed: BedSpec, provider: Provider) -> str:
    """Nodes that are missing or still stopped are brought back, as `up` would; their names."""
    from ..core import diff
    from ..providers import apply

    changes = diff.diff(bed, provider.observe(bed), bed)
    if changes.empty:
        return ""
    apply.apply(provider, bed, changes, token=f"heal-{secrets.token_hex(3)}")
    return " ".join(change.node for change in changes.changes if change.action != "keep")
