"""The epoch store: a process of its own that hosts the TCPStore before any rank starts, one for each epoch."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..oslayer import forks
from ..oslayer.event_loop import Loop

RETRIES = 16

Answer = Callable[[str, Mapping[str, Any]], None]


class Stores:
    """The store processes of this agent. They end with the gang of their epoch (gang.stop) or with the agent."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._stores: dict[int, tuple[str, int]] = {}

    def open(self, key: tuple[str, int], address: str, port: int, answer: Answer) -> None:
        """Fork a store; answers with its port once it listens. A port that is taken: the next one, listed in retries."""
        agent = os.getpid()
        read, write = os.pipe2(os.O_CLOEXEC)
        pid = forks.fork(
            self._loop, {write}, lambda: forks.store_body(address, port, RETRIES if port else 0, agent, write)
        )
        os.close(write)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self._stores[pid] = key

        def reported() -> None:
            self._loop.forget(read)
            text = os.read(read, 65536)
            os.close(read)
            report = json.loads(text) if text else {"reason": "the store process ended early; see agent.log"}
            if "reason" in report:
                answer("fail", report)
            else:
                answer("ok", {"address": address, "pid": pid, **report})

        self._loop.watch(read, reported)

    def exited(self, pid: int) -> bool:
        """A child was reaped: was it a store?"""
        return self._stores.pop(pid, None) is not None

    def later_than(self, run: str, epoch: int) -> list[int]:
        """The stores of later epochs of a run: the end of ``epoch`` is not theirs."""
        return [pid for pid, key in self._stores.items() if key[0] == run and key[1] > epoch]
