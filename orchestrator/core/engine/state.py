"""The engine's state: everything that a decision depends on, rebuilt at any time by folding the history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ...model import codec
from ...model.event import Clock, Command, Event, command
from ...model.events import CheckpointFacts, Note, Timer
from ...model.payload import Payload
from ...model.plan import Plan

#: prepare: fence, checkpoint, store and nodes are being made ready · start: the ranks are being forked and join ·
#: run · stop: the gang is being stopped, nothing is decided yet · close: stop, heal, restore, gather ·
#: suspended: interrupted, may be resumed · done
Stage = Literal["prepare", "start", "run", "stop", "close", "suspended", "done"]
FaultStage = Literal["planned", "held", "acting", "acted", "healing", "healed", "failed", "unreached"]
Commands = tuple[Command, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What is known of a node. ``reachable``: it beats; ``alive``: its agent has not exited; ``suspect``: its beat is late.

    ``cut_off``: its host did not answer when it was looked at; ``looked_at``: it did. ``condemned``: its end was ordered,
    though it is silent.
    """

    incarnation: str
    ordinal: int
    alive: bool = True
    reachable: bool = True
    suspect: bool = False
    cut_off: bool = False
    looked_at: bool = False
    condemned: bool = False

    @property
    def usable(self) -> bool:
        return self.alive and self.reachable

    @property
    def silent(self) -> bool:
        return self.alive and not self.reachable


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultState:
    """One planned fault: how far it got, and on which node. ``heals``: how often its rollback was ordered.

    ``injected``: when, by the clock of whoever did it. ``epoch``: the attempt in which it was ordered; ``hit``: the nodes
    that it hits -> their incarnation at that time.
    """

    stage: FaultStage = "planned"
    node: str = ""
    rank: int | None = None
    inside: frozenset[int] = frozenset()
    heals: int = 0
    injected: Clock | None = None
    epoch: int = -1
    hit: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why and how the run ends; ``at`` is the step of closing that is under way. ``restored``: nodes that were tried to restore."""

    outcome: Literal["finished", "failed", "interrupted"]
    reason: str = ""
    kind: Literal["", "finding", "infrastructure"] = ""
    at: Literal["stop", "prove", "heal", "quiet", "restore", "gather", "end"] = "stop"
    restored: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """See the module. ``slots``: group rank -> node. ``awaited``: keys of commands without which the stage cannot end.

    ``hopeless``: what another start would not change, such as a wrong result. ``unfit``: it is the
    place that does not suit the run, not something that the run found. ``begin``: SHA-256 of what ``run.begin`` states.
    """

    plan: Plan
    stage: Stage
    slots: tuple[str, ...]
    spares: tuple[str, ...]
    nodes: Mapping[str, Node]
    faults: Mapping[str, FaultState]
    epoch: int = 0
    awaited: frozenset[str] = frozenset()
    store: tuple[str, int] | None = None
    resume: CheckpointFacts | None = None
    joined: frozenset[int] = frozenset()
    finished: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    started: frozenset[int] = frozenset()
    exited: frozenset[int] = frozenset()
    detector: str = ""
    lineage: tuple[tuple[int, int], ...] = ()
    best_step: int = 0
    step_at_start: int = 0
    stale: int = 0
    restarts: int = 0
    seen: Mapping[str, int] = field(default_factory=dict)
    fence_ordered: int = -1
    unrestartable: frozenset[str] = frozenset()
    hopeless: str = ""
    unfit: bool = False
    resumes: int = 0
    armed: bool = False
    begin: str = ""
    ending: Ending | None = None

    def usable(self, name: str) -> bool:
        return self.nodes[name].usable

    def host(self, name: str) -> str:
        return self.plan.nodes[name].host

    def silent_host(self, host: str) -> bool:
        """Whether a host is believed to be gone: nothing on it beats any more, or it did not answer itself."""
        there = [node for name, node in self.nodes.items() if self.host(name) == host and node.alive]
        if any(node.cut_off for node in there):
            return True
        if any(node.looked_at for node in there):
            return False
        return any(node.silent for node in there) and all(node.silent or node.suspect for node in there)

    @property
    def active(self) -> bool:
        """A gang is starting or running."""
        return self.stage in ("start", "run")

    @property
    def over(self) -> bool:
        """Nothing more follows from events of nodes."""
        return self.stage in ("suspended", "done")


Result = tuple[State, Commands]


def then(result: Result, more: Callable[[State], Result]) -> Result:
    """``more`` applied to the state of ``result``; the commands of both, in order."""
    state, commands = result
    after, following = more(state)
    return after, commands + following


def note(payload: Payload, key: str, *, of: str | None = None, epoch: int | None = None) -> Command:
    """A decision to be written into the history; ``of``: the node that it is about."""
    return command(Note(f=payload.NAME, value=codec.plain(payload)), key, node=of, epoch=epoch)


def timer(key: str, after_s: float) -> Command:
    return command(Timer(after_s=after_s), key, deadline_s=after_s + 3600.0)


def reached(state: State, steps: Iterable[int | None]) -> State:
    """The state after ranks reached these steps; None: a step that is not known."""
    return replace(state, best_step=max([state.best_step, *(step for step in steps if step is not None)]))


def forged(event: Event) -> bool:
    """A workload may emit what it likes; only the controller says how a run stands."""
    return event.f.startswith("run.") and event.source.writer != "ctl"
