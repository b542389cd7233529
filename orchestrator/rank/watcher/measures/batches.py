"""The batches that DataLoaders give to the script for training: a hash of each, and the time that it waits for them.

Where no DataLoader gives batches, the inputs of the model that is trained: data that a script draws, reads or computes itself.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import digest, importlib_bootstrap, imports, record, steps
from ..budget import budget
from . import time_split

#: Bytes of a tensor that are all hashed, and words of 8 bytes of a larger one.
WHOLE = 16384
SAMPLED = 1024
#: Items of a nested batch that are hashed.
ITEMS = 1000
#: Rows of an input of the model, and numbers of each, that show whether it is the same but for noise.
ROWS, NUMBERS = 8, 16


class Batches:
    """Hashes of the batches that were fetched for training since the last step.

    Those of an evaluation, within an epoch or before it, are no part of a step: no gradients follow, or the models are in
    evaluation mode. ``models``: those that are trained.
    """

    def __init__(self) -> None:
        self._hashes: list[str | None] = []
        #: Of each batch the hash of the numbers of its samples, where they are known.
        self._samples: list[str | None] = []
        self._is_used = False
        self.models: Sequence[Any] = ()

    def add(self, batch: Any, seconds: float, samples: Any = None) -> None:
        """A batch was fetched, in this time. ``samples``: their numbers in the data set."""
        time_split.split.add_data(seconds)
        if self._is_evaluation():
            return
        if not self._is_used:
            self._is_used = True
            steps.measure("batches", self.take)
        if budget.is_moment_due(steps.completed()):
            begin = time.thread_time()
            self._hashes.append(fingerprint(batch))
            numbered = isinstance(samples, (list, tuple)) and bool(samples) and samples[0] is not None
            self._samples.append(_hash_of_text(repr(samples)) if numbered or isinstance(samples, int) else None)
            budget.add_cost("batch", time.thread_time() - begin)
        else:
            self._hashes.append(None)
            self._samples.append(None)

    def _is_evaluation(self) -> bool:
        import torch

        modes = [getattr(model, "module", model).training for model in self.models]
        return not torch.is_grad_enabled() or (bool(modes) and not any(modes))

    def take(self) -> dict[str, list[str | None]]:
        """The fields of the step that has just ended."""
        if not self._is_used:
            return {}
        hashes, self._hashes = self._hashes, []
        samples, self._samples = self._samples, []
        return {"batches": hashes, **({"samples": samples} if any(samples) else {})}

    def is_used(self) -> bool:
        """Does the script train on batches of a DataLoader?"""
        return self._is_used

    def first(self) -> str | None:
        """The first batch of the step that is under way."""
        return self._hashes[0] if self._hashes else None


def fingerprint(batch: Any) -> str | None:
    """A hash of the tensors, numbers and texts of a batch; of large tensors a sample. None for one with a tensor without digest."""
    state = hashlib.sha256()
    try:
        for path, item in itertools.islice(leaves(batch, ""), ITEMS):
            state.update(path.encode(errors="replace"))
            _add_leaf(state, item)
    except (digest.Undigestible, RuntimeError):
        return None
    return state.hexdigest()[:16]


def _hash_of_text(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def some_values(value: Any) -> list[list[float]]:
    """Some numbers of some rows of the first input that has rows; empty if there is none in memory."""
    items = (item for _, item in itertools.islice(leaves(value, ""), ITEMS) if hasattr(item, "untyped_storage"))
    item = next((x for x in items if x.dim() > 1 and x.numel() and not _is_on_device(x) and not x.is_complex()), None)
    if item is None:
        return []
    with digest.undisturbed():
        rows = digest.local(item).detach()[:ROWS].flatten(1)
        rows = rows[:, :: max(1, rows.shape[1] // NUMBERS)][:, :NUMBERS]
        return [[float(f"{number:.4g}") for number in row] for row in rows.double().tolist()]


def leaves(item: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The tensors and values of nested containers, with their paths."""
    if isinstance(item, dict) or (hasattr(item, "items") and hasattr(item, "keys")):
        for key, value in item.items():
            yield from leaves(value, f"{path}/{key}")
    elif isinstance(item, (list, tuple)):
        for index, value in enumerate(item):
            yield from leaves(value, f"{path}/{index}")
    else:
        yield path, item


def _add_leaf(state: Any, item: Any) -> None:
    """Raises Undigestible."""
    if hasattr(item, "untyped_storage"):
        state.update(f"={item.dtype}{tuple(item.shape)}".encode())
        state.update(_sample_of(item))
    elif isinstance(item, (str, bytes, int, float, bool, type(None))):
        state.update(f"={item!r};".encode(errors="replace"))
    elif hasattr(item, "tobytes"):  # an array of numpy
        state.update(f"={getattr(item, 'dtype', '')}{getattr(item, 'shape', '')}".encode())
        state.update(_sample(_memory_of(item)))
    else:
        state.update(type(item).__name__.encode(errors="replace"))


def _sample_of(item: Any) -> bytes:
    """The bytes of a tensor, or a sample of them. Raises Undigestible."""
    import torch

    is_direct = type(item) is torch.Tensor and item.device.type == "cpu" and item.layout is torch.strided
    if is_direct and item.is_contiguous() and not (item.is_quantized or item.is_neg() or item.is_conj()):
        size = item.numel() * item.element_size()
        if size and item.untyped_storage().size() < size:
            raise digest.Undigestible("a tensor whose memory was released")
        return _sample(memoryview((ctypes.c_char * size).from_address(item.data_ptr())).cast("B")) if size else b""
    with digest.undisturbed():
        flat = digest.local(item).detach().reshape(-1)
        if flat.numel() > SAMPLED:
            flat = flat[:: flat.numel() // SAMPLED].contiguous()
        return digest.render(digest.piece("", flat)).encode()


def _memory_of(array: Any) -> memoryview:
    """The bytes of an array of numpy; copied unless they lie in memory one after the other."""
    try:
        return memoryview(array).cast("B")
    except (TypeError, ValueError, BufferError):  # strides, dates, no elements
        return memoryview(array.tobytes())


def _sample(data: memoryview) -> bytes:
    """All of it, or words of 8 bytes at equal distances: always the same positions. It is read in memory without an operation of torch."""
    if len(data) <= WHOLE:
        return bytes(data)
    whole = len(data) // 8 * 8
    words = data[:whole].cast("Q")
    return words[:: len(words) // SAMPLED].tobytes() + bytes(data[whole:])


batches = Batches()
_add = record.guarded("batches")(batches.add)
_flush = record.guarded("steps")(steps.flush)


#: Iterator of a DataLoader -> the numbers of the samples of each batch that it has not given yet.
_indices: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()


def _begin_fetch(args: tuple[Any, ...], kwargs: Any) -> tuple[float | None, Any]:
    """Return when the main thread began to wait, and the iterator; None for a thread that fetches in advance."""
    if threading.current_thread() is not threading.main_thread():
        return None, args[0]
    _flush()
    return time.monotonic(), args[0]


def _end_fetch(begun: tuple[float | None, Any], batch: Any, error: BaseException | None) -> None:
    if error is not None:
        return
    begin, iterator = begun
    samples = _take_samples(iterator)
    if begin is None:
        record.unknown("data", "a thread of the script fetches batches in advance: the step of a batch is not known")
    else:
        _add(batch, time.monotonic() - begin, samples)


@record.guarded("samples")
def _take_samples(iterator: Any) -> Any:
    """The numbers of the samples of the batch that an iterator has given; None where workers give batches in any order."""
    pending = _indices.get(iterator)
    samples = pending.popleft() if pending else None
    return samples if getattr(iterator, "_in_order", True) else None


@record.guarded("samples")
def _end_index(iterator: Any, indices: Any, error: BaseException | None) -> None:
    if error is None:
        _indices.setdefault(iterator, deque()).append(indices)


@record.guarded("samples")
def _begin_epoch(args: tuple[Any, ...], kwargs: Any) -> None:
    """An iterator begins, or begins anew with the workers that it has: what it left of the epoch before is given up."""
    _indices.pop(args[0], None)


def watch() -> None:
    """Wrap what every DataLoader's iterator calls in the main process."""
    loaders = importlib.import_module("torch.utils.data.dataloader")
    iterator = loaders._BaseDataLoaderIter
    iterator.__next__ = importlib_bootstrap.observe(iterator.__next__, _begin_fetch, _end_fetch)
    iterator._next_index = importlib_bootstrap.observe(iterator._next_index, lambda args, kwargs: args[0], _end_index)
    iterator._reset = importlib_bootstrap.observe(iterator._reset, _begin_epoch)


#: Module of torch -> its class that wraps a model.
WRAPPERS = {
    "torch.nn.parallel.distributed": "DistributedDataParallel",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "FullyShardedDataParallel",
}


#: Modules with the states of FSDP2, which makes no wrapper: of torch 2.6 and newer, and of older ones.
SHARDED = ("torch.distributed.fsdp._fully_shard._fsdp_state", "torch.distributed._composable.fsdp._fsdp_state")


class Inputs:
    """Hashes of the inputs since the last step."""

    def __init__(self) -> None:
        self._hashes: list[str | None] = []
        self._values: list[list[float]] = []
        self._depth, self._is_used = 0, False
        #: ``callback()`` before the outermost forward pass with gradients.
        self.observers: list[Callable[[], None]] = []

    def enter(self) -> bool:
        """A wrapper is called; whether it is to be observed. Those inside of it get what the outer one computes."""
        self._depth += 1
        return self._depth == 1 and self.is_wanted()

    def is_wanted(self) -> bool:
        return bool(self.observers) or not batches.is_used()

    def begin(self, value: Any) -> None:
        """A wrapper that is observed is called with ``value``."""
        import torch

        if not torch.is_grad_enabled():
            return
        for callback in self.observers:
            callback()
        if batches.is_used():
            return
        if budget.is_moment_due(steps.completed()) and not any(_is_on_device(item) for _, item in leaves(value, "")):
            begin = time.thread_time()
            if not self._is_used:
                self._is_used = True
                steps.measure("inputs", self.take)
            self._hashes.append(fingerprint(value))
            self._values = some_values(value) if budget.is_in_window(steps.completed()) else []
            budget.add_cost("batch", time.thread_time() - begin)

    def leave(self) -> None:
        self._depth -= 1

    def take(self) -> dict[str, list[str | None] | list[list[float]]] | None:
        """The fields of the step that has just ended."""
        hashes, self._hashes = self._hashes, []
        values, self._values = self._values, []
        return {"inputs": hashes, **({"values": values} if values else {})} if hashes else None


def _is_on_device(item: Any) -> bool:
    return hasattr(item, "device") and getattr(item.device, "type", "cpu") != "cpu"


inputs = Inputs()
_begin_call = record.guarded("inputs")(inputs.begin)


def _begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    is_observed = not steps.is_traced()
    if is_observed and inputs.enter():
        _begin_call((args[1:], kwargs))
    return is_observed


def _end(is_observed: bool, result: Any, error: BaseException | None) -> None:
    if is_observed:
        inputs.leave()


def _begin_sharded(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """FSDP2 prepares the forward pass of ``args[1]``, a module with the state ``args[0]``: only the root has the model's inputs."""
    if not steps.is_traced() and args[0]._is_root is not False and inputs.is_wanted():
        _begin_call(args[2:])


def watch_inputs() -> None:
    """Observe the wrappers of torch for several ranks once they are imported: their outermost call, with gradients.

    Inputs on a device are not read: that would wait for its work.
    """
    for module, name in WRAPPERS.items():
        imports.when_imported(module, functools.partial(_wrap, name))
    for module in SHARDED:
        imports.when_imported(module, _observe_sharded)


def _wrap(name: str, module: Any) -> None:
    wrapper = getattr(module, name, None)
    if wrapper is not None:
        wrapper.forward = importlib_bootstrap.observe(wrapper.forward, _begin, _end)


def _observe_sharded(module: Any) -> None:
    state = module.FSDPState
    if hasattr(state, "_root_pre_forward"):
        state._root_pre_forward = importlib_bootstrap.observe(state._root_pre_forward, _begin_sharded)
