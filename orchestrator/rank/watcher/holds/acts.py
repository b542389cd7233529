"""Orders to this process, and what a fault does inside of it on order: spin with the interpreter's lock, run out of memory, flip a bit."""

from __future__ import annotations

import collections
import itertools
import json
import os
import resource
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..checkpoints import saves

_MIB = 1 << 20
#: Address space that stays free when a process runs out of memory: enough to report it.
_HEADROOM = 256 * _MIB
#: The optimizer with the most parameters among those that have stepped; the last one of several.
_owner: list[weakref.ref[Any]] = []
_sizes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
#: Acts that happen at the next step of an optimizer.
_at_optimizer: list[Callable[[], None]] = []


class Unable(Exception):
    """An act that cannot be performed here; the message is its reason."""


def perform(act: dict[str, Any], directory: str, rank: int) -> BaseException | None:
    """Perform an act and answer; the exception that the script is to see. An act that must wait answers when it is done."""

    def answer(**fields: Any) -> None:
        append_answer(directory, rank, act=act, **fields)

    try:
        return _ACTS[act["do"]](act, answer)
    except Exception as error:  # noqa: BLE001 the answer is the report
        answer(problem=str(error) if isinstance(error, Unable) else f"{type(error).__name__}: {error}")
        return None


def is_waiting() -> bool:
    """Does an act wait for the process to go on?"""
    return bool(_at_optimizer)


def is_owner(optimizer: Any) -> bool:
    """Do acts concern this optimizer?"""
    return bool(_owner) and _owner[0]() is optimizer


def remember(optimizer: Any) -> None:
    """An optimizer is about to step: acts concern the one with the most parameters."""
    owner = _owner[0]() if _owner else None
    if owner is optimizer:
        return
    if owner is None or _size(optimizer) >= _size(owner):
        _owner[:] = [weakref.ref(optimizer)]


def perform_waiting() -> None:
    """Perform the acts that waited for the gradients of this step."""
    while _at_optimizer:
        _at_optimizer.pop(0)()


def _size(optimizer: Any) -> int:
    if optimizer not in _sizes:
        _sizes[optimizer] = sum(item.numel() for group in optimizer.param_groups for item in group["params"])
    return _sizes[optimizer]


def _spin(act: dict[str, Any], answer: Callable[..., None]) -> None:
    """Never return, and never let another thread of the interpreter run: the loop is in C."""
    answer()
    collections.deque(itertools.repeat(None), maxlen=0)


def _run_out_of_memory(act: dict[str, Any], answer: Callable[..., None]) -> BaseException:
    """Allocate until the allocator refuses; its own error is what the script sees."""
    torch = sys.modules["torch"]
    on_device = torch.cuda.is_available() and torch.cuda.is_initialized()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if not on_device:
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + _HEADROOM, limits[1]))
    kept: list[Any] = []
    try:
        while True:
            kept.append(torch.empty(16 * _MIB, dtype=torch.uint8, device="cuda" if on_device else "cpu"))
    except (RuntimeError, MemoryError) as error:
        refused: BaseException = error.with_traceback(None)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        allocated_mib, kept[:] = 16 * len(kept), []
        torch.cuda.empty_cache()  # torch would keep the memory, and other ranks on the device would lack it
    answer(error=f"{type(refused).__name__}: {refused}"[:300], allocated_mib=allocated_mib)
    return refused


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _flip(act: dict[str, Any], answer: Callable[..., None]) -> None:
    """Flip one bit of a gradient, a parameter or an optimizer state of the largest parameter."""
    owner = _owner[0]() if _owner else None
    if owner is None:
        raise Unable("no optimizer has stepped yet")
    of, bit = str(act["part"]), int(act["bit"])
    parameters = [parameter for group in owner.param_groups for parameter in group["params"]]
    parameter = max(parameters, key=lambda item: int(item.numel()))
    where = {"part": of, "tensor": next(i for i, item in enumerate(parameters) if item is parameter), "bit": bit}
    if of == "gradient" and act["when"] == "before":
        if hasattr(parameter, "to_local"):
            raise Unable("the gradient of a sharded parameter is seen only after its reduction")
        _flip_next_gradient(parameter, bit, lambda before, after: answer(**where, before=before, after=after))
        return

    def flip() -> None:
        before, after = _flip_first(_local(_pick(of, owner, parameter)), bit)
        answer(**where, before=before, after=after)

    if of == "gradient":
        _at_optimizer.append(lambda: _answering(flip, answer))
    else:
        flip()


def _answering(flip: Callable[[], None], answer: Callable[..., None]) -> None:
    try:
        flip()
    except Unable as error:
        answer(problem=str(error))


def _flip_next_gradient(parameter: Any, bit: int, done: Callable[[str, str], None]) -> None:
    """Flip a bit of the gradient that the next backward pass computes, before it is reduced over the replicas."""

    def changed(gradient: Any) -> Any:
        handle.remove()
        copy = gradient.clone()
        done(*_flip_first(_local(copy), bit))
        return copy

    handle = parameter.register_hook(changed)


def _pick(of: str, owner: Any, parameter: Any) -> Any:
    if of == "parameter":
        return parameter.detach()
    if of == "gradient":
        if parameter.grad is None:
            raise Unable("the largest parameter has no gradient")
        return parameter.grad.detach()
    states = [
        state for state in owner.state.get(parameter, {}).values() if getattr(state, "shape", None) == parameter.shape
    ]
    if not states:
        raise Unable(f"{type(owner).__name__} keeps no state of the size of its largest parameter")
    return states[0].detach()


def _local(tensor: Any) -> Any:
    """The shard of this rank, of a DTensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _flip_first(tensor: Any, bit: int) -> tuple[str, str]:
    """Flip a bit of the first element in place; its values before and after as ``float.hex``, which may be huge or not finite.

    ``data`` counts its versions apart: autograd does not notice the change, as it notices none in a broken memory.
    """
    torch: Any = sys.modules["torch"]
    tensor = tensor.data
    width = 8 * tensor.element_size()
    if tensor.numel() == 0 or bit >= width:
        raise Unable(f"the tensor has {tensor.numel()} elements of {width} bits here")
    integer = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[width]
    element = tensor[(0,) * tensor.dim()]
    before = float(element).hex()
    bits = element.view(integer)
    mask = 1 << bit if bit < width - 1 or width == 8 else -(1 << bit)
    bits.bitwise_xor_(torch.tensor(mask, dtype=integer, device=bits.device))
    return before, float(element).hex()


def _tear(act: dict[str, Any], answer: Callable[..., None]) -> None:
    """Damage the checkpoint that this process committed last: its largest file, beside the index of a directory."""
    path = saves.newest_committed()
    if not path:
        raise Unable("this rank has committed no checkpoint; choose a node whose first rank saves")
    file = _largest(Path(path))
    size, how = file.stat().st_size, str(act["how"])
    if how == "missing":
        file.unlink()
    elif how == "truncated":
        os.truncate(file, size // 2)
    else:
        with file.open("r+b") as content:
            content.seek(size // 2)
            byte = content.read(1)[0]
            content.seek(size // 2)
            content.write(bytes([byte ^ 1]))
    answer(path=str(file), size_bytes=size)


def _largest(path: Path) -> Path:
    if not path.is_dir():
        return path
    files = [file for file in path.rglob("*") if file.is_file() and file.name != ".metadata"]
    if not files:
        raise Unable(f"{path} has no file")
    return max(files, key=lambda file: file.stat().st_size)


_ACTS: dict[str, Callable[[dict[str, Any], Callable[..., None]], BaseException | None]] = {
    "spin": _spin,
    "run-out-of-memory": _run_out_of_memory,
    "flip": _flip,
    "tear": _tear,
}


class Orders:
    """The lines of ``orders-r<rank>.jsonl`` that this process has not read yet.

    ``skips_earlier``: the orders from before it began were for a process that a launcher has replaced by this one.
    """

    def __init__(self, directory: str, rank: int, *, skips_earlier: bool = False) -> None:
        self._path = Path(directory) / f"orders-r{rank}.jsonl"
        self._name = str(self._path)
        self._offset = self._path.stat().st_size if skips_earlier and self._path.exists() else 0

    def is_due(self) -> bool:
        """Are there orders that were not read? An order acts at the next step, so this is asked at every one."""
        try:  # most processes get none: an exception for a file that is missing costs more than the call
            return os.access(self._name, os.F_OK) and self._path.stat().st_size > self._offset
        except OSError:
            return False

    def read(self) -> list[dict[str, Any]]:
        """The new whole lines. It costs one ``stat`` where there are none."""
        try:
            if self._path.stat().st_size <= self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:
            return []
        self._offset += len(whole) + 1 if whole else 0
        return [json.loads(line) for line in whole.split(b"\n") if line]


def append_answer(directory: str, rank: int, **fields: Any) -> None:
    """Append what was done on order to ``acts-r<rank>.jsonl``: the proof that the node's keeper reads. Raises OSError."""
    path = Path(directory) / f"acts-r{rank}.jsonl"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps({"pid": os.getpid(), **fields}).encode() + b"\n")
    finally:
        os.close(fd)
