"""A night on a real bed: it ends with a row for every cell, and a killed one goes on without running anything twice."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app.hosts import quarantine
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.nightly import night_files
from orchestrator.nightly.app import night_trials
from orchestrator.nightly.suite import Night, Suite
from orchestrator.providers.process.process_provider import ProcessProvider

from ...patience import until
from ..conftest import Bed, ccbed

pytestmark = pytest.mark.e2e

#: Seconds for a condition that comes within one on an idle machine.
PATIENCE_S = 600.0
NIGHT = Night(
    name="n", suite=Suite(name="s", cells=()), bed="local", provider="process", hosts={}, number=0, started="", order=(),
    command="ccbed nightly (test)", ccbed="",
)  # fmt: skip
COUNTS = "import pathlib\nwith pathlib.Path({file!r}).open('a') as lines:\n    lines.write('run\\n')\n"


def script(directory: Path, name: str, text: str) -> Path:
    """A script that counts its runs in ``NAME.count``, then does ``text``."""
    (directory / f"{name}.py").write_text(COUNTS.format(file=str(directory / f"{name}.count")) + text)
    return directory / f"{name}.count"


def suite(directory: Path, *trials: str) -> str:
    file = directory / "mine.yml"
    file.write_text(
        "suite: mine\nseed: 3\ndefaults: {world: {nodes: 1}}\ntrials:\n" + "".join(f"  - {t}\n" for t in trials)
    )
    return str(file)


def nightly(bed: Bed, directory: Path, *args: str) -> tuple[int, dict[str, Any]]:
    line = ("nightly", *args, "--runs-dir", str(directory / "runs"), "--json")
    code, output = bed.ccbed(*line)
    assert output.startswith("{"), output
    document: dict[str, Any] = json.loads(output)
    return code, document


def test_a_mistake_in_the_suite_is_named_before_its_bed_is_brought_up(tmp_path: Path) -> None:
    inventory, state = tmp_path / "local.yml", tmp_path / "ccbed"
    inventory.write_text(
        "all: {hosts: {localhost: {ansible_connection: local}}, vars: {ccbed_provider: process, ccbed_bed: never}}\n"
    )
    code, text = ccbed(state, "nightly", suite(tmp_path, "{trial: dp-ring, twins: 2}"), "-i", str(inventory))
    assert code == 3 and "trials[0].twins: unknown key" in text, text
    assert not list(state.glob("beds/*")) and "keepers" not in text


def test_a_failing_and_a_hanging_trial_are_rows_and_the_suite_ends(bed: Bed, tmp_path: Path) -> None:
    script(tmp_path, "passes", "")
    script(tmp_path, "fails", "raise SystemExit(3)\n")
    script(tmp_path, "hangs", "import time\ntime.sleep(600)\n")
    file = suite(
        tmp_path, "{trial: passes.py, repeats: 2}", "{trial: fails.py}", "{trial: hangs.py, deadline: 1s, repeats: 1}",
        "{trial: passes.py, name: gpu, needs: [gpu]}",
        "{trial: passes.py, name: many, world: {nodes: 64}}",
    )  # fmt: skip
    code, document = nightly(bed, tmp_path, file)
    rows = {(row["cell"], row["repeat"]): row for row in document["rows"]}
    assert {key: row["state"] for key, row in rows.items()} == {
        ("passes", 0): "passed", ("passes", 1): "passed", ("fails", 0): "failed", ("hangs", 0): "unfinished",
        ("gpu", 0): "skipped", ("many", 0): "skipped",
    }  # fmt: skip
    assert "not finished after 1 s" in rows["hangs", 0]["reason"]
    assert rows["gpu", 0]["reason"] == "needs a GPU on every node; bed local has none"
    assert "needs 64 nodes; bed local has 4" in rows["many", 0]["reason"]
    assert (code, document["exit"]) == (1, 1)
    directory = Path(document["directory"])
    assert night_files.verify(directory) == ()
    assert all(
        (directory / "runs" / row["run"] / "manifest-sha256.txt").is_file() for row in rows.values() if row["run"]
    )
    assert bed.unchanged()


def test_a_killed_night_is_resumed_and_runs_nothing_twice(bed: Bed, tmp_path: Path) -> None:
    """Killed in the middle of its second trial. While it runs, no other night and no run starts on its bed."""
    number = quarantine.read(Path(bed.spec.workdir)).next_number  # other tests may have recorded nights of this bed
    ready, end = tmp_path / "ready", tmp_path / "end"
    waits = f"import time\npathlib.Path({str(ready)!r}).touch()\nwhile not pathlib.Path({str(end)!r}).exists():\n    time.sleep(0.01)\n"
    counts = [script(tmp_path, name, "") for name in ("first", "last")]
    counts.append(script(tmp_path, "waits", waits))
    file = suite(tmp_path, "first.py", "waits.py", "last.py")
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli", "nightly", file, "--bed", "local", "--record", "--runs-dir", str(tmp_path / "runs")],
        env={**os.environ, "XDG_STATE_HOME": str(bed.state.parent)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(ready.exists)
        (night,) = night_files.nights(tmp_path / "runs")
        for line in (("nightly", file), ("run", str(tmp_path / "first.py"))):
            code, output = bed.ccbed(*line, "--runs-dir", str(tmp_path / "other"))
            assert code == 3
            assert f"bed local is busy with night {night.name} (pid {process.pid} of user " in output
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    ended = {row.cell for row in night_files.read_rows(night)}
    code, output = bed.ccbed("nightly", file, "--runs-dir", str(tmp_path / "other"))
    assert code == 3
    assert f"bed local has an open night, {night.name}, whose orchestrator is gone" in output
    end.touch()
    code, document = nightly(bed, tmp_path, "--resume", str(night))
    assert {row["cell"]: row["state"] for row in document["rows"]} == dict.fromkeys(
        ("first", "waits", "last"), "passed"
    )
    assert (code, document["night"], document["number"]) == (0, night.name, number)
    assert [count.read_text() for count in counts] == ["run\n"] * 3
    assert "waits" not in ended
    assert nightly(bed, tmp_path, "--resume", night.name[-4:]) == (0, document), "an ended night is judged again"


def test_a_timer_ends_the_open_nights_of_any_suite_first(bed: Bed, tmp_path: Path) -> None:
    """A killed night, left as it is, blocks every later one: a recent one is resumed, an old one closed. Runs lie anywhere."""
    ready, end = tmp_path / "ready", tmp_path / "end"
    waits = f"import time\npathlib.Path({str(ready)!r}).touch()\nwhile not pathlib.Path({str(end)!r}).exists():\n    time.sleep(0.01)\n"
    script(tmp_path, "waits", waits)
    file = suite(tmp_path, "waits.py")
    other = tmp_path / "other.yml"
    other.write_text(Path(file).read_text().replace("suite: mine", "suite: other"))
    command = [
        sys.executable,
        "-m",
        "orchestrator.cli",
        "nightly",
        file,
        "--bed",
        "local",
        "--runs-dir",
        str(tmp_path / "runs"),
    ]
    for is_old in (True, False):
        ready.unlink(missing_ok=True)
        end.unlink(missing_ok=True)
        process = subprocess.Popen(
            command, env={**os.environ, "XDG_STATE_HOME": str(bed.state.parent)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            until(ready.exists)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        (night,) = [path for path in night_files.nights(tmp_path / "runs") if not night_files.is_closed(path)]
        if is_old:
            plan = json.loads((night / "night.json").read_text())
            (night / "night.json").write_text(json.dumps({**plan, "started": "2025-01-01T00:00:00Z"}))
        end.touch()
        runs = tmp_path / ("runs" if is_old else "elsewhere")
        code, output = bed.ccbed("nightly", str(other), "--resume-open", "--runs-dir", str(runs))
        assert code == 0, output
        assert all(map(night_files.is_closed, night_files.nights(tmp_path / "runs")))
        states = [row.state for row in night_files.read_rows(night)]
        assert states == (["unfinished"] if is_old else ["passed"]), output
        done = "closed (it began more than 12 h ago), exit 1" if is_old else "resumed, exit 0"
        assert f"open night {night.name}" in output
        assert done in output


def test_a_node_that_died_between_trials_is_named_and_brought_up_again(bed: Bed, tmp_path: Path) -> None:
    session = Session(state=bed.state, terminal=terminal.Terminal(out=io.StringIO(), err=io.StringIO()))
    trials = night_trials.NightTrials(session=session, bed=bed.spec, directory=tmp_path, night=NIGHT)
    assert trials.restore() == {}
    os.kill(ProcessProvider(bed.state).observe(bed.spec).node("n3").pid, signal.SIGKILL)
    until(lambda: ProcessProvider(bed.state).observe(bed.spec).node("n3").state == "dead")
    lost = trials.restore()
    assert list(lost) == ["n3"]
    assert lost["n3"].startswith("was dead")
    assert lost["n3"].endswith("; brought up again")
    assert bed.unchanged()
