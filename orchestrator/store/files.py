"""What the nodes left in a bundle, read lazily: steps, chunks, logs."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..model import codec
from ..model.event import History, Source
from ..model.run import ChunkRecord, StepRecord
from . import paths, seal

#: step, op, index, peer, chunk, bytes, start, end
CHUNK_FORMAT = "<IHHHHQdd"
CHUNK_FIELDS = ("step", "op", "index", "peer", "chunk", "size", "start", "end")
_GANG_FILE = re.compile(
    r"nodes/(?P<node>[^/]+)/i(?P<ordinal>\d+)-e(?P<epoch>\d+)/(?P<kind>steps-r|chunks-r|rank-)(?P<rank>\d+)\.\w+"
)
_BLOCK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class _GangFile:
    path: str
    node: str
    ordinal: int
    epoch: int
    kind: str
    rank: int


class BundleFiles:
    """``NodeFiles`` of a directory. A last line or record that was cut off by a kill is left out."""

    def __init__(self, root: Path, incarnations: Mapping[tuple[str, int], str]) -> None:
        self._root = root
        self._incarnations = incarnations

    def paths(self) -> tuple[str, ...]:
        """The relative paths of all files of the bundle."""
        return tuple(paths.walk(self._root))

    def steps(self) -> Iterator[StepRecord]:
        """Raises TornBundleError for a line that is no step record. Read once: every checker and report asks for them."""
        return iter(self._step_records)

    def chunks(self) -> Iterator[ChunkRecord]:
        for file in self._of("chunks-r"):
            yield from self._chunks(file)

    def chunk_blocks(self) -> Iterator[tuple[str, int, int, bytes]]:
        """A file at a time, for readers of arrays: (node, rank, epoch, records); a torn one ends inside of a record."""
        for file in self._of("chunks-r"):
            yield file.node, file.rank, file.epoch, paths.inside(self._root, file.path).read_bytes()

    def log(self, node: str, rank: int, epoch: int) -> str:
        """All output of a rank in an epoch; empty if there is none."""
        found = (file for file in self._of("rank-") if (file.node, file.rank, file.epoch) == (node, rank, epoch))
        return "".join(paths.text(self._root, file.path) for file in found)

    def said(self) -> Iterator[tuple[str, Source]]:
        """Raises TornBundleError for a line that is no event."""
        for path in sorted(self._root.glob("nodes/*/*.jsonl")):
            name = str(path.relative_to(self._root))
            for number, line in enumerate(paths.data(self._root, name).splitlines(keepends=True), start=1):
                if not line.endswith(b"\n"):
                    break
                try:
                    yield name, codec.build(Source, json.loads(line)["source"])
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise paths.TornBundleError(f"{path}:{number}: not an event ({error})") from None

    def read(self, path: str) -> bytes:
        """Raises TornBundleError for a file that is too large."""
        return paths.data(self._root, path) if paths.inside(self._root, path).is_file() else b""

    def sha256(self, path: str) -> str:
        file = paths.inside(self._root, path)
        return seal.digest(file) if file.is_file() else ""

    def event_lines(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Raises TornBundleError for a line that is no JSON object. A last line that was cut off by a kill is left out."""
        for path in sorted((*self._root.glob("nodes/*/*.jsonl"), *self._root.glob("keepers/*/*.jsonl"))):
            name = str(path.relative_to(self._root))
            content = paths.data(self._root, name)
            for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
                yield name, _object(line, path, number)

    @cached_property
    def _files(self) -> tuple[_GangFile, ...]:
        root = self._root / "nodes"
        listed = (f"nodes/{path}" for path in paths.walk(root)) if root.is_dir() else iter(())
        found = (_gang_file(path) for path in listed)
        return tuple(
            sorted((file for file in found if file), key=lambda file: (file.node, file.ordinal, file.epoch, file.rank))
        )

    @cached_property
    def _step_records(self) -> tuple[StepRecord, ...]:
        return tuple(record for file in self._of("steps-r") for record in self._steps(file))

    def _of(self, kind: str) -> Iterator[_GangFile]:
        return (file for file in self._files if file.kind == kind)

    def _steps(self, file: _GangFile) -> Iterator[StepRecord]:
        incarnation = self._incarnations.get((file.node, file.ordinal), "")
        content = paths.inside(self._root, file.path).read_bytes()
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        for number, value in enumerate(_values(lines), start=1):
            try:
                yield _step(json.loads(value) if isinstance(value, bytes) else value, file, incarnation)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise paths.TornBundleError(f"{self._root / file.path}:{number}: not a step ({error})") from None

    def _chunks(self, file: _GangFile) -> Iterator[ChunkRecord]:
        record = struct.Struct(CHUNK_FORMAT)
        with paths.inside(self._root, file.path).open("rb") as source:
            while block := source.read(record.size * _BLOCK):
                whole = len(block) - len(block) % record.size
                for values in record.iter_unpack(block[:whole]):
                    given = dict(zip(CHUNK_FIELDS, values, strict=True))
                    yield ChunkRecord(epoch=file.epoch, rank=file.rank, **given)


def incarnations(history: History) -> dict[tuple[str, int], str]:
    """(node, ordinal) -> incarnation, from the nodes found at the start and those started later."""
    found: dict[tuple[str, int], str] = {}
    for event in history.events:
        if event.f == "run.begin":
            for name, node in event.value.get("nodes", {}).items():
                found[name, int(node.get("ordinal", 0))] = str(node.get("incarnation", ""))
        elif event.f == "node.apply" and event.type == "ok" and event.node:
            found[event.node, int(event.value.get("ordinal", 0))] = str(event.value.get("incarnation", ""))
    return found


def identity(line: bytes) -> tuple[Any, ...] | None:
    """Of the event in a line; None for a line that is no event."""
    try:
        return codec.build(Source, json.loads(line)["source"]).identity
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _object(line: bytes, path: Path, number: int) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise paths.TornBundleError(f"{path}:{number}: not an event ({error})") from None
    if not isinstance(value, dict):
        raise paths.TornBundleError(f"{path}:{number}: not an event (no JSON object)")
    return value


def _values(lines: list[bytes]) -> list[Any]:
    """The lines read as one document, which is quick; if that fails, the lines, to be read one by one."""
    try:
        values: list[Any] = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        return list(lines)
    return values if len(values) == len(lines) else list(lines)


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
    )


def _step(line: Any, file: _GangFile, incarnation: str) -> StepRecord:
    return StepRecord(
        epoch=file.epoch,
        node=file.node,
        rank=file.rank,
        step=int(line["step"]),
        loss=str(line["loss"]),
        start=float(line["start"]),
        end=float(line["end"]),
        digest=line.get("digest"),
        incarnation=incarnation,
    )
