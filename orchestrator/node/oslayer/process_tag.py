"""The process tag: the variable CCBED_NODE in the environment of every process of a node."""

from __future__ import annotations

import ctypes
import hashlib
import os

VARIABLE = "CCBED_NODE"
#: The keeper's environment reserves this many bytes for the tag of any node that is forked from it.
MAX_BYTES = 240


def bed_tag(bed: str, workdir: str) -> str:
    """The prefix of all tags of a bed: its name and 8 hex digits of its directory's hash."""
    return f"{bed}-{hashlib.sha256(workdir.encode()).hexdigest()[:8]}"


def node_tag(prefix: str, node: str, incarnation: str) -> str:
    """The tag of a node's processes. Raises ValueError if it is too long."""
    text = f"{prefix}/{node}/{incarnation}"
    if len(text.encode()) > MAX_BYTES:
        raise ValueError(f"the process tag {text} is longer than {MAX_BYTES} bytes: choose a shorter bed or node name")
    return text


def pad(text: str) -> str:
    """A tag with spaces appended, so that a longer tag can overwrite it in the environment."""
    return text.ljust(MAX_BYTES)


def set_own_tag(text: str) -> None:
    """Replace the tag of this process in place, so that /proc/<pid>/environ shows the new tag."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(VARIABLE.encode())
    size = len(ctypes.string_at(address)) if address else 0
    if not address or size < len(text.encode()):
        raise RuntimeError(f"{VARIABLE} in the environment is too short for {text}")
    ctypes.memmove(address, pad(text).encode()[:size], size)
    os.environ[VARIABLE] = text


def tag_in_environment(environ: bytes) -> str:
    """The tag in the content of a /proc/<pid>/environ; empty if there is none."""
    start = 0 if environ.startswith(VARIABLE.encode() + b"=") else environ.find(b"\0" + VARIABLE.encode() + b"=") + 1
    if start == 0 and not environ.startswith(VARIABLE.encode() + b"="):
        return ""
    value = environ[start + len(VARIABLE) + 1 :].split(b"\0", 1)[0]
    return value.decode(errors="replace").strip()
