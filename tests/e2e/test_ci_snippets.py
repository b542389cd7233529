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


def documents() -> list[Any]:
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]


def snippet(system: str) -> tuple[str, dict[str, str]]:
    """The shell part and the variables of a system."""
    github, gitlab = documents()
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
    _, gitlab = documents()
    names = [Path(name).name for name in gitlab["nightly"]["artifacts"]["reports"].values()]
    assert names == ["junit.xml", "metrics.prom"]
