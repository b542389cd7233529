"""The plan of a run, decided before its first command: the node of each rank, the possible acts, the files."""

from __future__ import annotations

from collections.abc import Mapping

from .act import Act
from .bed import LinkSpec
from .frozen import dataclass, field
from .gang import Isolation, WorkDir
from .plugin import BUILT_IN
from .trial import CheckSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNode:
    """A node as observed when the run was planned. Paths are on the node.

    ``leaf``: the node's switch in an emulated fabric; the nodes of a switch share an uplink. ``machine``: the name that the host has
    outside of the bed, such as that of a Slurm node; empty if it has no other.
    """

    name: str
    role: str
    incarnation: str
    ordinal: int
    pid: int
    address: str
    interface: str
    directory: str
    host: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    leaf: int = 0
    machine: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClock:
    """A host's CLOCK_MONOTONIC + ``offset_s`` = the orchestrator's ± ``uncertainty_s`` at the time of the measurement."""

    host: str
    offset_s: float
    uncertainty_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """``nodes`` do not share the directory for checkpoints with ``other_nodes``; None: with no other node."""

    nodes: frozenset[str]
    other_nodes: frozenset[str] | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFile:
    """A plugin that a run uses. ``sha256``: of its file; ``source``: ``built-in``, or the file's path under ``inputs/``."""

    name: str
    sha256: str
    source: str = BUILT_IN


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCheck(CheckSpec):
    """A check that judges a run, with the file that implements it; ``sha256`` is empty if there was no such file.

    ``source`` as for PluginFile; ``skipped``: why the check is not run; empty: it is run.
    """

    sha256: str = ""
    source: str = BUILT_IN
    skipped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A file of the user that is not in the bundle. ``sha256`` is empty if it was not hashed; ``modified``: UTC."""

    path: str
    reason: str
    size_bytes: int = 0
    modified: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    """A part that the copy of a user's file lacks. ``kind``: what was redacted, never the value."""

    path: str
    line: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The nodes of a bed that a run may use, beyond what the bed says.

    ``quarantined``, ``drained``, ``unfit``: node in quarantine, node on a drained host, or spare that a probe found too slow -> why. Such
    a node gets no rank and is no spare.
    ``members``: the nodes that get the ranks, in order, whatever their role, without spares; empty: as the bed says.
    ``spare_probe``: the run that decided about the spares (of an unfit one if there is one), relative to the directory of the run; empty
    if they were not probed. ``notes``: what the probes say of each fit spare, and which run decided.
    """

    quarantined: Mapping[str, str] = field(default_factory=dict)
    unfit: Mapping[str, str] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    spare_probe: str = ""
    notes: tuple[str, ...] = ()
    drained: Mapping[str, str] = field(default_factory=dict)

    @property
    def excluded(self) -> Mapping[str, str]:
        return {**self.quarantined, **self.unfit, **self.drained}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a run (``plan.json``). ``slots``: group rank -> node; ``acts``: fault id -> node -> Act, for late targets.

    ``policy``: the recovery order with ``auto`` resolved; ``last_step``: None if the workload does not count steps;
    ``has_launcher``: the job's own launcher starts the ranks; ``clocks``: boot id of a host -> its clock, as preflight measured it;
    ``inputs``: path under ``inputs/`` of the bundle -> SHA-256;
    ``link``: the shaped links of an emulated fabric; ``left_out``: warm spares that cannot take part -> the reason;
    ``checks``: the checks that judge the run; None: a bundle of format 1, which does not list them.
    ``grace_s``: from SIGTERM to SIGKILL where ranks are to end; ``save_grace_s``: the longest wait for a save that is under way.
    ``secret_names``: environment variables that are secret; ``umask``: of the ranks;
    ``inputs_left_out``: files of the user that the run uses, or that are beside its script, and are not in the bundle.
    ``inputs_redacted``: what the copies of files under ``inputs/`` lack.
    ``work_dir``: where the ranks find the user's script. ``isolation``: of a script's reference run.
    ``paths``: text in the script's arguments -> the path that stands there in this run.
    ``substitutes``: node that the run must not use -> the node that has its slot.
    ``replacements``: nodes that may take the place of a lost one by the policy ``replace``: unused ones, and those that are started
    for it. ``hosts``: with this policy, every host of the bed -> why it gets no replacement; empty: it may.
    """

    run: str
    bed: str
    slots: tuple[str, ...]
    spares: tuple[str, ...]
    nodes: Mapping[str, PlanNode]
    policy: tuple[str, ...]
    backend: str
    payload: str
    checkpoints: str
    last_step: int | None = None
    has_launcher: bool = False
    data: str | None = None
    acts: Mapping[str, Mapping[str, Act]] = field(default_factory=dict)
    threads: int = 1
    keep: int = 3
    clocks: Mapping[str, HostClock] = field(default_factory=dict)
    link: LinkSpec | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[PlannedCheck, ...] | None = None
    workload: PluginFile | None = None
    secret_names: tuple[str, ...] = ()
    umask: int = 0o077
    grace_s: float = 0.0
    save_grace_s: float = 0.0
    inputs_left_out: tuple[LeftOut, ...] = ()
    inputs_redacted: tuple[Redacted, ...] = ()
    work_dir: WorkDir | None = None
    isolation: Isolation | None = None
    paths: Mapping[str, str] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    substitutes: Mapping[str, str] = field(default_factory=dict)
    replacements: tuple[str, ...] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)
