"""Installs the observation of saves and loads in a process that has imported torch."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from typing import Any

from .. import imports, record, states, steps
from . import dcp, loads, save_moments, saved_contents, saves, torch_saves, trackers


@record.guarded("saves")
def install(torch: Any) -> None:
    """Wrap the functions of ``torch`` now, those of other packages once they are imported."""
    torch_saves.install(torch)
    install_renames()
    imports.when_imported("torch.distributed.checkpoint", dcp.install)
    imports.when_imported("safetensors.torch", torch_saves.install_safetensors)
    imports.when_imported("safetensors", torch_saves.install_safe_open)
    steps.on_step(saves.complete_step)
    steps.measure("saves", saves.take_stall)
    saves.observe("before", _announce)
    saves.observe("after", _request_full_state)
    saves.observe("committed", _request_full_state)  # also of files that something else writes
    loads.observe("after", _request_full_state)
    saved_contents.owner.observers.append(loads.match)


def _announce(number: int) -> None:
    if states.states.saves is not None:
        states.states.saves.announce(save_moments.PART if saves.open_passes() else save_moments.WHOLE)


def _request_full_state(number: int) -> None:
    states.states.request_full()


def install_renames() -> None:
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
