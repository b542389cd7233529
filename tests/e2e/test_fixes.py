"""The advice for a lost part, applied to the job that lost it, makes the job resume whole."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.core.verdict import fixes, judge, ladder
from orchestrator.jobs.app.judged_records import CHECKS
from orchestrator.model.event import History
from orchestrator.model.run import Run
from orchestrator.model.trial import CheckSpec, Trial
from orchestrator.store import recorded_files
from orchestrator.views import training

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.e2e
#: Program -> what it lacks -> the part of the state, and what the advice and the missing line have in common.
LACKS = {
    "step_lr": {
        "weights": ("weights", "model.load_state_dict("),
        "optimizer": ("optimizer", "optimizer.load_state_dict("),
        "scheduler": ("scheduler", "scheduler.load_state_dict("),
        "data": ("data position", ""),
    },
    "grad_scaler": {"scaler": ("scaler", "scaler.load_state_dict("), "rng": ("RNG", "torch.set_rng_state(")},
    "ema": {"ema": ("copies of the model", ".load_state_dict(")},
    "batch_norm": {"buffers": ("buffers", "")},
}


@pytest.mark.parametrize("program", LACKS)
def test_the_advice_for_each_lost_part_makes_a_job_resume_whole(program: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.e2e.test_fixes", program, str(tmp_path)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    judged = json.loads(done.stdout.splitlines()[-1])
    right = judged.pop("")
    # whether the buffers of a killed rank were recorded with their batch depends on when it was killed
    assert right["state"] in ("holds", *(["unknown"] if program == "batch_norm" else [])), right
    assert right["lost"] == []
    for lack, (part, call) in LACKS[program].items():
        assert (judged[lack]["state"], part in judged[lack]["lost"]) == ("does not hold", True), judged[lack]
        assert call in judged[lack]["line"]
        assert judged[lack]["fix"] == fixes.TORCH[part] and call in fixes.TORCH[part], judged[lack]


def main(name: str, root: Path) -> None:
    """Run the job as it is, and without each of its lines: what each of them restores is known by ``# restores``."""
    from tests.bench import mutations, resumptions

    resumptions._import_torch()
    program = next(program for program in mutations.programs() if program.name == name)
    case = resumptions._case(random.Random(5), program)
    judged = {}
    for lack in ("", *LACKS[name]):
        directory = root / (lack or "right")
        problem, is_ready = resumptions.run_case(dataclasses.replace(case, wrong=lack), directory)
        assert is_ready and (lack or not problem), problem
        lines = [m["statement"] for m in mutations.RESTORES.finditer(program.text) if m["part"] == lack]
        judged[lack] = {**_rung(directory / "records", CHECKS), "line": " ".join(lines)}
        part = LACKS[name][lack][0] if lack else "weights"
        judged[lack]["fix"] = fixes.of(_run(directory / "records"), part)
    print(json.dumps(judged))


def _run(records: Path) -> Run:
    trial = Trial(name="job", workload="script", require="whole")
    return Run(directory=str(records), trial=trial, history=History(()), files=recorded_files.WatchDirectory(records))


def _rung(records: Path, checks: tuple[str, ...]) -> dict[str, object]:
    from tests.bench.resumptions import CATALOGUE

    run = _run(records)
    run = dataclasses.replace(run, verdicts=judge.judge(run, CATALOGUE, [CheckSpec(name=name) for name in checks]))
    whole = ladder.ladder(run, training.view(run))[1]
    return {"state": whole.state, "lost": [*whole.lost], "text": whole.text}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
