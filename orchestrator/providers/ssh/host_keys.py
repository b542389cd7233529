"""Trust in host keys: strict by default; a first contact records a new key, and never replaces a known one."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .paramiko_import import paramiko

SYSTEM = Path("/etc/ssh/ssh_known_hosts")


class UnknownHostKeyError(Exception):
    """No file of known hosts has the key that the host shows."""

    def __init__(self, name: str, key: paramiko.PKey) -> None:
        super().__init__(name)
        self.name = name
        self.key = key


class Policy(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """For a host without a known key: reject it or, on first contact, record its key in ``file``."""

    def __init__(self, file: Path, *, record: bool) -> None:
        self._file = file
        self._record = record

    def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
        if not self._record:
            raise UnknownHostKeyError(hostname, key)
        append(self._file, hostname, key)


def files(chosen: str | None, configured: Sequence[str]) -> tuple[Path, ...]:
    """The files of known hosts: the inventory's, else ssh's own. The first one receives new keys."""
    user_files = [chosen] if chosen else [name for name in configured if name != "/dev/null"] or ["~/.ssh/known_hosts"]
    return (*(Path(name).expanduser() for name in user_files), SYSTEM)


def append(file: Path, hostname: str, key: paramiko.PKey) -> None:
    """Append a line; lines that other processes add meanwhile stay."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.write(fd, f"{hostname} {key.get_name()} {key.get_base64()}\n".encode())
    finally:
        os.close(fd)


def known_as(address: str, port: int) -> str:
    """The name of a host in these files."""
    return address if port == paramiko.config.SSH_PORT else f"[{address}]:{port}"


def fingerprint(key: paramiko.PKey) -> str:
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"
