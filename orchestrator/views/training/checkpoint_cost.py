"""Computes what checkpoints and failures cost a user's job: the stall of a save, its interval, and what both mean on many nodes.

Young: the best interval is sqrt(2 w M). Daly: its higher-order form. ETTR: arXiv 2410.21680, with w the stall of a checkpoint,
D the interval, N nodes, r failures per node-second, u the time to recover, M = 1 / (N r).
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterator

from ...model import watch
from ...model.frozen import dataclass
from .. import json_values
from .attempts import Attempt, Process
from .resumption import Lineage

DAY_S = 86400.0
#: Failures per node and day that Meta published for RSC-1: 6.50 per 1000.
RATE = 6.5e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCost:
    """The cost of the saves of a job, in seconds: median ``stall_s`` of a save, of the slowest rank; median ``interval_s`` between commits.

    ``share``: the part of the time of all steps for which saves stall the training.
    """

    saves: int
    stall_s: float
    interval_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A forecast for ``nodes`` nodes with ``rate`` failures per node and day: the best intervals, and ETTR at the interval in use, 0..1."""

    nodes: int
    rate: float
    young_s: float
    daly_s: float
    ettr: float


def checkpoint_cost(lines: Lineage) -> CheckpointCost | None:
    """None if less than two checkpoints were committed, or if no step recorded what its saves cost."""
    stalls = [stall for attempt in lines.attempts for stall in _stalls(attempt)]
    gaps = [gap for attempt in lines.attempts for gap in _gaps(attempt)]
    known = [process.steps for attempt in lines.attempts for process in attempt.ranks.values()]
    elapsed = sum(sum(steps.seconds()) for steps in known)
    if not stalls or not gaps or elapsed <= 0:
        return None
    share = sum(step.checkpoint_s or 0.0 for steps in known for step in steps.full.values()) / elapsed
    return CheckpointCost(
        saves=len(stalls),
        stall_s=json_values.median(stalls),
        interval_s=json_values.median(gaps),
        share=min(1.0, share),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The parts of the time of the steps, 0..1; None: not measured.

    ``compute``: forward and backward, with what DDP reduces meanwhile; ``communication``: collectives that Python calls.
    ``ddp_s``: how long DDP's buckets are under way in a backward pass, the mean of the passes that it has timed itself.
    """

    step_s: float
    data: float | None
    compute: float | None
    communication: float | None
    checkpoint: float | None
    ddp_s: float | None


def step_time(lines: Lineage) -> StepTime | None:
    """Measure the steps after the first of each process, which begins before its batch is fetched; None if there are none."""
    processes = [process for attempt in lines.attempts for process in attempt.ranks.values()]
    taken = array("d", (seconds for process in processes for seconds in process.steps.seconds(after=1)))
    elapsed = sum(taken)
    if elapsed <= 0:
        return None

    def part(name: str) -> float | None:
        measured = [value for process in processes for value in process.steps.parts(name, after=1)]
        return min(1.0, sum(measured) / elapsed) if measured else None

    timed = [ddp[-1].comm_s for process in processes if (ddp := process.file.of(watch.Ddp))]
    return StepTime(
        step_s=json_values.median(taken),
        data=part("data_s"),
        compute=part("compute_s"),
        communication=part("comm_s"),
        checkpoint=part("checkpoint_s"),
        ddp_s=json_values.median(ddp_s) if (ddp_s := [value for value in timed if value is not None]) else None,
    )


def state_interval(lines: Lineage) -> int | None:
    """The steps between two states that the ranks of the first attempt chose, the longest of them; None if none recorded any."""
    processes = lines.attempts[0].ranks.values() if lines.attempts else ()
    chosen = [every[-1].every for process in processes if (every := process.file.of(watch.Every))]
    return max((value for value in chosen if value), default=None)


def forecast(cost: CheckpointCost, recovery_s: float, nodes: int, rate: float = RATE) -> Forecast:
    """``recovery_s``: from a failure to the first step of every rank."""
    failures = nodes * rate / DAY_S
    w, between = cost.stall_s, 1 / failures
    young = math.sqrt(2 * w * between)
    ratio = w / (2 * between)
    daly = young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - w if w < 2 * between else between
    ettr = (1 - failures * (recovery_s + cost.interval_s / 2)) / (1 + w / cost.interval_s)
    return Forecast(nodes=nodes, rate=rate, young_s=young, daly_s=daly, ettr=max(0.0, min(1.0, ettr)))


def _stalls(attempt: Attempt) -> Iterator[float]:
    """Yield of every step with a save how long the slowest rank stood still."""
    by_step: dict[int, float] = {}
    for process in attempt.ranks.values():
        for n, step in process.steps.full.items():
            if step.checkpoint_s:
                by_step[n] = max(by_step.get(n, 0.0), step.checkpoint_s)
    yield from by_step.values()


def _gaps(attempt: Attempt) -> Iterator[float]:
    """Seconds between the commits of successive checkpoints with weights."""
    for process in attempt.ranks.values():
        for first, second in itertools.pairwise(_commits(process)):
            yield second - first


def _commits(process: Process) -> list[float]:
    held = {line.id for line in process.file.of(watch.Saved) if line.weights is not None}
    times = {line.id: line.t_committed for line in process.file.of(watch.Committed) if line.id in held}
    return sorted(t for t in times.values() if t is not None)
