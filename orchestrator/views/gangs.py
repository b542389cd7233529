"""The gangs of a run: for each epoch which node held which ranks, and what its ranks reported."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..model.event import Event, History
from .clock import listing, mapping, names, text, whole
from .command_outcomes import Operation, operations

#: What tells that something of a gang is gone; recovery starts from nothing else.
DETECTORS = ("node.exit", "rank.exit", "node.silent", "gang.stalled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """One epoch. ``slots``: group rank -> node; ``ranks``: rank -> node; ``starts``: the gang.start of each node."""

    epoch: int
    starts: tuple[Operation, ...]
    slots: Mapping[int, str]
    ranks: Mapping[int, str]
    world: int | None
    notes: Mapping[str, tuple[Event, ...]] = field(default_factory=dict)

    @property
    def began(self) -> Event:
        """The first invoke of a gang.start of this epoch."""
        return self.starts[0].invoke

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.slots[slot] for slot in sorted(self.slots))

    def of(self, name: str) -> tuple[Event, ...]:
        """What the ranks and agents of this epoch noted under ``name``."""
        return self.notes.get(name, ())

    def by_rank(self, name: str) -> dict[int, Event]:
        """rank -> its first note of that name."""
        found: dict[int, Event] = {}
        for event in self.of(name):
            rank = whole(event.value.get("rank"))
            if rank is not None:
                found.setdefault(rank, event)
        return found

    def complete(self, name: str) -> bool:
        """Whether every rank of the world noted ``name``."""
        return bool(self.ranks) and set(self.ranks) <= set(self.by_rank(name))

    def directory(self, node: str) -> str | None:
        """The name of the node's directory of this epoch in the bundle, ``i<ordinal>-e<epoch>``."""
        outs = (start.invoke.value.get("out") for start in self.starts if start.node == node)
        out = next(outs, None)
        return posixpath.basename(out.rstrip("/")) if isinstance(out, str) else None


def blamed(gang: Gang, rank: int) -> tuple[int, Event | None]:
    """Who is to blame for the end of ``rank``, and the last word about it: the rank itself, or the one that it names."""
    errors = gang.by_rank("rank.error")
    said = errors.get(rank)
    culprit = whole(said.value.get("culprit")) if said else None
    if culprit is None or culprit not in gang.ranks:
        return rank, said
    return culprit, errors.get(culprit, said)


def gangs(history: History) -> tuple[Gang, ...]:
    """The gangs that were asked for, by epoch."""
    starts: dict[int, list[Operation]] = {}
    for operation in operations(history, "gang.start"):
        epoch = epoch_of(operation.invoke)
        if epoch is not None:
            starts.setdefault(epoch, []).append(operation)
    notes = _notes(history)
    return tuple(_gang(epoch, starts[epoch], notes.get(epoch, {})) for epoch in sorted(starts))


def epoch_of(event: Event) -> int | None:
    """The epoch that an event names, in its field or, for a gang.start, in its value."""
    return event.epoch if event.epoch is not None else whole(event.value.get("epoch"))


def epoch_at(found: tuple[Gang, ...], seq: int) -> int | None:
    """The epoch whose gang was the newest when event ``seq`` was written; None before the first."""
    return max((gang.epoch for gang in found if gang.began.seq <= seq), default=None)


def slots_at(history: History, seq: int) -> tuple[str, ...]:
    """Group rank -> node as the newest decision or gang before event ``seq`` had it; empty before the first gang."""
    found: tuple[int, tuple[str, ...]] = (0, ())
    for gang in gangs(history):
        if found[0] < gang.began.seq <= seq:
            found = gang.began.seq, gang.nodes
    for event in history.of("recovery.decided"):
        if found[0] < event.seq <= seq:
            found = event.seq, names(event.value.get("slots"))
    return found[1]


def abnormal(event: Event) -> bool:
    """Whether a detector speaks: a rank that left with 0 is none."""
    return event.f in DETECTORS and not (event.f == "rank.exit" and event.value.get("code") == 0)


def begin_nodes(history: History) -> Mapping[str, Mapping[str, object]]:
    """name -> {incarnation, ordinal, pid, role, address, host} as the run found them."""
    begin = history.first("run.begin")
    nodes = mapping(begin.value.get("nodes")) if begin else {}
    return {name: mapping(facts) for name, facts in nodes.items()}


def hosts_of(history: History) -> Mapping[str, str]:
    """node -> its host as the run began; one and the same, without a name, where nothing is said."""
    return {node: text(facts.get("host")) or "" for node, facts in begin_nodes(history).items()}


def _gang(epoch: int, starts: list[Operation], notes: Mapping[str, list[Event]]) -> Gang:
    slots: dict[int, str] = {}
    ranks: dict[int, str] = {}
    for start in starts:
        value, node = start.invoke.value, start.node or ""
        slots[whole(value.get("group_rank")) or 0] = node
        ranks |= {rank: node for rank in map(whole, listing(value.get("ranks"))) if rank is not None}
    return Gang(
        epoch=epoch,
        starts=tuple(starts),
        slots=slots,
        ranks=ranks,
        world=whole(starts[0].invoke.value.get("world_size")),
        notes={name: tuple(events) for name, events in notes.items()},
    )


def _notes(history: History) -> dict[int, dict[str, list[Event]]]:
    found: dict[int, dict[str, list[Event]]] = {}
    for event in history.events:
        if event.type == "note" and event.epoch is not None:
            found.setdefault(event.epoch, {}).setdefault(event.f, []).append(event)
    return found
