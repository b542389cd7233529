"""Selects the cells of a suite that run: their order, those that fit into the budget, and those that the bed can run. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from ..model.bed import BedSpec, NodeSpec
from ..model.frozen import dataclass
from .suite import Cell, Row, Suite

#: Earlier nights whose findings count.
NIGHTS = 10
#: What a suite may require of a bed: name -> (what is missing without it, whether a bed has it).
REQUIREMENTS: Mapping[str, tuple[str, Callable[[BedSpec], bool]]] = {
    "gpu": ("a GPU on every node", lambda bed: all(node.gpus for node in _members(bed))),
    "containers": ("nodes that are containers", lambda bed: all(node.container for node in _members(bed))),
    "fabric": ("nodes with a shaped link of their own (ccbed_link)", lambda bed: bed.fabric),
    "spare": ("a pre-loaded spare", lambda bed: any(node.role == "spare" for node in bed.nodes)),
    "hosts": ("more than one host", lambda bed: len({node.host for node in _members(bed)}) > 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PastNight:
    """An earlier night of the same suite on the same bed. ``findings``: cell -> how many of its findings were no pass."""

    rows: tuple[Row, ...]
    findings: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A cell in the earlier nights. ``nights_ago``: since its last run, None: never; ``duration_s``: median of all its repeats
    together in a night, None: not known; ``findings``: in the last NIGHTS nights.
    """

    nights_ago: int | None = None
    duration_s: float | None = None
    findings: int = 0

    @property
    def urgency(self) -> float:
        return float("inf") if self.nights_ago is None else self.nights_ago * (1.0 + self.findings)


NEVER = Past()


def order(suite: Suite, past: Mapping[str, Past]) -> tuple[str, ...]:
    """The names of the cells in the order in which they run.

    1. The seed shuffles them.
    2. With a budget they are sorted: first by priority, then by urgency = nights since the last run x (1 + findings in the last
       10 nights), greatest first. A cell that never ran is the most urgent of its priority. Equal ones stay shuffled.

    So a cell that finds nothing is run again when its turn has come, and one that finds something comes earlier.
    """
    cells = list(suite.cells)
    random.Random(suite.seed).shuffle(cells)
    if suite.budget_s is not None:
        cells.sort(key=lambda cell: (-cell.priority, -past.get(cell.name, NEVER).urgency))
    return tuple(cell.name for cell in cells)


def schedule(cells: Sequence[Cell]) -> tuple[tuple[Cell, int], ...]:
    """Each repeat of the cells, spread over the night: of three repeats the first, the middle and the last part of it.

    Values that were measured within seconds differ less than those of one night and the next, and hide how far a node varies.
    """
    single = [cell for cell in cells if cell.repeats == 1]
    places = {cell.name: (index + 1) / (len(single) + 1) for index, cell in enumerate(single)}
    every = [
        (places.get(cell.name, repeat / max(1, cell.repeats - 1)), index, cell, repeat)
        for index, cell in enumerate(cells)
        for repeat in range(cell.repeats)
    ]
    return tuple((cell, repeat) for _, _, cell, repeat in sorted(every, key=lambda item: item[:2]))


def one_by_one(cells: Sequence[Cell]) -> tuple[tuple[Cell, int], ...]:
    """Each cell with all its repeats, then the next: the confirming round of a sweep follows all others."""
    return tuple((cell, repeat) for cell in cells for repeat in range(cell.repeats))


def fits(spent_s: float, budget_s: float | None, past: Past) -> bool:
    """Return whether a cell starts: the time that it took in earlier nights is left, or any time at all if that is not known.

    A cell that has started is run to its end, so a night may be longer than its budget by that cell.
    """
    if budget_s is None:
        return True
    return spent_s + (past.duration_s or 0.0) <= budget_s and spent_s < budget_s


def expected_s(suite: Suite, past: Mapping[str, Past]) -> float:
    """Return how long the cells take that are known from earlier nights, within the budget."""
    known = sum(past.get(cell.name, NEVER).duration_s or 0.0 for cell in suite.cells)
    return known if suite.budget_s is None else min(known, suite.budget_s)


def past(nights: Sequence[PastNight], names: Iterable[str]) -> dict[str, Past]:
    """``nights``: the newest first."""
    return {name: _past(nights, name) for name in names}


def _past(nights: Sequence[PastNight], name: str) -> Past:
    by_night = [[row for row in night.rows if row.cell == name and row.state != "skipped"] for night in nights]
    ago = next((index + 1 for index, rows in enumerate(by_night) if rows), None)
    durations = [sum(row.duration_s for row in rows) for rows in by_night if rows]
    return Past(
        nights_ago=ago,
        duration_s=median(durations) if durations else None,
        findings=sum(night.findings.get(name, 0) for night in nights[:NIGHTS]),
    )


def missing(needs: Sequence[str], bed: BedSpec) -> str:
    """The first requirement that the bed lacks, as a sentence; empty if it has all."""
    lacking = next((need for need in needs if not REQUIREMENTS[need][1](bed)), None)
    return f"needs {REQUIREMENTS[lacking][0]}; bed {bed.name} has none" if lacking else ""


def _members(bed: BedSpec) -> tuple[NodeSpec, ...]:
    return tuple(node for node in bed.nodes if node.role == "node")
