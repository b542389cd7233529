"""Print a run: its head, its events, the output of its ranks, and how it ended."""

from __future__ import annotations

from pathlib import Path

from ...app import places
from ...app.observers import PlannedRun
from ...app.requests import OutputRequest
from ...model.event import Event, History
from ...model.events import RunEnd
from ...model.frozen import dataclass, field
from ...model.launch import Result
from ...model.trial import Trial
from ..inputs.session import Session
from . import live, rank_output, summary, trial_lines


@dataclass(kw_only=True)
class RunScreen:
    """Follows a run on a terminal; prints nothing where a document follows."""

    session: Session = field(repr=False)
    output: OutputRequest = OutputRequest()
    is_script: bool = False
    shows_result: bool = True
    printer: live.Printer = field(init=False, repr=False)
    _tee: rank_output.Tee | None = field(default=None, repr=False)

    def planned(self, run: PlannedRun) -> None:
        self.printer = live.Printer(
            terminal=self.session.terminal, trial=run.trial, slots=run.slots, quiet=self.session.is_json
        )
        self.printer.head(trial_lines.head(run))
        which = self.output.tee or ("0" if self.is_script else rank_output.NONE)
        self._tee = rank_output.Tee(
            terminal=self.session.terminal,
            nodes=Path(run.bed.workdir) / "nodes",
            which=rank_output.NONE if self.session.is_json else which,
            hide=run.hide,
            lock=self.printer.lock,
        )

    def begun(self, directory: str) -> None:
        self.printer.directory(directory)
        if self._tee and not places.is_twin(directory):
            self._tee.begin(Path(directory).name)

    def event(self, event: Event) -> None:
        if event.kind is RunEnd and self._tee:
            self._tee.stop()
        self.printer.event(event)

    def cached_twin(self, run: str) -> None:
        self.printer.cached_twin(run)

    def note(self, text: str) -> None:
        self.printer.note(text)

    def stage(self, text: str) -> None:
        self.printer.stage(text)

    def ended(self, result: Result) -> None:
        if self._tee:
            self._tee.stop()
        if self.output.log_dir:
            rank_output.copy_logs(Path(result.directory), self.output.log_dir, self.printer.note)

    def judged(self, result: Result) -> None:
        if self.shows_result and not self.session.is_json:
            summary.show(self.session, result)


def resumed(session: Session, trial: Trial, slots: tuple[str, ...], history: History) -> RunScreen:
    """Return what prints the rest of a run that another process has followed."""
    screen = RunScreen(session=session)
    screen.printer = live.Printer(terminal=session.terminal, trial=trial, slots=slots, quiet=session.is_json)
    screen.printer.replay(history.events)
    return screen
