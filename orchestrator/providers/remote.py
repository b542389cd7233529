"""A host behind SSH: its operations asked, its files mirrored here, and the connection made again when it was lost."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..agent.tails import Tree
from ..model.bed import BedSpec, HostSpec
from ..model.provider import Fetched
from . import clocks, files, helping, pulling, ssh
from .asking import BED
from .clocks import Reading
from .link import Answer, Link, RefusedError
from .mirror import Mirror
from .refusals import HostError

#: The most that is streamed of what one node writes in a run; what is gathered at the end has the same cap.
NODE_CAP = 256 << 20
PING_S = 1.0
#: Without a word for so long, although asked, a connection is lost.
SILENCE_S = 5.0
SLICE_S = 0.25
BACKOFF_S = (0.05, 0.2, 0.5, 1.0, 2.0, 3.0)
CONNECT_S = 6.0
#: What an error of a host is raised as here; all others are a RuntimeError.
_KINDS: Mapping[str, type[Exception]] = {"OSError": OSError, "ValueError": ValueError}


class RemoteSite:
    """See sites.Site. ``connect`` is called for each new connection; ``open`` makes the first one or raises HostError."""

    def __init__(
        self, bed: BedSpec, host: HostSpec, connect: Callable[[HostSpec, float], ssh.Connection] | None = None
    ):
        self.host = host
        self.root = Path(bed.workdir)
        self.reason = ""
        self.trouble = ""
        self.capped: set[str] = set()
        self._bed = bed
        self._mirror = Mirror(self.root, host.name)
        self._connect = connect or ssh.connect
        self._connection: ssh.Connection | None = None
        self._link: Link | None = None
        self._state = threading.Condition()
        self._tries = 0
        self._closed = False
        self._token = secrets.token_hex(8)
        self._wheel: Mapping[str, Any] | None = None
        self._trees: dict[str, Tree] = {}
        self._nodes: dict[str, None] = {}
        self._beats: dict[str, tuple[str, int]] = {}
        self._unsent: dict[str, bytes] = {}
        self._astray: set[str] = set()
        self._clock: Reading | None = None

    def open(self, deadline_s: float = ssh.CONNECT_S) -> None:
        """Connect, and stay connected from now on. Raises HostError where the host cannot be used."""
        self._mirror.keeper.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._follow([Tree(path="keeper", node="")])
        self._once(deadline_s)
        threading.Thread(target=self._keep, daemon=True, name=f"ccbed-site-{self.host.name}").start()

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def connection(self) -> ssh.Connection:
        """For whatever else goes over the same connection, an engine's client, say. Raises HostError where it is lost."""
        connection = self._connection
        if connection is None or not connection.alive:
            raise self._lost_error()
        return connection

    @property
    def clock(self) -> Reading | None:
        """The best reading of this host's clock on this connection."""
        return self._clock

    def ask(self, op: str, deadline_s: float = 10.0, **args: Any) -> Any:
        """An operation of the host. Raises OSError, ValueError or RuntimeError with the host's own sentence.

        One argument may be bytes, which go as they are.
        """
        raw = next((name for name, value in args.items() if isinstance(value, bytes)), "")
        body = bytes(args.pop(raw)) if raw else b""
        return self._asked({"do": "op", "op": op, "args": args, "raw": raw}, body, deadline_s)[0]

    def ping(self, deadline_s: float = 10.0) -> Reading:
        """Ask for the host's clock."""
        before = time.monotonic()
        found, _ = self._asked({"do": "ping"}, b"", deadline_s)
        reading = clocks.reading(found, before, time.monotonic(), time.time())
        self._clock = clocks.better(self._clock, reading)
        return reading

    def write(self, path: str, content: bytes) -> None:
        """Place a file; returns at once. Without a connection it goes out with the next one."""
        with self._state:
            self._unsent[path] = content
            link = self._link
        if link:
            self._send(link, path, content)

    def put(self, content: Mapping[str, bytes], deadline_s: float = 60.0) -> str:
        path = f"{self._bed.hostdir}/payloads/{files.payload_hash(content)}"
        if self._asked({"do": "has", "path": path}, b"", deadline_s)[0]:
            return path
        listed = [[name, len(data)] for name, data in content.items()]
        header = {"do": "put", "path": path, "files": listed}
        return str(self._asked(header, b"".join(content.values()), deadline_s)[0])

    def watch(self, run: str, nodes: Sequence[str], deadline_s: float = 10.0) -> None:
        """Follow these nodes' files of a run from now on. The events that are there already are here on return."""
        trees = [Tree(path="keeper", node="")]
        for node in nodes:
            trees.append(Tree(path=f"nodes/{node}", node=node))
            path = f"nodes/{node}/exec" if run == BED else f"nodes/{node}/runs/{run}"
            trees.append(Tree(path=path, node=node, deep=True, cap=NODE_CAP))
        self._nodes.update(dict.fromkeys(nodes))
        self._follow(trees)
        for tree in trees:
            self._mirror.path(tree.path).mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._link:
            self._asked(self._watching(trees), b"", deadline_s)

    def settle(self, path: str = "", deadline_s: float = 10.0) -> Mapping[str, Any]:
        """Wait until everything below a path is here that is there now; {files, there, capped}."""
        found: Mapping[str, Any] = self._asked({"do": "sync", "path": path}, b"", deadline_s)[0]
        return found

    def drive(self, run: str, owner: str, **more: Any) -> None:
        """Take the wheel on this host, and again on every new connection. Raises OSError that names who has it."""
        content = {"run": run, "owner": owner, **more, "token": self._token}
        self._asked({"do": "drive", "content": content}, b"", 10.0)
        self._wheel = content

    def leave(self) -> None:
        """Let go of the wheel."""
        self._wheel = None
        if link := self._link:
            link.request({"do": "leave"})

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        return dict(self._beats)

    def fetch(self, node: str, path: str, to: Path, limit: int, deadline_s: float = 30.0) -> Fetched:
        """A file or a tree of a node's directory, or of a directory of the bed on this host (absolute).

        A host that is not reached gives what is mirrored already, and says what is missing.
        """
        if path.startswith("/"):
            return pulling.pull(self._asked, path, to, limit, deadline_s)
        name = f"nodes/{node}/{path}"
        mirrored = self._mirror.path(f"nodes/{node}")
        try:
            found = self.settle(name, deadline_s)
        except OSError as error:
            got = files.fetch([mirrored], path, to, limit)
            reason = f"{error}; what had come before is here" if got.size else str(error)
            return Fetched(path=path, size=got.size, capped=got.capped, reason=reason)
        if not found["there"]:
            return Fetched(path=path, size=0, reason="not there")
        got = files.fetch([mirrored], path, to, limit)
        return Fetched(path=path, size=got.size, capped=got.capped or bool(found["capped"]), reason=got.reason)

    def close(self) -> None:
        """End the connection and with it the helper. The mirror stays."""
        with self._state:
            self._closed = True
            link, connection = self._link, self._connection
            self._state.notify_all()
        if link:
            link.close()
        if connection:
            connection.close()

    # The connection.

    def _once(self, deadline_s: float) -> None:
        """Connect, and bring the helper to where the last one was. Raises HostError."""
        connection = self._connect(self.host, deadline_s)
        try:
            roots = [self._bed.shared_dir, *([self._bed.data_dir] if self._bed.data_dir else [])]
            started = helping.start(connection, self._bed.hostdir, self._bed.name, roots, deadline_s)
            link = Link(started.channel, self._frame, self._lost, started.rest)
            self._resume(link, deadline_s)
        except BaseException:
            connection.close()
            raise
        with self._state:
            if self._closed:
                link.close()
                connection.close()
                return
            self._connection, self._link, self._tries, self.reason = connection, link, 0, ""
            unsent = dict(self._unsent)
            self._state.notify_all()
        for path, content in unsent.items():
            self._send(link, path, content)

    def _resume(self, link: Link, deadline_s: float) -> None:
        try:
            if self._wheel:
                link.request({"do": "drive", "content": self._wheel}).result(deadline_s)
            link.request(self._watching(list(self._trees.values()))).result(deadline_s)
        except (RefusedError, ConnectionError, TimeoutError) as error:
            link.close()
            raise HostError(self.host.name, str(error) or f"no answer within {deadline_s:g} s") from error

    def _keep(self) -> None:
        """Ping while connected, connect again while not: until close."""
        while not self._closed:
            link = self._link
            if link is None:
                self._again()
            else:
                self._listen(link)

    def _listen(self, link: Link) -> None:
        """Until the link is lost: ask for a sign of life every second; silence, counted in slices, ends it.

        A time in which this process itself did not run counts as one slice.
        """
        silent, due = 0.0, 0.0
        while not self._closed and self._link is link:
            before = time.monotonic()
            if before >= due:
                due = before + PING_S
                link.request({"do": "ping"})
                self._retry_astray(link)
            with self._state:
                self._state.wait_for(lambda: self._closed or self._link is not link, SLICE_S)
            silent = silent + SLICE_S if link.heard < before else 0.0
            if silent > SILENCE_S:
                link.close(f"no word for {SILENCE_S:g} s")

    def _again(self) -> None:
        with self._state:
            patience = BACKOFF_S[min(self._tries, len(BACKOFF_S) - 1)]
            if self._state.wait_for(lambda: self._closed, patience):
                return
        try:
            self._once(CONNECT_S)
        except HostError as error:
            with self._state:
                self._tries += 1
                self.reason = str(error)
                self._state.notify_all()

    def _lost(self, reason: str) -> None:
        with self._state:
            connection, self._connection, self._link = self._connection, None, None
            self._tries, self.reason, self._clock = 0, reason, None
            self._state.notify_all()
        if connection:
            connection.close()

    def _asked(self, header: Mapping[str, Any], body: bytes, deadline_s: float) -> Answer:
        """Ask and wait. A connection that was lost just now is waited for, one that could not be made again is not."""
        until = time.monotonic() + deadline_s
        with self._state:
            self._state.wait_for(lambda: self._link or self._tries or self._closed, deadline_s)
            link = self._link
        if link is None:
            raise self._lost_error()
        try:
            return link.request(header, body).result(max(0.01, until - time.monotonic()))
        except RefusedError as error:
            raise _KINDS.get(error.kind, RuntimeError)(str(error)) from error
        except TimeoutError as error:
            what = header.get("op", header["do"])
            raise HostError(self.host.name, f"no answer to {what} within {deadline_s:g} s") from error
        except ConnectionError as error:
            raise HostError(self.host.name, f"the connection was lost: {error}") from error

    def _lost_error(self) -> HostError:
        return HostError(self.host.name, f"not connected: {self.reason or 'never opened'}")

    # What goes out and what comes in.

    def _send(self, link: Link, path: str, content: bytes) -> None:
        """A file that was placed is forgotten; one whose answer was lost goes out again: the same name, the same bytes."""

        def placed(future: Any) -> None:
            error = future.exception()
            if isinstance(error, ConnectionError):
                return
            with self._state:
                if self._unsent.get(path) is content:
                    del self._unsent[path]
            if error is not None:
                self.trouble = f"{path}: {error}"

        link.request({"do": "write", "path": path}, content).add_done_callback(placed)

    def _follow(self, trees: Sequence[Tree]) -> None:
        for tree in trees:
            self._trees.setdefault(tree.path, tree)

    def _watching(self, trees: Sequence[Tree]) -> Mapping[str, Any]:
        listed = [{"path": one.path, "node": one.node, "deep": one.deep, "cap": one.cap} for one in trees]
        return {"do": "watch", "trees": listed, "have": self._mirror.have(trees), "beats": list(self._nodes)}

    def _frame(self, header: Mapping[str, Any], data: bytes) -> None:
        if "file" in header:
            self._mirrored(header, data)
        elif "beats" in header:
            self._beats.update({node: (str(inc), int(count)) for node, (inc, count) in header["beats"].items()})
        elif "capped" in header:
            self.capped.add(str(header["capped"]))

    def _mirrored(self, header: Mapping[str, Any], data: bytes) -> None:
        """A file that does not fit, or cannot be written, is asked for again from where it is."""
        try:
            if str(header["node"]) and str(header["node"]) not in self._nodes:
                return
            if self._mirror.write(header, data):
                return
        except ValueError:
            return
        except OSError as error:
            self.trouble = f"{error.filename or self.root}: {error.strerror}; files of {self.host.name} wait for space"
        self._astray.add(str(header["file"]))

    def _retry_astray(self, link: Link) -> None:
        while self._astray:
            name = self._astray.pop()
            link.request({"do": "anew", "file": name, "have": self._mirror.at(name)})
