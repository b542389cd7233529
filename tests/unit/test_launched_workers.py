"""Workers that a job's own launcher started: which process a fault acts on, and which orders and holds a restarted one follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.oslayer import launched_workers
from orchestrator.rank.watcher.holds import acts, orders, waiting, worker


@pytest.fixture
def child() -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"], stdin=-1, stdout=-1
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.communicate()


def _record(out: Path, pid: int, *, rank: int = 3, local_rank: int = 1, t: float | None = None) -> None:
    begin = {
        "k": "begin",
        "pid": pid,
        "rank": rank,
        "local_rank": local_rank,
        "t": time.monotonic() if t is None else t,
    }
    (out / f"watch-r{rank}-{pid}.jsonl").write_text(json.dumps(begin) + "\n")


def test_a_worker_is_found_by_its_local_rank(tmp_path: Path, child: int) -> None:
    _record(tmp_path, child)
    workers = launched_workers.find(tmp_path, os.getpid())
    assert {place: (item.rank, item.process.pid) for place, item in workers.items()} == {1: (3, child)}


def test_a_process_that_the_launcher_did_not_start_is_no_worker(tmp_path: Path, child: int) -> None:
    """Negative control: the record names a living process of someone else."""
    _record(tmp_path, os.getppid())
    _record(tmp_path, os.getpid(), rank=4)
    assert launched_workers.find(tmp_path, os.getpid()) == {}
    _record(tmp_path, child)
    assert launched_workers.find(tmp_path, child) == {}, "nor is the launcher its own worker"


def test_a_process_with_the_number_of_an_ended_worker_is_no_worker(tmp_path: Path, child: int) -> None:
    _record(tmp_path, child, t=time.monotonic() - 3600)
    assert launched_workers.find(tmp_path, os.getpid()) == {}


def test_a_torn_record_is_left_out(tmp_path: Path, child: int) -> None:
    (tmp_path / f"watch-r0-{child}.jsonl").write_text('{"k": "begin", "pi')
    assert launched_workers.find(tmp_path, os.getpid()) == {}


@pytest.mark.parametrize(
    ("local_rank", "number"), [("0", 4), ("1", 5), ("2", None)], ids=["the first", "the second", "one too many"]
)
def test_a_bed_counts_workers_by_node_and_place(
    monkeypatch: pytest.MonkeyPatch, local_rank: str, number: int | None
) -> None:
    _launch(monkeypatch, local_rank)
    assert worker.find() == worker.Worker(number, 2, int(local_rank), is_launched=True)


def test_without_a_launcher_it_is_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CCBED_WATCH_LAUNCHER", raising=False)
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert worker.find() == worker.Worker(7, 7, 3, is_launched=False)


def _launch(monkeypatch: pytest.MonkeyPatch, local_rank: str = "0") -> None:
    """The environment of a worker on the third node, of two on each; its launcher calls it rank 0."""
    for name, value in (("CCBED_WATCH_LAUNCHER", "2:2"), ("RANK", "0"), ("LOCAL_RANK", local_rank)):
        monkeypatch.setenv(name, value)


def _order(folder: Path, order: dict[str, Any]) -> None:
    with (folder / "orders-r2.jsonl").open("a") as out:
        out.write(json.dumps(order) + "\n")


def test_workers_of_a_node_share_its_orders_and_each_performs_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    performed: list[Any] = []
    monkeypatch.setattr(acts, "perform", lambda act, folder, rank: performed.append((act["do"], rank)))
    _order(tmp_path, {"act": {"do": "spin", "local_rank": 1}})
    _launch(monkeypatch, "1")
    restarted = waiting.Holds(str(tmp_path), lambda phase: None)
    restarted.follow_orders()
    assert performed == [], "the order was for the process before it"
    _order(tmp_path, {"act": {"do": "flip", "local_rank": 0}})
    _order(tmp_path, {"act": {"do": "tear", "local_rank": 1}})
    restarted.follow_orders()
    assert performed == [("tear", 2)]


def test_a_rank_of_ccbed_reads_all_of_its_orders(tmp_path: Path) -> None:
    _order(tmp_path, {"release": "f0"})
    assert orders.Orders(str(tmp_path), 2).read() == [{"release": "f0"}]


def test_a_restarted_worker_is_not_held_a_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _launch(monkeypatch)
    held: list[str] = []
    monkeypatch.setattr(waiting.Holds, "_wait", lambda self, hold, step: held.append(hold.id))
    for _ in range(2):  # the process, and the one that its launcher starts after it
        holds = waiting.Holds(str(tmp_path), lambda phase: None)
        holds.add(waiting.Hold({"id": "f0", "rank": 4, "phase": "save", "nth": 1}))
        holds.reached("save")
    assert held == ["f0"]


@pytest.mark.parametrize(("is_late", "held"), [(False, [False, True, False]), (True, [False, True, True])])
def test_only_a_hold_that_was_ordered_late_is_reached_at_a_later_step(is_late: bool, held: list[bool]) -> None:
    """A planned fault acts at its step, also where an attempt resumes behind it."""
    hold = waiting.Hold({"id": "f0", "rank": 0, "phase": "forward", "step": 30}, is_late=is_late)
    assert [hold.is_at("forward", step, passes=1) for step in (29, 30, 31)] == held
    assert not hold.is_at("backward", 30, passes=1)


@pytest.mark.parametrize(
    ("ordered", "every", "held"),
    [
        (14, 5, [17, 18, 19, 22]),
        (11, 5, [16, 17, 18, 19, 21, 22]),
        (10, 1, [*range(15, 23)]),
        (12, 0, [*range(15, 23)]),
    ],
)
def test_an_order_that_comes_late_does_not_hold_a_rank_beside_a_save(ordered: int, every: int, held: list[int]) -> None:
    """Saved at step 10 and each ``every``: a fault in step 15 or 16 would cost no step, or only the one that it is in."""
    fields = {"id": "f0", "rank": 0, "phase": "forward", "step": ordered, "saved_at": 10, "saves_every": every}
    hold = waiting.Hold(fields, is_late=True)
    assert [step for step in range(15, 23) if hold.is_at("forward", step, passes=1)] == held
