"""A user's script runs where it is, on nodes that share the file system of this machine: nothing is copied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.store import index

from .conftest import Bed

TRAIN = """
import os, sys
import json
from pathlib import Path
from . import model
import torch.distributed as dist
dist.init_process_group("gloo")
print("facts:", __name__, __package__, __file__, os.getcwd(), sys.argv[1:], sys.path[0], model.WIDTH, flush=True)
if dist.get_rank() == 0:
    Path("out").mkdir(exist_ok=True)
    Path("out/result.txt").write_text(Path("data/tiny.txt").read_text())
dist.barrier()
dist.destroy_process_group()
"""


def logs(bed: Bed, directory: Path) -> str:
    return "".join(file.read_text() for file in sorted(directory.glob("nodes/*/*/rank-*.log")))


def test_a_module_runs_in_the_users_directory_with_its_packages_links_and_files_of_any_size(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / "pkg").mkdir(parents=True)
    (project / "data").mkdir()
    (project / "pkg/train.py").write_text(TRAIN)
    (project / "pkg/model.py").write_text("WIDTH = 7\n")
    (project / "tiny").write_text("linked")
    (project / "data/tiny.txt").symlink_to("../tiny")
    with (project / "old.pt").open("wb") as file:
        file.truncate(10 * 1024**3)
    monkeypatch.chdir(project)
    runs = tmp_path / "runs"
    code, output = bed.ccbed("run", "-m", "pkg.train", "--nodes", "2", "--runs-dir", str(runs), "--", "--lr", "1")
    assert code == 0, output
    directory = index.resolve("latest", runs)
    facts = f"facts: __main__ pkg {project}/pkg/train.py {project} ['--lr', '1'] {project} 7"
    assert logs(bed, directory).count(facts) == 2
    assert (project / "out/result.txt").read_text() == "linked"
    assert {str(path.relative_to(directory / "inputs/user")) for path in directory.glob("inputs/user/**/*.py")} == {
        "pkg/train.py",
        "pkg/model.py",
    }


def test_a_linked_script_is_named_by_its_link_and_imports_what_lies_beside_its_target(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("import os, near; print('facts:', __file__, near.X, os.getcwd())\n")
    (tmp_path / "src/near.py").write_text("X = 5\n")
    (tmp_path / "job.py").symlink_to("src/train.py")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, output = bed.ccbed("run", "../job.py", "--nodes", "1", "--runs-dir", str(tmp_path / "runs"))
    assert code == 0, output
    assert f"facts: {tmp_path}/job.py 5 {tmp_path}/elsewhere" in logs(bed, index.resolve("latest", tmp_path / "runs"))


def test_an_endless_script_is_stopped_as_planned_and_passes(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.py").write_text("import time\nwhile True: time.sleep(0.01)\n")
    monkeypatch.chdir(tmp_path)
    code, output = bed.ccbed("run", "job.py", "--nodes", "2", "--stop-at", "0.3s", "--runs-dir", str(tmp_path / "runs"))
    assert code == 0, output
    assert "stopped as planned at 0.3s" in output
    assert "survived       yes" in output
    code, output = bed.ccbed("run", "job.py", "--stop-at", "5s", "--fail-node", "1", "--at", "5s")
    assert code == 3
    assert "the run would stop at 5s, before f0 (crash-node, after 5 s) is injected" in output


SEES = """
import os
import json
from pathlib import Path
rank = os.environ["RANK"]
print("sees:", sorted(path.name for path in Path(".").iterdir()), os.getcwd(), flush=True)
Path("out.txt").write_text("written")
"""


def test_a_run_and_its_twin_never_see_each_others_files(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, runs = tmp_path / "project", tmp_path / "runs"
    project.mkdir()
    (project / "job.py").write_text(SEES)
    monkeypatch.chdir(project)
    code, output = bed.ccbed("run", "job.py", "--nodes", "1", "--reference", "--runs-dir", str(runs))
    assert code == 2, "nothing is known to compare: the script makes no step"
    assert "exact          unknown" in output
    directories = [path for path in runs.iterdir() if path.is_dir() and not path.is_symlink()]
    assert len(directories) == 2
    for directory in directories:
        assert f"sees: ['job.py'] {directory}/work" in logs(bed, directory)
        assert (directory / "work/out.txt").read_text() == "written"
        assert bed.ccbed("check", str(directory))[0] in (0, 2)
    assert [path.name for path in project.iterdir()] == ["job.py"]


TRAINS = """
import os, sys, time, torch, torch.distributed as dist
torch.manual_seed(0)
dist.init_process_group("gloo")
model, rank = torch.nn.Linear(4, 2), dist.get_rank()
optimizer = torch.optim.Adam(model.parameters())
first = 0
if os.path.exists("last.pt"):
    saved = torch.load("last.pt")
    model.load_state_dict(saved["model"]), optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
for step in range(first, 24):
    loss = model(torch.full((3, 4), step + 1.0)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if rank == 0 and step % 4 == 3:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, "part")
        os.replace("part", "last.pt")
    dist.barrier()
    time.sleep(0.1)
"""


def test_a_short_drill_runs_in_place_and_is_compared_with_a_twin_that_began_as_it_did(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, runs = tmp_path / "project", tmp_path / "runs"
    project.mkdir()
    (project / "job.py").write_text(TRAINS)
    monkeypatch.chdir(project)
    args = ("--nodes", "2", "--fail-node", "1", "--recovery", "restart", "--runs-dir", str(runs), "--json")
    code, output = bed.ccbed("run", "job.py", *args)
    verdicts = {item["check"]: item for item in json.loads(output)["verdicts"]}
    assert code in (0, 2), "what the killed rank had recorded of its last checkpoint depends on its speed"
    assert {verdicts[name]["outcome"] for name in ("bit-exact", "evidence-agrees", "finished")} == {"pass"}, output
    assert "of 2 ranks equal to the reference run, to step 24" in verdicts["bit-exact"]["text"]
    assert {path.name for path in project.iterdir()} == {"job.py", "last.pt"}
    directory = index.resolve("latest", runs)
    assert not (directory / "work").exists(), "the copy for the reference run is removed"
    twin = json.loads((directory / "twin.json").read_text())
    for name in (twin["run"], twin["control"]["run"]):
        assert (runs / name / "work/last.pt").exists() == (code != 0), "copies of a run that passed are removed"
        assert bed.ccbed("bundle", "verify", str(runs / name))[0] == 0
    others = [runs / twin["run"], runs / twin["control"]["run"]]
    records = [file.read_text().splitlines() for run in others for file in run.glob("nodes/*/*/watch-*.jsonl")]
    chosen = [line for lines in records for line in map(json.loads, lines) if line["k"] == "every"]
    assert chosen and all(line["fixed"] and line["every"] == twin["every"] for line in chosen)
    assert bed.ccbed("check", str(directory))[0] == code
