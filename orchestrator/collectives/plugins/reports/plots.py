"""The plots of a collective run as PNG, for papers and slides: ccbed report RUN --plots."""

from __future__ import annotations

from collections.abc import Mapping

from .... import views
from ....model.run import Run

#: Written only where it is asked for: drawing takes seconds, and the page has charts of its own.
ON_REQUEST = True


def render(run: Run) -> Mapping[str, bytes]:
    """Nothing for a run that measured no collectives, and without matplotlib."""
    if not views.is_collective(run.history):
        return {}
    from ... import views as collectives

    measured = collectives.measured(run)
    if measured is None:
        return {}
    from ...page import plots

    return {f"plots/{name}.png": content for name, content in plots.drawn(measured).items()}
