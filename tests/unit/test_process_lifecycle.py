"""How the keeper ends a node: it scans all processes again when those that it killed have exited, and now and then."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.keeper import process_lifecycle
from orchestrator.node.keeper.process_lifecycle import ProcessLifecycle
from orchestrator.node.oslayer import processes
from orchestrator.node.oslayer.event_loop import Loop
from orchestrator.node.oslayer.processes import Process


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
    lifecycle._loop = Loop()
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
    lifecycle._loop = Loop()
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
