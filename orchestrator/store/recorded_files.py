"""The files of nodes in a bundle, read lazily: steps, chunks, logs, events, and what the watcher recorded."""

from __future__ import annotations

import itertools
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from ..core.documents import decoder
from ..model import watch as watch_lines
from ..model.event import Event, History, Source
from ..model.events import NodeApplyDone, RunBegin
from ..model.events.field_types import RANKS, STEPS, Seconds, Step, Whole
from ..model.frozen import dataclass
from ..model.run import ChunkRecord, StepRecord
from ..system import plain_files
from ..views import step_ranges
from . import paths

#: step, op, index, peer, chunk, bytes, start, end
CHUNK_FORMAT = "<IHHHHQdd"
CHUNK_FIELDS = ("step", "op", "index", "peer", "chunk", "size", "start", "end")
_GANG_FILE = re.compile(
    r"nodes/(?P<node>[^/]+)/i(?P<ordinal>\d{1,9})-e(?P<epoch>\d{1,7})/(?P<kind>steps-r|chunks-r|rank-|watch-r)"
    r"(?P<rank>\d{1,9})(?:-(?P<pid>\d{1,9}))?\.\w+"
)
#: The record of a process, wherever it lies.
_SUM = re.compile(rb',"sum":"([0-9a-f]{8})"}$')
_WATCH_FILE = re.compile(r"(?:.*/)?watch-r(?P<rank>\d{1,9})-(?P<pid>\d{1,9})\.jsonl")
#: Of the same record: step, bytes, start, end.
_FIGURES: Any = {
    "names": ("step", "size", "start", "end"),
    "formats": ("<u4", "<u8", "<f8", "<f8"),
    "offsets": (0, 12, 20, 28),
}
#: Bytes at the beginning and at the end of a log that are read.
_LOG = 1024 * 1024


#: 16 hex digits.
SampleDigest: TypeAlias = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


class _StepLine(msgspec.Struct, gc=False):
    """One line of ``steps-r<rank>.jsonl``."""

    step: Step
    loss: str | float | None
    start: Seconds
    end: Seconds
    digest: str | None = None
    samples: SampleDigest | None = None
    batch: SampleDigest | None = None
    count: Whole | None = None
    gaps: tuple[tuple[Seconds, Seconds, Seconds], ...] | None = None


_STEP_LINE = msgspec.json.Decoder(_StepLine)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GangFile:
    path: str
    node: str
    ordinal: int
    epoch: int
    kind: str
    rank: int
    pid: int = 0


class BundleFiles:
    """``NodeFiles`` of a directory. A last line or record that was cut off by a kill is left out."""

    def __init__(self, root: Path, incarnations: Mapping[tuple[str, int], str], world: int = RANKS) -> None:
        """``world``: how many ranks the trial has."""
        self._root = root
        self._incarnations = incarnations
        self._world = world
        self._checked: set[str] = set()

    def paths(self) -> tuple[str, ...]:
        """The relative paths of all files of the bundle, as they were at the first call: all checkers read them."""
        return self._paths

    def steps(self) -> Iterator[StepRecord]:
        """Raises TornBundleError for a line that is no step record. Cached, because all checkers and reports read them."""
        return iter(self._step_records)

    def chunks(self) -> Iterator[ChunkRecord]:
        for file in self._of("chunks-r"):
            yield from self._chunks(file)

    def chunk_blocks(self) -> Iterator[tuple[str, int, int, bytes]]:
        """One file at a time, for readers of arrays: (node, rank, epoch, records); a torn file ends within a record."""
        for file in self._of("chunks-r"):
            yield file.node, file.rank, file.epoch, self._chunk_file(file)

    def watch(self) -> Iterator[watch_lines.WatchFile]:
        """The records of the watcher, a process each. Raises TornBundleError for a line that the watcher cannot have written."""
        return iter(self._watch_files)

    def log(self, node: str, rank: int, epoch: int) -> str:
        matching = (file for file in self._of("rank-") if (file.node, file.rank, file.epoch) == (node, rank, epoch))
        return b"".join(paths.ends(self._root, file.path, _LOG) for file in matching).decode(errors="replace")

    def event_sources(self) -> Iterator[tuple[str, Source]]:
        """Raises TornBundleError for a line that is not an event."""
        for path in sorted(self._root.glob("nodes/*/*.jsonl")):
            name = str(path.relative_to(self._root))
            for number, line in enumerate(paths.whole_lines(self._root, name), start=1):
                yield name, _event(line, path, number).source

    def read(self, path: str) -> bytes:
        """Raises TornBundleError for a file that is too large."""
        return paths.data(self._root, path) if paths.inside(self._root, path).is_file() else b""

    def sha256(self, path: str) -> str:
        file = paths.inside(self._root, path)
        return plain_files.sha256(file) if file.is_file() else ""

    def event_lines(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Raises TornBundleError for a line that is no JSON object. A last line that was cut off by a kill is left out."""
        for path in sorted((*self._root.glob("nodes/*/*.jsonl"), *self._root.glob("keepers/**/*.jsonl"))):
            name = str(path.relative_to(self._root))
            for number, line in enumerate(paths.whole_lines(self._root, name), start=1):
                yield name, _line(line, path, number)

    @cached_property
    def _paths(self) -> tuple[str, ...]:
        return tuple(paths.walk(self._root))

    @cached_property
    def _files(self) -> tuple[_GangFile, ...]:
        root = self._root / "nodes"
        listed = (f"nodes/{path}" for path in paths.walk(root)) if root.is_dir() else iter(())
        files = [file for file in map(_gang_file, listed) if file]
        for file in files:
            if file.rank >= self._world:
                raise paths.TornBundleError(f"{self._root / file.path}: rank {file.rank} of a world of {self._world}")
        return tuple(sorted(files, key=lambda file: (file.node, file.ordinal, file.epoch, file.rank)))

    @cached_property
    def _step_records(self) -> tuple[StepRecord, ...]:
        files, limit = list(self._of("steps-r")), paths.lines_limit()
        size = sum(paths.size(self._root, file.path, limit) for file in files)
        if size > limit:
            raise paths.TornBundleError(
                f"{self._root}: {size:,} bytes of steps, more than the {limit:,} that are read", hint=paths.more(limit)
            )
        return tuple(record for file in files for record in self._steps(file))

    @cached_property
    def _watch_files(self) -> tuple[watch_lines.WatchFile, ...]:
        return tuple(
            watch_lines.WatchFile(
                path=file.path, node=file.node, attempt=file.epoch, rank=file.rank, pid=file.pid, lines=lines
            )
            for file in self._of("watch-r")
            for lines in _lives(_watch_lines(self._root, file.path))
        )  # fmt: skip

    def _of(self, kind: str) -> Iterator[_GangFile]:
        return (file for file in self._files if file.kind == kind)

    def _steps(self, file: _GangFile) -> Iterator[StepRecord]:
        incarnation = self._incarnations.get((file.node, file.ordinal), "")
        content = paths.data(self._root, file.path, paths.lines_limit())
        for line in _step_lines(content[: content.rfind(b"\n") + 1], self._root / file.path):
            yield StepRecord(
                epoch=file.epoch,
                node=file.node,
                rank=file.rank,
                step=line.step,
                loss=str(line.loss),
                start=line.start,
                end=line.end,
                digest=line.digest,
                incarnation=incarnation,
                samples=line.samples,
                batch=line.batch,
                count=line.count,
                gaps=line.gaps,
            )

    def _chunks(self, file: _GangFile) -> Iterator[ChunkRecord]:
        record = struct.Struct(CHUNK_FORMAT)
        content = self._chunk_file(file)
        for values in record.iter_unpack(content[: len(content) - len(content) % record.size]):
            fields = dict(zip(CHUNK_FIELDS, values, strict=True))
            yield ChunkRecord(epoch=file.epoch, rank=file.rank, **fields)

    def _chunk_file(self, file: _GangFile) -> bytes:
        """Raises TornBundleError for a record with values that no rank can have written."""
        content = paths.data(self._root, file.path, paths.FILE)
        if file.path not in self._checked:
            _check_chunks(content, self._root / file.path)
            self._checked.add(file.path)
        return content


class WatchDirectory(BundleFiles):
    """The records of the watcher below any directory, without a bundle: node and attempt are those that each states."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, {})

    def incomplete(self) -> tuple[str, ...]:
        """Return what is missing of the records, or was changed.

        A kill leaves whole lines, so a last line that is cut off shows lost data, and a wrong sum a line that is not as it was written.
        """
        contents = ((self._root / name, paths.data(self._root, name, paths.lines_limit())) for name in self._names())
        problems = (
            _cut_off(path, content) if content[-1:] != b"\n" else _changed(path, content) for path, content in contents
        )
        return tuple(filter(None, problems))

    def _names(self) -> tuple[str, ...]:
        names = sorted(str(path.relative_to(self._root)) for path in self._root.rglob("watch-r*.jsonl"))
        return tuple(name for name in names if _WATCH_FILE.fullmatch(name))

    @cached_property
    def _watch_files(self) -> tuple[watch_lines.WatchFile, ...]:
        return tuple(
            _watched(name, lines) for name in self._names() for lines in _lives(_watch_lines(self._root, name))
        )


def _cut_off(path: Path, content: bytes) -> str:
    if not content:
        return f"{path}: the record is empty"
    number = content.count(b"\n") + 1
    return f"{path}:{number}: the record is cut off; this line and those after it are left out"


def _changed(path: Path, content: bytes) -> str:
    """The first line whose sum does not follow from it and the lines before it; records without sums are taken as they are."""
    total = 0
    for number, line in enumerate(content.splitlines(), start=1):
        match = _SUM.search(line)
        text = line[: match.start()] + b"}" if match else line
        total = zlib.crc32(text, 0 if text.startswith(b'{"k":"begin"') else total)
        if match and f"{total:08x}".encode() != match[1]:
            return f"{path}:{number}: this line was changed, or a line before it is missing"
    return ""


def _watched(path: str, lines: tuple[watch_lines.Line, ...]) -> watch_lines.WatchFile:
    match = _WATCH_FILE.fullmatch(path)
    begin = next((line for line in lines if isinstance(line, watch_lines.Begin)), None)
    return watch_lines.WatchFile(
        path=path, node=(begin.node or begin.host) if begin else "", attempt=begin.attempt if begin else 0,
        rank=int(match["rank"]) if match else 0, pid=int(match["pid"]) if match else 0, lines=lines,
    )  # fmt: skip


def _lives(lines: tuple[watch_lines.Line, ...]) -> Iterator[tuple[watch_lines.Line, ...]]:
    """The lines of each program that appended to one file: ``exec`` keeps the pid, and a container that restarts has it again."""
    starts = [index for index, line in enumerate(lines) if isinstance(line, watch_lines.Begin) and index]
    for first, last in itertools.pairwise([0, *starts, len(lines)]):
        yield lines[first:last]


def _watch_lines(root: Path, path: str) -> tuple[watch_lines.Line, ...]:
    """The lines of known kinds; a last line that was cut off by a kill is left out. Raises TornBundleError."""
    numbered = enumerate(paths.whole_lines(root, path), start=1)
    lines = tuple(line for number, text in numbered if (line := _watch_line(text, root / path, number)) is not None)
    try:
        for life in _lives(lines):
            step_ranges.check(life)
    except step_ranges.WrongRange as error:
        raise paths.TornBundleError(f"{root / path}: not a record of the watcher ({error})") from None
    return lines


def _watch_line(text: bytes, path: Path, number: int) -> watch_lines.Line | None:
    """Raises TornBundleError; None for a line of a kind that this version does not know."""
    try:
        value = decoder.parse(text)
        kind = (
            watch_lines.KINDS.get(value["k"]) if isinstance(value, dict) and isinstance(value.get("k"), str) else None
        )
        line: watch_lines.Line | None = decoder.convert(kind, value) if kind else None
    except decoder.DocumentError as error:
        raise paths.TornBundleError(f"{path}:{number}: not a record of the watcher ({error})") from None
    steps, world = (getattr(line, name, None) or 0 for name in ("n", "world"))
    stated = getattr(line, "step", None) or getattr(line, "last", None) or 0
    if not (0 <= steps <= STEPS and 0 <= stated <= STEPS and 0 <= world <= RANKS):
        raise paths.TornBundleError(f"{path}:{number}: at most {STEPS:,} steps and {RANKS:,} ranks are read")
    if isinstance(line, watch_lines.Begin) and line.format not in watch_lines.FORMATS:
        raise paths.TornBundleError(
            f"{path}: format {line.format} of the watcher's record; this ccbed reads 1 to {max(watch_lines.FORMATS)}"
        )
    return line


def incarnations(history: History) -> dict[tuple[str, int], str]:
    """(node, ordinal) -> incarnation, of the nodes at the start of the run and of nodes started later."""
    result: dict[tuple[str, int], str] = {}
    for event in history.of(RunBegin, NodeApplyDone):
        if isinstance(event.data, RunBegin):
            for name, node in (event.data.nodes or {}).items():
                result[name, node.ordinal or 0] = node.incarnation or ""
        elif event.node:
            result[event.node, event.data.ordinal] = event.data.incarnation
    return result


def identity(line: bytes) -> tuple[Any, ...] | None:
    """The identity of the event in a line; None for a line that is not an event."""
    try:
        return decoder.event(line).source.identity
    except decoder.DocumentError:
        return None


def _check_chunks(content: bytes, path: Path) -> None:
    """Raises TornBundleError for a record with values that no rank can have written, such as NaN."""
    if not content:  # as of each rank of a script: numpy takes 0.1 s to import
        return
    import numpy as np

    figures = np.dtype(_FIGURES)
    table = np.frombuffer(content, dtype=figures, count=len(content) // figures.itemsize)
    is_possible = (table["step"] <= STEPS) & (table["size"] <= decoder.LARGEST)
    for moment in ("start", "end"):
        is_possible &= np.abs(table[moment]) <= decoder.SECONDS
    if not is_possible.all():
        number = int(is_possible.argmin())
        step, size, start, end = table[number].item()
        raise paths.TornBundleError(
            f"{path}: record {number + 1}: no transfer (step {step}, {size} bytes, {start} to {end} s)"
        )


def _line(line: bytes, path: Path, number: int) -> Mapping[str, Any]:
    """The JSON object of an event. Raises TornBundleError."""
    try:
        value: Mapping[str, Any] = decoder.parse(line)
        decoder.as_event(value)
        return value
    except decoder.DocumentError as error:
        raise paths.TornBundleError(f"{path}:{number}: not an event ({error})") from None


def _event(line: bytes, path: Path, number: int) -> Event:
    """Raises TornBundleError."""
    try:
        return decoder.event(line)
    except decoder.DocumentError as error:
        raise paths.TornBundleError(f"{path}:{number}: not an event ({error})") from None


def _step_lines(content: bytes, path: Path) -> list[_StepLine]:
    """Raises TornBundleError with the number of the first line that is no step."""
    try:
        return _STEP_LINE.decode_lines(content)
    except (ValueError, RecursionError):
        for number, line in enumerate(content.splitlines(), start=1):
            try:
                _STEP_LINE.decode(line)
            except (ValueError, RecursionError) as error:
                raise paths.TornBundleError(f"{path}:{number}: not a step ({error})") from None
        raise


def _gang_file(path: str) -> _GangFile | None:
    match = _GANG_FILE.fullmatch(path)
    if not match:
        return None
    return _GangFile(
        path=path,
        node=match["node"],
        ordinal=int(match["ordinal"]),
        epoch=int(match["epoch"]),
        kind=match["kind"],
        rank=int(match["rank"]),
        pid=int(match["pid"] or 0),
    )
