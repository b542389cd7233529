"""The session of a command line: its use cases tell a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...app import session
from ...model.frozen import dataclass, field
from ..render.terminal import Terminal

if TYPE_CHECKING:
    from ...app.observers import BedObserver, RunObserver
    from ...app.requests import OutputRequest
    from ...model.event import History
    from ...model.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTerminal:
    """Opens what prints a run or a change of a bed; what prints is imported when it is used. ``results``: also how runs ended."""

    results: bool = True

    def run(self, session: Any, output: OutputRequest, *, is_script: bool) -> RunObserver:
        from ..render import live_lines

        return live_lines.RunScreen(session=session, output=output, is_script=is_script, shows_result=self.results)

    def resumed(self, session: Any, trial: Trial, slots: tuple[str, ...], history: History) -> RunObserver:
        from ..render import live_lines

        return live_lines.resumed(session, trial, slots, history)

    def bed(self, session: Any) -> BedObserver:
        from ..render import bed_view

        return bed_view.BedProgress(terminal=session.terminal)

    def night(self, session: Any) -> Any:
        from ...app import nights

        return nights.product().observer(session)


@dataclass(kw_only=True)
class Session(session.Session):
    """One invocation on a terminal."""

    terminal: Terminal
    follow: session.Observers = field(default_factory=OnTerminal)

    def silence_for_json(self) -> Terminal:
        """Return the terminal; where it gets a document at the end, the use case shows problems only."""
        screen = self.terminal
        self.terminal = screen.silent() if self.is_json else screen
        return screen
