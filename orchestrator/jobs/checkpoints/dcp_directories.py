"""Directories of torch.distributed.checkpoint: ``.metadata`` names every piece, the ``.distcp`` files hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...model.frozen import dataclass
from . import part_files, pickled, saved_files

METADATA = ".metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of an entry: a chunk of a tensor with its shape, or bytes."""

    name: str
    file: str
    start: int
    length: int
    shape: tuple[int, ...] | None
    is_plain: bool

    def __str__(self) -> str:
        return f"{self.name} in {self.file}"


def pieces(directory: Path) -> list[Piece]:
    """Return every piece that ``.metadata`` names.

    Raises:
        pickled.DamagedError: it is damaged, or a chunk of a tensor has no place in any file.
    """
    with pickled.reading(), (directory / METADATA).open("rb") as file:
        if (directory / METADATA).stat().st_size > pickled.MOST_BYTES:
            raise pickled.UnreadError(f"{METADATA} has more than {pickled.MOST_BYTES:,} bytes")
        document = pickled.read(file)
    entries, places = _attribute(document, "state_dict_metadata"), _attribute(document, "storage_data")
    if not isinstance(entries, dict) or not isinstance(places, dict):
        raise pickled.DamagedError("it is no metadata of torch.distributed.checkpoint")
    shapes = dict(_chunks(entries))
    placed, held = [], set()
    for index, place in places.items():
        key = _attribute(index, "fqn"), _numbers(_attribute(index, "offset"))
        file, start, length = (_attribute(place, name) for name in ("relative_path", "offset", "length"))
        if (
            not isinstance(key[0], str)
            or not isinstance(file, str)
            or not isinstance(start, int)
            or not isinstance(length, int)
            or min(start, length) < 0
            or not {"", ".."}.isdisjoint(file.split("/"))
        ):
            raise pickled.DamagedError("the place of a piece is damaged")
        plain = not _attribute(place, "transform_descriptors")
        placed.append(Piece(name=key[0], file=file, start=start, length=length, shape=shapes.get(key), is_plain=plain))
        held.add(key)
    if missing := [name for name, offset in shapes if (name, offset) not in held]:
        raise pickled.DamagedError(f"it names no place for a piece of {missing[0]}" + _and_more(missing))
    return placed


def problems(directory: Path, known: list[Piece], *, whole: bool) -> Iterator[str]:
    """Say what of the pieces is missing or damaged, at most one line for a file."""
    by_file: dict[str, list[Piece]] = {}
    for piece in known:
        by_file.setdefault(piece.file, []).append(piece)
    for name in sorted(by_file):
        problem = _file_problem(directory / name, by_file[name], whole)
        if problem:
            yield f"{name[:255]} {problem}"


def steps(directory: Path, known: list[Piece]) -> Mapping[str, set[float]]:
    """Return the numbers of updates that the optimizer's states have, by file: ``….step`` of each parameter."""
    counts: dict[str, set[float]] = {}
    for piece in known:
        if piece.name.endswith(".step") and piece.is_plain and piece.length < 1 << 16:
            part = saved_files.TorchFile(directory / piece.file, start=piece.start, length=piece.length)
            number = part.scalar(part.value)
            if number is not None:
                counts.setdefault(piece.file, set()).add(number)
    return counts


def _file_problem(path: Path, pieces_of_file: list[Piece], whole: bool) -> str:
    if not part_files.is_there(path) or not path.is_file():
        return f"is missing: it holds {len(pieces_of_file)} pieces, {pieces_of_file[0].name} among them"
    size = path.stat().st_size
    for piece in sorted(pieces_of_file, key=lambda piece: piece.start):
        if piece.start + piece.length > size:
            return f"is cut: {piece.name} ends at byte {piece.start + piece.length:,}, the file at {size:,}"
        if not piece.is_plain or _is_safetensors(path, piece.start):
            continue
        try:
            part = saved_files.TorchFile(path, start=piece.start, length=piece.length, whole=whole)
        except pickled.DamagedError as error:
            return f"is damaged at {piece.name}: {error}"
        tensor = saved_files.tensor_of(part.value)
        if piece.shape is not None and tensor and tensor.shape != piece.shape:
            return f"is of another save: {piece.name} has the shape {tensor.shape}, .metadata says {piece.shape}"
    return ""


def _is_safetensors(path: Path, start: int) -> bool:
    """A writer with ``SerializationFormat.SAFETENSORS`` puts each tensor behind a header, without a checksum."""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(9)[3:] == b"\0\0\0\0\0{"


def _chunks(entries: Mapping[Any, Any]) -> Iterator[tuple[tuple[str, tuple[int, ...] | None], tuple[int, ...] | None]]:
    """Give each piece that must be there, as name and offset, with its shape; bytes have neither offset nor shape."""
    for name, entry in entries.items():
        chunks = _attribute(entry, "chunks")
        if chunks is None:
            yield (name, None), None
        for chunk in chunks or ():
            yield (name, _numbers(_attribute(chunk, "offsets"))), _numbers(_attribute(chunk, "sizes"))


def _attribute(value: Any, name: str) -> Any:
    return value.attribute(name) if isinstance(value, pickled.Object) else None


def _numbers(value: Any) -> tuple[int, ...] | None:
    is_shape = isinstance(value, list | tuple) and all(isinstance(size, int) for size in value)
    return tuple(value) if is_shape else None


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
