"""A host that says nothing over its connection, but would answer somebody new, is not called away."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from orchestrator.node.hostlink import frames
from orchestrator.providers.ssh import helper_start, host_connection
from orchestrator.providers.ssh.connection_errors import HostError
from orchestrator.providers.ssh.host_requests import Link

from ..patience import until


class Mute:
    """A channel over which nothing comes until it is closed."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def recv(self, size: int, /) -> bytes:
        self._closed.wait(10)
        return b""

    def sendall(self, data: bytes, /) -> None: ...

    def close(self) -> None:
        self._closed.set()


class Breaking(Mute):
    """A channel that ends with the first request; ``good``: it answers instead."""

    def __init__(self, good: bool) -> None:
        super().__init__()
        self._good = good
        self._requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._decoder = frames.Decoder()

    def sendall(self, data: bytes, /) -> None:
        for header, _ in self._decoder.feed(data):
            self._requests.put(frames.encode({"id": header["id"], "ok": "here"}) if self._good else b"")

    def recv(self, size: int, /) -> bytes:
        return self._requests.get()

    def close(self) -> None:
        self._requests.put(b"")


class Connection:
    """``new``: what somebody new hears."""

    alive = True

    def __init__(self, new: bool | None) -> None:
        self._new = new

    def is_responding(self, within_s: float) -> bool | None:
        return self._new

    def close(self) -> None:
        self.alive = False


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLICE_S": 0.01, "PROBE_AFTER_S": 0.03, "QUIET_S": 30.0, "BACKOFF_S": (0.0,)}.items():
        monkeypatch.setattr(host_connection, name, value)


@pytest.fixture
def _soon_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_connection, "QUIET_S", 0.05)


@contextmanager
def reached(
    new: bool | None, channel: Callable[[], Mute] = Mute
) -> Iterator[tuple[host_connection.HostConnection[Any], list[Link]]]:
    """A host over whose connections nothing comes, ever, unless ``channel`` is another, with the links that were made."""
    links: list[Link] = []

    def handle(header: Mapping[str, Any], body: bytes) -> None: ...

    made = host_connection.HostConnection(
        connect=lambda deadline_s: Connection(new),
        start=lambda connection, deadline_s: helper_start.Started(channel=channel(), hello={}, rest=b""),
        handle=handle,
        initialize=lambda link, deadline_s: None,
        on_up=links.append,
        every_second=lambda link: None,
    )
    made.open(1.0)
    try:
        yield made, links
    finally:
        made.close()


@pytest.mark.usefixtures("_soon_silent")
def test_one_that_answers_somebody_new_is_known_to_be_there_and_its_connection_is_waited_for() -> None:
    with reached(True) as (host, links):
        until(lambda: host.is_responding)
        with pytest.raises(HostError, match="no response from it"):
            host.request({"do": "look"}, b"", 2.0)
        assert host.is_responding
        assert len(links) == 1


@pytest.mark.usefixtures("_soon_silent")
@pytest.mark.parametrize("new", [False, None])
def test_one_that_does_not_is_waited_for_but_not_asked_in_vain(new: bool | None) -> None:
    with reached(new) as (host, links):
        until(lambda: time.monotonic() - links[0].last_received > 2 * host_connection.QUIET_S)
        with pytest.raises(HostError, match="no response from it"):
            host.request({"do": "look"}, b"", 2.0)
        assert not host.is_responding
        assert len(links) == 1


def test_what_is_lost_with_its_connection_is_asked_again_over_the_next_one() -> None:
    channels = iter((Breaking(good=False), Breaking(good=True)))
    with reached(None, lambda: next(channels)) as (host, links):
        assert host.request({"do": "look"}, b"", 60.0)[0] == "here"
        assert len(links) == 2


def test_a_host_whose_connections_all_break_is_given_up_soon() -> None:
    begun = time.monotonic()
    with reached(None, lambda: Breaking(good=False)) as (host, _), pytest.raises(HostError, match="was lost"):
        host.request({"do": "look"}, b"", 60.0)
    assert time.monotonic() - begun < 30.0, "neither the deadline of 60 s nor a silence of 30 s is waited for"


def test_a_host_for_which_no_thread_can_start_is_reconnected_once_one_can(monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, list[str]()

    def limited(thread: threading.Thread) -> None:
        if thread.name == "ccbed-reconnect" and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    channels = iter((Breaking(good=False), Breaking(good=True)))
    with reached(None, lambda: next(channels)) as (host, links):
        links[0].close()
        until(lambda: len(links) == 2)
        assert host.request({"do": "look"}, b"", 60.0)[0] == "here"
    assert len(refused) == 2
