"""The engine's state: everything that a decision depends on, rebuilt at any time by folding the history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from ...model import codec
from ...model.event import Clock, Command, Event, command
from ...model.events import CheckpointFacts, GangInspectDone, GangQuiet, Note, RankJoining, Timer
from ...model.frozen import dataclass, field, replace
from ...model.payload import Payload
from ...model.plan import Plan
from ...model.trial import Trial

#: prepare: fence, checkpoint, store and nodes are being made ready · start: the ranks are being forked and join ·
#: run · stop: the gang is being stopped, nothing is decided yet ·
#: wait: no host has room for a lost node · close: stop, heal, restore, gather ·
#: suspended: interrupted, may be resumed · done
Stage = Literal["prepare", "start", "run", "stop", "wait", "close", "suspended", "done"]
FaultStage = Literal["planned", "held", "acting", "acted", "healing", "healed", "failed", "unreached"]
Commands = tuple[Command, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node. ``reachable``: its heartbeat continues; ``alive``: its agent has not exited; ``suspect``: its heartbeat is late.

    ``cut_off``: its host did not respond to an observation; ``is_observed``: it did. ``condemned``: its end was ordered
    while it was silent.
    """

    incarnation: str
    ordinal: int
    alive: bool = True
    reachable: bool = True
    suspect: bool = False
    cut_off: bool = False
    is_observed: bool = False
    condemned: bool = False

    @property
    def usable(self) -> bool:
        return self.alive and self.reachable

    @property
    def silent(self) -> bool:
        return self.alive and not self.reachable


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultState:
    """The progress of a planned fault, and its node. ``heals``: how often healing was ordered.

    ``injected``: the time by the injector's clock. ``epoch``: the attempt in which it was ordered; ``hit``: affected nodes
    -> their incarnation at that time.
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
    """The way in which the run ends; ``at``: the current step of the shutdown. ``restored``: nodes whose restart was ordered.

    ``is_final``: an interruption ends the run; else it is suspended.
    """

    outcome: Literal["finished", "failed", "interrupted"]
    reason: str = ""
    kind: Literal["", "finding", "infrastructure"] = ""
    at: Literal["stop", "prove", "heal", "quiet", "restore", "gather", "end"] = "stop"
    restored: frozenset[str] = frozenset()
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopProgress:
    """The counts of a planned stop. ``steps``: attempt -> steps of the fastest rank; ``is_armed``, ``is_over``: of the timer.

    ``stepped``: (attempt, rank) with a step since the last fault.
    ``workers``: under a job's own launcher, group rank -> pid of a first worker there -> its steps; ``ended``: pids of
    those that a fault ended.
    """

    steps: Mapping[int, int] = field(default_factory=dict)
    workers: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    ended: frozenset[tuple[int, int]] = frozenset()
    stepped: frozenset[tuple[int, int]] = frozenset()
    is_armed: bool = False
    is_over: bool = False

    @property
    def total(self) -> int:
        """The steps of all attempts together; under a launcher those of the node with the most."""
        launched = (sum(steps.values()) for steps in self.workers.values())
        return sum(self.steps.values()) + max(launched, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The inspection of a quiet gang. ``silent``: how many nodes did not respond."""

    quiet: GangQuiet
    awaited: frozenset[str]
    replies: tuple[GangInspectDone, ...] = ()
    silent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """See the module. ``slots``: group rank -> node. ``awaited``: keys of commands without which the stage cannot end.

    ``newest_saves``: (attempt, step, rank) of the last checkpoints of ``save_count`` that a script has committed, in the order of
    their events.
    ``hopeless``: an error that a restart does not fix, such as a wrong result. ``unfit``: its cause is the hosts, not the
    system under test. ``begin``: SHA-256 of the value of ``run.begin``.
    ``inspection``: of a quiet gang; ``inspections``: how many there were; ``standstill``: where the ranks of the attempt stood.
    ``vacant``: group ranks of lost nodes whose launcher is not started again (yet).
    ``absent``: nodes that the gang has shrunk by, and that have not rejoined; ``returning``: those whose start is ordered;
    ``returns``: how often they were waited for. ``drained``: host -> why no node is placed there; ``lost_hosts``: those that did not
    respond when a recovery began; ``stands_for``: node that replaces lost ones on another host -> those.
    ``is_growing``: the gang is being stopped so that absent nodes rejoin.
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
    #: What ranks of a script have called ``init_process_group`` with.
    joining: Mapping[int, RankJoining] = field(default_factory=dict)
    joined: frozenset[int] = frozenset()
    finished: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    #: A rank of the attempt has failed in a collective: where the other ranks are explains it.
    needs_stacks: bool = False
    #: When the first rank of the attempt failed, and when nodes exited or fell silent in it, in seconds since the run began.
    failed_at: float | None = None
    lost_at: Mapping[str, float] = field(default_factory=dict)
    started: frozenset[int] = frozenset()
    exited: frozenset[int] = frozenset()
    vacant: frozenset[int] = frozenset()
    absent: tuple[str, ...] = ()
    returning: frozenset[str] = frozenset()
    returns: int = 0
    drained: Mapping[str, str] = field(default_factory=dict)
    lost_hosts: frozenset[str] = frozenset()
    stands_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Nodes that recovery chose on another host: each may live, whether the reply to its start is known or not.
    chosen: frozenset[str] = frozenset()
    is_growing: bool = False
    detector: str = ""
    lineage: tuple[tuple[int, int], ...] = ()
    best_step: int = 0
    step_at_start: int = 0
    stale: int = 0
    restarts: int = 0
    event_counts: Mapping[str, int] = field(default_factory=dict)
    save_count: int = 0
    newest_saves: tuple[tuple[int, int, int], ...] = ()
    fence_ordered: int = -1
    #: Nodes that could not be killed or started again -> the reason.
    unrestartable: Mapping[str, str] = field(default_factory=dict)
    #: Hosts that respond, but whose keeper did not respond to an order to kill or start a node.
    unresponsive: frozenset[str] = frozenset()
    #: Why the whole bed has ended.
    bed_ended: str = ""
    hopeless: str = ""
    unfit: bool = False
    resumes: int = 0
    armed: bool = False
    begin: str = ""
    inspection: Inspection | None = None
    inspections: int = 0
    standstill: str = ""
    stop: StopProgress = StopProgress()
    ending: Ending | None = None

    def usable(self, name: str) -> bool:
        return self.nodes[name].usable

    def world_size(self, trial: Trial) -> int:
        """The number of ranks of the current attempt."""
        return len(self.slots) * trial.world.ranks_per_node

    def host(self, name: str) -> str:
        return self.plan.nodes[name].host

    def silent_host(self, host: str) -> bool:
        """Return whether a host is considered lost: no node on it has a heartbeat, or it did not respond to an observation."""
        alive = [node for name, node in self.nodes.items() if self.host(name) == host and node.alive]
        if any(node.cut_off for node in alive):
            return True
        if any(node.is_observed for node in alive):
            return False
        return any(node.silent for node in alive) and all(node.silent or node.suspect for node in alive)

    @property
    def is_started(self) -> bool:
        """Return whether the gang of this attempt was ordered to start."""
        return bool(self.lineage) and self.lineage[-1][0] == self.epoch

    @property
    def active(self) -> bool:
        return self.stage in ("start", "run")

    @property
    def over(self) -> bool:
        """Return whether events of nodes have no further effect."""
        return self.stage in ("suspended", "done")


Result = tuple[State, Commands]


def then(result: Result, more: Callable[[State], Result]) -> Result:
    """``more`` applied to the state of ``result``; the commands of both, in order."""
    state, commands = result
    after, following = more(state)
    return after, commands + following


def note(payload: Payload, key: str, *, of: str | None = None, epoch: int | None = None) -> Command:
    """The command that records a decision in the history; ``of``: the affected node."""
    return command(Note(f=payload.NAME, value=codec.plain(payload)), key, node=of, epoch=epoch)


def timer(key: str, after_s: float) -> Command:
    return command(Timer(after_s=after_s), key, deadline_s=after_s + 3600.0)


def reached(state: State, steps: Iterable[int | None]) -> State:
    """The state after ranks reached these steps; None: a step that is not known."""
    best_step = max([state.best_step, *(step for step in steps if step is not None)])
    return state if best_step == state.best_step else replace(state, best_step=best_step)


def forged(event: Event) -> bool:
    """Return whether a workload emitted an event of the run: only the controller may emit ``run.*``."""
    return event.f.startswith("run.") and event.source.writer != "ctl"
