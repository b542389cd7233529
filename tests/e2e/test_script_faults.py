"""Faults in the steps of a user's script on a real bed: a small GPT, replicated on two nodes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.model import events
from orchestrator.store import bundle, index

from .conftest import ROOT, Bed, Ran

TRIAL = """
trial: t
workload: script
params: {{file: {script}, args: [--steps, "60", --save-every, "{save_every}", --checkpoint, {checkpoint}], timeout_s: 20}}
world: {{nodes: 2}}
faults: [{fault}]
recovery: {{policy: restart}}
"""


def run(bed: Bed, folder: Path, fault: str, save_every: int = 3) -> Ran:
    script = shutil.copytree(ROOT / "orchestrator/jobs/examples", folder / "job") / "gpt_ddp.py"
    trial = folder / "trial.yml"
    checkpoint = folder / "gpt.pt"
    trial.write_text(TRIAL.format(script=script, checkpoint=checkpoint, fault=fault, save_every=save_every))
    code, output = bed.ccbed("run", str(trial), "--runs-dir", str(folder / "runs"))
    ran = Ran(code=code, run=bundle.load(index.resolve("latest", folder / "runs")))
    assert ran.run.verdicts, output
    return ran


def test_a_rank_hangs_in_a_step_after_a_checkpoint_and_the_job_comes_back(bed: Bed, tmp_path: Path) -> None:
    """It is held some steps after the second checkpoint; the other rank waits for it in its backward pass."""
    ran = run(bed, tmp_path, "hang-rank: {node: 1}")
    assert ran.outcome("fault-verified") == "pass", ran.bad()
    assert ran.outcome("finished") == "pass", ran.bad()
    (held,) = ran.run.history.of(events.RankHeld)
    assert (held.data.rank, held.data.phase) == (1, "backward")
    assert (held.data.step or 0) == 8, "one step before the next save"
    (inside,) = ran.run.history.of(events.RankInside)
    assert inside.data.rank == 0
    assert "run_backward" in (inside.data.stack or ("",))[0]
    (stalled,) = ran.run.history.of(events.GangStalled)
    assert "rank 1" in (stalled.data.reason or "")


def test_where_nothing_is_saved_there_is_nothing_to_prove(bed: Bed, tmp_path: Path) -> None:
    ran = run(bed, tmp_path, "crash-node: {node: 1}", save_every=99)
    assert ran.code == 2, ran.bad()
    assert ran.outcome("fault-verified") == "unknown"
    assert "nothing to prove" in ran.verdict("fault-verified").text


RESTARTED = 'os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"'
#: What the example of a ring loses -> a line of it, what stands there instead, and the check that fails.
LOST = {
    "nothing": ("", "", None),
    "the optimizer": ('        optimizer.load_state_dict(snapshot["optimizer"])\n', "", "resume-complete"),
    "the weights": ('        model.load_state_dict(snapshot["model"])\n', "", "resumed-from"),
    "the position of the data": ("manual_seed(2 +", f"manual_seed(({RESTARTED}) + 2 +", "resume-complete"),
    "the checkpoint": ("if args.checkpoint.exists():", "if False:", "resumed-from"),
    "a turn of the ring": ("2 * (world - 1))", f"2 * (world - 1) - ({RESTARTED}))", "replay-equal"),
}


@pytest.mark.parametrize("lost", LOST)
def test_the_example_of_a_ring_passes_only_with_all_that_it_restores(bed: Bed, tmp_path: Path, lost: str) -> None:
    before, instead, check = LOST[lost]
    source = (ROOT / "orchestrator/jobs/examples/dp_ring.py").read_text()
    assert before in source
    (tmp_path / "job.py").write_text(source.replace(before, instead) if before else source)
    options = ("--fail-node", "2", "--no-reference", "--runs-dir", str(tmp_path / "runs"))
    checkpoint = ("--checkpoint", str(tmp_path / "ring.pt"))
    code, output = bed.ccbed("run", *options, str(tmp_path / "job.py"), "--", *checkpoint)
    ran = Ran(code=code, run=bundle.load(index.resolve("latest", tmp_path / "runs")))
    assert code == bool(check), output
    assert ran.bad() == [] if check is None else ran.outcome(check) == "fail", output
