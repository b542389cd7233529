"""The values of events by their names: what readers of a history may rely on. The vocabulary is explained in ``model/event.py``.

A field that is not required may be missing. Fields beyond these are allowed and are read as what they are, with care.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, Required, TypedDict

from msgspec import Meta

from .figures import RANKS, Attempt, CollectivePlan, Count, Figure, LinkPair, OfCase, Rank, Seconds, Step, Whole

Values = dict[str, Any]


class NodeFacts(TypedDict, total=False):
    incarnation: str
    ordinal: Count
    pid: Whole
    role: str
    address: str
    host: str


class ClockFacts(TypedDict, total=False):
    host: str
    offset_s: Seconds
    uncertainty_s: Seconds


class RunBegin(TypedDict, total=False):
    run: str
    bed: str
    pid: Whole
    nodes: dict[str, NodeFacts]
    cursors: Any
    clocks: dict[str, ClockFacts] | None
    left_out: dict[str, str] | None
    format: Count
    trial: str
    twin: str | None
    plan: str
    inputs: dict[str, str]
    documents: dict[str, str]
    code: str | None


class RunResumed(TypedDict, total=False):
    pid: Whole
    torn_bytes: Count
    nodes: dict[str, NodeFacts]
    reason: str


class RunEnd(TypedDict, total=False):
    outcome: str
    reason: str
    kind: str


class FaultPlanned(TypedDict, total=False):
    id: Required[str]
    fault: str
    node: int | str | None
    trigger: Values


class FaultTarget(TypedDict, total=False):
    id: Required[str]
    asked: int | str | None
    node: str | None
    rank: Rank | None


class Fault(TypedDict, total=False):
    id: Required[str]
    reason: str
    evidence: Any
    began: Seconds | None


class FaultCommand(TypedDict, total=False):
    id: str
    fault: str
    act: Values
    hold: Any


class StoreTaken(TypedDict, total=False):
    taken: list[Whole]
    port: Whole


class StoreOpened(TypedDict, total=False):
    address: Required[str]
    port: Required[Annotated[int, Meta(ge=0, lt=65_536)]]
    pid: Whole
    retries: list[Whole]


class GangStart(TypedDict, total=False):
    run: str
    epoch: Attempt
    world_size: Annotated[int, Meta(ge=0, le=RANKS)]
    nodes: Count
    group_rank: Rank
    ranks: list[Rank]
    out: str
    params: Values
    holds: list[Any]


class GangStarted(TypedDict, total=False):
    pids: dict[str, Whole]
    threads: Count
    agent: Whole


class GangStopped(TypedDict, total=False):
    killed: list[Whole]
    left: Count
    last_step: dict[str, Step | None]


class NodeApplied(TypedDict, total=False):
    incarnation: Required[str]
    ordinal: Required[Count]
    pid: Whole


class RecoveryDecided(TypedDict, total=False):
    lost: list[str]
    failed: list[Rank]
    detector: str
    policy: dict[str, str]
    slots: list[str]
    epoch: Attempt
    best_step: Step | None


class Checkpoint(TypedDict, total=False):
    name: str | None
    file: str
    step: Step
    epoch: Attempt
    sha256: str | None
    parent: str | None
    bytes: Count
    reason: str
    fence: Any


class Scanned(TypedDict, total=False):
    newest: Checkpoint | None
    skipped: list[Values]


class Silence(TypedDict, total=False):
    silent_s: Seconds
    since_s: Seconds
    late_s: Seconds
    seen: str | None


class Exit(TypedDict, total=False):
    code: Required[Whole | None]
    pid: Whole | None
    left: Any
    oom: Any


class Lease(TypedDict, total=False):
    key: str | None
    lease_s: Seconds
    holder: str


class AgentReady(TypedDict, total=False):
    pid: Whole
    threads: Count
    torch: str | None


class OfRank(TypedDict, total=False):
    rank: Required[Rank]
    pid: Whole
    threads: Count
    preloaded: list[str]
    world: Annotated[int, Meta(ge=0, le=RANKS)]
    backend: str
    kind: str
    message: str
    culprit: Rank | None


class RankExit(TypedDict, total=False):
    rank: Required[Rank]
    pid: Whole | None
    code: Required[Whole | None]
    last_step: Step | None


class RankRestored(TypedDict, total=False):
    rank: Required[Rank]
    step: Step | None
    name: str | None
    sha256: str | None
    weights: str | None


class RankStep(TypedDict, total=False):
    rank: Required[Rank]
    step: Required[Step]
    mark: str


class RankAt(TypedDict, total=False):
    rank: Required[Rank]
    step: Step
    phase: str
    hold: Required[str]
    held_s: Seconds


class RankFinished(TypedDict, total=False):
    rank: Required[Rank]
    steps: Step | None
    loss: Figure
    loss_mean: Figure
    digest: dict[str, str | None]
    metrics: Any
    transfers: Count
    verified: Count


class Progress(TypedDict, total=False):
    rank: Rank
    step: Step
    steps: Step | None
    loss: Figure


#: Event -> type of its value, for observations.
NOTES: Mapping[str, Any] = {
    "run.begin": RunBegin,
    "run.resumed": RunResumed,
    "run.interrupted": RunResumed,
    "run.end": RunEnd,
    "fault.planned": FaultPlanned,
    "fault.target": FaultTarget,
    "fault.unreached": Fault,
    "fault.injected": Fault,
    "fault.verified": Fault,
    "fault.healed": Fault,
    "heal.verified": Fault,
    "store.retried": StoreTaken,
    "recovery.decided": RecoveryDecided,
    "resume.chosen": Checkpoint,
    "checkpoint.commit": Checkpoint,
    "checkpoint.refused": Checkpoint,
    "checkpoint.failed": Checkpoint,
    "checkpoint.skipped": Checkpoint,
    "node.suspect": Silence,
    "node.silent": Silence,
    "node.heard": Silence,
    "gang.stalled": Silence,
    "controller.late": Silence,
    "node.exit": Exit,
    "lease.armed": Lease,
    "lease.over": Lease,
    "agent.ready": AgentReady,
    "rank.exit": RankExit,
    "rank.start": OfRank,
    "rank.joined": OfRank,
    "rank.error": OfRank,
    "rank.restored": RankRestored,
    "rank.step": RankStep,
    "rank.inside": RankAt,
    "rank.held": RankAt,
    "rank.released": RankAt,
    "hold.expired": RankAt,
    "rank.finished": RankFinished,
    "progress": Progress,
    "collective.plan": CollectivePlan,
    "collective.auto": OfCase,
    "collective.wrong": OfCase,
    "link.pair": LinkPair,
}
#: Command -> types of the values of its invoke and of its ok.
COMMANDS: Mapping[str, tuple[Any, Any]] = {
    "store.open": (Values, StoreOpened),
    "gang.start": (GangStart, GangStarted),
    "gang.stop": (Values, GangStopped),
    "node.apply": (Values, NodeApplied),
    "node.kill": (Values, GangStopped),
    "fault.act": (FaultCommand, Values),
    "fault.heal": (FaultCommand, Values),
    "checkpoint.scan": (Values, Scanned),
}
#: (event, its type) -> type of its value.
SCHEMAS: Mapping[tuple[str, str], Any] = types.MappingProxyType(
    {(name, "note"): schema for name, schema in NOTES.items()}
    | {(name, "invoke"): schemas[0] for name, schemas in COMMANDS.items()}
    | {(name, "ok"): schemas[1] for name, schemas in COMMANDS.items()}
)
