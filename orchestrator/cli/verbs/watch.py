"""Show a run while it happens, or one that has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from ...app import beds, check
from ...app.places import short_path
from ...model.errors import InfrastructureError
from ...model.event import Event
from ...model.events import RunEnd
from ...model.plan import Plan
from ...store import beds as store
from ...store import bundle, index, seal
from ..inputs import options
from ..inputs.session import Session
from ..render import live, summary

_POLL_S = 0.1
#: A run that has ended is judged and sealed within this time.
_SEAL_S = 60.0


@options.command()
@options.of_run(default="latest")
@options.runs_dir
@click.option("--timeout", type=click.FloatRange(min=0), default=None, help="Stop watching after so many seconds.")
@options.as_json
@click.pass_obj
def command(session: Session, run: str, runs_dir: Path, timeout: float | None, as_json: bool) -> int:
    """Show RUN as it happens, until it has ended; the exit code is that of the run."""
    directory = index.resolve(run, runs_dir)
    if bundle.is_sealed(directory):
        check.verify(directory)
    trial, plan = bundle.load_trial(directory), bundle.load_plan(directory)
    printer = live.Printer(terminal=session.terminal, trial=trial, slots=plan.slots, quiet=as_json)
    printer.head([f"run    {short_path(directory)}"])
    until = time.monotonic() + timeout if timeout is not None else float("inf")
    for event in _events(directory, until, lambda: _is_driven(session, plan)):
        printer.event(event)
    if not _wait_for_verdicts(directory, until):
        if as_json:
            session.terminal.json({"run": directory.name, "directory": str(directory), "exit": None})
            return 0
        session.terminal.line(f"still open     continue: ccbed watch {short_path(directory)}")
        return 0
    return summary.show(session, summary.saved(directory), as_json=as_json)


def _is_driven(session: Session, plan: Plan) -> bool:
    """Whether an orchestrator drives the run."""
    bed = beds.read(session, plan.bed)
    return bed is not None and store.driver(Path(bed.workdir)) != 0


def _events(directory: Path, until: float, is_driven: Callable[[], bool]) -> Iterator[Event]:
    """Yield every event once, past and future. Raises InfrastructureError when no further event can come."""
    shown = 0
    while True:
        driven = is_driven()
        events = bundle.read_history(directory).events
        yield from events[shown:]
        shown = len(events)
        if _has_ended(directory, events) or time.monotonic() > until:
            return
        if not driven:
            raise InfrastructureError(
                f"{short_path(directory)}: the run has not ended, and no orchestrator drives it",
                hint=f"resume it: ccbed resume {short_path(directory)}",
            )
        time.sleep(_POLL_S)


def _has_ended(directory: Path, events: tuple[Event, ...]) -> bool:
    return any(event.kind is RunEnd for event in events) or (directory / seal.MANIFEST).exists()


def _wait_for_verdicts(directory: Path, until: float) -> bool:
    limit = min(until, time.monotonic() + _SEAL_S)
    while not (directory / seal.DERIVED).exists():
        if time.monotonic() > limit:
            return False
        time.sleep(_POLL_S)
    return True
