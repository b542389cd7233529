"""Functions of torch that the watcher observes: in their place, and in no traceback and no warning of the script.

Python counts the frames of a warning without those of the import system, which it knows by the file's name: ``importlib`` and
``_bootstrap`` are in it. So are they in the name of this file, and a warning about the caller of ``torch.load`` names the script.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any


def observe(
    original: Callable[..., Any],
    begin: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    finish: Callable[[Any, Any, BaseException | None], None] | None = None,
) -> Callable[..., Any]:
    """A function that calls ``original``, between ``begin(args, kwargs)`` and ``finish(what begin returned, result, error)``.

    The frame of the script is two above that of ``begin``.
    """

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        observation = begin(args, kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            if finish is not None:
                finish(observation, None, error)
            error.__traceback__ = _outside(error.__traceback__)
            raise  # from Python 3.11 on it keeps this traceback; before, it shows this line
        if finish is not None:
            finish(observation, result, None)
        return result

    return call


def _outside(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that follows the frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
