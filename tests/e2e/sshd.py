"""A real sshd of this test's own on loopback: own keys, own port, started and stopped by its pid."""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.model.bed import BedSpec, HostSpec
from orchestrator.node.oslayer import processes
from orchestrator.providers.ssh import ssh_connection
from orchestrator.providers.ssh.remote_host import RemoteSite

from .. import undo

ADDRESS = "127.0.0.1"
#: sshd as root wants this directory, and Debian makes it by the service that does not run here.
PRIVILEGES = Path("/run/sshd")


def lacking() -> str:
    """What this machine lacks for a test with an sshd; empty if nothing."""
    names = {"sshd": "openssh-server", "ssh-keygen": "openssh-client"}
    missing = sorted({package for name, package in names.items() if not program(name)})
    return f"needs {', '.join(missing)}" if missing else ""


def ping(site: RemoteSite, deadline_s: float = 10.0) -> Mapping[str, Any]:
    """One round trip to the host: its ``boot`` and clocks."""
    response: Mapping[str, Any] = site._host_connection.request({"do": "ping"}, b"", deadline_s)[0]
    return response


def program(name: str) -> str:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") or ""


def free_port() -> int:
    """Below the ports that Linux gives to connections: one of those could be taken before its server listens."""
    for port in random.SystemRandom().sample(range(10_000, 30_000), 1000):
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind((ADDRESS, port))
            return port
    raise RuntimeError("no port is free")


def make_key(path: Path, passphrase: str = "") -> Path:
    argv = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(path)]
    subprocess.run(argv, check=True, timeout=900)
    return path


@dataclass(kw_only=True)
class Sshd:
    """A server that runs. ``key``: a client's key that it takes; ``known``: a file that knows its host key."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def key(self) -> Path:
        return self.directory / "client"

    @property
    def known(self) -> Path:
        return self.directory / "known_hosts"

    def host(self, name: str = "h1", **more: Any) -> HostSpec:
        given: dict[str, Any] = {
            "name": name,
            "connection": "ssh",
            "address": ADDRESS,
            "port": self.port,
            "user": getpass.getuser(),
            "key": str(self.key),
            "known_hosts": str(self.known),
            **more,
        }
        return HostSpec(**given)

    def children(self) -> list[int]:
        """The processes that serve connections: one for each, or two where privileges are separated."""
        return [pid for pid in _pids() if _parent(pid) == self.process.pid]

    def cut(self) -> int:
        """Kill whatever serves connections now; how many there were."""
        children = self.children()
        for pid in (pid for pid in self._descendants() if _name(pid).startswith("sshd")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(children)

    def end(self) -> None:
        """End it and its connections. It is stopped first: a client that is cut would connect again."""
        self.process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 600
        while self.process.poll() is None and _state(self.process.pid) != "T" and time.monotonic() < until:
            time.sleep(0.001)
        self.cut()
        self.process.kill()
        self.process.wait(600)

    def programs(self) -> list[int]:
        """What runs in sessions of connections: all that descends from the server and is no sshd."""
        return [pid for pid in self._descendants() if not _name(pid).startswith("sshd")]

    def sessions(self) -> int:
        return len(self.programs())

    def _descendants(self) -> list[int]:
        return [process.pid for process in processes.descendants(self.process.pid)]


@contextmanager
def running(directory: Path, *more: str) -> Iterator[Sshd]:
    directory.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        PRIVILEGES.mkdir(mode=0o755, exist_ok=True)
    for name in ("host", "client"):
        if not (directory / name).exists():
            make_key(directory / name)
    port = free_port()
    config = directory / "sshd_config"
    config.write_text(_config(directory, port, *more))
    name = f"[{ADDRESS}]:{port}"
    (directory / "known_hosts").write_text(f"{name} {(directory / 'host.pub').read_text()}")
    log = (directory / "sshd.log").open("ab")
    # It writes its title over its environment, so it ends with this process by itself.
    argv = ["setpriv", "--pdeathsig", "TERM", program("sshd"), "-D", "-e", "-f", str(config)]
    process = subprocess.Popen(argv, stdout=log, stderr=log)
    server = Sshd(directory=directory, port=port, process=process)
    try:
        _wait_for(server)
        yield server
    finally:
        server.end()
        log.close()


def bed(directory: Path, host: HostSpec, name: str = "wire") -> BedSpec:
    """A bed whose host directory and mirror are two directories of this machine."""
    (directory / "host").mkdir(parents=True, exist_ok=True)
    return BedSpec(
        name=name,
        provider="docker",
        nodes=(),
        inventory="",
        workdir=str(directory / "mirror"),
        shared_dir=str(directory / "host" / "shared"),
        agent="",
        hosts=(host,),
        hostdir=str(directory / "host"),
    )


def run(host: HostSpec, *argv: str) -> ssh_connection.CommandResult:
    connection = ssh_connection.connect(host)
    try:
        return connection.run(argv)
    finally:
        connection.close()


def _config(directory: Path, port: int, *more: str) -> str:
    return "\n".join(
        [
            f"Port {port}",
            f"ListenAddress {ADDRESS}",
            f"HostKey {directory / 'host'}",
            f"AuthorizedKeysFile {directory / 'client.pub'}",
            "StrictModes no",
            "UsePAM no",
            "PidFile none",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            *(line for line in more if not line.startswith("SetEnv ")),
            _set_env(*more),
            "",
        ]
    )


def _set_env(*more: str) -> str:
    """sshd reads one such line. Its sessions get no other variable of this process."""
    own = [f'"{name}={value}"' for name, value in undo.variables().items()]
    others = [line.removeprefix("SetEnv ") for line in more if line.startswith("SetEnv ")]
    return " ".join(["SetEnv", *own, *others]) if own or others else ""


def _wait_for(server: Sshd) -> None:
    until = time.monotonic() + 600
    while True:
        if server.process.poll() is not None or time.monotonic() > until:
            raise RuntimeError((server.directory / "sshd.log").read_text())
        with contextlib.suppress(OSError), socket.create_connection((ADDRESS, server.port), timeout=10):
            return
        time.sleep(0.01)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _stat(pid: int) -> tuple[str, str, int]:
    try:
        text = (Path("/proc") / str(pid) / "stat").read_text()
    except OSError:
        return "", "", 0
    name, _, rest = text.partition("(")[2].rpartition(")")
    state, parent, *_ = rest.split()
    return name, state, int(parent)


def _name(pid: int) -> str:
    return _stat(pid)[0]


def _state(pid: int) -> str:
    return _stat(pid)[1]


def _parent(pid: int) -> int:
    return _stat(pid)[2]
