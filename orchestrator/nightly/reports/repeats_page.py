"""The page of a trial that ran several times: the distribution of the time to recover, of its phases, and of other figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from ...core.verdict import sentence
from ...reports.page import svg
from ..distribution import Distribution
from ..suite import Night, Row
from . import page
from .figure_units import quantity
from .night_report import ROW_ORDER, worst

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TTR, PHASE = "ttr", "phase "
#: The names of figures as people know them.
NAMES = {TTR: "time to recover", "detect": "detected after", "caught-up": "steps redone after"}
OUTCOMES = {"passed": "pass", "unknown": "unknown", "skipped": "unknown", "error": "broken"}
WIDTH, HEIGHT, MARGIN = 420.0, 34.0, 8.0
#: Values from which quartiles have a meaning.
LEAST_BOX = 5


def render(night: Night, rows: Sequence[Row], figures: Sequence[Distribution], links: Mapping[str, str]) -> bytes:
    """``index.html``, complete in itself. ``night``: of one cell, the trial. ``links``: name of a run -> address of its page."""
    ordered = sorted(figures, key=lambda figure: (not _is_recovery(figure), figures.index(figure)))
    recovery = next((figure for figure in ordered if figure.metric == TTR), None)
    scale = max((figure.maximum for figure in ordered if _is_recovery(figure)), default=0.0)
    shown = [
        (figure, _cells(figure, len(rows)), draw(figure, f"figure{index}", scale))
        for index, figure in enumerate(ordered)
    ]
    state = worst((row.state for row in rows), ROW_ORDER, "unknown")
    return page.environment().get_template("repeats.html.j2").render(
        outcome=OUTCOMES.get(state, "fail"), title=f"{night.suite.name}, {sentence.count(len(rows), 'run')}",
        subtitle=[f"bed {night.bed}", night.started], figures=shown, rows=rows, links=links,
        sentence=headline(rows, recovery, night.suite.cells[0].repeats),
        times=recovery.values if recovery else {}, has_recovery=recovery is not None,
        command=night.command, names=NAMES, phase=PHASE,
    ).encode(errors="replace")  # fmt: skip


def headline(rows: Sequence[Row], recovery: Distribution | None, planned: int) -> str:
    """For example: Back in 520 ms (median of 20, 480 ms to 550 ms); 20 passed. ``planned``: runs; those without a row are missing."""
    states = [row.state for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ROW_ORDER if state in states)
    missing = planned - len(rows)
    if missing > 0:
        counts = ", ".join(filter(None, (counts, f"{missing} missing: interrupted")))
    if recovery is None:
        return counts or "no run"
    bounds = f", {_bounds(recovery)}" if recovery.low is not None else ""
    return f"Back in {quantity(recovery.median, recovery.unit)} (median of {recovery.count}{bounds}); {counts}"


def _bounds(figure: Distribution) -> str:
    if figure.low is None or figure.high is None:
        return "too few runs"
    return f"{quantity(figure.low, figure.unit)} to {quantity(figure.high, figure.unit)}"


def _cells(figure: Distribution, runs: int) -> tuple[str, ...]:
    """Runs that have the figure, median, interval, least and greatest."""
    count = str(runs) if len(figure.values) == runs else f"{len(figure.values)} of {runs}"
    numbers = (quantity(value, figure.unit) for value in (figure.minimum, figure.maximum))
    return count, quantity(figure.median, figure.unit), _bounds(figure), *numbers


def _is_recovery(figure: Distribution) -> bool:
    return figure.metric == TTR or figure.metric.startswith(PHASE)


def draw(figure: Distribution, name: str, recovery_s: float) -> Markup:
    """A dot for each value, a box from the first to the third quartile, a line at the median.

    ``recovery_s``: the longest time to recover. It and its phases have one scale from 0; other figures their own.
    """
    import numpy as np

    values = [(run, value) for run, of_run in figure.values.items() for value in of_run]
    low, high = (0.0, recovery_s) if _is_recovery(figure) else (figure.minimum, figure.maximum)
    offset, factor = svg.scale(low, high, MARGIN, WIDTH - MARGIN) if high > low else (WIDTH / 2, 0.0)
    middle = HEIGHT / 2
    shapes = [svg.line(MARGIN, middle, WIDTH - MARGIN, middle, "rail")]
    shapes += _box(np.array([value for _, value in values], dtype=np.float64), offset, factor)
    at = offset + factor * figure.median
    shapes.append(svg.line(at, 4.0, at, HEIGHT - 4, "median"))
    for index, (run, value) in enumerate(values):
        title = svg.element("title", f"{run}: {quantity(value, figure.unit)}")
        shapes.append(
            svg.element("circle", title, cx=offset + factor * value, cy=middle + (index % 5 - 2) * 3.5, r=2.6)
        )
    return svg.element(
        "svg", svg.element("title", f"{figure.metric} of {len(figure.values)} runs", id=f"{name}-t"), *shapes,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", class_="dots", role="img", aria_labelledby=f"{name}-t",
    )  # fmt: skip


def _box(values: NDArray[np.float64], offset: float, factor: float) -> list[Markup]:
    """Empty with too few values."""
    import numpy as np

    if values.size < LEAST_BOX:
        return []
    first, third = (offset + factor * float(quartile) for quartile in np.percentile(values, (25, 75)))
    return [svg.element("rect", x=first, y=6, width=max(third - first, 0.5), height=HEIGHT - 12, class_="box")]
