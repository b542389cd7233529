"""The destination of a connection, its proxy and its known host keys, from the inventory first, then from ssh's own configuration."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import getpass
import hashlib
import os
import re
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.inventory import literal, ssh_options
from ...model.bed import HostSpec
from ...model.frozen import dataclass
from . import paramiko_import
from .paramiko_import import paramiko

SSH_CONFIG = Path("~/.ssh/config")
_WAYS = ("proxycommand", "proxyjump")


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """The address, user and keys of a connection, as the inventory and ssh's own configuration say."""

    host: HostSpec
    address: str
    port: int
    user: str
    keys: tuple[str, ...]
    known: tuple[Path, ...]

    @property
    def login(self) -> str:
        return f"{self.user}@{self.address}" + ("" if self.port == paramiko.config.SSH_PORT else f":{self.port}")


def resolve(host: HostSpec, config: Path | None = None) -> tuple[Destination, str]:
    """(destination, proxy command or empty). ``config``: the file of ssh's configuration, if not the user's own."""
    named = ssh_options.first(host.ssh, "config")
    file = Path(named) if named else (config or SSH_CONFIG.expanduser())
    options = {**_configured(file, host.address or host.name), **{name: text[0] for name, text in host.ssh.items()}}
    port = host.port if host.port != paramiko.config.SSH_PORT else int(options.get("port", host.port))
    destination = Destination(
        host=host,
        address=str(options.get("hostname", host.address or host.name)),
        port=port,
        user=host.user or str(options.get("user", getpass.getuser())),
        keys=_keys(host, options),
        known=known_hosts_files(host.known_hosts, shlex.split(str(options.get("userknownhostsfile", "")))),
    )
    return destination, _proxy_command(destination, options, named)


def _keys(host: HostSpec, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of the inventory; if it has none, those of the configuration."""
    more = host.ssh.get("identityfile", ())
    if host.key:
        return tuple(dict.fromkeys((host.key, *_present(more))))
    return tuple(_present([] if more else options.get("identityfile", [])))


def _proxy_command(destination: Destination, options: Mapping[str, Any], config: str) -> str:
    """The first proxy counts; the inventory comes before the configuration."""
    given = [name for name in destination.host.ssh if name in _WAYS] or [name for name in _WAYS if name in options]
    text = str(options[given[0]]) if given else "none"
    if text == "none":
        return ""
    if given[0] == "proxycommand":
        return _filled(destination, text)
    address = f"[{destination.address}]" if ":" in destination.address else destination.address
    file = ["-F", config] if config else []
    return shlex.join(["ssh", "-o", "BatchMode=yes", *file, "-W", f"{address}:{destination.port}", *_jumps(text)])


def _filled(destination: Destination, command: str) -> str:
    """The command with ssh's tokens replaced; paramiko has replaced those of a configuration."""
    tokens = {
        "h": destination.address,
        "p": str(destination.port),
        "r": destination.user,
        "n": destination.host.address or destination.host.name,
    }
    quoted = {name: shlex.quote(text) for name, text in tokens.items()}
    return re.sub(r"%(.)", lambda match: {**quoted, "%": "%"}.get(match[1], match[0]), command)


def _jumps(text: str) -> list[str]:
    *first, last = text.split(",")
    hop = literal.HOP.fullmatch(last.removeprefix("ssh://"))
    user, numeric, name, port = hop.groups() if hop else (None, None, last, None)
    login = (f"{user}@" if user else "") + (numeric or name)
    return [*(["-J", ",".join(first)] if first else []), *(["-p", port] if port else []), "--", login]


def _configured(file: Path, name: str) -> Mapping[str, Any]:
    if str(file) == "none":
        return {}
    try:
        text = file.read_text()
    except OSError:
        return {}
    if "exec" in text.lower():
        paramiko_import.with_programs()
    config = paramiko.SSHConfig.from_text(text)
    return dict(config.lookup(name))


def _present(names: Sequence[str]) -> list[str]:
    return [str(path) for name in names if (path := Path(name).expanduser()).exists()]


SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")


class UnknownHostKeyError(Exception):
    """No file of known hosts has the key that the host shows."""

    def __init__(self, name: str, key: paramiko.PKey) -> None:
        super().__init__(name)
        self.name = name
        self.key = key


class HostKeyPolicy(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """The policy for a host without a known key: reject it or, on first contact, record its key in ``file``."""

    def __init__(self, file: Path, *, record: bool) -> None:
        self._file = file
        self._record = record

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        if not self._record:
            raise UnknownHostKeyError(hostname, key)
        append_host_key(self._file, hostname, key)


def known_hosts_files(chosen: str | None, configured: Sequence[str]) -> tuple[Path, ...]:
    """The files of known hosts: the inventory's, else ssh's own. The first one receives new keys."""
    user_files = [chosen] if chosen else [name for name in configured if name != "/dev/null"] or ["~/.ssh/known_hosts"]
    return (*(Path(name).expanduser() for name in user_files), SYSTEM_KNOWN_HOSTS)


def append_host_key(file: Path, hostname: str, key: paramiko.PKey) -> None:
    """Append a line; lines that other processes add meanwhile stay."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(fd, f"{hostname} {key.get_name()} {key.get_base64()}\n".encode())
    finally:
        os.close(fd)


def known_as(address: str, port: int) -> str:
    """The name of a host in the files of known hosts."""
    return address if port == paramiko.config.SSH_PORT else f"[{address}]:{port}"


def fingerprint(key: paramiko.PKey) -> str:
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


#: How long a program may take to end after SIGTERM.
END_S = 1.0
#: How long a program may take to end after its output has ended.
LAST_WORDS_S = 0.5


class ProxyError(OSError):
    """The program has ended; the text is its last output."""


class Proxy:
    """Runs until ``close``, or until its socket is closed. It has a session of its own, so Ctrl-C does not reach it."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.sock, program_end = socket.socketpair()
        with program_end:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=program_end.fileno(),
                stdout=program_end.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )

    def error(self) -> ProxyError | None:
        """Return why the program has ended; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(LAST_WORDS_S)
            self._stderr.seek(0)
            lines = self._stderr.read(4096).decode(errors="replace").strip().splitlines()
            return ProxyError("; ".join(line.strip() for line in lines[-3:]) or f"it ended with code {code}")
        return None

    def close(self) -> None:
        self.sock.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()
