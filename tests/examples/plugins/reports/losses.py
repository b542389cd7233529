"""The loss in the course of a training, as CSV."""

from __future__ import annotations

from collections.abc import Mapping

from ..model import events
from ..model.run import Run


def render(run: Run) -> Mapping[str, bytes]:
    """``losses.csv``: step and loss, where rank 0 reported progress; a run without losses has the head alone."""
    reports = [event.data for event in run.history.of(events.Progress)]
    rows = [f"{report.step},{report.loss:.6f}" for report in reports if report.loss is not None]
    return {"losses.csv": "\n".join(["step,loss", *rows, ""]).encode()}
