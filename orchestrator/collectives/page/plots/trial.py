"""One iteration, rank by time: a bar per chunk transfer, light while it waits for its sender, full once both ends are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....model.frozen import dataclass
from ...views import Case, Measured, Slow, dependencies, phrases
from . import canvas

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Bars of an iteration with more transfers are too small to see; then the first of them are drawn.
BARS = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The iteration that is drawn, and how its time stands to the median."""

    case: Case
    trial: int
    seconds: float
    usual: float


def recorded(measured: Measured, chosen: Chosen) -> Slow | None:
    """The iteration, if it is one of the slow ones."""
    return next((slow for slow in measured.slow if (slow.case, slow.trial) == (chosen.case, chosen.trial)), None)


def choose(measured: Measured) -> Chosen | None:
    """The slowest against its case's median, of those with records."""
    import numpy as np

    worst: Chosen | None = None
    for row in measured.rows:
        spans, _, moved = measured.data[row.case.number]
        times = spans.times("max_rank")
        recorded = np.flatnonzero(np.isin(spans.trials, moved.trials)) if moved is not None else np.empty(0, dtype=int)
        if row.trial is None or not recorded.size:
            continue
        spot = int(recorded[times[recorded].argmax()])
        candidate = Chosen(
            case=row.case, trial=int(spans.trials[spot]), seconds=float(times[spot]), usual=row.trial.p50
        )
        if worst is None or _worse(candidate, worst):
            worst = candidate
    return worst


def _worse(chosen: Chosen, other: Chosen) -> bool:
    """An iteration with noise at a small size shows less than an iteration with a long delay."""
    return chosen.seconds - chosen.usual > other.seconds - other.usual


def draw(measured: Measured, chosen: Chosen) -> Figure | None:
    """A row per receiving rank; the rank that caused the delay is named in red."""
    spans, _, moved = measured.data[chosen.case.number]
    if moved is None:
        return None
    pattern = dependencies.pattern(moved, spans, measured.setting.link.beta)
    if pattern is None:
        return None
    rows = dependencies.rows(moved, spans)
    row = [int(moved.trials[number]) for number in rows].index(chosen.trial)
    zero = float(pattern.begin[row].min())
    sent = pattern.sent()[row]
    start, end = moved.start[rows[row]], moved.end[rows[row]]
    made, (axes,) = canvas.figure(min(8.0, 1.3 + 0.42 * len(pattern.ranks)))
    row_of = {rank: spot for spot, rank in enumerate(pattern.ranks)}
    lanes = _lanes(moved.rank, moved.index)
    senders = {peer: canvas.series(n) for n, peer in enumerate(sorted({int(number) for number in moved.peer}))}
    for column in range(min(moved.rank.size, BARS)):
        rank, peer = int(moved.rank[column]), int(moved.peer[column])
        lane, count = lanes[column]
        height = 0.72 / count
        y = row_of[rank] - 0.36 + lane * height
        ready = min(max(float(sent[column]), float(start[column])), float(end[column]))
        for x1, x2, alpha in ((float(start[column]), ready, 0.28), (ready, float(end[column]), 1.0)):
            bar = [((x1 - zero) * 1000, (x2 - x1) * 1000)]
            axes.broken_barh(bar, (y, height * 0.94), facecolors=senders[peer], alpha=alpha, linewidth=0)
        axes.plot([(float(end[column]) - zero) * 1000] * 2, [y, y + height * 0.94], color=canvas.CARD, linewidth=0.6)
    _ends(axes, pattern, row, zero)
    for peer, colour in senders.items():
        axes.plot([], [], "s", color=colour, label=f"from {measured.setting.node(peer)}")
    axes.plot([], [], "s", color=canvas.SOFT, alpha=0.28, label="waiting for the sender")
    slow = recorded(measured, chosen)
    _labels(axes, measured, chosen, pattern.ranks, slow.stopped if slow else None)
    if slow is not None:
        made.suptitle(phrases.slow(slow, measured.setting), x=0.01, ha="left", fontsize=8.5, color=canvas.STRIKE)
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


def _ends(axes: Axes, pattern: dependencies.Pattern, row: int, zero: float) -> None:
    for spot in range(len(pattern.ranks)):
        for moment in (pattern.begin[row, spot], pattern.finish[row, spot]):
            x = (float(moment) - zero) * 1000
            axes.plot([x, x], [spot - 0.42, spot + 0.42], color=canvas.INK, linewidth=1.1)


def _labels(axes: Axes, measured: Measured, chosen: Chosen, ranks: tuple[int, ...], stopped: int | None) -> None:
    axes.set_yticks(range(len(ranks)), [measured.setting.node(rank) for rank in ranks])
    if stopped in ranks:
        label = axes.get_yticklabels()[ranks.index(stopped)]
        label.set_color(canvas.STRIKE)
        label.set_fontweight("bold")
    axes.set_ylim(len(ranks) - 0.45, -0.55)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"ms since the first rank began iteration {chosen.trial} of {phrases.case(chosen.case)}")
    canvas.legend(axes, ncols=6)
