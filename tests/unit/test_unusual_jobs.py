"""Verdicts on jobs that die, save and load at unusual moments: neither a pass nor a failure that their records do not show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model import watch
from orchestrator.model.run import Control
from orchestrator.model.trial import FaultPlan, Trigger
from orchestrator.views import training
from orchestrator.views.training.attempts import add

from .test_script_twins import control, judged, twin
from .test_watch_files import BEGIN, STEP, write
from .test_watched_jobs import CHECKS, outcomes, rows, verdicts
from .verdicts import ask
from .watched_jobs import Job, digest, right, rounded, wrong

Change = Callable[[watch.Line], watch.Line | None]


def changed(job: Job, change: Change, *, attempt: int | None = None, rank: int | None = None) -> Job:
    """The job with each line of these processes replaced by what ``change`` returns; without it where that is None."""
    job.files = [
        dataclasses.replace(file, lines=tuple(new for line in file.lines if (new := change(line)) is not None))
        if attempt in (None, file.attempt) and rank in (None, file.rank)
        else file
        for file in job.files
    ]
    return job


def setting(kind: type[watch.Line], n: int | None = None, **fields: Any) -> Change:
    """Gives these values to the lines of a kind, after ``n`` steps."""
    return lambda line: (
        dataclasses.replace(line, **fields)
        if isinstance(line, kind) and n in (None, getattr(line, "n", None))
        else line
    )


def dropping(kind: type[watch.Line], **values: Any) -> Change:
    """Leaves out the lines of a kind with these values."""
    return lambda line: (
        None if isinstance(line, kind) and all(getattr(line, k) == v for k, v in values.items()) else line
    )


def not_passed(job: Job) -> dict[str, str]:
    return {name: verdict.text for name, verdict in verdicts(job).items() if verdict.outcome != "pass"}


# --- records ----------------------------------------------------------------------------------------------------------------


def test_a_process_that_has_the_pid_of_an_earlier_one_is_a_process_of_its_own(tmp_path: Path) -> None:
    """A container that restarts appends to the same file, and so does a script that executes itself again."""
    first, second = write(tmp_path, BEGIN, STEP, {**BEGIN, "t": 9.0}, {**STEP, "t": 9.5}).watch()
    assert [len(record.of(watch.Step)) for record in (first, second)] == [1, 1]
    assert second.begin is not None and second.begin.t == 9.0


def test_a_batch_without_a_digest_is_read_and_shows_no_position(tmp_path: Path) -> None:
    (record,) = write(tmp_path, BEGIN, {**STEP, "batches": [None]}).watch()
    assert record.of(watch.Step)[0].batches == (None,)
    job = changed(wrong("data"), setting(watch.Step, batches=(None,)))
    job = changed(changed(job, setting(watch.State, batch=None)), setting(watch.Step, loss=None))
    assert rows(changed(job, dropping(watch.State, full=False)))["data position"] == "unknown"


def test_a_loss_that_is_no_number_shows_nothing() -> None:
    job = changed(wrong("data"), setting(watch.Step, batches=None, loss=math.nan.hex()))
    job = changed(changed(job, setting(watch.State, batch=None)), dropping(watch.State, full=False))
    assert rows(job)["data position"] == "unknown"


# --- checkpoints ------------------------------------------------------------------------------------------------------------


def test_the_first_save_of_shards_that_a_rank_did_not_complete_is_no_checkpoint() -> None:
    job = Job(sharded=True).attempt(0, 0, 8)
    job = changed(changed(job, dropping(watch.Saved), rank=1), dropping(watch.Committed), rank=1)
    job = changed(job, setting(watch.Save, path="/ckpt/5-rank1.pt"), rank=1)
    given = outcomes(job.attempt(1, 0, 30, ends=True))
    assert (given["resumed-from"], given["resumed-newest"]) == ("unknown", "unknown")


def test_a_checkpoint_that_an_earlier_attempt_could_not_read_is_not_the_newest() -> None:
    job = Job().attempt(0, 0, 18).attempt(1, 10, 14, broken=(15,))
    save = [
        watch.Save(t=job.now, id=99, n=3, path="/ckpt/13.pt"),
        watch.Saved(t=job.now, id=99, weights=digest("weights", 13), matched=1.0),
        watch.Committed(t=job.now, id=99, path="/ckpt/13.pt", sha256="13" * 32),
    ]
    job.files[-2] = dataclasses.replace(job.files[-2], lines=(*job.files[-2].lines, *save))
    assert not_passed(job.attempt(2, 13, 30, ends=True)).get("resumed-newest") is None


def test_a_checkpoint_that_was_read_when_tried_again_counts() -> None:
    job = Job().attempt(0, 0, 18).attempt(1, 10, 30, ends=True, broken=(15,))
    retry = watch.Load(t=0.0, id=77, api="torch.load", path="/ckpt/15.pt")
    job.files = [dataclasses.replace(file, lines=(*file.lines, retry)) if file.attempt else file for file in job.files]
    assert outcomes(job)["resumed-newest"] == "fail"


def test_a_file_whose_hash_was_not_known_in_time_is_not_called_another_one() -> None:
    job = Job().attempt(0, 0, 18)
    job = changed(job, lambda x: _unhashed(x) if isinstance(x, watch.Committed) else x)
    job = changed(job.attempt(1, 15, 30, ends=True), setting(watch.Load, weights=None), attempt=1)
    job = changed(job, setting(watch.State, 0, weights="ff" * 8, counter=3.0), attempt=1)
    assert ask(job.run(), "resumed-from").outcome == "unknown"


def _unhashed(line: watch.Committed) -> watch.Line:
    return dataclasses.replace(line, sha256=None) if line.id == 15 else line


def test_the_best_weights_so_far_are_not_what_a_job_resumes_from() -> None:
    job = changed(Job().attempt(0, 0, 18), setting(watch.Saved, contents={"lr": ["0x1p-3"]}))
    best = [
        watch.Save(t=job.now, id=98, n=17, path="/ckpt/best.pt"),
        watch.Saved(t=job.now, id=98, weights=digest("weights", 17), matched=1.0),
        watch.Committed(t=job.now, id=98, path="/ckpt/best.pt", sha256="17" * 32),
    ]
    job.files[0] = dataclasses.replace(job.files[0], lines=(*job.files[0].lines, *best))
    assert not_passed(job.attempt(1, 15, 30, ends=True)) == {}


def test_a_file_that_two_ranks_wrote_at_once_holds_the_weights_of_neither() -> None:
    """Both save models of their own to one path; the file that is loaded, and trained with, is a mixture."""
    own = setting(watch.Saved, weights=digest("own"))
    job = changed(
        changed(Job(sharded=True).attempt(0, 0, 18), setting(watch.Owner, sharded=False, shards=())), own, rank=1
    )
    mixed = digest("mixed")
    job = changed(job.attempt(1, 15, 30, ends=True), setting(watch.Load, weights=mixed), attempt=1)
    job = changed(job, setting(watch.State, 0, weights=mixed), attempt=1)
    job = changed(job, setting(watch.Owner, sharded=False, shards=()), attempt=1)
    verdict = ask(job.run(), "resumed-from")
    text = "restart 1: rank 0 (n0) loaded /ckpt/15.pt, which holds the weights of no step: ranks 0, 1 saved different weights"
    assert verdict.outcome == "fail" and text in verdict.text, verdict.text


def test_two_models_in_files_of_their_own_are_no_checkpoint_but_something_was_saved() -> None:
    """As a GAN that saves its generator and its discriminator."""
    job = changed(Job().attempt(0, 0, 18), setting(watch.Saved, weights=None, matched=0.54))
    verdict = ask(job.attempt(1, 0, 30, ends=True).run(), "resumed-from")
    text = "restart 1: began at step 0, no file that was saved holds all weights (5.pt: 54% of the tensors)"
    assert (verdict.outcome, verdict.text) == ("unknown", text)
    verdict = ask(Job(saves=False).attempt(0, 0, 18).attempt(1, 0, 30, ends=True).run(), "resumed-from")
    assert verdict.text == "restart 1: began at step 0, nothing had been saved"
    job = Job(saves=False).attempt(0, 0, 18).attempt(1, 0, 30, ends=True, loaded=5)
    verdict = ask(changed(job, setting(watch.Load, sha256=None, weights=digest("weights", 0))).run(), "resumed-from")
    assert verdict.text == "restart 1: began at step 0, nothing had been saved in this run; it loaded /ckpt/5.pt"


def test_a_file_that_one_rank_tore_is_not_whole_because_another_rank_wrote_it_later() -> None:
    job = Job(sharded=True).attempt(0, 0, 12)
    job = changed(job, setting(watch.Save, path="/local/c.pt"))
    job = changed(job, setting(watch.Committed, path="/local/c.pt"))
    job = changed(job, dropping(watch.Committed, id=10), rank=0)
    later = setting(watch.Save, t=job.now)
    given = outcomes(changed(job, later, rank=1).attempt(1, 0, 30, ends=True))
    assert "fail" not in (given["resumed-from"], given["resumed-newest"])


# --- where ranks resumed ----------------------------------------------------------------------------------------------------


def test_an_attempt_in_which_no_rank_trained_is_unknown_in_every_check() -> None:
    job = Job().attempt(0, 0, 18).attempt(1, 15, 16)
    for kind in (watch.Step, watch.State, watch.Owner, watch.Save, watch.Saved, watch.Committed):
        job = changed(job, dropping(kind), attempt=1)
    assert set(outcomes(job).values()) == {"unknown"}
    assert "no rank has a record of its training" in str(ask(job.run(), "resumed-from").evidence)


def test_a_load_that_no_state_confirms_is_unknown() -> None:
    job = Job().attempt(0, 0, 18)
    job = changed(job, lambda x: None if isinstance(x, watch.State) and x.n in (5, 10, 15) else x)
    job = job.attempt(1, 15, 30, ends=True)
    job = changed(job, setting(watch.State, 0, weights="ff" * 8), attempt=1)
    assert ask(job.run(), "resumed-from").outcome == "unknown"


@pytest.mark.parametrize(
    ("path", "weights", "outcome"),
    [("/ckpt/15.pt", "ff" * 8, "fail"), ("/ckpt/15.pt", None, "pass"), ("/ckpt/universal", "ff" * 8, "unknown")],
    ids=["rounded", "as saved", "never saved"],
)
def test_weights_that_are_not_those_of_the_directory_that_deepspeed_loaded_fail(
    path: str, weights: str | None, outcome: str
) -> None:
    """As where its fp32 weights are made again from those of 16 bits."""

    def folder(line: watch.Line) -> watch.Line:
        if not isinstance(line, watch.Load):
            return line
        return dataclasses.replace(line, api="deepspeed", path=path, sha256=None, weights=None)

    job = changed(Job().attempt(0, 0, 18).attempt(1, 15, 30, ends=True), folder, attempt=1)
    job = changed(job, setting(watch.State, 0, weights=weights), attempt=1) if weights else job
    verdict = ask(job.run(), "resumed-from")
    assert verdict.outcome == outcome
    assert ("loaded the checkpoint of step 15, but trains from other weights" in verdict.text) == (outcome == "fail")


def test_weights_that_were_loaded_and_not_applied_fail_by_the_other_checkpoints() -> None:
    job = changed(Job().attempt(0, 0, 15), lambda x: None if isinstance(x, watch.State) and x.n == 15 else x)
    job = changed(job.attempt(1, 15, 30, ends=True), setting(watch.State, 0, weights="ff" * 8), attempt=1)
    assert "but trains from other weights" in ask(job.run(), "resumed-from").text


def test_a_rank_that_has_the_weights_of_one_that_loaded_did_not_begin_from_scratch() -> None:
    """A checkpoint in half precision, read by rank 0 and broadcast: no state equals it."""
    job = Job(momentum=False).attempt(0, 0, 18)
    job = changed(
        job, lambda x: dataclasses.replace(x, weights=digest("half", x.id)) if isinstance(x, watch.Saved) else x
    )
    job = job.attempt(1, 15, 30, ends=True)
    job = changed(job, setting(watch.Load, weights=digest("half", 15)), attempt=1)
    job = changed(changed(job, dropping(watch.Load), rank=1), setting(watch.State, 0, weights="ff" * 8), attempt=1)
    assert ask(job.run(), "resumed-from").outcome == "pass", ask(job.run(), "resumed-from").text
    assert ask(job.run(), "resumed-newest").outcome == "pass"


def test_a_rank_that_could_read_nothing_gives_no_weights_to_another() -> None:
    job = Job(momentum=False).attempt(0, 0, 18).attempt(1, 0, 30, broken=(15,), ends=True)
    job = changed(changed(job, dropping(watch.Load), rank=1), setting(watch.State, 0, weights="ff" * 8), attempt=1)
    verdict = ask(job.run(), "resumed-newest")
    assert (verdict.outcome, "rank 1 (n1) began at step 0" in verdict.text) == ("fail", True), verdict.text


@pytest.mark.parametrize("line", [None, watch.Problem(t=0.0, where="loads", error="OSError")])
def test_an_optimizer_with_state_did_not_begin_from_scratch(line: watch.Line | None) -> None:
    """From the memory of a peer, with SGD, whose momentum has no counter; or where loads were not observed."""
    job = Job().attempt(0, 0, 18).attempt(1, 13, 30, ends=True)
    job = changed(changed(job, dropping(watch.Load), attempt=1), setting(watch.State, counter=None))
    fields: dict[str, Any] = {"optimizer": {}} if line else {}
    job = changed(job, setting(watch.State, 0, weights="ff" * 8, **fields), attempt=1)
    if line:
        job.files = [dataclasses.replace(file, lines=(*file.lines, line)) for file in job.files]
    assert {ask(job.run(), name).outcome for name in ("resumed-from", "resumed-newest")} == {"unknown"}


def test_a_start_without_training_after_a_kill_is_an_attempt() -> None:
    job = Job().attempt(0, 0, 18)
    begin = watch.Begin(t=1e4, format=1, rank=0, pid=99, world=2, wall=1e4)
    restarted = dataclasses.replace(job.files[0], pid=99, lines=(begin,))
    job.files.append(restarted)
    assert ask(job.run(), "resumed-from").outcome == "unknown"
    ended = Job().attempt(0, 0, 18, ends=True)
    ended.files.append(restarted)
    assert ask(ended.run(), "resumed-from").outcome == "pass"


def test_a_checkpoint_that_was_committed_after_the_next_attempt_began_could_not_be_resumed() -> None:
    job = Job().attempt(0, 0, 18).attempt(1, 10, 30, ends=True)
    late = max(file.begin.t for file in job.files if file.begin) + 1
    job = changed(job, lambda x: _at(x, late) if isinstance(x, watch.Committed) else x, attempt=0)
    assert outcomes(job)["resumed-newest"] == "fail"  # the clocks of machines that are not known are not compared
    assert outcomes(changed(job, setting(watch.Begin, boot="b")))["resumed-newest"] == "pass"


def _at(line: watch.Committed, t: float) -> watch.Line:
    return dataclasses.replace(line, t_committed=t) if line.id == 15 else line


def test_only_the_initial_weights_had_been_saved() -> None:
    job = Job(every=100).attempt(0, 0, 18)
    save = [
        watch.Save(t=100.0, id=1, n=0, path="/ckpt/0.pt"),
        watch.Saved(t=100.0, id=1, weights=digest("weights", 0)),
        watch.Committed(t=100.0, id=1, path="/ckpt/0.pt"),
    ]
    job.files[0] = dataclasses.replace(job.files[0], lines=(*job.files[0].lines, *save))
    assert outcomes(job.attempt(1, 0, 30, ends=True))["resumed-newest"] == "unknown"


# --- parts ------------------------------------------------------------------------------------------------------------------


def test_stages_of_a_pipeline_are_not_replicas() -> None:
    """Rank 0 saves, so that only rank 0 recorded its whole state at that moment."""
    job = changed(right(), _of_stage, rank=1)
    job = changed(job, lambda x: None if isinstance(x, watch.State) and x.n == 15 else x, attempt=0, rank=1)
    assert "fail" not in rows(job).values(), rows(job)


def _of_stage(line: watch.Line) -> watch.Line | None:
    if isinstance(line, watch.State) and line.weights:
        return dataclasses.replace(line, weights=digest("stage 1", line.weights))
    return None if isinstance(line, watch.Load) else line


def test_a_share_of_the_optimizer_is_not_compared_with_that_of_another_rank() -> None:
    """ZeroRedundancyOptimizer. Rank 0 saves, so that only rank 0 recorded its whole state at that moment."""
    job = changed(right(), _of_share, rank=1)
    assert rows(job)["optimizer"] == "pass"
    job = changed(job, lambda x: None if isinstance(x, watch.State) and x.n == 15 else x, attempt=0, rank=1)
    assert rows(job)["optimizer"] == "unknown"
    lost = changed(job, setting(watch.State, 0, optimizer={}), attempt=1, rank=1)
    assert rows(lost)["optimizer"] == "fail"


def _of_share(line: watch.Line) -> watch.Line:
    if not isinstance(line, watch.State) or not line.optimizer:
        return line
    return dataclasses.replace(line, optimizer={name: digest("share", d) for name, d in line.optimizer.items()})


def test_buffers_without_a_digest_are_unknown() -> None:
    assert rows(changed(right(), setting(watch.State, buffers=None)))["buffers"] == "unknown"


def test_a_scheduler_that_was_made_anew_at_its_step_is_restored() -> None:
    """``LambdaLR(optimizer, rate, last_epoch=14)`` counts its calls from 1."""
    job = changed(right(), setting(watch.State, 15, scheduler=[[3, 4], [15, 16]]), attempt=0)
    assert rows(changed(job, setting(watch.State, 0, scheduler=[[15, 1], [3, 1]]), attempt=1))["scheduler"] == "pass"
    assert rows(changed(job, setting(watch.State, 0, scheduler=[[0, 1], [3, 1]]), attempt=1))["scheduler"] == "fail"


def test_replicas_of_shards_are_those_of_the_attempt() -> None:
    job = Job(world=4, sharded=True)
    job.attempt(0, 0, 18).attempt(1, 15, 30, ends=True)
    job = changed(job, lambda x: dataclasses.replace(x, shards=(0, 1)) if isinstance(x, watch.Owner) else x, attempt=0)
    for rank in (2, 3):
        job = changed(job, setting(watch.Owner, shards=(2, 3)), attempt=0, rank=rank)
        job = changed(job, _weights_of(rank - 2), attempt=0, rank=rank)
    assert ask(job.run(), "replicas-identical").outcome == "pass", ask(job.run(), "replicas-identical").text


def _weights_of(rank: int) -> Change:
    def change(line: watch.Line) -> watch.Line:
        if not isinstance(line, watch.State):
            return line
        return dataclasses.replace(line, weights=digest(digest("weights", line.n), rank))

    return change


def apart(*steps: int) -> Job:
    """After these steps of the first attempt rank 1 has weights of its own."""

    def change(line: watch.Line) -> watch.Line:
        is_apart = isinstance(line, watch.State) and line.n in steps
        return dataclasses.replace(line, weights=digest("own", line.n)) if is_apart else line  # type: ignore[attr-defined,call-arg]

    return changed(right(), change, attempt=0, rank=1)


@pytest.mark.parametrize(
    ("steps", "outcome", "text"),
    [
        (tuple(range(1, 18)), "skipped", "differ after step 1: they train on their own"),
        ((1, 2, 3, 5, 6, 7), "skipped", "differ after step 1: they train on their own"),
        ((5, 6, 7), "skipped", "differ after step 5 and are equal after step 8: they share their weights now and then"),
        (tuple(range(5, 18)), "fail", "first start: rank 1 and rank 0 have different weights after step 5"),
    ],
    ids=["independent", "local SGD", "averaged now and then", "corrupted"],
)
def test_ranks_that_train_on_their_own_are_not_said_to_be_replicas(
    steps: tuple[int, ...], outcome: str, text: str
) -> None:
    verdict = ask(apart(*steps).run(), "replicas-identical")
    assert verdict.outcome == outcome and text in verdict.text, verdict.text


def test_ranks_that_a_planned_fault_drives_apart_at_the_first_step_are_replicas() -> None:
    run = apart(*range(1, 18)).run()
    flip = FaultPlan(id="f0", fault="flip-bit", node=1, at=Trigger(step=1))
    run = dataclasses.replace(run, trial=dataclasses.replace(run.trial, faults=(flip,)))
    assert ask(run, "replicas-identical").outcome == "fail"


def test_a_rank_that_joins_replicas_is_one_of_them() -> None:
    job, grown = Job().attempt(0, 0, 18), Job(world=3)
    job.files += grown.attempt(1, 15, 30, forgets=["weights"], ranks=[2], ends=True).files
    verdict = ask(job.run(), "replicas-identical")
    assert (verdict.outcome, "rank 2 and rank 0" in verdict.text) == ("fail", True), verdict.text


def resharded(*, optimizer: int = 0) -> Job:
    """Two shards until step 18, from step 15 on three, of which the first holds all; ``optimizer``: added to the states of the last."""
    job = Job(sharded=True).attempt(0, 0, 18)
    own = training.lineage_of(job.run()).attempts[0].shards(15)
    totals = [
        add(values) for values in ([s.weights or "" for s in own], [(s.optimizer or {})["exp_avg"] or "" for s in own])
    ]
    resumed = Job(world=3, sharded=True).attempt(1, 15, 30, ends=True, forgets=["data", "rng"])
    for rank in range(3):
        weights, average = totals if not rank else ("0" * 16, f"{optimizer * (rank == 2):016x}")
        resumed = changed(resumed, setting(watch.State, 0, weights=weights, optimizer={"exp_avg": average}), rank=rank)
    job.files = [*job.files, *resumed.files]
    return job


@pytest.mark.parametrize(("optimizer", "result"), [(0, "pass"), (1, "fail")])
def test_shards_of_another_number_of_ranks_add_up_to_the_same_state(optimizer: int, result: str) -> None:
    parts = rows(resharded(optimizer=optimizer))
    assert (parts["weights"], parts["optimizer"]) == ("pass", result)


def in_groups(*groups: tuple[int, ...]) -> Job:
    """The resharded job, whose first rank has all elements, where these ranks hold all parameters together."""
    job = resharded()
    for group in groups:
        for rank in group:
            job = changed(job, setting(watch.Owner, shards=group), attempt=1, rank=rank)
    return job


def test_a_second_group_of_shards_is_judged_by_its_own_sum() -> None:
    assert rows(in_groups((0,), (1,), (2,)))["weights"] == "unknown"
    assert rows(in_groups((0, 1, 2)))["weights"] == "pass"


@pytest.mark.parametrize(("counter", "result"), [(15, "pass"), (0, "unknown")])
def test_a_step_counter_that_one_of_other_shards_lost_is_no_pass(counter: int, result: str) -> None:
    job = changed(resharded(), setting(watch.State, None, counter=15))
    job = changed(job, setting(watch.State, 0, counter=counter), attempt=1, rank=2)
    assert rows(job)["optimizer"] == result


def test_the_shards_of_another_number_of_ranks_are_not_compared_with_those_of_the_reference() -> None:
    run = dataclasses.replace(resharded().run(), twin=twin(sharded=True))
    verdict = ask(run, "bit-exact")
    assert (verdict.outcome, "not applicable from step 16 on" in verdict.text) == ("skipped", True), verdict.text


def test_steps_that_the_watcher_stopped_to_record_are_not_lost() -> None:
    job = changed(right(), lambda x: None if isinstance(x, watch.Step) and x.n > 6 else x, attempt=0, rank=1)
    job = changed(job, lambda x: None if isinstance(x, watch.State) and x.n > 6 else x, attempt=0, rank=1)
    job.files[1] = dataclasses.replace(
        job.files[1], lines=(*job.files[1].lines, watch.Problem(t=100.0, where="steps", error="OSError"))
    )
    assert ask(job.run(), "no-step-lost").outcome == "unknown"


# --- twin and control -------------------------------------------------------------------------------------------------------


def only_at_the_resumption(restarted: Control) -> Control:
    digests = {rank: {k: v for k, v in own.items() if k == "weights@15"} for rank, own in restarted.digests.items()}
    return dataclasses.replace(restarted, digests=digests)


def test_a_control_that_is_known_only_as_it_resumed_explains_nothing() -> None:
    job = rounded(wrong("hidden"))
    assert judged(job, "replay-equal", only_at_the_resumption(control(job))).outcome == "unknown"


def test_a_restart_that_is_known_only_as_it_resumed_does_not_change_nothing() -> None:
    """Of the control and the run one later state is known, which the twin did not record."""
    job = wrong("optimizer")
    own = twin()
    thin = {rank: {k: v for k, v in d.items() if k != "weights@20"} for rank, d in own.digests.items()}
    restarted = only_at_the_resumption(control(right()))
    more = {rank: {**d, "weights@20": "ab" * 8} for rank, d in restarted.digests.items()}
    other = dataclasses.replace(own, digests=thin, control=dataclasses.replace(restarted, digests=more))
    assert ask(dataclasses.replace(job.run(), twin=other), "bit-exact").outcome == "unknown"


def test_a_rank_without_a_state_is_not_equal_to_its_twin() -> None:
    job = changed(right(), dropping(watch.State), rank=1)
    assert ask(dataclasses.replace(job.run(), twin=twin()), "bit-exact").outcome == "unknown"
    assert training.kept_facts(training.lineage_of(job.run())).losses["1"]


def test_no_check_passes_without_any_state() -> None:
    job = changed(Job(loader=False, loss=False).attempt(0, 0, 18).attempt(1, 15, 30, ends=True), dropping(watch.State))
    given = {name: ask(job.run(), name).outcome for name in CHECKS if name not in ("resumed-from", "resumed-newest")}
    assert "fail" not in given.values() and given["resume-complete"] == "unknown", given


@pytest.mark.parametrize(("last", "is_doubt"), [(13, False), (8, True)])
def test_a_rank_that_was_behind_lost_no_save_that_the_others_did_not_make_later(last: int, is_doubt: bool) -> None:
    """Ranks of local SGD wait for each other at a save alone."""
    job = Job(every=10).attempt(0, 0, 18).attempt(1, 10, 30, ends=True)
    is_kept: Any = lambda line: getattr(line, "n", 0) <= last  # noqa: E731
    job = changed(job, lambda line: line if is_kept(line) else None, attempt=0, rank=1)
    texts = [doubt.text for doubt in training.lost_lines(training.lineage_of(job.run()))]
    assert bool(texts) == is_doubt, texts


def test_ranks_that_differ_after_a_restart_alone_are_not_said_to_train_on_their_own() -> None:
    """One of them may have lost its weights, and got them again from the others."""

    def change(line: watch.Line) -> watch.Line:
        is_apart = isinstance(line, watch.State) and line.n in (1, 2, 3)
        return dataclasses.replace(line, weights=digest("own", line.n)) if is_apart else line  # type: ignore[attr-defined,call-arg]

    verdict = ask(changed(right(), change, attempt=1, rank=1).run(), "replicas-identical")
    assert (verdict.outcome, "is not known" in verdict.text) == ("unknown", True), verdict.text
