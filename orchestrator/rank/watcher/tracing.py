"""Stays out of torch.compile and of CUDA graphs: what they trace is not observed, and what runs beside them is not compiled."""

from __future__ import annotations

import sys
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
