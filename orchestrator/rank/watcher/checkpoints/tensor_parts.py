"""The tensors of an object that is saved or loaded: listed at once, and digested later, by the thread that has time for it.

Each tensor is hashed once, without its name. Digests are linear in the multiplier of a name, so that names can be given
later: a script loads a checkpoint before the watcher knows which parameters the optimizer owns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .. import digest, small_tensors

MODULUS = 1 << 64
#: Inverse of the multiplier of the empty name.
_UNIT = pow(digest.name_multiplier(""), -1, MODULUS)
#: Small tensors that are digested together.
TOGETHER = 4096
#: Elements from which on a second thread digests them; to start one costs as much as these.
FOR_A_THREAD = 1 << 18


class Part(NamedTuple):
    """One tensor: its sum without the name (None: not hashed), number of local elements, address, full shape, and norm."""

    unit: int | None
    numel: int
    pointer: int
    shape: tuple[int, ...]
    is_shard: bool = False
    norm: float = 0.0


#: The mapping that gets the part of a small tensor, its key, the tensor, its elements, and whether its norm is computed.
Entry = tuple[dict[Any, Part], Any, Any, int, bool]


class Digests:
    """Tensors that have no digest yet. Two threads digest them."""

    def __init__(self) -> None:
        self._small: list[Entry] = []
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._elements = 0
        self._error: Exception | None = None

    def add(self, target: dict[Any, Part], key: Any, item: Any, *, has_norm: bool = False) -> None:
        """``target[key]`` becomes the part of the tensor with ``finish``; until then it holds the place."""
        target[key] = _NONE
        if size := small_tensors.size_of(item):
            self._small.append((target, key, item, size, has_norm))
            self._elements += size
            if len(self._small) >= TOGETHER:
                self._close()
        else:
            self._jobs.append(lambda: target.update({key: part(item, has_norm=has_norm)}))
            self._elements += item.numel() if hasattr(item, "numel") else FOR_A_THREAD

    def start(self) -> None:
        """Digest many elements in a thread, beside what the caller does until ``finish``. Nothing more is added."""
        self._close()
        if self._elements >= FOR_A_THREAD:
            self._thread = threading.Thread(target=self._work, name="ccbed-watch-contents", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Digest what no thread has begun, and wait for the other thread. Raises what a digest has raised."""
        self._close()
        if self._jobs:
            self._work()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        with digest.undisturbed():
            while True:
                try:
                    job = self._jobs.popleft()
                except IndexError:
                    return
                try:
                    job()
                except Exception as error:  # noqa: BLE001 finish raises it, in the thread of its caller
                    self._error = error

    def _close(self) -> None:
        if self._small:
            entries, self._small = self._small, []
            self._jobs.append(lambda: _digest_small(entries))


_NONE = Part(None, 0, 0, ())


def _digest_small(entries: list[Entry]) -> None:
    if not all(item.untyped_storage().nbytes() and item.numel() == size for _, _, item, size, _ in entries):
        for target, key, item, _, has_norm in entries:
            target[key] = part(item, has_norm=has_norm)
        return
    sums = small_tensors.separate_sums([item for _, _, item, _, _ in entries])
    norms = digest.norms([item for _, _, item, _, has_norm in entries if has_norm])
    for (target, key, item, size, has_norm), value in zip(entries, sums):
        norm = (next(norms) ** 2) ** 0.5 if has_norm else 0.0
        target[key] = Part(value * _UNIT % MODULUS, size, item.data_ptr(), item.shape, False, norm)


def digest_all(items: Iterable[tuple[str, Any]]) -> dict[str, Part]:
    """The parts of named tensors."""
    result: dict[str, Part] = {}
    digests = Digests()
    for name, item in items:
        digests.add(result, name, item)
    digests.finish()
    return result


def part(value: Any, *, has_norm: bool = True) -> Part:
    """Hash one tensor, or this process' shards of it, as if its name had the multiplier 1; tensors without data are not hashed."""
    shape = tuple(value.shape) if hasattr(value, "shape") else tuple(value.size())
    try:
        pieces = digest.local_pieces(value)
        numel = sum(int(local.numel()) for local, _ in pieces)
        pointer = int(pieces[0][0].data_ptr()) if len(pieces) == 1 else 0
        unit = sum(digest.piece("", local, box) for local, box in pieces) * _UNIT % MODULUS
        norm = sum(digest.norm(local) ** 2 for local, _ in pieces) ** 0.5 if has_norm else 0.0
        return Part(unit, numel, pointer, shape, any(box is not None for _, box in pieces), norm)
    except Exception:  # noqa: BLE001 a kind of tensor that is not known: it has no digest
        return Part(None, 0, 0, shape)


def total(parts: Mapping[str, Part]) -> tuple[str | None, int]:
    """Digest (16 hex digits) and number of elements of named parts; no digest if a part has none."""
    numel = sum(item.numel for item in parts.values())
    result = 0
    for name, item in parts.items():
        if item.unit is None:
            return None, numel
        result += item.unit * digest.name_multiplier(name)
    return f"{result % MODULUS:016x}", numel
