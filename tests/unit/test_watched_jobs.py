"""Verdicts on a user's own job: right resumptions pass, wrong ones fail in the row that is wrong, the unknown is unknown."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.core.verdict import judge
from orchestrator.model import watch
from orchestrator.model.event import Clock, Event, History, Source, event
from orchestrator.model.events import RecoveryReplaced
from orchestrator.model.run import Twin
from orchestrator.model.trial import FaultPlan, Trial, Trigger
from orchestrator.model.verdict import Verdict
from orchestrator.views import training
from orchestrator.views.training.attempts import _reason

from . import watched_jobs
from .catalogue import CATALOGUE
from .verdicts import ask
from .watched_jobs import Job, right, wrong

CHECKS = ("resumed-from", "resumed-newest", "resume-complete", "no-step-lost", "replay-equal", "replicas-identical")
ROWS = {"lr": "learning rate", "rng": "RNG", "data": "data position"}


def verdicts(job: Job) -> dict[str, Verdict]:
    return {name: ask(job.run(), name) for name in CHECKS}


def outcomes(job: Job) -> dict[str, str]:
    return {name: verdict.outcome for name, verdict in verdicts(job).items()}


def rows(job: Job, attempt: str = "attempt 1") -> dict[str, str]:
    evidence: Any = ask(job.run(), "resume-complete").evidence
    return {part: row["result"] for part, row in evidence["rows"][attempt].items()}


def spoilt(job: Job, kind: type[watch.Line], **fields: Any) -> Job:
    """The job with these fields in every line of ``kind``."""
    job.files = [
        dataclasses.replace(
            file, lines=tuple(dataclasses.replace(x, **fields) if isinstance(x, kind) else x for x in file.lines)
        )
        for file in job.files
    ]
    return job


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"k": 4},
        {"sharded": True},
        {"dropout": False},
        {"momentum": False},
        {"loader": False},
        {"world": 1},
        {"loss": False},
    ],
    ids=str,
)
def test_a_right_resumption_passes(about: dict[str, Any]) -> None:
    given = verdicts(right(**about))
    assert {name: v.text for name, v in given.items() if v.outcome != "pass"} == {}
    assert given["resumed-from"].evidence["steps"] == {"attempt 1": 15}


def test_two_failures_in_a_row_pass() -> None:
    job = Job().attempt(0, 0, 18).attempt(1, 15, 23).attempt(2, 20, 30, ends=True)
    assert set(outcomes(job).values()) == {"pass"}
    assert ask(job.run(), "no-step-lost").evidence["redone"] == 6


def test_a_replaced_agent_of_torchrun_counts_its_restarts_from_0_and_belongs_to_the_attempt_of_the_others() -> None:
    job = Job().attempt(0, 0, 18).attempt(0, 15, 30, restart=1, ends=True)
    last = job.files[-1]
    begin = dataclasses.replace(last.begin, restart=0, pid=99) if last.begin else None
    job.files[-1] = dataclasses.replace(last, pid=99, lines=(begin, *last.lines[1:]))  # type: ignore[arg-type]
    verdict = ask(job.run(), "resumed-from")
    assert (verdict.outcome, verdict.evidence["steps"]) == ("pass", {"attempt 0, restart 1": 15})


def test_restarts_of_torchrun_are_attempts_of_their_own() -> None:
    job = Job().attempt(0, 0, 18).attempt(0, 15, 30, restart=1, ends=True)
    assert ask(job.run(), "resumed-from").evidence["steps"] == {"attempt 0, restart 1": 15}


def test_one_checkpoint_early_is_not_the_newest() -> None:
    job = Job().attempt(0, 0, 18).attempt(1, 10, 30, ends=True)
    assert outcomes(job)["resumed-newest"] == "fail" and outcomes(job)["resumed-from"] == "pass"
    assert "although step 15 was committed" in ask(job.run(), "resumed-newest").text


def test_an_earlier_checkpoint_is_right_where_the_newest_cannot_be_read() -> None:
    job = Job().attempt(0, 0, 18).attempt(1, 10, 30, broken=(15,), ends=True)
    assert set(outcomes(job).values()) == {"pass"}


def test_from_scratch_fails_only_if_there_was_a_checkpoint() -> None:
    late = outcomes(Job().attempt(0, 0, 18).attempt(1, 0, 30, ends=True))
    assert (late["resumed-from"], late["resumed-newest"]) == ("fail", "fail")
    early = outcomes(Job().attempt(0, 0, 4).attempt(1, 0, 30, ends=True))
    assert (early["resumed-from"], early["resumed-newest"], early["replay-equal"]) == ("unknown", "unknown", "pass")


def test_a_checkpoint_that_is_loaded_but_not_applied_fails() -> None:
    job = Job().attempt(0, 0, 18).attempt(1, 0, 30, loaded=15, ends=True)
    assert "loaded the checkpoint of step 15, but trains from other weights" in ask(job.run(), "resumed-from").text


def test_weights_of_no_recorded_step_are_unknown() -> None:
    job = wrong("weights", loaded=0)
    job.files = [
        dataclasses.replace(file, lines=tuple(_other_start(x) if file.attempt else x for x in file.lines))
        for file in job.files
    ]
    assert ask(job.run(), "resumed-from").outcome == "unknown"


def test_without_the_step_that_an_attempt_began_at_no_step_is_known_to_be_done_twice() -> None:
    job = right()
    job.files = [
        dataclasses.replace(
            file, lines=tuple(x for x in file.lines if not (file.attempt and isinstance(x, watch.State | watch.Load)))
        )
        for file in job.files
    ]
    assert {ask(job.run(), name).outcome for name in ("replay-equal", "no-step-lost")} == {"unknown"}


def _other_start(line: watch.Line) -> watch.Line:
    return (
        dataclasses.replace(line, weights="ff" * 8, counter=3.0)
        if isinstance(line, watch.State) and line.n == 0
        else line
    )


@pytest.mark.parametrize("part", [part for part in watched_jobs.PARTS if part not in ("weights", "buffers")])
def test_a_forgotten_part_fails_in_its_row(part: str) -> None:
    job = wrong(part)
    given = verdicts(job)
    assert given["resume-complete"].outcome == "fail", given["resume-complete"].text
    assert [name for name, result in rows(job).items() if result == "fail"] == [ROWS.get(part, part)]
    assert given["resumed-from"].outcome == "pass"
    assert given["replay-equal"].outcome == ("fail" if part != "scaler" else given["replay-equal"].outcome)


def test_buffers_fail_with_the_same_batch_and_are_unknown_with_another() -> None:
    assert rows(wrong("buffers"))["buffers"] == "fail"
    assert rows(wrong("buffers", "data"))["buffers"] == "unknown"


def test_a_stage_without_batches_and_losses_has_its_position_by_the_weights_of_the_steps_that_are_known() -> None:
    verdict: Any = ask(right(loader=False, loss=False).run(), "resume-complete").evidence["rows"]["attempt 1"]
    assert verdict["data position"] == {"result": "pass", "text": "2 steps came out as before"}


def test_buffers_fail_with_the_same_inputs_of_a_job_without_a_loader() -> None:
    def change(base: int, line: watch.Line) -> watch.Line:
        fields: Any = {"inputs": (f"{base + line.n:016x}",)} if isinstance(line, watch.Step) else {}
        return dataclasses.replace(line, **fields)

    job = Job(loader=False).attempt(0, 0, 18).attempt(1, 15, 30, forgets=("buffers",), ends=True)
    assert rows(job)["buffers"] == "unknown"
    for n, file in enumerate(job.files):
        job.files[n] = dataclasses.replace(file, lines=tuple(change(15 * bool(file.attempt), x) for x in file.lines))
    assert rows(job)["buffers"] == "fail"


@pytest.mark.parametrize("part", ["weights", "optimizer"])
def test_a_rank_that_restored_nothing_is_named(part: str) -> None:
    job = wrong(part, ranks=[1])
    failed = [v.text for v in verdicts(job).values() if v.outcome == "fail"]
    assert failed and any("rank 1" in text for text in failed)
    assert ask(job.run(), "resume-complete").outcome == "fail"


def test_replicas_that_differ_fail() -> None:
    assert outcomes(wrong("weights", ranks=[1]))["replicas-identical"] == "fail"


def test_a_rank_without_a_record_is_unknown_by_name() -> None:
    job = Job().attempt(0, 0, 18, bare=[1]).attempt(1, 15, 30, ends=True, bare=[1])
    for name, verdict in verdicts(job).items():
        assert verdict.outcome == "unknown", name
        assert "rank 1 has no record" in verdict.text, name


def test_without_records_nothing_is_stated() -> None:
    assert set(outcomes(Job()).values()) == {"unknown"}


def test_state_that_was_not_recorded_is_unknown() -> None:
    job = spoilt(right(), watch.State, weights=None, why="a quantised tensor")
    assert outcomes(job)["replicas-identical"] == "unknown"
    job = spoilt(right(), watch.State, optimizer=None)
    assert rows(job)["optimizer"] == "unknown" and outcomes(job)["resume-complete"] == "unknown"


def test_generators_that_steps_do_not_draw_from_need_not_be_restored() -> None:
    job = right(dropout=False)
    first = [file for file in job.files if file.attempt == 0]
    job.files = first + [
        f for f in spoilt(right(dropout=False), watch.State, rng={"torch": "ab" * 8}).files if f.attempt
    ]
    assert rows(job)["RNG"] == "not applicable"


def test_a_killed_save_that_overwrote_the_file_leaves_nothing_to_resume() -> None:
    job = Job().attempt(0, 0, 8)
    file = job.files[0]
    started = watch.Save(t=job.now, id=99, n=8, api="torch.save", path="/ckpt/5.pt")
    job.files[0] = dataclasses.replace(file, lines=(*file.lines, started))
    job.attempt(1, 0, 30, ends=True)
    assert outcomes(job)["resumed-newest"] == "unknown"


def test_a_step_that_a_rank_left_out_fails() -> None:
    job = right()
    job.files = [
        dataclasses.replace(
            f, lines=tuple(x for x in f.lines if not (isinstance(x, watch.Step) and x.n == 7 and f.rank))
        )
        for f in job.files
    ]
    assert outcomes(job)["no-step-lost"] == "fail"


def test_a_killed_last_attempt_has_no_end() -> None:
    assert outcomes(Job().attempt(0, 0, 18).attempt(1, 15, 30))["no-step-lost"] == "unknown"


def noisy(factor: float, **fields: object) -> Job:
    """The losses of the second attempt differ by this factor."""
    job = right()

    def change(line: watch.Line) -> watch.Line:
        if not isinstance(line, watch.Step):
            return line
        loss = float.fromhex(line.loss or "0x0p0") * factor
        return dataclasses.replace(line, loss=loss.hex(), **fields)  # type: ignore[arg-type]

    job.files = [dataclasses.replace(f, lines=tuple(change(x) if f.attempt else x for x in f.lines)) for f in job.files]
    return job


def test_a_difference_without_a_cause_is_not_a_failure_of_the_resumption() -> None:
    assert outcomes(noisy(1.00001))["replay-equal"] == "pass"
    assert "sums in another order explain" in ask(noisy(1.00001).run(), "replay-equal").text
    assert outcomes(noisy(1.00001))["resume-complete"] == "pass"


def test_a_difference_on_unknown_data_is_unknown() -> None:
    assert outcomes(noisy(1.00001, batches=(None,)))["replay-equal"] == "unknown"


def test_a_difference_that_no_sum_in_another_order_explains_fails_and_names_what_is_equal() -> None:
    assert outcomes(noisy(1.2))["replay-equal"] == outcomes(noisy(1.2))["resume-complete"] == "fail"
    assert [name for name, result in rows(noisy(1.2)).items() if result == "fail"] == ["other state"]


def test_a_script_is_judged_by_its_records_only_where_a_fault_is_planned() -> None:
    fault = FaultPlan(id="f0", fault="crash-node", node=1, at=Trigger(step=3))
    quiet, drill = Trial(name="job", workload="script"), Trial(name="job", workload="script", faults=(fault,))
    names = [{spec.name for spec in judge.specs(trial, CATALOGUE)} for trial in (quiet, drill)]
    assert not names[0] & set(CHECKS) and set(CHECKS) <= names[1]


def test_weights_that_were_loaded_and_not_applied_fail_in_their_row() -> None:
    job = wrong("weights")
    assert [name for name, result in rows(job).items() if result == "fail"] == ["weights"]


def test_the_cost_of_checkpoints_is_that_of_the_slowest_rank() -> None:
    job = right()
    job.files = [dataclasses.replace(f, lines=tuple(_saving(x, f.rank) for x in f.lines)) for f in job.files]
    cost = training.checkpoint_cost.checkpoint_cost(training.lineage_of(job.run()))
    assert cost is not None
    assert cost.stall_s == 0.25 and cost.interval_s == pytest.approx(0.005)
    assert training.checkpoint_cost.checkpoint_cost(training.lineage_of(right().run())) is None


def _saving(line: watch.Line, rank: int) -> watch.Line:
    if isinstance(line, watch.Step) and line.n % 5 == 0 and not rank:
        return dataclasses.replace(line, checkpoint_s=0.25)
    return dataclasses.replace(line, t_committed=line.t) if isinstance(line, watch.Committed) else line


def test_the_time_of_a_step_has_the_parts_that_were_measured() -> None:
    def timed(line: watch.Line) -> watch.Line:
        if not isinstance(line, watch.Step):
            return line
        elapsed = line.end - line.start
        return dataclasses.replace(line, data_s=0.25 * elapsed, compute_s=0.5 * elapsed)

    ddp = watch.Ddp(t=0.0, n=4, comm_s=0.125, buckets=(40,))
    job = right()
    job.files = [dataclasses.replace(f, lines=(*(timed(line) for line in f.lines), ddp)) for f in job.files]
    time = training.checkpoint_cost.step_time(training.lineage_of(job.run()))
    assert time is not None
    assert time.data == pytest.approx(0.25) and time.compute == pytest.approx(0.5)
    assert (time.communication, time.checkpoint, time.ddp_s) == (None, None, 0.125)
    assert training.checkpoint_cost.step_time(training.lineage_of(Job().run())) is None


def test_the_interval_of_states_is_the_longest_that_a_rank_of_the_first_attempt_chose_last() -> None:
    chosen = {0: (1, 8), 1: (1, 32)}
    job = right()
    job.files = [
        dataclasses.replace(
            file,
            lines=(
                *file.lines,
                *(watch.Every(t=0.0, every=k if not file.attempt else 4096) for k in chosen[file.rank]),
            ),
        )
        for file in job.files
    ]
    assert training.checkpoint_cost.state_interval(training.lineage_of(job.run())) == 32
    assert training.checkpoint_cost.state_interval(training.lineage_of(right().run())) is None


def test_the_best_interval_and_the_effective_time_are_those_of_the_formulas() -> None:
    """w = 30 s, N = 1000 nodes that fail 6.5 times in 1000 days each: M = 13,292 s."""
    cost = training.checkpoint_cost.CheckpointCost(saves=5, stall_s=30.0, interval_s=1800.0, share=0.02)
    result = training.checkpoint_cost.forecast(cost, recovery_s=120.0, nodes=1000)
    assert result.young_s == pytest.approx(893.0, abs=1.0)
    assert result.daly_s == pytest.approx(873.1, abs=1.0)
    assert result.ettr == pytest.approx((1 - (120 + 900) / 13292.3) / (1 + 30 / 1800), abs=1e-4)


def test_replica_groups_are_not_compared_as_if_they_were_one_world() -> None:
    job = right()
    twin = [dataclasses.replace(file, node=f"m{file.rank}", pid=500 + file.pid) for file in job.files]
    job.files = [*job.files, *twin]
    verdicts = [ask(job.run(), name) for name in CHECKS]
    assert {verdict.outcome for verdict in verdicts} == {"unknown"}
    assert all("two processes train as rank 0 at the same time (n0 and m0)" in verdict.text for verdict in verdicts)


def test_a_damaged_checkpoint_counts_neither_as_the_newest_nor_as_loaded() -> None:
    job = Job().attempt(0, 0, 18).attempt(1, 10, 30, ends=True)
    torn = training.Damage(path="/ckpt/15.pt", began=job.now)
    known = training.attempts(job.run())
    assert [item.newest for item in training.lineage(known).resumptions] == [15]
    assert [item.newest for item in training.lineage(known, [torn]).resumptions] == [10]
    early = training.Damage(path="/ckpt/15.pt", began=0.0)
    assert [item.newest for item in training.lineage(known, [early]).resumptions] == [15]


def test_a_file_that_is_loaded_with_another_content_than_was_committed_fails() -> None:
    job = wrong("weights", loaded=15)
    job.files = [
        dataclasses.replace(file, lines=tuple(_flipped(x) for x in file.lines)) if file.attempt else file
        for file in job.files
    ]
    verdict = ask(job.run(), "resumed-from")
    assert verdict.outcome == "fail" and "which is not the file that was committed" in verdict.text


def _flipped(line: watch.Line) -> watch.Line:
    line = _other_start(line)
    return dataclasses.replace(line, sha256="0" * 64, weights=None) if isinstance(line, watch.Load) else line


def test_a_last_attempt_without_a_record_is_unknown_in_every_check() -> None:
    job = right()
    lines = training.lineage_of(job.run())
    bare = dataclasses.replace(lines.attempts[-1], index=2, number=2, ranks={}, missing={0: "rank 0 has no record"})
    known = training.lineage([*lines.attempts, bare])
    assert known.resumptions[-1].step is None and training.completeness.worst(()) == {}


def test_with_another_number_of_ranks_batches_and_random_states_are_not_compared() -> None:
    grown = Job(world=3).attempt(1, 15, 30, ends=True, forgets=["data", "rng"])
    job = Job().attempt(0, 0, 18)
    job.files = [*job.files, *grown.files]
    results = rows(job)
    assert (results["weights"], results["optimizer"]) == ("pass", "pass")
    assert (results["RNG"], results["data position"]) == ("not applicable", "not applicable")
    verdicts = {name: ask(job.run(), name) for name in ("resume-complete", "replay-equal")}
    assert verdicts["resume-complete"].outcome == "pass"
    assert "not comparable with world size 3 instead of 2: RNG, data position" in verdicts["resume-complete"].text
    assert verdicts["replay-equal"].outcome == "skipped"
    assert "3 steps done again by another number of ranks" in verdicts["replay-equal"].text


def test_weights_that_are_loaded_after_the_first_step_make_its_beginning_unknown() -> None:
    job = wrong("weights", loaded=0)
    late = watch.Load(t=job.now, id=9, path="/ckpt/15.pt", weights="ab" * 8)
    job.files = [
        dataclasses.replace(file, lines=(*map(_other_start, file.lines), late)) if file.attempt else file
        for file in job.files
    ]
    assert "after its first step began" in ask(job.run(), "resumed-from").text
    assert {ask(job.run(), name).outcome for name in ("resumed-from", "resumed-newest")} == {"unknown"}


def test_a_loss_after_which_no_process_began_leaves_nothing_to_judge() -> None:
    job = right()
    job.files = [file for file in job.files if file.attempt == 0]
    lost = event(
        RecoveryReplaced(lost=("n1",), policy={"n1": "spare"}, epoch=0), at=Clock(boot="b", mono=1e3, wall=1e3),
        source=Source(writer="ctl", n=1), epoch=0,
    )  # fmt: skip
    run = dataclasses.replace(job.run(), history=History((lost,)))
    verdict = ask(run, "resumed-from")
    assert verdict.outcome == "unknown"
    assert "first start, restart 1: no rank has a record of its training" in str(verdict.evidence)


def test_a_rank_that_was_watched_before_is_not_said_to_have_no_watcher() -> None:
    assert "it was not started again" in _reason(1, None, None, was_watched=True)
    assert "the watcher was not loaded" in _reason(1, None, None, was_watched=False)


def test_a_rank_of_a_later_attempt_that_made_no_step_has_a_record() -> None:
    blind = watch.NotObserved(t=1.0, what="steps", why="an update loop of its own")
    job = right()
    job.files = [
        dataclasses.replace(file, lines=(dataclasses.replace(file.begin, restart=1), blind))
        if file.begin and file.attempt
        else file
        for file in job.files
    ]
    start = Event(
        type="invoke", f="gang.start", key="e1/start/n0", node="n0", epoch=1, at=Clock(boot="b", mono=1e3, wall=1e3),
        source=Source(writer="ctl", n=1), seq=1, value={"epoch": 1, "world_size": 2, "ranks": [0, 1], "group_rank": 0},
    )  # fmt: skip
    verdict = ask(dataclasses.replace(job.run(), history=History((start,))), "resumed-from")
    assert verdict.outcome == "unknown" and "recorded no step (steps: an update loop of its own)" in str(
        verdict.evidence
    )


def killed_after_a_save(**contents: Any) -> Job:
    """Killed before the step after the save, so that no state of that moment was recorded but the save itself."""
    job = Job().attempt(0, 0, 15)
    return spoilt(job, watch.Saved, contents=contents).attempt(1, 15, 30, ends=True)


def test_without_the_state_of_the_moment_the_contents_of_the_checkpoint_count() -> None:
    start = next(x for f in right().files if f.attempt for x in f.lines if isinstance(x, watch.State))
    assert start.lr is not None and start.optimizer is not None
    contents = {"optimizer.exp_avg": start.optimizer["exp_avg"], "lr": list(start.lr), "scheduler": [15]}
    results = rows(killed_after_a_save(**contents))
    assert {results[part] for part in ("weights", "optimizer", "learning rate", "scheduler")} == {"pass"}
    assert {results[part] for part in ("RNG", "data position", "scaler")} == {"unknown"}
    assert outcomes(killed_after_a_save())["resumed-from"] == "pass"


def test_a_saved_optimizer_that_was_not_restored_fails_without_the_state_of_the_moment() -> None:
    job = Job().attempt(0, 0, 15)
    job = spoilt(job, watch.Saved, contents={"optimizer.exp_avg": "ab" * 8})
    assert rows(job.attempt(1, 15, 30, ends=True, forgets=["optimizer"]))["optimizer"] == "fail"


def test_a_twin_shows_what_no_state_of_the_run_does() -> None:
    """The state after the step was not recorded before the loss; the twin's is equal to what the new attempt began with."""
    job = right()
    job.files = [
        dataclasses.replace(
            file,
            lines=tuple(
                dataclasses.replace(x, full=False, optimizer=None)
                if isinstance(x, watch.State) and not file.attempt
                else x
                for x in file.lines
            ),
        )
        for file in job.files
    ]
    alone = ask(job.run(), "resume-complete").evidence["rows"]["attempt 1"]
    assert (alone["weights"]["result"], alone["optimizer"]["result"]) == ("pass", "unknown")
    facts = training.kept_facts(training.lineage_of(right().run()))
    twin = Twin(
        key="k", run="t", losses=facts.losses, digests=facts.digests, steps=30, faults=0, restarts=0, final_loss=0.0
    )
    beside = ask(dataclasses.replace(job.run(), twin=twin), "resume-complete").evidence["rows"]["attempt 1"]
    assert beside["optimizer"] == {"result": "pass", "text": "equal to that of the reference run after step 15"}
    other = {rank: dict.fromkeys(digests, "ff" * 8) for rank, digests in facts.digests.items()}
    apart = dataclasses.replace(job.run(), twin=dataclasses.replace(twin, digests=other))
    assert ask(apart, "resume-complete").evidence["rows"]["attempt 1"]["optimizer"]["result"] == "unknown"


def test_the_lineage_is_that_of_the_run_that_asks() -> None:
    run = right().run()
    lines = training.watched(run)
    assert lines is not None and lines.attempts
    assert training.watched(dataclasses.replace(run, verdicts=())) is lines
    assert training.watched(dataclasses.replace(run, history=History(run.history.events))) is not lines
    assert training.watched(right().run()) is not lines
    assert training.watched(run) == lines
