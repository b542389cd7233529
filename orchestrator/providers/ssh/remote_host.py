"""A host behind SSH: requests its operations, mirrors its files on the controller, and reconnects when the connection is lost."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ...model.bed import BedSpec, HostSpec
from ...model.frozen import dataclass
from ...model.provider import Fetched
from ...node.hostlink.tails import Tree
from .. import node_files
from ..bed_commands import BED
from ..bounded_threads import Upkeep
from . import helper_start, ssh_connection
from .connection_errors import HostError
from .host_connection import HostConnection
from .host_requests import Link, Response
from .mirror import Mirror

#: How long written files may take to arrive before the connection is closed anyway.
FLUSH_S = 2.0


@dataclass(frozen=True, slots=True)
class _PendingFile:
    """A file to be written on the host. ``until``: after this time it is not sent any more."""

    content: bytes
    until: float


class RemoteSite:
    """See sites.Site. ``connect`` is called for each new connection; ``open`` makes the first one or raises HostError.

    ``start`` starts the link server over a connection, or waits for it; without it, the host is reached by SSH. ``upkeep``: see
    HostConnection.
    """

    def __init__(
        self,
        bed: BedSpec,
        host: HostSpec,
        connect: Callable[[HostSpec, float], Any] = ssh_connection.connect,
        now: Callable[[], float] = time.monotonic,
        start: Callable[[Any, float], helper_start.Started] | None = None,
        upkeep: Upkeep | None = None,
    ):
        roots = [root for root in (bed.shared_dir, bed.data_dir) if root]
        self.host = host
        self.root = Path(bed.workdir)
        self.connection_count = 0
        self._bed = bed
        self._now = now
        self._mirror = Mirror(self.root, host.name)
        self._host_connection: HostConnection[Any] = HostConnection(
            connect=lambda deadline_s: connect(host, deadline_s),
            start=start
            or (
                lambda connection, deadline_s: helper_start.start(connection, bed.hostdir, bed.name, roots, deadline_s)
            ),
            handle=self._handle_frame,
            initialize=self._initialize,
            on_up=self._send_all,
            every_second=self._resync,
            upkeep=upkeep,
        )
        self._token = secrets.token_hex(8)
        self._driver_lock: Mapping[str, Any] | None = None
        self._trees: dict[str, Tree] = {}
        self._nodes: dict[str, None] = {}
        self._beats: dict[str, tuple[str, int]] = {}
        self._unsent: dict[str, _PendingFile] = {}
        self._refused: dict[str, str] = {}
        self._out_of_sync: set[str] = set()

    def open(self, deadline_s: float = ssh_connection.CONNECT_S, *, patient: bool = False) -> None:
        """Connect, and stay connected from now on. Raises HostError where the host cannot be used. ``patient``: see HostConnection."""
        self._follow([Tree(path="keeper", node="")])
        self._host_connection.open(deadline_s, patient=patient)

    @property
    def is_connected(self) -> bool:
        return self._host_connection.link is not None

    @property
    def is_responding(self) -> bool:
        return self._host_connection.is_responding

    @property
    def connection(self) -> ssh_connection.Connection:
        """The connection, for other users of it, such as a client of the engine. Raises HostError if it is lost."""
        connection: ssh_connection.Connection = self._host_connection.connection
        return connection

    def call(self, op: str, deadline_s: float = 10.0, **args: Any) -> Any:
        """Perform an operation on the host. Raises OSError, ValueError or RuntimeError with the host's own message.

        One argument may be bytes, which are sent unchanged.
        """
        raw = next((name for name, value in args.items() if isinstance(value, bytes)), "")
        body = bytes(args.pop(raw)) if raw else b""
        return self._host_connection.request({"do": "op", "op": op, "args": args, "raw": raw}, body, deadline_s)[0]

    def write(self, path: str, content: bytes, within_s: float = math.inf) -> None:
        """Write a file on the host; returns at once. Without a connection it is sent over the next one, unless that comes too late."""
        file = _PendingFile(content, self._now() + within_s)
        with self._host_connection.state:
            self._refused.pop(path, None)
            self._unsent[path] = file
            if self._host_connection.link:
                self._send(self._host_connection.link, path, file)

    def refusal(self, path: str) -> str:
        return self._refused.get(path, "")

    def put(self, content: Mapping[str, bytes], deadline_s: float = 60.0) -> str:
        path = f"{self._bed.hostdir}/payloads/{node_files.payload_hash(content)}"
        if self._host_connection.request({"do": "has", "path": path}, b"", deadline_s)[0]:
            return path
        listed = [[name, len(data)] for name, data in content.items()]
        return str(
            self._host_connection.request({"do": "put", "files": listed}, b"".join(content.values()), deadline_s)[0]
        )

    def watch(self, run: str, nodes: Sequence[str], deadline_s: float = 10.0) -> None:
        """Mirror these nodes' files of a run from now on. On return, all events that existed before are mirrored."""
        trees = [Tree(path="keeper", node="")]
        for node in nodes:
            trees.append(Tree(path=f"nodes/{node}", node=node))
            path = f"nodes/{node}/exec" if run == BED else f"nodes/{node}/runs/{run}"
            trees.append(Tree(path=path, node=node, deep=True, cap=node_files.node_limit()))
        self._nodes.update(dict.fromkeys(nodes))
        self._follow(trees)
        for tree in trees:
            self._mirror.path(tree.path).mkdir(mode=0o700, parents=True, exist_ok=True)
        if run == BED:
            self.release()
        else:
            self.drive(run)
        with contextlib.suppress(HostError):  # what could not be requested now is requested over the next connection
            self._host_connection.request(self._watch_request(trees), b"", deadline_s)

    def settle(self, path: str = "", deadline_s: float = 10.0) -> Mapping[str, Any]:
        """Wait until everything that is below a path on the host now is mirrored; {files, there, capped}."""
        return self._settled((path,), deadline_s)[path]

    def _settled(self, paths: Sequence[str], deadline_s: float) -> Mapping[str, Mapping[str, Any]]:
        """The same of several paths at once."""
        results: Mapping[str, Mapping[str, Any]] = self._host_connection.request(
            {"do": "sync", "paths": paths}, b"", deadline_s
        )[0]
        return results

    def drive(self, run: str) -> None:
        """Take the driver lock of this host for a run, and again on every new connection. Raises OSError that names its holder."""
        content = {"run": run, "owner": ssh_connection.own_name(), "pid": os.getpid(), "token": self._token}
        try:
            self._host_connection.request({"do": "drive", "content": content}, b"", 10.0)
        except HostError:
            pass  # the lock is taken over the next connection
        self._driver_lock = content

    def release(self) -> None:
        held, self._driver_lock = self._driver_lock, None
        if held and (link := self._host_connection.link):
            link.request({"do": "leave"})

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        return dict(self._beats)

    def fetch(self, node: str, path: str, to: Path, limit: int, deadline_s: float = 30.0) -> Fetched:
        """A file or a tree of a node's directory, or of a directory of the bed on this host (absolute).

        For an unreachable host the mirrored part is copied, and the result states what is missing.
        """
        return self.fetch_all(node, [(path, to)], limit, deadline_s)[0]

    def fetch_all(
        self, node: str, wanted: Sequence[tuple[str, Path]], limit: int, deadline_s: float = 30.0
    ) -> list[Fetched]:
        """See model.provider.Provider. It waits once for all mirrored files."""
        mirrored = {path: f"nodes/{node}/{path}" for path, _ in wanted if self._is_mirrored(node, path)}
        results: Mapping[str, Mapping[str, Any]] | OSError = {}
        try:
            results = self._settled(list(mirrored.values()), deadline_s) if mirrored else {}
        except OSError as error:
            results = error

        def fetch_one(node: str, path: str, to: Path, limit: int) -> Fetched:
            if path in mirrored:
                return self._copied(node, path, to, limit, results)
            place = path if path.startswith("/") else f"{self._bed.hostdir}/nodes/{node}/{path}"
            return pull(self._host_connection.request, place, to, limit, deadline_s)

        return node_files.fetch_each(fetch_one, node, wanted, limit)

    def _is_mirrored(self, node: str, path: str) -> bool:
        return not path.startswith("/") and (
            self._is_followed(f"nodes/{node}/{path}") or self._host_connection.link is None
        )

    def _copied(
        self, node: str, path: str, to: Path, limit: int, settled: Mapping[str, Mapping[str, Any]] | OSError
    ) -> Fetched:
        """Copy from the mirror. ``settled``: the host's report about the path, or the error of that request."""
        result = None if isinstance(settled, OSError) else settled[f"nodes/{node}/{path}"]
        if result and not result["there"]:
            return Fetched(path=path, size=0, reason="not there")
        got = node_files.fetch([self._mirror.path(f"nodes/{node}")], path, to, limit)
        if result is None:
            reason = f"{settled}; what had come before is here" if got.size else str(settled)
            return Fetched(path=path, size=got.size, capped=got.capped, reason=reason)
        reason = "; ".join(part for part in (got.reason, _unread(result)) if part)
        cut = (PurePosixPath(name).relative_to(f"nodes/{node}/{path}").as_posix() for name in result["capped"])
        return Fetched(path=path, size=got.size, capped=tuple(dict.fromkeys((*got.capped, *cut))), reason=reason)

    def close(self) -> None:
        """End the connection and with it the helper, once all written files have arrived. The mirror stays."""
        connection = self._host_connection
        with connection.state:
            connection.state.wait_for(lambda: not self._unsent or not connection.link, FLUSH_S)
        connection.close()
        self._mirror.close()

    def _initialize(self, link: Link, deadline_s: float) -> None:
        """Bring a new helper to the state of the previous one."""
        self.connection_count += 1
        if self._driver_lock:
            link.request({"do": "drive", "content": self._driver_lock}).result(deadline_s)
        link.request(self._watch_request(list(self._trees.values()))).result(deadline_s)

    def _send_all(self, link: Link) -> None:
        for path, file in list(self._unsent.items()):
            if self._now() > file.until:
                del self._unsent[path]
            else:
                self._send(link, path, file)

    def _send(self, link: Link, path: str, file: _PendingFile) -> None:
        """Forget a file that was written or refused; send a file again whose response was lost: the same name, the same bytes."""

        def placed(future: Any) -> None:
            error = future.exception()
            if isinstance(error, ConnectionError):
                return
            with self._host_connection.state:
                if self._unsent.get(path) is file:
                    if error:
                        self._refused[path] = str(error)
                    del self._unsent[path]
                    self._host_connection.state.notify_all()

        link.request({"do": "write", "path": path}, file.content).add_done_callback(placed)

    def _is_followed(self, name: str) -> bool:
        parent = name.rpartition("/")[0]
        inside = ((f"{name}/".startswith(f"{tree.path}/"), tree) for tree in self._trees.values())
        return any(is_inside and (tree.deep or tree.path == parent) for is_inside, tree in inside)

    def _follow(self, trees: Sequence[Tree]) -> None:
        for tree in trees:
            self._trees.setdefault(tree.path, tree)

    def _watch_request(self, trees: Sequence[Tree]) -> Mapping[str, Any]:
        listed = [{"path": tree.path, "node": tree.node, "deep": tree.deep, "cap": tree.cap} for tree in trees]
        return {"do": "watch", "trees": listed, "have": self._mirror.have(trees), "beats": list(self._nodes)}

    def _handle_frame(self, header: Mapping[str, Any], data: bytes) -> None:
        if "file" in header:
            self._write_mirror(header, data)
        elif "beats" in header:
            self._beats.update({node: (str(inc), int(count)) for node, (inc, count) in header["beats"].items()})

    def _write_mirror(self, header: Mapping[str, Any], data: bytes) -> None:
        """A file that does not continue the mirror, or cannot be written, is requested again from the end of the mirror."""
        try:
            if not self._is_of_node(str(header["file"]), str(header["node"])):
                return
            if self._mirror.write(header, data):
                return
        except ValueError:
            return
        except OSError:
            pass
        self._out_of_sync.add(str(header["file"]))

    def _is_of_node(self, name: str, node: str) -> bool:
        """Is this a file of the named node, and is that node mirrored? Without a node: is it a file of the keeper?"""
        return name.startswith(f"nodes/{node}/" if node else "keeper/") and (not node or node in self._nodes)

    def _resync(self, link: Link) -> None:
        while self._out_of_sync:
            name = self._out_of_sync.pop()
            link.notify({"do": "anew", "file": name, "have": self._mirror.at(name)})


def _unread(result: Mapping[str, Any]) -> str:
    """The files that the host itself cannot read; empty if it can read all."""
    text = node_files.summary([f"{name}: {why}" for name, why in result["unread"]])
    return f"cannot be read there: {text}" if text else ""


Request = Callable[[Mapping[str, Any], bytes, float], Response]


def pull(send: Request, path: str, to: Path, limit: int, deadline_s: float) -> Fetched:
    """Fetch a file or a tree, small files first, ``limit`` bytes at most in all. Raises OSError if this machine has no space."""
    until = time.monotonic() + deadline_s

    def request(**header: Any) -> Response:
        return send(header, b"", max(0.01, until - time.monotonic()))

    size, capped = 0, []
    problems: list[str] = []
    try:
        listed = request(do="list", path=path)[0]
    except (OSError, ValueError, RuntimeError) as error:
        return Fetched(path=path, size=0, reason=str(error))
    if listed is None:
        return Fetched(path=path, size=0, reason="not there")
    for name, length, closed in sorted(listed, key=lambda entry: (entry[1], entry[0])):
        room = max(0, limit - size)
        capped += [name] if room < length else []
        wanted = node_files.parts(name or path, length, room)
        try:
            received, reason = (0, f"{name}: {closed}") if closed else _file(request, path, name, to, wanted)
        except HostError as error:
            return Fetched(path=path, size=size, capped=tuple(capped), reason=str(error))
        size += received
        problems += [reason] if reason else []
    return Fetched(path=path, size=size, capped=tuple(capped), reason=node_files.summary(problems))


def _file(
    request: Callable[..., Response], path: str, name: str, to: Path, wanted: Sequence[tuple[int, int]]
) -> tuple[int, str]:
    """(bytes received, why not all). ``wanted``: (start, end) of parts. Raises HostError if the host stops responding."""
    if ".." in PurePosixPath(name).parts or name.startswith("/"):
        return 0, f"{name!r} leaves its directory"
    target = to / name if name else to
    target.parent.mkdir(parents=True, exist_ok=True)
    received = 0
    with target.open("wb") as out:
        for start, end in wanted:
            if start:
                out.write(node_files.gap(start - received))
            at = start
            while at < end:
                try:
                    _, data = request(do="read", path=f"{path}/{name}" if name else path, at=at, room=end - at)
                except HostError:
                    raise
                except (OSError, ValueError, RuntimeError) as error:
                    if not received:
                        target.unlink()
                    return received, str(error)
                if not data:
                    break
                out.write(data)
                at += len(data)
                received += len(data)
        return received, ""
