"""Repeated runs that were interrupted go on: nothing is run twice, and the page has all runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nightly import night_files
from orchestrator.nightly.suite import Row

from ...patience import until
from ..conftest import Bed
from ..test_node_probes import QUICK
from .test_nightly import script

pytestmark = pytest.mark.e2e

#: The second run waits for a file.
WAITS = """
import time
count = pathlib.Path({count!r}).read_text().count("run")
while count == 2 and not pathlib.Path({end!r}).exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_repeats_go_on_where_they_ended(bed: Bed, tmp_path: Path, how: signal.Signals) -> None:
    """After a kill the second run is resumed. Ctrl-C ends a script on this machine, so that its run is run anew."""
    end, runs = tmp_path / "end", tmp_path / "runs"
    count = script(tmp_path, "waits", WAITS.format(count=str(tmp_path / "waits.count"), end=str(end)))
    line = (
        "run",
        str(tmp_path / "waits.py"),
        "--bed",
        "local",
        "--nodes",
        "1",
        "--runs-dir",
        str(runs),
        "--repeat",
        "3",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli", *line],
        env={**os.environ, "XDG_STATE_HOME": str(bed.state.parent)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: count.exists() and count.read_text().count("run") == 2)
    finally:
        process.send_signal(how)
        process.wait()
    (directory,) = (path for path in runs.iterdir() if (path / "night.json").is_file())
    assert [row.repeat for row in night_files.read_rows(directory)] == [0]
    assert not night_files.is_closed(directory)
    end.touch()
    code, output = bed.ccbed(*line[:-1], "4", "--resume", str(directory))
    assert code == 3
    assert "was begun with --repeat 3, not with --repeat 4" in output
    code, output = bed.ccbed("resume", str(directory), "--runs-dir", str(runs), "--json")
    assert code == 0, output
    document: dict[str, Any] = json.loads(output[output.index("{") :])
    assert [run["exit"] for run in document["runs"]] == [0, 0, 0]
    assert [row.repeat for row in night_files.read_rows(directory)] == [0, 1, 2]
    assert count.read_text().count("run") == (3 if how == signal.SIGKILL else 4)
    page = (directory / "report" / "summary.md").read_text()
    assert all(run["run"] in page for run in document["runs"])
    assert "3 passed" in page
    assert "missing" not in page
    code, output = bed.ccbed("resume", str(directory), "--runs-dir", str(runs))
    assert code == 0
    assert "has ended, exit 0; report: " in output


def _begun(directory: Path, count: int) -> bool:
    """Whether the gang of the run with this number has started, in the order of beginning."""
    histories = sorted(directory.glob("runs/2*/history.jsonl"))
    return len(histories) >= count and "gang.start" in histories[count - 1].read_text()


#: Moments at which the controller of a sweep of two rounds is killed.
MOMENTS: dict[str, Callable[[Path], object]] = {
    "before its plan": lambda directory: True,
    "before its first round": lambda directory: (directory / "night.json").is_file(),
    "in its first round": lambda directory: _begun(directory, 1),
    "between its rounds": lambda directory: len(night_files.read_rows(directory)) == 1,
    "in its second round": lambda directory: _begun(directory, 2),
    "before its judgement": night_files.is_closed,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_sweep_keeps_its_finished_rounds(bed: Bed, tmp_path: Path, moment: str) -> None:
    """Bare `resume` runs what is missing, and ends with the outcome and the code of the sweep."""
    runs, file = tmp_path / "runs", tmp_path / "gemm.json"
    params = {"probes": ["gemm"], **QUICK}
    file.write_text(
        json.dumps({"trial": "gemm", "workload": "node-probe", "params": params, "recovery": {"policy": "none"}})
    )
    line = ("sweep", str(file), "--each-node", "--rounds", "2", "--bed", "local", "--runs-dir", str(runs))
    printed = tmp_path / "printed"

    def is_reached() -> bool:
        return any(map(MOMENTS[moment], runs.glob("*-sweep-gemm-*")))

    with printed.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.cli", *line],
            env={**os.environ, "XDG_STATE_HOME": str(bed.state.parent)}, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        until(lambda: is_reached() or process.poll() is not None)
        assert is_reached(), printed.read_text()
    finally:
        process.kill()
        process.wait()
    (directory,) = runs.glob("*-sweep-gemm-*")
    if moment == "before its plan" and not (directory / "night.json").exists():
        code, output = bed.ccbed("resume", "--runs-dir", str(runs))
        assert code == 3
        assert "it was killed before its run" in output
        return
    kept = {row.run: (directory / "runs" / row.run / "history.jsonl").read_bytes() for row in rounds_of(directory)}
    begun = {path.parent.name for path in directory.glob("runs/2*/history.jsonl")}
    code, output = bed.ccbed("resume", "--runs-dir", str(runs))
    assert code in (0, 2), output  # on a busy machine one of the nodes may be odd
    assert f"exit {code}" in output
    assert [row.repeat for row in rounds_of(directory)][:2] == [0, 1], "a confirming round may follow"
    assert begun <= {row.run for row in rounds_of(directory)}, "a round that had begun is resumed"
    assert all((directory / "runs" / run / "history.jsonl").read_bytes() == content for run, content in kept.items())
    assert json.loads((directory / "sweep.json").read_text())["exit"] == code
    second, output = bed.ccbed("resume", str(directory), "--runs-dir", str(runs))
    assert (second, f"sweep    has ended, exit {code}" in output) == (code, True)


def rounds_of(directory: Path) -> list[Row]:
    return [row for row in night_files.read_rows(directory) if row.run]
