"""A site gives access to one host of a bed: operations, files and events of its nodes; connected once, in the background if begun early."""

from __future__ import annotations

import functools
import json
import math
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, Protocol

from ..model.bed import BedSpec, HostSpec
from ..model.event import Command
from ..model.provider import Fetched
from ..node.files import inbox, label
from ..system.plain_files import replace_file
from . import node_files
from .bed_commands import BED
from .bounded_threads import BoundedThreads

#: The limit for the first connection to a host that a run can do without.
PATIENT_S = 2.0


class Site(Protocol):
    """One host of a bed. Problems of the connection are raised as OSError."""

    #: The files of its nodes on this machine: their directory itself, or a mirror of it.
    root: Path

    @property
    def is_connected(self) -> bool: ...

    @property
    def connection_count(self) -> int:
        """Return how often it was connected. After a reconnection, the host may have been rebooted."""

    @property
    def is_responding(self) -> bool:
        """Return whether the host accepts new connections while its own one is silent or being made again."""

    def call(self, op: str, deadline_s: float = 10.0, **args: Any) -> Any:
        """An operation of ``node/hostlink/host_operations.py``. Raises OSError, ValueError or RuntimeError with its message."""

    def write(self, path: str, content: bytes, within_s: float = math.inf) -> None:
        """Write a file on the host atomically; returns at once if the host is remote.

        A file that could not be sent ``within_s`` is dropped.
        """

    def refusal(self, path: str) -> str:
        """Return why the host did not write the file; empty while it may have done so."""

    def put(self, content: Mapping[str, bytes]) -> str:
        """Store a payload; its path on the host."""

    def watch(self, run: str, nodes: Sequence[str]) -> None:
        """Begin to mirror the files that these nodes and the keeper write for ``run`` below ``root``."""

    def heartbeats(self) -> Mapping[str, tuple[str, int]]: ...

    def fetch(self, node: str, path: str, to: Path, limit: int) -> Fetched: ...

    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]:
        """See model.provider.Provider."""

    def close(self) -> None: ...


class LocalSite:
    """This machine: no connection is needed."""

    is_connected = True
    connection_count = 1
    is_responding = False

    def __init__(self, bed: BedSpec, host: HostSpec) -> None:
        self.root = Path(bed.hostdir)
        self._nodes = [node.name for node in bed.all_nodes if node.host == host.name]
        self._shared = Path(bed.shared_dir)

    def call(self, op: str, deadline_s: float = 10.0, **args: Any) -> Any:
        return call_here(op, deadline_s, **args)

    def write(self, path: str, content: bytes, within_s: float = math.inf) -> None:
        replace_file(Path(path), content)

    def refusal(self, path: str) -> str:
        return ""

    def put(self, content: Mapping[str, bytes]) -> str:
        return str(node_files.put_payload(self.root / "payloads", content))

    def watch(self, run: str, nodes: Sequence[str]) -> None:
        """Nothing to mirror: the files are on this machine."""

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        beats = {name: label.read_heartbeat(self.root / "nodes" / name / "heartbeat") for name in self._nodes}
        return {name: beat for name, beat in beats.items() if beat}

    def fetch(self, node: str, path: str, to: Path, limit: int) -> Fetched:
        return node_files.fetch([self.root / "nodes" / node, self._shared], path, to, limit)

    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]:
        return node_files.fetch_each(self.fetch, node, wanted, limit)

    def close(self) -> None:
        """Nothing is open."""


def keeper_directory(host: HostSpec) -> str:
    """The directory of a host's keeper, below the bed's directory on this machine."""
    return "keeper" if host.connection == "local" else f"keeper-{host.name}"


def connect(bed: BedSpec, host: HostSpec, patient: bool = False) -> Site:
    """The site of a host. Raises OSError if it cannot be reached, unless ``patient``: then it may be reached later."""
    if host.connection == "local":
        return LocalSite(bed, host)
    from .ssh import ssh_connection
    from .ssh.remote_host import RemoteSite

    site = RemoteSite(bed, host)
    site.open(PATIENT_S if patient else ssh_connection.CONNECT_S, patient=patient)
    return site


def call_here(op: str, deadline_s: float = 10.0, **args: Any) -> Any:
    """An operation on this machine. Raises TimeoutError, and what the operation raises."""
    from ..node.hostlink import host_operations

    return within(deadline_s, op, lambda: host_operations.OPS[op](**args))


def within(deadline_s: float, name: str, work: Callable[[], Any]) -> Any:
    """The result of ``work``. Raises TimeoutError if it takes longer: an engine or a file system may hang; it continues alone.

    Where no thread can start it has no deadline."""
    outcome: list[Callable[[], Any]] = []

    def run() -> None:
        try:
            done = work()
        except BaseException as error:  # noqa: BLE001
            problem = error
            outcome.append(lambda: _raise(problem))
        else:
            outcome.append(lambda: done)

    thread = threading.Thread(target=run, name=f"ccbed-{name}", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return work()
    thread.join(deadline_s)
    if not outcome:
        raise TimeoutError(f"{name} on this machine has taken longer than {deadline_s:g} s")
    return outcome[0]()


def _raise(problem: BaseException) -> None:
    raise problem


class Sites:
    """Sites by host. Several threads may use it at once: all of them get the same site or the same error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[str, Future[Site]] = {}
        self._threads = BoundedThreads("ccbed-connect")

    def begin(self, host: HostSpec, connect: Callable[[], Site]) -> None:
        """Connect in the background, unless that has begun already."""
        future, is_owner = self._claim(host.name, retry=False)
        if is_owner:
            self._threads.start(lambda: _settle(future, connect))

    def get(self, host: HostSpec, connect: Callable[[], Site]) -> Site:
        """Raises what ``connect`` raises. A failed connection is tried again by the next call."""
        future, is_owner = self._claim(host.name, retry=True)
        if is_owner:
            _settle(future, connect)
        try:
            return future.result()
        except BaseException:
            with self._lock:
                if self._futures.get(host.name) is future:
                    del self._futures[host.name]
            raise

    def close(self) -> None:
        """Close all sites at once; a site that is still connecting is closed as soon as it is connected."""
        with self._lock:
            futures, self._futures = self._futures, {}
        closing = [
            self._threads.start(functools.partial(_close, future)) for future in futures.values() if future.done()
        ]
        for future in futures.values():
            if not future.done():
                future.add_done_callback(_close)
        wait(closing)

    def _claim(self, name: str, *, retry: bool) -> tuple[Future[Site], bool]:
        """(future of a host's site, whether the caller must connect it). ``retry``: also after a failure."""
        with self._lock:
            present = self._futures.get(name)
            if present is None or (retry and present.done() and present.exception()):
                present = self._futures[name] = Future()
                return present, True
            return present, False


def _settle(future: Future[Site], connect: Callable[[], Site]) -> None:
    try:
        future.set_result(connect())
    except BaseException as error:  # noqa: BLE001  raised again by get()
        future.set_exception(error)


def _close(future: Future[Site]) -> None:
    if future.exception() is None:
        future.result().close()


RETRY_S = 0.01
LIMIT = 1 << 20


class SiteProber:
    """See model.provider.Prober. ``site``: name of a host -> its site."""

    def __init__(self, bed: BedSpec, site: Callable[[str], Site]) -> None:
        self._bed = bed
        self._site = site

    def probe_host(self, host: str, op: str, deadline_s: float, **args: Any) -> Any:
        return self._site(host).call(op, deadline_s, **args)

    def probe_node(self, node: str, op: str, deadline_s: float, **args: Any) -> Any:
        """Probe inside the node: a fork of its agent runs the operation, and its output is fetched."""
        site, directory = (
            self._site(self._bed.node(node).host),
            f"{self._bed.directory_on(self._bed.node(node).host)}/nodes/{node}",
        )
        key = f"check/{op}-{secrets.token_hex(4)}"
        output_dir = f"exec/{key.partition('/')[2]}"
        value = {"check": {"op": op, "args": args}, "out": f"{directory}/{output_dir}"}
        name = inbox.command_file_name(BED, key)
        command = Command(f="exec", key=key, node=node, deadline_s=deadline_s, value=value)
        site.write(f"{directory}/inbox/{name}", inbox.encode_command(BED, command), deadline_s)
        until = time.monotonic() + deadline_s
        with tempfile.TemporaryDirectory() as folder:
            _read_when_present(site, node, f"done/{name}", Path(folder) / "done", until)
            output = _read_when_present(site, node, f"{output_dir}/stdout", Path(folder) / "stdout", until)
        return _value(node, op, output)


def _read_when_present(site: Site, node: str, path: str, to: Path, until: float) -> str:
    """The text of a file of a node as soon as it exists. Raises TimeoutError."""
    while site.fetch(node, path, to, LIMIT).reason:
        if time.monotonic() > until:
            raise TimeoutError(f"{node} does not respond")
        time.sleep(RETRY_S)
    return to.read_text()


def _value(node: str, op: str, output: str) -> Any:
    try:
        result = json.loads(output)
    except ValueError:
        raise RuntimeError(f"{node}: {op} printed no JSON: {output[-200:]}") from None
    if "problem" in result:
        raise RuntimeError(result["problem"])
    return result["value"]
