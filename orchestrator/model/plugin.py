"""Protocols of plugin files. The folder is the registry; a plugin's name is its file's stem with dashes for underscores."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from .frozen import dataclass, field

if TYPE_CHECKING:
    from .act import Act, HostFacts, Safety, Target
    from .run import Run
    from .schedule import Cost, Schedule
    from .verdict import Verdict

#: Folders beside those of the test-bed, with plugins in folders of their own. Each may be missing.
PRODUCTS = ("jobs", "collectives", "nightly", "slurm")
#: The source of ccbed's own plugins.
BUILT_IN = "built-in"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoParams:
    """The ``Params`` of a plugin without parameters."""


class Fault(Protocol):
    """``faults/<name>.py``: Params, SAFETY and plan."""

    SAFETY: Safety
    Params: type[Any]

    def plan(self, params: Any, target: Target, host: HostFacts) -> Act: ...


class Checker(Protocol):
    """``checkers/<name>.py``: Params and check. Optional: ALWAYS (runs in every trial), TWIN (requires a twin)."""

    ALWAYS: bool
    TWIN: bool
    Params: type[Any]

    def check(self, run: Run, params: Any) -> Verdict: ...


class Report(Protocol):
    """``reports/<name>.py``: render returns relative path -> content. With ``ON_REQUEST = True`` it is written only where it is
    asked for."""

    def render(self, run: Run) -> Mapping[str, bytes]: ...


class Workload(Protocol):
    """``workloads/<name>.py``: Params, METRICS (name -> (unit, better)), CHECKS (run by default) and run.

    torch is imported inside the functions, so that the orchestrator can read Params. ``last_step(params, data)`` returns the
    number of steps if the workload counts them, else None (``data``: the data directory); ``check(params)`` yields problems
    of the values.

    Optional: ``fits(params, world)`` yields why that number of ranks is not possible; ``notes(params)`` yields notes for the
    user about valid values; ``memory(params, world)`` returns the memory of its largest buffers per rank
    (model/requirements.py); ``programs(params)`` returns programs that every node needs besides torch: the algorithm that
    needs them, their names in system.json, how to install them; ``traffic(params, world, samples)`` and
    ``once(params, world)`` predict the bytes of every operation of all ranks, in a step with that many samples and before
    the first step; ``PHASES``: the phases of its steps; the first is the default of a fault's trigger;
    ``CHECKS_OF_FAULTS``: more checks for a trial with planned faults; ``ACTS``: what its ranks do on the order of a fault
    (primitive ``inside``).
    """

    Params: type[Any]
    METRICS: Mapping[str, tuple[str, str]]
    CHECKS: tuple[str, ...]

    def last_step(self, params: Any, data: str | None) -> int | None: ...

    def run(self, ctx: Any) -> None: ...


class Algorithm(Protocol):
    """``algorithms/<name>.py``: supported OPERATIONS, chunks, schedule and cost; schedules are written for root 0.

    Chunks of the buffer: all-reduce, broadcast, reduce: any number. all-gather, reduce-scatter, gather, scatter: exactly
    ``world``, rank by rank. all-to-all: input by destination, then output by source, then scratch, ``world`` each.
    send-recv: 0 goes to the right neighbour, 1 comes from the left. barrier: none. ``cost`` is for the size n, which is the
    buffer per rank; for all-gather, reduce-scatter, gather and scatter that of all ranks.

    Optional: ``Params`` (a frozen dataclass with defaults; then each function takes one as its last argument),
    ``refuses(operation, world)`` (why it does not support that; empty if it does), ``EVEN`` (operations with equal chunks).
    ``model/algorithm.py`` hides the difference.
    """

    OPERATIONS: tuple[str, ...]

    def chunks(self, operation: str, world: int) -> int: ...

    def schedule(self, operation: str, rank: int, world: int) -> Schedule: ...

    def cost(self, operation: str, world: int) -> Cost: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A file of a plugin folder: its name, the first line of its docstring, and the loaded module.

    ``source``: ``built-in``, or the path of the file under ``inputs/`` of a bundle; ``code``: the bytes that were loaded;
    ``distribution``: the installed one that has it, as ``NAME VERSION``; empty for a file of a folder.
    """

    name: str
    summary: str
    path: str
    module: ModuleType
    source: str = BUILT_IN
    distribution: str = ""
    code: bytes = field(default=b"", repr=False)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.code).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All plugins. Loading them does not import torch: a workload imports torch inside its functions."""

    faults: Mapping[str, Plugin] = field(default_factory=dict)
    checkers: Mapping[str, Plugin] = field(default_factory=dict)
    reports: Mapping[str, Plugin] = field(default_factory=dict)
    algorithms: Mapping[str, Plugin] = field(default_factory=dict)
    workloads: Mapping[str, Plugin] = field(default_factory=dict)
    #: Built-in trials: name -> path of the YAML file.
    trials: Mapping[str, str] = field(default_factory=dict)
    #: Kind of plugin -> the paths of all its files, without loading them.
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Kind of plugin -> the names of those that ccbed ships, without loading them.
    built_in: Mapping[str, Collection[str]] = field(default_factory=dict)
    #: Those of its checkers that run in every trial.
    always: Collection[str] = ()
