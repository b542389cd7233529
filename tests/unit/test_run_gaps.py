"""A process records when it did not run: stopped by a signal, and not otherwise; waiting for a CPU is told from that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from orchestrator.node.oslayer import processes
from orchestrator.rank.runtime.run_gaps import LEAST_S, RunGaps, is_gap

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
