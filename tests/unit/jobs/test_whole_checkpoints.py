"""Which checkpoints are whole, whichever rank saves them, and how a torn or a mixed one is named."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.core.verdict.sentence import sentence
from orchestrator.model import watch
from orchestrator.views import view

from ..test_watched_jobs import rows
from ..verdicts import ask
from ..watched_jobs import Job, digest, right

TORN = "/ckpt/15.pt"


def saved(rank: int, step: int, path: str) -> tuple[watch.Line, ...]:
    """What a rank that saves the whole state records."""
    return (
        watch.Save(t=100.5, id=90 + step, n=step, api="torch.save", path=path),
        watch.Saved(t=100.5, id=90 + step, weights=digest("weights", step), matched=1.0),
        watch.Committed(t=100.5, id=90 + step, path=path, sha256=f"{rank}{step}" * 8, how="rename"),
    )


def also_saving(job: Job, rank: int, *steps: int) -> Job:
    """The job in which this rank of the first attempt saves after these steps, too, to files of its own."""
    job.files = [
        dataclasses.replace(
            file, lines=(*file.lines, *(x for step in steps for x in saved(rank, step, f"/ckpt/r{rank}-{step}.pt")))
        )
        if (file.attempt, file.rank) == (0, rank)
        else file
        for file in job.files
    ]
    return job


def test_an_emergency_save_by_a_rank_that_saves_nothing_else_is_the_newest_checkpoint() -> None:
    job = also_saving(Job().attempt(0, 0, 18), 1, 18).attempt(1, 18, 30, ends=True)
    newest = ask(job.run(), "resumed-newest")
    assert (newest.outcome, newest.evidence["newest"]) == ("pass", {"attempt 1": 18})
    source = ask(job.run(), "resumed-from")
    assert source.outcome == "pass" and "memory" not in source.text
    older = also_saving(Job().attempt(0, 0, 18), 1, 18).attempt(1, 15, 30, ends=True)
    assert "step 18 was committed" in ask(older.run(), "resumed-newest").text


def test_files_of_one_checkpoint_are_whole_when_each_rank_has_written_its_own() -> None:
    job = also_saving(Job().attempt(0, 0, 18), 1, 5, 10, 15).attempt(1, 15, 30, ends=True)
    assert ask(job.run(), "resumed-newest").evidence["newest"] == {"attempt 1": 15}
    job = also_saving(Job().attempt(0, 0, 18), 1, 5, 10).attempt(1, 10, 30, ends=True)
    assert ask(job.run(), "resumed-newest").outcome == "pass"


@pytest.mark.parametrize(
    ("parts", "lack"),
    [
        (None, ""),
        (
            {"__0_0.distcp": 9, "__1_0.distcp": 9},
            " (.metadata is missing beside 2 shards: the save was cut before its end)",
        ),
        ({"__0_0.distcp": 9, ".metadata": 9}, ""),
        ({"model-00001-of-00003.safetensors": 9}, " (2 of the 3 files model-*.safetensors are missing)"),
    ],
)
def test_a_load_of_a_torn_file_that_ends_all_ranks_is_named_with_the_step_that_was_whole(
    parts: dict[str, int] | None, lack: str
) -> None:
    job = Job().attempt(0, 0, 15).attempt(1, 10, 11)
    error = watch.Load(t=200.0, id=1, api="torch.load", path=TORN, error="RuntimeError: no archive", parts=parts)
    job.files = [
        dataclasses.replace(
            file,
            lines=tuple(x for x in file.lines if not (isinstance(x, watch.Committed) and x.path == TORN))
            if not file.attempt
            else (dataclasses.replace(file.begin, restart=1, wall=1e3), error),
        )
        for file in job.files
        if file.begin
    ]
    job.files = [dataclasses.replace(file, attempt=0) for file in job.files]
    verdict = ask(job.run(), "resumed-newest")
    assert verdict.outcome == "fail"
    assert f"ranks 0-1 tried step 15 ({TORN}), whose save was cut{lack}; step 10 was whole" in verdict.text
    assert f"ranks 0-1 could not load {TORN}{lack}, and made no step" in ask(job.run(), "resume-complete").text
    checks = [ask(job.run(), name) for name in ("finished", "resume-complete", "resumed-newest")]
    assert "resumed-newest fails: first start, restart 1: ranks 0-1 tried step 15" in sentence(
        job.run().trial, view(job.run().trial, job.run().history), checks
    )


def test_an_optimizer_of_another_step_than_the_weights_is_named_with_both_steps() -> None:
    job = right()
    older = next(
        line.optimizer for file in job.files for line in file.of(watch.State) if line.n == 10 and not file.attempt
    )
    job.files = [
        dataclasses.replace(
            file,
            lines=tuple(
                dataclasses.replace(x, optimizer=older, counter=10.0)
                if isinstance(x, watch.State) and x.n == 0 and file.attempt
                else x
                for x in file.lines
            ),
        )
        for file in job.files
    ]
    assert rows(job)["optimizer"] == "fail"
    text = ask(job.run(), "resume-complete").text
    assert "optimizer: is that of step 10, the weights are those of step 15" in text
