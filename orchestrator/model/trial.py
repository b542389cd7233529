"""A trial: workload x params x world x faults x recovery x checks x seed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from . import codec
from .frozen import dataclass, field

PHASES = (
    "rendezvous", "init", "data", "forward", "backward", "allreduce", "collective", "optimizer", "checkpoint", "restore",
    "shutdown", "save", "save-during", "save-after", "load",
)  # fmt: skip
#: Phases of a script's own saves and loads. Each belongs to no step: ``nth`` counts how often a rank passes it.
SAVE_PHASES = ("save", "save-during", "save-after", "load")
#: The workload that runs a user's script, and the phases of its steps.
SCRIPT = "script"
STEP_PHASES = ("data", "forward", "backward", "optimizer")
#: Phases inside a collective: a fault there is injected when the other ranks are inside the collective as well.
INSIDE = ("allreduce", "collective")
POLICIES = ("spare", "restart", "replace", "shrink", "none")
#: The next attempt runs on the nodes that are left.
SHRINK = "shrink"
#: A lost node is started on another host with room.
REPLACE = "replace"
#: The recovery of a job's own launcher: lost nodes are replaced, and survivors are left alone.
THEIRS = "theirs"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The number and placement of ranks. Spares are not counted. ``master_port`` 0: any free port.

    ``min_nodes``: an attempt after a loss may run on so few nodes; None: on ``nodes`` only.
    """

    nodes: int = 4
    ranks_per_node: int = 1
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    master_port: int = 0
    timeout_s: float = 30.0
    min_nodes: int | None = None

    @property
    def size(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def least_nodes(self) -> int:
        return self.nodes if self.min_nodes is None else self.min_nodes

    @property
    def can_shrink(self) -> bool:
        return self.least_nodes < self.nodes


#: Steps after a save at which a fault acts by default: what a wrong resumption does shows in several redone steps.
STEPS_LATER = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """The moment at which a fault is injected.

    ``step`` and ``phase``: the first rank of the target is held there (exact). ``epoch``: the attempt, from 0 (None:
    the first attempt in which the point is reached). ``after_s``: seconds after all ranks of the first gang have started
    (observed). ``on``: after the ``nth`` occurrence of that event in the history (observed, for faults during a recovery),
    e.g. ``recovery.decided``. ``after_save``: after that many checkpoints of a script were committed, each after another
    step, the first rank of the target is held ``steps_later`` steps after the step of the last one, or as soon as possible;
    None: ``STEPS_LATER``, or one step before the next save is due, if that is earlier.
    """

    step: int | None = None
    phase: str = "allreduce"
    after_s: float | None = None
    on: str | None = None
    nth: int = 1
    epoch: int | None = None
    after_save: int | None = None
    steps_later: int | None = None

    @property
    def exact(self) -> bool:
        return self.step is not None or (self.on is None and self.after_s is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPoint:
    """The point at which a run of a script is ended on purpose: ``step`` steps of all attempts together, ``saves`` checkpoints, or a time.

    ``after_s``: seconds since all ranks of the first gang started.
    """

    step: int | None = None
    saves: int | None = None
    after_s: float | None = None


_STOP = re.compile(r"(?:(?P<what>step|after-save)=(?P<count>[1-9]\d*)|(?P<time>\d+(?:\.\d+)?)(?P<unit>s|m|h))")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_stop(text: str) -> StopPoint:
    """``step=200``, ``after-save=3`` or a time such as ``10m``. Raises ValueError."""
    match = _STOP.fullmatch(text)
    if match is None:
        raise ValueError("must be step=200, after-save=3 or a time such as 10m")
    if match["time"]:
        return StopPoint(after_s=float(match["time"]) * _UNITS[match["unit"]])
    count = int(match["count"])
    return StopPoint(step=count) if match["what"] == "step" else StopPoint(saves=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """One fault of a trial. ``node``: an int is a group rank, resolved when the trigger fires; a str names the node."""

    id: str
    fault: str
    node: int | str
    at: Trigger
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The policies for a lost node, in order of preference.

    ``grow_after_s``: after a shrink the lost nodes are started again so many seconds later, and rejoin after the next checkpoint;
    None: never.
    ``replace_wait_s``: how long the policy ``replace`` waits for a host with room; None: it does not wait.
    """

    policy: tuple[str, ...] = ("spare", "restart")
    max_restarts: int = 3
    grow_after_s: float | None = None
    replace_wait_s: float | None = None


#: The least ``stalled_s`` of a script: it may evaluate or save between two steps.
SCRIPT_STALLED_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """Limits in seconds. ``step_factor`` times the median step is the floor of ``stalled_s``, of a script also SCRIPT_STALLED_S;
    ``wall_s`` ends the whole run.

    ``settle_s``: from the stop of an attempt until nodes without a heartbeat are given up.
    """

    suspect_s: float = 1.0
    lost_s: float = 2.0
    stalled_s: float = 10.0
    step_factor: float = 20.0
    settle_s: float = 3.0
    hold_s: float = 10.0
    wall_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec:
    """A checker by name with its argument, e.g. ``detected-within: 2s`` -> ``{"seconds": 2.0}``."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)


#: The rungs of the ladder of a training; each includes those before it.
RUNGS = ("survived", "whole", "exact")
#: The parts of a training's state whose loss a trial may accept; ``NOTHING`` accepts none.
ACCEPTABLE = ("rng", "data-position", "ema")
NOTHING = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The content of a run: its workload, faults and checks. ``id`` hashes it, so equal trials have equal ids.

    ``require``: the rung that a training must reach to pass; ``accept``: parts of its state that may be lost, of ``ACCEPTABLE``.
    """

    name: str
    workload: str
    params: Mapping[str, Any] = field(default_factory=dict)
    world: World = World()
    faults: tuple[FaultPlan, ...] = ()
    recovery: Recovery = Recovery()
    checks: tuple[CheckSpec, ...] = ()
    liveness: Liveness = Liveness()
    seed: int = 7
    require: Literal["survived", "whole", "exact"] = "exact"
    accept: tuple[str, ...] = ()

    @property
    def workers_per_node(self) -> int:
        """The training processes of a node: its ranks, or those that the job's own launcher starts."""
        return int(self.params.get("nproc") or 1) if self.params.get("launcher") else self.world.ranks_per_node

    @property
    def id(self) -> str:
        return codec.digest(self)[:16]
