"""Draw trends as SVG or PNG: a panel per trend, a line per node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.errors import UsageError
from . import trend_view

if TYPE_CHECKING:
    from ...nightly.index.entries import Trend

#: Panels of a picture.
MOST = 12


def write(trends: Sequence[Trend], file: Path) -> None:
    """Raises UsageError without matplotlib, or for more trends than fit into a picture."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise UsageError("--plot: matplotlib is not installed", hint="pip install 'ccbed[plots]'") from None
    if len(trends) > MOST:
        raise UsageError(
            f"--plot: {len(trends)} trends, at most {MOST} fit", hint="choose with --metric, --bed, --node"
        )
    figure = Figure(figsize=(9, 3.2 * len(trends)), layout="constrained")
    for number, trend in enumerate(trends, start=1):
        axes = figure.add_subplot(len(trends), 1, number)
        nights = list(dict.fromkeys(point.night for point in trend.points))
        for node in trend.nodes:
            values = [float("nan") if value is None else value for value in trend_view.by_night(trend, node)]
            axes.plot(nights, values, marker="o", markersize=3, linewidth=1, label=node or "all")
        heading = f"{trend_view.title(trend)}\n{trend_view.context(trend)}"
        axes.set_title(heading, fontsize=8, loc="left", wrap=True, parse_math=False)
        axes.set_xlabel("night")
        axes.set_ylabel(trend.metric.unit)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(trend.nodes) <= MOST:
            axes.legend(fontsize=7, ncols=4)
    figure.savefig(file)
