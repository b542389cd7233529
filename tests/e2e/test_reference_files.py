"""A reference run changes no file of the user, wherever the job writes, and is compared with the run all the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.run import judging, preparation, work_dirs
from orchestrator.store import index

from .conftest import Bed

pytestmark = pytest.mark.e2e

#: Saves under an absolute path, ``~``, a link of the project, a directory that others use, and by DCP; a child writes a log.
JOB = """
import os, subprocess, sys, time, torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
torch.manual_seed(0)
dist.init_process_group("gloo")
model, rank, out = torch.nn.Linear(4, 2), dist.get_rank(), sys.argv[1]
optimizer = torch.optim.Adam(model.parameters())
files = [out + "/last.pt", os.path.expanduser("~/deep/down/home.pt"), "linked/link.pt", sys.argv[2] + "/mine.pt"]
first = 0
if os.path.exists(files[0]):
    for file in files:
        saved = torch.load(file)
    model.load_state_dict(saved["model"]), optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
    dcp.load({"model": model.state_dict()}, checkpoint_id=f"{out}/dcp-{first}")
if rank == 0:
    os.makedirs(out, exist_ok=True)
    subprocess.run([sys.executable, "-SEc", f"open({out + '/log'!r}, 'a').write('started at {first}\\\\n')"], check=True)
for step in range(first, 16):
    loss = model(torch.full((3, 4), step + 1.0)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if step % 4 == 3:
        dcp.save({"model": model.state_dict()}, checkpoint_id=f"{out}/dcp-{step + 1}")
        for file in files if rank == 0 else ():
            os.makedirs(os.path.dirname(file), exist_ok=True)
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, file + ".part")
            os.replace(file + ".part", file)
    dist.barrier()
    time.sleep(0.05)
"""


def state_of(*directories: Path) -> dict[str, tuple[Any, ...]]:
    """Of every file and directory: digest, time of the last change, owner and mode."""
    entries = {}
    for path in (entry for directory in directories for entry in (directory, *directory.rglob("*"))):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        entries[str(path)] = (content, status.st_mtime_ns, status.st_uid, status.st_gid, status.st_mode)
    return entries


@dataclass(kw_only=True)
class Drill:
    """A job that loses a node. ``before``: the user's files when the first reference began, and when it had prepared itself."""

    bed: Bed
    directory: Path
    before: list[dict[str, tuple[Any, ...]]] = field(default_factory=list)

    def state(self) -> dict[str, tuple[Any, ...]]:
        return state_of(*(self.directory / name for name in ("project", "out", "others", "home", "target")))

    def run(self, *options: str) -> tuple[dict[str, Any], str]:
        runs, others = self.directory / "runs", self.directory / "others"
        args = (
            "job.py",
            "--nodes",
            "2",
            "--fail-node",
            "1",
            "--recovery",
            "restart",
            "--runs-dir",
            str(runs),
            *options,
        )
        _, output = self.bed.ccbed("run", *args, "--", str(self.directory / "out"), str(others))
        verdicts = json.loads((index.resolve("latest", runs) / "verdicts.json").read_text())
        return {item["check"]: item for item in verdicts}, output


@pytest.fixture
def drill(bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drill:
    made, begin = Drill(bed=bed, directory=tmp_path), preparation.begin

    def begin_reference(draft: preparation.Draft, directory: Path) -> Any:
        if draft.origin:
            made.before.append(made.state())
        return begin(draft, directory)

    for name in ("project", "out", "others", "home", "target"):
        (tmp_path / name).mkdir()
    (tmp_path / "others/theirs.pt").write_text("of another job")
    (tmp_path / "project/linked").symlink_to(tmp_path / "target")
    (tmp_path / "project/job.py").write_text(JOB)
    monkeypatch.setattr(preparation, "begin", begin_reference)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "project")
    return made


def test_references_change_no_file_and_begin_as_the_run_did(drill: Drill) -> None:
    verdicts, output = drill.run()
    assert len(drill.before) == 2, output
    assert drill.before == [drill.state()] * 2
    assert (drill.directory / "out/log").read_text().splitlines()[0] == "started at 0"
    assert (drill.directory / "out/log").read_text().count("started") == 2, "the run's two starts"
    assert verdicts["bit-exact"]["outcome"] == "pass", output
    assert "of 2 ranks equal to the reference run, to step 16" in verdicts["bit-exact"]["text"]


def test_where_no_view_can_be_made_no_reference_of_such_a_job_begins(
    drill: Drill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_dirs, "open_view", lambda *_, **__: None)
    verdicts, output = drill.run()
    assert (
        f"no reference run follows: it would begin with what the run wrote outside of its project, {drill.directory}/"
        in output
    )
    assert "use {out} in its arguments, --map, or --reference" in output
    assert drill.before == [drill.state()]
    assert verdicts["bit-exact"]["outcome"] == "skipped"


#: Saves in a directory that each run has for itself, and reads data outside of its project.
REPEATABLE = """
import os, sys, time, torch, torch.distributed as dist
torch.manual_seed(0)
dist.init_process_group("gloo")
model, last = torch.nn.Linear(4, 2), sys.argv[1] + "/last.pt"
optimizer = torch.optim.SGD(model.parameters(), 0.1)
first, scale = 0, float(open(sys.argv[2]).read())
if os.path.exists(last):
    saved = torch.load(last)
    model.load_state_dict(saved["model"]), optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
for step in range(first, 16):
    optimizer.zero_grad()
    model(torch.full((3, 4), scale * step)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    if step % 4 == 3 and dist.get_rank() == 0:
        os.makedirs(sys.argv[1], exist_ok=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, last + ".part")
        os.replace(last + ".part", last)
    dist.barrier()
    time.sleep(0.05)
"""


def test_the_second_drill_of_an_unchanged_script_costs_one_run(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/job.py").write_text(REPEATABLE)
    (tmp_path / "scale").write_text("0.01")
    monkeypatch.chdir(tmp_path / "project")

    def drill() -> tuple[str, int]:
        runs = tmp_path / "runs"
        before = len(list(runs.glob("*-twin-*")))
        options = ("--nodes", "2", "--fail-node", "1", "--runs-dir", str(runs))
        code, output = bed.ccbed("run", "job.py", *options, "--", "{out}", str(tmp_path / "scale"))
        assert code == 0, output
        return output, len(list(runs.glob("*-twin-*"))) - before

    output, made = drill()
    assert made == 2 and "used again" not in output
    output, made = drill()
    assert made == 0 and " UTC used again: " in output, output
    with monkeypatch.context() as patched:
        patched.setattr(judging, "passes", lambda *_: False)
        output, made = drill()
    assert made == 2 and "only PASS rests on those of an earlier run" in output, output
    (tmp_path / "scale").write_text("0.02")
    output, made = drill()
    assert made == 2 and f"not used again: {tmp_path / 'scale'} has changed" in output, output
