"""Renames and links: a save to a temporary name counts once it has its final name, or once a tracker names it."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from typing import Any

from .. import record
from . import saves, trackers


def install() -> None:
    """Wrap ``os.rename``, ``os.replace``, ``os.symlink`` and ``shutil.move``; pathlib and fsspec call these."""
    os.rename = _watch(os.rename)
    os.replace = _watch(os.replace)
    os.symlink = _watch(os.symlink)
    shutil.move = _watch(shutil.move)


def _watch(original: Callable[..., Any]) -> Callable[..., Any]:
    is_link = original is os.symlink

    @functools.wraps(original)
    def rename(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not is_link:
            _report(args, result)
        saves.commit_waiting(is_sure=is_link or trackers.is_named_so(args))
        return result

    rename.__module__ = "shutil" if original is shutil.move else "os"
    return rename


@record.guarded("renames")
def _report(args: tuple[Any, ...], result: Any) -> None:
    if len(args) >= 2:
        saves.move(saves.absolute(args[0]), saves.absolute(result if isinstance(result, str) else args[1]))
