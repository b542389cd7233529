"""The result of all ranks is near that of one process: weights of a training, outputs of an inference."""

from __future__ import annotations

from .. import views
from ..model import events
from ..model.frozen import dataclass
from ..model.run import Run
from ..model.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``tolerance``: the largest difference of a value. Floats are summed in another order, so it is not 0."""

    tolerance: float = 0.001


def check(run: Run, params: Params) -> Verdict:
    """Judge by the comparison that rank 0 makes after it has computed the result alone."""
    compared, doubts = run.history.last(events.ReferenceCompared), [*views.not_ended(run.history)]
    if compared is None:
        text = "the result was not compared with that of one process; bit-exact compares it with an undisturbed run (--reference)"
        doubts = [views.finding(text), *doubts]
        return views.conclude("equals-reference", "", doubts=doubts)
    difference, steps = views.number(compared.data.difference), compared.data.steps
    if difference is None:
        return views.conclude("equals-reference", "", doubts=[views.finding("the difference is not known", compared)])
    text = f"largest difference of {compared.data.of} {difference:.1e} after {steps} steps"
    far = (
        [views.finding(f"{text}; allowed is {params.tolerance:g}", compared)]
        if not difference <= params.tolerance
        else []
    )
    evidence = {"difference": difference}
    return views.conclude("equals-reference", text, failures=far, doubts=doubts, evidence=evidence)
