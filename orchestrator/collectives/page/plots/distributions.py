"""Delays: their distribution per chunk and per iteration, and over time with the outliers named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....views import quantities
from ...views import Case, Measured, SlowChunk
from . import canvas

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: A curve of more points is no finer on a page.
POINTS = 400
#: More curves than this cannot be distinguished.
CURVES = 8
#: In so many iterations outliers are named in the picture.
NAMED = 4


def chosen(measured: Measured) -> list[Case]:
    """The cases of the distributions: of each operation the largest size, all its algorithms."""
    largest: dict[tuple[object, ...], int] = {}
    for case in measured.setting.cases:
        largest[case.kind] = max(case.bytes, largest.get(case.kind, 0))
    return [case for case in measured.setting.cases if case.bytes == largest[case.kind]][:CURVES]


def chunks(measured: Measured) -> Figure | None:
    """CDF over every chunk transfer."""
    return _distribution(measured, "delay of a chunk transfer, ms", "part of chunk transfers", per_chunk=True)


def trials(measured: Measured) -> Figure | None:
    """CDF over iterations."""
    return _distribution(measured, "time of an iteration, slowest rank, ms", "part of iterations", per_chunk=False)


def _samples(measured: Measured, case: Case, *, per_chunk: bool) -> Floats | None:
    spans, _, moved = measured.data[case.number]
    if per_chunk:
        return moved.seconds.reshape(-1) * 1000 if moved is not None else None
    times = spans.times("max_rank") * 1000
    return times if times.size else None


def _distribution(measured: Measured, what: str, part: str, *, per_chunk: bool) -> Figure | None:
    cases = [(case, _samples(measured, case, per_chunk=per_chunk)) for case in chosen(measured)]
    known = [(case, samples) for case, samples in cases if samples is not None]
    if not known:
        return None
    made, (axes,) = canvas.figure(3.4)
    for number, (case, samples) in enumerate(known):
        x, y = curve(samples)
        label = f"{_label(case, measured)} (n={samples.size:,})"
        axes.step([x[0], *x], [0, *y], where="post", color=canvas.series(number), label=label)
    if any(has_long_tail(samples) for _, samples in known):
        axes.set_xscale("log")
        axes.set_xlim(left=0.85 * min(log_floor(samples) for _, samples in known))
        canvas.plain_logs(axes.xaxis)
    axes.set_ylim(0, 1.1)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    if len(known) == 1:
        _marked(axes, known[0][1])
    axes.set_xlabel(what)
    axes.set_ylabel(part)
    canvas.legend(axes, ncols=min(len(known), 3))
    return made


def _marked(axes: Axes, samples: Floats) -> None:
    """p50, p95 and the maximum of the only curve."""
    import numpy as np

    p50, p95 = np.percentile(samples, (50, 95), method="inverted_cdf")
    for name, value, height in (("p50", p50, 0.5), ("p95", p95, 0.95), ("max", samples.max(), 1.0)):
        axes.plot([value], [height], "o", color=canvas.STRIKE if name == "max" else canvas.INK, markersize=4, zorder=5)
        left = axes.transAxes.inverted().transform(axes.transData.transform((float(value), height)))[0] > 0.8
        shift = (-7 if left else 7, {"p50": -11, "p95": -12, "max": 4}[name])
        text = f"{name} {quantities.milliseconds(float(value) / 1000)} ms"
        style: dict[str, Any] = {"textcoords": "offset points", "ha": "right" if left else "left", "color": canvas.INK}
        axes.annotate(text, (value, height), xytext=shift, **style)


def delays(measured: Measured) -> Figure | None:
    """Every chunk transfer (dots) and iteration (line) over the time of the run; the worst transfers are named."""
    begin = min((spans.start.min() for spans, _, _ in measured.data.values() if spans.start.size), default=None)
    if begin is None:
        return None
    made, (axes,) = canvas.figure(3.8)
    colours = {name: canvas.series(n) for n, name in enumerate(dict.fromkeys(map(_series, measured.setting.cases)))}
    tail, labelled, floor = False, set[str](), float("inf")
    for case in measured.setting.cases:
        spans, _, moved = measured.data[case.number]
        if not spans.start.size:
            continue
        name, colour = _series(case), colours[_series(case)]
        label, labelled = (name if name not in labelled else "_"), {*labelled, name}
        times = spans.times("max_rank") * 1000
        x, y = thinned(spans.end.max(axis=1) - begin, times, 600)
        axes.hlines(y, x - y / 1000, x, color=colour, linewidth=1.6, label=label)
        axes.plot(x - y / 2000, y, "_", color=colour, markersize=2.5, markeredgewidth=1.6)
        tail, floor = tail or has_long_tail(times), min(floor, log_floor(times))
        if moved is not None:
            x, y = thinned((moved.end - begin).reshape(-1), moved.seconds.reshape(-1) * 1000)
            low = log_floor(y)
            axes.plot(x, y.clip(min=low), ".", color=colour, markersize=3.5, alpha=0.6, markeredgewidth=0)
            tail, floor = tail or has_long_tail(y), min(floor, low)
    if tail or len({case.bytes for case in measured.setting.cases}) > 1:
        axes.set_yscale("log")
        axes.set_ylim(bottom=floor * 0.8)
        canvas.plain_logs(axes.yaxis)
    names = _name_outliers(axes, measured, float(begin))
    lines = [" · ".join(names[spot : spot + 2]) for spot in range(0, len(names), 2)]
    if lines:
        made.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=8, color=canvas.STRIKE)
    axes.set_xlabel("time since the first iteration, s")
    axes.set_ylabel("delay, ms")
    axes.margins(x=0.02, y=0.12)
    canvas.legend(axes)
    return made


def _name_outliers(axes: Axes, measured: Measured, begin: float) -> list[str]:
    """Rings around the worst transfers, a letter per iteration; the letters with their descriptions, for the caption."""
    import numpy as np

    trials: dict[tuple[int, int], list[SlowChunk]] = {}
    for chunk in sorted(measured.slow_chunks, key=lambda chunk: -chunk.seconds):
        trials.setdefault((chunk.case.number, chunk.trial), []).append(chunk)
    names = []
    for letter, worst in zip("abcdef"[:NAMED], trials.values(), strict=False):
        moved = measured.data[worst[0].case.number][2]
        if moved is None:
            continue
        row = int(np.flatnonzero(moved.trials == worst[0].trial)[0])
        for chunk in reversed(worst):
            is_chunk = (moved.rank == chunk.rank) & (moved.peer == chunk.peer) & (moved.index == chunk.index)
            x, y = float(moved.end[row][is_chunk][0]) - begin, chunk.seconds * 1000
            axes.plot([x], [y], "o", markersize=6, markerfacecolor="none", markeredgecolor=canvas.STRIKE)
        style: dict[str, Any] = {"color": canvas.STRIKE, "fontweight": "bold", "ha": "right", "zorder": 6}
        axes.annotate(letter, (x, y), textcoords="offset points", xytext=(-5, 3), **style)
        names.append(f"{letter}: {_description(worst, measured)}")
    return names


def _description(worst: list[SlowChunk], measured: Measured) -> str:
    chunk, node = worst[0], measured.setting.node
    more = f", and {len(worst) - 1} more" if len(worst) > 1 else ""
    return (
        f"iteration {chunk.trial}: {node(chunk.peer)} to {node(chunk.rank)} {quantities.duration(chunk.seconds)}{more}"
    )


def _series(case: Case) -> str:
    return f"{case.operation} {case.algorithm}"


def _label(case: Case, measured: Measured) -> str:
    several = len({other.operation for other in measured.setting.cases}) > 1
    return f"{case.operation + ' ' if several else ''}{case.algorithm}, {quantities.size(case.bytes)}"


# --- curves ------------------------------------------------------------------------------------------------------------


def curve(samples: Floats, points: int = POINTS) -> tuple[Floats, Floats]:
    """(value, part of the samples that are at most that), ascending; of many samples every n-th and both ends."""
    import numpy as np

    ranked = np.sort(samples)
    ranks = np.arange(1, ranked.size + 1)
    if ranked.size > points:
        tail = np.arange(max(0, ranked.size - points // 4), ranked.size)
        body = np.linspace(0, ranked.size - 1, points).astype(int)
        chosen = np.union1d(body, tail)
        ranked, ranks = ranked[chosen], ranks[chosen]
    return ranked, ranks / samples.size


def thinned(x: Floats, y: Floats, most: int = 1500) -> tuple[Floats, Floats]:
    """At most so many points, about: in each stretch of ``x`` the lowest and the highest, so that no outlier is lost."""
    import numpy as np

    if x.size <= most:
        return x, y
    order = np.argsort(x, kind="stable")
    parts = np.array_split(order, most // 2)
    chosen = np.unique([spot for part in parts for spot in (part[y[part].argmin()], part[y[part].argmax()])])
    return x[chosen], y[chosen]


def has_long_tail(samples: Floats) -> bool:
    """Whether a linear axis would show everything except the tail in too little space."""
    import numpy as np

    return bool(samples.size and samples.max() > 8 * np.median(samples) > 0)


def log_floor(samples: Floats) -> float:
    """The lower limit of a log axis: a few transfers without delay must not use half of it."""
    import numpy as np

    low, middle = np.percentile(samples, (5, 50), method="inverted_cdf")
    return float(max(samples.min(), min(low, middle / 3) / 2)) or float(middle) or 1e-6
