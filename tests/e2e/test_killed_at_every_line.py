"""The orchestrator is killed with -9 after the lines of its history; every resumed run ends with the same facts.

The test watches the file: it shares one CPU with the orchestrator at a higher priority, so that it runs, and kills by
pid, as soon as line k is written. Without the right to a real-time priority the kill may come a few lines later.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.store import bundle
from orchestrator.system import inotify

from ..attack import scale
from . import trials
from .conftest import ROOT, Bed

#: Some hundred runs, one after the other.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

OPTIONS = ["--epochs", "1", "--fail-node", "2"]
PATIENCE_S = 600.0
#: Where a kill must have landed at least once, whatever the order in which this machine wrote its histories.
POINTS = ("rank.held", "fault.act", "fault.injected", "gang.start", "checkpoint.commit", "node.exit")
ATTEMPTS = 20
#: Every line with CCBED_ATTACK_SCALE=1; else every fifth, from a line that the seed chooses.
STRIDE = 1 if scale.SCALE >= 1 else 5


@dataclass(frozen=True, kw_only=True)
class Orchestrator:
    """`ccbed` as a process of its own. ``trial``: a file; its ranks wait at a fault's point until an orchestrator has started again."""

    bed: Bed
    trial: Path

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "XDG_STATE_HOME": str(self.bed.state.parent), "CCBED_RUNS_DIR": str(self.bed.runs)}
        log = (self.bed.runs / "orchestrator.log").open("ab")
        command = [sys.executable, "-m", "orchestrator.cli", *args]
        return subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def begin(self) -> tuple[subprocess.Popen[bytes], Path]:
        """Begin the trial: its process, and the bundle."""
        before = set(self.bed.runs.iterdir())
        process = self.start("run", str(self.trial), *OPTIONS, "--runs-dir", str(self.bed.runs))
        return process, _new_run(self.bed.runs, before, process)

    def run_killed_after(self, *lines: int) -> Path:
        """Begin the trial; kill it, and each that resumes it, once the history has so many lines. The bundle."""
        process, directory = self.begin()
        for number, line in enumerate(lines):
            if number:
                process = self.start("resume", str(directory))
            _kill_once(process, directory, functools.partial(_has_lines, line))
        return directory

    def run_killed_behind(self, point: str) -> Path:
        """Begin the trial; kill it once the history has a first line of this kind. The bundle."""
        process, directory = self.begin()
        mark = f'"f":"{point}"'.encode()
        _kill_once(process, directory, lambda history: mark in history)
        return directory


@pytest.fixture(scope="module")
def orchestrator(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestrator]:
    trial = tmp_path_factory.mktemp("trial") / "dp-ring.yml"
    trial.write_text(trials.PATIENT)
    with _clock_is_ahead():
        yield Orchestrator(bed=bed, trial=trial)


@pytest.fixture(scope="module")
def reference(orchestrator: Orchestrator) -> list[dict[str, Any]]:
    """The lines of a history that nobody disturbed (its twin is cached from then on)."""
    process, directory = orchestrator.begin()
    assert process.wait(PATIENCE_S) == 0
    return [json.loads(line) for line in (directory / bundle.HISTORY).read_text().splitlines()]


def test_killed_after_lines_of_the_history(orchestrator: Orchestrator, reference: list[dict[str, Any]]) -> None:
    hit: Counter[str] = Counter()
    for line in range(1 + scale.SEED % STRIDE, len(reference) + 1, STRIDE):
        directory = orchestrator.run_killed_after(line)
        hit[_killed_at(directory)] += 1
        _resumed_soundly(orchestrator, directory, f"killed after line {line}")
    for point in POINTS:  # the order of lines differs from run to run: line k may never have been this one
        for _ in range(ATTEMPTS):
            if not hit[point]:
                directory = orchestrator.run_killed_behind(point)
                hit[_killed_at(directory)] += 1
                _resumed_soundly(orchestrator, directory, f"killed behind {point}")
        assert hit[point], f"no kill landed behind {point}: {dict(hit)}"
    print(f"{hit.total()} kills, after: {dict(hit)}")


@pytest.mark.parametrize(("first", "later"), [(0.2, 0.5), (0.45, 0.55), (0.5, 0.9)])
def test_killed_twice_in_one_run(
    orchestrator: Orchestrator, reference: list[dict[str, Any]], first: float, later: float
) -> None:
    directory = orchestrator.run_killed_after(int(first * len(reference)), int(later * len(reference)))
    _resumed_soundly(orchestrator, directory, f"killed at {first:.0%} and {later:.0%}")


# --- what must hold ---------------------------------------------------------------------------------------------------


def _resumed_soundly(orchestrator: Orchestrator, directory: Path, when: str) -> None:
    ended = bool(bundle.load(directory).verdicts)  # histories differ by a few lines: this one was shorter
    code = 0 if ended else orchestrator.start("resume", str(directory)).wait(PATIENCE_S)
    run = bundle.load(directory)
    assert code == 0, (when, [f"{v.outcome} {v.check}: {v.text}" for v in run.verdicts if v.outcome != "pass"])
    assert _injections(orchestrator.bed, directory.name) == 1, f"{when}: fault.act on the node's own record"
    starts = Counter((event.epoch, event.value["rank"]) for event in run.history.of("rank.start"))
    assert set(starts.values()) == {1}, f"{when}: one worker group start per epoch"
    assert next(v.outcome for v in run.verdicts if v.check == "bit-exact") == "pass", when


def _injections(bed: Bed, run: str) -> int:
    """What the keeper itself has written down."""
    lines = (Path(bed.spec.workdir) / "keeper" / "events.jsonl").read_text().splitlines()
    return sum(event.get("run") == run and event["f"] == "fault.injected" for event in map(json.loads, lines))


def _killed_at(directory: Path) -> str:
    lines = (directory / bundle.HISTORY).read_bytes().splitlines()
    with contextlib.suppress(ValueError):
        return str(json.loads(lines[-1])["f"])
    return "torn"


# --- watching ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _clock_is_ahead() -> Iterator[None]:
    """This process on one CPU, ahead of its children there: they inherit the CPU, not the priority."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    is_ahead = False
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        is_ahead = True
    yield
    if is_ahead:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(0, cpus)


def _new_run(runs: Path, before: set[Path], process: subprocess.Popen[bytes]) -> Path:
    """The directory of the run that has just begun; its twin's is not it."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        new = [path for path in set(runs.iterdir()) - before if "-twin-" not in path.name and path.is_dir()]
        bundles = [path for path in new if not path.is_symlink() and (path / bundle.PLAN).exists()]
        if bundles:
            return bundles[0]
        assert process.poll() in (None, 0), (runs / "orchestrator.log").read_text()[-2000:]
        time.sleep(0.0005)
    raise AssertionError("no run has begun")


def _has_lines(lines: int, history: bytes) -> bool:
    return history.count(b"\n") >= lines


def _kill_once(process: subprocess.Popen[bytes], directory: Path, reached: Callable[[bytes], bool]) -> None:
    """SIGKILL, as soon as the history has reached the point; it may have ended before."""
    history, watcher = directory / bundle.HISTORY, inotify.Watcher()
    watcher.add_watch(str(directory), inotify.MODIFY | inotify.CREATE)
    while process.poll() is None:
        if history.exists() and reached(history.read_bytes()):
            process.send_signal(signal.SIGKILL)
            break
        _await_growth(watcher)
    watcher.close()
    process.wait(PATIENCE_S)


def _await_growth(watcher: inotify.Watcher) -> None:
    """Until something was written; where the kernel has no inotify left, a moment."""
    if watcher.fd < 0:
        time.sleep(0.0002)
        return
    select.select([watcher.fd], [], [], 0.05)
    watcher.read_names()
