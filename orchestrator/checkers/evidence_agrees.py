"""Documents, history and the nodes' own files agree in content."""

from __future__ import annotations

from dataclasses import dataclass

from .. import views
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = True
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """A contradiction is a failure. A bundle of format 1 does not state what is needed to compare."""
    if run.format < 2:
        return views.unknown("evidence-agrees", views.NOT_COMPARED)
    failures = [*views.identity(run)]
    return views.conclude("evidence-agrees", "documents are those that the run began with", failures=failures)
