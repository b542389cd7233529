"""Documents, history, metrics and the nodes' own files agree in content and in time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..core.verdict import metrics
from ..core.verdict.twin import twin_key
from ..model import codec
from ..model.run import Run, StepRecord
from ..model.verdict import Verdict

ALWAYS = True
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """A contradiction is a failure; what was lost is unknown. A bundle of format 1 does not state what is needed to compare."""
    if run.format < 2:
        return views.unknown("evidence-agrees", views.NOT_COMPARED)
    agreement = views.agreement(run)
    failures = [*views.identity(run), *agreement.failures, *views.event_times(run.history, _timed_steps(run))]
    doubts = [
        *agreement.doubts,
        *views.uncertain_times(run.history),
        *views.unended(run.history),
        *views.unstarted(run.history),
    ]
    same = views.by_same_code(run)
    if same and run.twin and run.twin.key != twin_key(run.trial, views.mapping(run.extras.get("fingerprint.json"))):
        doubts.append(views.found("the twin is of another trial or another fingerprint"))
    (failures if same else doubts).extend(_metrics(run))
    text = f"{agreement.compared} events equal on both sides, documents and metrics as recorded"
    return views.conclude("evidence-agrees", text, failures=failures, doubts=doubts)


def _timed_steps(run: Run) -> tuple[StepRecord, ...]:
    """The steps that ranks timed themselves; a user's script writes into its steps what it likes."""
    return () if run.trial.workload == "script" else tuple(run.files.steps())


def _metrics(run: Run) -> Iterator[views.Finding]:
    """metrics.jsonl is what this version computes from the evidence."""
    computed = [json.dumps(codec.plain(metric), sort_keys=True) for metric in metrics.of(run)]
    try:
        lines = run.files.read("metrics.jsonl").splitlines()
        recorded = [json.dumps(json.loads(line), sort_keys=True) for line in lines]
    except ValueError as error:
        yield views.found(f"metrics.jsonl: not JSON ({error})")
        return
    if computed != recorded:
        number = next((n for n, pair in enumerate(zip(computed, recorded, strict=False), 1) if pair[0] != pair[1]), 0)
        line = number or min(len(computed), len(recorded)) + 1
        yield views.found(f"metrics.jsonl:{line} is not what the evidence gives")
