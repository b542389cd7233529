"""This process as its bed counts it: by its rank, or, under a job's own launcher, by its node and its place there."""

from __future__ import annotations

import os
from typing import NamedTuple


class Worker(NamedTuple):
    """``number``: in the holds and events of the bed; None: the bed does not know it. ``orders``: the number of its files.

    Launchers number their workers anew after a loss, so a bed counts them in the order of nodes and local ranks.
    """

    number: int | None
    orders: int
    local_rank: int
    is_launched: bool


def find() -> Worker:
    """Read the environment: ``CCBED_WATCH_LAUNCHER`` is GROUP_RANK:WORKERS_PER_NODE."""
    rank, local_rank = _number("RANK"), _number("LOCAL_RANK")
    group, _, count = os.environ.get("CCBED_WATCH_LAUNCHER", "").partition(":")
    if not count:
        return Worker(rank, rank, local_rank, is_launched=False)
    number = int(group) * int(count) + local_rank if local_rank < int(count) else None
    return Worker(number, int(group), local_rank, is_launched=True)


def _number(name: str) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else 0
