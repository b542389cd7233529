"""Print a run while it happens: lasting lines, and on a terminal one line that is rewritten."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from ...app.observers import PlannedRun
from ...app.places import duration, is_twin, short_path
from ...app.requests import OutputRequest
from ...model.event import Event, History
from ...model.events import RankStep, RunEnd
from ...model.frozen import dataclass, field
from ...model.launch import Result
from ...model.trial import Trial
from . import rank_output, run_lines, summary_lines, trial_lines
from .terminal import Invocation, Terminal

#: Seconds between two lines of progress where the last line cannot be rewritten.
EVERY_S = 10.0
_BAD = ("FAULT", "refused", "error", "failed", "unreached")
_WARN = ("suspect", "late", "left out", "skipped", "interrupt")


def _plain(event: Event) -> str:
    """An event that has no line of its own, for --verbose."""
    outcome = "" if event.type == "note" else f" {event.type}"
    where = " ".join(part for part in (event.node or "", event.key or "") if part)
    return f"{event.t:7.3f}  .         {event.f}{outcome} {where}".rstrip()


@dataclass(kw_only=True)
class Printer:
    """``slots``: group rank -> node, as planned; ``quiet``: print nothing, for --json.

    ``lock``: held while a line is printed.
    """

    terminal: Terminal
    trial: Trial
    slots: tuple[str, ...] = ()
    quiet: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)
    _printed_at: float = 0.0
    _reference: tuple[float, int] | None = None
    _lines: run_lines.RunLines = field(init=False)

    def __post_init__(self) -> None:
        self._lines = run_lines.RunLines(trial=self.trial, slots=self.slots)

    def head(self, lines: Iterable[str]) -> None:
        if not (self.quiet or self.terminal.quiet):
            with self.terminal.surviving():
                self.terminal.lines(lines)

    def cached_twin(self, run: str) -> None:
        self.head([f"reference run of {run[11:16].replace('-', ':')} UTC used again: {run}"])

    def note(self, text: str) -> None:
        self.head([f"note   {text}"])

    def stage(self, text: str) -> None:
        """Say what begins now; on a terminal until the next line."""
        if not (self.quiet or self.terminal.quiet):
            with self.terminal.surviving():
                (self.terminal.status if self.terminal.live else self.terminal.line)(f"          {text}")

    def reference(self, steps: int, event: Event) -> None:
        """Show how far a reference run is, and how long it takes: the run itself has made ``steps`` steps."""
        if event.kind is not RankStep or event.data.rank != 0 or self.quiet or self.terminal.quiet:
            return
        step = event.data.step + (event.data.offset or 0)
        self._reference = self._reference or (event.t, step)
        done, took_s = step - self._reference[1], event.t - self._reference[0]
        left = f" of {steps}, about {duration(took_s / done * (steps - step))} left" if done and steps > step else ""
        with self.terminal.surviving():
            self._print(run_lines.Line(t=event.t, label="reference", text=f"step {step}{left}", passing=True))

    def directory(self, path: str) -> None:
        """Print where the run, or its twin, is recorded."""
        self._printed_at, self._reference = 0.0, None
        if "-twin-control-" in Path(path).name:
            self.head(
                [f"reference {short_path(path)}: the same trial, restarted where the faults act, to compare with"]
            )
        elif is_twin(path):
            self.head([f"reference {short_path(path)}: the same trial without faults, run once to compare with"])
        else:
            self.head([f"run    {short_path(path)}"])

    def replay(self, events: Iterable[Event]) -> None:
        """Read events that another process has printed: later lines may refer to them."""
        for event in events:
            self._lines.feed(event)

    def event(self, event: Event) -> None:
        lines = list(self._lines.feed(event))
        if self.quiet or self.terminal.quiet:
            return
        with self.lock, self.terminal.surviving():
            if self.terminal.verbose and not any(not line.passing for line in lines):
                self.terminal.line(self.terminal.style(_plain(event), "dim"))
            for line in lines:
                self._print(line)

    def _print(self, line: run_lines.Line) -> None:
        if line.passing and self.terminal.live:
            self.terminal.status(str(line))
        elif not line.passing or line.t - self._printed_at >= EVERY_S:
            self._printed_at = line.t
            self.terminal.line(self._styled(line))

    def _styled(self, line: run_lines.Line) -> str:
        style = "bad" if line.label in _BAD else "warn" if line.label in _WARN else ""
        label = self.terminal.style(f"{line.label:<9}", style) if style else f"{line.label:<9}"
        return f"{line.t:7.3f}  {label} {line.text}"


@dataclass(kw_only=True)
class RunScreen:
    """Follows a run on a terminal; prints nothing where a document follows."""

    session: Invocation = field(repr=False)
    output: OutputRequest = OutputRequest()
    is_script: bool = False
    shows_result: bool = True
    printer: Printer = field(init=False, repr=False)
    _tee: rank_output.Tee | None = field(default=None, repr=False)

    def planned(self, run: PlannedRun) -> None:
        self.printer = Printer(
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
        if self._tee and not is_twin(directory):
            self._tee.begin(Path(directory).name)

    def event(self, event: Event) -> None:
        if event.kind is RunEnd and self._tee:
            self._tee.stop()
        self.printer.event(event)

    def reference(self, steps: int, event: Event) -> None:
        self.printer.reference(steps, event)

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
            summary_lines.show(self.session, result)


def resumed(session: Invocation, trial: Trial, slots: tuple[str, ...], history: History) -> RunScreen:
    """Return what prints the rest of a run that another process has followed."""
    screen = RunScreen(session=session)
    screen.printer = Printer(terminal=session.terminal, trial=trial, slots=slots, quiet=session.is_json)
    screen.printer.replay(history.events)
    return screen
