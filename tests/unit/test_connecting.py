"""Sites while they are in use: connected once, ahead of need, for all who ask; what failed is tried again when it is asked for."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from orchestrator.model.bed import HostSpec
from orchestrator.providers.sites import Site, Sites

HOST = HostSpec(name="h1")
PATIENCE_S = 600.0


class Fake:
    """A site that knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


class Connecting:
    """Counts how often it was asked to connect; waits for ``go``; fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()
        self.ended = threading.Event()
        self.times = 0
        self.made: list[Any] = []
        self._failures = failures

    def __call__(self) -> Site:
        self.times += 1
        self.begun.set()
        assert self.go.wait(PATIENCE_S)
        self.ended.set()
        if self.times <= self._failures:
            raise OSError("refused")
        self.made.append(Fake())
        site: Site = self.made[-1]
        return site


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_what_was_begun_ahead_is_what_all_get() -> None:
    sites, connect = Sites(), Connecting()
    sites.begin(HOST, connect)
    assert connect.begun.wait(PATIENCE_S)
    got: list[Site] = []
    requesters = [in_thread(lambda: got.append(sites.get(HOST, connect))) for _ in range(3)]
    connect.go.set()
    for thread in requesters:
        thread.join(PATIENCE_S)
    assert connect.times == 1 and got == connect.made * 3


def test_who_waits_for_what_fails_hears_why_and_may_try_again() -> None:
    sites, connect = Sites(), Connecting(failures=1)
    connect.go.set()
    with pytest.raises(OSError, match="refused"):
        sites.get(HOST, connect)
    assert [sites.get(HOST, connect)] == connect.made


def test_what_failed_before_anybody_asked_is_tried_again() -> None:
    sites, connect = Sites(), Connecting(failures=1)
    connect.go.set()
    sites.begin(HOST, connect)
    assert connect.ended.wait(PATIENCE_S)
    while connect.times == 1:
        try:
            sites.get(HOST, connect)
        except OSError:  # asked just before the failure was noted: it is this one's, then
            break
    assert [sites.get(HOST, connect)] == connect.made


def test_one_that_is_still_being_connected_is_closed_when_it_is() -> None:
    sites, connect = Sites(), Connecting()
    sites.begin(HOST, connect)
    assert connect.begun.wait(PATIENCE_S)
    sites.close()
    connect.go.set()
    assert connect.ended.wait(PATIENCE_S)
    while not connect.made:
        pass
    assert connect.made[0].closed.wait(PATIENCE_S)


def test_after_the_end_it_is_connected_anew() -> None:
    sites, connect = Sites(), Connecting()
    connect.go.set()
    first = sites.get(HOST, connect)
    sites.close()
    assert connect.made[0].closed.is_set()
    assert sites.get(HOST, connect) is not first
