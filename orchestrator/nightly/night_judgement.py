"""The judgement of a night: ``findings.json``, made again at will from the night's directory and the index."""

from __future__ import annotations

from typing import Literal

from ..model.errors import EXIT_INFRASTRUCTURE
from ..model.frozen import dataclass
from .records import Finding, Key
from .run_record import nodes_of
from .statistics.night_statistics import Compared

#: ``xfail``: fails as its ticket says. ``xpass``: passes although a ticket says that it fails; counts as a failure.
State = Literal["pass", "warn", "fail", "unknown", "xfail", "xpass"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A finding of a gate in its place. ``runs``: names of the night's bundles that it rests on; ``value``: of the night, its
    median, in ``unit``; ``reference``: what it was compared with, in words. ``ticket``: of an expected failure.
    ``is_counted``: False for an unknown that is no defect of the night: a metric has no history yet, or a node too few peers.
    ``compared``: the numbers of a figure beside its reference, of all nodes together, or beside a floor.
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
    compared: Compared | None = None


#: The gates of the judge of nights: a node against its reference, and all nodes together.
REFERENCE, FLEET = "reference", "fleet"
#: Exit codes that say more than the outcome.
_WORDS = {EXIT_INFRASTRUCTURE: "broken"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NightJudgement:
    """``outcome``: the worst of rows and findings. ``exit``: 0, 1 (fail), 2 (unknown), 4 (infrastructure). ``earlier``: nights it
    was compared with; ``history``: what is missing of them, empty if nothing is. ``notes``: facts about the history, such as
    skipped bundles or a clock that went backwards. ``busy``: nodes whose hosts worked for others, and how much.
    """

    outcome: Literal["pass", "warn", "fail", "unknown"]
    exit: int
    sentence: str
    findings: tuple[Judged, ...] = ()
    earlier: tuple[str, ...] = ()
    history: str = ""
    notes: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[Judged, ...]:
        """The table of the night: each node and metric, with the numbers that it was compared with."""
        return tuple(judged for judged in self.findings if judged.compared and judged.finding.gate == REFERENCE)

    @property
    def fleet(self) -> tuple[Judged, ...]:
        """Metrics in which all nodes changed together."""
        return tuple(judged for judged in self.findings if judged.compared and judged.finding.gate == FLEET)

    @property
    def others(self) -> tuple[Judged, ...]:
        """The findings that have no place in the table."""
        return tuple(
            judged for judged in self.findings if not judged.compared or judged.finding.gate not in (REFERENCE, FLEET)
        )

    @property
    def word(self) -> str:
        """Return what is printed: a night whose trials could not run is broken, whatever the others found."""
        return _WORDS.get(self.exit, self.outcome)


def suspects_of(judgement: NightJudgement) -> dict[tuple[str, tuple[str, ...]], tuple[str, ...]]:
    """Return what wants a second measurement: (cell of the suite, nodes: none for the whole gang) -> metrics. A link has two nodes."""
    wanted: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for judged in judgement.cells:
        if judged.compared and judged.compared.is_suspect and judged.compared.again is None:
            wanted.setdefault((judged.cell, nodes_of(judged.finding.node or "")), []).append(judged.finding.metric)
    return {cell: tuple(metrics) for cell, metrics in wanted.items()}
