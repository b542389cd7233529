"""What a failed run leaves is kept, shown, and pruned; a run that is open keeps what it needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.store import index

from . import trials
from .conftest import Bed
from .test_bad_input import untouched
from .test_interrupted import at, ctrl_c

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("own_interrupts")]


#: It resumes without the state of its optimizer.
JOB = """
import glob, os, time, torch, torch.distributed as dist
torch.manual_seed(0)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.Adam(model.parameters(), 0.1)
saves, first = sorted(glob.glob("save-*.pt")), 0
if saves:
    saved = torch.load(saves[-1])
    model.load_state_dict(saved["model"])
    first = saved["step"]
for step in range(first, 20):
    loss = model(torch.full((3, 4), step + 1.0)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3 and dist.get_rank() == 0:
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(saved, "next.part")
        os.replace("next.part", f"save-{step + 1:02}.pt")
    dist.barrier()
    time.sleep(0.05)
"""


def of_run(bed: Bed, run: str) -> list[Path]:
    workdir = Path(bed.spec.workdir)
    return [
        *workdir.glob(f"nodes/*/runs/{run}"),
        *Path(bed.spec.shared_dir).glob(run),
        *workdir.glob(f"*/done/{run}.*"),
    ]


def leftovers(bed: Bed) -> dict[str, int]:
    return dict(json.loads(bed.ccbed("status", "local", "--json")[1])[0]["leftovers"])


def test_a_failed_run_is_kept_until_it_is_pruned(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("raise SystemExit(3)\n")
    code, output = bed.ccbed("run", str(tmp_path / "job.py"), "--runs-dir", str(tmp_path / "runs"))
    assert code == 1, output
    run = index.resolve("latest", tmp_path / "runs").name
    assert of_run(bed, run) != []
    assert leftovers(bed)["count"] > 0
    code, output = bed.ccbed("prune", "local", "--older-than", "0s", "--dry-run", "--runs-dir", str(tmp_path / "runs"))
    assert (code, run in output, of_run(bed, run) != []) == (0, True, True)
    assert bed.ccbed("prune", "local", "--older-than", "0s", "--runs-dir", str(tmp_path / "runs"))[0] == 0
    assert of_run(bed, run) == []
    assert index.resolve("latest", tmp_path / "runs").name == run, "its bundle is no leftover"
    assert bed.ccbed("prune", "local", "--older-than", "0s", "--runs", "--runs-dir", str(tmp_path / "runs"))[0] == 0
    assert index.runs(tmp_path / "runs") == ()
    assert untouched(bed)
    assert bed.run(trials.dp(checks=())).code == 0, "the payload is put again"


def test_what_a_failed_run_and_its_references_left_is_stored_once(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bundle has the files of the nodes; references keep their two newest saves; the user's own files all stay."""
    project, runs = tmp_path / "project", tmp_path / "runs"
    project.mkdir()
    (project / "job.py").write_text(JOB)
    monkeypatch.chdir(project)
    command = ("run", "job.py", "--nodes", "2", "--fail-node", "1", "--recovery", "restart", "--runs-dir", str(runs))
    code, output = bed.ccbed(*command)
    assert code == 1 and "optimizer" in output, output
    saves = [f"save-{step:02}.pt" for step in range(4, 24, 4)]
    assert sorted(path.name for path in project.glob("*.pt")) == saves
    references = [path for path in runs.iterdir() if "-twin" in path.name]
    assert len(references) == 2
    for reference in references:
        assert sorted(path.name for path in (reference / "work").glob("*.pt")) == saves[-2:], reference
    left = [path for path in Path(bed.spec.workdir).glob("nodes/*/runs/*/**/*") if path.is_file()]
    assert left == []
    assert list((index.resolve("latest", runs) / "nodes").glob("*/*/rank-*.log"))


def test_an_interrupted_run_is_resumed_after_a_prune(bed: Bed) -> None:
    trial = trials.dp(params={"step_min_ms": 200}, checks=(), liveness=replace(trials.LIVENESS, wall_s=600.0))
    done = bed.run(trial, on_event=at("checkpoint.commit", ctrl_c))
    assert done.code == 130
    assert bed.ccbed("prune", "--older-than", "0s", "--keep-size", "0", "--runs", "--runs-dir", str(bed.runs))[0] == 0
    code, output = bed.ccbed("resume", str(done.directory))
    assert code == 0, output
    assert untouched(bed)
