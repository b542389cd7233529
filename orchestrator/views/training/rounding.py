"""Which differences between two executions of the same steps the rounding of a sum in another order explains.

A process that was started anew may sum gradients in another order in its first step: DDP lays out its buckets after it. From
then on weights differ in their last bits, and losses drift apart without a jump (measured: 5e-7 in 35 steps of float32).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from ...model.run import Control, Twin
from .attempts import Attempt
from .kept import KeptFacts, step_of
from .replay import SMALL, Replay
from .resumption import Step

#: The relative difference of losses that rounding explains at once, in float32 and where parts are computed in 16 bits.
LEAST, LEAST_MIXED = 1e-5, 1e-2
#: A difference that is so many times the largest one before is a jump.
JUMP = 100.0


def is_mixed(attempts: Iterable[Attempt]) -> bool:
    """Whether a rank computes in 16 bits or fewer, as far as it is recorded."""
    return any(process.is_mixed for attempt in attempts for process in attempt.ranks.values())


def least(attempts: Iterable[Attempt]) -> float:
    """The relative difference of losses that rounding explains at once."""
    return LEAST_MIXED if is_mixed(attempts) else LEAST


def jump(losses: Mapping[Step, tuple[float, float]], least: float) -> Step | None:
    """The first step whose losses differ by more than rounding and its growth explain."""
    largest = least / JUMP
    for step in sorted(losses):
        before, after = losses[step]
        size = abs(after - before) / max(abs(before), abs(after), SMALL)
        if size > JUMP * largest:
            return step
        largest = max(largest, size)
    return None


def unexplained(replays: Iterable[Replay], least: float, *, repeats: bool) -> str:
    """Why the differences of redone steps are no rounding; empty if they may be.

    ``repeats``: the job is known to repeat its own steps, bit by bit, while it is not restarted.
    """
    ordered = sorted(replays, key=lambda replay: (replay.rank, replay.step))
    for rank, group in itertools.groupby(ordered, key=lambda replay: replay.rank):
        own = [*group]
        late = next((r for r in own if r.weights is False and r.began_equal and not r.is_first), None)
        if late is not None and repeats:
            return (
                f"{rank} began step {late.step} with the same weights, optimizer and random states, and ended it with other"
                " weights: something that the job keeps outside of them"
            )
        step = jump({r.step: r.losses for r in own if r.losses is not None}, least)
        if step is not None:
            before, after = next(r.losses for r in own if r.step == step) or (0.0, 0.0)
            return f"the loss of step {step} is {after:.7g} on {rank}, it was {before:.7g}: more than sums in another order explain"
    return ""


def beyond(
    facts: KeptFacts | Control, twin: Twin, least: float, starts: tuple[Step, ...] = ()
) -> tuple[Step, str] | None:
    """The first step, and the text, of differences from the twin that are no sum in another order; None if all may be.

    ``starts``: the steps that processes which were started anew resumed from; default: that of the last ones.
    """
    starts = starts or (facts.base or 0,)
    base = min(starts)
    for rank, own in sorted(facts.digests.items(), key=lambda item: int(item[0])):
        other = twin.digests.get(rank, {})
        steps: dict[int, bool] = {}  # rounding of the first step may show in the optimizer alone at first
        for name in own.keys() & other.keys():
            if name.startswith(("weights@", "optimizer.")):
                steps[step_of(name)] = steps.get(step_of(name), True) and own[name] == other[name]
        first = min((step for step, is_equal in steps.items() if step > base and not is_equal), default=0)
        if first > base + 1 and steps.get(base + 1) and steps.get(first - 1) and first - 1 not in starts:
            text = f"rank {rank}: weights and optimizer equal the twin's until step {first - 1} and differ from the next on"
            return first, text
    for rank, own in sorted(facts.losses.items(), key=lambda item: int(item[0])):
        known = {
            int(step): (twin.losses[rank][step], own[step]) for step in own.keys() & twin.losses.get(rank, {}).keys()
        }
        pairs = {n: (float.fromhex(a), float.fromhex(b)) for n, (a, b) in known.items() if n > base}
        if (step := jump(pairs, least)) is not None:
            text = f"rank {rank}: the loss of step {step} is {pairs[step][1]:.7g}, the twin's {pairs[step][0]:.7g}"
            return step, f"{text}: more than sums in another order explain"
    return None
