"""The points at which this process can be held. A point is watched only once a hold asks for it."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from .. import record
from ..checkpoints import loads, saves
from . import acts, waiting

_holds: list[waiting.Holds] = []
_watched: set[str] = set()
#: Phase -> the stage of a save.
_STAGES = {"save": "before", "save-during": "during", "save-after": "after"}


@record.guarded("holds")
def install(directory: str) -> None:
    """Prepare the holds of this process; torch is imported. Orders are read at every step."""
    holds = waiting.Holds(directory, _watch)
    _holds.append(holds)
    for hold in waiting.planned():
        holds.add(hold)
    importlib.import_module("torch.optim.optimizer").register_optimizer_step_pre_hook(_before_optimizer)


def reach(phase: str) -> None:
    """Pass a point. Raises only what a planned fault wants to raise in the script, such as running out of memory."""
    error = _reached(phase)
    if error is not None:
        raise error


@record.guarded("holds")
def _reached(phase: str) -> BaseException | None:
    return _holds[0].reached(phase) if _holds else None


def _before_optimizer(optimizer: Any, args: Any, kwargs: Any) -> None:
    if acts.is_owner(optimizer) and _holds[0].is_idle():
        return
    error = _pass_optimizer(optimizer)
    if error is not None:
        raise error


@record.guarded("holds")
def _pass_optimizer(optimizer: Any) -> BaseException | None:
    acts.remember(optimizer)
    error = _holds[0].follow_orders()
    acts.perform_waiting()
    return error or _holds[0].reached("optimizer")


def _watch(phase: str) -> None:
    if phase in _watched:
        return
    _watched.add(phase)
    torch: Any = sys.modules["torch"]
    if phase == "backward":
        torch.autograd.backward = _entered(torch.autograd.backward, phase)
    elif phase == "forward":
        torch.nn.modules.module.register_module_forward_pre_hook(lambda module, args: reach("forward"))
    elif phase == "data":
        batches = torch.utils.data.dataloader._BaseDataLoaderIter
        batches.__next__ = _entered(batches.__next__, phase)
    elif phase == "load":
        loads.observe("before", lambda load: reach(phase))
    elif phase in _STAGES:
        saves.observe(_STAGES[phase], lambda save: reach(phase))


def _entered(original: Callable[..., Any], phase: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def entry(*args: Any, **kwargs: Any) -> Any:
        reach(phase)
        return original(*args, **kwargs)

    return entry
