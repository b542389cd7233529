"""Data that never reached the disk: after a loss of power, a file that was not synchronised can end in pages of zeros."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .pickled import DamagedError

#: What a file system writes at once.
PAGE = 4096
_CHUNK = 1 << 20


def check(path: Path, tensors: Iterable[tuple[int, int]]) -> None:
    """Look at the end of a file whose tensors lie from one byte to another.

    Raises:
        DamagedError: a tensor becomes zero at the beginning of a page, and all bytes from there on are zeros.
    """
    size = path.stat().st_size
    end = _end_of_data(path, size)
    page = -(-end // PAGE) * PAGE
    if size - page >= PAGE and any(start < end <= page < stop for start, stop in tensors):
        raise DamagedError(f"from byte {page:,} on it is all zeros: its data never reached the disk")


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
