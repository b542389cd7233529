"""A real gang of four loses a node, goes on with three, and grows back; what is then lost or done twice never passes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkers import bit_exact, no_step_lost, replay_equal
from orchestrator.model.events import GangStart, RecoveryDecided, RecoveryGrown
from orchestrator.model.run import NodeFiles, StepRecord
from orchestrator.model.trial import FaultPlan, Trial, World
from orchestrator.model.verdict import Verdict
from orchestrator.store import bundle, index

from . import trials
from .conftest import ROOT, Bed, Ran, with_damage

pytestmark = pytest.mark.e2e


def elastic(*faults: FaultPlan, grow_after_s: float | None = None, step_min_ms: int = 15, **more: Any) -> Trial:
    """40 steps, on two to four nodes."""
    params = {"epochs": 2, "step_min_ms": step_min_ms}
    made = trials.dp(*faults, policy=("shrink",), world=World(nodes=4, min_nodes=2), params=params, checks=(), **more)
    return replace(made, recovery=replace(made.recovery, grow_after_s=grow_after_s))


def worlds(ran: Ran) -> list[int | None]:
    return list({event.epoch: event.data.world_size for event in ran.run.history.of(GangStart)}.values())


@pytest.fixture(scope="module")
def grown(bed: Bed) -> Ran:
    """The node is lost in step 13, and rejoins after a checkpoint."""
    return bed.run(elastic(trials.crash(2), grow_after_s=0.1, step_min_ms=100))


def test_three_nodes_go_on_and_the_fourth_rejoins(grown: Ran, bed: Bed) -> None:
    assert grown.bad() == []
    assert grown.code == 0
    assert worlds(grown) == [4, 3, 4]
    (decided,), (joined,) = grown.run.history.of(RecoveryDecided), grown.run.history.of(RecoveryGrown)
    assert decided.data.slots == ("n0", "n1", "n3")
    assert joined.data.slots == ("n0", "n1", "n3", "n2")
    assert "each sample of 40 batches once" in grown.verdict("no-step-lost").text
    assert bed.unchanged()


def test_what_cannot_be_equal_bit_by_bit_is_not_compared(grown: Ran) -> None:
    assert [grown.outcome(check) for check in ("bit-exact", "replay-equal")] == ["skipped", "skipped"]
    assert "steps 1 to 10 equal the reference run" in grown.verdict("bit-exact").text
    losses = grown.verdict("bit-exact").text.rpartition("last loss ")[2].split(", the reference run's ")
    assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-4)


@dataclass(frozen=True, kw_only=True)
class Changed:
    """The files of a run with other records of steps."""

    files: NodeFiles
    change: Callable[[StepRecord], StepRecord | None]

    def steps(self) -> Iterator[StepRecord]:
        return (record for known in self.files.steps() if (record := self.change(known)) is not None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.files, name)


def judged(ran: Ran, checker: Any, change: Callable[[StepRecord], StepRecord | None]) -> Verdict:
    run = replace(ran.run, files=Changed(files=ran.run.files, change=change))
    verdict: Verdict = checker.check(run, checker.Params())
    return verdict


def at(record: StepRecord, epoch: int, rank: int, step: int) -> bool:
    return (record.epoch, record.rank, record.step) == (epoch, rank, step)


def test_a_sample_that_is_used_twice_or_left_out_in_the_smaller_gang_is_a_failure(grown: Ran) -> None:
    verdict = judged(grown, no_step_lost, lambda r: replace(r, samples="0" * 16) if at(r, 1, 1, 12) else r)
    assert (verdict.outcome, "a sample was left out or used twice" in verdict.text) == ("fail", True)


def test_a_step_that_a_rank_of_the_smaller_gang_did_not_do_is_a_failure(grown: Ran) -> None:
    verdict = judged(grown, no_step_lost, lambda r: None if at(r, 1, 2, 12) else r)
    assert verdict.outcome == "fail"


def test_a_step_that_is_done_again_on_another_batch_is_a_failure(grown: Ran) -> None:
    verdict = judged(grown, replay_equal, lambda r: replace(r, batch="0" * 16) if at(r, 1, 1, 11) else r)
    assert (verdict.outcome, "in the samples of the batch" in verdict.text) == ("fail", True)


def test_a_step_before_the_loss_that_differs_from_the_twin_is_a_failure(grown: Ran) -> None:
    assert judged(grown, bit_exact, lambda r: r).outcome == "skipped"
    verdict = judged(grown, bit_exact, lambda r: replace(r, loss="0x1p+0") if at(r, 0, 1, 7) else r)
    assert verdict.outcome == "fail"


def test_ranks_that_skip_a_batch_after_the_shrink_are_a_failure(bed: Bed) -> None:
    ran = with_damage(bed).run(trials.damaged(elastic(trials.crash(2)), "batch"), twin=False)
    assert worlds(ran) == [4, 3]
    assert ran.outcome("no-step-lost") == "fail"
    assert "a sample was left out or used twice" in ran.verdict("no-step-lost").text


def test_the_first_step_of_the_smaller_gang_has_the_loss_of_the_twin(grown: Ran) -> None:
    verdict = judged(grown, bit_exact, lambda r: replace(r, loss="0x1p+0") if at(r, 1, 1, 11) else r)
    assert (verdict.outcome, "the whole batch of step 11" in verdict.text) == ("fail", True)


def test_gradients_of_unequal_shares_that_count_the_same_do_not_pass(bed: Bed) -> None:
    """With four ranks the shares are equal, and so is the result; with three the losses leave those of the twin."""
    ran = with_damage(bed).run(trials.damaged(elastic(trials.crash(2)), "weighting"))
    assert worlds(ran) == [4, 3]
    assert ran.outcome("bit-exact") == "unknown"
    assert "more than sums in another order explain" in ran.verdict("bit-exact").text


SCRIPT = """
trial: t
workload: script
params: {{file: {script}, args: [--steps, "80", --save-every, "3", --checkpoint, {checkpoint}]}}
world: {{nodes: "2:3"}}
faults: [crash-node: {{node: 1}}]
recovery: {{policy: shrink, grow_after: 0.1}}
"""


def test_a_script_goes_on_from_its_own_checkpoint(bed: Bed, tmp_path: Path) -> None:
    """What another number of ranks makes incomparable is named and left out; the rest is judged."""
    script = shutil.copytree(ROOT / "orchestrator/jobs/examples", tmp_path / "job") / "gpt_ddp.py"
    trial = tmp_path / "trial.yml"
    trial.write_text(SCRIPT.format(script=script, checkpoint=tmp_path / "gpt.pt"))
    code, output = bed.ccbed("run", str(trial), "--no-reference", "--runs-dir", str(tmp_path / "runs"))
    ran = Ran(code=code, run=bundle.load(index.resolve("latest", tmp_path / "runs")))
    assert worlds(ran) == [3, 2, 3], output
    assert [v.check for v in ran.run.verdicts if v.outcome == "fail"] == []
    assert [ran.outcome(check) for check in ("resumed-from", "resumed-newest", "no-step-lost")] == ["pass"] * 3
    assert ran.outcome("resume-complete") == "pass"
    assert "not comparable with world size 2 instead of 3" in ran.verdict("resume-complete").text
