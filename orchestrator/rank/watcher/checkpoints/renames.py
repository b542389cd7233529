"""Renames: a save to a temporary name counts once it has its final name."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from typing import Any

from .. import record
from . import saves


def install() -> None:
    """Wrap ``os.rename``, ``os.replace`` and ``shutil.move``; pathlib and fsspec call these."""
    os.rename = _watch(os.rename)
    os.replace = _watch(os.replace)
    shutil.move = _watch(shutil.move)


def _watch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def rename(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _report(args, result)
        return result

    rename.__module__ = "shutil" if original is shutil.move else "os"
    return rename


@record.guarded("renames")
def _report(args: tuple[Any, ...], result: Any) -> None:
    if len(args) >= 2:
        saves.move(saves.absolute(args[0]), saves.absolute(result if isinstance(result, str) else args[1]))
