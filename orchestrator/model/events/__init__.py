"""The payloads of all events and commands, by idea. ``README.md`` beside this file lists them."""

from __future__ import annotations

from .checkpoints import (
    CheckpointCommit,
    CheckpointFacts,
    CheckpointFailed,
    CheckpointRefused,
    CheckpointSkipped,
    ResumeChosen,
    SaveCommitted,
    SkippedCheckpoint,
)
from .collectives import (
    CaseFacts,
    CollectiveAuto,
    CollectiveMeasured,
    CollectivePlan,
    CollectiveSequence,
    CollectiveWrong,
    LinkFit,
    LinkPair,
    LinkProbing,
    ReferenceCompared,
)
from .commands import (
    CappedFile,
    CheckpointScan,
    CheckpointScanDone,
    CommandFailed,
    Exec,
    ExecDone,
    ExecStop,
    ExecStopDone,
    FaultAct,
    FaultActDone,
    FaultHeal,
    FaultHealDone,
    FenceWrite,
    FenceWriteDone,
    GangInspect,
    GangInspectDone,
    GangStart,
    GangStartDone,
    GangStop,
    GangStopDone,
    Gather,
    GatherDone,
    KeeperPrefix,
    MissingFile,
    NodeApply,
    NodeApplyDone,
    NodeKill,
    NodeKillDone,
    Note,
    RankHold,
    RankHoldDone,
    RankRelease,
    RankReleaseDone,
    ResumeFacts,
    StoreOpen,
    StoreOpenDone,
    Timer,
    TimerDone,
)
from .faults import (
    FaultBefore,
    FaultHealed,
    FaultInjected,
    FaultLasted,
    FaultPlanned,
    FaultTarget,
    FaultUnreached,
    FaultVerified,
    HealVerified,
    LeaseArmed,
    LeaseOver,
)
from .gang import (
    GangBusy,
    GangJoined,
    GangQuiet,
    GangStalled,
    HostsDrained,
    RecoveryDecided,
    RecoveryGrowing,
    RecoveryGrown,
    RecoveryRefused,
    RecoveryReplaced,
    RecoveryWaiting,
    StoreRetried,
)
from .nodes import (
    AgentReady,
    NodeEnded,
    NodeExit,
    NodeHeard,
    NodeSilent,
    NodeSuspect,
)
from .probes import ComputedBits, ProbeDone, ProbeFigure
from .ranks import (
    HoldExpired,
    Progress,
    RankError,
    RankExit,
    RankFinished,
    RankHeld,
    RankInside,
    RankJoined,
    RankReleased,
    RankRestored,
    RankStart,
    RankStep,
    Traffic,
)
from .run import (
    ClockFacts,
    CommandRefused,
    CommandRepeated,
    ControllerLate,
    NodeFacts,
    RunBegin,
    RunEnd,
    RunInterrupted,
    RunResumed,
    RunStopped,
)

#: Observations from which recovery may start. The outcome of our own injection is not among them.
DETECTORS = (NodeExit, RankExit, NodeSilent, GangStalled)
#: The keeper of a host performs these, an agent all others.
KEEPER_COMMANDS = (NodeApply, NodeKill, FaultAct, FaultHeal)
