"""The agent's share of a gang: when a stop may be answered."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.gang import GangSpec
from orchestrator.node.agent import rank_processes
from orchestrator.node.agent.rank_processes import RankProcesses
from orchestrator.node.files.event_log import EventLog
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
    gangs.stop("r", 0, dump=False, spare=lambda: (), respond=lambda kind, done: responses.append((kind, done)))
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
    monkeypatch.setattr(rank_processes, "STOP_S", 0.05)
    responses: list[tuple[str, Any]] = []
    loop, log = Loop(), EventLog(tmp_path / "events.jsonl", writer="agent")
    gangs = RankProcesses(loop, tmp_path, ("n0", "i"), lambda run: log, lambda: None)
    gangs.start("r", _spec(tmp_path, 0))
    gangs.stop(
        "r", 0, dump=False, accepts_exiting=True, spare=lambda: (),
        respond=lambda kind, done: responses.append((kind, done)),
    )  # fmt: skip
    while not responses:
        loop.run_once()
    expected = ("ok", 0, (NO_PID,)) if is_exiting else ("fail", 1, None)
    assert [(kind, done.left, done.exiting) for kind, done in responses] == [expected]
    assert gangs.are_running() is not is_exiting, "the next attempt may start beside a rank that runs no more code"
    assert gangs.exited(NO_PID, -9), "its exit is reported afterwards"
    assert "rank.exit" in (tmp_path / "events.jsonl").read_text()
