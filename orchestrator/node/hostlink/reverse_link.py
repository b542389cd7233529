"""The node's end of reverse links: connects to each orchestrator that listens, and serves it as a link server.

It needs three files of the bed on the shared file system, which only their owner may access: the pinned certificate, the
token of this host, and the list of listeners. A ccbed command adds itself to the list while it runs.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import socket
import ssl
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...model.frozen import dataclass
from ...system import plain_files
from ..keeper import process_status
from ..oslayer import forks, processes
from . import link_server
from .tls_stream import BLOCK, TlsStream, client_context

CERTIFICATE, LISTENERS, TOKENS = "certificate.pem", "listeners.json", "tokens"
WELCOME = b"welcome"
MAX_LINE = 1024
#: How often the list of listeners is read.
POLL_S = 0.2
#: How often the token is compared with that of the start.
CHECK_S = 2.0
#: The pause before a listener is tried again that could not be reached, or rejected this host.
BACKOFF_S = (0.2, 0.5, 1.0, 3.0)
#: A listener that a thousand hosts meet at once needs seconds: a host that gave up earlier would only add to its work.
CONNECT_S = 10.0
#: A link that lived for so long was no failure.
SETTLED_S = 2.0
#: The variables of a job step that its processes keep: they name the cluster and the job.
STEP_VARIABLES = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_STEP_GPUS")
_MODES = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """The secrets of a host: the pinned certificate (PEM), and its own token."""

    certificate: bytes
    token: str


def read_private(path: Path, limit: int) -> bytes:
    """A file that only its owner, this user, can access. Raises OSError for any other, with the command that repairs it."""
    with open(plain_files.open_file(path), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "belongs to another user", str(path))
        if status.st_mode & _MODES:
            raise PermissionError(errno.EPERM, f"other users can access it: chmod 600 {path}", str(path))
        return file.read(limit)


def read_pinned(directory: Path, host: str) -> Pinned:
    """Raises OSError."""
    return Pinned(
        certificate=read_private(directory / CERTIFICATE, 1 << 16),
        token=read_private(directory / TOKENS / host, MAX_LINE).decode("ascii").strip(),
    )


def read_listeners(directory: Path) -> dict[str, Mapping[str, Any]]:
    """The listeners by their id; empty while none runs. A file that is not private is not used."""
    try:
        rows = json.loads(read_private(directory / LISTENERS, 1 << 20))["listeners"]
        return {str(row["id"]): row for row in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


@dataclass(kw_only=True)
class _Attempts:
    """The links to one listener: the process that serves it now (0: none), and what came before."""

    pid: int = 0
    started: float = 0.0
    failures: int = 0
    due: float = 0.0

    def postpone(self, now: float) -> None:
        """The present attempt has failed; the next one is later each time."""
        self.failures += 1
        self.due = now + BACKOFF_S[min(self.failures, len(BACKOFF_S)) - 1]


class ReverseLinks:
    """One process with one thread. It forks a process for each listener, which connects and serves."""

    def __init__(self, directory: Path, host: str, pinned: Pinned, hostdir: str, roots: Sequence[str]) -> None:
        self._directory = directory
        self._pinned = pinned
        self._host = host
        self._hostdir = hostdir
        self._roots = roots
        self._attempts: dict[str, _Attempts] = {}

    def run(self) -> None:
        """Serve until this process is ended, or its token is no longer that of this host: the bed is down, or has a new step."""
        due = 0.0
        while True:
            now = time.monotonic()
            if now >= due:
                due = now + CHECK_S
                if self._is_replaced():
                    return
            self.poll(now)
            time.sleep(POLL_S)

    def _is_replaced(self) -> bool:
        try:
            return read_pinned(self._directory, self._host) != self._pinned
        except FileNotFoundError:
            return True
        except OSError:  # a file system that does not respond says nothing
            return False

    def poll(self, now: float) -> None:
        """Reap links that ended, and start those that are due."""
        self._reap(now)
        listeners = read_listeners(self._directory)
        for identity in [name for name, state in self._attempts.items() if name not in listeners and not state.pid]:
            del self._attempts[identity]
        for identity, listener in listeners.items():
            state = self._attempts.setdefault(identity, _Attempts())
            if not state.pid and now >= state.due:
                state.started = now
                try:
                    state.pid = self._fork(listener)
                except OSError as error:  # no process or memory is free now
                    state.postpone(now)
                    _log(listener, error)

    def _reap(self, now: float) -> None:
        ended = _reap_ended()
        for state in self._attempts.values():
            if state.pid in ended:
                state.pid = 0
                if now - state.started > SETTLED_S:
                    state.failures, state.due = 0, now
                else:
                    state.postpone(now)

    def _fork(self, listener: Mapping[str, Any]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            forks.die_with_parent(parent)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._serve(listener)
            code = 0
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            _log(listener, error)
        finally:
            os._exit(code)

    def _serve(self, listener: Mapping[str, Any]) -> None:
        stream = connect(listener, self._host, self._pinned)
        serve(stream, self._hostdir, self._roots)


def _log(listener: Mapping[str, Any], error: Exception) -> None:
    with contextlib.suppress(OSError):  # a full disk, or a stream without a reader, is no reason to end
        print(f"{time.strftime('%FT%TZ', time.gmtime())} listener {listener.get('id')}: {error}", flush=True)


def connect(listener: Mapping[str, Any], host: str, pinned: Pinned) -> TlsStream:
    """A stream to a listener, after both ends are authenticated. Raises OSError, ValueError or EOFError."""
    until = time.monotonic() + CONNECT_S
    problem: Exception = OSError("no address responds")
    for sock in _connected_sockets(listener["addresses"], int(listener["port"]), until):
        try:
            stream = TlsStream(sock, client_context(pinned.certificate))
            stream.handshake(until)
            greeting = {"host": host, "token": pinned.token, "listener": listener["id"]}
            stream.sendall(json.dumps(greeting).encode() + b"\n")
            if stream.receive_line(MAX_LINE, until) != WELCOME:
                raise ValueError("not the greeting of a listener")
            return stream
        except ssl.SSLCertVerificationError as error:
            sock.close()
            problem = OSError(f"shows another certificate than the pinned one: {error.verify_message}")
        except (OSError, EOFError, ValueError) as error:
            sock.close()
            problem = error
    raise problem


def _connected_sockets(addresses: Sequence[str], port: int, until: float) -> Iterator[socket.socket]:
    """Sockets to the addresses that accept a connection, in the order in which they do. All are tried at once."""
    with selectors.DefaultSelector() as selector:
        pending: set[socket.socket] = set()
        try:
            for address in addresses:
                with contextlib.suppress(OSError):  # a kernel may lack IPv6
                    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
                    sock.setblocking(False)
                    if sock.connect_ex((address, port)) not in (0, errno.EINPROGRESS):
                        sock.close()
                        continue
                    pending.add(sock)
                    selector.register(sock, selectors.EVENT_WRITE)
            while pending and (left_s := until - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    ready = key.fileobj
                    assert isinstance(ready, socket.socket)
                    selector.unregister(ready)
                    pending.discard(ready)
                    if ready.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                        ready.close()
                        continue
                    ready.setblocking(True)
                    yield ready
        finally:
            for sock in pending:
                sock.close()


def serve(stream: TlsStream, hostdir: str, roots: Sequence[str]) -> None:
    """Be the link server of this stream until it ends. Two threads move the bytes between it and a pair of sockets."""
    own, other = socket.socketpair()

    def receive() -> None:
        with contextlib.suppress(OSError):
            while data := stream.recv(BLOCK):
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def send() -> None:
        with contextlib.suppress(OSError):
            while data := other.recv(BLOCK):
                stream.sendall(data)
        stream.close()

    for work in (receive, send):
        threading.Thread(target=work, daemon=True).start()
    link_server.serve(hostdir, roots, own.fileno(), own.fileno())


def _end_descendants() -> None:
    """End what this process started, and nothing else: the bed may have a newer step on this machine.

    Raises RuntimeError for processes that do not end.
    """
    until = time.monotonic() + process_status.END_S
    while left := processes.descendants(os.getpid()):
        if time.monotonic() > until:
            raise RuntimeError(f"processes {', '.join(str(process.pid) for process in left)} do not end")
        processes.kill(left)
        _reap_ended()
        time.sleep(0.002)


def _reap_ended() -> list[int]:
    """Reap the children that have ended, keepers of this host among them; their pids."""
    pids = []
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            pids.append(pid)
    return pids


def _forget_step() -> None:
    """Libraries take their rank from the variables of a step (SLURM_PROCID); ranks below this process have another one."""
    for name in [name for name in os.environ if name.startswith("SLURM_") and name not in STEP_VARIABLES]:
        del os.environ[name]


def main(directory: Path, host: str, hostdir: str, bed: str, roots: Sequence[str]) -> int:
    """Maintain the reverse links of this host until SIGTERM, or until the bed is down; then end what was started here.

    What it starts stays below it, also keepers that detach: it is their subreaper, so its job step contains them. What an
    earlier step of the bed left on this machine is ended first: its token is not valid any more.
    """
    try:
        pinned = read_pinned(directory, host)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}; the bed's directory must be on a file system that all nodes share")
        return 1
    forks.become_subreaper()
    _forget_step()
    os.makedirs(hostdir, mode=0o700, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        process_status.end_bed(Path(hostdir), bed)
        ReverseLinks(directory, host, pinned, hostdir, roots).run()
    finally:
        _end_descendants()
    return 0
