"""The pictures of a collective run: what there is to draw, with a title and what it says."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from ....views.collectives import Measured, phrases
from . import bandwidth, canvas, distributions, trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """``name``: of the file, and of the anchor in the page. ``draw``: None where there was nothing to draw after all."""

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


@functools.lru_cache(maxsize=1)
def drawn(found: Measured) -> tuple[Drawn, ...]:
    """All pictures; the page and the folder of PNGs want the same ones, one after the other."""
    made = []
    with canvas.styled():
        for picture in pictures(found):
            figure = picture.draw()
            if figure is not None:
                canvas.settle(figure)
                svg = canvas.svg(figure, picture.name, picture.title)
                made.append(Drawn(picture=picture, png=canvas.png(figure), svg=svg))
    return tuple(made)


def pictures(found: Measured) -> Iterator[Picture]:
    """In the order of the page."""
    shown = distributions.chosen(found)
    which = " The largest size of each." if len({case.bytes for case in found.setting.cases}) > 1 else ""
    for number, (kind, rows) in enumerate(bandwidth.kinds(found).items()):
        yield Picture(
            name=f"bandwidth-{number}" if number else "bandwidth",
            title=f"Bus bandwidth, {kind}",
            caption="By the median trial; dashed: the model from the alpha and beta that the probe fitted in this run.",
            draw=lambda rows=rows: bandwidth.over_size(found, rows),  # type: ignore[misc]
        )
    if any(found.data[case.number][2] is not None for case in shown):
        yield Picture(
            name="cdf-chunk",
            title="Delay of chunk transfers",
            caption=f"Part of all transfers that took at most so long, from when the receiver asked to when it had all.{which}",
            draw=lambda: distributions.chunks(found),
        )
    yield Picture(
        name="cdf-trial",
        title="Time of trials",
        caption=f"Part of all trials whose slowest rank took at most so long.{which}",
        draw=lambda: distributions.trials(found),
    )
    yield Picture(
        name="delay",
        title="Delay over time",
        caption="Dots: chunk transfers; lines: the slowest rank of each trial. Named: the worst transfers over three times "
        "the median of the same transfer, sender to receiver.",
        draw=lambda: distributions.delays(found),
    )
    chosen = trial.choose(found)
    if chosen is not None:
        yield Picture(
            name="trial",
            title=f"One trial: {phrases.case(chosen.case)}, trial {chosen.trial}",
            caption=f"The slowest against its median: {phrases.duration(chosen.seconds)}, p50 {phrases.duration(chosen.usual)}. "
            "A bar is a transfer in its receiver's row, coloured by sender; upright lines: where a rank's timed region begins "
            "and ends.",
            draw=lambda: trial.draw(found, chosen),
        )
    if found.setting.link.pairs:
        yield Picture(
            name="pairs",
            title="Between each two ranks",
            caption="By the link probe of this run: ping-pong over sizes, a line fitted through one-way times."
            + (
                f" Crossed out, with a question mark: {phrases.unsure(found.setting)}."
                if found.setting.link.unsure
                else ""
            ),
            draw=lambda: bandwidth.between_pairs(found),
        )
