"""Repeated runs that were interrupted go on: nothing is run twice, and the page has all runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nightly import night_files

from .conftest import Bed
from .test_nightly import script, wait_for

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
        wait_for(lambda: count.exists() and count.read_text().count("run") == 2)
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
    page = (directory / "report" / "index.html").read_text()
    assert all(run["run"] in page for run in document["runs"])
    assert "3 passed" in page
    assert "missing" not in page
    code, output = bed.ccbed("resume", str(directory), "--runs-dir", str(runs))
    assert code == 0
    assert "has ended, exit 0; report: " in output
