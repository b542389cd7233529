"""Whose a bed is on hosts that others use as well: an id that lies with the state, and a text for people."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from pathlib import Path

from ..model.bed import BedSpec
from ..node.files import plain_files

FILE = "owner"


def text(bed: BedSpec) -> str:
    """For others to read; names change, so nothing is told apart by it where there is an id."""
    return f"{getpass.getuser()}@{socket.gethostname()}:{bed.workdir}"


def identity(state: Path) -> str:
    """The id of all beds of a state directory, made when it is asked for first. Raises OSError."""
    path = state / FILE
    if not path.exists():
        _make(path)
    return plain_files.read_file(path, 256).decode(errors="replace").strip()


def _make(path: Path) -> None:
    """Whole or not at all, and by one of those that try at once."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with open(plain_files.create_file(temporary), "w") as file:
        file.write(f"{secrets.token_hex(16)}\n")
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
