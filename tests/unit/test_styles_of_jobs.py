"""Verdicts on jobs in the styles that people write: GANs, averaged weights, data without a loader, generators drawn from now and then."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.model import watch

from .test_script_twins import twin
from .test_watched_jobs import outcomes, rows, spoilt
from .verdicts import ask
from .watched_jobs import Job, right, wrong


def changed(job: Job, change: Callable[[watch.WatchFile, Any], Any]) -> Job:
    """The job with ``change(file, line)`` in place of every line."""
    job.files = [dataclasses.replace(f, lines=tuple(change(f, line) for line in f.lines)) for f in job.files]
    return job


def text(job: Job, part: str) -> str:
    evidence: Any = ask(job.run(), "resume-complete").evidence
    return str(evidence["rows"]["attempt 1"][part].get("text", ""))


def test_losses_of_another_number_of_passes_are_not_compared() -> None:
    """The first step of a GAN ends with the first of its optimizers."""

    def first(file: watch.WatchFile, line: Any) -> Any:
        is_first = isinstance(line, watch.Step) and file.attempt == 1 and line.n == 1
        return dataclasses.replace(line, loss=(99.0).hex(), passes=2) if is_first else line

    assert outcomes(changed(right(), first))["replay-equal"] == "pass"


def test_another_loss_of_the_first_step_with_the_same_start_is_other_data() -> None:
    job = spoilt(spoilt(wrong("data"), watch.Step, batches=None), watch.State, batch=None)
    assert rows(job)["data position"] == "fail"
    assert "though weights, buffers and random states are as before" in text(job, "data position")


def test_a_small_difference_of_the_first_loss_or_an_unknown_start_says_nothing_of_the_data() -> None:
    def noisy(file: watch.WatchFile, line: Any) -> Any:
        if isinstance(line, watch.Step):
            value = float.fromhex(line.loss or "")
            return dataclasses.replace(line, batches=None, loss=(value * (1 + 1e-6 * file.attempt)).hex())
        return dataclasses.replace(line, batch=None) if isinstance(line, watch.State) else line

    assert rows(changed(right(), noisy))["data position"] == "unknown"
    job = spoilt(spoilt(wrong("rng"), watch.Step, batches=None), watch.State, batch=None)
    assert rows(job)["data position"] == "unknown"


def test_buffers_that_a_rank_recorded_later_show_those_that_it_began_with() -> None:
    def only_later(file: watch.WatchFile, line: Any) -> Any:
        if not isinstance(line, watch.State):
            return line
        step = line.n + 15 * file.attempt
        return dataclasses.replace(
            line, buffers=f"{step:016x}" if line.n % 5 else f"{line.n:08x}{file.attempt:08x}", batch=None
        )

    assert rows(changed(right(), only_later))["buffers"] == "pass"


def epoch_job(*, saved: bool, restored: bool) -> Job:
    """Torch's generator is drawn from once in twelve steps, not in those that are executed again."""
    job = right(dropout=False)

    def value(file: watch.WatchFile, line: Any) -> Any:
        if isinstance(line, watch.State):
            step = line.n + 15 * file.attempt
            lost = "" if restored or not file.attempt else "anew"
            return dataclasses.replace(line, rng={"torch": f"{step // 12}{lost}"})
        if isinstance(line, watch.Saved) and saved:
            return dataclasses.replace(line, contents={"rng": {"torch": "ab"}})
        return line

    return changed(job, value)


@pytest.mark.parametrize(
    ("saved", "restored", "result"),
    [(True, True, "pass"), (False, True, "pass"), (True, False, "fail"), (False, False, "unknown")],
)
def test_a_generator_that_is_drawn_from_once_an_epoch(saved: bool, restored: bool, result: str) -> None:
    assert rows(epoch_job(saved=saved, restored=restored))["RNG"] == result


def test_after_a_kill_right_after_a_save_a_generator_that_is_never_drawn_from_does_not_apply() -> None:
    job = Job(dropout=False).attempt(0, 0, 15).attempt(1, 15, 30, ends=True)
    assert rows(job)["RNG"] == "not applicable"
    assert rows(Job().attempt(0, 0, 15).attempt(1, 15, 30, ends=True))["RNG"] == "unknown"


@pytest.mark.parametrize(
    ("is_restored", "is_saved", "result"),
    [(True, True, "pass"), (True, False, "pass"), (False, True, "fail"), (False, False, "unknown")],
)
def test_an_average_of_the_weights_has_a_row(is_restored: bool, is_saved: bool, result: str) -> None:
    def average(file: watch.WatchFile, line: Any) -> Any:
        step = getattr(line, "n", 0) + 15 * file.attempt
        if isinstance(line, watch.State) and line.full:
            lost = "" if is_restored or not file.attempt else "anew"
            return dataclasses.replace(line, copies={"AveragedModel 0": f"average {step}{lost}"})
        if isinstance(line, watch.Saved) and is_saved:
            return dataclasses.replace(line, contents={"tensors.ema": f"average {line.id}"})
        return line

    job = changed(right(), average)
    assert rows(job)["copies of the model"] == result


def test_a_job_without_copies_of_its_model_has_no_such_row() -> None:
    assert "copies of the model" not in rows(right())


@pytest.mark.parametrize(("state", "outcome"), [("ab", "fail"), ("cd", "unknown")])
def test_a_load_of_the_optimizer_alone_shows_the_checkpoint_also_without_a_sha256(state: str, outcome: str) -> None:
    def unhashed(file: watch.WatchFile, line: Any) -> Any:
        if isinstance(line, watch.Committed):
            return dataclasses.replace(line, sha256=None)
        if isinstance(line, watch.Saved):
            return dataclasses.replace(line, contents={"optimizer.exp_avg": "ab" if line.id == 15 else "ef"})
        if isinstance(line, watch.Load):
            return dataclasses.replace(line, weights=None, contents={"optimizer.exp_avg": state})
        return dataclasses.replace(line, counter=None) if isinstance(line, watch.State) else line

    def of_another_seed(file: watch.WatchFile, line: Any) -> Any:
        is_start = isinstance(line, watch.State) and file.attempt == 1
        return dataclasses.replace(line, weights=f"{line.n:016x}") if is_start else line

    job = changed(changed(right(), unhashed), of_another_seed)
    assert outcomes(job)["resumed-from"] == outcome


def skipping(job: Job) -> Job:
    """The first batch that the restarted job fetches is one that it skips."""

    def change(file: watch.WatchFile, line: Any) -> Any:
        if isinstance(line, watch.State) and file.attempt and not line.n:
            return dataclasses.replace(line, batch="skipped")
        if isinstance(line, watch.Step) and file.attempt and line.n == 1:
            return dataclasses.replace(line, batches=("skipped", *(line.batches or ())))
        return line

    return changed(job, change)


def test_buffers_of_a_job_that_skips_batches_to_resume_are_compared() -> None:
    assert rows(skipping(right()))["buffers"] == "pass"
    assert rows(skipping(wrong("buffers")))["buffers"] == "fail"
    assert rows(skipping(wrong("buffers", "data")))["buffers"] == "unknown"


def test_buffers_that_differ_beside_random_states_are_unknown() -> None:
    assert rows(wrong("buffers", "rng"))["buffers"] == "unknown"


@pytest.mark.parametrize(
    ("forgotten", "named"),
    [
        (("optimizer", "lr"), ["optimizer"]),
        (("optimizer", "lr", "scheduler"), ["optimizer", "learning rate", "scheduler"]),
        (("lr", "scheduler"), ["learning rate", "scheduler"]),
    ],
)
def test_a_restored_schedule_is_not_blamed_for_the_rate_of_a_new_optimizer(
    forgotten: tuple[str, ...], named: list[str]
) -> None:
    """A chained schedule goes on from the rate that it finds; one that was itself lost is named beside the optimizer."""
    run = wrong(*forgotten).run()
    for reference in (None, twin()):
        verdict = ask(dataclasses.replace(run, twin=reference), "resume-complete")
        parts = verdict.evidence["rows"]["attempt 1"]
        assert verdict.outcome == "fail"
        assert [
            part for part in ("optimizer", "learning rate", "scheduler") if parts[part]["result"] == "fail"
        ] == named
