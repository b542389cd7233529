"""The sentence that summarizes how a run ended, for the terminal and every report."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from ... import views
from ...model.trial import Trial
from ...model.verdict import Verdict
from ..spec.written_values import count as count  # noqa: PLC0414 - reports say it, too
from . import rungs

#: Workloads whose steps have another name.
MEASURED = {"collective": "iteration", "emulate": "iteration", "infer-dp": "batch", "node-probe": "probe"}


def sentence(trial: Trial, run: views.RunView, verdicts: Sequence[Verdict] = ()) -> str:
    """Return a sentence, for example: Node n2 lost at step 30; not back; the run failed at step 29: no policy applies; finished fails."""
    parts = [*_failover_parts(trial, run), *_ending(trial, run), *_finding(verdicts, run.reason)]
    text = "; ".join(part.rstrip(".") for part in parts)
    return text[:1].upper() + text[1:] + "."


def seconds(value: float) -> str:
    """A time for display: 0.4 ms, 0.16 s, 4.2 s, 2 min 05 s."""
    if value < 0.01:
        return f"{value * 1000:.1f} ms"
    if value < 1:
        return f"{value:.2g} s" if value < 0.995 else "1.0 s"
    if value < 59.95:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s"


def lost_step(trial: Trial, run: views.RunView, failover: views.Failover) -> int | None:
    """The step in which the failover began; None if it is not known. Ranks that do not wait for each other may be further."""
    names = {fault.id for fault in run.faults if failover.fault in (fault.id, fault.fault)}
    planned = [fault.at.step for fault in trial.faults if fault.id in names and fault.at.step]
    held = [fault.step for fault in run.faults if fault.id in names and fault.step]
    return next(iter([*planned, *held]), max(failover.lost_steps, default=-1) + 1 or None)


def story(trial: Trial, run: views.RunView, *, is_newest: bool = False) -> str:
    """Return what happened to a training: the loss, the way back, the steps that were done again; or that nothing was lost."""
    if not run.failovers or run.bed_ended:
        return "; ".join(_ending(trial, run))
    steps = dict.fromkeys(str(item.resume_step) for item in run.failovers if item.resume_step is not None)
    first, *others = _failover_parts(trial, run)
    newest = ", its newest checkpoint" * is_newest
    since = [f"from step {', then '.join(steps)}{newest}"] if steps else []
    return "; ".join(
        [first, *others, *since] if len(run.failovers) > 1 else [first, " ".join([others[0], *since]), *others[1:]]
    )


def _failover_parts(trial: Trial, run: views.RunView) -> list[str]:
    if run.bed_ended or not run.failovers:  # the reason of the end explains what came before it
        return []
    if len(run.failovers) == 1:
        failover = run.failovers[0]
        return [loss(trial, run, failover), returned(run, failover), *_redone(run)]
    losses = [f"{loss(trial, run, failover)} ({returned(run, failover)})" for failover in run.failovers]
    return [f"{len(losses)} failovers: {', '.join(_without_repeats(losses))}", *_redone(run)]


def _without_repeats(texts: Iterable[str]) -> Iterator[str]:
    """Each run of equal texts once: a job that fails again at its first line fails the same way each time."""
    for text, same in itertools.groupby(texts):
        times = len(list(same))
        yield f"{text}, {times} times" if times > 1 else text


def loss(trial: Trial, run: views.RunView, failover: views.Failover) -> str:
    step = lost_step(trial, run, failover)
    return _who(failover) + (f" at step {step:,}" if step else "")


def _who(failover: views.Failover) -> str:
    if failover.lost:
        return f"node{'s' * (len(failover.lost) > 1)} {series(failover.lost)} lost"
    if failover.failed_ranks:
        ranks = [str(rank) for rank in failover.failed_ranks]
        how = f" ({failover.cause})" if failover.cause else ""
        return f"rank{'s' * (len(ranks) > 1)} {series(ranks)} failed{how}"
    return f"training stopped ({failover.detector})" if failover.detector else "training stopped"


def series(names: Sequence[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]


def returned(run: views.RunView, failover: views.Failover) -> str:
    """Return how the gang recovered. Without reported steps the end of the run is the only evidence."""
    if failover.ttr_s is not None:
        return f"back in {seconds(failover.ttr_s)}"
    if run.outcome == "finished" and not run.reason:
        return "back and finished"
    return "not back" if run.step is not None else "whether it came back is not known"


def _redone(run: views.RunView) -> list[str]:
    lost = sum(len(failover.lost_steps) for failover in run.failovers)
    if lost:
        return [f"{count(lost, 'step')} redone"]
    return []


def _ending(trial: Trial, run: views.RunView) -> list[str]:
    at = "" if run.step is None else f"step {run.step:,}" + (f" of {run.steps:,}" if run.steps else "")
    where = "" if run.step is None else f" at {at}" if run.step else " before its first step was done"
    if run.outcome == "finished" and run.reason:
        return [run.reason]
    if run.outcome == "finished":
        return [] if run.failovers else [_clean(trial, run)]
    if run.outcome == "interrupted":
        return [f"interrupted{where}"]
    if run.outcome == "running":
        return [f"not finished: {at}" if at else "not finished"]
    reason = run.bed_ended or run.reason
    return [f"the run failed{where}" + (f": {reason}" if reason else "")]


def _clean(trial: Trial, run: views.RunView) -> str:
    done = f"{count(run.step, MEASURED.get(trial.workload, 'step'))} " if run.step else ""
    lost = f"node{'s' * (len(run.lost) > 1)} {series(run.lost)} lost" if run.lost else "no node lost"
    return f"{done}finished on {count(len(run.slots), 'node')} in {seconds(run.duration_s)}; {lost}"


def _finding(verdicts: Sequence[Verdict], failure: str) -> list[str]:
    """The first verdict that is not a pass, unless it only repeats the run's ``failure``."""
    outcome = rungs.worst(verdicts)
    bad = [verdict for verdict in verdicts if verdict.outcome == outcome and outcome != "pass"]
    if not bad:
        return [] if verdicts else ["no verdicts yet"]
    word = "fails" if outcome == "fail" else "is unknown"
    more = _others(len(bad) - 1, outcome)
    if bad[0].check == "finished" and failure and failure.split("; ", maxsplit=1)[0] in bad[0].text:
        return [f"{bad[0].check} {word}{more}"]
    return [f"{bad[0].check} {word}: {bad[0].text}{more}"]


def _others(number: int, outcome: str) -> str:
    """Return how many more verdicts are as bad as the one that is named."""
    verb = ("fail" if number > 1 else "fails") if outcome == "fail" else ("are unknown" if number > 1 else "is unknown")
    return f"; {count(number, 'more check')} {verb}" if number else ""
