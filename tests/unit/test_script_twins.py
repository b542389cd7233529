"""A script is compared with its twin by the watcher's digests: equal, or unknown with the step at which they differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from orchestrator.checkers import resume_complete
from orchestrator.core.verdict import twin as twins
from orchestrator.model import watch
from orchestrator.model.event import Clock, Event, History, Source, event
from orchestrator.model.events import FaultInjected, RecoveryDecided
from orchestrator.model.payload import Payload
from orchestrator.model.run import Control, Twin
from orchestrator.model.trial import FaultPlan, Trial, Trigger
from orchestrator.model.verdict import Verdict
from orchestrator.views import training

from .test_redone_steps import changed, dropped_weights, resumed
from .verdicts import ask
from .watched_jobs import Job, digest, right, rounded, wrong


def twin(**about: Any) -> Twin:
    """The undisturbed job of 30 steps."""
    facts = training.kept_facts(training.lineage_of(Job(**about).attempt(0, 0, 30, ends=True).run()))
    return Twin(
        key="k", run="r-twin", losses=facts.losses, digests=facts.digests, steps=facts.steps, faults=0, restarts=0,
        final_loss=0.0, generators=facts.generators,
    )  # fmt: skip


def compared(job: Job, other: Twin | None) -> Verdict:
    return ask(dataclasses.replace(job.run(), twin=other), "bit-exact")


@pytest.mark.parametrize("about", [{}, {"k": 4}, {"sharded": True}, {"loss": False}, {"momentum": False}], ids=str)
def test_a_job_that_resumed_rightly_equals_its_twin(about: dict[str, Any]) -> None:
    verdict = compared(right(**about), twin(**about))
    assert verdict.outcome == "pass", verdict.text
    assert "of 2 ranks equal to the reference run, to step 30" in verdict.text


def test_that_no_step_after_the_resumption_changed_the_weights_is_said() -> None:
    job, other = right(), twin()
    digests = {
        rank: {name: "1" * 16 if name.startswith("weights@") else value for name, value in own.items()}
        for rank, own in other.digests.items()
    }
    job.files = [
        dataclasses.replace(
            file,
            lines=tuple(
                dataclasses.replace(x, weights="1" * 16) if isinstance(x, watch.State) else x for x in file.lines
            ),
        )
        for file in job.files
    ]
    verdict = compared(job, dataclasses.replace(other, digests=digests))
    assert "no step after 15 changed a bit of the weights" in verdict.text
    assert "changed a bit" not in compared(right(), twin()).text


@pytest.mark.parametrize("part", ["optimizer", "data", "weights"])
def test_a_difference_after_the_failover_is_unknown_without_a_control(part: str) -> None:
    verdict = compared(wrong(part), twin())
    assert verdict.outcome == "unknown"
    assert " from the reference run" in verdict.text and "without a restarted reference" in verdict.text


def test_a_job_that_does_not_repeat_itself_is_named() -> None:
    other = twin()
    digests = {rank: {**own, "weights@3": "0" * 16} for rank, own in other.digests.items()}
    verdict = compared(right(), dataclasses.replace(other, digests=digests))
    assert verdict.outcome == "skipped"
    assert (
        "not comparable, because the job does not repeat its own steps: rank 0: weights of step 3 differ"
        in verdict.text
    )


def test_data_that_a_job_does_not_repeat_by_itself_are_no_failure_of_its_resumption() -> None:
    other = twin()
    digests = {rank: {**own, "batch@3": "0" * 16} for rank, own in other.digests.items()}
    run = dataclasses.replace(wrong("data").run(), twin=dataclasses.replace(other, digests=digests))
    complete, replay = ask(run, "resume-complete"), ask(run, "replay-equal")
    assert (complete.outcome, replay.outcome) == ("pass", "skipped")
    assert (
        "not comparable, because the job does not repeat its own steps: rank 0: batch of step 3 differs"
        in complete.text
    )
    assert "not comparable, because" in replay.text
    run = dataclasses.replace(run, twin=other)
    assert (ask(run, "resume-complete").outcome, ask(run, "replay-equal").outcome) == ("fail", "fail")


def test_without_digests_after_the_failover_nothing_is_shown() -> None:
    other = twin()
    early = {rank: {n: d for n, d in own.items() if training.step_of(n) <= 15} for rank, own in other.digests.items()}
    verdict = compared(right(), dataclasses.replace(other, digests=early))
    assert (verdict.outcome, "no digest of rank 0, 1 after step 15" in verdict.text) == ("unknown", True)
    assert "no reference run to compare with" in compared(right(), None).text


def test_a_twin_without_digests_after_the_failover_leaves_the_comparison_to_the_restart_control() -> None:
    """As in a short drill of many steps: the twin records states seldom, the control as it begins."""
    early = {rank: {n: d for n, d in own.items() if training.step_of(n) <= 15} for rank, own in twin().digests.items()}
    job = right().run()
    for restarted, outcome in ((control(right()), "pass"), (control(wrong("optimizer")), "unknown"), (None, "unknown")):
        verdict = ask(
            dataclasses.replace(job, twin=dataclasses.replace(twin(), digests=early, control=restarted)), "bit-exact"
        )
        assert verdict.outcome == outcome, verdict.text
        assert ("then to a restart from there" in verdict.text) is (outcome == "pass")


def test_another_number_of_steps_is_named() -> None:
    job = Job().attempt(0, 0, 18).attempt(1, 15, 28, ends=True)
    verdict = compared(job, twin())
    assert (verdict.outcome, "the run made 28 steps, its reference run 30" in verdict.text) == ("unknown", True)


def test_steps_that_were_given_up_are_not_compared() -> None:
    """What an attempt computed after the step that was resumed from is no longer part of the job."""
    facts = training.kept_facts(training.lineage_of(right().run()))
    assert (facts.base, facts.steps) == (15, 30)
    fresh = training.kept_facts(training.lineage_of(Job().attempt(0, 0, 18).run()))
    assert {int(step) for step in fresh.losses["0"]} == set(range(1, 19))


def test_a_twin_that_wrote_where_the_run_may_read_makes_the_comparison_unknown() -> None:
    """As those of bundles from before references were kept from the files of others."""
    verdict = compared(right(), dataclasses.replace(twin(), paths=("/ckpt/15.pt",)))
    assert (verdict.outcome, "the reference run wrote /ckpt/15.pt" in verdict.text) == ("unknown", True)


def control(job: Job, base: int = 15) -> Control:
    """The restart control that computed what ``job`` did."""
    facts = training.kept_facts(training.lineage_of(job.run()))
    return Control(run="r-control", base=base, losses=facts.losses, digests=facts.digests, restarts=facts.restarts)


def judged(job: Job, check: str, restarted: Control) -> Verdict:
    return ask(dataclasses.replace(job.run(), twin=dataclasses.replace(twin(), control=restarted)), check)


def test_a_difference_that_the_restart_control_shows_belongs_to_the_job() -> None:
    """For example DDP sums its first step after a start in another order."""
    job = rounded(wrong("optimizer"))
    verdict = judged(job, "bit-exact", control(job))
    assert (verdict.outcome, "then to a restart from there" in verdict.text) == ("pass", True), verdict.text
    assert verdict.evidence["differs_from_step"] > 15


def test_a_difference_that_a_restart_does_not_show_is_a_failure() -> None:
    verdict = judged(wrong("optimizer"), "bit-exact", control(right()))
    assert (verdict.outcome, "a restart from the same step does not" in verdict.text) == ("fail", True), verdict.text


def test_a_control_whose_random_states_were_put_back_is_said_to_be_one() -> None:
    put_back = dataclasses.replace(control(right()), parts={"RNG": ("pass", "")})
    text = judged(wrong("optimizer"), "bit-exact", put_back).text
    assert "a restart from the same step that had its random states put back does not" in text


def test_a_control_that_differs_in_other_bits_explains_nothing() -> None:
    verdict = judged(wrong("optimizer"), "bit-exact", control(wrong("weights")))
    assert (verdict.outcome, "in other bits" in verdict.text) == ("unknown", True), verdict.text


def test_a_control_that_resumed_elsewhere_explains_nothing() -> None:
    job = wrong("optimizer")
    verdict = judged(job, "bit-exact", control(job, base=10))
    assert (verdict.outcome, "resumed from step 10, not from 15" in verdict.text) == ("unknown", True), verdict.text


def test_steps_that_differ_as_after_a_restart_are_no_doubt() -> None:
    job = rounded(wrong("hidden"))
    without = ask(job.run(), "replay-equal")
    assert (without.outcome, "sums in another order explain" in without.text) == ("pass", True), without.text
    assert judged(job, "replay-equal", control(job)).outcome == "pass"
    assert judged(job, "replay-equal", control(right())).outcome == "unknown"


def twice(*forgets: str) -> Job:
    """Killed in steps 9 and 24 of the job, resumed from 5 and 20."""
    return rounded(
        Job().attempt(0, 0, 8).attempt(1, 5, 23, forgets=forgets).attempt(2, 20, 30, forgets=forgets, ends=True), 5, 20
    )


def test_a_control_with_the_same_restarts_shows_what_each_of_them_changes() -> None:
    job = twice("hidden")
    shown = control(job, base=20)
    assert shown.restarts == (5, 20)
    verdict, replay = judged(job, "bit-exact", shown), judged(job, "replay-equal", shown)
    assert (verdict.outcome, "to step 5, then to a restart from there" in verdict.text) == ("pass", True), verdict.text
    assert replay.outcome == "pass", replay.text
    last = dataclasses.replace(shown, restarts=())
    assert "shows what the last restart changes, from step 20 on" in judged(job, "bit-exact", last).text
    assert judged(job, "replay-equal", last).outcome == "unknown"


def test_a_loss_of_the_first_of_two_restarts_is_no_sum_in_another_order() -> None:
    job, right_job = twice("optimizer"), twice()
    assert judged(job, "bit-exact", control(right_job, base=20)).outcome != "pass"
    assert judged(job, "replay-equal", control(right_job, base=20)).outcome == "fail"


def restored(job: Job, **change: Any) -> Control:
    """The restart control that had its random states put back."""
    parts = training.saved_state.restored_parts(training.lineage_of(job.run()))
    return dataclasses.replace(control(job), **{"parts": parts, **change})


@pytest.mark.parametrize(("job", "kept"), [(right(), True), (right(dropout=False), True), (wrong("rng"), False)])
def test_random_states_are_put_back_only_for_a_run_that_may_have_lost_them(job: Job, kept: bool) -> None:
    """A job that draws as it starts, such as seeds of workers, would draw something else in the restarted reference."""
    assert training.saved_state.kept_random_states(training.lineage_of(job.run())) is kept


def test_where_random_states_are_lost_a_control_with_them_shows_that_nothing_else_is() -> None:
    verdict = judged(wrong("rng"), "resume-complete", restored(right()))
    assert verdict.outcome == "fail"
    assert (
        "RNG: torch differs, and steps draw from it; with them put back, all other parts were equal through step 30"
        in verdict.text
    )


@pytest.mark.parametrize("part", ["optimizer", "scheduler", "lr", "weights", "data"])
def test_a_second_part_that_is_lost_is_named_although_random_states_are(part: str) -> None:
    name = {"lr": "learning rate", "data": "data position"}.get(part, part)
    rng = judged(wrong("rng", part), "resume-complete", restored(wrong(part))).evidence["rows"]["attempt 1"]["RNG"]
    assert f"with them put back, {name} still differs (" in rng["text"]


def test_a_loss_that_no_part_explains_is_named_although_random_states_are_lost() -> None:
    verdict = judged(wrong("rng"), "resume-complete", restored(wrong("hidden")))
    assert (
        "with them put back, other state still differs (the loss of step 16 is 2956.71, it was 8029.29" in verdict.text
    )


def test_a_part_that_lost_random_states_leave_unknown_is_decided_by_the_control() -> None:
    """As the noise that a job draws before its model: it differs with the random states, or by itself."""
    unread = Job(loader=False).attempt(0, 0, 18).attempt(1, 15, 30, forgets=["rng"], ends=True)
    assert ask(unread.run(), "resume-complete").evidence["rows"]["attempt 1"]["data position"]["result"] == "unknown"
    for result, text in (("pass", ""), ("fail", "step 16 has other inputs")):
        other = restored(right())
        other = dataclasses.replace(other, parts={**other.parts, "data position": (result, text)})
        rows = judged(unread, "resume-complete", other).evidence["rows"]["attempt 1"]
        assert rows["data position"]["result"] == result


@pytest.mark.parametrize(
    ("change", "why"), [({"base": 10}, "resumed from step 10"), ({"parts": {}}, "not recorded")], ids=["step", "old"]
)
def test_random_states_that_were_not_put_back_leave_the_rest_open(change: dict[str, Any], why: str) -> None:
    verdict = judged(wrong("rng"), "resume-complete", restored(right(), **change))
    assert "they could not be put back to compare the rest" in verdict.text and why in verdict.text


def test_a_loss_beyond_rounding_is_a_failure_where_a_restart_changes_no_more_than_rounding() -> None:
    verdict = judged(wrong("rng"), "bit-exact", control(rounded(wrong("hidden"))))
    assert (verdict.outcome, "a restart from the same step does not" in verdict.text) == ("fail", True), verdict.text


def diverging(weights: int, generator: int, since: int = 15) -> Job:
    """Resumed rightly from step 15; from these steps on it has other weights and losses, and another random state.

    ``since``: the step before the first of the steps whose random state is another, in both attempts.
    """

    def change(base: int, line: watch.Line) -> watch.Line:
        if isinstance(line, watch.State) and base + line.n >= weights:
            line = dataclasses.replace(line, weights=digest("other weights", base + line.n))
        if isinstance(line, watch.Step) and base + line.n >= weights:
            line = dataclasses.replace(line, loss=(1e3 + base + line.n).hex())
        if isinstance(line, watch.State | watch.Step) and line.rng:
            moment = base + line.n - isinstance(line, watch.Step)
            if moment >= generator and moment > since:
                line = dataclasses.replace(line, rng={"torch": digest("other state", moment)})
        return line

    job = right()
    job.files = [
        dataclasses.replace(file, lines=tuple(change(15 * file.attempt, line) for line in file.lines))
        for file in job.files
    ]
    return job


@pytest.mark.parametrize(("weights", "generator", "is_named"), [(23, 20, True), (23, 23, False), (23, 99, False)])
def test_random_states_are_named_where_they_differ_before_all_else(
    weights: int, generator: int, is_named: bool
) -> None:
    """For example those that workers of a loader draw anew in the first epoch after a restart."""
    job = diverging(weights, generator)
    verdict = judged(job, "bit-exact", control(job))
    assert (verdict.outcome, "a restart by itself has the same flaw" in verdict.text) == ("fail", True), verdict.text
    text = (
        f"random states (torch) of rank 0 differ from the reference run's from step {generator} on, before all else: "
    )
    assert (text in verdict.text) is is_named, verdict.text
    assert (verdict.evidence.get("differs_first") == "RNG") is is_named


def test_random_states_that_differ_while_nothing_is_lost_are_no_cause() -> None:
    job = diverging(23, 5, since=0)
    assert "random states" not in judged(job, "bit-exact", control(job)).text


@pytest.mark.parametrize(
    ("drawn", "equal", "is_named"),
    [(range(31), (), True), ((10, 23), (), True), ((10, 20, 24), (), False), (range(31), (22,), False)],
    ids=["each step", "before the difference", "after it", "equal again"],
)
def test_random_states_explain_only_a_step_before_which_they_are_drawn_from(
    drawn: Sequence[int], equal: tuple[int, ...], is_named: bool
) -> None:
    """A job that seeds its generator anew in each epoch has another state until the next one, which changes nothing."""
    job, other = diverging(23, 20), twin()
    generators = {rank: dict(own) for rank, own in other.generators.items()}
    facts = training.kept_facts(training.lineage_of(job.run()))
    own = {rank: dict(known) for rank, known in facts.generators.items()}
    for rank, known in generators.items():
        for n in range(31):
            state = digest("drawn", sum(step <= n for step in drawn))
            known[f"torch@{n}"] = state
            own[rank][f"torch@{n}"] = state if n < 20 or n in equal else digest("other", n)
    reference = dataclasses.replace(other, generators=generators)
    named = training.other_random_state(reference, dataclasses.replace(facts, generators=own), 23)
    assert (named == (20, "0", "torch")) is is_named and (named is None) is not is_named


def test_a_generator_that_no_step_draws_from_is_no_cause() -> None:
    job, other = diverging(23, 20), twin()
    still = {rank: {key: digest("same") for key in own} for rank, own in other.generators.items()}
    run = dataclasses.replace(job.run(), twin=dataclasses.replace(other, control=control(job), generators=still))
    assert "random states" not in ask(run, "bit-exact").text


@pytest.mark.parametrize(("forgets", "outcome"), [((), "pass"), (("rng",), "unknown")])
def test_random_states_of_a_rank_that_ended_with_its_save_are_those_of_the_reference(
    forgets: tuple[str, ...], outcome: str
) -> None:
    """For example after the notice of a preemption: no state was recorded after the step that was saved."""
    job = Job().attempt(0, 0, 15).attempt(1, 15, 30, ends=True, forgets=forgets)
    other = twin()  # each process seeds the generator of Python anew, and no step draws from it
    undrawn = {
        rank: {**own, **{f"python@{n}": digest("python") for n in range(31)}} for rank, own in other.generators.items()
    }
    verdict = ask(
        dataclasses.replace(job.run(), twin=dataclasses.replace(other, generators=undrawn)), "resume-complete"
    )
    assert row(verdict, "RNG")["result"] == outcome, verdict.text
    without = ask(dataclasses.replace(job.run(), twin=dataclasses.replace(twin(), generators={})), "resume-complete")
    assert row(without, "RNG")["result"] == "unknown", without.text


def row(verdict: Verdict, part: str) -> dict[str, str]:
    (parts,) = verdict.evidence["rows"].values()
    return dict(parts[part])


def test_an_attempt_counts_as_judged_by_later_checkpoints_only_if_steps_of_it_were_kept() -> None:
    kept, given_up = twice(), Job().attempt(0, 0, 8).attempt(1, 5, 9).attempt(2, 5, 30, ends=True)
    for job, expected in ((kept, [True, True]), (given_up, [False, True])):
        lines = training.lineage_of(job.run())
        assert [resume_complete._has_kept_steps(item, lines) for item in lines.resumptions] == expected


def planned(*faults: str) -> Trial:
    plans = tuple(
        FaultPlan(id=f"f{number}", fault=fault, node=1, at=Trigger(phase="backward", step=12 + number))
        for number, fault in enumerate(faults)
    )
    return Trial(name="t", workload="script", faults=plans)


def test_the_control_restarts_where_a_hang_made_the_job_restart() -> None:
    trial = planned("hang-rank", "slow-node", "crash-node")
    ends = twins.control_trial(trial)
    assert ends is not None
    assert [fault.id for fault in ends.faults] == ["f2"]
    hung = twins.control_trial(trial, {"f0"})
    assert hung is not None
    assert [(fault.id, fault.fault, fault.at.step) for fault in hung.faults] == [
        ("f0", "crash-rank", 12),
        ("f2", "crash-rank", 14),
    ]
    assert twins.control_trial(planned("slow-node")) is None


def test_a_fault_made_the_job_restart_if_a_recovery_followed() -> None:
    def note(payload: Payload) -> Event:
        return event(payload, at=Clock(boot="b", mono=1.0, wall=1.0), source=Source(writer="ctl", n=1))

    decided = RecoveryDecided(lost=(), failed=(1,), detector="gang.stalled", policy=None, slots=(), best_step=1)
    injected = [note(FaultInjected(id=f"f{number}", evidence=None)) for number in range(3)]
    assert twins.restarting(History((note(decided), injected[0]))) == set()
    assert twins.restarting(History((injected[0], injected[1], note(decided), injected[2]))) == {"f1"}


@pytest.mark.parametrize(
    ("change", "result"),
    [({}, "pass"), ({"weights@18": "0" * 16}, "unknown"), ("none", "unknown"), ("still", "unknown")],
    ids=str,
)
def test_without_batches_and_redone_steps_the_weights_after_each_step_show_the_data_position(
    change: dict[str, str] | str, result: str
) -> None:
    """Weights that do not move, as at a learning rate of 0, show nothing: they are left out."""
    job, other = Job(loader=False).attempt(0, 0, 15).attempt(1, 15, 30, ends=True), twin(loader=False)
    digests = {rank: {n: d for n, d in own.items() if "batch@" not in n} for rank, own in other.digests.items()}
    if isinstance(change, dict):
        digests = {rank: {**own, **change} for rank, own in digests.items()}
    elif change == "none":
        digests = {rank: {n: d for n, d in own.items() if "weights@" not in n} for rank, own in digests.items()}
    else:
        still = digest("weights", 15)
        job.files = [
            dataclasses.replace(
                file,
                lines=tuple(
                    dataclasses.replace(line, weights=still) if isinstance(line, watch.State) else line
                    for line in file.lines
                ),
            )
            if file.attempt
            else file
            for file in job.files
        ]
        digests = {rank: {n: still if "weights@" in n else d for n, d in own.items()} for rank, own in digests.items()}
    verdict = ask(dataclasses.replace(job.run(), twin=dataclasses.replace(other, digests=digests)), "resume-complete")
    evidence: Any = verdict.evidence
    row = evidence["rows"]["attempt 1"]["data position"]
    assert row["result"] == result
    assert (row["text"] == "15 steps came out as in the reference run") == (result == "pass")


def gradients(norms: tuple[float, ...] | None) -> Callable[[watch.WatchFile, watch.Line], watch.Line]:
    """``norms``: of the first step after the failure, before it (3, 1)."""

    def change(file: watch.WatchFile, line: watch.Line) -> watch.Line:
        if not isinstance(line, watch.State):
            return line
        return dataclasses.replace(line, gradients=norms if file.attempt and not line.n else (3.0, 1.0))

    return change


def test_other_gradients_of_a_job_that_does_not_repeat_its_steps_are_no_failure() -> None:
    other = twin()
    digests = {rank: {**own, "weights@3": "0" * 16} for rank, own in other.digests.items()}
    run = dataclasses.replace(changed(right(), gradients((0.6, 0.2))).run(), twin=other)
    assert ask(run, "resume-complete").outcome == "fail"
    run = dataclasses.replace(run, twin=dataclasses.replace(other, digests=digests))
    assert ask(run, "resume-complete").outcome != "fail"


@pytest.mark.parametrize(
    ("job", "norms", "is_known", "is_found"),
    [
        (right, (0.6, 0.2), True, True),
        (right, (3.01, 1.0), True, False),
        (right, (3.0,), True, False),
        (right, None, True, False),
        (right, (0.6, 0.2), False, False),
        (lambda: wrong("rng"), (0.6, 0.2), True, False),
        (lambda: wrong("weights"), (0.6, 0.2), True, False),
    ],
)
def test_other_gradients_show_a_lost_momentum_where_state_and_weights_are_equal(
    job: Callable[[], Job], norms: tuple[float, ...] | None, is_known: bool, is_found: bool
) -> None:
    """``norms``: of the first step after the failure, before it (3, 1). ``is_known``: the weights after that step are."""

    changed_job = changed(job(), gradients(norms))
    row = resumed(changed_job if is_known else changed(changed_job, dropped_weights)).get("other state")
    assert bool(row) == is_found
    assert row is None or row["text"].startswith(
        "the gradients that step 16 applies have other norms than before; weights"
    )
