"""Stays out of torch.compile and of CUDA graphs: what they trace is not observed, and what runs beside them is not compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from . import record


def is_traced() -> bool:
    """Does torch.compile trace this call, or a CUDA graph capture it? Then nothing may be done, and replays are not seen."""
    torch: Any = sys.modules["torch"]
    if torch.compiler.is_compiling():
        return True
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        record.unknown("steps", "a CUDA graph contains the optimizer's step: its replays are not seen")
        return True
    return False


def has_compiled() -> bool:
    """Has torch.compile made a graph in this process?"""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return utils is not None and utils.counters["stats"].get("unique_graphs", 0) > 0


def call_eagerly(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the watcher that torch.compile shall not compile, although the user's compiled function calls it."""
    set_eval_frame = _set_eval_frame[0] if _set_eval_frame else _find()
    callback = set_eval_frame(None)
    try:
        return function(*args)
    finally:
        set_eval_frame(callback)


#: The function of torch that installs what evaluates frames, once it is known.
_set_eval_frame: list[Any] = []


def _find() -> Any:
    _set_eval_frame.append(sys.modules["torch"]._C._dynamo.eval_frame.set_eval_frame)
    return _set_eval_frame[0]
