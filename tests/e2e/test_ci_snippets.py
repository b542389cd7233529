"""The snippets for CI systems run as they stand in the document: a real night on a real bed, by the shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import ROOT, Bed

pytestmark = pytest.mark.e2e

PAGE = ROOT / "orchestrator" / "nightly" / "ci.md"


ACTION = ROOT / ".github" / "actions" / "drill"
#: Loads its model and, unless told otherwise, its optimizer.
JOB = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
model, step = torch.nn.Linear(4, 1), 0
wrapped = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.01)
if os.path.exists("last.pt"):
    saved = torch.load("last.pt")
    step = saved["step"]
    model.load_state_dict(saved["model"])
    if "--forget" not in sys.argv:
        optimizer.load_state_dict(saved["optimizer"])
while step < 30:
    torch.manual_seed(1000 * step + dist.get_rank())
    inputs = torch.randn(8, 4)
    optimizer.zero_grad()
    (wrapped(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    step += 1
    if step % 10 == 0 and dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "next.pt")
        os.replace("next.pt", "last.pt")
    if step % 10 == 0:
        dist.barrier()
"""


def documents() -> list[Any]:
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]


def snippet(system: str) -> tuple[str, dict[str, str]]:
    """The shell part and the variables of a system."""
    *_, github, gitlab = documents()
    if system == "github":
        job = github["jobs"]["nightly"]
        (script,) = [step["run"] for step in job["steps"] if "run" in step]
        return script, job["env"]
    (script,) = gitlab["nightly"]["script"]
    return script, gitlab["nightly"]["variables"]


@pytest.mark.parametrize(
    ("system", "shell", "text", "code"),
    [("github", ["bash", "-e"], "", 0), ("gitlab", ["sh", "-e"], "raise SystemExit(3)\n", 1)],
)
def test_the_snippet_runs_a_night_and_leaves_its_report(
    system: str, shell: list[str], text: str, code: int, bed: Bed, tmp_path: Path
) -> None:
    (tmp_path / "trial.py").write_text(text)
    suite = "suite: tiny\ntrials:\n  - {trial: trial.py, world: {nodes: 1}, repeats: 1}\n"
    (tmp_path / "tiny.yml").write_text(suite)
    script, variables = snippet(system)
    own = {"INVENTORY": str(ROOT / "inventories/local.yml"), "SUITE": "tiny.yml", "RUNS": str(tmp_path / "runs")}
    assert own.keys() == variables.keys()
    summary = tmp_path / "step-summary"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    state = {"XDG_STATE_HOME": str(bed.state.parent), "GITHUB_STEP_SUMMARY": str(summary), "PATH": path}
    done = subprocess.run(
        [*shell, "-c", script], cwd=tmp_path, env={**os.environ, **own, **state}, capture_output=True, text=True, timeout=900, check=False
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    report = tmp_path / "report"
    assert {file.name for file in report.iterdir()} >= {
        "index.html",
        "summary.md",
        "junit.xml",
        "metrics.prom",
    }
    assert ("<failure" in (report / "junit.xml").read_text()) == bool(code)
    assert f'ccbed_night_exit_code{{bed="local",suite="tiny"}} {code}\n' in (report / "metrics.prom").read_text()
    if system == "github":
        assert summary.read_text() == (report / "summary.md").read_text()


def test_the_files_that_a_snippet_names_are_those_of_a_report() -> None:
    *_, gitlab = documents()
    names = [Path(name).name for name in gitlab["nightly"]["artifacts"]["reports"].values()]
    assert names == ["junit.xml", "metrics.prom"]


def test_the_drill_of_the_action_names_what_was_lost_beside_the_line_that_loads(bed: Bed, tmp_path: Path) -> None:
    """Its step runs as it stands, with the defaults of its inputs; the page's own example names inputs that there are."""
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    drill, gitlab = documents()[:2]
    assert {"script", *action["inputs"]} > drill["jobs"]["drill"]["steps"][-1]["with"].keys()
    (step,) = [step for step in action["runs"]["steps"] if step.get("id") == "drill"]
    inputs = {name.upper().replace("-", "_"): str(about.get("default", "")) for name, about in action["inputs"].items()}
    assert inputs.keys() == step["env"].keys() and set(gitlab["drill"]["variables"]) < inputs.keys()
    (tmp_path / "train.py").write_text(JOB)
    github = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GITHUB_OUTPUT": str(tmp_path / "output")}
    own = {"SCRIPT": "train.py", "ARGS": "--forget", "OPTIONS": "--no-reference", "PYTHON": sys.executable}
    environment = {
        **os.environ,
        **inputs,
        **github,
        **own,
        "GITHUB_ACTION_PATH": str(ACTION),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    line = JOB.splitlines().index('    model.load_state_dict(saved["model"])') + 1
    (shown,) = [text for text in done.stdout.splitlines() if text.startswith("::")]
    assert shown.startswith("::error file=train.py,line="), shown
    assert line - 2 <= int(shown.split("line=")[1].split(",")[0]) <= line + 2 and "without its optimizer" in shown
    assert (tmp_path / "output").read_text().startswith("outcome=fail\nartifact=ccbed-2")
    assert (tmp_path / "summary").read_text() == (tmp_path / "ccbed-report" / "summary.md").read_text()
    assert not list((tmp_path / "state").glob("ccbed/beds/*.json")), "the bed is taken down"
