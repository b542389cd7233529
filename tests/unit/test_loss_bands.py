"""The loss after a recovery lies within the band of undisturbed runs, outside of it, or nothing is known."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics

import pytest

from orchestrator.model import watch
from orchestrator.model.event import Clock, History, Source, event
from orchestrator.model.events import RunBegin
from orchestrator.model.run import Run
from orchestrator.views.training.loss_bands import LossBands, loss_bands

from .watched_jobs import Job, right


def noisy(job: Job, seed: int, noise: float = 0.02, shift: float = 0.0, name: str = "run") -> Run:
    """The run of the job with losses that fall with the steps, and differ from seed to seed; ``shift`` after the recovery."""
    draw = random.Random(seed)
    factor = 1 + draw.gauss(0, noise)
    for index, file in enumerate(job.files):
        base = 15 if file.attempt else 0
        lines = tuple(
            dataclasses.replace(x, loss=(factor * (1 + shift * bool(base)) * 4 / (base + x.n) ** 0.5).hex())
            if isinstance(x, watch.Step)
            else x
            for x in file.lines
        )
        job.files[index] = dataclasses.replace(file, lines=lines)
    return dataclasses.replace(job.run(), directory=f"runs/{name}{seed}")


def undisturbed(count: int = 6, noise: float = 0.02) -> list[Run]:
    return [noisy(Job().attempt(0, 0, 30, ends=True), seed, noise) for seed in range(count)]


def judged(shift: float = 0.0, count: int = 6, noise: float = 0.02) -> LossBands:
    return loss_bands(noisy(right(), 99, noise, shift), undisturbed(count, noise))


def test_a_loss_within_the_band_passes_and_one_outside_fails() -> None:
    result = judged()
    assert (result.outcome, result.text) == ("pass", "loss within the band of 6 undisturbed runs")
    assert [band.steps for band in result.bands] == [(16, 25), (21, 30)]
    wrong = judged(shift=0.5)
    assert wrong.outcome == "fail" and "first steps after 15: loss" in wrong.text


def test_less_than_five_undisturbed_runs_are_no_band() -> None:
    assert judged(count=4).text == "4 undisturbed runs make no band: at least 5"
    assert judged(count=4, shift=9.0).outcome == "unknown"


def test_runs_that_are_equal_leave_the_judgement_to_bit_exact() -> None:
    assert judged(noise=0.0).outcome == "pass"
    result = judged(noise=0.0, shift=1e-5)
    assert result.outcome == "unknown" and "not seen to differ in 6 undisturbed runs" in result.text


def test_a_difference_of_the_last_bits_is_no_failure() -> None:
    assert judged(noise=1e-9, shift=1e-5).outcome == "pass"
    assert judged(noise=1e-9, shift=1e-2).outcome == "fail"


@pytest.mark.parametrize("case", ["disturbed", "another job", "no loss", "no recovery", "not a number"])
def test_what_cannot_be_compared_is_unknown(case: str) -> None:
    others, run = undisturbed(), noisy(right(), 99)
    if case == "disturbed":
        others[0] = noisy(right(), 3)
    elif case == "another job":
        others[0] = dataclasses.replace(others[0], trial=dataclasses.replace(others[0].trial, params={"file": "b.py"}))
    elif case == "no loss":
        run = right(loss=False).run()
    elif case == "no recovery":
        run = others[1]
    else:
        run = noisy(right(), 99, shift=float("nan"))
    assert loss_bands(run, others).outcome == "unknown"


def test_a_run_of_an_edited_script_is_another_job() -> None:
    run, others = noisy(right(), 99), [with_code(run, "a" * 64) for run in undisturbed()]
    assert loss_bands(with_code(run, "a" * 64), others).outcome == "pass"
    result = loss_bands(with_code(run, "b" * 64), others)
    assert (result.outcome, result.text) == ("unknown", "runs/run0 ran another train.py")


def with_code(run: Run, sha256: str) -> Run:
    begin = event(
        RunBegin(inputs={"user/train.py": sha256}, twin=None, code=None),
        at=Clock(boot="b", mono=0.0, wall=0.0),
        source=Source(writer="ctl", n=1),
    )
    return dataclasses.replace(run, history=History((begin,)))


def test_undisturbed_runs_rarely_lie_outside_of_their_own_band() -> None:
    outcomes = [
        loss_bands(
            noisy(right(), 1000 + seed), [noisy(Job().attempt(0, 0, 30), 10 * seed + k) for k in range(5)]
        ).outcome
        for seed in range(20)
    ]
    assert outcomes.count("fail") <= 1


def test_a_run_that_is_named_twice_is_no_second_sample() -> None:
    runs = undisturbed(5)
    result = loss_bands(noisy(right(), 99), [*runs, runs[0]])
    assert result.outcome == "unknown" and "named 2 times" in result.text


def test_the_band_is_as_wide_as_students_t_of_so_few_runs_says() -> None:
    factors = [1 + random.Random(seed).gauss(0, 0.02) for seed in range(6)]
    scale = statistics.fmean(4 / step**0.5 for step in range(16, 26))
    band = judged(count=6).bands[0]
    reach = 4.773 * statistics.stdev(factors) * scale * math.sqrt(1 + 1 / 6)  # 5 degrees of freedom, 1 - 0.01 / 4
    assert (band.high - band.low) / 2 == pytest.approx(reach)
