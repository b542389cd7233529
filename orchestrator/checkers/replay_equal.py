"""Steps that were executed more than once had the same loss and the same weights each time, on every rank."""

from __future__ import annotations

from collections.abc import Mapping

from .. import views
from ..model import watch
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import training
from ..views.training import completeness, saved_state

SKIPS = True
NEXT = "a restarted reference tells whether that belongs to the job: --reference"


@training.by_rank
def check(run: Run, params: Params) -> Verdict:
    """Judge by the executions of this run, without a twin; losses are compared as ``float.hex``.

    Own workloads promise the same bits each time.

    A script's steps may differ although all of its state is known to have resumed: DDP, for example, sums its first step after
    a start in another order. A restart control judges that; without one the size of the differences does.
    """
    lines = training.lineage_of(run)
    return _exact(run, lines) if lines.is_exact else _explained(run, lines)


def _exact(run: Run, lines: training.Lineage) -> Verdict:
    """Each difference is a failure."""
    repeated = [replay for attempt in lines.attempts[1:] for replay in training.replays(lines, attempt)]
    steps, resized = ({r.step for r in repeated if r.is_resized >= least} for least in (False, True))
    failures = [
        views.finding(_differs(replay)) for replay in repeated if replay.batches is False or replay.is_equal is False
    ]
    doubts = [*training.job_doubts(run, lines)]
    if not any(process.steps for attempt in lines.attempts for process in attempt.ranks.values()):
        doubts.append(views.finding("no step was recorded"))
    lost = {step for failover in views.failovers(run.trial, run.history) for step in failover.lost_steps}
    if lost and not steps:
        doubts.append(views.finding(f"{len(lost)} steps were done again, but no record shows both executions"))
    equal = f"{_steps(len(steps - resized))} done again, equal each time" if steps - resized else training.NONE_TWICE
    if resized and not failures and not doubts:
        reason = f"{_steps(len(resized))} done again after the worker group had changed its size, on the same batches"
        text = f"not applicable: {reason}: bits are not comparable" + (f"; {equal}" if steps - resized else "")
        return Verdict(check="replay-equal", outcome="skipped", text=text)
    return views.conclude("replay-equal", equal, failures=failures, doubts=doubts)


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def _explained(run: Run, lines: training.Lineage) -> Verdict:
    """A difference is a failure where a lost part of the state, or no sum in another order, explains it.

    Where random states are lost and the trial accepts that, the restarted reference that had them put back is judged.
    """
    facts = training.kept_facts(lines)
    unrepeated = training.unrepeated(run.twin, facts)
    is_each_shown = training.restarts_shown(facts, run.twin.control if run.twin else None) == facts.restarts
    failures, doubts = list[views.Finding](), [*training.job_doubts(run, lines), *training.unknown_starts(lines)]
    compared: list[training.Replay] = []
    restarted, unexplained, incomplete, incomparable = 0, list[views.Finding](), False, False
    aside, is_explained, may_lose = "", True, completeness.may_lose(run.trial.accept)
    for resumption in lines.resumptions:
        repeated = training.replays(lines, resumption.attempt)
        known = [replay for replay in repeated if replay.is_equal is not None]
        compared += known
        differing = [replay for replay in known if not replay.is_equal]
        least = training.rounding.least(lines.attempts)
        why = training.rounding.unexplained(repeated, least, repeats=_repeats(run, lines)) if differing else ""
        parts = completeness.comparable(completeness.worst(completeness.rows(lines, resumption)), unrepeated)
        lost = [part for part, row in parts.items() if row.result == "fail"]
        needed = [part for part in lost if part not in may_lose]
        parts = {part: row for part, row in parts.items() if row.result != "fail" or part in needed}
        of_steps = [part for part in needed if part != saved_state.COPIES or why]  # an average changes no step
        if differing and (of_steps or _are_of_other_data(lost, repeated)):
            failures.append(views.finding(f"{_differs(differing[0])}: {next(iter(of_steps), lost[0])} not resumed"))
        elif differing and "RNG" in lost:
            result, why, _ = saved_state.put_back(lines, facts, run.twin, may_lose)
            aside = saved_state.random_states_aside(result, why)
            is_explained &= result == "pass"
            {"fail": failures, "unknown": doubts}.get(result, []).append(views.finding(aside))
        elif differing and unrepeated:
            incomparable = True
        elif why and _are_whole(parts, "RNG"):
            failures.append(views.finding(why))
            is_explained = False
        elif differing and (is_each_shown or resumption is lines.resumptions[-1]) and _is_as_restarted(run, lines):
            restarted += len({replay.step for replay in differing})
        elif differing:
            text = f"{_differs(differing[0])}, and no part of the state that is known to differ explains it"
            unexplained.append(views.finding(text))
            incomplete |= not (_are_whole(parts) and _has_same_data(repeated))
        elif repeated and not known:
            reason = "no step that was done again has a loss or a digest in both executions"
            doubts.append(views.finding(f"{resumption.attempt.name}: {reason}"))
    steps = len({(replay.step, replay.after) for replay in compared})
    has_control = run.twin is not None and run.twin.control is not None
    equal = f"{restarted} of them as after a restart by itself" if restarted else "equal each time"
    if unexplained and not (incomplete or has_control):
        equal, unexplained = "with no more difference than sums in another order explain", []
    is_explained &= not unexplained
    doubts += unexplained if has_control else [views.finding(f"{item.text}; {NEXT}") for item in unexplained]
    text = f"{_steps(steps)} done again{f': {aside}' if aside else f', {equal}'}" if steps else training.NONE_TWICE
    evidence = {} if is_explained else {training.UNEXPLAINED: True}
    verdict = views.conclude("replay-equal", text, failures=failures, doubts=doubts, evidence=evidence)
    reason = completeness.incomparable(unrepeated) if incomparable else "" if steps else _uncompared(lines)
    return completeness.or_skipped(verdict, reason)


def _uncompared(lines: training.Lineage) -> str:
    count = len(training.redone(lines))
    return f"not applicable: {_steps(count)} done again by another number of ranks, with other shares" if count else ""


def _are_whole(parts: Mapping[str, completeness.Row], *names: str) -> bool:
    """Return whether these parts of the state, or all of them, are known to have resumed."""
    return all(row.result in ("pass", "not applicable") for part, row in parts.items() if not names or part in names)


def _are_of_other_data(lost: list[str], repeated: tuple[training.Replay, ...]) -> bool:
    """Return whether the first difference follows from a lost data position: by then a step had another batch, or none is known."""
    first = min(replay.step for replay in repeated if replay.is_equal is False)
    known = [replay for replay in repeated if replay.step <= first]
    is_seen = any(replay.batches is not None or replay.inputs is not None for replay in known)
    is_other = any(replay.batches is False or replay.inputs is False for replay in known)
    return "data position" in lost and (is_other or not is_seen)


def _has_same_data(repeated: tuple[training.Replay, ...]) -> bool:
    """Return whether the ranks are known to have had the same batches in the first step that differs, and losses that are close."""
    first = min(replay.step for replay in repeated if replay.is_equal is False)
    differing = [replay for replay in repeated if replay.step == first]
    is_due = all(r.batches is not False and (r.batches or not r.is_loaded) for r in differing)
    return is_due and all(r.losses and r.has_close_losses for r in differing)


def _repeats(run: Run, lines: training.Lineage) -> bool:
    """Return whether the job repeats its own steps while nothing restarts it: as its reference shows, else as CPUs do."""
    if run.twin is not None:
        return training.repeats(run.twin, training.kept_facts(lines))
    return not any(line.device != "cpu" for file in run.files.watch() for line in file.of(watch.Torch))


def _is_as_restarted(run: Run, lines: training.Lineage) -> bool:
    """Return whether the last attempt computed what the restart control did: the difference then belongs to the job."""
    least = training.rounding.least(lines.attempts)
    return training.rounding.is_as_restarted(training.kept_facts(lines), run.twin, least) is True


def _differs(replay: training.Replay) -> str:
    what = (
        "the loss" if replay.loss is False else "the weights" if replay.weights is False else "the samples of the batch"
    )
    return f"{replay.rank}, step {replay.step}: {replay.after} differs from {replay.before} in {what}"
