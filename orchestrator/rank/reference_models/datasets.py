"""Reads images and labels from IDX files (the format of MNIST), plain or gzipped; by default the shipped digits."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.frozen import dataclass

if TYPE_CHECKING:
    import torch

SPLITS = {"train": "train", "test": "t10k"}
#: IDX type byte of unsigned bytes, the only type of these data sets.
UBYTE = 8


class DataError(Exception):
    """A data file is missing or damaged. The message begins with its path."""

    kind = "data"


@dataclass(frozen=True, slots=True)
class Split:
    """``images``: uint8, n x 784, 0..255 (see scaled). ``labels``: int64, n, 0..9."""

    images: torch.Tensor
    labels: torch.Tensor


def directory(data: str | None) -> Path:
    """The directory of the files: ``data``, else the shipped digits."""
    return Path(data) if data else Path(__file__).parents[2] / "data" / "digits"


def load(folder: Path, split: str) -> Split:
    """One split (``train`` or ``test``) of a data set. Raises DataError."""
    import torch

    shape, pixels = read(folder, f"{SPLITS[split]}-images-idx3-ubyte", dimensions=3)
    (count,), classes = read(folder, f"{SPLITS[split]}-labels-idx1-ubyte", dimensions=1)
    if count != shape[0]:
        raise DataError(f"{folder}: {shape[0]} {split} images but {count} labels")
    if max(classes, default=0) > 9:
        raise DataError(f"{folder}: {split} labels: must be 0 to 9 (got {max(classes)})")
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(count, -1)
    labels = torch.frombuffer(bytearray(classes), dtype=torch.uint8)
    return Split(images, labels.to(torch.int64))


def scaled(images: torch.Tensor) -> torch.Tensor:
    """Pixels as float32 of 0..1."""
    return images.float().div_(255.0)


def count(folder: Path) -> int:
    """The number of training images, from the header alone. Raises DataError."""
    path = _find(folder, f"{SPLITS['train']}-labels-idx1-ubyte")
    return _header(path, _content(path, 8), dimensions=1)[0]


def read(folder: Path, name: str, dimensions: int) -> tuple[tuple[int, ...], bytes]:
    """Shape and content of one IDX file of unsigned bytes. Raises DataError."""
    path = _find(folder, name)
    content = _content(path)
    shape = _header(path, content, dimensions)
    body = content[4 + 4 * dimensions :]
    if len(body) != math.prod(shape):
        expected = " x ".join(str(size) for size in shape)
        raise DataError(f"{path}: damaged: {len(body)} bytes of data, but its header says {expected}")
    if min(shape) == 0:
        raise DataError(f"{path}: is empty")
    return shape, body


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise DataError(f"{folder}: has neither {name} nor {name}.gz; put the four IDX files of the data set into it")


def _content(path: Path, size: int = -1) -> bytes:
    """The first ``size`` bytes (all: -1), decompressed."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as source:
            return source.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _header(path: Path, content: bytes, dimensions: int) -> tuple[int, ...]:
    size = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, UBYTE, dimensions)):
        raise DataError(
            f"{path}: not an IDX file of unsigned bytes with {dimensions} dimension(s) (starts {content[:4]!r})"
        )
    if len(content) < size:
        raise DataError(f"{path}: damaged: ends within its header")
    return struct.unpack(f">{dimensions}I", content[4:size])
