"""The figures of a collective run for programs: CSV, JSON as nccl-tests writes it, and the plots as PNG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..model.run import Run
from ..views import collectives
from .page import nccl, sheet


def render(run: Run) -> Mapping[str, bytes]:
    """Nothing for a run that measured no collectives."""
    found = collectives.measured(run)
    if found is None:
        return {}
    return {
        "collective.csv": sheet.cases(found).encode(),
        "outliers.csv": sheet.outliers(found).encode(),
        "nccl-tests.json": nccl.document(run, found).encode(),
        **dict(_plots(found)),
    }


def _plots(found: collectives.Measured) -> Iterator[tuple[str, bytes]]:
    from .page import plots
    from .page.plots import canvas

    with canvas.styled():
        for picture in plots.pictures(found):
            drawn = picture.draw()
            if drawn is not None:
                yield f"plots/{picture.name}.png", canvas.png(drawn)
