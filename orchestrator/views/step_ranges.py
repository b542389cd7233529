"""The steps of a process, of which the record has the old ones as ranges: a mapping that makes a step where one is read."""

from __future__ import annotations

import base64
import binascii
import bisect
import functools
import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..model import watch
from ..model.frozen import dataclass

#: Steps of one range at most.
LONGEST = 1 << 16
UNIT_S = 1e-5
_LOSS, _BATCHES, _INPUTS = 1, 2, 4
#: Seconds by which the end of a range may differ from the sum of its steps.
_ROUNDED_S = 0.001


class WrongRange(ValueError):
    """A range that the watcher cannot have written; the message says why."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The numbers of each step of a range."""

    losses: Sequence[float]
    ends: Sequence[float]
    passes: Sequence[int]
    batches: Sequence[int]
    flags: bytes


def decode(line: watch.Range) -> Columns:
    """Raises WrongRange."""
    count = line.last - line.first + 1
    if not (0 < line.first <= line.last and count == line.count <= LONGEST and line.loss_bytes in (4, 8)):
        raise WrongRange(f"steps {line.first} to {line.last} are not {line.count}")
    size = count * (line.loss_bytes + 13)
    try:
        unpack = zlib.decompressobj()
        data = unpack.decompress(base64.b64decode(line.steps, validate=True), size + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise WrongRange(f"steps {line.first} to {line.last}: {error}") from None
    if len(data) != size or not unpack.eof:
        raise WrongRange(f"steps {line.first} to {line.last}: not the figures of {count} steps")
    columns: list[array[Any]] = []
    begin = 0
    for code in ("f" if line.loss_bytes == 4 else "d", "I", "I", "I"):
        column = array(code)
        end = begin + count * column.itemsize
        columns.append(_numbers(column, data[begin:end], count))
        begin = end
    losses, units, passes, batches = columns
    ends = array("d")
    total = 0
    for item in units:
        total += item
        ends.append(line.start + total * UNIT_S)
    if not math.isclose(ends[-1], line.end, abs_tol=_ROUNDED_S):
        raise WrongRange(f"steps {line.first} to {line.last} end at {ends[-1]:.3f} s, not at {line.end:.3f} s")
    return Columns(losses, ends, passes, batches, data[begin:])


def _numbers(column: array[Any], data: bytes, count: int) -> array[Any]:
    joined = bytearray(len(data))
    for byte in range(column.itemsize):
        joined[byte :: column.itemsize] = data[byte * count : (byte + 1) * count]
    column.frombytes(bytes(joined))
    if sys.byteorder == "big":
        column.byteswap()
    return column


_decoded = functools.lru_cache(maxsize=16)(decode)


def check(lines: Iterable[watch.Line]) -> None:
    """Check that the ranges of a process follow on one another, and say what lines of the same steps say. Raises WrongRange."""
    after = 0
    steps: dict[int, watch.Step] = {}
    for line in lines:
        if isinstance(line, watch.Step):
            steps[line.n] = line
        elif isinstance(line, watch.Range):
            known = decode(line)
            if line.first <= after:
                raise WrongRange(f"steps {line.first} to {line.last} follow step {after}")
            after = line.last
            for n in [n for n in steps if n <= line.last]:
                step = steps.pop(n)
                if n >= line.first and not _is_same(step, _step(line, known, n - line.first)):
                    raise WrongRange(f"step {n} differs from the range of steps {line.first} to {line.last}")


def _is_same(step: watch.Step, other: watch.Step) -> bool:
    same = (step.loss, step.passes, len(step.batches or ())) == (other.loss, other.passes, len(other.batches or ()))
    return same and abs(step.end - other.end) < _ROUNDED_S


def _step(line: watch.Range, known: Columns, index: int) -> watch.Step:
    flags, end = known.flags[index], known.ends[index]
    count = known.batches[index]
    return watch.Step(
        t=end,
        n=line.first + index,
        start=known.ends[index - 1] if index else line.start,
        end=end,
        loss=known.losses[index].hex() if flags & _LOSS else None,
        passes=known.passes[index],
        batches=(None,) * count if flags & _BATCHES else None,
        inputs=(None,) if flags & _INPUTS else None,
    )


class Steps(Mapping[int, watch.Step]):
    """The steps of a process by number. A step that stands in full beside its range is the one in full."""

    def __init__(self, lines: Iterable[watch.Line]) -> None:
        lines = tuple(lines)
        #: Those in full.
        self.full = {line.n: line for line in lines if isinstance(line, watch.Step)}
        self.ranges = tuple(line for line in lines if isinstance(line, watch.Range))
        self._lasts = [line.last for line in self.ranges]
        self._alone = sorted(n for n in self.full if self._range(n) is None)

    def _range(self, n: int) -> watch.Range | None:
        index = bisect.bisect_left(self._lasts, n)
        return self.ranges[index] if index < len(self.ranges) and self.ranges[index].first <= n else None

    def __getitem__(self, n: int) -> watch.Step:
        if (step := self.full.get(n)) is not None:
            return step
        line = self._range(n)
        if line is None:
            raise KeyError(n)
        return _step(line, _decoded(line), n - line.first)

    def __contains__(self, n: object) -> bool:
        return n in self.full or (isinstance(n, int) and self._range(n) is not None)

    def __len__(self) -> int:
        return sum(line.count for line in self.ranges) + len(self._alone)

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers in order."""
        for first, last in self.intervals():
            yield from range(first, last + 1)

    def intervals(self) -> list[tuple[int, int]]:
        """(first, last) of steps without a gap, in order."""
        result: list[tuple[int, int]] = []
        for first, last in sorted([*((line.first, line.last) for line in self.ranges), *((n, n) for n in self._alone)]):
            if result and result[-1][1] + 1 == first:
                result[-1] = (result[-1][0], last)
            else:
                result.append((first, last))
        return result

    @property
    def last(self) -> int:
        return max([*self._lasts[-1:], *self._alone[-1:]], default=0)

    def items_outside(self, left_out: Sequence[watch.Range]) -> Iterator[tuple[int, watch.Step]]:
        """The steps in order, without those of some ranges."""
        firsts = {line.first: line.last for line in left_out}
        for first, last in self.intervals():
            n = first
            while n <= last:
                if n in firsts:
                    n = firsts[n] + 1
                else:
                    yield n, self[n]
                    n += 1

    def in_order(self) -> Iterator[watch.Step]:
        """All steps."""
        for n in self:
            yield self[n]

    def ended_by(self, t: float) -> int:
        """The last step that had ended then; 0 if none had."""
        ended = max((n for n in self._alone if self.full[n].end <= t), default=0)
        line = next((line for line in reversed(self.ranges) if line.start <= t), None)
        index = bisect.bisect_right(_decoded(line).ends, t) if line else 0
        return max(ended, line.first + index - 1 if line and index else 0)

    def seconds(self, after: int = 0) -> list[float]:
        """Return how long each step took that follows step ``after``."""
        result = [self.full[n].end - self.full[n].start for n in self._alone if n > after]
        for line in self.ranges:
            ends = _decoded(line).ends
            own = [end - start for start, end in zip([line.start, *ends], ends, strict=False)]
            result += own[max(0, after + 1 - line.first) :]
        return result

    def parts(self, name: str, after: int = 0) -> Iterator[float]:
        """The seconds in a field of the steps that follow step ``after``; of a range together, with those of its first step."""
        for line in self.ranges:
            seconds = getattr(line, name, None)
            first = self.full.get(line.first) if line.first <= after else None
            yield from () if seconds is None else (seconds - ((getattr(first, name) if first else None) or 0.0),)
        in_full = self._alone if name != "checkpoint_s" else self.full
        yield from (x for n in in_full if n > after and (x := getattr(self.full[n], name)) is not None)

    def losses(self) -> Iterator[tuple[int, str]]:
        """(number, loss) of the steps that have one."""
        for line in self.ranges:
            known = _decoded(line)
            pairs = enumerate(zip(known.losses, known.flags, strict=True), start=line.first)
            yield from ((n, loss.hex()) for n, (loss, flags) in pairs if flags & _LOSS)
        yield from ((n, loss) for n in self._alone if (loss := self.full[n].loss) is not None)
