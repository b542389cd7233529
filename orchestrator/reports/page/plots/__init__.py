"""The pictures of a collective run, with their titles and captions."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from ....views.collectives import Measured, phrases
from . import bandwidth, canvas, distributions, trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The sentence in place of the pictures.
UNAVAILABLE = (
    "No pictures: matplotlib was not installed where this report was written. "
    "Install it (pip install 'ccbed[plots]') and write the report again: ccbed report RUN."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """``name``: of the file, and of the anchor in the page. ``draw``: None where there is no data to draw."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A picture in both forms."""

    picture: Picture
    png: bytes
    svg: Markup


def are_available() -> bool:
    """Whether matplotlib is installed; it is an extra (``ccbed[plots]``)."""
    return importlib.util.find_spec("matplotlib") is not None


@functools.lru_cache(maxsize=1)
def drawn(measured: Measured) -> tuple[Drawn, ...]:
    """All pictures, drawn once for the page and the folder of PNGs; none without matplotlib."""
    if not are_available():
        return ()
    made = []
    with canvas.styled():
        for picture in pictures(measured):
            figure = picture.draw()
            if figure is not None:
                canvas.settle(figure)
                svg = canvas.svg(figure, picture.name, picture.title)
                made.append(Drawn(picture=picture, png=canvas.png(figure), svg=svg))
    return tuple(made)


def pictures(measured: Measured) -> Iterator[Picture]:
    """In the order of the page."""
    shown = distributions.chosen(measured)
    which = " The largest size of each." if len({case.bytes for case in measured.setting.cases}) > 1 else ""
    for number, (kind, rows) in enumerate(bandwidth.kinds(measured).items()):
        yield Picture(
            name=f"bandwidth-{number}" if number else "bandwidth",
            title=f"Bus bandwidth, {kind}",
            caption="By the median iteration; dashed: the model from the alpha and beta that the probe fitted in this run.",
            draw=lambda rows=rows: bandwidth.over_size(measured, rows),  # type: ignore[misc]
        )
    if any(measured.data[case.number][2] is not None for case in shown):
        yield Picture(
            name="cdf-chunk",
            title="Delay of chunk transfers",
            caption=f"Part of all transfers that took at most so long, from when the receiver asked to when it had all.{which}",
            draw=lambda: distributions.chunks(measured),
        )
    yield Picture(
        name="cdf-trial",
        title="Time of iterations",
        caption=f"Part of all iterations whose slowest rank took at most so long.{which}",
        draw=lambda: distributions.trials(measured),
    )
    yield Picture(
        name="delay",
        title="Delay over time",
        caption="Dots: chunk transfers; lines: the slowest rank of each iteration. Named: the worst transfers over three times "
        "the median of the same transfer, sender to receiver.",
        draw=lambda: distributions.delays(measured),
    )
    chosen = trial.choose(measured)
    if chosen is not None:
        yield Picture(
            name="trial",
            title=f"One iteration: {phrases.case(chosen.case)}, iteration {chosen.trial}",
            caption=f"The slowest against its median: {phrases.duration(chosen.seconds)}, p50 {phrases.duration(chosen.usual)}. "
            "A bar is a transfer in its receiver's row, coloured by sender; upright lines: where a rank's timed region begins "
            "and ends.",
            draw=lambda: trial.draw(measured, chosen),
        )
    if measured.setting.link.directions:
        yield Picture(
            name="pairs",
            title="Between each two ranks",
            caption="By the link probe of this run: trains of messages in every direction, sender in the row."
            + (
                f" Crossed out, with a question mark: {phrases.roughly_known(measured.setting)}."
                if any(direction.is_wide for direction in measured.setting.link.directions)
                else ""
            ),
            draw=lambda: bandwidth.between_pairs(measured),
        )
