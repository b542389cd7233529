"""However many hosts a bed has: so many are contacted at once, and no more."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import cast

import pytest

from orchestrator.model.bed import HostSpec
from orchestrator.model.provider import AT_ONCE, Fetched
from orchestrator.node.oslayer.event_loop import wait_readable
from orchestrator.providers.bounded_threads import BoundedThreads, Upkeep
from orchestrator.providers.sites import Site, Sites
from orchestrator.run import collect

from ..patience import until

MANY = 3 * AT_ONCE


class Busy:
    """Work that takes a moment, and how much of it was under way at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0
        self.count = 0
        self._first = threading.Barrier(3)

    def work(self) -> None:
        with self._lock:
            self._now += 1
            self.count += 1
            self.most = max(self.most, self._now)
            is_first = self.count <= 3
        if is_first:
            self._first.wait(600)
        with self._lock:
            self._now -= 1


def test_all_work_is_done_by_a_bounded_number_of_threads_that_end() -> None:
    busy, threads = Busy(), BoundedThreads("test-bounded", 3)
    wait([threads.start(busy.work) for _ in range(50)])
    assert (busy.count, busy.most) == (50, 3)
    until(lambda: not any(thread.name == "test-bounded" for thread in threading.enumerate()))


def test_work_that_fails_fails_its_future_only() -> None:
    def fail() -> None:
        raise ValueError("no")

    threads = BoundedThreads("test-bounded", 1)
    failed, done = threads.start(fail), threads.start(lambda: None)
    with pytest.raises(ValueError, match="no"):
        failed.result(600)
    done.result(600)


class Exhausted:
    """A machine on which only ``allowed`` threads of a name can start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, allowed: int) -> None:
        self.allowed = allowed
        self.refused = 0
        start = threading.Thread.start

        def limited(thread: threading.Thread) -> None:
            if thread.name == name and not self.allowed:
                self.refused += 1
                raise RuntimeError("can't start new thread")
            self.allowed -= thread.name == name
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)


def test_work_for_which_no_thread_can_start_is_done_by_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    exhausted, threads, go = (
        Exhausted(monkeypatch, "test-bounded", 1),
        BoundedThreads("test-bounded", 3),
        threading.Event(),
    )
    done = [threads.start(lambda: go.wait(10)) for _ in range(3)]
    assert exhausted.refused == 2
    go.set()
    assert [future.result(600) for future in done] == [True] * 3


def test_work_that_no_thread_can_do_is_refused_and_later_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    exhausted, threads = Exhausted(monkeypatch, "test-bounded", 0), BoundedThreads("test-bounded", 1)
    made: list[str] = []
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threads.start(lambda: made.append("refused"))
    exhausted.allowed = 1
    threads.start(lambda: made.append("later")).result(600)
    assert made == ["later"]


def test_one_connection_that_cannot_be_kept_up_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    exhausted, upkeep, slices = Exhausted(monkeypatch, "ccbed-upkeep", 0), Upkeep(0.001), threading.Semaphore(0)

    class Broken:
        def keep(self) -> None:
            raise RuntimeError("can't start new thread")

    class Good:
        def keep(self) -> None:
            slices.release()

    broken, good = Broken(), Good()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        upkeep.add(broken)
    exhausted.allowed = 1
    upkeep.add(broken)
    upkeep.add(good)
    assert all(slices.acquire(timeout=900) for _ in range(3))
    upkeep.remove(broken)
    upkeep.remove(good)


class Source:
    """Nodes whose files take a moment."""

    def __init__(self) -> None:
        self.busy = Busy()

    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]:
        self.busy.work()
        for _, to in wanted:
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(node)
        return [Fetched(path=path, size=1) for path, _ in wanted]


def test_files_of_many_nodes_are_gathered_from_some_at_a_time(tmp_path: Path) -> None:
    source = Source()
    (tmp_path / "bundle").mkdir()
    summary = collect.gather(source, {f"n{n}": (("a.log", "a.log"),) for n in range(MANY)}, tmp_path / "bundle")
    assert (summary["files"], summary["missing"], source.busy.count) == (MANY, [], MANY)
    assert source.busy.most <= AT_ONCE


def test_many_hosts_are_connected_and_closed_some_at_a_time() -> None:
    busy, closing = Busy(), Busy()

    class Connected:
        close = staticmethod(closing.work)

    def connect() -> Site:
        busy.work()
        return cast("Site", Connected())

    hosts, sites = [HostSpec(name=f"h{n}") for n in range(MANY)], Sites()
    for host in hosts:
        sites.begin(host, connect)
    for host in hosts:
        sites.get(host, connect)
    sites.close()
    assert (busy.count, closing.count) == (MANY, MANY)
    assert max(busy.most, closing.most) <= AT_ONCE


@pytest.fixture
def high() -> Iterator[tuple[int, int]]:
    """A pipe whose reading end has a number that ``select`` rejects, as with connections to a thousand hosts."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), max(limits[1], 2048)))
    read, write = os.pipe()
    os.dup2(read, 1500)
    yield 1500, write
    for fd in (read, write, 1500):
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_descriptor_above_1023_is_waited_for(high: tuple[int, int]) -> None:
    fd, write = high
    assert not wait_readable(fd, 0.0)
    os.write(write, b"x")
    assert wait_readable(fd, 10.0)
    assert not wait_readable(-1, 0.0)
