"""The controller's clock."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

from ..model.event import Clock


@cache
def boot() -> str:
    """The boot id of this machine: CLOCK_MONOTONIC can be compared within one boot only."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def now() -> Clock:
    return Clock(boot=boot(), mono=time.monotonic(), wall=time.time())
