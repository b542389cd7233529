"""Tests wait for conditions, not times: ten minutes at most, since a machine may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 600.0


def until(holds: Callable[[], object], otherwise: Callable[[], object] = lambda: "it did not come to that") -> None:
    """Wait until a condition holds. ``otherwise`` tells the failure what there is instead."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.005)
