"""The signal at which this process writes its stacks for its bed: a real-time one that nothing else in it uses.

The handler is in C, so it works while a thread keeps the interpreter. It writes into a file in memory, whose name has the signal's
number. The bed sends the signal only while the process keeps this file open: it is closed as soon as the script takes the signal.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from .. import importlib_bootstrap

#: The first number to try; programs count theirs from both ends.
FIRST = signal.SIGRTMAX - 6


class _Own:
    """``action``: the address of the handler in the kernel. Without a signal ``number`` is 0."""

    number, fd, action, is_watched = 0, -1, b"", False


def register() -> None:
    """Choose a signal that is at its default, not blocked and not handled, and handle it. Without one there are no stacks."""
    used = _used()
    number = next((n for n in range(FIRST, signal.SIGRTMIN, -1) if not used >> (n - 1) & 1), 0)
    if number:
        _Own.fd = os.memfd_create(f"ccbed-stacks-{number}")
        faulthandler.register(number, file=_Own.fd, all_threads=True)
        _Own.number, _Own.action = number, _action(number)
    if not _Own.is_watched:
        _Own.is_watched = True
        for module, name in ((sys.modules["_signal"], "signal"), (faulthandler, "register")):
            setattr(module, name, importlib_bootstrap.observe(getattr(module, name), _give_way, _register_again))


def verify() -> None:
    """Close the file if an extension in C has taken the signal."""
    if _Own.number and _action(_Own.number) != _Own.action:
        _close()


def _give_way(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The script is about to take a signal: if it is this one, it gets it at its default."""
    is_own = _Own.number > 0 and (args[0] if args else kwargs.get("signum")) == _Own.number
    if is_own:
        faulthandler.unregister(_Own.number)
        _close()
    return is_own


def _register_again(was_own: bool, result: Any, error: BaseException | None) -> None:
    if was_own:
        register()


def _close() -> None:
    _Own.number = 0
    os.close(_Own.fd)


def _used() -> int:
    """The signals that are blocked, ignored or handled, as a mask."""
    status = Path("/proc/self/status").read_text()
    blocked, ignored, caught = (int(mask, 16) for mask in re.findall(r"Sig(?:Blk|Ign|Cgt):\s*(\w+)", status))
    return blocked | ignored | caught


def _action(number: int) -> bytes:
    """The handler of a signal as the kernel knows it: the first field of ``struct sigaction``."""
    action = ctypes.create_string_buffer(512)
    ctypes.CDLL(None).sigaction(number, None, action)
    return action.raw[: ctypes.sizeof(ctypes.c_void_p)]
