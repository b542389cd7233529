"""The mark that every process of a node carries: CCBED_NODE in its environment."""

from __future__ import annotations

import ctypes
import hashlib
import os

NAME = "CCBED_NODE"
KEEPER = "keeper"
#: Bytes that the keeper's environment keeps free for the mark of any node forked from it.
ROOM = 240


def tag(bed: str, workdir: str) -> str:
    """The part of a mark that all processes of a bed share: the bed's name and 8 hex digits of its directory's hash."""
    return f"{bed}-{hashlib.sha256(workdir.encode()).hexdigest()[:8]}"


def mark(bed_tag: str, node: str, incarnation: str) -> str:
    """The full mark. Raises ValueError where it would not fit."""
    text = f"{bed_tag}/{node}/{incarnation}"
    if len(text.encode()) > ROOM:
        raise ValueError(f"the mark {text} is longer than {ROOM} bytes: choose a shorter bed or node name")
    return text


def padded(text: str) -> str:
    """The mark as it is put into the environment of an exec: followed by room for a longer one."""
    return text.ljust(ROOM)


def overwrite(text: str) -> None:
    """Replace this process's mark in place, so that /proc/<pid>/environ shows the new one to others."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    place = libc.getenv(NAME.encode())
    if not place or len(ctypes.string_at(place)) < len(text.encode()):
        raise RuntimeError(f"{NAME} is not in the environment with room for {text}")
    ctypes.memmove(place, padded(text).encode()[: len(ctypes.string_at(place))], len(ctypes.string_at(place)))
    os.environ[NAME] = text


def of_environment(environ: bytes) -> str:
    """The mark in the bytes of a /proc/<pid>/environ; empty where there is none."""
    start = 0 if environ.startswith(NAME.encode() + b"=") else environ.find(b"\0" + NAME.encode() + b"=") + 1
    if start == 0 and not environ.startswith(NAME.encode() + b"="):
        return ""
    value = environ[start + len(NAME) + 1 :].split(b"\0", 1)[0]
    return value.decode(errors="replace").strip()
