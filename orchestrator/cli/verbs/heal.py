"""Undo what an abandoned run left: faults, leases, gangs; the run is closed and the bed as `up` left it."""

from __future__ import annotations

import secrets
import shlex
import time
from pathlib import Path

import click

from ...model.bed import BedSpec
from ...model.errors import CcbedError, InfrastructureError, UsageError
from ...model.event import History
from ...model.launch import Request
from ...model.provider import Provider
from ...store import beds as store
from ...store import bundle, paths
from ..inputs import beds, options
from ..inputs.session import Session
from ..render import live


@options.command()
@click.argument("bed", required=False)
@click.pass_obj
def command(session: Session, bed: str | None) -> int:
    """Heal the faults that are left on BED, stop the gang of a run whose orchestrator is gone, and close that run."""
    spec = beds.choose(session, bed)
    with store.lock(session.state, spec.name):
        _settle(session, spec)
        run = store.open_run(Path(spec.workdir), time.time())
        if run and run.driver:
            raise UsageError(
                f"bed {spec.name}: run {run.run} goes on, driven by pid {run.driver}",
                hint=f"interrupt it there (Ctrl-C), or watch it: ccbed watch {beds.shown(run.directory)}",
            )
        return _heal(session, spec, run)


def _settle(session: Session, bed: BedSpec) -> None:
    """Settle the open run; one that cannot be judged is abandoned later."""
    try:
        beds.settle(session, bed)
    except (paths.TornBundleError, OSError) as error:
        session.terminal.warn(str(error))


def _heal(session: Session, bed: BedSpec, run: store.OpenRun | None) -> int:
    provider = session.provider(bed)
    if run:
        _end_run(session, bed, provider, run)
    done = _mend(session, bed, provider, None)
    for lease in provider.observe(bed).leases:
        session.terminal.line(f"  lease     {lease}")
    text = "is healed" if run or done else "has nothing to heal"
    session.terminal.line(f"bed {bed.name} {text} ({session.took()})")
    return 0


def _end_run(session: Session, bed: BedSpec, provider: Provider, run: store.OpenRun) -> None:
    """By its own history where that can be read and written; else by what is found on the nodes."""
    directory = Path(run.directory)
    try:
        _abandon(session, bed, provider, directory)
        session.terminal.line(f"  run {run.run} is closed; its bundle is sealed as it is: {beds.shown(directory)}")
    except (CcbedError, OSError) as error:
        _mend(session, bed, provider, run)
        session.terminal.warn(f"{error}; its bundle is left as it is, not sealed")
        session.terminal.line(f"  run {run.run} is abandoned")
    store.end_run(Path(bed.workdir), run.run)


def _abandon(session: Session, bed: BedSpec, provider: Provider, directory: Path) -> None:
    """Interrupt the run by its own history, then close it. Raises InfrastructureError."""
    from ...run import abandon

    trial, plan = bundle.load_trial(directory), bundle.load_plan(directory)
    printer = live.Printer(terminal=session.terminal, trial=trial, slots=plan.slots)
    printer.replay(bundle.read_history(directory).events)
    request = Request(
        trial=trial,
        bed=bed,
        provider=provider,
        catalogue=session.catalogue,
        runs=str(directory.parent),
        state=str(session.state),
        command=shlex.join(["ccbed", *session.argv]),
        resume=str(directory),
        stop=True,
        on_event=printer.event,
    )
    session.launch(request)
    abandon.collect_and_close(request, directory)


def _mend(session: Session, bed: BedSpec, provider: Provider, run: store.OpenRun | None) -> tuple[str, ...]:
    """What was healed, stopped and started. Raises InfrastructureError for what could not be."""
    from ...providers import heal

    known = _known(Path(run.directory)) if run else History()
    mended = heal.mend(provider, bed, run.run if run else "no run", known, secrets.token_hex(3))
    session.terminal.lines(f"  {line}" for line in mended.done)
    if mended.problems:
        again = f"ccbed down {bed.name} --force, then: ccbed up {beds.shown(bed.inventory)}"
        raise InfrastructureError(*mended.problems, hint=again)
    return mended.done


def _known(directory: Path) -> History:
    """The run's history; nothing where it is gone or damaged: then leases heal what it would tell of."""
    try:
        return bundle.read_history(directory)
    except paths.TornBundleError:
        return History()
