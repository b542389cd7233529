"""One trial, rank by time: a bar per chunk transfer, light while it waits for its sender, full once both ends are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....views.collectives import Blame, Case, Measured, dependencies, phrases
from . import canvas

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from ....views.collectives.samples import Transfers

    Floats = NDArray[np.float64]

#: Bars of a trial with more transfers are too small to see; then the first of them are drawn.
BARS = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The trial that is drawn, and how its time stands to the median."""

    case: Case
    trial: int
    seconds: float
    usual: float


def choose(found: Measured) -> Chosen | None:
    """The slowest against its case's median, of those with records."""
    worst: Chosen | None = None
    for row in found.rows:
        spans, _, moved = found.data[row.case.number]
        times = spans.times("max_rank")
        if moved is None or row.trial is None or not set(moved.trials) & set(spans.trials):
            continue
        recorded = [spot for spot, trial in enumerate(spans.trials) if trial in moved.trials]
        spot = max(recorded, key=lambda one: times[one])
        one = Chosen(case=row.case, trial=int(spans.trials[spot]), seconds=float(times[spot]), usual=row.trial.p50)
        if worst is None or _worse(one, worst):
            worst = one
    return worst


def _worse(one: Chosen, other: Chosen) -> bool:
    """A trial that is merely noisy at a small size is less telling than one that is lost for long."""
    return one.seconds - one.usual > other.seconds - other.usual


def draw(found: Measured, chosen: Chosen) -> Figure | None:
    """A row per receiving rank; the rank to blame is named in red."""
    spans, _, moved = found.data[chosen.case.number]
    if moved is None:
        return None
    seen = dependencies.pattern(moved, spans, found.setting.link.beta)
    if seen is None:
        return None
    rows = dependencies.rows(moved, spans)
    row = [int(moved.trials[one]) for one in rows].index(chosen.trial)
    zero = float(seen.begin[row].min())
    sent = seen.sent()[row]
    start, end = moved.start[rows[row]], moved.end[rows[row]]
    made, (axes,) = canvas.figure(min(8.0, 1.3 + 0.42 * len(seen.ranks)))
    place = {rank: spot for spot, rank in enumerate(seen.ranks)}
    lanes = _lanes(moved.rank, moved.index)
    senders = {peer: canvas.series(n) for n, peer in enumerate(sorted({int(one) for one in moved.peer}))}
    for column in range(min(moved.rank.size, BARS)):
        rank, peer = int(moved.rank[column]), int(moved.peer[column])
        lane, count = lanes[column]
        height = 0.72 / count
        y = place[rank] - 0.36 + lane * height
        ready = min(max(float(sent[column]), float(start[column])), float(end[column]))
        for x1, x2, alpha in ((float(start[column]), ready, 0.28), (ready, float(end[column]), 1.0)):
            bar = [((x1 - zero) * 1000, (x2 - x1) * 1000)]
            axes.broken_barh(bar, (y, height * 0.94), facecolors=senders[peer], alpha=alpha, linewidth=0)
        axes.plot([(float(end[column]) - zero) * 1000] * 2, [y, y + height * 0.94], color=canvas.CARD, linewidth=0.6)
    _ends(axes, seen, row, zero)
    for peer, colour in senders.items():
        axes.plot([], [], "s", color=colour, label=f"from {found.setting.node(peer)}")
    axes.plot([], [], "s", color=canvas.SOFT, alpha=0.28, label="waiting for the sender")
    why = next((one.blame for one in found.slow if (one.case, one.trial) == (chosen.case, chosen.trial)), None)
    _labels(axes, found, chosen, seen.ranks, why)
    if why is not None:
        made.suptitle(phrases.blame(why, found.setting), x=0.01, ha="left", fontsize=8.5, color=canvas.STRIKE)
        _stood(axes, why, place, moved, start - zero, end - zero)
    return made


def _lanes(ranks: object, indices: object) -> list[tuple[int, int]]:
    """Column -> (its lane, how many lanes): transfers of one step of one rank lie beside each other."""
    import numpy as np

    keys = list(zip(np.asarray(ranks).tolist(), np.asarray(indices).tolist(), strict=True))
    counts: dict[tuple[int, int], int] = {}
    spots = []
    for key in keys:
        spots.append(counts.get(key, 0))
        counts[key] = spots[-1] + 1
    return [(spot, counts[key]) for spot, key in zip(spots, keys, strict=True)]


def _ends(axes: Axes, seen: dependencies.Pattern, row: int, zero: float) -> None:
    for spot in range(len(seen.ranks)):
        for moment in (seen.begin[row, spot], seen.finish[row, spot]):
            x = (float(moment) - zero) * 1000
            axes.plot([x, x], [spot - 0.42, spot + 0.42], color=canvas.INK, linewidth=1.1)


def _stood(axes: Axes, why: Blame, place: Mapping[int, int], moved: Transfers, start: Floats, end: Floats) -> None:
    """Hatched: for how long the rank stood still, before it entered a step or inside of it."""
    import numpy as np

    mine = np.flatnonzero((moved.rank == why.rank) & (moved.index == why.index))
    if why.rank is None or why.rank not in place or not mine.size or why.kind == "stopped sending":
        return
    until = float(start[mine].min() if why.kind == "entered late" else end[mine].max())
    bar = [((until - why.late_s) * 1000, why.late_s * 1000)]
    look: dict[str, Any] = {"facecolors": "none", "edgecolors": canvas.STRIKE, "hatch": "///", "linewidth": 0.0}
    axes.broken_barh(bar, (place[why.rank] - 0.36, 0.72), **look)


def _labels(axes: Axes, found: Measured, chosen: Chosen, ranks: tuple[int, ...], why: Blame | None) -> None:
    axes.set_yticks(range(len(ranks)), [found.setting.node(rank) for rank in ranks])
    if why is not None and why.rank in ranks:
        label = axes.get_yticklabels()[ranks.index(why.rank)]
        label.set_color(canvas.STRIKE)
        label.set_fontweight("bold")
    axes.set_ylim(len(ranks) - 0.45, -0.55)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"ms since the first rank began trial {chosen.trial} of {phrases.case(chosen.case)}")
    canvas.legend(axes, ncols=6)
