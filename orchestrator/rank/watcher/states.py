"""The state after n steps: digests of parameters every k-th step, of everything at the start, after loads and at the end.

k is the smallest power of two for which the digests cost at most BUDGET of the time of the steps.
"""

from __future__ import annotations

import functools
import importlib
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from . import batches, digest, names, owner, record, steps, tracing
from .checkpoints import contents, live_owner

#: The share of a step's time, on CPUs of its CPU time, that digests may take. The work of every step takes the rest of 2 %.
BUDGET = 0.005
#: Steps after which k is chosen, the last time for good.
CHOICES = (1, 4, 16)


class States:
    """What is recorded of the state at the boundaries of steps."""

    def __init__(self) -> None:
        self.owner: owner.Owner | None = None
        self._is_full_due = True
        self._offset: int | None = None
        self._fixed = 0
        self.every = 1
        self._cost_s = 0.0
        self._durations: list[float] = []
        self._has_device = self._has_buffers = False
        self._last: tuple[float, float] | None = None

    def fix_interval(self, setting: str) -> None:
        """``setting``: the number of steps between two states, or ``auto``."""
        self._fixed = int(setting) if setting.isdigit() and int(setting) else 0
        self.every = self._fixed or 1

    def request_full(self) -> None:
        """Something was saved or loaded, or a hold has ended: the next state is recorded in full."""
        self._is_full_due = True

    def record_boundary(self, n: int, optimizer: Any) -> None:
        """The parameters are those after n steps, and ``optimizer`` is about to change them."""
        now = (time.monotonic(), time.process_time())
        if self._last is not None:
            elapsed_s, cpu_s = now[0] - self._last[0], now[1] - self._last[1]
            self._durations.append(elapsed_s if self._has_device else min(elapsed_s, cpu_s))
        if self.owner is None or not any(known is optimizer for known in self.owner.optimizers):
            self._identify(optimizer)
        self._choose(n)
        if (
            self._is_full_due or n == 1 or (n + (self._offset or 0)) % self.every == 0
        ):  # 1: do ranks train on their own?
            begin = time.thread_time()
            self._record(n, full=self._is_full_due)
            cost_s = time.thread_time() - begin
            self._cost_s = min(cost_s, self._cost_s or cost_s)
        elif n & (n - 1) == 0:  # short jobs: whether steps draw from a generator is known without a second state
            record.line("rng", n=n, rng=generators())
        self._last = (time.monotonic(), time.process_time())

    def record_end(self, n: int) -> None:
        """The last state, at the normal end of the process: parameters and optimizer."""
        if self.owner is not None and n:
            record.line(
                "state",
                n=n,
                full=False,
                **self._weights(),
                optimizer=self.owner.optimizer_states(),
                lr=self.owner.rates(),
            )

    def _identify(self, optimizer: Any) -> None:
        self.owner = owner.Owner(optimizer)
        digest.prepare(self.owner.devices)
        self._has_device = any(device.type != "cpu" for device in self.owner.devices)
        first, known = self.owner.optimizers[0], self.owner
        record.line(
            "owner", optimizer=getattr(first, "engine_name", type(first).__name__), index=0,
            optimizers=len(known.optimizers), tensors=len(known.parts),
            numel=known.numel, names=known.naming, sharded=bool(known.shards), shards=list(known.shards), groups=None,
            parameters=known.shapes(), compiled=tracing.has_compiled(),
        )  # fmt: skip
        buffers_saved = tuple(name for name, _ in saved_buffers(known.modules))
        self._has_buffers = bool(buffers_saved)
        contents.owner.set(live_owner.describe(known, buffers_saved))

    def _record(self, n: int, *, full: bool) -> None:
        known = self.owner
        assert known is not None
        fields = self._weights()
        counter = known.counter()
        self._offset = None if counter is None else counter - n
        if full:
            fields.update(self._rest(known))
        elif self._has_buffers:  # each rank has its own, and only the ranks that save record the rest at that moment
            fields["buffers"] = buffers(known.modules)
        self._is_full_due = False
        record.line("state", n=n, full=full, **fields, counter=counter, rng=generators(), batch=batches.batches.first())

    def _weights(self) -> dict[str, Any]:
        """The digest of the parameters, or why there is none."""
        assert self.owner is not None
        try:
            weights, numel = self.owner.weights()
        except digest.Undigestible as error:
            record.unknown("digest", str(error))
            return {"weights": None, "numel": 0, "why": str(error)}
        return {"weights": weights, "numel": numel}

    def _rest(self, known: owner.Owner) -> dict[str, Any]:
        return {
            "buffers": buffers(known.modules),
            **({"copies": copies(known.copies)} if known.copies else {}),
            "optimizer": known.optimizer_states(),
            "lr": known.rates(),
            "scaler": _scaler(known.scalers[0]) if known.scalers else None,
            "scheduler": [[item.last_epoch, getattr(item, "_step_count", None)] for item in known.schedulers] or None,
        }

    def _choose(self, n: int) -> None:
        """Choose k by the cost of a digest and the median step, from the second step on."""
        if self._fixed or n not in CHOICES or not self._durations:
            if n == 0:
                record.line("every", every=self.every, cost_s=None, step_s=None, budget=BUDGET, fixed=bool(self._fixed))
            return
        step_s = statistics.median(self._durations)
        every = 1
        while self._cost_s > BUDGET * step_s * every and every < 1 << 20:
            every *= 2
        if every != self.every or n == CHOICES[-1]:
            self.every = every
            record.line("every", every=every, cost_s=round(self._cost_s, 6), step_s=round(step_s, 6), budget=BUDGET)


def saved_buffers(modules: list[Any]) -> Iterator[tuple[str, Any]]:
    """The buffers that are saved with the modules, by normalised name."""
    for prefix, module in names.modules_by_name(modules):
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield prefix + name, buffer


def buffers(modules: list[Any]) -> str | None:
    """The digest of the buffers; None if one has none. Each rank has its own."""
    try:
        return digest.total(saved_buffers(modules))[0]
    except digest.Undigestible:
        return None


def copies(modules: list[Any]) -> dict[str, str | None]:
    """Class of each copy of the model, with its number -> the digest of its parameters and saved buffers."""
    result: dict[str, str | None] = {}
    for number, module in enumerate(modules):
        tensors = [
            (prefix + name, p)
            for prefix, part in names.modules_by_name([module])
            for name, p in part._parameters.items()
        ]
        try:
            with digest.undisturbed():
                value = digest.total([*((name, p) for name, p in tensors if p is not None), *saved_buffers([module])])[
                    0
                ]
        except digest.Undigestible:
            value = None
        result[f"{type(module).__name__} {number}"] = value
    return result


def generators() -> dict[str, str]:
    """A fingerprint of each random generator."""
    import torch

    states = {"python": ("python", random.getstate()), "torch": ("torch", torch.get_rng_state())}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        states["numpy"] = ("numpy", numpy.random.get_state())
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = ("torch", torch.cuda.get_rng_state())
    return {name: _generator(name, kind, state) for name, (kind, state) in states.items()}


#: Generator -> its last state and fingerprint: scripts draw from few of them.
_known: dict[str, tuple[Any, str]] = {}


def _generator(name: str, kind: str, state: Any) -> str:
    """The fingerprint of a state, computed only if it has changed."""
    comparable = (state[1].tobytes(), state[2:]) if kind == "numpy" else state
    if kind != "torch" and name in _known and _known[name][0] == comparable:
        return _known[name][1]
    value = contents.rng_digest(kind, state)
    if kind == "torch":
        return _equivalent.get(value, value)
    _known[name] = (comparable, value)
    return value


#: Fingerprint of torch's generator after the last seed for a DataLoader -> that before it.
_equivalent: dict[str, str] = {}


def _discount_seeds() -> None:
    """A new iterator of a DataLoader draws a seed for its workers: it does not count as a draw of the script.

    An attempt that resumes draws another one, so that steps which are executed again show whether batches depend on it.
    """
    iterator = importlib.import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
    original = iterator.__init__

    @functools.wraps(original)
    def create(self: Any, *args: Any, **kwargs: Any) -> None:
        before = _torch_fingerprint()
        original(self, *args, **kwargs)
        _equate(before)

    iterator.__init__ = create


@record.guarded("rng")
def _torch_fingerprint() -> str:
    import torch

    return _generator("torch", "torch", torch.get_rng_state())


@record.guarded("rng")
def _equate(before: str | None) -> None:
    after = _torch_fingerprint()
    _equivalent.clear()
    if before and after != before:
        _equivalent[after] = before


def _scaler(scaler: Any) -> dict[str, Any]:
    """The state of a gradient scaler; numbers as ``float.hex``."""
    return {name: value.hex() if isinstance(value, float) else value for name, value in scaler.state_dict().items()}


#: The states of this process.
states = States()


def watch() -> None:
    """Record the state at every boundary of steps."""
    _discount_seeds()
    states.fix_interval(os.environ.get("CCBED_WATCH_EVERY", "auto"))
    steps.groups.boundaries.append(record.guarded("states")(states.record_boundary))
