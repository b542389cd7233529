"""Holds what the watcher records of a training process: a dataclass for each kind of line of ``watch-r<rank>-<pid>.jsonl``.

Format 1, or 2 of a record that has ranges of steps. ``t`` is CLOCK_MONOTONIC in seconds; digests are 16 hexadecimal digits
and add up over shards modulo 2^64. ``n`` counts the steps that this process has completed. Readers ignore unknown kinds and
unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from .frozen import dataclass, field

FORMATS = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line; ``t``: when it was written."""

    t: float


L = TypeVar("L", bound=Line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin(Line):
    """The first line. ``attempt``: of ccbed; ``restart``: of torchrun; ``via``: how the watcher was loaded."""

    format: int
    rank: int
    pid: int
    world: int | None = None
    local_rank: int | None = None
    attempt: int = 0
    restart: int = 0
    host: str = ""
    boot: str = ""
    wall: float = 0.0
    python: str = ""
    argv0: str = ""
    run: str | None = None
    node: str | None = None
    hash_seed: str | int | None = None
    via: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch(Line):
    """torch is imported and observed."""

    version: str = ""
    device: str = ""
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Line):
    """The rank joined its process group."""

    rank: int | None = None
    world: int | None = None
    backend: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner(Line):
    """The parameters of the optimizers. ``shards``: ranks whose parts together are the full tensors; empty if each holds all.

    ``compiled``: whether torch.compile had compiled something by then.
    """

    optimizer: str = ""
    tensors: int | None = None
    numel: int | None = None
    names: str = ""
    sharded: bool = False
    compiled: bool | None = None
    shards: tuple[int, ...] = ()
    parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Every(Line):
    """The state is recorded at every so many steps, and the batches of every so many are hashed.

    Median CPU times: ``cost_s`` of a state, ``batch_s`` of a hash, ``each_s`` of what the watcher does at every step;
    ``step_s`` of a step. ``budget``: the part of a step that the watcher may take.
    """

    every: int | None = None
    batches: int | None = None
    cost_s: float | None = None
    batch_s: float | None = None
    each_s: float | None = None
    step_s: float | None = None
    budget: float | None = None
    fixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddp(Line):
    """The times of DistributedDataParallel itself: averages over iterations 0 to 10 and every hundredth until ``iteration``.

    ``backward_s``: from the first gradient to the last; ``comm_s``: from the first bucket's reduction to the end of the last,
    of which ``overlap_s`` while gradients are computed; ``buckets``: their bytes.
    """

    n: int
    iteration: int | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    comm_s: float | None = None
    overlap_s: float | None = None
    buckets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Line):
    """A completed step. ``loss``: ``float.hex`` of the sum over its ``passes``; ``batches``: hashes fetched for training since the last.

    ``inputs``: hashes of the model's inputs, where no DataLoader gives batches.
    ``samples``: hashes of the numbers of each batch's samples in their data set; ``values``: some numbers of some rows of the last input.
    The hash of a batch that has no digest, for example of a sparse tensor, or that the budget leaves out, is None.
    ``data_s``: waiting for the DataLoader; ``compute_s``: from its return to that of the last backward pass, without ``comm_s``:
    collectives that Python calls, which DDP's are not; ``collectives``: their names, calls and bytes; ``checkpoint_s``: in saves.
    ``rng``, ``lr``: fingerprints of the random generators and the learning rates as the optimizer began it, where no state has them;
    those that were as in the line before that has ``rng`` are left out.
    ``mixed``: its backward pass changes the type of numbers, as in mixed precision; only the first step states it.
    """

    n: int
    start: float
    end: float
    loss: str | None = None
    passes: int = 1
    data_s: float | None = None
    compute_s: float | None = None
    comm_s: float | None = None
    checkpoint_s: float | None = None
    collectives: tuple[tuple[str, int, int], ...] = ()
    batches: tuple[str | None, ...] | None = None
    inputs: tuple[str | None, ...] | None = None
    samples: tuple[str | None, ...] | None = None
    values: tuple[tuple[float, ...], ...] = ()
    skipped: bool = False
    rng: Mapping[str, str | None] | None = None
    lr: tuple[Any, ...] | None = None
    mixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(Line):
    """The completed steps ``first`` to ``last``, which stand for lines that were written in full before. Few of these stay as well.

    ``steps``: zlib, in base64, of columns with a number for each: the loss in ``loss_bytes`` bytes as IEEE 754 has it, the 10
    microseconds since the end of the step before (of the first one: since ``start``), backward passes, batches, flags (1: it has a loss,
    2: batches, 4: inputs). A column has the lowest bytes of all its numbers first. The other fields are sums; see ``Step``.
    """

    first: int
    last: int
    count: int
    start: float
    end: float
    loss_bytes: int
    steps: str
    data_s: float | None = None
    compute_s: float | None = None
    comm_s: float | None = None
    collectives: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class State(Line):
    """The state after ``n`` steps, taken before step n + 1. ``full``: with all parts beside weights.

    ``copies``: digests of other models with the parameters of this one, such as averages of its weights; ``groups``: settings
    of the optimizers' parameter groups beside ``lr``, as text. ``places``: where torch's generator was restored, and drawn from then.
    ``gradients``: norms of those that step n + 1 uses, of its first tensors. ``sums``: of some weights, with signs, in units of 2**-40.
    """

    n: int
    full: bool = False
    weights: str | None = None
    why: str = ""
    numel: int | None = None
    counter: float | None = None
    buffers: Any = None
    copies: Mapping[str, str | None] = field(default_factory=dict)
    optimizer: Mapping[str, str | None] | None = None
    lr: tuple[Any, ...] | None = None
    groups: tuple[Mapping[str, str], ...] | None = None
    scaler: Any = None
    scheduler: Any = None
    rng: Mapping[str, str | None] | None = None
    batch: str | None = None
    places: tuple[str, ...] = ()
    gradients: tuple[float, ...] | None = None
    sums: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Save(Line):
    """A save was called after ``n`` steps. ``api``: ``file`` or ``script`` where the watcher does not know its contents.

    ``step``: the number of steps that the script reports with it; ``thread``: that called it, empty for the main thread.
    ``passes``: backward passes whose gradients no step had used yet.
    """

    id: str | int
    n: int
    step: int | None = None
    api: str = ""
    path: str = ""
    called: float | None = None
    thread: str = ""
    passes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved(Line):
    """The contents of a save. ``weights``: of the model in it; ``matched``: fraction of its parameters that were recognised.

    ``counter``: the smallest step counter of the optimizers in it.
    """

    id: str | int
    staged: float | None = None
    durable: float | None = None
    files: tuple[Any, ...] = ()
    weights: str | None = None
    matched: float | None = None
    counter: float | None = None
    contents: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Line):
    """A save counts for the system that wrote it. It is written again with the same ``id`` once its SHA-256 is known.

    ``why``: the SHA-256 cannot be known.
    """

    id: str | int
    path: str = ""
    sha256: str | None = None
    bytes: int | None = None
    how: str = ""
    t_committed: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Line):
    """A checkpoint was read after ``n`` steps, or could not be read (``error``). ``sha256``: of the file; ``fs``: its file system's type.

    ``folder``: names and bytes of what its directory held before it was read, -1 of other directories; None if that is too much.
    ``parts``: the same of what could not be read, where that is a directory.
    It is written again with the same ``id`` once more of it is known.
    """

    id: str | int = ""
    n: int = 0
    api: str = ""
    path: str = ""
    called: float | None = None
    end: float | None = None
    sha256: str | None = None
    bytes: int | None = None
    fs: str = ""
    folder: Mapping[str, int] | None = None
    parts: Mapping[str, int] | None = None
    weights: str | None = None
    matched: float | None = None
    contents: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Line):
    """A report of the script itself through ``ccbed_events``, when the process had completed ``n`` steps.

    ``what``: step | resumed | saved | point | final. ``step``: as the script counts. ``path``: what it says it resumed from, with
    its SHA-256; ``source``: the same where that is no file. ``loss`` and ``value`` are ``float.hex``.
    It is written again with the same ``id`` once more of it is known.
    """

    id: str | int = ""
    what: str = ""
    n: int = 0
    step: int | None = None
    loss: str | None = None
    path: str = ""
    source: str = ""
    sha256: str | None = None
    bytes: int | None = None
    name: str = ""
    value: str | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Line):
    """The rank is held for a planned fault."""

    hold: str
    where: str = ""
    n: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Line):
    """The held rank continues."""

    hold: str
    where: str = ""
    n: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotObserved(Line):
    """A part of the job that cannot be observed, and why."""

    what: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(Line):
    """An internal error of the watcher: that observation is off."""

    where: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised(Line):
    """A backward pass or a collective raised an error in the step after ``n``."""

    n: int
    where: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Line):
    """The interpreter exits. ``code``: exit code; ``exception``: type of the exception that ends the script.

    ``peak_bytes``: the largest resident memory of the process.
    """

    n: int | None = None
    code: int | None = None
    exception: str | None = None
    peak_bytes: int | None = None


KINDS: Mapping[str, type[Line]] = {
    "begin": Begin,
    "torch": Torch,
    "joined": Joined,
    "owner": Owner,
    "every": Every,
    "ddp": Ddp,
    "step": Step,
    "range": Range,
    "state": State,
    "save": Save,
    "saved": Saved,
    "committed": Committed,
    "load": Load,
    "claim": Claim,
    "held": Held,
    "released": Released,
    "unknown": NotObserved,
    "problem": Problem,
    "raised": Raised,
    "end": End,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFile:
    """The record of one process. ``attempt`` and ``node`` are those of its directory in a bundle, else those that it states."""

    path: str
    node: str
    attempt: int
    rank: int
    pid: int
    lines: tuple[Line, ...] = ()

    def of(self, kind: type[L]) -> tuple[L, ...]:
        """The lines of this kind in the order in which they were written."""
        return tuple(line for line in self.lines if isinstance(line, kind))

    @property
    def begin(self) -> Begin | None:
        return next(iter(self.of(Begin)), None)
