"""A checkpoint that cannot be written is tried again for a while, and then it is lost, not the run."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.model import codec
from orchestrator.model.gang import GangSpec
from orchestrator.model.payload import Payload
from orchestrator.rank.checkpoint import contents, single_file
from orchestrator.rank.runtime import context


@dataclass
class Notes:
    payloads: list[Payload] = field(default_factory=list)

    def note(self, payload: Payload) -> None:
        self.payloads.append(payload)

    def of(self, f: str) -> list[dict[str, Any]]:
        return [codec.plain(payload) for payload in self.payloads if f == payload.NAME]


@dataclass
class Clock:
    """Time passes only in ``sleep``, which calls ``asleep`` with the time that has passed."""

    now: float = 0.0
    asleep: Callable[[float], None] = lambda now: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.asleep(self.now)


class Rank:
    """The only rank of a world, with a share, notes and a clock of its own."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.share, self.away, self.notes, self.clock = directory / "share", directory / "away", Notes(), Clock()
        self.share.mkdir()
        (self.share / "fence.json").write_text('{"epoch": 0}')
        monkeypatch.setattr(context, "time", self.clock)
        gang = GangSpec(
            run="r", epoch=0, world_size=1, nodes=1, group_rank=0, ranks=(0,), master_addr="127.0.0.1", master_port=1,
            backend="gloo", timeout_s=1.0, max_restarts=0, workload="w", params={}, seed=1, payload="",
            out=str(directory), checkpoints=str(self.share), interface="lo",
        )  # fmt: skip
        self.ctx = context.RankContext(gang, 0, params=None, notes=self.notes, release_fd=-1)  # type: ignore[arg-type]
        self.model = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters())

    def save(self, step: int) -> None:
        self.ctx.save(step, self.model, self.optimizer)

    def names(self) -> set[str]:
        return {path.name for path in self.share.iterdir()} - {"fence.json"}

    def commits(self) -> list[tuple[str, str | None]]:
        return [(value["name"], value["parent"]) for value in self.notes.of("checkpoint.commit")]


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(tmp_path, monkeypatch)


def fail(monkeypatch: pytest.MonkeyPatch, number: int, times: int) -> list[Path]:
    """The first ``times`` writes fail; the paths of all that were tried."""
    write, tried = contents.write, list[Path]()

    def failing(path: Path, data: bytes, before_rename: Callable[[], None] = lambda: None) -> None:
        tried.append(path)
        if len(tried) <= times:
            raise OSError(number, os.strerror(number))
        write(path, data, before_rename)

    monkeypatch.setattr(contents, "write", failing)
    return tried


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_a_write_that_fails_for_a_moment_is_tried_again(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fail(monkeypatch, number, 3)
    rank.save(5)
    assert rank.commits() == [("e0-s5", None)] and rank.notes.of("checkpoint.failed") == []
    assert rank.names() == {"e0-s5.pt", "e0-s5.json"}
    assert 0 < rank.clock.now < context.RETRY_S


def test_a_share_that_is_away_for_three_seconds_loses_nothing(rank: Rank) -> None:
    rank.share.rename(rank.away)

    def come_back(now: float) -> None:
        if now >= 3 and rank.away.exists():
            rank.away.rename(rank.share)

    rank.clock.asleep = come_back
    rank.save(5)
    assert rank.commits() == [("e0-s5", None)] and 3 <= rank.clock.now <= context.RETRY_S
    assert rank.names() == {"e0-s5.pt", "e0-s5.json"}


def test_what_cannot_be_written_is_lost_and_the_next_one_is_tried(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    rank.save(5)
    with monkeypatch.context() as patch:
        tried = fail(patch, errno.ENOSPC, 1000)
        rank.save(10)
        [lost] = rank.notes.of("checkpoint.failed")
        assert (lost["name"], lost["reason"]) == ("e0-s10", "No space left on device")
        assert lost["attempts"] == len(tried) > 3 and context.RETRY_S <= lost["tried_s"] < context.RETRY_S + 1
        before = rank.clock.now
        rank.save(15)
        assert rank.notes.of("checkpoint.failed")[1]["attempts"] == 1 and rank.clock.now == before
    rank.save(20)
    assert rank.commits() == [("e0-s5", None), ("e0-s20", "e0-s5")]
    assert rank.names() == {"e0-s5.pt", "e0-s5.json", "e0-s20.pt", "e0-s20.json"}


def test_a_gang_that_has_been_replaced_does_not_try_again(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, errno.EIO, 1000)
    (rank.share / "fence.json").write_text('{"epoch": 1}')
    with pytest.raises(contents.Refused):
        rank.save(5)
    assert rank.notes.of("checkpoint.refused") == [{"rank": 0, "name": "e0-s5", "fence": 1}] and rank.clock.now == 0


def test_an_error_that_is_not_of_the_writing_ends_the_rank(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> bytes:
        raise TypeError("cannot pickle")

    monkeypatch.setattr(single_file, "encode", broken)
    with pytest.raises(TypeError):
        rank.save(5)
