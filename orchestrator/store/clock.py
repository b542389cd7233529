"""The controller's clock."""

from __future__ import annotations

import time
from functools import cache

from ..model.event import Clock


@cache
def boot() -> str:
    """The boot id of this machine: CLOCK_MONOTONIC can be compared within one boot only."""
    from ..node.oslayer import host_facts

    return host_facts.boot_id()


def now() -> Clock:
    return Clock(boot=boot(), mono=time.monotonic(), wall=time.time())
