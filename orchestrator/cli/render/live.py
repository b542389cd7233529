"""A run told while it happens: lasting lines, and on a terminal one that moves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ...model.event import Event
from ...model.trial import Trial
from ..inputs import beds
from . import run_lines
from .terminal import Terminal

#: Off a terminal, progress is told so often, in seconds.
EVERY_S = 10.0
_BAD = ("FAULT", "refused", "error", "failed", "unreached")
_WARN = ("suspect", "late", "left out", "skipped", "interrupt", "lease")


@dataclass(kw_only=True)
class Teller:
    """``quiet``: for --json, nothing is told."""

    terminal: Terminal
    trial: Trial
    slots: tuple[str, ...] = ()
    quiet: bool = False
    _said_at: float = 0.0
    _story: run_lines.Story = field(init=False)

    def __post_init__(self) -> None:
        self._story = run_lines.Story(trial=self.trial, slots=self.slots)

    def head(self, lines: Iterable[str]) -> None:
        if not self.quiet:
            self.terminal.lines(lines)

    def known(self, run: str) -> None:
        """The twin was made before."""
        self.head([f"twin   {run}: the same trial uninterrupted, made before (cached)"])

    def note(self, text: str) -> None:
        """What a user should know before the run begins."""
        self.head([f"note   {text}"])

    def begun(self, directory: str) -> None:
        """Where the run is; a twin is told apart."""
        if "-twin-" in Path(directory).name:
            self.head([f"twin   {beds.shown(directory)}: the same trial uninterrupted, once, to compare with"])
        else:
            self.head([f"run    {beds.shown(directory)}"])

    def recall(self, events: Iterable[Event]) -> None:
        """Events that were told before, by another process: what comes later may refer to them."""
        for event in events:
            self._story.feed(event)

    def tell(self, event: Event) -> None:
        for line in self._story.feed(event):
            if not self.quiet:
                self._say(line)

    def _say(self, line: run_lines.Line) -> None:
        if line.passing and self.terminal.live:
            self.terminal.status(str(line))
        elif not line.passing or line.t - self._said_at >= EVERY_S:
            self._said_at = line.t
            self.terminal.line(self._styled(line))

    def _styled(self, line: run_lines.Line) -> str:
        style = "bad" if line.label in _BAD else "warn" if line.label in _WARN else ""
        label = self.terminal.style(f"{line.label:<9}", style) if style else f"{line.label:<9}"
        return f"{line.t:7.3f}  {label} {line.text}"
