"""``torch.save`` and ``torch.load`` on files, file objects and buffers; saves, loads and opened files of safetensors."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from .. import importlib_bootstrap, record
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
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[saves.Save | None, Any]:
        target = kwargs.get("f", args[1] if len(args) > 1 else None)
        if is_internal(sys._getframe(2)) or target is None or saves.is_part():
            return None, None
        return saves.begin("torch.save", path_of(target), args[0] if args else kwargs.get("obj")), target

    def finish(observation: tuple[saves.Save | None, Any], result: None, error: BaseException | None) -> None:
        call, target = observation
        if call is not None and error is not None:
            saves.fail(call, error)
        elif call is not None:
            _finish(call, target)

    return importlib_bootstrap.observe(original, begin, finish)


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
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = kwargs.get("f", args[0] if args else None)
        if is_internal(sys._getframe(2)) or source is None or saves.is_part():
            return None
        return loads.begin("torch.load", path_of(source), source)

    def finish(call: Any, result: Any, error: BaseException | None) -> None:
        if call is not None and error is not None:
            loads.fail(call, error)
        elif call is not None:
            loads.finish(call, result)

    return importlib_bootstrap.observe(original, begin, finish)


def _watch_middle(original: Callable[..., Any]) -> Callable[..., Any]:
    """All tensors are written, and the directory of the zip file is not: a file that is cut here is torn."""

    def finish(observation: None, result: None, error: BaseException | None) -> None:
        if error is None:
            saves.report_middle()

    return importlib_bootstrap.observe(original, lambda args, kwargs: None, finish)


def is_internal(frame: FrameType) -> bool:
    """Does torch itself call, as part of a save or load that is reported as a whole?"""
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith(_INTERNAL) and not name.startswith(_NOT_INTERNAL)


def path_of(target: Any) -> str:
    """The absolute path of a file name or of an open file; empty for buffers and streams without one."""
    if isinstance(target, (str, os.PathLike)):
        return saves.absolute(target)
    return saves.absolute(getattr(target, "name", None))


@record.guarded("safetensors")
def install_safetensors(module: Any) -> None:
    """Wrap the functions of ``safetensors.torch``; ``save_model`` and ``load_model`` call them."""
    module.save_file = _watch_safetensors_save(module.save_file)
    module.load_file = _watch_safetensors_load(module.load_file)


@record.guarded("safetensors")
def install_safe_open(package: Any) -> None:
    """Wrap ``safetensors.safe_open``: such a load has a file, and its tensors are not known."""
    package.safe_open = _watch_safe_open(package.safe_open)


def _watch_safetensors_save(original: Callable[..., Any]) -> Callable[..., Any]:
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> saves.Save | None:
        path = saves.absolute(kwargs.get("filename", args[1] if len(args) > 1 else None))
        return saves.begin("safetensors", path, kwargs.get("tensors", args[0] if args else None))

    def finish(call: saves.Save | None, result: None, error: BaseException | None) -> None:
        if error is not None:
            saves.fail(call, error)
        elif call is not None:
            saves.finish(call, [call.path])
            saves.settle(call, "return")

    return importlib_bootstrap.observe(original, begin, finish)


def _watch_safetensors_load(original: Callable[..., Any]) -> Callable[..., Any]:
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return loads.begin("safetensors", saves.absolute(kwargs.get("filename", args[0] if args else None)))

    def finish(call: Any, result: Any, error: BaseException | None) -> None:
        if error is not None:
            loads.fail(call, error)
        else:
            loads.finish(call, result)

    return importlib_bootstrap.observe(original, begin, finish)


def _watch_safe_open(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def safe_open(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not str(sys._getframe(1).f_globals.get("__name__", "")).startswith("safetensors"):
            path = saves.absolute(kwargs.get("filename", args[0] if args else None))
            loads.finish(loads.begin("safetensors", path), None)
        return result

    return safe_open
