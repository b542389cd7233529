"""A fault of a script that was not reached: the verdict names what the ranks did instead, and what to do next."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.model import watch
from orchestrator.model.run import Run
from orchestrator.model.trial import FaultPlan, Trigger
from orchestrator.views import training
from orchestrator.views.training.attempts import _reason as reason_without_steps
from orchestrator.views.training.doubts import fold_ranks

from . import history, synthetic

AFTER_SAVE = Trigger(after_save=2, steps_later=3, phase="backward")


def _file(rank: int, *lines: watch.Line) -> watch.WatchFile:
    return watch.WatchFile(path=f"watch-r{rank}-1.jsonl", node=f"n{rank}", attempt=0, rank=rank, pid=1, lines=lines)


def _reason(at: Trigger, *files: watch.WatchFile, node: int = 1) -> str:
    fault = FaultPlan(id="f0", fault="crash-node", node=node, at=at)
    run: Run = dataclasses.replace(
        history.clean(), trial=history.trial(fault, workload="script"), files=synthetic.Files(processes=list(files))
    )
    return training.why_unreached(run, fault)


def _save(n: int) -> watch.Save:
    return watch.Save(t=1.0, id=n, n=n)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((watch.Load(t=1.0, id=1, path="out/ck.pt"),), "ranks 0-1 loaded out/ck.pt and made no step: remove that"),
        ((watch.NotObserved(t=1.0, what="steps", why="60 backward passes and no step of an optimizer"),), "60 backward passes"),
        ((watch.Step(t=1.0, n=40, start=0.0, end=1.0),), "it made 40 steps; --checkpoints GLOB names files"),
        ((watch.Step(t=1.0, n=40, start=0.0, end=1.0), watch.Committed(t=1.0, id=1)), "it made 40 steps; --at 5s needs no checkpoint"),
        ((), "no optimizer of torch made a step; --at 5s needs no checkpoint"),
    ],
    ids=["finished checkpoint", "own update loop", "other writer", "saved too early", "no training"],
)  # fmt: skip
def test_a_job_without_a_checkpoint_after_a_step(lines: tuple[watch.Line, ...], reason: str) -> None:
    assert _reason(AFTER_SAVE, _file(0, *lines), _file(1, *lines)).startswith(reason)


def test_a_rank_that_never_saves_is_named_beside_those_that_do() -> None:
    files = (_file(0, _save(5), _save(10)), _file(1), _file(2, _save(5)))
    assert _reason(Trigger(phase="save", nth=2), *files) == (
        "rank 1 of node 1 made 0 of 2 saves; rank 0 made them: --fail-node 0, or --at after-save=2"
    )
    assert _reason(Trigger(phase="save", nth=3), *files, node=0).endswith("2 of 3 saves, and no other rank made more")
    assert _reason(Trigger(phase="load"), *files) == "rank 1 of node 1 made 0 of 1 loads, and no other rank made more"


def test_without_records_and_for_other_triggers_nothing_is_said() -> None:
    assert _reason(AFTER_SAVE) == ""
    assert _reason(Trigger(after_s=5.0), _file(0)) == ""


def test_ranks_with_one_reason_share_a_sentence() -> None:
    reasons = [f"rank {rank} (n{rank}) has no record" for rank in (0, 1, 2, 5)]
    assert list(fold_ranks([*reasons, "rank 3 (n3) stalled"])) == ["ranks 0-2, 5 have no record", "rank 3 (n3) stalled"]


def test_a_job_that_found_its_finished_checkpoint_is_told_to_remove_it() -> None:
    """A drill that is repeated in its directory trains nothing."""
    file = watch.WatchFile(path="w", node="n0", attempt=0, rank=0, pid=1, lines=(watch.Load(t=1.0, path="out/ck.pt"),))
    reason = "rank 0 (n0) loaded out/ck.pt and made no step: remove that finished checkpoint, or let it train further"
    assert reason_without_steps(0, file, None, was_watched=False) == reason
