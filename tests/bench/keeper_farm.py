"""Hosts that connect back, all on this machine: reverse links, link server and keeper of each are the real ones.

They are forked from one process that has imported their code, without torch: their nodes can have no ranks. Where this user may
have it, each host has a pid namespace, so that it sees its own processes only, as a machine does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.node import __main__ as node_main
from orchestrator.node import warm_up
from orchestrator.node.hostlink import host_operations, link_server, reverse_link
from orchestrator.node.hostlink.tls_stream import client_context
from orchestrator.node.keeper import keeper, keeper_start
from orchestrator.node.oslayer import forks, processes
from orchestrator.providers.ssh.host_requests import Link

from ..unit.piped import serving

REPO = Path(__file__).parents[2]
#: All hosts share the cores of this machine: each polls once a second, not four times, and waits for its connection.
POLL_S, CONNECT_S = 1.0, 60.0
#: Threads share one heap, and freed blocks go back to the kernel.
LITTLE_MEMORY = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_MMAP_THRESHOLD_": "65536"}
_CLONE_NEWNS, _CLONE_NEWPID = 0x20000, 0x20000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


@contextmanager
def farm(hosts: Mapping[str, Path], links: Path, bed: str, root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a host in each directory of ``hosts``, by name, until the block ends. ``links``, ``root``: of the bed, shared."""
    padded = {processes.TAG_VARIABLE: processes.pad_tag(""), **LITTLE_MEMORY}
    about = {
        "hosts": {name: str(path) for name, path in hosts.items()},
        "links": str(links),
        "bed": bed,
        "root": str(root),
    }
    argv = [sys.executable, "-m", f"{__package__}.keeper_farm"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, cwd=REPO, env={**os.environ, **padded}, **pipes) as process:  # type: ignore[call-overload]
        try:
            process.stdin.write(json.dumps(about).encode() + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()  # its hosts die with it


class _WaitingKeeper:
    """What the operation that starts a keeper needs of ``subprocess.Popen``: a fork of the host that waits to become its keeper.

    A fork of the link server would keep a copy of all memory that this has changed.
    """

    channel: socket.socket

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], **_: object) -> None:
        socket.send_fds(self.channel, [json.dumps([argv[2:], env, pass_fds]).encode()], pass_fds)

    def communicate(self) -> tuple[bytes, bytes]:
        return b"", b""

    @classmethod
    def wait(cls) -> None:
        """Fork it."""
        cls.channel, own = socket.socketpair()
        if os.fork():
            own.close()
            return
        try:
            cls.channel.close()
            order, received, _, _ = socket.recv_fds(own, 1 << 18, 1)
            own.close()
            arguments, env, (ready,) = json.loads(order)
            if received[0] != ready:
                os.dup2(received[0], ready)
                os.close(received[0])
            os.environ.update(env)
            os._exit(node_main.main(arguments))
        finally:
            os._exit(1)


class _Programs:
    """``subprocess`` for ``keeper.launch``."""

    PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL
    Popen = _WaitingKeeper


def main() -> None:
    about = json.loads(sys.stdin.readline())
    warm_up.import_modules = lambda: None
    vars(keeper_start)["subprocess"] = _Programs
    for module in (reverse_link, link_server, keeper):
        vars(module)["POLL_S"] = POLL_S
    vars(reverse_link)["CONNECT_S"] = CONNECT_S
    assert host_operations.OPS
    _rehearse(Path(about["root"]) / "rehearsal", (Path(about["links"]) / reverse_link.CERTIFICATE).read_bytes())
    warm_up.freeze_objects()
    with _namespaces() as new_namespace:
        for name, hostdir in about["hosts"].items():
            has_namespace = new_namespace()
            if not os.fork():
                _be_host(name, hostdir, about, has_namespace=has_namespace)
    print("ready", flush=True)
    sys.stdin.read()


def _rehearse(directory: Path, certificate: bytes) -> None:
    """Serve a connection once before the forks: what the interpreter adapts at the first calls is then shared by all hosts."""
    requests: list[dict[str, Any]] = [
        {"do": "ping"}, {"do": "watch", "trees": [{"path": "keeper", "node": ""}], "have": {}, "beats": []}, {"do": "sync"},
        {"do": "op", "op": "prepare", "args": {"hostdir": str(directory), "nodes": ["n"], "shared_dir": str(directory)}},
        {"do": "op", "op": "look", "args": {"hostdir": str(directory), "bed": "rehearsal", "engine": ""}},
    ]  # fmt: skip
    hello = client_context(certificate).wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO())
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    with serving(directory, host_operations.OPS) as pipes:
        link = Link(pipes, lambda header, body: None, lambda link, reason: None)
        for _ in range(20):
            for request in requests:
                link.request(request).result(10)
        link.close()


def _be_host(name: str, hostdir: str, about: Mapping[str, Any], *, has_namespace: bool) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(forks.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        if has_namespace and libc.unshare(_CLONE_NEWNS) == 0:
            libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
            libc.mount(b"proc", b"/proc", b"proc", 0, None)
        os.setsid()
        forks.redirect_output(Path(about["root"]) / "steps" / f"{name}.log")
        _WaitingKeeper.wait()
        os._exit(reverse_link.main(Path(about["links"]), name, hostdir, about["bed"], [about["root"]]))
    finally:
        os._exit(1)


@contextmanager
def _namespaces() -> Iterator[Any]:
    """A function that puts the next fork into a pid namespace of its own; it returns whether it could."""
    libc = ctypes.CDLL(None)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def new() -> bool:
        libc.setns(own, _CLONE_NEWPID)
        return bool(libc.unshare(_CLONE_NEWPID) == 0)

    try:
        yield new
    finally:
        with contextlib.suppress(OSError):
            os.close(own)


if __name__ == "__main__":
    main()
