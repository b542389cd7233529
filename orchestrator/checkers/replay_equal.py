"""A step that was executed more than once gave the same loss and the same weights each time, on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.run import Run, StepRecord
from ..model.verdict import Verdict

ALWAYS = False
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """Needs no twin: the run is compared with itself, ``float.hex`` by ``float.hex``."""
    executions: dict[tuple[int, int], list[StepRecord]] = {}
    for record in run.files.steps():
        executions.setdefault((record.rank, record.step), []).append(record)
    if not executions:
        return views.conclude(
            "replay-equal", "", doubts=[views.found("no step was recorded"), *views.unended(run.history)]
        )
    again = [records for _, records in sorted(executions.items()) if len(records) > 1]
    failures = [one for records in again for one in _differences(records)]
    steps = len({records[0].step for records in again})
    text = f"{steps} step{'s' * (steps != 1)} done again, equal each time" if again else "no step was done twice"
    doubts = [*_expected(run, steps), *views.unended(run.history)]
    return views.conclude("replay-equal", text, failures=failures, doubts=doubts)


def _differences(records: list[StepRecord]) -> Iterator[views.Finding]:
    first = records[0]
    for record in records[1:]:
        where = f"rank {record.rank}, step {record.step}: epoch {record.epoch} differs from epoch {first.epoch}"
        if record.loss != first.loss:
            yield views.found(f"{where} in the loss, {record.loss} and {first.loss}")
        elif record.digest and first.digest and record.digest != first.digest:
            yield views.found(f"{where} in the weights")


def _expected(run: Run, steps: int) -> Iterator[views.Finding]:
    """Steps that were stopped after a checkpoint and done again must be there twice."""
    lost = {step for one in views.failovers(run.trial, run.history) for step in one.lost_steps}
    if lost and not steps:
        yield views.found(f"{len(lost)} steps were done again but no record shows both executions")
