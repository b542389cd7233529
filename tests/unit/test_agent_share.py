"""A command on the shared directory outlasts a share that is away for a moment, and the agent's loop goes on meanwhile."""

from __future__ import annotations

import errno
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.model import codec, gang
from orchestrator.model.event import Command
from orchestrator.model.events.commands import CheckpointScanDone, GangStopDone
from orchestrator.node.agent import agent, checkpoint_scan
from orchestrator.node.files.inbox import Item

LABEL = {"node": "n0", "incarnation": "i"}


class _Node:
    """An agent in this process, with a share and the answers that it gives."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.share, self.away = directory / "share", directory / "away"
        self.share.mkdir()
        (directory / "node").mkdir()
        self.agent = agent.Agent(directory / "node", LABEL)
        self.answers: list[tuple[str, Mapping[str, Any]]] = []
        monkeypatch.setattr(
            self.agent, "_finish", lambda item, kind, payload, _: self.answers.append((kind, codec.plain(payload)))
        )

    def send(self, f: str, epoch: int = 1, **value: Any) -> None:
        command = Command(f=f, key="k", epoch=epoch, value={"dir": str(self.share), "epoch": epoch, **value})
        self.agent._handle(Item(name="k.json", run="r", command=command))

    def fence(self, epoch: int) -> None:
        (self.share / "fence.json").write_text(json.dumps({"epoch": epoch}))

    def come_back(self) -> None:
        self.away.rename(self.share)

    def turn(self) -> None:
        while not self.answers:
            self.agent._loop.run_once()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Node:
    return _Node(tmp_path, monkeypatch)


@pytest.mark.parametrize("f", ["fence.write", "checkpoint.scan"])
def test_a_share_that_comes_back_is_used(node: _Node, f: str) -> None:
    if f == "checkpoint.scan":
        node.fence(1)
    node.share.rename(node.away)
    node.send(f, fresh=False)
    assert node.answers == []
    node.agent._loop.call_later(0.06, node.come_back)
    node.turn()
    assert [kind for kind, _ in node.answers] == ["ok"]
    assert (node.share / "fence.json").exists()


@pytest.mark.parametrize("fence", [None, 0])
def test_checkpoints_are_searched_only_behind_the_fence(node: _Node, fence: int | None) -> None:
    """An earlier attempt could commit a newer checkpoint: the orchestrator sends both orders at once."""
    if fence is not None:
        node.fence(fence)
    node.send("checkpoint.scan")
    assert node.answers == []
    node.fence(1)
    node.turn()
    assert [kind for kind, _ in node.answers] == ["ok"]


def test_without_a_fence_the_search_fails(node: _Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "SHARE_S", 0.1)
    node.fence(0)
    node.send("checkpoint.scan")
    node.turn()
    [(kind, value)] = node.answers
    assert kind == "fail" and "the fence is at epoch 0, and epoch 1 searches" in value["reason"]


def test_a_file_that_is_unreadable_for_a_moment_is_not_skipped_behind_a_late_fence(
    node: _Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence appears when the time to retry is over, by a clock of which each reading is two seconds."""
    clock, fences = itertools.count(1000.0, 2.0), itertools.count(1)
    searches: list[bool] = []

    def require_fence(directory: Path, epoch: int) -> None:
        if next(fences) < 3:
            raise OSError(errno.EAGAIN, "no fence")

    def find_newest(*args: Any, unreadable_is_damaged: bool) -> CheckpointScanDone:
        searches.append(unreadable_is_damaged)
        if len(searches) == 1 and not unreadable_is_damaged:
            raise OSError(errno.EIO, "Input/output error")
        return CheckpointScanDone(newest=None, skipped=())

    monkeypatch.setattr(agent, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(checkpoint_scan, "require_fence", require_fence)
    monkeypatch.setattr(checkpoint_scan, "find_newest", find_newest)
    node.send("checkpoint.scan")
    node.turn()
    assert [kind for kind, _ in node.answers] == ["ok"]
    assert searches == [False, False]


@pytest.mark.parametrize("f", ["fence.write", "checkpoint.scan"])
def test_a_share_that_stays_away_is_a_failure_with_its_cause(
    node: _Node, f: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "SHARE_S", 0.1)
    node.share.rename(node.away)
    node.send(f, fresh=False)
    node.turn()
    [(kind, value)] = node.answers
    assert kind == "fail" and "No such file or directory" in value["reason"] and str(node.share) in value["reason"]


def test_a_later_epoch_ends_the_attempts_of_an_earlier_one(node: _Node) -> None:
    node.share.rename(node.away)
    node.send("fence.write", fresh=False)
    node.agent._epochs["r"] = 2
    node.away.rename(node.share)
    node.turn()
    assert node.answers == [("fail", {"reason": "epoch 1 is over; epoch 2 has begun"})]
    assert not (node.share / "fence.json").exists()


def test_a_fence_that_is_beyond_is_refused_at_once(node: _Node) -> None:
    (node.share / "fence.json").write_text('{"epoch": 5}')
    node.send("fence.write")
    [(kind, value)] = node.answers
    assert kind == "fail" and "the fence" in value["reason"]


def _start_while_the_share_is_away(node: _Node, monkeypatch: pytest.MonkeyPatch, epoch: int) -> list[int]:
    """Order the start of a gang, which waits; the epochs of the gangs that were started."""
    started: list[int] = []
    monkeypatch.setattr(node.agent._ranks, "stop", lambda *_, respond, **__: respond("ok", GangStopDone()))
    monkeypatch.setattr(node.agent, "_start_ranks", lambda run, spec, system: started.append(spec.epoch))
    spec = gang.GangSpec(
        run="r", epoch=epoch, world_size=1, nodes=1, group_rank=0, ranks=(0,), master_addr="", master_port=0, backend="gloo",
        timeout_s=1.0, max_restarts=0, workload="train-dp", params={}, seed=0, payload="", out="", checkpoints=str(node.share),
        interface="lo",
    )  # fmt: skip
    node.share.rename(node.away)
    monkeypatch.setattr(checkpoint_scan, "read_fence", lambda directory: int(directory.stat().st_size < 0))
    command = Command(f="gang.start", key="s", epoch=epoch, value=codec.plain(spec))
    node.agent._handle(Item(name="s.json", run="r", command=command))
    assert (started, node.answers) == ([], [])
    return started


@pytest.mark.parametrize(("run", "epoch"), [("r", 1), ("bed", 0)], ids=["of the run", "of the bed"])
def test_a_start_that_waits_for_the_share_is_void_once_its_gang_is_stopped(
    run: str, epoch: int, node: _Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop was answered, and the ranks started afterwards: nobody stopped them."""
    started = _start_while_the_share_is_away(node, monkeypatch, epoch=1)
    stop = Command(f="gang.stop", key="stop", epoch=epoch if run == "r" else None, value={"epoch": epoch})
    node.agent._handle(Item(name="stop.json", run=run, command=stop))
    node.come_back()
    while len(node.answers) < 2:
        node.agent._loop.run_once()
    assert started == []
    assert sorted(kind for kind, _ in node.answers) == ["fail", "ok"]
    reason = next(value["reason"] for kind, value in node.answers if kind == "fail")
    assert "the worker group of start 1 was stopped" in reason


def test_the_store_of_a_gang_that_was_stopped_is_not_opened(node: _Node) -> None:
    """Commands that were sent within one tick of the file system's clock are taken in the order of their names."""
    stop = Command(f="gang.stop", key="stop", epoch=1, value={"epoch": 1})
    node.agent._handle(Item(name="r.close_e1_stop_n0.json", run="r", command=stop))
    node.send("store.open", address="127.0.0.1")
    while len(node.answers) < 2:
        node.agent._loop.run_once()
    assert [value["reason"] for kind, value in node.answers if kind == "fail"] == [
        "the worker group of start 1 was stopped"
    ]


@pytest.mark.parametrize(("run", "epoch"), [("r", 0), ("other", 1)], ids=["an earlier epoch", "another run"])
def test_a_start_that_waits_is_not_void_by_the_stop_of_another_gang(
    run: str, epoch: int, node: _Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = _start_while_the_share_is_away(node, monkeypatch, epoch=1)
    node.agent._epochs.clear()
    stop = Command(f="gang.stop", key="stop", epoch=epoch, value={"epoch": epoch})
    node.agent._handle(Item(name="stop.json", run=run, command=stop))
    node.come_back()
    while len(node.answers) < 2:
        node.agent._loop.run_once()
    assert started == [1]
