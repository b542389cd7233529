"""The agents of an idle bed send few heartbeats; the beginning of a run ends that, and only the end of its driver begins it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent import agent
from orchestrator.node.files import label
from orchestrator.node.files.label import RunDriver
from orchestrator.node.oslayer.event_loop import Timer
from orchestrator.system import inotify


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(label, "time", clock)
    return clock


def later(driver: RunDriver, clock: Clock) -> bool:
    driver.may_drive()
    clock.now += label.CHECK_S
    return driver.may_drive()


def ended_pid() -> int:
    """No process has it: the kernel gives lower ones, and gives those of ended processes again."""
    return int(Path("/proc/sys/kernel/pid_max").read_text())


def test_a_driver_that_lives_drives(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / label.RUN_LOCK).write_text(json.dumps({"run": "r", "pid": os.getpid()}))
    driver = RunDriver(tmp_path)
    assert [later(driver, clock) for _ in range(3)] == [True] * 3


@pytest.mark.parametrize("content", ["", json.dumps({"run": "r", "pid": ended_pid()})], ids=["no run yet", "ended"])
def test_without_a_living_driver_the_bed_is_idle_until_the_next_run(tmp_path: Path, clock: Clock, content: str) -> None:
    (tmp_path / label.RUN_LOCK).write_text(content)
    driver = RunDriver(tmp_path)
    assert driver.may_drive(), "the file may have changed just now"
    assert not later(driver, clock)
    assert not later(driver, clock)
    (tmp_path / label.RUN_LOCK).write_text(json.dumps({"run": "another", "pid": os.getpid()}))
    assert driver.may_drive()


def test_what_is_not_known_may_be_a_driver(tmp_path: Path, clock: Clock) -> None:
    driver = RunDriver(tmp_path)
    assert later(driver, clock), "as in a container, which does not have the file"
    distant = {"run": "r", "pid": ended_pid(), "helper": ended_pid()}
    (tmp_path / label.RUN_LOCK).write_text(json.dumps(distant))
    assert later(driver, clock), "its helper may be in another pid namespace"
    for content in ("{", " ", "{}", json.dumps({"run": "r"})):
        (tmp_path / label.RUN_LOCK).write_text(content)
        assert later(driver, clock), content


@pytest.mark.parametrize(("is_reported", "node_label", "watched", "rests"), [
    pytest.param(True, {"spec": {}}, ["inbox", "bed"], True, id="reported"),
    pytest.param(False, {"spec": {}}, ["inbox"], False, id="not reported"),
    pytest.param(True, {}, ["inbox"], False, id="in a container, where the driver's pid names another process or none"),
])  # fmt: skip
def test_an_idle_agent_rests_if_the_kernel_reports_the_next_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_reported: bool,
    node_label: dict[str, Any],
    watched: list[str],
    rests: bool,
) -> None:
    lock, directory = tmp_path / label.RUN_LOCK, tmp_path / "nodes" / "n0"
    directory.mkdir(parents=True)
    lock.touch()
    reported: list[Path] = []

    def report(directory: Path, changes: int) -> bool:
        reported.append(directory)
        return is_reported

    monkeypatch.setattr(inotify, "send_signal", report)
    node = agent.Agent(directory, {"node": "n0", "incarnation": "i", **node_label})
    monkeypatch.setattr(node._loop, "on_signal", lambda number, call: None)
    node._watch()
    assert reported == [{"inbox": directory / "inbox", "bed": tmp_path}[name] for name in watched]
    assert next_poll_s(node) == agent.BEAT_S
    monkeypatch.setattr(label, "CHECK_S", 0.0)
    lock.write_text("")
    assert next_poll_s(node) == (agent.IDLE_BEAT_S if rests else agent.BEAT_S)
    lock.write_text(json.dumps({"run": "r", "pid": os.getpid()}))
    assert next_poll_s(node) == agent.BEAT_S


def test_a_command_that_cannot_be_taken_stops_neither_the_heartbeat_nor_the_reaping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes" / "n0").mkdir(parents=True)
    node = agent.Agent(tmp_path / "nodes" / "n0", {"node": "n0", "incarnation": "i"})
    done: list[str] = []

    def fail() -> None:
        done.append("take")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node, "_take_commands", fail)
    monkeypatch.setattr(node, "_reap", lambda: done.append("reap"))
    for count in (1, 2):
        with pytest.raises(OSError, match="No space left"):
            node._poll()
        assert (tmp_path / "nodes" / "n0" / "heartbeat").read_text().split() == ["i", str(count)]
    assert sorted(done) == ["reap", "reap", "take", "take"]


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_directory_that_is_not_there_cannot_be_signalled(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    assert not inotify.send_signal(tmp_path / name, inotify.ARRIVAL)


def test_a_command_and_the_lock_of_a_run_are_signalled_and_other_files_are_not(tmp_path: Path) -> None:
    """In a process of its own: signals are for the main thread, and a reported directory stays so for its life."""
    program = """
import os, sys, signal
from pathlib import Path
from orchestrator.system import inotify
from orchestrator.node.oslayer.event_loop import Timer
from orchestrator.node.oslayer.event_loop import Loop
loop, calls = Loop(), []
loop.on_signal(inotify.SIGNAL, lambda: calls.append(1))
loop.on_signal(signal.SIGCHLD, lambda: calls.append(2))
directory, other = Path(sys.argv[1]), Path(sys.argv[1]).parent
def counted(act, is_expected=True):
    calls.clear()
    act()
    loop.call_later(60.0 if is_expected else 0.2, lambda: calls.append(0))
    while not calls:
        loop.run_once()
    return 1 in calls, 2 in calls
(directory / "lock").touch()
(other / "new").touch()
assert inotify.send_signal(directory, inotify.ARRIVAL)
print(counted(lambda: os.rename(other / "new", directory / "new")))
print(counted(lambda: (directory / "lock").write_text("x"), is_expected=False))
print(counted(lambda: (other / "else").write_text("x"), is_expected=False))
assert inotify.send_signal(directory, inotify.WRITE)
print(counted(lambda: (directory / "lock").write_text("x")))
print(counted(lambda: os.fork() or os._exit(0)))
"""
    inside = tmp_path / "inside"
    inside.mkdir()
    done = subprocess.run([sys.executable, "-c", program, str(inside)], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    arrival, unwatched, elsewhere, write, child = done.stdout.splitlines()
    assert (arrival, unwatched, elsewhere) == ("(True, False)", "(False, False)", "(False, False)")
    assert (write, child) == ("(True, False)", "(False, True)")


def next_poll_s(node: agent.Agent) -> float:
    """The pause after a poll."""
    pauses: list[float] = []

    def call_later(after_s: float, call: Callable[[], None]) -> Timer:
        pauses.append(after_s)
        return Timer(call)

    node._loop.call_later = call_later  # type: ignore[method-assign]
    node._poll()
    return pauses[-1]
