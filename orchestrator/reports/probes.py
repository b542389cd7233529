"""The figures of probed nodes for programs: a line of CSV for each figure of each node."""

from __future__ import annotations

from collections.abc import Mapping

from ..model.run import Run
from ..views import probes
from .page import sheet


def render(run: Run) -> Mapping[str, bytes]:
    """``probes.csv``; nothing for a run that probed no node."""
    figures = probes.figures(run.history)
    return {"probes.csv": sheet.probed(figures).encode(errors="replace")} if figures else {}
