"""A model whose frozen base is saved once, before the first step, and whose trained part is in each checkpoint; two in two files."""

from __future__ import annotations

import dataclasses
from typing import Any

from orchestrator.model import watch
from orchestrator.views.training.attempts import MODULUS

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


def part(model: str, step: int) -> str:
    """The digest of one of two models, which add up to that of both."""
    first = int(digest("first", step), 16)
    return f"{first if model == 'first' else (int(digest('weights', step), 16) - first) % MODULUS:016x}"


def _of_file(line: watch.Line, model: str, step: int) -> dict[str, Any]:
    if isinstance(line, watch.Saved):
        return {"weights": None, "matched": 0.5, "contents": {"part": part(model, step)}}
    return {"path": f"/{model}.pt", **({"sha256": f"sum {model} {step}"} if isinstance(line, watch.Committed) else {})}


def in_two_files(job: Job, second: int = 15) -> Job:
    """The job saves two models each in a file of its own, and resumes the second one from step ``second``, the first from 15."""

    def lines(line: watch.Line, attempt: int) -> list[watch.Line]:
        if isinstance(line, watch.Load):
            steps = {"first": 15, "second": second}
            loads = [(m, {"part": part(m, s)} if m == "first" else {}, f"sum {m} {s}") for m, s in steps.items()]
            return [
                dataclasses.replace(line, id=m, path=f"/{m}.pt", weights=None, sha256=key, contents=own)
                for m, own, key in loads
            ]
        if isinstance(line, watch.State) and attempt and line.n == 0:
            total = int(part("first", 15), 16) + int(part("second", second), 16)
            return [dataclasses.replace(line, weights=f"{total % MODULUS:016x}")]
        if not isinstance(line, watch.Save | watch.Saved | watch.Committed):
            return [line]
        step = int(line.id)
        return [
            dataclasses.replace(line, id=f"{model}-{step}", **_of_file(line, model, step))
            for model in ("first", "second")
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
