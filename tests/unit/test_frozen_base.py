"""A model whose frozen base is saved once, before the first step, and whose trained part is in each checkpoint."""

from __future__ import annotations

import dataclasses

from orchestrator.model import watch

from .verdicts import ask
from .watched_jobs import Job, right, wrong

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
