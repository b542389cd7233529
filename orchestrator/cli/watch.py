"""Follow a run while it goes on, or tell one that has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click

from ..model.event import Event
from ..store import beds as store
from ..store import bundle, index, seal
from . import beds, options, summary, telling
from .session import Session

_LOOK_S = 0.1
#: A run that has ended is judged and sealed within this time.
_SEAL_S = 60.0


@options.command()
@click.argument("run", default="latest")
@options.runs_dir
@click.option("--timeout", type=click.FloatRange(min=0), default=None, help="Stop watching after so many seconds.")
@click.pass_obj
def command(session: Session, run: str, runs_dir: Path, timeout: float | None) -> int:
    """Tell RUN as it happens, until it has ended; its exit code tells its verdict."""
    directory = index.resolve(run, runs_dir)
    session.terminal.line(f"run    {beds.shown(directory)}")
    trial, plan = bundle.load_trial(directory), bundle.load_plan(directory)
    _warn_if_abandoned(session, plan.bed, directory)
    teller = telling.Teller(terminal=session.terminal, trial=trial, slots=plan.slots)
    until = time.monotonic() + timeout if timeout is not None else float("inf")
    for event in _events(directory, until):
        teller.tell(event)
    if not _judged(directory, until):
        session.terminal.line(f"still open     go on: ccbed watch {beds.shown(directory)}")
        return 0
    return summary.show(session, directory, summary.code(directory))


def _warn_if_abandoned(session: Session, bed: str, directory: Path) -> None:
    """A run that nobody drives stands still until somebody resumes it."""
    spec = store.read(session.state, bed)
    found = store.open_run(Path(spec.workdir)) if spec else None
    if found and not found.driver and Path(found.directory).resolve() == directory.resolve():
        where = beds.shown(directory)
        session.terminal.warn(f"its orchestrator is gone; go on: ccbed resume {where}, or give it up: ccbed heal {bed}")


def _events(directory: Path, until: float) -> Iterator[Event]:
    """The events so far and those to come, each once."""
    told = 0
    while True:
        events = bundle.read_history(directory).events
        yield from events[told:]
        told = len(events)
        if _over(directory, events) or time.monotonic() > until:
            return
        time.sleep(_LOOK_S)


def _over(directory: Path, events: tuple[Event, ...]) -> bool:
    return any(event.f == "run.end" for event in events) or (directory / seal.MANIFEST).exists()


def _judged(directory: Path, until: float) -> bool:
    limit = min(until, time.monotonic() + _SEAL_S)
    while not (directory / seal.DERIVED).exists():
        if time.monotonic() > limit:
            return False
        time.sleep(_LOOK_S)
    return True
