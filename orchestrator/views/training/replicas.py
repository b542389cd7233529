"""Replicas of a user's job: ranks that hold the same parameters, and the first step at which they differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...model.frozen import dataclass
from .attempts import Attempt, Process

UNDECIDED = "whether they were replicas before is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``groups``: ranks that must be equal; ``compared``: states of which two or more digests were compared.

    ``undigested``: ranks of which it is not known whether they are replicas. ``independent``: why ranks that began with equal
    weights are no replicas; ``undecided``: why they may be none.
    """

    groups: tuple[tuple[int, ...], ...]
    compared: int
    differences: tuple[str, ...]
    undigested: tuple[str, ...] = ()
    independent: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()


def compare(known: Sequence[Attempt], *, is_corrupted: bool = False) -> Comparison:
    """Every state of every attempt, within the groups of ranks that began the job with equal weights.

    ``is_corrupted``: a planned fault changed weights of a rank; ranks that differ are then replicas that it drove apart.
    """
    every = _groups(known[0]) if known else ()
    independent = {group: "" if is_corrupted else _independence(known, group) for group in every}
    groups = tuple(group for group in every if not independent[group])
    compared, differences = 0, list[str]()
    for attempt in known:
        for group in groups:
            joins = len(group) == len(known[0].ranks)  # where all ranks are replicas, those that join later are as well
            states = [*_states(attempt, tuple(attempt.ranks) if joins else group)]
            compared += len(states)
            apart = next((item for item in states if len(set(item[1].values())) > 1), None)
            if apart is not None:
                differences.append(_text(attempt, *apart))
    silent = tuple(p.name for p in (known[0].ranks.values() if known else ()) if not p.is_sharded and _key(p) is None)
    reasons = [why for why in independent.values() if why]
    return Comparison(
        groups=groups, compared=compared, differences=tuple(differences), undigested=silent,
        independent=tuple(why for why in reasons if UNDECIDED not in why),
        undecided=tuple(why for why in reasons if UNDECIDED in why),
    )  # fmt: skip


def _independence(known: Sequence[Attempt], group: tuple[int, ...]) -> str:
    """Why ranks with equal weights at the start may train on their own: as in local SGD, or in a job without collectives.

    They differ in the first state that was compared after the start, or they become equal again after they differed, which
    weights that were corrupted do not.
    """
    who = f"ranks {', '.join(map(str, group[:-1]))} and {group[-1]} begin with equal weights"
    for attempt in known:
        states = [(n, len(set(digests.values())) == 1) for n, digests in _states(attempt, group) if n]
        apart = next((n for n, is_equal in states if not is_equal), None)
        merged = next((n for n, is_equal in states if is_equal and apart is not None and n > apart), None)
        if attempt.index == 0 and apart is not None and apart == states[0][0]:
            why = "they train on their own, or do not share their gradients" if apart == 1 else UNDECIDED
            return f"{who} and differ after step {apart}: {why}"
        if merged is not None:
            why = UNDECIDED if attempt.index else "they share their weights now and then"
            return f"{who}, differ after step {apart} and are equal after step {merged}: {why}"
    return ""


def _groups(first: Attempt) -> tuple[tuple[int, ...], ...]:
    """Ranks that hold the same part of sharded weights, else ranks with equal weights at the start; each at least two."""
    by_key: dict[object, list[int]] = {}
    for rank, process in first.ranks.items():
        by_key.setdefault(_key(process), []).append(rank)
    return tuple(tuple(ranks) for key, ranks in by_key.items() if key is not None and len(ranks) > 1)


def _key(process: Process) -> object:
    if process.is_sharded:
        return process.part
    return process.states[0].weights if 0 in process.states else None


def _states(attempt: Attempt, group: tuple[int, ...]) -> Iterator[tuple[int, dict[int, str]]]:
    present = [attempt.ranks[rank] for rank in sorted(group) if rank in attempt.ranks]
    members = [process for process in present if process.holds_same_as(present[0])]
    for n in sorted({n for process in members for n in process.states}):
        digests = {p.rank: p.states[n].weights or "" for p in members if n in p.states and p.states[n].weights}
        if len(digests) > 1:
            yield n, digests


def _text(attempt: Attempt, n: int, digests: dict[int, str]) -> str:
    first = min(digests)
    other = next(rank for rank, digest in sorted(digests.items()) if digest != digests[first])
    when = f"after step {n}" if n else "as it begins"
    return f"{attempt.name}: rank {other} and rank {first} have different weights {when} of the attempt"
