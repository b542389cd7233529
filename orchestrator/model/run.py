"""A run as checkers and reports see it, and the names of the files of a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..model.events import GangStartDone, RunBegin
from .event import History, Source
from .trial import Trial
from .verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One finished step of one rank. ``loss`` is ``float.hex`` of the rank's local loss; times are CLOCK_MONOTONIC seconds.

    ``digest`` (SHA-256 of the parameters after the step) is None where it was not taken.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRecord:
    """One chunk transfer: who, to or from whom, how many bytes, CLOCK_MONOTONIC start and end in seconds."""

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
class Twin:
    """An uninterrupted run of the same trial. ``losses``: rank -> step -> float.hex; ``digests``: rank -> name -> SHA-256."""

    key: str
    run: str
    losses: Mapping[str, Mapping[str, str]]
    digests: Mapping[str, Mapping[str, str]]
    steps: int
    faults: int
    restarts: int
    final_loss: float


class NodeFiles(Protocol):
    """Lazy access to what the nodes left in the bundle."""

    def steps(self) -> Iterator[StepRecord]: ...

    def chunks(self) -> Iterator[ChunkRecord]: ...

    def chunk_blocks(self) -> Iterator[tuple[str, int, int, bytes]]:
        """The same in binary, a file at a time: node, rank, epoch, content; what was torn may end inside of a record."""
        ...

    def log(self, node: str, rank: int, epoch: int) -> str:
        """The output of a rank in an epoch, of a long one the beginning and the end; empty if there is none."""
        ...

    def event_sources(self) -> Iterator[tuple[str, Source]]:
        """What the nodes themselves have written down: path of the file and identity of each event in it."""

    def paths(self) -> tuple[str, ...]: ...

    def read(self, path: str) -> bytes:
        """The content of a file of the bundle; empty where it is missing."""
        ...

    def sha256(self, path: str) -> str:
        """Of a file of the bundle, as hexadecimal digits; empty where it is missing."""
        ...

    def event_lines(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every line of the event files of nodes and keepers: path of the file, and the line as a JSON object."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that a checker or report may read. ``directory`` is for display only.

    ``extras`` holds the small JSON documents of the bundle by file name: ``plan.json``, ``fingerprint.json``, ``bundle.json``.
    ``code``: SHA-256 of the code that judges; ``run.begin`` states that of the code that drove the run.
    """

    directory: str
    trial: Trial
    history: History
    files: NodeFiles
    twin: Twin | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    code: str = ""

    @property
    def format(self) -> int:
        """The format of the bundle; 1 where nothing states one. The history of a later format states that as well."""
        about = self.extras.get("bundle.json")
        number = about.get("format") if isinstance(about, Mapping) else None
        stated = number if isinstance(number, int) else 1
        return 2 if stated == 1 and self._was_written_as_2 else stated

    @property
    def _was_written_as_2(self) -> bool:
        """Since format 2 run.begin states the format, and every node confirms run.begin when its ranks start."""
        begin = self.history.first(RunBegin)
        confirmed = any(event.data.begin is not None for event in self.history.of(GangStartDone))
        return confirmed or (begin is not None and begin.data.format is not None)
