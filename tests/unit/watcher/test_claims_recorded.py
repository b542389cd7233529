"""``ccbed_events`` in a process with the watcher, without torch, and without ccbed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import jobs

MODULES = Path(__file__).parents[3] / "orchestrator" / "rank" / "user"

OWN_LOOP = """
import pathlib, ccbed_events
state = pathlib.Path("state.txt")
ccbed_events.resumed(5, source=state if state.exists() else "peer")
ccbed_events.step(6, loss=0.5)
state.write_text("6")
ccbed_events.saved(6, path=state)
ccbed_events.point("tokens", 1024, "1")
ccbed_events.final("accuracy", float("nan"))
"""


def played(folder: Path, text: str) -> jobs.Watched:
    return jobs.run(folder, text, PYTHONPATH=f"{jobs.SITE}{os.pathsep}{MODULES}")


def test_a_job_without_torch_has_a_record_of_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state.txt").write_text("5")
    watched = played(tmp_path, OWN_LOOP)
    assert watched.code == 0, watched.output
    claims = {line["what"]: line for line in watched.of("claim")}
    assert claims["resumed"]["path"] == str(tmp_path / "state.txt")
    assert claims["resumed"]["sha256"] == hashlib.sha256(b"5").hexdigest()
    assert (claims["step"]["step"], claims["step"]["loss"]) == (6, (0.5).hex())
    assert (claims["point"]["name"], claims["final"]["value"]) == ("tokens", "nan")
    committed = [line for line in watched.of("committed") if line.get("sha256")]
    assert [line["sha256"] for line in committed] == [hashlib.sha256(b"6").hexdigest()]
    assert watched.of("end"), "the record has an end"


def test_what_torch_saved_is_not_reported_twice(tmp_path: Path) -> None:
    text = (
        "import sys, torch, ccbed_events\npath = sys.argv[0] + '.pt'\ntorch.save({}, path)\n"
        "ccbed_events.saved(0, path)\nccbed_events.saved(0)\n"
    )
    watched = played(tmp_path, text)
    assert watched.code == 0, watched.output
    assert [line["api"] for line in watched.of("save")] == ["torch.save", "script"]


def test_without_ccbed_the_calls_do_nothing_and_wrong_values_are_errors(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("CCBED")}
    text = OWN_LOOP + "\ntry:\n    ccbed_events.step(-1)\nexcept ValueError as error:\n    print(error)\n"
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, env={**env, "PYTHONPATH": str(MODULES)},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "a step must be 0 to 10,000,000 (got -1)\n"), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.txt"]
