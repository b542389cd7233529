"""The batches that DataLoaders give to the script: a hash of each, and the time that it waits for them."""

from __future__ import annotations

import functools
import hashlib
import importlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from . import digest, record, steps, time_split

#: Elements of a larger tensor that are hashed, at equal distances.
SAMPLED = 2048
#: Items of a nested batch that are hashed.
ITEMS = 1000


class Batches:
    """Hashes of the batches that were fetched since the last step."""

    def __init__(self) -> None:
        self._hashes: list[str | None] = []
        self._is_used = False

    def add(self, batch: Any, seconds: float) -> None:
        """A batch was fetched, in this time."""
        self._is_used = True
        self._hashes.append(fingerprint(batch))
        time_split.split.add_data(seconds)

    def take(self) -> dict[str, Any]:
        """The field of the step that has just ended."""
        if not self._is_used:
            return {}
        hashes, self._hashes = self._hashes, []
        return {"batches": hashes}

    def first(self) -> str | None:
        """The first batch of the step that is under way."""
        return self._hashes[0] if self._hashes else None


def fingerprint(batch: Any) -> str | None:
    """A hash of the tensors, numbers and texts of a batch; of large tensors a sample. None for one with a tensor without digest."""
    state = hashlib.sha256()
    try:
        with digest.undisturbed():
            for count, (path, item) in enumerate(_leaves(batch, "")):
                if count >= ITEMS:
                    break
                state.update(f"{path}={_leaf(item)};".encode(errors="replace"))
    except (digest.Undigestible, RuntimeError):
        return None
    return state.hexdigest()[:16]


def _leaves(item: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The tensors and values of nested containers, with their paths."""
    if isinstance(item, dict) or (hasattr(item, "items") and hasattr(item, "keys")):
        for key, value in item.items():
            yield from _leaves(value, f"{path}/{key}")
    elif isinstance(item, (list, tuple)):
        for index, value in enumerate(item):
            yield from _leaves(value, f"{path}/{index}")
    else:
        yield path, item


def _leaf(item: Any) -> str:
    if hasattr(item, "untyped_storage"):
        local = digest.local(item)
        flat = local.detach().reshape(-1)
        if flat.numel() > SAMPLED:
            flat = flat[:: flat.numel() // SAMPLED].contiguous()
        return f"{item.dtype}{tuple(item.shape)}{digest.render(digest.piece('', flat))}"
    if isinstance(item, (str, bytes, int, float, bool, type(None))):
        return repr(item)
    if hasattr(item, "tobytes"):  # an array of numpy
        return hashlib.sha256(item.tobytes()).hexdigest()
    return type(item).__name__


batches = Batches()
_add = record.guarded("batches")(batches.add)
_flush = record.guarded("steps")(steps.flush)


def watch() -> None:
    """Wrap what every DataLoader's iterator calls in the main process."""
    loaders = importlib.import_module("torch.utils.data.dataloader")
    iterator = loaders._BaseDataLoaderIter
    original = iterator.__next__

    @functools.wraps(original)
    def fetch(loader: Any) -> Any:
        is_waiting = threading.current_thread() is threading.main_thread()  # a thread that fetches in advance is not
        if is_waiting:
            _flush()
        begin = time.monotonic()
        batch = original(loader)
        if is_waiting:
            _add(batch, time.monotonic() - begin)
        else:
            record.unknown(
                "data", "a thread of the script fetches batches in advance: the step of a batch is not known"
            )
        return batch

    iterator.__next__ = fetch
    steps.measure(record.guarded("batches")(batches.take))
