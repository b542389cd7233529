"""Files put in place whole, below the directories of a bed alone: written beside, then renamed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable


def below(path: str, roots: Iterable[str]) -> str:
    """The path without links, if it lies below one of the roots. Raises PermissionError where it does not."""
    real = os.path.realpath(path)
    for root in roots:
        base = os.path.realpath(root)
        if real == base or real.startswith(base.rstrip("/") + "/"):
            return real
    raise PermissionError(f"{path} is outside of the bed's directories")


def write(path: str, content: bytes) -> None:
    """Replace a file in one step; its directories are made, for nobody else to look into."""
    directory, name = os.path.split(path)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    temporary = os.path.join(directory, f".{name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
