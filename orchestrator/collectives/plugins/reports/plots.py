"""The charts of a collective run as PNG, for papers and slides: ccbed report RUN --plots."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from .... import views
from ....model.run import Run

#: Written only where it is asked for: drawing takes seconds, and the page has the same charts.
ON_REQUEST = True


def render(run: Run) -> Mapping[str, bytes]:
    """Nothing for a run that measured no collectives, and without matplotlib, which is an extra (``ccbed[plots]``)."""
    if not views.is_collective(run.history) or importlib.util.find_spec("matplotlib") is None:
        return {}
    from ....reports.page import chart
    from ... import views as collectives
    from ...page import measured_charts

    measured = collectives.measured(run)
    charts = measured_charts.pictures(measured) if measured else {}
    return {f"plots/{name}.png": chart.png(drawn) for name, drawn in charts.items()}
