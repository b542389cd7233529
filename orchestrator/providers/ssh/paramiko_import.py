"""paramiko without the 50 ms of imports that only `Match exec` in ssh's configuration needs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PROGRAMS = "invoke"


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Hide the module: it then looks like one that is not installed; paramiko handles that case."""
    is_loaded = name in sys.modules
    if not is_loaded:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if not is_loaded:
            del sys.modules[name]


with _hidden(_PROGRAMS):
    import paramiko


def with_programs() -> None:
    """Let paramiko run the programs that `Match exec` names."""
    paramiko.config.invoke = importlib.import_module(_PROGRAMS)


__all__ = ["paramiko", "with_programs"]
