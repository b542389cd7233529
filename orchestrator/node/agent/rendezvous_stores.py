"""The rendezvous store of an attempt: a forked process that hosts the TCPStore before any rank starts.

A fork takes the agent ten milliseconds, so the node with the store of an attempt opens that of the next one before it is needed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
from dataclasses import dataclass
from typing import Any

from ...model.events.commands import CommandFailed, StoreOpenDone
from ..files.inbox import Respond
from ..oslayer import forks, host_names
from ..oslayer.event_loop import Loop

RETRIES = 16
LAST_PORT = 65535


@dataclass(slots=True, kw_only=True)
class Reserve:
    """A store that is opened before it is needed. ``done``: what it reports once it listens."""

    address: str
    pid: int
    done: StoreOpenDone | None = None


class RendezvousStores:
    """The store processes of this agent. A store ends with the gang of its attempt (gang.stop) or with the agent."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._stores: dict[int, tuple[str, int]] = {}
        self._reserve: Reserve | None = None
        #: As the last attempt demanded it; 0: any.
        self._port = 0

    def open(self, key: tuple[str, int], address: str, port: int, respond: Respond) -> None:
        """Respond with the port of a new store once it listens. A taken port is listed in ``retries``, and the next is tried."""
        reserve, self._port = self._reserve, port
        if reserve and reserve.done and (reserve.address, port) == (address, 0):
            self._reserve, self._stores[reserve.pid] = None, key
            respond("ok", reserve.done)
        else:
            self._stores[self._fork(address, port, respond)] = key

    def prepare(self, key: tuple[str, int], address: str) -> None:
        """Open the store of the next attempt, on the node that has the store of this one: no rank has its port before."""
        if self._reserve or self._port or key not in self._stores.values():
            return
        pid = self._fork(address, 0, lambda kind, done: self._keep(pid, done))
        self._reserve = Reserve(address=address, pid=pid)

    @property
    def reserves(self) -> set[int]:
        """The process of the store that no attempt uses yet."""
        return {self._reserve.pid} if self._reserve else set()

    def _keep(self, pid: int, done: StoreOpenDone | Any) -> None:
        if self._reserve and self._reserve.pid == pid and isinstance(done, StoreOpenDone):
            self._reserve.done = done

    def _fork(self, address: str, port: int, respond: Respond) -> int:
        agent = os.getpid()
        read, write = os.pipe2(os.O_CLOEXEC)
        pid = forks.fork(self._loop, {write}, lambda: run_store(address, port, RETRIES if port else 0, agent, write))
        os.close(write)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)

        def reported() -> None:
            self._loop.remove_reader(read)
            text = os.read(read, 65536)
            os.close(read)
            report = json.loads(text) if text else {"reason": "the store process ended early; see agent.log"}
            if "reason" in report:
                respond("fail", CommandFailed(**report))
            else:
                respond("ok", StoreOpenDone(address=address, pid=pid, **report))

        self._loop.add_reader(read, reported)
        return pid

    def reserve(self, address: str, port: int, respond: Respond) -> None:
        """Respond with a port that is free now, for the launcher of the ranks: ``port`` or one after it, 0 for any."""
        taken: list[int] = []
        while True:
            try:
                with socket.create_server((address, port)) as server:
                    free = int(server.getsockname()[1])
                respond("ok", StoreOpenDone(address=address, port=free, retries=tuple(taken)))
                return
            except OSError as error:
                taken.append(port)
                if not port or len(taken) > RETRIES or port >= LAST_PORT:
                    reason = f"no port for the launcher at {address}: {error.strerror} (tried {taken[0]} to {port})"
                    respond("fail", CommandFailed(reason=reason))
                    return
            port += 1

    def exited(self, pid: int) -> bool:
        """A child was reaped: was it a store?"""
        if pid in self.reserves:
            self._reserve = None
            return True
        return self._stores.pop(pid, None) is not None

    def later_than(self, run: str, epoch: int) -> list[int]:
        """The stores of later attempts of a run: stopping ``epoch`` must not end them."""
        return [pid for pid, key in self._stores.items() if key[0] == run and key[1] > epoch]


def run_store(address: str, port: int, retries: int, parent: int, report_fd: int) -> int:
    """The body of a store process: host the TCPStore, report its port, wait to be killed."""
    os.setpgid(0, 0)
    forks.die_with_parent(parent)
    distributed = importlib.import_module("torch.distributed")
    taken: list[int] = []
    while True:
        try:
            with host_names.read_hosts_file_only(address):
                store = distributed.TCPStore(address, port, None, True, wait_for_workers=False)
            break
        except RuntimeError as error:
            busy = "EADDRINUSE" in str(error)
            taken += [port] if busy else []
            if not busy or len(taken) > retries or port >= LAST_PORT:
                reason = f"ports {taken[0]} to {port} of {address} are taken" if busy else str(error)
                _report(report_fd, {"reason": reason, "retries": taken})
                return 1
            port += 1
    _report(report_fd, {"port": store.port, "retries": taken})
    while True:
        signal.pause()


def _report(fd: int, content: dict[str, object]) -> None:
    os.write(fd, json.dumps(content).encode())
    os.close(fd)
