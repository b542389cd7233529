"""Bandwidth: over size with the model's curve and the line rate, and between each two ranks by the probe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....views import quantities
from ...views import Measured, Row, factor, phrases
from . import canvas, link_map

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Bandwidths that lie further apart need a log axis.
STEEP = 20
#: Cells of a larger map hold no figures.
LEGIBLE = 12
#: Level of a direction -> its colour.
SHADES = {-2: "#cfe0f5", -1: "#cfe0f5", 0: "#f4efe4", 1: "#edb9a0", 2: "#e58a6a"}


def kinds(measured: Measured) -> dict[str, list[Row]]:
    """The rows with a bus bandwidth, grouped by the kind of case."""
    groups: dict[str, list[Row]] = {}
    for row in measured.rows:
        if row.busbw:  # one rank alone has none
            groups.setdefault(phrases.kind(row.case), []).append(row)
    return groups


def over_size(measured: Measured, rows: list[Row]) -> Figure:
    """Of one kind of cases: a line per algorithm; of a single size a bar per algorithm."""
    if len({row.case.bytes for row in rows}) < 2:
        return _bars(measured, rows)
    made, (axes,) = canvas.figure(3.6)
    names = list(dict.fromkeys(row.case.algorithm for row in rows))
    for number, name in enumerate(names):
        rows_of = sorted((row for row in rows if row.case.algorithm == name), key=lambda row: row.case.bytes)
        colour = canvas.series(number)
        width = max(1.2, 3.4 - 0.8 * number)  # what lies below shows at the edges of what lies above
        style: dict[str, Any] = {
            "marker": "os^Dv"[number % 5],
            "markersize": 3 + width,
            "linewidth": width,
            "color": colour,
        }
        axes.plot([row.case.bytes for row in rows_of], [row.busbw or 0.0 for row in rows_of], label=name, **style)
        _model(axes, measured, rows_of, colour)
    axes.set_xscale("log", base=2)
    sizes = sorted({row.case.bytes for row in rows})
    shown = sizes[:: max(1, len(sizes) // 10)]
    axes.set_xticks(shown, [quantities.size(size) for size in shown])
    axes.minorticks_off()
    values = [row.busbw for row in rows if row.busbw]
    if max(values) > STEEP * min(values):
        axes.set_yscale("log")
        canvas.plain_logs(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    _line_rate(axes, measured, vertical=False)
    axes.set_xlabel("size")
    axes.set_ylabel("bus bandwidth, GB/s")
    if any(row.model_s for row in rows):
        axes.plot([], [], "--", color=canvas.SOFT, linewidth=1.1, label="model")
    canvas.legend(axes)
    return made


def _model(axes: Axes, measured: Measured, rows: list[Row], colour: str) -> None:
    import numpy as np

    link, cost = measured.setting.link, rows[0].case.cost
    if cost is None or link.alpha_s is None or link.beta is None:
        return
    low, high = rows[0].case.bytes, rows[-1].case.bytes
    sizes = np.geomspace(low, high, 60) if high > low else np.array([low])
    seconds = cost[0] * link.alpha_s + cost[1] * sizes * link.beta
    if not (seconds > 0).all():
        return
    bus = sizes / seconds / 1e9 * factor(rows[0].case.operation, rows[0].case.world)
    axes.plot(sizes, bus, "--" if sizes.size > 1 else "x", color=colour, linewidth=1.1, alpha=0.8)


def _line_rate(axes: Axes, measured: Measured, *, vertical: bool) -> None:
    rate = measured.setting.link.rate
    if not rate:
        return
    value = rate / 8e9
    (axes.axvline if vertical else axes.axhline)(value, color=canvas.STRIKE, linewidth=1.1, linestyle=":")
    text = f"line rate {quantities.rate(rate)}"
    style: dict[str, Any] = {"textcoords": "offset points", "color": canvas.STRIKE}
    if vertical:
        axes.set_xlim(right=max(axes.get_xlim()[1], value * 1.25))
        axes.annotate(text, (value, 1), xycoords=("data", "axes fraction"), xytext=(4, -10), **style)
    else:
        axes.set_ylim(top=max(axes.get_ylim()[1], value * 1.1))
        axes.annotate(text, (0.995, value), xycoords=("axes fraction", "data"), xytext=(0, 4), ha="right", **style)


def _bars(measured: Measured, rows: list[Row]) -> Figure:
    ranked = sorted(rows, key=lambda row: row.busbw or 0)
    made, (axes,) = canvas.figure(1.1 + 0.32 * len(ranked))
    rate = measured.setting.link.rate
    widest = max(
        [ranked[-1].busbw or 0, rate / 8e9 if rate else 0, *(_model_bandwidth(r) for r in ranked if r.model_s)]
    )
    for spot, row in enumerate(ranked):
        assert row.busbw is not None
        axes.barh([spot], [row.busbw], height=0.62, color=canvas.series(0))
        text = quantities.bandwidth(row.busbw) + (
            f", model {quantities.bandwidth(_model_bandwidth(row))}" if row.model_s else ""
        )
        inside = row.busbw > 0.4 * widest
        ink, ground = (canvas.CARD, canvas.series(0)) if inside else (canvas.INK, canvas.CARD)
        behind = {"facecolor": ground, "edgecolor": "none", "pad": 1.5}  # so that no line goes through the figures
        style: dict[str, Any] = {"va": "center", "color": ink, "bbox": behind, "zorder": 5}
        axes.annotate(text, (0 if inside else row.busbw, spot), textcoords="offset points", xytext=(7, 0), **style)
        if row.model_s:
            axes.plot([_model_bandwidth(row)] * 2, [spot - 0.4, spot + 0.4], "--", color=canvas.INK, linewidth=1.2)
    axes.set_yticks(range(len(ranked)), [row.case.algorithm for row in ranked])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"bus bandwidth at {quantities.size(rows[0].case.bytes)}, GB/s")
    _line_rate(axes, measured, vertical=True)
    return made


def _model_bandwidth(row: Row) -> float:
    assert row.model_s and row.busbw is not None and row.mean_s
    return row.busbw * row.mean_s / row.model_s


def between_pairs(measured: Measured) -> Figure | None:
    """Two maps, sender by receiver."""
    directions = measured.setting.link.directions
    betas = {(direction.sender, direction.receiver): direction.beta for direction in directions if direction.beta}
    if not betas:
        return None
    ranks = sorted({rank for direction in directions for rank in (direction.sender, direction.receiver)})
    unit, name = (1e9, "Gbit/s") if 8 / max(betas.values()) >= 1e10 else (1e6, "Mbit/s")
    speeds = {ends: 8 / beta / unit for ends, beta in betas.items()}
    delays = {(direction.sender, direction.receiver): direction.alpha_s * 1e6 for direction in directions}
    made, (left, right) = canvas.figure(min(4.6, 1.5 + 0.5 * len(ranks)), 2)
    _map(left, measured, ranks, speeds, f"bandwidth, {name}", link_map.levels(directions))
    _map(right, measured, ranks, delays, "latency, us", {})
    return made


def _map(
    axes: Axes, measured: Measured, ranks: list[int], values: dict[tuple[int, int], float], title: str,
    levels: Mapping[tuple[int, int], int],
) -> None:  # fmt: skip
    """``levels``: of directions that have a colour."""
    import numpy as np

    size = len(ranks)
    directions = measured.setting.link.directions
    rough = {(direction.sender, direction.receiver) for direction in directions if direction.is_wide}
    grid = np.full((size, size), np.nan)
    for (a, b), value in values.items():
        grid[ranks.index(a), ranks.index(b)] = value
    for (row, column), value in np.ndenumerate(grid):
        if np.isnan(value):
            continue
        shade = SHADES[levels.get((ranks[row], ranks[column]), 0)]
        across, down = [column - 0.5, column + 0.5], [row - 0.5, row + 0.5]
        corners = [*across, *across[::-1]], [down[0], down[0], down[1], down[1]]
        axes.fill(*corners, color=shade, edgecolor=canvas.CARD, linewidth=1.5)
        is_rough = (ranks[row], ranks[column]) in rough
        if is_rough:
            axes.plot(across, down, color=canvas.CARD, linewidth=1.5)
            axes.plot(across, down[::-1], color=canvas.CARD, linewidth=1.5)
        if size <= LEGIBLE:
            text = (f"{value:,.0f}" if value >= 1000 else f"{value:.3g}") + "?" * is_rough
            axes.text(column, row, text, ha="center", va="center", color="#222222")
    names = [measured.setting.node(rank) for rank in ranks]
    axes.set_xticks(range(size), names, rotation=0 if size <= 8 else 60)
    axes.set_yticks(range(size), names)
    axes.set_xlim(-0.5, size - 0.5)
    axes.set_ylim(size - 0.5, -0.5)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title)
