"""The owner of a bed on hosts that others also use: an id, kept with the state, and a text for people."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from pathlib import Path

from ..model.bed import BedSpec
from ..system import plain_files

FILE = "owner"


def text(bed: BedSpec) -> str:
    """The owner as text for others. Names change, so owners are compared by id if there is one."""
    return f"{getpass.getuser()}@{socket.gethostname()}:{bed.workdir}"


def identity(state: Path) -> str:
    """The id of all beds of a state directory, created by the first call. Raises OSError."""
    path = state / FILE
    if not path.exists():
        _make(path)
    return plain_files.read_file(path, 256).decode(errors="replace").strip()


def _make(path: Path) -> None:
    """Create the file atomically; of several processes that try at once, one succeeds."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with open(plain_files.create_file(temporary), "w") as file:
        file.write(f"{secrets.token_hex(16)}\n")
    plain_files.publish(temporary, path)
