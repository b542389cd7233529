"""What probes yield, and what they know of their node; repeats that last as long as the parameters say. Without torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.events import ComputedBits, ProbeDone, ProbeFigure
from ...model.frozen import dataclass

if TYPE_CHECKING:
    import torch

    from ...workloads.node_probe import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What a figure depends on, such as the size of a matrix or the kind of a file system."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A figure or a group of figures that could not be read, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A defect that the hardware itself reports."""

    text: str


Result = ProbeFigure | ComputedBits | Fact | Missing | Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The node of a rank. ``sharers``: the ranks on the same host, in order; ``local_rank``: of the rank in its node.

    ``directory``: in the node's own directory; ``shared``: in the directory of checkpoints. ``load_nvml``: the module pynvml,
    initialised; raises OSError where it is not usable. ``system``: the root of /proc and /sys.
    """

    params: Params
    rank: int
    world: int
    local_rank: int
    device: torch.device
    interface: str
    directory: Path
    shared: Path
    sharers: tuple[int, ...]
    load_nvml: Callable[[], Any]
    system: Path = Path("/")

    @property
    def has_gpu(self) -> bool:
        return self.device.type == "cuda"


NO_GPU = "the rank has no GPU"


def collect(node: Node, probe: str, results: Iterable[Result], clock: Callable[[], float]) -> ProbeDone:
    """The event of a probe. A probe that raises keeps what it measured before."""
    begin, kept, error = clock(), list[Result](), None
    try:
        for result in results:
            kept.append(result)
    except Exception as problem:  # noqa: BLE001 another probe may still work; the check of the run reports this one
        error = f"{type(problem).__name__}: {problem}"
    figures = tuple(result for result in kept if isinstance(result, ProbeFigure) and result.values)
    return ProbeDone(
        rank=node.rank, probe=probe, figures=figures or None,
        facts={result.name: result.text for result in kept if isinstance(result, Fact)} or None,
        missing=_missing(kept) or None,
        problems=tuple(result.text for result in kept if isinstance(result, Problem)) or None,
        bits=tuple(result for result in kept if isinstance(result, ComputedBits)) or None,
        error=error, took_s=round(clock() - begin, 3),
    )  # fmt: skip


def _missing(results: Iterable[Result]) -> dict[str, str]:
    reasons = {result.name: result.reason for result in results if isinstance(result, Missing)}
    empty = {result.name: "no repeat" for result in results if isinstance(result, ProbeFigure) and not result.values}
    return {**empty, **reasons}


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
