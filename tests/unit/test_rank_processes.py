"""The agent's share of a gang: when a stop may be answered."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.model.event import command
from orchestrator.model.events import GangStop
from orchestrator.model.gang import GangSpec
from orchestrator.node.agent import agent, rank_processes
from orchestrator.node.agent.rank_processes import RankProcesses
from orchestrator.node.files.event_log import EventLog
from orchestrator.node.files.inbox import Item
from orchestrator.node.oslayer import forks, processes
from orchestrator.node.oslayer.event_loop import Loop
from orchestrator.node.oslayer.processes import Process

#: Beyond every pid that a kernel gives.
NO_PID = 1 << 23


def _spec(out: Path, epoch: int) -> GangSpec:
    spec = GangSpec(
        run="r", epoch=epoch, world_size=1, nodes=1, group_rank=0, ranks=(0,), master_addr="127.0.0.1", master_port=1,
        backend="gloo", timeout_s=1.0, max_restarts=0, workload="w", params={}, seed=1, payload="", out=str(out),
        checkpoints=str(out), interface="lo",
    )  # fmt: skip
    return spec


def test_a_stop_is_not_answered_before_every_rank_is_reaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread of a killed rank may be a zombie already while its other threads still end: it cannot be reaped yet."""
    monkeypatch.setattr(forks, "fork", lambda loop, keep, body: NO_PID)
    monkeypatch.setattr(processes, "descendants", lambda pid: [])
    loop, log, checks = Loop(), EventLog(tmp_path / "events.jsonl", writer="agent"), [0]
    responses: list[tuple[str, Any]] = []

    def reap() -> None:
        checks[0] += 1
        if checks[0] == 3:
            gangs.exited(NO_PID, -9)

    gangs = RankProcesses(loop, tmp_path, ("n0", "i"), lambda run: log, reap)
    gangs.start("r", _spec(tmp_path, 0))
    gangs.stop(
        "r", 0, dump=False, limit_s=3600.0, spare=lambda: (), respond=lambda kind, done: responses.append((kind, done))
    )
    while not responses:
        loop.run_once()
    assert [(kind, done.left) for kind, done in responses] == [("ok", 0)]
    assert not gangs.are_running(), "the next attempt may start on this node"


@pytest.mark.parametrize("is_exiting", [True, False])
def test_a_stop_that_accepts_exiting_ranks_waits_until_they_run_no_more_code(
    is_exiting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Process(pid=NO_PID, ppid=1, session=1, start=1, state="R")
    monkeypatch.setattr(forks, "fork", lambda loop, keep, body: NO_PID)
    monkeypatch.setattr(processes, "descendants", lambda pid: [rank] if pid == os.getpid() else [])
    monkeypatch.setattr(processes, "find", lambda pid: rank)
    monkeypatch.setattr(processes, "kill", lambda killed: [process.pid for process in killed])
    monkeypatch.setattr(processes, "is_exiting", lambda pid: is_exiting)
    responses: list[tuple[str, Any]] = []
    loop, log = Loop(), EventLog(tmp_path / "events.jsonl", writer="agent")
    gangs = RankProcesses(loop, tmp_path, ("n0", "i"), lambda run: log, lambda: None)
    gangs.start("r", _spec(tmp_path, 0))
    gangs.stop(
        "r", 0, dump=False, limit_s=3600.0 if is_exiting else 0.05, accepts_exiting=True, spare=lambda: (),
        respond=lambda kind, done: responses.append((kind, done)),
    )  # fmt: skip
    while not responses:
        loop.run_once()
    expected = ("ok", 0, (NO_PID,)) if is_exiting else ("fail", 1, None)
    assert [(kind, done.left, done.exiting) for kind, done in responses] == [expected]
    assert gangs.are_running() is not is_exiting, "the next attempt may start beside a rank that runs no more code"
    assert gangs.exited(NO_PID, -9), "its exit is reported afterwards"
    assert "rank.exit" in (tmp_path / "events.jsonl").read_text()


def test_a_process_with_the_number_of_a_killed_one_is_killed_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one has ended, and the kernel has given its number to a process that a rank started just before its end."""
    first, second = (Process(pid=NO_PID, ppid=1, session=1, start=start, state="R") for start in (1, 2))
    scans = iter([[first], [second], []])
    killed: list[int] = []

    def kill(processes_: Iterable[Process]) -> list[int]:
        killed.extend(process.start for process in processes_)
        return [NO_PID]

    monkeypatch.setattr(processes, "descendants", lambda pid: next(scans) if pid == os.getpid() else [])
    monkeypatch.setattr(processes, "kill", kill)
    responses: list[tuple[str, Any]] = []
    loop, log = Loop(), EventLog(tmp_path / "events.jsonl", writer="agent")
    gangs = RankProcesses(loop, tmp_path, ("n0", "i"), lambda run: log, lambda: None)
    gangs.stop(
        "r", 0, dump=False, limit_s=3600.0, accepts_exiting=True, spare=lambda: (),
        respond=lambda kind, done: responses.append((kind, done)),
    )  # fmt: skip
    while not responses:
        loop.run_once()
    assert [(kind, done.killed, done.left) for kind, done in responses] == [("ok", (NO_PID,), 0)]
    assert killed == [1, 2]


@pytest.mark.parametrize(("deadline_s", "outcome"), [(60.0, ("ok", 0)), (10.0, ("fail", 1))])
def test_a_stop_ends_with_the_deadline_of_its_command(
    deadline_s: float, outcome: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process ends 20 s after its SIGKILL, by a clock of which each reading is a second."""
    seconds = itertools.count(1000.0)
    started = next(seconds)
    rank = Process(pid=NO_PID, ppid=1, session=1, start=1, state="D")

    def descendants(pid: int) -> list[Process]:
        return [rank] if next(seconds) < started + 20.0 else []

    monkeypatch.setattr(rank_processes, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(processes, "descendants", descendants)
    monkeypatch.setattr(processes, "kill", lambda killed: [process.pid for process in killed])
    node = agent.Agent(tmp_path, {"node": "n0", "incarnation": "i"})
    responses: list[tuple[str, int]] = []
    monkeypatch.setattr(node, "_respond", lambda item, kind, done: responses.append((kind, done.left)))
    order = command(GangStop(epoch=0), "stop", node="n0", epoch=0, deadline_s=deadline_s)
    node._handle(Item(name="stop.json", run="r", command=order))
    while not responses:
        node._loop.run_once()
    assert responses == [outcome]


def test_what_gloo_says_of_collectives_of_different_sizes_is_read_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "rank-1.log"
    assert rank_processes.read_mismatch(str(tmp_path), 1) is None
    log.write_text("step 1\nterminate called after throwing an instance of 'gloo::EnforceNotMet'\n")
    assert rank_processes.read_mismatch(str(tmp_path), 1) is None
    with log.open("a") as file:
        file.write(
            "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 6176 vs 32. Received data size\n"
        )
    assert rank_processes.read_mismatch(str(tmp_path), 1) == "a peer sent 6,176 bytes where it expected 32"
