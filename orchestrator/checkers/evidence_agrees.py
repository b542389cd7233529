"""Documents, history, metrics and the nodes' own files agree in content and in time."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .. import views
from ..core.verdict import least_checks, run_metrics
from ..core.verdict.twin import twin_key
from ..model.plugin import NoParams as Params
from ..model.run import Run, StepRecord
from ..model.verdict import Verdict

ALWAYS = True


def check(run: Run, params: Params) -> Verdict:
    """A contradiction is a failure; lost data is unknown. A bundle of format 1 does not state enough to compare."""
    if run.format < 2:
        return views.unknown("evidence-agrees", views.NOT_COMPARED)
    agreement = views.agreement(run)
    failures = [*views.identity(run), *agreement.failures, *views.event_times(run.history, _timed_steps(run))]
    doubts = [
        *agreement.doubts,
        *views.uncertain_times(run.history),
        *views.not_ended(run.history),
        *views.not_started(run.history),
    ]
    failures += map(views.finding, least_checks.findings(run))
    doubts += [views.finding(text) for text in [least_checks.doubt(run)] if text]
    same = views.by_same_code(run)
    if same and run.twin and run.twin.key != twin_key(run.trial, views.mapping(run.extras.get("fingerprint.json"))):
        doubts.append(views.finding("the reference run belongs to another trial or another fingerprint"))
    (failures if same else doubts).extend(_metrics(run))
    text = f"{agreement.compared} events equal on both sides, documents and metrics as recorded; {agreement.signatures}"
    evidence = {"bed_key": True} if run.is_signed else {}
    return views.conclude("evidence-agrees", text, failures=failures, doubts=doubts, evidence=evidence)


def _timed_steps(run: Run) -> tuple[StepRecord, ...]:
    """The steps that ranks timed themselves; the times in a user script's steps are not checked."""
    return () if run.trial.workload == "script" else tuple(run.files.steps())


def _metrics(run: Run) -> Iterator[views.Finding]:
    """metrics.jsonl equals the metrics that this version computes from the evidence."""
    lines = list(run_metrics.lines(run))
    content = run.files.read("metrics.jsonl")
    if content == "".join(f"{line}\n" for line in lines).encode():
        return
    computed = [json.dumps(json.loads(line), sort_keys=True) for line in lines]
    try:
        recorded = [json.dumps(json.loads(line), sort_keys=True) for line in content.splitlines()]
    except ValueError as error:
        yield views.finding(f"metrics.jsonl: not JSON ({error})")
        return
    if computed != recorded:
        number = next((n for n, pair in enumerate(zip(computed, recorded, strict=False), 1) if pair[0] != pair[1]), 0)
        line = number or min(len(computed), len(recorded)) + 1
        yield views.finding(f"metrics.jsonl:{line} differs from the evidence")
