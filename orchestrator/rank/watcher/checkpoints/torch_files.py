"""``torch.save`` and ``torch.load`` on files, file objects and buffers."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from .. import record
from . import loads, saves

#: Modules of torch that save or load tensors of a checkpoint which its own adapter reports as one, or pickle a tensor for a message.
_INTERNAL = (
    "torch.distributed.checkpoint.",
    "torch._inductor.",
    "torch._dynamo.",
    "torch.multiprocessing.",
    "torch.storage",
)
_NOT_INTERNAL = ("torch.distributed.checkpoint.format_utils",)


def install(torch: Any) -> None:
    """Wrap ``save`` and ``load`` under both of their names, and the point at which a file is half-written."""
    serialization = torch.serialization
    serialization.save = torch.save = _watch_save(serialization.save)
    serialization.load = torch.load = _watch_load(serialization.load)
    serialization._save = _watch_middle(serialization._save)


def _watch_save(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        target = kwargs.get("f", args[1] if len(args) > 1 else None)
        if is_internal(sys._getframe(1)) or target is None or saves.is_part():
            return original(*args, **kwargs)
        call = saves.begin("torch.save", path_of(target), args[0] if args else kwargs.get("obj"))
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            saves.fail(call, error)
            raise
        _finish(call, target)
        return result

    return save


@record.guarded("saves")
def _finish(call: saves.Save | None, target: Any) -> None:
    if call is None:
        return
    is_stream = hasattr(target, "write")
    saves.finish(call, [call.path] if call.path and not is_stream else [])
    if isinstance(target, io.BytesIO):
        saves.buffers.add(call, target.getvalue())
    else:
        saves.settle(call, "return", target if is_stream else None)


def _watch_load(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        source = kwargs.get("f", args[0] if args else None)
        if is_internal(sys._getframe(1)) or source is None or saves.is_part():
            return original(*args, **kwargs)
        call = loads.begin("torch.load", path_of(source), source)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            loads.fail(call, error)
            raise
        loads.finish(call, result)
        return result

    return load


def _watch_middle(original: Callable[..., Any]) -> Callable[..., Any]:
    """All tensors are written, and the directory of the zip file is not: a file that is cut here is torn."""

    @functools.wraps(original)
    def write(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        saves.report_middle()
        return result

    return write


def is_internal(frame: FrameType) -> bool:
    """Does torch itself call, as part of a save or load that is reported as a whole?"""
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith(_INTERNAL) and not name.startswith(_NOT_INTERNAL)


def path_of(target: Any) -> str:
    """The absolute path of a file name or of an open file; empty for buffers and streams without one."""
    if isinstance(target, (str, os.PathLike)):
        return saves.absolute(target)
    return saves.absolute(getattr(target, "name", None))
