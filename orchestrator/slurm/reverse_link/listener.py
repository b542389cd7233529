"""The orchestrator's end of reverse links: listens for the hosts of a bed, and hands out their authenticated streams.

A peer that is not authenticated in time, or sends anything but a greeting, is disconnected; it gets no other response.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import functools
import json
import os
import resource
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...model.errors import InfrastructureError
from ...node.hostlink import frames
from ...node.hostlink.reverse_link import CERTIFICATE, LISTENERS, MAX_LINE, WELCOME
from ...node.hostlink.tls_stream import server_context
from ...node.oslayer import processes
from ...providers.bounded_threads import BoundedThreads, Upkeep
from ...providers.ssh.host_connection import SLICE_S
from ...system import host_facts, plain_files
from . import credentials, host_stream
from .host_stream import HostStream

#: A peer must be authenticated in this time. So many peers may be in this state at once; more wait in the kernel's queue.
GREETING_S, MAX_PENDING = 5.0, 256
_BACKLOG = 4096
#: A stream that nothing has taken gets a request this often: without one its link server would end after 30 s.
KEEP_S = 10.0
_KEEP = frames.encode({"id": 0, "do": "ping"})
#: How many tokens are read at once. The pause after a peer for which no descriptor was free.
READERS, PAUSE_S = 8, 0.1
#: A listener renews its row in the list. A row of another machine that is older than this is of a killed command.
RENEW_S, EXPIRED_S = 60.0, 900.0


class Listener:
    """Listens from its creation until ``close``. ``links``: the directory that the hosts read; ``private``: has the key.

    ``ports``: the first and the last port to listen on; empty: any. ``rejected``: why peers were disconnected, newest last; a
    few of them. One thread serves all peers and hosts; another renews the row. Raises OSError, and InfrastructureError if
    none of the ports is free, or this process may not open enough files.
    """

    def __init__(
        self, links: Path, private: Path, hosts: Sequence[str], address: str = "", ports: Sequence[int] = ()
    ) -> None:
        self._links = links
        self._hosts = frozenset(hosts)
        self._context = server_context(links / CERTIFICATE, private / credentials.KEY)
        self._identity = secrets.token_hex(8)
        self._streams: dict[str, HostStream] = {}
        self._arrival = threading.Condition()
        self._pending: set[asyncio.Task[None]] = set()
        self._open: weakref.WeakSet[HostStream] = weakref.WeakSet()
        self._is_closed = False
        self._closing = threading.Event()
        self._publishing = threading.Lock()
        self._rejections: dict[str, str] = {}
        self.rejected: list[str] = []
        #: Of the connections over the streams.
        self.upkeep = Upkeep(SLICE_S)
        allow_open_files(len(hosts))
        self._socket = _listen(address, ports)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._addresses = [address] if address else _own_addresses()
        self._publish()
        self._loop = asyncio.new_event_loop()
        #: Tokens lie on a network file system, which may hang.
        self._readers = BoundedThreads("ccbed-tokens", READERS)
        for work in (self._serve, self._renew):
            threading.Thread(target=work, daemon=True, name="ccbed-listener").start()

    def take(self, host: str, deadline_s: float) -> HostStream:
        """The next stream of a host. Raises TimeoutError."""
        with self._arrival:
            if not self._arrival.wait_for(lambda: host in self._streams or self._is_closed, deadline_s):
                raise TimeoutError
            if host not in self._streams:
                raise TimeoutError
            return self._streams.pop(host)

    def rejection(self, host: str) -> str:
        """Return why a peer that named itself so was disconnected last; empty if none was."""
        return self._rejections.get(host, "")

    def close(self) -> None:
        """Leave the list of listeners, and disconnect all hosts."""
        with self._arrival:
            if self._is_closed:
                return
            self._is_closed = True
            self._closing.set()
            self._streams = {}
            self._arrival.notify_all()
        with contextlib.suppress(OSError), self._publishing:
            self._unpublish()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _serve(self) -> None:
        self._loop.add_reader(self._socket, self._accept)
        self._loop.call_later(KEEP_S, self._keep)
        try:
            self._loop.run_forever()
        finally:
            self._socket.close()
            self._loop.run_until_complete(self._disconnect_all())
            self._loop.close()

    def _keep(self) -> None:
        """Keep the streams that wait to be taken: of a thousand hosts some arrive long before their turn."""
        with self._arrival:
            waiting = list(self._streams.values())
        for stream in waiting:
            stream.write(_KEEP)
        self._loop.call_later(KEEP_S, self._keep)

    async def _disconnect_all(self) -> None:
        for task in self._pending:
            task.cancel()
        for stream in self._open:
            stream.abort()
        await asyncio.gather(*self._pending, return_exceptions=True)
        await asyncio.sleep(0)  # the aborted streams report their end

    def _accept(self) -> None:
        """Accept peers while fewer than MAX_PENDING are unauthenticated. The others wait in the kernel's queue."""
        while len(self._pending) < MAX_PENDING:
            try:
                peer, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError:  # out of descriptors
                self._loop.call_later(PAUSE_S, self._resume)
                break
            task = self._loop.create_task(self._greet(peer, address[0]))
            self._pending.add(task)
            task.add_done_callback(self._settle)
        self._loop.remove_reader(self._socket)

    def _settle(self, task: asyncio.Task[None]) -> None:
        self._pending.discard(task)
        self._resume()

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._socket, self._accept)

    def _renew(self) -> None:
        while not self._closing.wait(RENEW_S):
            with contextlib.suppress(OSError), self._publishing:
                if not self._is_closed:
                    self._publish()

    async def _greet(self, peer: socket.socket, address: str) -> None:
        stream = await host_stream.accept(peer, self._loop, self._context)
        self._open.add(stream)
        try:
            async with asyncio.timeout(GREETING_S):
                self._add(await self._authenticate(stream), stream)
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            stream.close()
            self.rejected = [*self.rejected[-9:], f"{address}: {str(error)[:200] or type(error).__name__}"]

    async def _authenticate(self, stream: HostStream) -> str:
        """The name of the host. Raises OSError, EOFError, ValueError, KeyError, TypeError."""
        greeting = json.loads(await stream.next_line(MAX_LINE))
        host, token = greeting["host"], greeting["token"]
        if not (isinstance(host, str) and isinstance(token, str) and host in self._hosts):
            raise ValueError("not a host of this bed")
        check = functools.partial(self._problem, host, token, greeting["listener"])
        if problem := await asyncio.wrap_future(self._readers.start(check)):
            self._rejections[host] = problem
            raise ValueError(f"{host}: {problem}")
        stream.write(WELCOME + b"\n")
        return host

    def _problem(self, host: str, token: str, listener: object) -> str:
        if not credentials.is_token(self._links, host, token):
            return "a wrong token"
        return "" if listener == self._identity else "it means another listener"

    def _add(self, host: str, stream: HostStream) -> None:
        with self._arrival:
            if self._is_closed:
                stream.close()
                return
            if earlier := self._streams.get(host):
                earlier.close()
            self._streams[host] = stream
            self._arrival.notify_all()

    def _publish(self) -> None:
        """Write the own row, with the time; rows of commands that were killed leave the list. Raises OSError."""
        own = {
            "id": self._identity,
            "at": time.time(),
            "addresses": self._addresses,
            "port": self.port,
            "machine": host_facts.machine_id(),
            "boot": host_facts.boot_id(),
            "pid": os.getpid(),
            "start": processes.start_time(os.getpid()),
        }
        with _exclusive(self._links):
            self._write([*self._others(), own])

    def _unpublish(self) -> None:
        with _exclusive(self._links):
            self._write(self._others())

    def _others(self) -> list[dict[str, Any]]:
        return [row for row in _read(self._links) if row.get("id") != self._identity and _is_living(row)]

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        plain_files.replace_file(self._links / LISTENERS, json.dumps({"listeners": rows}).encode())


def _listen(address: str, ports: Sequence[int]) -> socket.socket:
    """Raises OSError, and InfrastructureError if none of the ports is free."""
    if not ports:
        return socket.create_server((address, 0), backlog=_BACKLOG)
    first, last = ports
    for port in range(first, last + 1):
        try:
            return socket.create_server((address, port), backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise InfrastructureError(
        f"no port from {first} to {last} is free on this machine",
        hint="set ccbed_ports to a larger range, or another one",
    )


def _read(links: Path) -> list[dict[str, Any]]:
    rows = plain_files.read_json(links / LISTENERS).get("listeners", [])
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _is_living(row: Mapping[str, Any]) -> bool:
    """Return whether the command of a row may run: a process of this machine, or a row of another machine that was renewed."""
    if row.get("machine") != host_facts.machine_id():
        return time.time() - float(row.get("at", 0.0)) < EXPIRED_S
    is_same_boot = row.get("boot") == host_facts.boot_id()
    return is_same_boot and processes.is_alive(int(row.get("pid", 0)), int(row.get("start", -1)))


def _own_addresses() -> list[str]:
    """The IPv4 addresses of this machine, as it listens: the default route's first; the loopback serves nodes of the same machine."""
    known = [address for name, own in host_facts.interfaces().items() if name != "lo" for address in own]
    return [*(address for address in known if ":" not in address), "127.0.0.1"]


@contextlib.contextmanager
def _exclusive(links: Path) -> Iterator[None]:
    """Hold the lock of the list of listeners."""
    with (links / f"{LISTENERS}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


#: What a command has open besides its connections: files of the bed, its libraries, programs that it runs.
OTHER_FILES = 256
#: While a host connects again, its old connection may still be open.
FILES_PER_HOST = 2


def allow_open_files(hosts: int) -> None:
    """Raise the soft limit, if it is too low. Raises InfrastructureError if the hard limit is."""
    needed = FILES_PER_HOST * hosts + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard) or needed <= hard:
        if soft != resource.RLIM_INFINITY and soft < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return
    raise InfrastructureError(
        f"this process may open {hard} files, and the connections to {hosts} hosts need {needed}",
        hint=f"raise the hard limit of open files (ulimit -Hn) to {needed}",
    )
