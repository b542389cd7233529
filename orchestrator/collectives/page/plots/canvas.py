"""Figures by matplotlib, written as PNG."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches; the page shows a figure half as large again, so that 8.5 points read as the page's text.
WIDTH = 10.0
INK, SOFT, HAIR, CARD, STRIKE = "#1b1d22", "#5d636f", "#e2e2dc", "#ffffff", "#bf2f2a"
#: One per algorithm, link or sender, in this order.
SERIES = ("#3b78c2", "#d9843b", "#6aa35a", "#7a62b8", "#3f9a94", "#e0b43a", "#8a6d55", "#c46a9b")
_STYLE: dict[str, Any] = {
    "font.family": "sans-serif", "font.size": 8.5,
    "font.sans-serif": ["DejaVu Sans"], "text.color": INK, "axes.edgecolor": SOFT, "axes.labelcolor": INK,
    "axes.facecolor": CARD, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.grid": True,
    "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left", "grid.color": HAIR, "grid.linewidth": 0.7,
    "xtick.color": SOFT, "ytick.color": SOFT, "xtick.labelcolor": INK, "ytick.labelcolor": INK, "legend.frameon": False,
    "legend.fontsize": 8, "figure.facecolor": CARD, "savefig.facecolor": CARD, "lines.linewidth": 1.6,
    "axes.linewidth": 0.8, "path.simplify": True,
}  # fmt: skip


@contextmanager
def styled() -> Iterator[None]:
    """The context in which every figure is drawn and written."""
    import matplotlib as mpl

    style: Any = _STYLE
    with mpl.rc_context(style):
        yield


def figure(height: float, columns: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of the page's width, ``height`` inches, with its axes side by side."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = made.subplots(1, columns, squeeze=False, **options)
    return made, list(axes[0])


def series(number: int) -> str:
    return SERIES[number % len(SERIES)]


def legend(axes: Axes, **options: Any) -> None:
    """Above the axes, in one row if it fits: data is never hidden."""
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        columns = options.pop("ncols", min(len(handles), 5))
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.2, handlelength=1.6, **options
        )


def plain_logs(axis: Any) -> None:
    """Ticks of a log axis as plain numbers: 0.1, 1, 10, 1,000; in between, where there is less than two decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    narrow = low > 0 and high / low < 80
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def settle(made: Figure) -> None:
    """Lay the figure out once, for all formats in which it is written."""
    made.draw_without_rendering()
    made.set_layout_engine("none")


def png(made: Figure) -> bytes:
    """The figure as PNG on white, 150 dots per inch."""
    out = io.BytesIO()
    made.savefig(out, format="png", dpi=150)
    return out.getvalue()
