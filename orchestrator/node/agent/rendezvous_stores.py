"""The rendezvous store of an attempt: a forked process that hosts the TCPStore before any rank starts."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket

from ...model.events.commands import CommandFailed, StoreOpenDone
from ..files.inbox import Respond
from ..oslayer import forks, host_names
from ..oslayer.event_loop import Loop

RETRIES = 16
LAST_PORT = 65535


class RendezvousStores:
    """The store processes of this agent. A store ends with the gang of its attempt (gang.stop) or with the agent."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._stores: dict[int, tuple[str, int]] = {}

    def open(self, key: tuple[str, int], address: str, port: int, respond: Respond) -> None:
        """Fork a store; respond with its port once it listens. A taken port is listed in ``retries``, and the next is tried."""
        agent = os.getpid()
        read, write = os.pipe2(os.O_CLOEXEC)
        pid = forks.fork(self._loop, {write}, lambda: run_store(address, port, RETRIES if port else 0, agent, write))
        os.close(write)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self._stores[pid] = key

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
