"""What ranks computed together is near what one process computes alone: weights of a training, answers of an inference."""

from __future__ import annotations

from dataclasses import dataclass

from .. import views
from ..model.events import ReferenceCompared
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = False
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``tolerance``: the largest difference of a value. Floats are summed in another order, so it is not 0."""

    tolerance: float = 0.001


def check(run: Run, params: Params) -> Verdict:
    """By what rank 0 told when it had trained alone."""
    told, doubts = run.history.last(ReferenceCompared), [*views.unended(run.history)]
    if told is None:
        doubts = [views.found("nothing was compared with what one process computes"), *doubts]
        return views.conclude("equals-reference", "", doubts=doubts)
    difference, steps = views.number(told.data.difference), told.data.steps
    if difference is None:
        return views.conclude("equals-reference", "", doubts=[views.found("the difference is not told", told)])
    text = f"largest difference of {told.data.of} {difference:.1e} after {steps} steps"
    far = [views.found(f"{text}; allowed is {params.tolerance:g}", told)] if not difference <= params.tolerance else []
    evidence = {"difference": difference}
    return views.conclude("equals-reference", text, failures=far, doubts=doubts, evidence=evidence)
