"""A run and its files, as checkers and reports read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ..model.events import GangStartDone, RunBegin
from .event import History, Source
from .frozen import dataclass, field
from .trial import Trial
from .verdict import Verdict
from .watch import WatchFile


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A finished step of a rank. ``loss`` is ``float.hex`` of the rank's local loss; times are CLOCK_MONOTONIC seconds.

    ``digest`` (SHA-256 of the parameters after the step) is None if it was not computed. ``samples``, ``batch``: digests of
    the samples of the rank's share and of the whole batch; those of all shares add up modulo 2^64 to that of the batch.
    ``count``: samples of the share.
    None: the rank has no share of its own.
    ``gaps``: (start, end, seconds of it that the process waited for a CPU) of each time in the step when it did not run;
    None: not watched.
    """

    epoch: int
    node: str
    rank: int
    step: int
    loss: str
    start: float
    end: float
    digest: str | None = None
    incarnation: str = ""
    samples: str | None = None
    batch: str | None = None
    count: int | None = None
    gaps: tuple[tuple[float, float, float], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRecord:
    """A chunk transfer: rank, peer, bytes, CLOCK_MONOTONIC start and end in seconds."""

    epoch: int
    rank: int
    step: int
    op: int
    index: int
    peer: int
    chunk: int
    size: int
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A run of a script that was restarted on the same nodes where the faults of the trial act.

    ``base``: the step from which its last attempt resumed; ``bases``: by rank, where ranks do not step together; ``restarts``: those of
    all attempts after the first.
    ``losses``, ``digests``, ``saves``, ``steps``: as of a twin. ``parts``: result and text of each part of the state that it resumed
    with; its random states were put back.
    """

    run: str
    base: int
    losses: Mapping[str, Mapping[str, str]]
    digests: Mapping[str, Mapping[str, str]]
    saves: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    steps: int | None = None
    bases: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    restarts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """An undisturbed run of the same trial. ``losses``: rank -> step -> float.hex; ``digests``: rank -> name -> SHA-256.

    Of a script ``digests`` has the watcher's digests of the state after each step that was recorded: ``weights@40``.
    ``batch_losses``: step -> the loss over the whole batch, where ranks record their shares.
    ``final_loss`` is then 0: the watcher knows losses of ranks only. ``paths``: what it saved outside of its work directory.
    ``control``: shows what a restart by itself changes, where the trial plans faults that end ranks.
    ``every``: of a script, the steps between two recorded states: those of the run, if that came first.
    ``saves``: of a script, step -> key of what it saved -> digest or value. ``generators``: of a script, rank -> ``torch@40`` ->
    fingerprint of the random state. ``lists``: of a script, rank -> step -> tensors that it keeps in lists -> their digests.
    ``reused``: it was made for an earlier run of the same script.
    """

    key: str
    run: str
    losses: Mapping[str, Mapping[str, str]]
    digests: Mapping[str, Mapping[str, str]]
    steps: int
    faults: int
    restarts: int
    final_loss: float
    paths: tuple[str, ...] = ()
    control: Control | None = None
    batch_losses: Mapping[str, float] = field(default_factory=dict)
    every: int | None = None
    saves: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    generators: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lists: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    reused: bool = False


class NodeFiles(Protocol):
    """Lazy access to the files of nodes in the bundle."""

    def steps(self) -> Iterator[StepRecord]: ...

    def chunks(self) -> Iterator[ChunkRecord]: ...

    def chunk_blocks(self) -> Iterator[tuple[str, int, int, bytes]]:
        """The chunks in binary, file by file: node, rank, epoch, content; a torn file may end inside a record."""
        ...

    def watch(self) -> Iterator[WatchFile]:
        """Return what the watcher recorded in each training process of a user's script."""
        ...

    def log(self, node: str, rank: int, epoch: int) -> str:
        """The output of a rank in an epoch; the beginning and the end of a long output; empty if there is none."""
        ...

    def event_sources(self) -> Iterator[tuple[str, Source]]:
        """The events that nodes have written: path of the file and source of the event."""

    def paths(self) -> tuple[str, ...]: ...

    def read(self, path: str) -> bytes:
        """The content of a file of the bundle; empty if it is missing."""
        ...

    def sha256(self, path: str) -> str:
        """The checksum of a file of the bundle, as hexadecimal digits; empty if it is missing."""
        ...

    def event_lines(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every line of the event files of nodes and keepers: path of the file, and the line as a JSON object."""
        ...


#: A run that takes longer, in seconds, is compared with an undisturbed one only where that is asked for.
SHORT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The facts that a checker or report may read. ``directory`` is for display only.

    ``extras``: small JSON documents of the bundle by file name: ``plan.json``, ``fingerprint.json``, ``bundle.json``.
    ``has_twin_beside``: the twin is in the same directory of runs, and not one of another directory, by the cache.
    ``is_signed``: a holder of the key of its bed found all evidence signed by the bed's keepers.
    ``code``: SHA-256 of the code that judges; ``run.begin`` contains that of the code that drove the run.
    """

    directory: str
    trial: Trial
    history: History
    files: NodeFiles
    twin: Twin | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    code: str = ""
    has_twin_beside: bool = False
    is_signed: bool = False

    @property
    def format(self) -> int:
        """The format of the bundle; 1 if no document states it. The history of a later format states it as well."""
        about = self.extras.get("bundle.json")
        number = about.get("format") if isinstance(about, Mapping) else None
        stated = number if isinstance(number, int) else 1
        return 2 if stated == 1 and self._was_written_as_2 else stated

    @property
    def _was_written_as_2(self) -> bool:
        """Return whether the run has format 2: since then run.begin states the format, and every node confirms it when its ranks start."""
        begin = self.history.first(RunBegin)
        confirmed = any(event.data.begin is not None for event in self.history.of(GangStartDone))
        return confirmed or (begin is not None and begin.data.format is not None)
