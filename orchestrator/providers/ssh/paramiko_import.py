"""paramiko, without half a second's tenth of imports that only `Match exec` in ssh's configuration needs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PROGRAMS = "invoke"


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Whoever tries to import it finds that it is not installed, which paramiko provides for."""
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
    """Now paramiko can run what `Match exec` names."""
    paramiko.config.invoke = importlib.import_module(_PROGRAMS)


__all__ = ["paramiko", "with_programs"]
