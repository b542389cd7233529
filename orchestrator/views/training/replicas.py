"""Replicas: ranks that hold the same parameters, and the first step at which they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...model.frozen import dataclass
from ..findings import Finding
from .attempts import Attempt, Process

UNDECIDED = "whether they were replicas before is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``groups``: ranks that must be equal; ``compared``: states of which two or more digests were compared, ``after_steps``: those
    of them that are after a step of a record.

    ``undigested``: ranks that lack a digest, and of which: a script's are perhaps no replicas then. ``independent``: why ranks that
    began with equal weights are no replicas; ``undecided``: why they may be none.
    """

    groups: tuple[tuple[int, ...], ...]
    compared: int
    after_steps: int
    differences: tuple[Finding, ...]
    undigested: tuple[str, ...] = ()
    independent: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()


def compare(known: Sequence[Attempt], *, is_corrupted: bool = False, is_start: bool = False) -> Comparison:
    """Every state of every attempt, within the groups of ranks that began the job with equal weights, or that are replicas by a
    statement of their workload.

    ``is_corrupted``: a planned fault changed weights of a rank; ranks that differ are then replicas that it drove apart.
    ``is_start``: only the weights that ranks begin with.
    """
    is_stated = any(attempt.are_replicas for attempt in known)
    all_ranks = tuple(sorted({rank for attempt in known for rank in attempt.ranks}))
    every = (all_ranks,) if is_stated else _groups(known[0]) if known else ()
    independent = {group: "" if is_corrupted or is_stated else _independence(known, group) for group in every}
    groups = tuple(group for group in every if not independent[group])
    compared, after_steps, differences = 0, 0, list[Finding]()
    for attempt in known:
        for group in groups:
            joins = len(group) == len(known[0].ranks)  # where all ranks are replicas, those that join later are as well
            states = [*_states(attempt, tuple(attempt.ranks) if joins else group)]
            if is_start:
                states = [
                    (n, {rank: digest for rank, digest in digests.items() if digest}) for n, digests in states if not n
                ]
            compared += len(states)
            after_steps += sum(n > 0 for n, _ in states)
            apart = next((item for item in states if len(set(item[1].values())) > 1), None)
            if apart is not None:
                differences.append(_difference(attempt, *apart))
        ends = {} if is_start else {p.rank: shared(p.final) for p in attempt.ranks.values() if p.final is not None}
        compared += len(ends) > 1
        differences += _different_ends(attempt, ends)
    reasons = [why for why in independent.values() if why]
    return Comparison(
        groups=groups, compared=compared, after_steps=after_steps, differences=tuple(differences),
        undigested=tuple(_undigested(known, is_start=is_start) if is_stated else _unknown_starts(known)),
        independent=tuple(why for why in reasons if UNDECIDED not in why),
        undecided=tuple(why for why in reasons if UNDECIDED in why),
    )  # fmt: skip


def shared(digests: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the digests without random states, which differ from rank to rank on purpose."""
    return {name: digest for name, digest in digests.items() if not name.startswith("rng.")}


def _different_ends(attempt: Attempt, ends: Mapping[int, Mapping[str, str | None]]) -> Iterator[Finding]:
    """Model and optimizer, by the set of names: a missing tensor is a difference."""
    first = min(ends, default=0)
    for rank, own in sorted(ends.items()):
        names = sorted(name for name in {*own, *ends[first]} if own.get(name) != ends[first].get(name))
        if names:
            text = f"rank {rank} and rank {first} finished with different {names[0]}"
            yield Finding(text=text, seqs=attempt.ranks[rank].seqs[-1:] + attempt.ranks[first].seqs[-1:])


def _unknown_starts(known: Sequence[Attempt]) -> Iterator[str]:
    for process in known[0].ranks.values() if known else ():
        if not process.is_sharded and _key(process) is None:
            yield f"{process.name} recorded no digest of the weights that it began with"


def _undigested(known: Sequence[Attempt], *, is_start: bool) -> Iterator[str]:
    """Ranks that reported no digest of what they restored, or did not report it, or finished with."""
    for attempt in known:
        is_last = attempt is known[-1]
        starts = {rank: process.states.get(0) for rank, process in attempt.ranks.items()}
        for rank, state in starts.items():
            if not state.weights if state else is_start and is_last:
                yield f"{attempt.name}: rank {rank} reported no digest of the weights that it restored"
        silent = [rank for rank, process in attempt.ranks.items() if not process.final]
        if is_last and silent and not is_start:
            yield f"rank {silent[0]} reported no digest of its weights at the end"


def _independence(known: Sequence[Attempt], group: tuple[int, ...]) -> str:
    """Return why ranks with equal weights at the start may train on their own: as in local SGD, or in a job without collectives.

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
        digests = {p.rank: p.states[n].weights or "" for p in members if n in p.states}
        if n or not attempt.are_replicas:  # a start without a digest differs from one with a digest
            digests = {rank: digest for rank, digest in digests.items() if digest}
        if len(digests) > 1:
            yield n, digests


def _difference(attempt: Attempt, n: int, digests: dict[int, str]) -> Finding:
    first = min(digests)
    other = next(rank for rank, digest in sorted(digests.items()) if digest != digests[first])
    when = f"after step {n} of the start" if n else "as it begins"
    text = f"{attempt.name}: rank {other} and rank {first} have different weights {when}"
    return Finding(text=text, seqs=() if n else attempt.ranks[other].seqs[:1] + attempt.ranks[first].seqs[:1])
