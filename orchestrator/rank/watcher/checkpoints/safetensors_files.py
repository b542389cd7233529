"""safetensors: ``save_file`` and ``load_file`` of its torch flavour, and files that are opened to read single tensors."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .. import importlib_bootstrap, record
from . import loads, saves


@record.guarded("safetensors")
def install(module: Any) -> None:
    """Wrap the functions of ``safetensors.torch``; ``save_model`` and ``load_model`` call them."""
    module.save_file = _watch_save(module.save_file)
    module.load_file = _watch_load(module.load_file)


@record.guarded("safetensors")
def install_open(package: Any) -> None:
    """Wrap ``safetensors.safe_open``: such a load has a file, and its tensors are not known."""
    package.safe_open = _watch_open(package.safe_open)


def _watch_save(original: Callable[..., Any]) -> Callable[..., Any]:
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


def _watch_load(original: Callable[..., Any]) -> Callable[..., Any]:
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return loads.begin("safetensors", saves.absolute(kwargs.get("filename", args[0] if args else None)))

    def finish(call: Any, result: Any, error: BaseException | None) -> None:
        if error is not None:
            loads.fail(call, error)
        else:
            loads.finish(call, result)

    return importlib_bootstrap.observe(original, begin, finish)


def _watch_open(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def safe_open(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not str(sys._getframe(1).f_globals.get("__name__", "")).startswith("safetensors"):
            path = saves.absolute(kwargs.get("filename", args[0] if args else None))
            loads.finish(loads.begin("safetensors", path), None)
        return result

    return safe_open
