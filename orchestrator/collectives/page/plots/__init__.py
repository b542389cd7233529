"""The pictures of a collective run: as PNG for papers and slides, and as data, SVG and tables for the page."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ...views import Measured
from . import bandwidth, canvas, distributions, trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def are_available() -> bool:
    """Whether matplotlib is installed; it is an extra (``ccbed[plots]``)."""
    return importlib.util.find_spec("matplotlib") is not None


def drawn(measured: Measured) -> dict[str, bytes]:
    """Name -> PNG; none without matplotlib."""
    if not are_available():
        return {}
    made = {}
    with canvas.styled():
        for name, draw in pictures(measured):
            figure = draw()
            if figure is not None:
                canvas.settle(figure)
                made[name] = canvas.png(figure)
    return made


def pictures(measured: Measured) -> Iterator[tuple[str, Callable[[], Figure | None]]]:
    """(name, what draws it, None where there is no data to draw)."""
    for number, rows in enumerate(bandwidth.kinds(measured).values()):
        yield f"bandwidth-{number}" if number else "bandwidth", functools.partial(bandwidth.over_size, measured, rows)
    if any(measured.data[case.number][2] is not None for case in distributions.chosen(measured)):
        yield "cdf-chunk", functools.partial(distributions.chunks, measured)
    yield "cdf-trial", functools.partial(distributions.trials, measured)
    yield "delay", functools.partial(distributions.delays, measured)
    chosen = trial.choose(measured)
    if chosen is not None:
        yield "trial", functools.partial(trial.draw, measured, chosen)
    if measured.setting.link.directions:
        yield "pairs", functools.partial(bandwidth.between_pairs, measured)
