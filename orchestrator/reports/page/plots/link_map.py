"""The links between each two ranks as tables whose cells have a colour and a number."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

from ....model.frozen import dataclass
from ....views.collectives import Direction, Measured

#: Ranks of a table; with more of them it has a row for each sender.
RANKS = 24
#: Colours to either side of the median.
LEVELS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMap:
    """``rows``: (name, cells); a cell is (text, level from -2, better, to 2, worse, what it is)."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, int, str], ...]], ...]


def maps(measured: Measured) -> list[LinkMap]:
    """Bandwidth and start-up, sender in the row; none where the probe measured nothing."""
    directions = measured.setting.link.directions
    betas = {_ends(direction): direction.beta for direction in directions if direction.beta}
    if not betas:
        return []
    unit, name = (1e9, "Gbit/s") if 8 / max(betas.values()) >= 1e10 else (1e6, "Mbit/s")
    speeds = {ends: 8 / beta / unit for ends, beta in betas.items()}
    delays = {_ends(direction): direction.alpha_s * 1e6 for direction in directions}
    draw = _square if len(_ranks(directions)) <= RANKS else _by_sender
    return [
        draw(measured, speeds, f"bandwidth (1/beta), {name}", -1),
        draw(measured, delays, "start-up (alpha), µs", 1),
    ]


def _ends(direction: Direction) -> tuple[int, int]:
    return direction.sender, direction.receiver


def _ranks(directions: Iterable[Direction]) -> list[int]:
    return sorted({rank for direction in directions for rank in _ends(direction)})


def _square(measured: Measured, values: Mapping[tuple[int, int], float], title: str, worse: int) -> LinkMap:
    """``worse``: 1 where larger values are worse, else -1."""
    directions, node = measured.setting.link.directions, measured.setting.node
    ranks = _ranks(directions)
    rough = {_ends(direction) for direction in directions if direction.is_wide}
    middle = statistics.median(values.values())
    span = max(*(abs(value - middle) for value in values.values()), 0.1 * abs(middle)) or 1.0

    def cell(ends: tuple[int, int]) -> tuple[str, int, str]:
        value = values.get(ends)
        if value is None:
            return "", 0, ""
        level = worse * round(LEVELS * (value - middle) / span)
        return _figure(value) + "?" * (ends in rough), level, f"{node(ends[0])} to {node(ends[1])}"

    rows = tuple((node(sender), tuple(cell((sender, receiver)) for receiver in ranks)) for sender in ranks)
    return LinkMap(title=title, head=("from \\ to", *(node(rank) for rank in ranks)), rows=rows)


def _by_sender(measured: Measured, values: Mapping[tuple[int, int], float], title: str, worse: int) -> LinkMap:
    """Least, median and greatest over the receivers, and the receiver with the worst."""
    node, middle = measured.setting.node, statistics.median(values.values())
    rows = []
    for sender in sorted({sender for sender, _ in values}):
        own = {receiver: value for (rank, receiver), value in values.items() if rank == sender}
        worst = max(own, key=lambda receiver: worse * own[receiver])
        level = LEVELS if worse * (own[worst] - middle) > 0.1 * abs(middle) else 0
        figures = (min(own.values()), statistics.median(own.values()), max(own.values()))
        rows.append((node(sender), (*((_figure(value), 0, "") for value in figures), (node(worst), level, "worst"))))
    return LinkMap(title=title, head=("from", "least", "median", "greatest", "worst to"), rows=tuple(rows))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if math.isfinite(value) else "-"
