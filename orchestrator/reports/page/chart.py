"""A chart as a value: its curves, axes and title. A page draws it by its script (charts.js, uPlot), ``png`` by matplotlib."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from markupsafe import Markup

from ...model.frozen import dataclass

#: How a curve looks: a line, alone or with its points; of a model; a limit; a staircase, as of a distribution; dots alone.
Kind = Literal["line", "points", "dashed", "limit", "steps", "dots"]
INK, SOFT, HAIR, CARD, STRIKE = "#1b1d22", "#5d636f", "#e2e2dc", "#ffffff", "#bf2f2a"
#: One per algorithm, link or sender, in this order.
SERIES = ("#3b78c2", "#d9843b", "#6aa35a", "#7a62b8", "#3f9a94", "#e0b43a", "#8a6d55", "#c46a9b")
_KINDS: dict[Kind, dict[str, Any]] = {
    "line": {"linewidth": 1.6}, "points": {"linewidth": 1.8, "marker": "o", "markersize": 4},
    "dashed": {"linewidth": 1.1, "linestyle": "--", "alpha": 0.8, "marker": "_"},
    "limit": {"linewidth": 1.1, "linestyle": ":", "color": STRIKE},
    "steps": {"linewidth": 1.6, "drawstyle": "steps-post"},
    "dots": {"linestyle": "", "marker": ".", "markersize": 3.5, "alpha": 0.6, "markeredgewidth": 0},
}  # fmt: skip
#: Inches and dots per inch: a picture is as wide as a page of paper, and 8.5 points read as its text.
_SIZE, _DPI = (10.0, 3.6), 150
_STYLE: dict[str, Any] = {
    "font.family": "sans-serif", "font.size": 8.5, "font.sans-serif": ["DejaVu Sans"], "text.color": INK, "axes.edgecolor": SOFT,
    "axes.labelcolor": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.grid": True,
    "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left", "grid.color": HAIR, "grid.linewidth": 0.7,
    "xtick.color": SOFT, "ytick.color": SOFT, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "legend.frameon": False,
    "figure.facecolor": CARD, "axes.linewidth": 0.8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The points (``x``, ``y``) of a curve from left to right. ``number``: of its colour."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Kind = "line"
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves over one axis. ``name``: of its place on the page, and of its file.

    ``is_log``: of both axes. ``most``: where the upright axis ends, which begins at 0 then; None: by the curves. ``ticks``: x -> its
    label, where the axis has no other numbers.
    """

    name: str
    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    is_log: tuple[bool, bool] = (False, False)
    most: float | None = None
    ticks: dict[float, str] | None = None


def plain(chart: Chart) -> dict[str, Any]:
    """The chart as the page's script reads it."""
    curves = [
        {"name": curve.name, "kind": curve.kind, "number": curve.number, "points": [list(curve.x), list(curve.y)]}
        for curve in chart.curves
    ]
    axes = {"x": chart.x, "y": chart.y, "log": list(chart.is_log), "most": chart.most, "ticks": chart.ticks}
    return {"name": chart.name, **axes, "curves": curves}


def script_text(value: object) -> Markup:
    """JSON that cannot end the script element that holds it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))  # noqa: S704 (no markup is left in it)


def png(chart: Chart) -> bytes:
    """The chart on white, by matplotlib."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: Any = _STYLE
    out = io.BytesIO()
    with mpl.rc_context(style):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        for curve in chart.curves:
            drawing = {"color": SERIES[curve.number % len(SERIES)], **_KINDS[curve.kind]}
            axes.plot(curve.x, curve.y, label=curve.name, **drawing)
        if chart.is_log[0]:
            axes.set_xscale("log")
            _use_plain_ticks(axes.xaxis)
        if chart.is_log[1]:
            axes.set_yscale("log")
            _use_plain_ticks(axes.yaxis)
        if chart.most is not None:
            axes.set_ylim(0, chart.most)
        if chart.ticks:
            shown = list(chart.ticks)[:: max(1, len(chart.ticks) // 10)]
            axes.set_xticks(shown, [chart.ticks[place] for place in shown])
            axes.minorticks_off()
        axes.set_title(chart.title, pad=20 + 14 * (len(chart.curves) // 6), parse_math=False)
        axes.set_xlabel(chart.x)
        axes.set_ylabel(chart.y)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, borderaxespad=0.2, handlelength=1.6)
        figure.savefig(out, format="png", dpi=_DPI)
    return out.getvalue()


def _use_plain_ticks(axis: Any) -> None:
    """Give a log axis plain numbers: 0.1, 1, 10, 1,000; in between as well, where it has less than two decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    is_narrow = low > 0 and high / low < 80
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if is_narrow else (1.0,), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def rounded(values: Iterable[float]) -> list[float]:
    """Five digits, which are finer than a pixel."""
    return [float(f"{value:.5g}") for value in values]
