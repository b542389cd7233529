"""A reserve rank waits for its order, becomes the rank of one gang, and otherwise changes nothing."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.gang import GangSpec
from orchestrator.node import warm_up
from orchestrator.node.agent import rank_processes, reserve_ranks, script_reserves
from orchestrator.node.agent.rank_processes import RankProcesses
from orchestrator.node.files import label
from orchestrator.node.files.event_log import EventLog
from orchestrator.node.oslayer import forks, processes
from orchestrator.node.oslayer.event_loop import Loop, wait_readable
from orchestrator.system import plain_files

PATIENCE_S = 600.0


class Agent:
    """The ranks of an agent in this process. Its ranks write into ``out`` which of the two ways they were started by, and wait."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.loop = directory, Loop()
        log = EventLog(directory / "events.jsonl", writer="agent")
        self.ranks = RankProcesses(self.loop, directory, ("n0", "i"), lambda run: log, self.reap)
        self.pids: list[int] = []

    def reap(self) -> None:
        for pid in list(self.pids):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self.pids.remove(pid)
                self.ranks.exited(pid, os.waitstatus_to_exitcode(status))

    def turn(self, is_over: Callable[[], object]) -> None:
        until = time.monotonic() + PATIENCE_S
        self.loop.call_every(0.01, lambda: None)
        while not is_over():
            assert time.monotonic() < until
            self.loop.run_once()
            self.reap()

    def prepare(self) -> dict[int, reserve_ranks.Reserve]:
        """The reserves, once each is ready or has ended."""
        self.ranks.prepare_reserves()
        reserves = self.ranks._reserves._reserves
        self.turn(lambda: all(reserve.is_ready for reserve in reserves.values()))
        return reserves

    def start(self, spec: GangSpec) -> tuple[int, str]:
        """(pid of the rank, how it was started)."""
        started = self.directory / "started"
        started.unlink(missing_ok=True)
        (pid,) = self.ranks.start("r", spec).values()
        self.turn(started.exists)
        return pid, started.read_text()

    def stop(self, epoch: int) -> Any:
        responses: list[Any] = []
        self.ranks.stop(
            "r", epoch, dump=False, spare=lambda: (), respond=lambda kind, done: responses.append(done), limit_s=60
        )
        self.turn(lambda: responses)
        return responses[0]

    def end(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Its forks are real; the body of a rank and the rehearsal are not."""
    agent = Agent(tmp_path)

    def fork(loop: Loop, keep: Collection[int], body: Callable[[], int]) -> int:
        pid = os.fork()
        if pid:
            agent.pids.append(pid)
            return pid
        code = 1
        try:
            code = body()
        finally:
            os._exit(code)

    def run_rank(how: str, order: Mapping[str, Any]) -> int:
        partial = tmp_path / "partial"
        partial.write_text(f"{how} {order['rank']} {order['node']}")
        partial.rename(tmp_path / "started")
        signal.pause()
        return 0

    monkeypatch.setattr(forks, "fork", fork)
    monkeypatch.setattr(reserve_ranks, "IDLE_S", 0.0)
    monkeypatch.setattr(reserve_ranks, "_rehearse", lambda: None)
    # A stop kills what the agent has started; this process has started more than this agent.
    descendants = processes.descendants
    monkeypatch.setattr(
        processes, "descendants", lambda pid: [child for child in descendants(pid) if child.pid in agent.pids]
    )
    monkeypatch.setattr(warm_up, "has_imported_rank_code", lambda: True)
    monkeypatch.setattr(warm_up, "is_same_code", lambda payload: payload == "same")
    monkeypatch.setattr(script_reserves, "GPU_FILES", ())
    monkeypatch.setattr(rank_processes, "run_rank", lambda spec, **who: run_rank("forked", who))
    agent.ranks._reserves._run = lambda order, fd: run_rank("reserve", order)
    yield agent
    agent.end()


def spec(out: Path, **change: Any) -> GangSpec:
    first = GangSpec(
        run="r", epoch=1, world_size=1, nodes=1, group_rank=0, ranks=(0,), master_addr="127.0.0.1", master_port=1,
        backend="gloo", timeout_s=1.0, max_restarts=0, workload="w", params={}, seed=1, payload="same", out=str(out),
        checkpoints=str(out), interface="lo",
    )  # fmt: skip
    return replace(first, **change)


def test_a_recovery_makes_the_reserve_its_rank(agent: Agent, tmp_path: Path) -> None:
    (reserve,) = agent.prepare()
    assert label.count_reserves(tmp_path, "i") == 1
    assert agent.start(spec(tmp_path)) == (reserve, "reserve 0 n0")
    assert label.count_reserves(tmp_path, "i") == 0
    assert agent.ranks.are_running("r", 1)
    done = agent.stop(1)
    assert (done.left, done.killed) == (0, (reserve,))
    assert not agent.ranks.are_running()


def test_a_record_that_could_not_be_written_is_written_with_the_next_check(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a status calls the node busy, and a reserve is taken for a process that was left behind."""

    def fail(path: Path, content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(plain_files, "write_json", fail)
        (reserve,) = agent.prepare()
    assert label.count_reserves(tmp_path, "i") == 0
    agent.ranks.prepare_reserves()
    assert plain_files.read_json(tmp_path / label.RESERVES) == {
        "incarnation": "i", "count": 1, "pids": [reserve], "ready": 1,
    }  # fmt: skip


ELSEWHERE = ({"cold": True}, {"launcher": "torchrun"}, {"exec_": ["python"]})


def test_a_script_recovers_in_a_reserve(agent: Agent, tmp_path: Path) -> None:
    (reserve,) = agent.prepare()
    assert agent.start(spec(tmp_path, workload="script", params={"file": "job.py"})) == (reserve, "reserve 0 n0")


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 0},
        {"backend": "nccl"},
        {"payload": "other"},
        *({"workload": "script", "params": p} for p in ELSEWHERE),
    ],
    ids=str,
)
def test_what_it_has_not_rehearsed_starts_in_a_new_fork(agent: Agent, tmp_path: Path, change: dict[str, Any]) -> None:
    (reserve,) = agent.prepare()
    pid, how = agent.start(spec(tmp_path, **change))
    assert (pid == reserve, how) == (False, "forked 0 n0")


def test_a_script_that_may_use_a_gpu_recovers_in_a_new_fork(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rehearsal hides the GPUs, and torch counts the devices of autograd once."""
    monkeypatch.setattr(script_reserves, "GPU_FILES", (str(tmp_path),))
    (reserve,) = agent.prepare()
    assert agent.start(spec(tmp_path, workload="script", params={"file": "job.py"}))[1] == "forked 0 n0"
    agent.stop(1)
    assert agent.start(spec(tmp_path, epoch=2)) == (reserve, "reserve 0 n0"), "the reference models use the CPU"


def test_a_stop_leaves_the_reserve_and_kills_everything_else(agent: Agent, tmp_path: Path) -> None:
    (reserve,) = agent.prepare()
    pid, _ = agent.start(spec(tmp_path, epoch=0))
    done = agent.stop(0)
    assert (done.left, done.killed) == (0, (pid,))
    assert agent.pids == [reserve]


def test_a_node_without_reserves_forks_none(agent: Agent, tmp_path: Path) -> None:
    agent.ranks._has_reserves = False
    assert agent.ranks.prepare_reserves()
    assert not agent.pids
    assert agent.start(spec(tmp_path))[1] == "forked 0 n0"


def test_an_agent_waits_for_its_reserves_only_where_they_can_be_forked(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve_ranks, "IDLE_S", 60.0)
    assert not agent.ranks.prepare_reserves()
    monkeypatch.setattr(warm_up, "has_imported_rank_code", lambda: False)
    assert agent.ranks.prepare_reserves()
    assert not agent.pids


def test_while_ranks_run_no_reserve_is_forked(agent: Agent, tmp_path: Path) -> None:
    agent.start(spec(tmp_path, epoch=0))
    assert not agent.prepare()
    agent.stop(0)
    assert len(agent.prepare()) == 1


def test_a_gang_that_has_recovered_gets_a_reserve_for_its_next_recovery(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.start(spec(tmp_path))
    assert not agent.prepare()
    monkeypatch.setattr(rank_processes, "RECOVERED_S", 0.0)
    assert len(agent.prepare()) == 1


def test_after_a_failed_rehearsal_ranks_are_forked(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve_ranks, "_rehearse", lambda: os._exit(3))
    agent.ranks.prepare_reserves()
    agent.turn(lambda: not agent.pids)
    assert not agent.prepare(), "one failure is enough"
    assert agent.start(spec(tmp_path))[1] == "forked 0 n0"
    assert label.count_reserves(tmp_path, "i") == 0


def test_a_reserve_that_was_killed_is_not_given_the_order(agent: Agent, tmp_path: Path) -> None:
    (reserve,) = agent.prepare()
    os.kill(reserve, signal.SIGKILL)
    os.waitid(os.P_PID, reserve, os.WEXITED | os.WNOWAIT)
    assert agent.start(spec(tmp_path))[1] == "forked 0 n0"


def test_an_order_longer_than_a_socket_takes_is_for_a_new_fork(agent: Agent, tmp_path: Path) -> None:
    agent.prepare()
    long = {"text": "x" * reserve_ranks.ORDER_BYTES}
    assert agent.start(spec(tmp_path, params=long))[1] == "forked 0 n0"


def test_the_longest_order_fits_into_a_socket() -> None:
    own, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with own, other:
        own.setblocking(False)
        assert own.send(b"x" * reserve_ranks.ORDER_BYTES) == reserve_ranks.ORDER_BYTES
        assert len(os.read(other.fileno(), reserve_ranks.ORDER_BYTES)) == reserve_ranks.ORDER_BYTES


def test_the_order_reaches_the_rank_whole(agent: Agent, tmp_path: Path) -> None:
    """The rank runs with the gang, the place of its events and the descriptor that the order names."""

    def run(order: Mapping[str, Any], fd: int) -> int:
        (tmp_path / "partial").write_text(json.dumps([order, wait_readable(fd, PATIENCE_S), os.read(fd, 64).decode()]))
        (tmp_path / "partial").rename(tmp_path / "released")
        return 0

    agent.ranks._reserves._run = run
    agent.prepare()
    environment = {"TOKEN": "s3cret"}
    (pid,) = agent.ranks.start("r", spec(tmp_path, environment=environment)).values()
    agent.ranks.release("r", 1, 0, "f0")
    agent.turn((tmp_path / "released").exists)
    order, is_released, line = json.loads((tmp_path / "released").read_text())
    assert (is_released, line) == (True, "f0\n")
    assert order["spec"]["environment"] == environment
    assert order["events_path"] == str(tmp_path / "runs/r/rank-0.e1.i.jsonl")
    agent.turn(lambda: not agent.ranks.are_running())
    assert pid not in agent.pids
