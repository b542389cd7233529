"""The gangs of a run: for each epoch which node held which ranks, and what its ranks reported."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..model.event import Event, History, Q
from ..model.events import DETECTORS, GangStart, NodeFacts, RankError, RankExit, RecoveryDecided, RunBegin
from ..model.payload import Payload
from .command_outcomes import Operation, operations


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """One epoch. ``slots``: group rank -> node; ``ranks``: rank -> node; ``starts``: the gang.start of each node."""

    epoch: int
    starts: tuple[Operation[GangStart], ...]
    slots: Mapping[int, str]
    ranks: Mapping[int, str]
    world: int | None
    notes: Mapping[str, tuple[Event, ...]] = field(default_factory=dict)

    @property
    def began(self) -> Event[GangStart]:
        """The first invoke of a gang.start of this epoch."""
        return self.starts[0].invoke

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.slots[slot] for slot in sorted(self.slots))

    def of(self, kind: type[Q]) -> tuple[Event[Q], ...]:
        """The notes of this kind in this attempt."""
        return self.notes.get(kind.NAME, ())

    def by_rank(self, kind: type[Q]) -> dict[int, Event[Q]]:
        """rank -> its first note of this kind."""
        first: dict[int, Event[Q]] = {}
        for event in self.of(kind):
            rank: int | None = getattr(event.data, "rank", None)
            if rank is not None:
                first.setdefault(rank, event)
        return first

    def complete(self, kind: type[Payload]) -> bool:
        """Whether every rank of the world has a note of this kind."""
        return bool(self.ranks) and set(self.ranks) <= set(self.by_rank(kind))

    def directory(self, node: str) -> str | None:
        """The name of the node's directory of this epoch in the bundle, ``i<ordinal>-e<epoch>``."""
        outs = (start.invoke.data.out for start in self.starts if start.node == node)
        out = next(outs, None)
        return None if out is None else posixpath.basename(out.rstrip("/"))


def blamed(gang: Gang, rank: int) -> tuple[int, Event[RankError] | None]:
    """Who is to blame for the end of ``rank``, and the last word about it: the rank itself, or the one that it names."""
    errors = gang.by_rank(RankError)
    said = errors.get(rank)
    culprit = said.data.culprit if said else None
    if culprit is None or culprit not in gang.ranks:
        return rank, said
    return culprit, errors.get(culprit, said)


def gangs(history: History) -> tuple[Gang, ...]:
    """The gangs that were asked for, by epoch."""
    starts: dict[int, list[Operation[GangStart]]] = {}
    for operation in operations(history, GangStart):
        epoch = epoch_of(operation.invoke)
        if epoch is not None:
            starts.setdefault(epoch, []).append(operation)
    notes = _notes(history)
    return tuple(_gang(epoch, starts[epoch], notes.get(epoch, {})) for epoch in sorted(starts))


def epoch_of(event: Event) -> int | None:
    """The attempt that an event names, itself or in its payload."""
    return event.epoch if event.epoch is not None else getattr(event.data, "epoch", None)


def epoch_at(found: tuple[Gang, ...], seq: int) -> int | None:
    """The epoch whose gang was the newest when event ``seq`` was written; None before the first."""
    return max((gang.epoch for gang in found if gang.began.seq <= seq), default=None)


def slots_at(history: History, seq: int) -> tuple[str, ...]:
    """Group rank -> node as the newest decision or gang before event ``seq`` had it; empty before the first gang."""
    found: tuple[int, tuple[str, ...]] = (0, ())
    for gang in gangs(history):
        if found[0] < gang.began.seq <= seq:
            found = gang.began.seq, gang.nodes
    for event in history.of(RecoveryDecided):
        if found[0] < event.seq <= seq:
            found = event.seq, event.data.slots or ()
    return found[1]


def abnormal(event: Event) -> bool:
    """Whether a detector speaks: a rank that left with 0 is none."""
    return event.kind in DETECTORS and not (event.kind is RankExit and event.data.code == 0)


def begin_nodes(history: History) -> Mapping[str, NodeFacts]:
    """The nodes by name, as they were when the run began."""
    begin = history.first(RunBegin)
    return (begin.data.nodes if begin else None) or {}


def hosts_of(history: History) -> Mapping[str, str]:
    """node -> its host as the run began; one and the same, without a name, where nothing is said."""
    return {node: facts.host or "" for node, facts in begin_nodes(history).items()}


def _gang(epoch: int, starts: list[Operation[GangStart]], notes: Mapping[str, list[Event]]) -> Gang:
    slots: dict[int, str] = {}
    ranks: dict[int, str] = {}
    for start in starts:
        data, node = start.invoke.data, start.node or ""
        slots[data.group_rank or 0] = node
        ranks |= dict.fromkeys(data.ranks or (), node)
    return Gang(
        epoch=epoch,
        starts=tuple(starts),
        slots=slots,
        ranks=ranks,
        world=starts[0].invoke.data.world_size,
        notes={name: tuple(events) for name, events in notes.items()},
    )


def _notes(history: History) -> dict[int, dict[str, list[Event]]]:
    found: dict[int, dict[str, list[Event]]] = {}
    for event in history.events:
        if event.type == "note" and event.epoch is not None:
            found.setdefault(event.epoch, {}).setdefault(event.f, []).append(event)
    return found
