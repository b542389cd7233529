"""Old steps of a record as ranges: a line for hundreds of steps, with the loss, the end and the counts of each of them.

A step is written in full when it ends. Lines of old steps are replaced later: the record is written anew into another file, which
takes its name, so that a process that is killed meanwhile leaves the one or the other. Lines stay as they are of the last steps
and of those since the last save but one, which a job may do again; of the first steps; of saves and loads; of few steps of any age.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import sys
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

#: Steps whose lines stay: the last ones, those since the last saves but no more than ``MOST``, and the first ones.
RECENT, MOST, FIRST = 512, 2048, 17
#: Saves, loads and ends of holds, which begin a window; those within it are the same moment.
MOMENTS, WINDOW = 2, 16
#: Saves whose weights are compared with those of earlier states.
COPIES = 64
#: Steps that are replaced at once, or this part of all if that is more: writing the record anew costs more as it grows.
AT_ONCE, PART = 512, 256
#: Steps and states of any age whose lines stay, of those between two powers of two.
SAMPLES = 32
#: Ends of steps are counted in these units, in seconds.
UNIT_S = 1e-5
_LARGEST = (1 << 32) - 1
_COPIED = 1 << 20
_FORMAT = re.compile(rb'"format":1\b')
#: The fields of a line.
Fields = dict[str, Any]
#: Whether a step has a loss, and whether it lists batches and inputs.
LOSS, BATCHES, INPUTS = 1, 2, 4
_SUMS = ("data_s", "compute_s", "comm_s")


#: Where an entry of a tail has the number of a step or state (-1: another line), the text, the fields of a step, the weights of a state.
N, TEXT, FIELDS, WEIGHTS = range(4)


class Tail:
    """The lines of a record that may be replaced, since the last range."""

    def __init__(self, offset: int) -> None:
        """``offset``: where the lines of this process begin in the file."""
        self._entries: deque[list[Any]] = deque()
        #: Where the first of them begins in the file, the sum of all lines before it, and the last step of the last range.
        self._offset, self._sum, self._last = offset, 0, 0
        self._moments: deque[int] = deque([0] * MOMENTS, maxlen=MOMENTS)
        #: Steps whose lines stay, and digests of weights that were saved lately: of copies of earlier steps.
        self._marked: set[int] = set()
        self._saved: deque[str] = deque(maxlen=COPIES)
        self._due = RECENT + AT_ONCE

    def add(self, kind: str, text: bytes, fields: Fields) -> None:
        """A line was written; ``text`` is without its sum."""
        if kind == "step":
            self._entries.append([fields["n"], text, fields, None])
            return
        is_state = kind == "state"
        self._entries.append([fields["n"] if is_state else -1, text, None, fields.get("weights") if is_state else None])
        if kind == "saved" and fields.get("weights"):
            self._saved.append(fields["weights"])
        if "gradients" in fields or (kind in ("save", "load", "held", "raised") and fields.get("n")):
            n = int(fields["n"])
            self._marked.add(n)
            if "gradients" in fields and n - self._moments[-1] > WINDOW:
                self._moments.append(n)

    def is_due(self, n: int) -> bool:
        """Is it time to replace lines after ``n`` steps?"""
        if n < self._due:
            return False
        self._due += AT_ONCE // 8
        return self._limit(n) - self._last >= max(AT_ONCE, n // PART if n < MOST * PART else MOST)

    def replace(self, path: Path, n: int, offset: int, line: Callable[[Fields], bytes]) -> tuple[int, int]:
        """Write the record anew, with ranges for what is old. Returns the descriptor of the new file and the sum of its lines.

        ``offset``: of steps of the job before those of this process. ``line`` makes the text of a line. Raises OSError; then the
        record is as before.
        """
        limit = self._limit(n)
        at = next(index for index, entry in enumerate(self._entries) if entry[FIELDS] and entry[N] == limit)
        old, rest = list(self._entries)[: at + 1], list(self._entries)[at + 1 :]
        texts, moment = self._kept(old, offset, line)
        texts += [line(fields) for fields in ranges([entry[FIELDS] for entry in old if entry[FIELDS]])]
        _continue(rest, moment, line)
        if not self._last:
            texts[0] = _FORMAT.sub(b'"format":2', texts[0], count=1)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _copy(path, fd, self._offset)
            size, total = _append(fd, texts, self._sum)
            _, final = _append(fd, (entry[TEXT] for entry in rest), total)
            os.replace(draft, path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
        self._offset, self._sum, self._last = self._offset + size, total, limit
        self._entries = deque(rest)
        self._marked = {mark for mark in self._marked if mark >= limit}
        return fd, final

    def _kept(
        self, old: Iterable[list[Any]], offset: int, line: Callable[[Fields], bytes]
    ) -> tuple[list[bytes], Fields]:
        """(The lines that stay, what has changed of random generators and learning rates since the last that has a moment)"""
        texts: list[bytes] = []
        moment: Fields = {}
        for entry in old:
            if self._stays(entry, offset):
                _continue([entry], moment, line)
                moment = {} if "rng" in (entry[FIELDS] or ()) else moment
                texts.append(entry[TEXT])
            elif "rng" in (entry[FIELDS] or ()):
                moment = _following(moment, entry[FIELDS])
        return texts, moment

    def _stays(self, entry: list[Any], offset: int) -> bool:
        n, _, fields, weights = entry
        is_save = n in self._marked or weights in self._saved or "checkpoint_s" in (fields or ())
        return n <= FIRST or is_save or is_sample(n + offset)

    def _limit(self, n: int) -> int:
        """The last step that no job does again, as far as that is known."""
        return max(min(n - RECENT, self._moments[0] - 1), n - MOST)


def ranges(steps: Sequence[Fields]) -> Iterator[Fields]:
    """The fields of lines for successive steps."""
    first = 0
    for index in range(1, len(steps) + 1):
        is_new = index == len(steps) or steps[index]["n"] != steps[index - 1]["n"] + 1
        if is_new or index - first == MOST or _units(steps[index]["end"] - steps[index - 1]["end"]) > _LARGEST // 2:
            yield _range(steps[first:index])
            first = index


def interval(step: int) -> int:
    """The distance at this step of the job of those whose lines stay: a power of two, so that different runs keep the same ones."""
    return 1 << max(0, step.bit_length() - SAMPLES.bit_length())


def is_sample(step: int) -> bool:
    """Do the lines of this step of the job stay?"""
    return step % interval(step) == 0


def _range(steps: Sequence[Fields]) -> Fields:
    start, last_end = steps[0]["start"], steps[-1]["end"]
    losses = array("d", [float.fromhex(step.get("loss") or "0x0p+0") for step in steps])
    short = array("f", losses)
    if array("d", short).tobytes() == losses.tobytes():
        losses = short
    ends = [_units(step["end"] - start) for step in steps]
    columns: tuple[array[Any], ...] = (
        losses,
        array("I", [max(0, end - before) for before, end in zip([0, *ends], ends)]),
        array("I", [int(step.get("passes", 1)) for step in steps]),
        array("I", [len(step.get("batches") or ()) for step in steps]),
        array("B", [_flags(step) for step in steps]),
    )
    collectives: dict[str, list[int]] = {}
    for step in steps:
        for name, *counts in step.get("collectives") or ():
            collectives[name] = [x + y for x, y in zip(collectives.get(name, (0, 0)), counts)]
    sums = {name: [step[name] for step in steps if step.get(name) is not None] for name in _SUMS}
    return {
        "k": "range", "t": last_end, "first": steps[0]["n"], "last": steps[-1]["n"], "count": len(steps),
        "start": start, "end": last_end, "loss_bytes": losses.itemsize,
        "steps": base64.b64encode(zlib.compress(b"".join(map(_planes, columns)), 6)).decode(),
        **{name: round(sum(seconds), 6) for name, seconds in sums.items() if seconds},
        **({"collectives": [[name, *counts] for name, counts in collectives.items()]} if collectives else {}),
    }  # fmt: skip


def _flags(step: Fields) -> int:
    has = (step.get("loss") is not None, step.get("batches") is not None, step.get("inputs") is not None)
    return sum(flag for flag, is_set in zip((LOSS, BATCHES, INPUTS), has) if is_set)


def _units(seconds: float) -> int:
    return round(seconds / UNIT_S)


def _planes(column: array[Any]) -> bytes:
    """The first bytes of all numbers, then the second ones: little end first. It makes them easier to compress."""
    if sys.byteorder == "big":
        column.byteswap()
    data, size = column.tobytes(), column.itemsize
    return b"".join(data[byte::size] for byte in range(size))


def _continue(entries: Iterable[list[Any]], moment: Fields, line: Callable[[Fields], bytes]) -> None:
    """Add to the first line with a moment what changed before it: such a line has only what has changed."""
    entry = next((entry for entry in entries if "rng" in (entry[FIELDS] or ())), None)
    if moment and entry is not None:
        fields = entry[FIELDS] = {**entry[FIELDS], **_following(moment, entry[FIELDS])}
        entry[TEXT] = line({"k": "step", "t": fields["end"], **fields})


def _following(moment: Fields, fields: Fields) -> Fields:
    rates = fields.get("lr", moment.get("lr"))
    return {"rng": {**moment.get("rng", {}), **fields["rng"]}, **({} if rates is None else {"lr": rates})}


def _copy(source: Path, target: int, size: int) -> None:
    with source.open("rb") as file:
        while size:
            data = file.read(min(size, _COPIED))
            if not data:
                raise OSError(f"{source} is shorter than it was")
            _write(target, data)
            size -= len(data)


def _append(fd: int, texts: Iterable[bytes], total: int) -> tuple[int, int]:
    """(bytes, sum of the lines) of lines that follow those with the sum ``total``."""
    lines = []
    for text in texts:
        total = zlib.crc32(text, total)
        lines.append(b'%s,"sum":"%08x"}\n' % (text[:-1], total))
    data = b"".join(lines)
    _write(fd, data)
    return len(data), total


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
