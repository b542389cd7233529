"""A process records when it did not run: stopped by a signal, and not otherwise; waiting for a CPU is told from that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.node.oslayer import processes
from orchestrator.rank.runtime import run_gaps
from orchestrator.rank.runtime.run_gaps import LEAST_S, RunGaps, is_gap, throttled_s

#: Prints a line when it watches; at end of input the gaps.
CHILD = """
import json, sys, time
from orchestrator.rank.runtime.run_gaps import RunGaps
with RunGaps() as gaps:
    start = time.monotonic()
    print("watching", flush=True)
    sys.stdin.read()
    print(json.dumps(gaps.take(start, time.monotonic())), flush=True)
"""
STOP_S = 1.0


def test_a_stopped_process_records_the_gap_and_that_it_did_not_wait_for_a_cpu() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout and child.stdin
        assert child.stdout.readline() == "watching\n"
        begin = time.monotonic()
        os.kill(child.pid, signal.SIGSTOP)
        while (process := processes.find(child.pid)) is None or process.state != processes.STOPPED:
            pass
        stopped = time.monotonic()
        while time.monotonic() < stopped + STOP_S:
            pass
        continued = time.monotonic()
        os.kill(child.pid, signal.SIGCONT)
        child.stdin.close()
        gaps = json.loads(child.stdout.readline())
    (longest,) = [gap for gap in gaps if gap[0] <= stopped and gap[1] >= continued]
    assert longest[0] >= begin - 1.0
    others = [gap for gap in gaps if gap is not longest]
    assert all(gap[1] <= stopped or gap[0] >= continued for gap in others), "the stop is one gap"
    assert longest[2] <= longest[1] - longest[0] - 0.9 * STOP_S, "a stopped process waits for no CPU"


def test_gaps_are_those_of_the_period_and_earlier_ones_are_forgotten() -> None:
    gaps = RunGaps()
    gaps._gaps = [(1.0, 1.1, 0.0), (2.0, 2.2, 0.1), (3.0, 3.1, 0.0)]
    assert gaps.take(2.1, 2.5) == [(2.0, 2.2, 0.1)]
    assert gaps.take(0.0, 9.0) == [(2.0, 2.2, 0.1), (3.0, 3.1, 0.0)]


def test_a_gap_after_which_the_thread_does_not_run_counts_as_waiting_for_a_cpu() -> None:
    """Nobody is called stopped for it: what the thread waited for is not known."""
    gaps = RunGaps()
    now = gaps._now()
    gaps._before = (now[0] - 1.0, *now[1:])
    (gap,) = gaps.take(now[0] - 1.0, now[0] + 9.0)
    assert gap[1] - gap[0] >= 1.0
    assert gap[2] == gap[1] - gap[0]


def test_a_process_that_uses_cpu_time_has_run_whatever_its_thread_missed() -> None:
    """The thread also wakes late where another thread keeps the interpreter, or the machine is busy for a moment."""
    assert is_gap(0.05, 0.002)
    assert not is_gap(0.05, 0.03)
    assert not is_gap(LEAST_S - 0.001, 0.0)


CGROUPS = {
    1: ("5:cpu,cpuacct:/bed/n1\n0::/\n", "cpu/bed/n1", "throttled_time 2500000000"),
    2: ("0::/bed/n1\n", "bed/n1", "throttled_usec 2500000"),
}


@pytest.mark.parametrize("version", CGROUPS)
def test_the_time_for_which_a_cgroup_was_throttled_is_that_of_the_process(version: int, tmp_path: Path) -> None:
    membership, folder, line = CGROUPS[version]
    assert throttled_s(tmp_path) == 0.0
    for path, text in (
        ("proc/self/cgroup", membership),
        (f"sys/fs/cgroup/{folder}/cpu.stat", f"nr_throttled 12\n{line}\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    assert throttled_s(tmp_path) == 2.5


def test_a_process_whose_quota_is_used_up_does_not_wait_for_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts the time until the next period as run delay, as it does where another process has the CPU."""
    gaps, throttled = RunGaps(), iter((10.09, 10.09, 0.0))
    monkeypatch.setattr(run_gaps, "throttled_s", lambda: next(throttled))
    gaps._throttled = (0.0, 10.0)
    waited = []
    for number in range(3):
        now = (1.0 + 0.1 * number, 0.001 * number, 0.095 * number)
        gaps._before = now
        monkeypatch.setattr(gaps, "_now", lambda now=now: (now[0] + 0.1, now[1] + 0.001, now[2] + 0.095))
        gaps._end_period()
        waited.append(gaps._gaps[-1][2])
    assert waited == pytest.approx([0.005, 0.095, 0.095]), "throttled; not throttled; in another cgroup"
