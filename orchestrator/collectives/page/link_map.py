"""The links between each two ranks as tables whose cells have a colour and a number."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from ...model import ratio
from ...model.frozen import dataclass
from ..views import Direction, Measured, directions

#: Ranks of a table; with more of them it has a row for each sender.
RANKS = 24
#: The strongest colour is for a direction that takes so much longer than the others.
STRONG = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMap:
    """``rows``: (name, cells); a cell is (text, level from -2, better, to 2, worse, what it is)."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, int, str], ...]], ...]


def maps(measured: Measured) -> list[LinkMap]:
    """Bandwidth and start-up, sender in the row; none where the probe measured nothing."""
    known = measured.setting.link.directions
    betas = {_ends(direction): direction.beta for direction in known if direction.beta}
    if not betas:
        return []
    unit, name = (1e9, "Gbit/s") if 8 / max(betas.values()) >= 1e10 else (1e6, "Mbit/s")
    speeds = {ends: 8 / beta / unit for ends, beta in betas.items()}
    delays = {_ends(direction): direction.alpha_s * 1e6 for direction in known}
    bandwidth, delay = f"bandwidth, {name}", "latency, µs"
    if len(_ranks(known)) <= RANKS:
        return [_square(measured, speeds, bandwidth, levels(known)), _square(measured, delays, delay, {})]
    return [_by_sender(measured, speeds, bandwidth, -1, levels(known)), _by_sender(measured, delays, delay, 1, {})]


def levels(known: Sequence[Direction]) -> dict[tuple[int, int], int]:
    """2 or 1 for directions that are slower than the others, -1 for faster ones; none whose interval leaves it open."""
    compared = {_ends(direction): change for direction, change in directions.changes(known)}
    outcomes = {"slower": 1, "faster": -1}
    return {
        ends: outcomes[outcome] * (2 if change.low > STRONG else 1)
        for ends, change in compared.items()
        if (outcome := change.outcome(ratio.MARGIN)) in outcomes
    }


def _ends(direction: Direction) -> tuple[int, int]:
    return direction.sender, direction.receiver


def _ranks(directions: Iterable[Direction]) -> list[int]:
    return sorted({rank for direction in directions for rank in _ends(direction)})


def _square(
    measured: Measured, values: Mapping[tuple[int, int], float], title: str, level: Mapping[tuple[int, int], int]
) -> LinkMap:
    """``level``: of directions that have a colour."""
    known, node = measured.setting.link.directions, measured.setting.node
    ranks = _ranks(known)
    rough = {_ends(direction) for direction in known if direction.is_wide}

    def cell(ends: tuple[int, int]) -> tuple[str, int, str]:
        value = values.get(ends)
        if value is None:
            return "", 0, ""
        return _figure(value) + "?" * (ends in rough), level.get(ends, 0), f"{node(ends[0])} to {node(ends[1])}"

    rows = tuple((node(sender), tuple(cell((sender, receiver)) for receiver in ranks)) for sender in ranks)
    return LinkMap(title=title, head=("from \\ to", *(node(rank) for rank in ranks)), rows=rows)


def _by_sender(
    measured: Measured,
    values: Mapping[tuple[int, int], float],
    title: str,
    worse: int,
    level: Mapping[tuple[int, int], int],
) -> LinkMap:
    """Least, median and greatest over the receivers, and the receiver with the worst. ``worse``: 1 where larger values are, else -1."""
    node = measured.setting.node
    rows = []
    for sender in sorted({sender for sender, _ in values}):
        own = {receiver: value for (rank, receiver), value in values.items() if rank == sender}
        worst = max(own, key=lambda receiver: worse * own[receiver])
        figures = (min(own.values()), statistics.median(own.values()), max(own.values()))
        rows.append(
            (
                node(sender),
                (
                    *((_figure(value), 0, "") for value in figures),
                    (node(worst), level.get((sender, worst), 0), "worst"),
                ),
            )
        )
    return LinkMap(title=title, head=("from", "least", "median", "greatest", "worst to"), rows=tuple(rows))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if math.isfinite(value) else "-"
