"""Follow a run while it happens, or one that has ended."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ...model.errors import InfrastructureError
from ...model.event import Event, History
from ...model.events import RunEnd
from ...model.frozen import dataclass
from ...model.launch import Result
from ...model.plan import Plan
from ...model.trial import Trial
from ...store import bed_files as store
from ...store import bundle, index, seal
from .. import beds, check, ended
from ..places import short_path
from ..requests import named_run, option, runs_directory
from ..session import Session

_POLL_S = 0.1
#: A run that has ended is judged and sealed within this time.
_SEAL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """The request of `ccbed watch` and `ccbed top`."""

    run: str = named_run("latest")
    runs_dir: Path = runs_directory()
    timeout: float | None = option(None, "Stop watching after so many seconds.", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A run, with its events and its result as they come. ``until``: when it is watched no more."""

    directory: Path
    trial: Trial
    plan: Plan
    until: float
    is_driven: Callable[[], bool]

    def history(self) -> History:
        return bundle.read_history(self.directory)

    def events(self) -> Iterator[Event]:
        """Yield every event once, past and future. Raises InfrastructureError when no further event can come."""
        shown = 0
        while True:
            driven = self.is_driven()
            events = self.history().events
            yield from events[shown:]
            shown = len(events)
            has_ended = any(event.kind is RunEnd for event in events) or (self.directory / seal.MANIFEST).exists()
            if has_ended or time.monotonic() > self.until:
                return
            if not driven:
                raise InfrastructureError(
                    f"{short_path(self.directory)}: the run has not ended, and no orchestrator drives it",
                    hint=f"resume it: ccbed resume {short_path(self.directory)}",
                )
            time.sleep(_POLL_S)

    def result(self) -> Result | None:
        """Return the result once the run is judged; None where it is not watched so long."""
        limit = min(self.until, time.monotonic() + _SEAL_S)
        while not (self.directory / seal.DERIVED).exists():
            if time.monotonic() > limit:
                return None
            time.sleep(_POLL_S)
        return ended.saved(self.directory)


def run(session: Session, request: WatchRequest) -> Watched:
    """Return the run that is meant; the seal of one that is sealed is verified. Raises UsageError, TornBundleError."""
    directory = index.resolve(request.run, request.runs_dir)
    if bundle.is_sealed(directory):
        check.verify(directory)
    trial, plan = bundle.load_trial(directory), bundle.load_plan(directory)
    until = time.monotonic() + request.timeout if request.timeout is not None else float("inf")
    is_driven = functools.partial(_is_driven, session, plan)
    return Watched(directory=directory, trial=trial, plan=plan, until=until, is_driven=is_driven)


def _is_driven(session: Session, plan: Plan) -> bool:
    """Return whether an orchestrator drives the run."""
    bed = beds.read(session, plan.bed)
    return bed is not None and store.driver(Path(bed.workdir)) != 0
