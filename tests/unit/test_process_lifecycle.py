"""How the keeper ends a node: it scans all processes again when those that it killed have exited, and now and then."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.model import codec
from orchestrator.node.files.label import RANKS
from orchestrator.node.keeper import host_primitives, process_lifecycle
from orchestrator.node.keeper.process_lifecycle import ProcessLifecycle
from orchestrator.node.oslayer import forks, processes
from orchestrator.node.oslayer.event_loop import Loop
from orchestrator.node.oslayer.processes import Process
from orchestrator.system import plain_files

from .fault_stand import results_of


def _process(pid: int) -> Process:
    return Process(pid=pid, ppid=1, session=pid, start=1, state="S")


def _pids(living: Iterable[Process]) -> list[int]:
    return [process.pid for process in living]


def _end(
    scans: list[list[Process]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    checks: int,
    kill: Callable[[Iterable[Process]], list[int]] = _pids,
) -> tuple[list[int], int, int]:
    """(killed, left, number of scans) of an end whose scans see these processes; each lives for so many checks."""
    monkeypatch.setattr(process_lifecycle, "END_S", 3600.0)
    checked: dict[int, int] = {}
    remaining = iter(scans)
    number = [0]

    def scan() -> list[Process]:
        number[0] += 1
        return next(remaining, [])

    def is_alive(pid: int, start: int) -> bool:
        checked[pid] = checked.get(pid, 0) + 1
        return checked[pid] <= checks

    monkeypatch.setattr(processes, "is_alive", is_alive)
    monkeypatch.setattr(processes, "kill", kill)
    results: list[tuple[list[int], int]] = []
    node: Any = SimpleNamespace(alive=False, ending=[], end_by=0.0, processes=scan)
    lifecycle = object.__new__(ProcessLifecycle)
    lifecycle._loop, lifecycle._due = Loop(), []
    lifecycle.end(node, lambda killed, left: results.append((killed, left)))
    while not results:
        lifecycle._loop.run_once()
    return *results[0], number[0]


def test_all_processes_are_scanned_before_and_after_the_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_lifecycle, "SCAN_S", 3600.0)
    assert _end([[_process(7), _process(8)]], monkeypatch, checks=3) == ([7, 8], 0, 2)


def test_a_process_that_appears_after_the_first_scan_is_killed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_lifecycle, "SCAN_S", 3600.0)
    assert _end([[_process(7)], [_process(9)]], monkeypatch, checks=1) == ([7, 9], 0, 3)


def test_a_process_that_does_not_exit_does_not_hide_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_lifecycle, "SCAN_S", 0.0)
    scans = [[_process(7)], [_process(7), _process(9)]]
    assert _end(scans, monkeypatch, checks=1 << 30) == ([7, 9], 0, 3)


@pytest.mark.parametrize(("ends_after_s", "left"), [(20.0, 0), (3600.0, 1)])
def test_a_process_that_ends_late_is_not_counted(
    ends_after_s: float, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of which each reading is a second: a busy machine frees the memory of many ranks for long."""
    seconds = itertools.count(1000.0)
    started = next(seconds)
    process = _process(7)

    def is_alive(pid: int, start: int) -> bool:
        return next(seconds) < started + ends_after_s

    monkeypatch.setattr(process_lifecycle, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(processes, "is_alive", is_alive)
    monkeypatch.setattr(processes, "kill", _pids)
    results: list[tuple[list[int], int]] = []

    def scan() -> list[Process]:
        return [process] if is_alive(7, 1) else []

    node: Any = SimpleNamespace(alive=False, ending=[], end_by=0.0, processes=scan)
    lifecycle = object.__new__(ProcessLifecycle)
    lifecycle._loop, lifecycle._due = Loop(), []
    lifecycle.end(node, lambda killed, left: results.append((killed, left)))
    while not results:
        lifecycle._loop.run_once()
    assert results == [([7], left)]


def test_a_process_with_the_number_of_a_killed_one_is_killed_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []

    def kill(living: Iterable[Process]) -> list[int]:
        killed = list(living)
        starts.extend(process.start for process in killed)
        return [process.pid for process in killed]

    scans = [[_process(7)], [dataclasses.replace(_process(7), start=2)]]
    assert _end(scans, monkeypatch, checks=1, kill=kill) == ([7], 0, 3)
    assert starts == [1, 2]


@pytest.fixture
def lifecycle() -> Iterator[ProcessLifecycle]:
    """A keeper's, without a node."""
    lifecycle = object.__new__(ProcessLifecycle)
    lifecycle._loop, lifecycle._nodes, lifecycle._due = Loop(), {}, []
    before = signal.getsignal(signal.SIGCHLD)
    lifecycle._loop.on_signal(signal.SIGCHLD, lifecycle.reap)
    yield lifecycle
    lifecycle._loop.close_in_child()
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_of_a_program_that_acts_on_the_host_is_its_own(code: int, lifecycle: ProcessLifecycle) -> None:
    """The keeper reaps all its children: the code was lost, and every program had succeeded."""
    loop, results = lifecycle._loop, list[tuple[Any, str]]()
    argv = ["sh", "-c", f"exit {code}"]
    loop.start(results_of(host_primitives.run_program(loop, argv, 20.0), results))
    while not results:
        loop.run_once()
    ((evidence, problem),) = results
    assert list(evidence.values()) == [f"exit code {code}"]
    assert problem == (f"sh exited with code {code}: no output" if code else "")
    assert loop.programs == {}


def test_a_program_that_acts_on_the_host_is_no_orphan_of_a_node(lifecycle: ProcessLifecycle) -> None:
    """It was killed with the next node that ended."""
    results: list[Any] = []
    with subprocess.Popen(["sleep", "600"]) as orphan:
        program_run = host_primitives.run_program(lifecycle._loop, ["sleep", "600"], 600.0)
        lifecycle._loop.start(results_of(program_run, results))
        (program,) = lifecycle._loop.programs
        assert lifecycle._orphans() & {orphan.pid, program} == {orphan.pid}
        for pid in (orphan.pid, program):
            os.kill(pid, signal.SIGKILL)
        while not results:
            lifecycle._loop.run_once()


def test_nodes_that_start_together_share_a_scan_and_only_one_with_a_process_left_is_ended_first(
    lifecycle: ProcessLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans: list[int] = []
    calls: list[tuple[str, str]] = []
    left = dataclasses.replace(_process(7), tag="bed-1/n1/i")
    other = dataclasses.replace(_process(8), tag="bed-2/n0/i")

    def scan() -> list[Process]:
        scans.append(1)
        return [left, other]

    monkeypatch.setattr(processes, "scan", scan)
    monkeypatch.setattr(codec, "build", lambda kind, wanted: None)
    lifecycle._tag, lifecycle._scanned_at = "bed-1", -1e9
    monkeypatch.setattr(lifecycle, "_fork", lambda node, spec, left: calls.append(("fork", node.name)))
    monkeypatch.setattr(lifecycle, "end", lambda node, then: calls.append(("end", node.name)))
    for name, label in (("n0", {}), ("n1", {}), ("n2", {"pid": 5})):
        node: Any = SimpleNamespace(name=name, label=label, waiting=[], starting=False)
        lifecycle.start(node, {}, lambda kind, payload: None)
    assert calls == [("fork", "n0"), ("end", "n1"), ("end", "n2")]
    assert scans == [1]


def reporting_node(name: str, failed: list[tuple[str, str]]) -> Any:
    return SimpleNamespace(name=name, ending=[], fail_start=lambda reason: failed.append((name, reason)))


def test_an_agent_that_cannot_be_forked_is_reported_and_the_next_one_starts(
    lifecycle: ProcessLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its end a node is forked: else its agent would start after it."""
    failed: list[tuple[str, str]] = []
    observed: list[tuple[str, int]] = []
    pids: list[int] = [0, 12]

    def fork(loop: Loop, keep: object, body: object) -> int:
        if not (pid := pids.pop(0)):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return pid

    monkeypatch.setattr(forks, "fork", fork)
    monkeypatch.setattr(lifecycle, "_observe_start", lambda node, start: observed.append((node.name, start.pid)))
    monkeypatch.setattr(lifecycle, "_end", lambda node, ending: observed.append((node.name, -1)))
    for name in ("n0", "n1"):
        node = reporting_node(name, failed)
        start = process_lifecycle._Start(node=node, label={}, switch=-1, body=lambda write: 0)
        lifecycle._due.append(start)
    lifecycle.end(node, lambda killed, left: None)
    os.close(start.read)
    assert failed == [("n0", "cannot fork: [Errno 11] Resource temporarily unavailable")]
    assert observed == [("n1", 12), ("n1", -1)]


def test_an_agent_that_cannot_be_watched_is_killed_and_reported_and_the_next_one_is_watched(
    lifecycle: ProcessLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes behind it were alive and not watched: their starts had no response."""
    failed: list[tuple[str, str]] = []
    observed: list[str] = []

    def observe(node: Any, start: process_lifecycle._Start) -> None:
        if node.name == "n0":
            raise OSError(24, "Too many open files")
        observed.append(node.name)

    monkeypatch.setattr(lifecycle, "_observe_start", observe)
    with subprocess.Popen(["sleep", "600"]) as first, subprocess.Popen(["sleep", "600"]) as second:
        agents = [first, second]
        monkeypatch.setattr(forks, "fork", lambda loop, keep, body: agents.pop(0).pid)
        starts = [
            process_lifecycle._Start(node=reporting_node(name, failed), label={}, switch=-1, body=lambda _: 0)
            for name in ("n0", "n1")
        ]
        lifecycle._due += starts
        try:
            lifecycle._fork_due()
            assert first.wait(600) == -signal.SIGKILL and second.poll() is None
        finally:
            for child in (first, second):
                child.kill()
    assert failed == [("n0", "cannot watch its agent: [Errno 24] Too many open files")]
    assert observed == ["n1"]
    os.close(starts[1].read)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(starts[0].read)


def test_the_temporary_directories_of_ranks_that_ended_with_their_agent_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a living process stay: its id may have been given again."""
    monkeypatch.setattr(process_lifecycle, "temporary_directory", lambda pid: str(tmp_path / f"ccbed-{pid}"))
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, os.getpid()):
        (tmp_path / f"ccbed-{pid}" / "triton").mkdir(parents=True)
    ranks = {"0": [ended.pid, 1], "1": [os.getpid(), 1]}
    plain_files.write_json(tmp_path / RANKS, {"ranks": ranks})
    notes: list[Any] = []
    node: Any = SimpleNamespace(
        alive=True, ready=True, adopted=False, pidfd=-1, pid=ended.pid, directory=tmp_path, identity={}, ending=[]
    )
    lifecycle = object.__new__(ProcessLifecycle)
    lifecycle._note = lambda node, event: notes.append(event)
    monkeypatch.setattr(lifecycle, "_end", lambda node, ending: [then([], 0) for then in ending])
    lifecycle._exited(node, -9)
    assert [path.name for path in tmp_path.glob("ccbed-*")] == [f"ccbed-{os.getpid()}"]
    assert len(notes) == 2
