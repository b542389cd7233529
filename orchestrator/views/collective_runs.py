"""Whether a run measured collectives, and what: the views of them are loaded only where it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.event import History
from ..model.events import CollectivePlan
from ..model.run import Run

if TYPE_CHECKING:
    from .collectives import Measured


def is_collective(history: History) -> bool:
    """Whether there is anything for the views of collectives."""
    return history.first(CollectivePlan) is not None


def measured(run: Run) -> Measured | None:
    """As ``views.collectives.measured``: None for a run that measured no collectives."""
    if not is_collective(run.history):
        return None
    from . import collectives

    return collectives.measured(run)
