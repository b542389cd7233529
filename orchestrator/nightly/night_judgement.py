"""The judgement of a night: ``findings.json``, made again at will from the night's directory and the index."""

from __future__ import annotations

from typing import Literal

from ..model.errors import EXIT_INFRASTRUCTURE
from ..model.frozen import dataclass
from .gates.finding import Finding
from .gates.nights import Key

#: ``xfail``: fails as its ticket says. ``xpass``: passes although a ticket says that it fails; counts as a failure.
State = Literal["pass", "warn", "fail", "unknown", "xfail", "xpass"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A finding of a gate in its place. ``runs``: names of the night's bundles that it rests on; ``value``: of the night, its
    median, in ``unit``; ``reference``: what it was compared with, in words. ``ticket``: of an expected failure.
    ``is_counted``: False for an unknown that is no defect of the night: a gate has no history yet, or a node too few peers.
    """

    finding: Finding
    state: State
    cell: str = ""
    key: Key | None = None
    runs: tuple[str, ...] = ()
    value: float | None = None
    unit: str = ""
    reference: str = ""
    ticket: str = ""
    is_counted: bool = True


#: Exit codes that say more than the outcome.
_WORDS = {EXIT_INFRASTRUCTURE: "broken"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NightJudgement:
    """``outcome``: the worst of rows and findings. ``exit``: 0, 1 (fail), 2 (unknown), 4 (infrastructure). ``earlier``: nights it
    was compared with; ``history``: what is missing of them, empty if nothing is. ``notes``: facts about the history, such as
    skipped bundles or a clock that went backwards.
    """

    outcome: Literal["pass", "warn", "fail", "unknown"]
    exit: int
    sentence: str
    findings: tuple[Judged, ...] = ()
    earlier: tuple[str, ...] = ()
    history: str = ""
    notes: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """What is printed: a night whose trials could not run is broken, whatever the others found."""
        return _WORDS.get(self.exit, self.outcome)
