"""What was resumed, replayed and computed: every difference is found."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.model.run import Run

from . import history
from .verdicts import ask


def test_resuming_one_checkpoint_early_fails() -> None:
    verdict = ask(history.reference(resume=20), "resumed-newest")
    assert verdict.outcome == "fail"
    assert verdict.text == "restart 1 resumed from 20 although 25 was committed"


def test_an_earlier_checkpoint_is_right_when_the_newest_was_damaged() -> None:
    run = history.reference(resume=20)
    events = list(run.history.events)
    at = next(i for i, e in enumerate(events) if e.f == "resume.chosen" and e.epoch == 1)
    skipped = dataclasses.replace(events[at], f="checkpoint.skipped", value={"name": "e0-s25", "reason": "truncated"})
    run = history.with_events(run, [*events[:at], skipped, *events[at:]])
    assert ask(run, "resumed-newest").outcome == "pass"


def test_a_checkpoint_that_nobody_committed_is_not_to_be_resumed_from() -> None:
    run = history.changed(history.reference(), "resume.chosen", 1, value={"name": "e0-s26", "step": 26})
    assert ask(run, "resumed-newest").outcome == "fail"


def test_a_checkpoint_with_another_hash_is_not_the_one_that_was_committed() -> None:
    run = history.changed(history.reference(), "resume.chosen", 1, value={"sha256": "0" * 64})
    assert ask(run, "resumed-newest").outcome == "fail"
    assert ask(run, "same-resume-step").outcome == "fail"


@pytest.mark.parametrize("value", [{"step": 20}, {"sha256": "0" * 64}])
def test_one_rank_that_restored_something_else_fails(value: dict[str, object]) -> None:
    assert (
        ask(history.changed(history.reference(), "rank.restored", 6, value=value), "same-resume-step").outcome == "fail"
    )


@pytest.mark.parametrize("weights", ["0" * 64, None])
def test_ranks_with_different_weights_fail(weights: str | None) -> None:
    run = history.changed(history.reference(), "rank.restored", 6, value={"weights": weights})
    assert ask(run, "replicas-identical").outcome == "fail"


def test_ranks_with_different_weights_after_one_step_fail() -> None:
    run = history.reference()
    records = [
        dataclasses.replace(r, digest="0" * 64) if (r.rank, r.step, r.epoch) == (3, 40, 1) else r
        for r in run.files.steps()
    ]
    assert ask(history.with_records(run, records), "replicas-identical").outcome == "fail"


def test_ranks_that_finished_with_a_different_optimizer_or_a_missing_tensor_fail() -> None:
    run = history.reference()
    end = next(e for e in run.history.events if e.f == "rank.finished")
    other = {**end.value["digest"], "optimizer.0.exp_avg": "0" * 64}
    fewer = {k: v for k, v in end.value["digest"].items() if k != "model.0.bias"}
    for rank in (0, 2):  # the first, with which the others are compared, and another
        for digest in (other, fewer):
            changed = history.changed(run, "rank.finished", rank, value={"digest": digest})
            assert ask(changed, "replicas-identical").outcome == "fail"


def test_a_step_that_is_missing_doubled_or_beyond_fails() -> None:
    run = history.reference()
    records = list(run.files.steps())
    gone = [r for r in records if (r.rank, r.step) != (1, 17)]
    entry = next(r for r in records if (r.rank, r.step) == (1, 60))
    for changed in (gone, [*records, entry], [*records, dataclasses.replace(entry, step=61)], []):
        assert ask(history.with_records(run, changed), "no-step-lost").outcome != "pass"


def test_a_gap_between_two_epochs_fails() -> None:
    run = history.reference()
    records = [r for r in run.files.steps() if not (r.epoch == 1 and r.step == 26)]
    assert ask(history.with_records(run, records), "no-step-lost").outcome == "fail"


@pytest.mark.parametrize("change", [{"loss": (0.5).hex()}, {"digest": "0" * 64}])
def test_a_replayed_step_that_came_out_differently_fails_also_within_an_attempt(change: dict[str, str]) -> None:
    run = history.reference()
    where = (2, 27, 1)
    records = [dataclasses.replace(r, **change) if (r.rank, r.step, r.epoch) == where else r for r in run.files.steps()]  # type: ignore[arg-type]
    assert ask(history.with_records(run, records), "replay-equal").outcome == "fail"
    twice = [*run.files.steps(), next(r for r in records if (r.rank, r.step, r.epoch) == where)]
    assert ask(history.with_records(run, twice), "replay-equal").outcome == "fail"


def test_a_twin_of_another_seed_is_not_equal() -> None:
    run = dataclasses.replace(history.reference(), twin=history.twin(seed=8))
    assert ask(run, "bit-exact").outcome == "fail"


@pytest.mark.parametrize("name", ["optimizer.0.exp_avg", "rng.generator", "rng.torch", "model.0.weight"])
def test_state_that_was_not_restored_or_is_missing_is_not_equal(name: str) -> None:
    run = history.reference()
    end = next(e for e in run.history.events if e.f == "rank.finished")
    other = {**end.value["digest"], name: "0" * 64}
    fewer = {k: v for k, v in end.value["digest"].items() if k != name}
    more = {**end.value["digest"], "model.9.weight": "0" * 64}
    for digest in (other, fewer, more, {}):
        assert ask(history.changed(run, "rank.finished", value={"digest": digest}), "bit-exact").outcome == "fail"


def test_a_loss_that_differs_in_the_last_bit_is_not_equal() -> None:
    run = history.reference()
    records = list(run.files.steps())
    last = records[-1]
    records[-1] = dataclasses.replace(last, loss=(float.fromhex(last.loss) * (1 + 2**-52)).hex())
    assert ask(history.with_records(run, records), "bit-exact").outcome == "fail"


def test_a_resume_from_the_start_shows_nothing_of_a_checkpoint() -> None:
    run = history.reference(resume=0)
    assert ask(run, "bit-exact").outcome == "unknown"


def test_a_twin_that_was_disturbed_is_no_measure() -> None:
    run = dataclasses.replace(history.reference(), twin=history.twin(faults=1, restarts=1))
    assert ask(run, "baseline-clean").outcome == "fail"
    assert ask(run, "bit-exact").outcome == "unknown"


@pytest.mark.parametrize("changes", [{"digests": {}}, {"losses": {}}, {"digests": {"0": {}}}])
def test_a_twin_that_recorded_nothing_of_a_rank_says_nothing_about_it(changes: dict[str, Any]) -> None:
    result = ask(dataclasses.replace(history.reference(), twin=history.twin(**changes)), "bit-exact")
    assert result.outcome == "unknown"
    assert f"the reference run has no {next(iter(changes))}" in result.text


def test_without_a_twin_nothing_is_said() -> None:
    run = dataclasses.replace(history.reference(), twin=None)
    assert {ask(run, name).outcome for name in ("bit-exact", "baseline-clean")} == {"unknown"}


def on_mixed_nodes(run: Run, **cpus: str) -> Run:
    """The run on nodes of which some have another CPU."""
    nodes = {**dict.fromkeys(("n0", "n1", "n2", "n3", "n4"), "EPYC 9654"), **cpus}
    return dataclasses.replace(run, extras={**run.extras, "fingerprint.json": {"mixed": {"cpu": nodes}}})


def test_bits_that_differ_on_a_spare_with_another_cpu_prove_no_loss() -> None:
    other = dataclasses.replace(history.reference(), twin=history.twin(seed=8))
    result = ask(on_mixed_nodes(other, n4="Xeon 8480"), "bit-exact")
    assert result.outcome == "unknown"
    assert "rank 2 moved from n2 to n4, whose cpu is Xeon 8480, not EPYC 9654" in str(result)


def test_bits_that_are_equal_on_a_spare_with_another_cpu_are_equal() -> None:
    assert ask(on_mixed_nodes(history.reference(), n4="Xeon 8480"), "bit-exact").outcome == "pass"


def test_another_cpu_somewhere_excuses_no_difference_where_no_rank_went_to_it() -> None:
    other = dataclasses.replace(history.reference(policy="restart"), twin=history.twin(seed=8))
    assert ask(on_mixed_nodes(other, n4="Xeon 8480", n1="Xeon 8480"), "bit-exact").outcome == "fail"
