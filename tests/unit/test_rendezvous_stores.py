"""The store of the next attempt is opened before it is needed, and only the next attempt gets its port."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Collection
from typing import Any

import pytest

from orchestrator.node.agent.rendezvous_stores import RendezvousStores
from orchestrator.node.oslayer import forks
from orchestrator.node.oslayer.event_loop import Loop

ADDRESS = "127.0.0.1"
#: Beyond every pid that a kernel gives.
FIRST_PID = 1 << 23


class Stores:
    """Stores whose processes are pretended: the n-th has the pid FIRST_PID + n and the port n."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        numbers = itertools.count(1)

        def fork(loop: Loop, keep: Collection[int], body: Callable[[], int]) -> int:
            number = next(numbers)
            (report,) = keep
            os.write(report, json.dumps({"port": number, "retries": []}).encode())
            return FIRST_PID + number

        monkeypatch.setattr(forks, "fork", fork)
        self.loop = Loop()
        self.stores = RendezvousStores(self.loop)

    def open(self, epoch: int, port: int = 0, address: str = ADDRESS) -> tuple[int, bool]:
        """The port of the store of an attempt, and whether it was there at once."""
        responses: list[Any] = []
        self.stores.open(("r", epoch), address, port, lambda kind, done: responses.append(done))
        is_at_once = bool(responses)
        while not responses:
            self.loop.run_once()
        return responses[0].port, is_at_once

    def prepare(self, epoch: int) -> None:
        self.stores.prepare(("r", epoch), ADDRESS)
        self.loop.call_later(0.0, lambda: None)
        self.loop.run_once()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Stores:
    stores = Stores(monkeypatch)
    assert stores.open(0) == (1, False)
    return stores


def test_the_next_attempt_gets_the_store_that_was_prepared(opened: Stores) -> None:
    opened.prepare(0)
    opened.prepare(0)
    assert opened.stores.reserves == {FIRST_PID + 2}, "one is enough"
    assert opened.open(1) == (2, True)
    assert opened.stores.reserves == set() and opened.stores.later_than("r", 0) == [FIRST_PID + 2]
    assert opened.open(2) == (3, False), "every attempt has a store of its own"


@pytest.mark.parametrize(("port", "address"), [(29500, ADDRESS), (0, "127.0.0.2")])
def test_a_store_with_another_port_or_address_is_opened_anew(opened: Stores, port: int, address: str) -> None:
    opened.prepare(0)
    assert opened.open(1, port, address) == (3, False)


def test_only_the_node_that_has_the_store_of_the_attempt_prepares_one(opened: Stores) -> None:
    opened.prepare(7)
    assert opened.stores.reserves == set()


def test_a_prepared_store_that_has_ended_is_not_used(opened: Stores) -> None:
    opened.prepare(0)
    assert opened.stores.exited(FIRST_PID + 2)
    assert opened.open(1) == (3, False)
