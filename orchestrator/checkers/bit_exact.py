"""Every loss, weight, optimizer state and random state equals that of an uninterrupted reference run, bit by bit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from .. import views
from ..model import events
from ..model.frozen import replace
from ..model.plugin import NoParams as Params
from ..model.run import SHORT_S, Control, Run, Twin
from ..model.verdict import Verdict
from ..views import training
from ..views.training import completeness, saved_state

TWIN = True
#: The largest relative difference of the loss over a batch that sums in another order explain (measured: 5e-7 in 35 steps),
#: and the number of steps after a change of the gang's size for which it holds.
LOSS_BOUND = 1e-5
LOSSES_COMPARED = 5
SKIPS = True


def check(run: Run, params: Params) -> Verdict:
    """Judge by losses of kept steps as ``float.hex`` and by SHA-256 of each tensor; a missing tensor is a failure."""
    lines = training.lineage_of(run)
    if not lines.is_exact:
        return _script(run)
    doubts = [*_not_shown(run), *views.not_ended(run.history)]
    if run.twin is None:
        return views.conclude("bit-exact", "", doubts=[views.finding("no reference run to compare with"), *doubts])
    if any(views.not_ended(run.history)):
        return views.conclude("bit-exact", "", doubts=doubts)
    losses, digests = training.kept_facts(lines).losses, training.final_digests(lines)
    doubts += _incomplete(run.twin, {*losses, *digests})
    if changes := lines.size_changes:
        return _resized(run, run.twin, losses, doubts, changes)
    failures = [*_different_losses(losses, run.twin), *_different_states(digests, run.twin)]
    if failures and (moved := [*_moved(run)]):
        failures, doubts = [], [*moved, *failures, *doubts]
    failures += _unused_checkpoints(run)
    evidence = {"twin": run.twin.run, "final_loss": run.twin.final_loss}
    are_only_losses = any(_different_losses(losses, run.twin)) and not any(_different_states(digests, run.twin))
    evidence |= {"only_differing": "losses"} if failures and are_only_losses else {}
    return views.conclude("bit-exact", _text(run, digests), failures=failures, doubts=doubts, evidence=evidence)


def _resized(
    run: Run, twin: Twin, losses: Mapping[str, Mapping[str, str]], doubts: list[views.Finding], changes: training.Sizes
) -> Verdict:
    """Only the steps before the first change have the bits of the twin: later sums are over another number of ranks."""
    until, ranks = changes[0]
    own, other = ({rank: _until(steps, until) for rank, steps in known.items()} for known in (losses, twin.losses))
    failures = [*_different_losses(own, replace(twin, losses=other)), *_unused_checkpoints(run)]
    if failures and (moved := [*_moved(run)]):
        failures, doubts = [], [*moved, *failures, *doubts]
    different = [*_different_batches(run, twin, until)]
    failures += [finding for step, finding in different if step == until + 1]
    doubts += [finding for step, finding in different if step != until + 1]
    if failures or doubts:
        return views.conclude("bit-exact", "", failures=failures, doubts=doubts)
    text = f"not applicable from step {until + 1} on, with {ranks} ranks: sums over another number of ranks have other last bits"
    equal = f"; steps 1 to {until} equal the reference run" if until else ""
    return Verdict(check="bit-exact", outcome="skipped", text=text + equal + _mean_losses(run, twin))


def _different_batches(run: Run, twin: Twin, until: int) -> Iterator[tuple[int, views.Finding]]:
    """(step, finding) of the first steps after the change whose loss over the whole batch is not the twin's within ``LOSS_BOUND``.

    The first begins with the twin's weights, so that only the samples can cause it; later ones have other gradients, too.
    """
    own = views.batch_losses(views.kept_steps(run.files.steps(), run.history))
    for step in range(until + 1, until + 1 + LOSSES_COMPARED):
        if step > twin.steps:
            return
        value, other = own.get(step), twin.batch_losses.get(str(step))
        if value is None or other is None:
            yield (
                0,
                views.finding(
                    f"the loss over the whole batch of step {step} is not known of the run and its reference run"
                ),
            )
        elif abs(value - other) > LOSS_BOUND * max(abs(other), abs(value)):
            text = f"the loss over the whole batch of step {step} is {value:.7g}, the reference run's {other:.7g}"
            yield step, views.finding(f"{text}: more than sums in another order explain ({LOSS_BOUND:g})")


def _until(steps: Mapping[str, str], last: int) -> dict[str, str]:
    return {step: loss for step, loss in steps.items() if int(step) <= last}


def _mean_losses(run: Run, twin: Twin) -> str:
    """The last loss over the whole batch, beside the twin's: close, but not a verdict."""
    gangs = views.gangs(run.history)
    ends = gangs[-1].by_rank(events.RankFinished).values() if gangs else ()
    mean = next((event.data.loss_mean for event in ends if event.data.loss_mean is not None), None)
    return f"; last loss {mean:.6g}, the reference run's {twin.final_loss:.6g}" if isinstance(mean, float) else ""


@training.by_rank
def _script(run: Run) -> Verdict:
    """Judge by the watcher's records. A difference that the restart control shows as well belongs to the job."""
    why = str(views.mapping(run.extras.get("no-twin.json")).get("why") or "")
    if run.twin is None and views.mapping(run.extras.get("bundle.json")).get("twin_after") is True:
        return Verdict(check="bit-exact", outcome="skipped", text=_no_twin(run, why))
    lines = training.lineage_of(run)
    facts, doubts = training.kept_facts(lines), [*training.job_doubts(run, lines)]
    if run.twin is None:
        doubts.append(views.finding(f"no reference run to compare with{f' ({why})' * bool(why)}"))
        return views.conclude("bit-exact", "", doubts=doubts)
    doubts += [views.finding(f"the reference run wrote {path}, which the run may have read") for path in run.twin.paths]
    if facts.base is None:
        doubts.append(views.finding("the step that the last start resumed from is not known"))
    change = next((step for step, _ in lines.size_changes), None)
    common = _until_change(lines, change, _common_facts(facts, run.twin))
    different = _first_difference(common)
    parts = {name.partition("@")[0] if "@" in name else "loss" for _, name, own, other in common if own != other}
    is_disturbed = different is not None and different[0] >= facts.undisturbed
    accepted = _accepted(run, lines) if is_disturbed else set()
    if "RNG" in accepted and saved_state.DATA not in accepted:
        return _aside(run, lines, facts, common)
    is_of_data = saved_state.DATA in accepted and different is not None and _has_other_data(different[0], common)
    failures = list[views.Finding]()
    least = training.rounding.least(lines.attempts)
    as_restarted = training.rounding.is_as_restarted(facts, run.twin, least)
    shown = training.restarts_shown(facts, run.twin.control) or (facts.base or 0,)
    beyond = training.rounding.beyond(facts, run.twin, least, shown)
    lost = training.other_random_state(run.twin, facts, different[0]) if different else None
    random = (
        f"random states ({lost[2]}) of rank {lost[1]} differ from the reference run's from step {lost[0]} on, before all else: "
        if lost
        else ""
    )
    if different and as_restarted and beyond:
        failures.append(views.finding(f"{random}{beyond[-1]}; a restart by itself has the same flaw"))
    elif (
        different and as_restarted is False and _restart_explains_nothing(different[0], shown, run.twin, beyond, least)
    ):
        put_back = views.mapping(run.twin.control and run.twin.control.parts).get("RNG", ("",))[0] == "pass"
        how = " that had its random states put back" * put_back
        text = f"{random}{_shown_difference(different, common)}; a restart from the same step{how} does not"
        failures.append(views.finding(text))
    elif different and different[0] >= facts.undisturbed and not (as_restarted and different[0] >= min(shown)):
        doubts.append(
            views.finding(
                random
                + _shown_difference(different, common)
                + _unknown_cause(different[0], facts, run.twin, min(shown))
            )
        )
    if failures and (moved := [*_moved(run)]):
        failures, doubts = [], [*moved, *failures, *doubts]
    if change is not None and not (failures or doubts):
        return Verdict(check="bit-exact", outcome="skipped", text=_script_resized(lines, change, common))
    later, unseen = _later(run, lost, common), _unseen(facts, common)
    by_restart = as_restarted is True and bool(unseen)
    doubts += _not_compared(run, facts, () if by_restart else unseen)
    names = ", ".join(sorted({re.split("[.@]", name)[0] for _, name, _, _ in common if "@" in name}))
    restarted = _common_facts(facts, run.twin.control) if run.twin.control and as_restarted else []
    is_rounded = any(own != other for _, name, own, other in restarted if training.step_of(name) > min(shown))
    then = f"step {min(shown)}, then to a restart from there{', but for sums in another order' * is_rounded}"
    until = then if different or by_restart else f"step {facts.steps}"
    text = (
        f"{names} of {len(facts.digests)} ranks equal to the reference run, to {until}{_unchanged(facts, min(shown))}"
    )
    control = {"control": run.twin.control.run} if run.twin.control else {}
    evidence = {
        "twin": run.twin.run,
        "compared": len(common),
        **control,
        **({"differs_from_step": different[0]} if different else {}),
        **({"restart_from_step": min(shown)} if by_restart else {}),
        **({"differs_first": "RNG"} if failures and lost else {}),
        **({training.UNEXPLAINED: True} if is_disturbed and not is_of_data else {}),
        **({training.UNEXPLAINED: False, "accepted_later": later} if failures and later else {}),
        **({"only_differing": "losses"} if failures and parts == {"loss"} else {}),
    }
    verdict = views.conclude("bit-exact", text, failures=failures, doubts=doubts, evidence=evidence)
    return completeness.or_skipped(verdict, completeness.incomparable(training.unrepeated(run.twin, facts)))


def _no_twin(run: Run, reason: str) -> str:
    """Return why none followed a run by itself, and what makes one. ``reason``: what the run kept of it."""
    budget_s = views.mapping(run.extras.get("bundle.json")).get("budget_s")
    end = run.history.last(events.RunEnd)
    if budget_s:
        return f"not checked: no reference run fitted into --budget {budget_s:g} s"
    if run.history.last(events.FaultInjected) is None:
        why = "one follows by itself where a fault was injected"
    elif end is None or end.data.outcome != "finished":
        why = "one follows by itself where the run finished"
    elif end.t >= SHORT_S:
        why = f"the run took {end.t:.0f} s; one follows by itself within {SHORT_S:.0f} s"
    else:
        why = reason or "none could be made"
    return f"not checked: no reference run to compare with ({why}): --reference"


def _accepted(run: Run, lines: training.Lineage) -> set[str]:
    """The parts that the last attempt resumed without, if the trial accepts the loss of each of them."""
    if not run.trial.accept or not lines.resumptions:
        return set()
    parts = completeness.worst(completeness.rows(lines, lines.resumptions[-1], run.twin))
    lost = {part for part, row in parts.items() if row.result == "fail"}
    return lost if lost <= completeness.may_lose(run.trial.accept) else set()


def _aside(
    run: Run, lines: training.Lineage, facts: training.KeptFacts, common: list[tuple[str, str, str, str]]
) -> Verdict:
    """The verdict where random states are lost and accepted: the restarted reference that had them put back is judged instead."""
    result, why, _ = saved_state.put_back(lines, facts, run.twin, completeness.may_lose(run.trial.accept))
    control = run.twin.control if run.twin else None
    if result == "pass" and control and training.restarts_shown(facts, control) != facts.restarts:
        result, why = "unknown", "the restarted reference shows the last restart only"
    finding = views.finding(saved_state.random_states_aside(result, why))
    failures, doubts = ([finding] * (result == name) for name in ("fail", "unknown"))
    text = f"with random states put back, a restart by itself equals the reference run: {why}"
    doubts = [*doubts, *training.job_doubts(run, lines), *_not_compared(run, facts, _unseen(facts, common))]
    evidence = {"accepted": "RNG", **({training.UNEXPLAINED: True} if result != "pass" else {})}
    return views.conclude("bit-exact", text, failures=failures, doubts=doubts, evidence=evidence)


def _has_other_data(step: int, common: list[tuple[str, str, str, str]]) -> bool:
    """Return whether that step had another batch than the twin's, or no batch of it is known."""
    heads = (f"batch@{step}", f"inputs@{step}")
    known = [own == other for _, name, own, other in common if name in heads]
    return not all(known) or not known


def _later(run: Run, lost: tuple[int, str, str] | None, common: list[tuple[str, str, str, str]]) -> str:
    """Return what explains a difference from a later step on: random states that the trial accepts, if later batches are the twin's."""
    if lost is None or "rng" not in run.trial.accept:
        return ""
    equal = [
        own == other for _, name, own, other in common if name.startswith("batch@") and training.step_of(name) > lost[0]
    ]
    return f"others than undisturbed on rank {lost[1]} from step {lost[0]} on" if equal and all(equal) else ""


def _until_change(
    lines: training.Lineage, change: int | None, common: list[tuple[str, str, str, str]]
) -> list[tuple[str, str, str, str]]:
    """Return the facts before a change of the gang's size: the resumed attempt recorded its state in shards of another size."""
    if change is None:
        return common
    is_sharded = any(process.is_sharded for attempt in lines.attempts for process in attempt.ranks.values())
    return [fact for fact in common if training.step_of(fact[1]) <= change - is_sharded]


def _script_resized(lines: training.Lineage, change: int, common: list[tuple[str, str, str, str]]) -> str:
    ranks = next((a.world for a in lines.attempts if a.world != lines.attempts[0].world), None)
    text = f"not applicable from step {change + 1} on, with {ranks} ranks: they share data and sums in another way"
    return f"{text}; {len(common)} losses and digests until step {change} equal the reference run" if common else text


def _common_facts(facts: training.KeptFacts | Control, twin: Twin | Control) -> list[tuple[str, str, str, str]]:
    """(rank, name, own, the twin's) of every loss and digest that both have; sums of weights differ where their digests do."""
    pairs = ((facts.losses, twin.losses), (facts.digests, twin.digests))
    return [
        (rank, name, value, other.get(rank, {})[name])
        for own, other in pairs
        for rank, known in sorted(own.items())
        for name, value in known.items()
        if name in other.get(rank, {}) and not name.startswith("sums@")
    ]


def _unseen(facts: training.KeptFacts, common: list[tuple[str, str, str, str]]) -> tuple[str, ...]:
    """The ranks without a digest after the last failover that the twin has, too."""
    base = facts.base or 0
    compared = {rank for rank, name, _, _ in common if name.startswith("weights@") and training.step_of(name) > base}
    return tuple(sorted({*facts.losses, *facts.digests} - compared, key=int))


def _unchanged(facts: training.KeptFacts, base: int) -> str:
    """Return what equal weights are worth that no step after the resumption changed: no bit of them shows a lost state."""
    known = [
        [value for name, value in own.items() if name.startswith("weights@") and training.step_of(name) >= base]
        for own in facts.digests.values()
    ]
    is_still = all(len(values) > 1 and len(set(values)) == 1 for values in known)
    return f"; no step after {base} changed a bit of the weights" if known and is_still else ""


def _not_compared(run: Run, facts: training.KeptFacts, unseen: tuple[str, ...]) -> Iterator[views.Finding]:
    """Equality is shown only by digests after the last failover, on every rank, and if the run lost something."""
    if not facts.digests or unseen:
        what = f" of rank {', '.join(unseen)}" if unseen else ""
        yield views.finding(
            f"no digest{what} after step {facts.base or 0} is known both of the run and of its reference run"
        )
    if run.trial.faults and len(views.gangs(run.history)) < 2 and not _harmless(run):
        yield views.finding("a fault was planned, but the run recovered from no loss")
    if run.twin and run.twin.steps != facts.steps and not run.trial.params.get("stop_at"):
        yield views.finding(f"the run made {facts.steps} steps, its reference run {run.twin.steps}")


def _first_difference(common: list[tuple[str, str, str, str]]) -> tuple[int, str, str] | None:
    """Step, rank and name."""
    return min(
        ((training.step_of(name), rank, name) for rank, name, own, other in common if own != other), default=None
    )


def _shown_difference(first: tuple[int, str, str], common: list[tuple[str, str, str, str]]) -> str:
    step, rank, name = first
    part = name.partition("@")[0] if "@" in name else "loss"
    count = sum(own != other for _, _, own, other in common)
    verb = "differ" if part == "weights" else "differs"
    return f"rank {rank}: {part} of step {step} {verb} from the reference run ({count} of {len(common)} compared values differ)"


def _restart_explains_nothing(step: int, shown: tuple[int, ...], twin: Twin, beyond: object, least: float) -> bool:
    """Return whether the control has the weights of the twin in later steps, rounding apart where the run differs ``beyond`` it."""
    control, rounding = twin.control, training.rounding
    if control is None or step < min(shown):
        return False
    names = ((name, own == other) for _, name, own, other in _common_facts(control, twin))
    known = [same for name, same in names if name.startswith("weights@") and training.step_of(name) > min(shown)]
    return bool(known) and (all(known) or (beyond is not None and rounding.beyond(control, twin, least, shown) is None))


def _unknown_cause(step: int, facts: training.KeptFacts, twin: Twin, first: int) -> str:
    if twin.control is None:
        return "; whether the job or its recovery causes that is not known without a restarted reference"
    if twin.control.base != facts.base:
        return f"; the restarted reference resumed from step {twin.control.base}, not from {facts.base}"
    if step < first:
        return f"; the restarted reference shows what the last restart changes, from step {twin.control.base} on"
    return "; a restart by itself differs as well, in other bits: the job does not repeat its steps, or more is lost than random states"


def _text(run: Run, digests: Mapping[str, Mapping[str, object]]) -> str:
    names = {name for digest in digests.values() for name in digest}
    tensors = len([name for name in names if not name.startswith("rng.")])
    rng = " + RNG" if any(name.startswith("rng.") for name in names) else ""
    clean = "" if run.history.first(events.RecoveryDecided) else " (no failover)"
    return f"{tensors} tensors{rng} x {len(digests)} ranks equal to the reference run{clean}"


def _not_shown(run: Run) -> Iterator[views.Finding]:
    """Equality proves a recovery only if a checkpoint was loaded and the twin was not interrupted."""
    if run.twin is not None and (run.twin.faults or run.twin.restarts):
        yield views.finding("the reference run was interrupted as well")
    resumes = {epoch: step for epoch, step in views.resume_steps(run.history).items() if epoch > 0}
    if resumes and not any(resumes.values()):
        yield views.finding("resumed from step 0: no checkpoint was loaded", run.history.last(events.ResumeChosen))
    if run.trial.faults and not resumes and not _harmless(run):
        yield views.finding("a fault was planned, but the run recovered from no loss")


def _incomplete(twin: Twin, ranks: Iterable[str]) -> Iterator[views.Finding]:
    """Yield what the twin has no records of; a rank without records in the twin cannot be compared."""
    for name, by_rank in (("losses", twin.losses), ("digests", twin.digests)):
        missing = sorted(rank for rank in ranks if not by_rank.get(rank))
        if missing or not by_rank:
            yield views.finding(
                f"the reference run has no {name}" + (f" of rank {', '.join(missing)}" if missing else "")
            )


def _unused_checkpoints(run: Run) -> Iterator[views.Finding]:
    """An attempt began at step 0 although checkpoints were committed: all of them were skipped as damaged."""
    for chosen in run.history.of(events.ResumeChosen):
        before = [event for event in run.history.of(events.CheckpointCommit) if event.seq < chosen.seq]
        skipped = [event for event in run.history.of(events.CheckpointSkipped) if event.epoch == chosen.epoch]
        if chosen.epoch and not chosen.data.step and before and skipped:
            text = f"{views.start_name(chosen.epoch)} began at step 0: none of {len(before)} committed checkpoints could be used"
            yield views.finding(text, chosen, *skipped)


def _moved(run: Run) -> Iterator[views.Finding]:
    """Ranks that continued on a node with another CPU, GPU or library: bits may differ there although no state is lost."""
    mixed = views.mapping(views.mapping(run.extras.get("fingerprint.json")).get("mixed"))
    first_nodes: dict[int, str] = {}
    for gang in views.gangs(run.history):
        for rank, node in sorted(gang.ranks.items()):
            first = first_nodes.setdefault(rank, node)
            for fact, values in sorted(mixed.items()):
                before, after = (views.mapping(values).get(name) for name in (first, node))
                if before != after:
                    yield views.finding(
                        f"rank {rank} moved from {first} to {node}, whose {fact} is {after}, not {before}"
                    )


def _harmless(run: Run) -> bool:
    """Every planned fault is proved and passed without a loss, for example a short pause."""
    return all(trace.is_proved for trace in views.traces(run.trial, run.history))


def _different_losses(losses: Mapping[str, Mapping[str, str]], twin: Twin) -> Iterator[views.Finding]:
    """Yield per rank the first step whose loss differs from the twin's; a step that only one of them has is a difference."""
    for rank in sorted(rank for rank in {*losses, *twin.losses} if twin.losses.get(rank)):
        own, other = losses.get(rank, {}), twin.losses.get(rank, {})
        steps = sorted((s for s in {*own, *other} if own.get(s) != other.get(s)), key=int)
        if steps:
            pair = f"{own.get(steps[0], 'missing')}, the reference run {other.get(steps[0], 'missing')}"
            yield views.finding(f"rank {rank}: loss of step {steps[0]} is {pair} ({len(steps)} steps differ)")


def _different_states(digests: Mapping[str, Mapping[str, object]], twin: Twin) -> Iterator[views.Finding]:
    for rank in sorted(rank for rank in {*digests, *twin.digests} if twin.digests.get(rank)):
        own, other = digests.get(rank, {}), twin.digests.get(rank, {})
        names = sorted(name for name in {*own, *other} if own.get(name) != other.get(name))
        if names:
            how = (
                "is missing"
                if names[0] not in own
                else "is not in the reference run"
                if names[0] not in other
                else "differs"
            )
            yield views.finding(f"rank {rank}: {names[0]} {how} ({len(names)} of {len({*own, *other})} differ)")
