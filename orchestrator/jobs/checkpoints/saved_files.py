"""Files of ``torch.save``: whether every record is there and undamaged, and the values without their tensors' bytes.

Both forms: a zip archive (since PyTorch 1.6), and the pickles one after another before it.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from ...model.frozen import dataclass
from . import pickled

#: What a file system writes at once.
_PAGE = 4096
#: Bytes of an element, by the class of the storage in the pickle.
SIZES: Mapping[str, int] = {
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4, "ShortStorage": 2,
    "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "ComplexDoubleStorage": 16, "ComplexFloatStorage": 8, "UntypedStorage": 1,
    "QInt8Storage": 1, "QUInt8Storage": 1, "QInt32Storage": 4, "QUInt4x2Storage": 1, "QUInt2x4Storage": 1,
}  # fmt: skip
_SCALARS: Mapping[str, str] = {
    "DoubleStorage": "<d", "FloatStorage": "<f", "LongStorage": "<q", "IntStorage": "<i", "ShortStorage": "<h",
}  # fmt: skip
_ZIP = b"PK\x03\x04"
#: What a file of the older form begins with: the pickle of torch's magic number.
_MAGIC = 0x1950A86A20F9469CFC6C
_CHUNK = 1 << 20
#: What the archive's reader raises where bytes are damaged.
_ERRORS = (zipfile.BadZipFile, EOFError, OSError, zlib.error, RuntimeError, ValueError, struct.error)
#: Numbers from here on, and those that are none, count no steps.
_MOST_NUMBER = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The elements of tensors: ``key`` names the record that holds them."""

    kind: str
    key: str
    elements: int

    @property
    def size(self) -> int | None:
        """Bytes; None where the class is not known."""
        width = SIZES.get(self.kind)
        return None if width is None else width * self.elements


class TorchFile:
    """One file, or the part ``[start, start + length)`` of one, that ``torch.save`` wrote.

    Raises:
        pickled.DamagedError: it is cut, or a record is damaged.
        pickled.UnreadError: another program wrote it, or it demands more than is read.
    """

    def __init__(self, path: Path, *, start: int = 0, length: int | None = None, whole: bool = True) -> None:
        """``whole``: read every byte, and compare the checksums; else only what the values need."""
        self.path = path
        #: Of the checksums of all tensors, in this process; empty where the writer computed none.
        self.digest = ""
        #: Key -> bytes of the storages that hold single numbers.
        self.small: dict[str, bytes] = {}
        length = path.stat().st_size - start if length is None else length
        with pickled.reading(), path.open("rb") as file:
            part = io.BufferedReader(raw := _Part(file, start, length))
            if part.peek(4)[:4] == _ZIP:
                self._read_zip(part, whole)
            else:
                raw.most = pickled.MOST_BYTES
                self._read_legacy(part, length)

    @cached_property
    def storages(self) -> Mapping[str, Storage]:
        held = (storage_of(node) for node in pickled.walk(self.value) if isinstance(node, pickled.Reference))
        return {storage.key: storage for storage in held if storage}

    def scalar(self, value: Any) -> float | None:
        """Return the number that a value is, or that a tensor of one element holds; None where it is neither."""
        if isinstance(value, bool):
            return None
        if isinstance(value, int | float):
            return value if abs(value) < _MOST_NUMBER else None
        tensor = tensor_of(value)
        form = _SCALARS.get(tensor.storage.kind) if tensor and tensor.elements == 1 else None
        if tensor is None or form is None:
            return None
        content = self.small.get(tensor.storage.key, b"")
        at = tensor.offset * struct.calcsize(form)
        if not 0 <= at <= len(content) - struct.calcsize(form):
            return None
        number: float = struct.unpack_from(form, content, at)[0]
        return number if abs(number) < _MOST_NUMBER else None

    def _read_zip(self, part: IO[bytes], whole: bool) -> None:
        try:
            archive = zipfile.ZipFile(part)
        except zipfile.BadZipFile:
            raise pickled.DamagedError("it is cut: the directory at the end of the archive is missing") from None
        except (ValueError, OverflowError, NotImplementedError, struct.error) as error:
            raise pickled.DamagedError(f"its archive is damaged: {error}") from None
        records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
        main = records.get("data.pkl")
        if main is None and not any(re.fullmatch(r"data/\d+", name) for name in records):
            raise pickled.UnreadError("it is a zip archive without data.pkl: another program wrote it")
        if main is None:
            raise pickled.DamagedError("its record data.pkl is missing")
        if any(info.compress_type for name, info in records.items() if name.startswith("data")):
            raise pickled.UnreadError("a record of it is compressed, which torch.save never does")
        if main.file_size > pickled.MOST_BYTES:
            raise pickled.UnreadError(f"data.pkl has {main.file_size:,} bytes; {pickled.MOST_BYTES:,} are read")
        with _damage("data.pkl"):
            content = _record(archive, main)
        self.value = pickled.read_bytes(content)
        for name, info in records.items():
            if whole and not name.startswith("data") and not info.compress_type:
                with _damage(name):
                    _check(archive, info)
        sums = {name: info.CRC for name, info in sorted(records.items()) if name.startswith("data/")}
        self.digest = str(hash(tuple(sums.items()))) if all(sums.values()) else ""
        self._read_storages(archive, records, whole)

    def _read_storages(self, archive: zipfile.ZipFile, records: Mapping[str, zipfile.ZipInfo], whole: bool) -> None:
        for key, storage in self.storages.items():
            info = records.get(f"data/{key}")
            if info is None:
                raise pickled.DamagedError(f"the bytes of storage {key} are missing: data/{key}")
            if storage.size is not None and info.file_size != storage.size:
                raise pickled.DamagedError(
                    f"data/{key} has {info.file_size:,} bytes, its tensors need {storage.size:,}"
                )
            with _damage(f"data/{key}"):
                if info.file_size <= 16:
                    self.small[key] = _record(archive, info)
                elif whole:
                    _check(archive, info)

    def _read_legacy(self, part: IO[bytes], length: int) -> None:
        if pickled.read(part) != _MAGIC:
            raise pickled.DamagedError("it does not begin as a file of torch.save does")
        for _protocol_and_system in range(2):
            pickled.read(part)
        self.value = pickled.read(part)
        keys = pickled.read(part)
        places = []
        for key in keys if isinstance(keys, list) else ():
            storage = self.storages.get(key) if isinstance(key, str) else None
            head = part.read(8)
            if storage and storage.size is None:
                raise pickled.UnreadError(f"its storages of the class {storage.kind} are not known")
            if storage is None or storage.size is None or storage.size < 0 or len(head) < 8:
                raise pickled.DamagedError(f"it is cut: the bytes of storage {key} are missing")
            place = part.tell()
            if place + storage.size > length:
                raise pickled.DamagedError(
                    f"it is cut: storage {key} ends at byte {place + storage.size:,} of {length:,}"
                )
            self.small |= {key: part.read(storage.size)} if storage.size <= 16 else {}
            part.seek(place + storage.size)
            places.append((place, place + storage.size))
        check_last_pages(self.path, places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor as its pickle describes it. ``offset``: elements before its first one."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def storage_of(reference: Any) -> Storage | None:
    """Return the storage of a persistent id ("storage", class, key, place, elements, …)."""
    match getattr(reference, "value", None):
        case ("storage", pickled.Object(name=name), str() as key, _, int() as elements, *_):
            return Storage(kind=name.rpartition(".")[2], key=key, elements=elements)
        case _:
            return None


def tensor_of(value: Any) -> Tensor | None:
    """Return the tensor, or parameter, that a value of a pickle describes; None where it is none."""
    while isinstance(value, pickled.Object) and value.called:
        match value.name, value.args:
            case "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state", (data, *_):
                value = data
            case "torch._tensor._rebuild_from_type_v2", (pickled.Object(name=name), _, args, *_) if isinstance(
                args, tuple
            ):
                value = pickled.Object(name, args, called=True)
            case "torch._utils._rebuild_tensor_v2", (reference, int() as offset, tuple() as shape, *_) if all(
                isinstance(size, int) for size in shape
            ):
                storage = storage_of(reference)
                return Tensor(storage=storage, offset=offset, shape=shape) if storage else None
            case _:
                return None
    return None


@contextmanager
def _damage(record: str) -> Iterator[None]:
    """Say of which record an error of the archive is."""
    try:
        yield
    except _ERRORS as error:
        reason = "its bytes do not match its checksum" if "CRC" in str(error) else (str(error) or "it is cut")
        raise pickled.DamagedError(f"{record} is damaged: {reason}") from None


def _opened(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    """Open a record, whose checksum is compared at its end where the writer computed one (else it wrote 0)."""
    record = archive.open(info)
    if not info.CRC:
        record._expected_crc = None  # type: ignore[attr-defined]
    return record


def _check(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    with _opened(archive, info) as record:
        while record.read(_CHUNK):
            pass


def _record(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with _opened(archive, info) as record:
        return record.read()


class _Part(io.RawIOBase):
    """A part of a file, as a file of its own."""

    def __init__(self, file: IO[bytes], start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0
        #: Bytes that are read without a seek, as those of one pickle are.
        self.most: int | None = None
        self._row = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        if base + offset < 0:
            raise ValueError("negative seek")
        self._at, self._row = base + offset, 0
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self._length - self._at))
        self._row += size
        if self.most is not None and self._row > self.most:
            raise pickled.UnreadError(f"a pickle in it has more than {self.most:,} bytes")
        self._file.seek(self._start + self._at)
        content = self._file.read(size)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def check_last_pages(path: Path, tensors: Iterable[tuple[int, int]]) -> None:
    """Look at the end of a file whose tensors lie from one byte to another: without power, what was not synchronised is lost.

    Raises:
        DamagedError: a tensor becomes zero at the beginning of a page, and all bytes from there on are zeros.
    """
    size = path.stat().st_size
    end = _end_of_data(path, size)
    page = -(-end // _PAGE) * _PAGE
    if size - page >= _PAGE and any(start < end <= page < stop for start, stop in tensors):
        raise pickled.DamagedError(f"from byte {page:,} on it is all zeros: its data never reached the disk")


def _end_of_data(path: Path, size: int) -> int:
    """Return the number of bytes up to the last one that is not zero."""
    with path.open("rb") as file:
        at = size
        while at:
            start = max(0, at - _CHUNK)
            file.seek(start)
            kept = len(file.read(at - start).rstrip(b"\0"))
            if kept:
                return start + kept
            at = start
    return 0
