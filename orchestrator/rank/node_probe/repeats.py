"""Times the repeats of a rate: the work is repeated until a repeat lasts as long as the parameters say."""

from __future__ import annotations

import time
from collections.abc import Callable

from .results import Node

#: Calls of one repeat at most.
MOST_CALLS = 1_000_000


def rates(node: Node, work: Callable[[], object], amount: float) -> tuple[float, ...]:
    """``amount`` per second of each repeat. The first calls, which warm up, are not counted.

    The number of calls is too small if something interrupted the calls that it was computed from. So when a repeat lasts
    less than half of its time, all repeats start again with twice the calls.
    """
    calls = calls_of_a_repeat(lambda count: seconds(node, work, count), node.params.repeat_s)
    times: list[float] = []
    while len(times) < node.params.repeats:
        times.append(seconds(node, work, calls))
        if times[-1] < node.params.repeat_s / 2 and calls < MOST_CALLS:
            calls = min(MOST_CALLS, 2 * calls)
            times.clear()
    return tuple(amount * calls / took_s for took_s in times)


def calls_of_a_repeat(time_calls: Callable[[int], float], repeat_s: float) -> int:
    """The number of calls that last ``repeat_s``, by doubling."""
    count = 1
    time_calls(1)
    while count < MOST_CALLS:
        took_s = time_calls(count)
        if took_s >= repeat_s / 4:
            return min(MOST_CALLS, max(1, round(count * repeat_s / took_s)))
        count *= 2
    return count


def seconds(node: Node, work: Callable[[], object], count: int) -> float:
    """The time of ``count`` calls until the device has ended them."""
    settle(node)
    begin = time.perf_counter()
    for _ in range(count):
        work()
    settle(node)
    return time.perf_counter() - begin


def settle(node: Node) -> None:
    """Wait for the work of a GPU."""
    if node.has_gpu:
        import torch

        torch.cuda.synchronize(node.device)
