"""Tells which differences between two executions of the same steps the rounding of a sum in another order explains.

A process that was started anew may sum gradients in another order in its first step: DDP lays out its buckets after it. From
then on weights differ in their last bits, and losses drift apart without a jump (measured: 5e-7 in 35 steps of float32).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from ...model.run import Control, Twin
from .attempts import Attempt
from .kept import KeptFacts, restarts_shown, step_of
from .redone_steps import SMALL, Replay, share
from .resumption import Step

#: The relative difference of losses that rounding explains at once, in float32 and where parts are computed in 16 bits.
LEAST, LEAST_MIXED = 1e-5, 1e-2
#: By how much weights differ at once where sums are in another order, of what the steps themselves changed (measured: 3e-7 in float32,
#: 0.01 in bfloat16; 0.05 to 1 where a momentum is lost, at rates of 1e-7 to 0.1).
SHARE, SHARE_MIXED = 1e-3, 0.1
#: What sums in another order may change.
ROUNDED = {"weights", "sums", "optimizer", "inputs"}
#: A difference that is so many times the largest one before is a jump.
JUMP = 100.0


def is_mixed(attempts: Iterable[Attempt]) -> bool:
    """Return whether a rank computes in 16 bits or fewer, as far as it is recorded."""
    return any(process.is_mixed for attempt in attempts for process in attempt.ranks.values())


def least(attempts: Iterable[Attempt]) -> float:
    """The relative difference of losses that rounding explains at once."""
    return LEAST_MIXED if is_mixed(attempts) else LEAST


def jump(losses: Mapping[Step, tuple[float, float]], least: float) -> Step | None:
    """The first step whose losses differ by more than rounding and its growth explain."""
    sizes = {n: abs(after - before) / max(abs(before), abs(after), SMALL) for n, (before, after) in losses.items()}
    return _jump(sizes, least)


def _jump(sizes: Mapping[Step, float], least: float) -> Step | None:
    largest = least / JUMP
    for step, size in sorted(sizes.items()):
        if size > JUMP * largest:
            return step
        largest = max(largest, size)
    return None


def _moved(shares: Mapping[Step, float | None], least: float) -> tuple[Step, str] | None:
    """The first step, and the text, after which weights differ by more of what the steps changed than rounding explains."""
    known = {step: size for step, size in shares.items() if size is not None}
    step = _jump(known, SHARE_MIXED if least == LEAST_MIXED else SHARE)
    if step is None:
        return None
    text = (
        f"by {known[step]:.2g} of what the steps since the resumption changed: more than sums in another order explain"
    )
    return step, text


def unexplained(replays: Iterable[Replay], least: float, *, repeats: bool) -> str:
    """Return why the differences of redone steps are no rounding; empty if they may be.

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
        if moved := _moved({r.step: r.share for r in own}, least):
            return f"the weights after step {moved[0]} differ on {rank} {moved[1]}"
        step = jump({r.step: r.losses for r in own if r.losses is not None}, least)
        if step is not None:
            before, after = next(r.losses for r in own if r.step == step) or (0.0, 0.0)
            return f"the loss of step {step} is {after:.7g} on {rank}, it was {before:.7g}: more than sums in another order explain"
    return ""


def _shares(own: Mapping[str, str], other: Mapping[str, str], base: Step) -> dict[Step, float | None]:
    """Return how much the weights of a rank differ from the twin's, as a share of what these changed since ``base``."""

    def sums(digests: Mapping[str, str], step: Step) -> list[int]:
        return [*map(int, digests.get(f"sums@{step}", "").split())]

    steps = (step_of(name) for name in own if name.startswith("sums@"))
    return {step: share(sums(other, base), sums(other, step), sums(own, step)) for step in steps if step > base}


def is_as_restarted(facts: KeptFacts, twin: Twin | None, least: float) -> bool | None:
    """Return whether each rank computed what the restart control did, bit by bit or but for sums in another order.

    That both differ from the twin by no more is shown by the moves of their weights: the memory of a process decides some sums. None
    where that is not known: no control, another step, or no digest of weights after it that both recorded on some rank.
    """
    control = twin.control if twin else None
    starts = restarts_shown(facts, control)
    if control is None or twin is None or not starts or not facts.digests:
        return None
    equal = True
    for rank, own in facts.digests.items():
        other = control.digests.get(rank, {})
        common = [name for name in own if name in other and step_of(name) >= min(starts)]
        if not any(name.startswith("weights@") and step_of(name) > (facts.base or 0) for name in common):
            return None
        equal = equal and all(own[name] == other[name] for name in common)
    return equal or all(_is_rounded(known, twin, least, starts) for known in (facts, control))


def _is_rounded(facts: KeptFacts | Control, twin: Twin, least: float, starts: tuple[Step, ...]) -> bool:
    """Return whether it is known that some weights or states of the optimizer differ from the twin's, and nothing by more than rounding."""
    parts = set[str]()
    for rank, own in facts.digests.items():
        other = twin.digests.get(rank, {})
        later = {name: value for name, value in own.items() if step_of(name) > min(starts)}
        parts |= {n.partition("@")[0].partition(".")[0] for n, value in later.items() if other.get(n, value) != value}
        if not any(value is not None for value in _shares(own, other, min(starts)).values()):
            return False
    return bool(parts) and parts <= ROUNDED and beyond(facts, twin, least, starts) is None


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
            text = f"rank {rank}: weights and optimizer equal the reference run's until step {first - 1} and differ from the next on"
            return first, text
        if moved := _moved(_shares(own, other, base), least):
            return moved[
                0
            ], f"rank {rank}: the weights after step {moved[0]} differ from the reference run's {moved[1]}"
    for rank, own in sorted(facts.losses.items(), key=lambda item: int(item[0])):
        known = {
            int(step): (twin.losses[rank][step], own[step]) for step in own.keys() & twin.losses.get(rank, {}).keys()
        }
        pairs = {n: (float.fromhex(a), float.fromhex(b)) for n, (a, b) in known.items() if n > base}
        if (step := jump(pairs, least)) is not None:
            text = f"rank {rank}: the loss of step {step} is {pairs[step][1]:.7g}, the reference run's {pairs[step][0]:.7g}"
            return step, f"{text}: more than sums in another order explain"
    return None
