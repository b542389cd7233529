"""``torch.distributed.checkpoint``: save, async_save, load. A checkpoint is committed once its ``.metadata`` has its name."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .. import record
from . import loads, saves

_state = threading.local()
#: Path -> save whose upload a thread or process of ``async_save`` still has to do.
_uploads: dict[str, saves.Save] = {}


@record.guarded("dcp")
def install(package: Any) -> None:
    """Wrap the functions wherever torch has bound them; ``package`` is ``torch.distributed.checkpoint``."""
    saver, loader = package.state_dict_saver, package.state_dict_loader
    for module, name, wrap in (
        (saver, "save", _watch_call),
        (saver, "async_save", _watch_async),
        (saver, "_stateful_to_state_dict", _watch_state_dict),
        (saver, "_save_state_dict", _watch_save),
        (loader, "_load_state_dict", _watch_load),
    ):
        original = getattr(module, name)
        rebind("torch.distributed.checkpoint", original, wrap(original))


def rebind(package: str, original: Any, replacement: Any) -> None:
    """Replace a function in all modules of a package that have bound it."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for key in [key for key, value in vars(module).items() if value is original]:
                setattr(module, key, replacement)


def _watch_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """``save``: the call begins before the state dicts are made."""

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        _state.called = time.monotonic()
        try:
            return original(*args, **kwargs)
        finally:
            _state.called = None

    return save


def _watch_save(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _save_state_dict(*args: Any, **kwargs: Any) -> Any:
        writer = kwargs.get("storage_writer", args[1] if len(args) > 1 else None)
        upload = _uploads.pop(path_of(writer), None)
        call = upload or saves.begin(
            "dcp", path_of(writer), kwargs.get("state_dict", args[0] if args else None), called=_called()
        )
        saves.write_here(call)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            saves.fail(call, error)
            raise
        if upload is None:
            _finish(call, writer, kwargs.get("process_group", args[2] if len(args) > 2 else None))
        saves.write_here(None)
        _commit(call)
        return result

    return _save_state_dict


def _watch_async(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def async_save(*args: Any, **kwargs: Any) -> Any:
        _state.asynchronous = path_of(kwargs.get("storage_writer")) or _url(kwargs.get("checkpoint_id"))
        _state.call = None
        _state.called = time.monotonic()
        try:
            response = original(*args, **kwargs)
        except BaseException as error:
            saves.fail(_state.call, error)
            raise
        finally:
            _state.asynchronous = _state.called = None
        _follow(_state.call, response)
        return response

    return async_save


def _watch_state_dict(original: Callable[..., Any]) -> Callable[..., Any]:
    """Watch what ``async_save`` stages next. Its tensors are read while they are staged."""

    @functools.wraps(original)
    def _stateful_to_state_dict(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if getattr(_state, "asynchronous", None) is not None and _state.call is None:
            _begin_async(result)
        return result

    return _stateful_to_state_dict


@record.guarded("dcp")
def _begin_async(value: Any) -> None:
    call = saves.begin("dcp-async", _state.asynchronous, value, called=_called())
    _state.call = call
    if call is not None:
        _uploads[call.path] = call


@record.guarded("dcp")
def _follow(call: saves.Save | None, response: Any) -> None:
    """``async_save`` has returned a future of the upload, or futures of the staging and the upload."""
    if call is None:
        return
    saves.stage(call)
    staging = getattr(response, "staging_completion", None)
    if staging is None:
        saves.describe(call, [], staged=time.monotonic(), durable=None)
    else:
        staging.add_done_callback(lambda _: saves.describe(call, [], staged=time.monotonic(), durable=None))
    upload = getattr(response, "upload_completion", response)
    upload.add_done_callback(lambda future: _end_upload(call, future))


@record.guarded("dcp")
def _end_upload(call: saves.Save, future: Any) -> None:
    """The upload has ended: in a thread, which has recorded its end already, or in another process."""
    if future.cancelled() or future.exception() is not None:
        return
    if call.committed is None:
        _uploads.pop(call.path, None)
        _commit(call)


@record.guarded("dcp")
def _finish(call: saves.Save | None, writer: Any, group: Any) -> None:
    if call is not None:
        durable = time.monotonic() if getattr(writer, "sync_files", False) else None
        saves.finish(call, own_files(call.path, group), durable=durable)


def _commit(call: saves.Save | None) -> None:
    """All ranks return after the coordinator has renamed ``.metadata``."""
    if call is not None:
        call.returned = time.monotonic()
        saves.settle(call, ".metadata" if os.path.exists(os.path.join(call.path, ".metadata")) else "return")


def own_files(path: str, group: Any) -> list[str]:
    """The files of this rank in the directory of a checkpoint, and ``.metadata`` on the coordinator."""
    distributed = sys.modules["torch"].distributed
    rank = distributed.get_rank(group) if distributed.is_available() and distributed.is_initialized() else 0
    listed = sorted(os.listdir(path)) if os.path.isdir(path) else []
    return [
        os.path.join(path, name)
        for name in listed
        if name.startswith(f"__{rank}_") or (not rank and name == ".metadata")
    ]


def _watch_load(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _load_state_dict(*args: Any, **kwargs: Any) -> Any:
        reader = kwargs.get("storage_reader", args[1] if len(args) > 1 else None)
        call = loads.begin("dcp", path_of(reader))
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            loads.fail(call, error)
            raise
        loads.finish(call, kwargs.get("state_dict", args[0] if args else None))
        return result

    return _load_state_dict


def path_of(storage: Any) -> str:
    """The directory that a storage reader or writer uses; for other storages their id as text."""
    return (
        _url(getattr(storage, "path", None) or getattr(storage, "checkpoint_id", None)) if storage is not None else ""
    )


def _url(value: Any) -> str:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    return str(text) if "://" in str(text) else saves.absolute(value)


def _called() -> float | None:
    return getattr(_state, "called", None)
