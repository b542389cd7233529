"""The loss in the course of a training, as CSV."""

from __future__ import annotations

from collections.abc import Mapping

from ..model.run import Run


def render(run: Run) -> Mapping[str, bytes]:
    """``losses.csv``: step and loss, where rank 0 reported progress; a run without losses has the head alone."""
    events = run.history.of("progress")
    rows = [f"{event.value['step']},{event.value['loss']:.6f}" for event in events if "loss" in event.value]
    return {"losses.csv": "\n".join(["step,loss", *rows, ""]).encode()}
