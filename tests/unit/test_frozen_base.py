"""A model whose frozen base is saved once, before the first step, and whose trained part is in each checkpoint; two in two files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from orchestrator.model import watch
from orchestrator.model.run import Run
from orchestrator.views.training.attempts import MODULUS, add
from orchestrator.views.training.job_checkpoints import sum_of

from .verdicts import ask
from .watched_jobs import Job, digest, right, wrong

BASE = "ba5e" * 16


def with_base(job: Job) -> Job:
    """Rank 0 saves the base at the beginning, and every process loads it, as well as its checkpoint."""

    def lines(file: watch.WatchFile) -> tuple[watch.Line, ...]:
        t = file.lines[0].t
        saved: list[watch.Line] = []
        if file.rank == 0 and not file.attempt:
            saved = [
                watch.Save(t=t, id="base", n=0, api="torch.save", path="/base.pt"),
                watch.Saved(t=t, id="base", weights="b" * 16),
                watch.Committed(t=t, id="base", path="/base.pt", sha256=BASE, how="rename"),
            ]
        loaded = watch.Load(t=t, id="base", api="torch.load", path="/base.pt", sha256=BASE, matched=0.0)
        return (*file.lines[:3], *saved, loaded, *file.lines[3:])

    job.files = [dataclasses.replace(file, lines=lines(file)) for file in job.files]
    return job


def test_a_base_that_is_loaded_beside_the_checkpoint_changes_nothing() -> None:
    run = with_base(right()).run()
    assert {name: ask(run, name).outcome for name in ("resumed-from", "resume-complete")} == {
        "resumed-from": "pass",
        "resume-complete": "pass",
    }


def test_weights_that_were_loaded_and_not_applied_are_no_beginning_anew() -> None:
    job = with_base(wrong("weights"))
    assert "loaded the checkpoint of step 15, but trains from other weights" in ask(job.run(), "resumed-from").text
    assert "has the weights of step 0 although it loaded step 15" in ask(job.run(), "resumed-newest").text
    rows = ask(job.run(), "resume-complete").evidence["rows"]["attempt 1"]
    assert [part for part, row in rows.items() if row["result"] == "fail"] == ["weights"]


# --- a file for each of two models ------------------------------------------------------------------------------------------


def part(model: str, step: int, *, is_frozen: bool = False) -> str:
    """The digest of one of two models, which add up to that of both."""
    second = digest("frozen") if is_frozen else digest("second", step)
    return f"{(int(digest('weights', step), 16) - int(second, 16)) % MODULUS:016x}" if model == "first" else second


def in_two_files(
    job: Job, second: int = 15, *, is_frozen: bool = False, saved_at: Iterable[int] = range(99), late: int = 0,
    by_step: bool = False,
) -> Job:  # fmt: skip
    """The job saves two models each in a file of its own, and resumes the second one from step ``second``, the first from 15.

    The second one is saved after the steps ``saved_at``, ``late`` steps later. ``by_step``: file names with the step.
    """

    def about(model: str, step: int) -> tuple[str, str, str]:
        is_same = model == "second" and is_frozen
        path = f"/{model}-{step}.pt" if by_step else f"/{model}.pt"
        return path, part(model, step, is_frozen=is_frozen), f"sum {model} {'' if is_same else step}"

    def of_file(line: watch.Line, model: str, step: int) -> dict[str, Any]:
        path, own, key = about(model, step)
        if isinstance(line, watch.Saved):
            return {"weights": None, "matched": 0.5, "contents": {"part": own}}
        if isinstance(line, watch.Committed):
            return {"path": path, "sha256": key}
        return {"path": path, "n": line.n + late * (model == "second") if isinstance(line, watch.Save) else 0}

    def lines(line: watch.Line, attempt: int) -> list[watch.Line]:
        if isinstance(line, watch.Load):
            loads = [(m, *about(m, s)) for m, s in (("first", 15), ("second", second))]
            return [
                dataclasses.replace(
                    line, id=m, path=path, weights=None, sha256=key, contents={"part": own} if m == "first" else {}
                )
                for m, path, own, key in loads
            ]
        if isinstance(line, watch.State) and attempt and line.n == 0 and second != 15:
            total = int(about("first", 15)[1], 16) + int(about("second", second)[1], 16)
            return [dataclasses.replace(line, weights=f"{total % MODULUS:016x}")]
        if not isinstance(line, watch.Save | watch.Saved | watch.Committed):
            return [line]
        step = int(line.id)
        return [
            dataclasses.replace(line, id=f"{model}-{step}", **of_file(line, model, step))
            for model in ("first", "second")
            if model == "first" or step in saved_at
        ]

    def as_changed(file: watch.WatchFile) -> watch.WatchFile:
        return dataclasses.replace(file, lines=tuple(new for x in file.lines for new in lines(x, file.attempt)))

    job.files = [as_changed(file) for file in job.files]
    return job


def test_files_that_hold_the_models_of_one_step_are_a_checkpoint() -> None:
    run = in_two_files(right()).run()
    assert {name: ask(run, name).outcome for name in ("resumed-from", "resumed-newest", "resume-complete")} == {
        "resumed-from": "pass",
        "resumed-newest": "pass",
        "resume-complete": "pass",
    }


def test_models_of_different_steps_are_named_with_their_files() -> None:
    run = in_two_files(wrong("weights", "optimizer"), second=10).run()
    apart = "first.pt of step 15 and second.pt of step 10"
    assert f"begins with parts of other steps: {apart}" in ask(run, "resumed-from").text
    assert ask(run, "resume-complete").evidence["rows"]["attempt 1"]["weights"] == {
        "result": "fail",
        "text": f"of other steps: {apart}",
    }


def killed_after_its_save(**about: Any) -> Run:
    """No state of step 15 was recorded: the rank was killed before its next step."""
    return in_two_files(Job().attempt(0, 0, 15).attempt(1, 15, 30, ends=True), **about).run()


@pytest.mark.parametrize("by_step", [False, True])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_parts_of_one_save_are_of_its_step_without_a_state_of_that(is_frozen: bool, by_step: bool) -> None:
    verdict = ask(killed_after_its_save(is_frozen=is_frozen, by_step=by_step), "resumed-from")
    assert (verdict.outcome, verdict.text) == ("pass", "step 15 on 2 ranks")


def test_a_frozen_part_of_the_first_save_only_is_a_doubt() -> None:
    verdict = ask(killed_after_its_save(is_frozen=True, saved_at=[5]), "resumed-from")
    assert (verdict.outcome, "they may belong together" in verdict.text) == ("unknown", True)


def test_a_part_that_is_saved_a_step_later_is_a_doubt() -> None:
    job = in_two_files(Job().attempt(0, 0, 18).attempt(1, 15, 30, ends=True), late=1)
    job.files = [
        dataclasses.replace(
            file, lines=tuple(x for x in file.lines if file.attempt or not isinstance(x, watch.State) or x.n != 15)
        )
        for file in job.files
    ]
    verdict = ask(job.run(), "resumed-from")
    assert (verdict.outcome, "second.pt of step 16 and first.pt of step 15" in verdict.text) == ("unknown", True)


@pytest.mark.parametrize("by_step", [False, True])
def test_parts_of_different_steps_fail_without_a_state_of_the_newest(by_step: bool) -> None:
    verdict = ask(killed_after_its_save(second=10, by_step=by_step), "resumed-from")
    assert (verdict.outcome, "begins with parts of other steps" in verdict.text) == ("fail", True)


def test_a_whole_checkpoint_is_gone_once_one_of_its_files_is_saved_anew() -> None:
    """Killed between the two files of step 20: the job goes back to a copy of step 10."""
    job = in_two_files(Job().attempt(0, 0, 21).attempt(1, 10, 30, loaded=0, ends=True))
    job.files = [
        dataclasses.replace(file, lines=tuple(x for x in file.lines if getattr(x, "id", "") != "second-20"))
        for file in job.files
    ]
    assert ask(job.run(), "resumed-newest").outcome != "fail"


def test_many_parts_are_added_up_together() -> None:
    digests = sorted(digest("part", number) for number in range(12))
    assert [*sum_of(digests, add(digests))] == digests


def test_the_newest_whole_checkpoint_is_known_without_a_state_of_its_step() -> None:
    job = Job().attempt(0, 0, 15).attempt(1, 10, 30, loaded=0, ends=True)
    verdict = ask(in_two_files(job, by_step=True).run(), "resumed-newest")
    assert (verdict.outcome, "resumed from step 10 although step 15 was committed" in verdict.text) == ("fail", True)
