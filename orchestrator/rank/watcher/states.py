"""The state after n steps: digests of parameters every k-th step, of everything after starts, saves and loads, and at the end.

The budget chooses k, and the steps after a start, a save or a load.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

from . import digest, importlib_bootstrap, kept_tensors, owner, record, sharding, steps, tensor_names
from .budget import budget
from .checkpoints import fused_names, generator_states, save_moments, saved_contents, tensor_parts
from .measures import batches, time_split

#: After every so many steps it is asked whether lines of old ones are to be replaced.
OLD = 16


class States:
    """The record of the state at the boundaries of steps."""

    def __init__(self) -> None:
        self.owner: owner.Owner | None = None
        self._is_full_due = True
        self._has_device = self._has_buffers = False
        self._last: tuple[float, float] | None = None
        self._moment: tuple[dict[str, str], list[str]] | None = None
        #: Random generators and learning rates as the last moment recorded them.
        self._written: tuple[dict[str, str], list[str]] = ({}, [])
        #: Until so many steps nothing is due, unless something is saved or loaded.
        self._quiet_until = 0
        #: When a state was recorded in full.
        self._full_at = 0.0
        self.saves: save_moments.SaveMoments | None = None
        self._kept = kept_tensors.KeptTensors()

    def request_full(self) -> None:
        """Something was saved or loaded, or a hold has ended: the next state is recorded in full."""
        self._is_full_due, self._quiet_until = True, 0
        budget.begin_window(steps.completed())

    def begin_pass(self) -> None:
        """A backward pass begins. After a save, tensors that the script keeps are sought before gradients change some of them."""
        if self._is_full_due and self.owner is not None and steps.completed():
            self._kept.find(steps.completed(), self.owner)

    def release(self) -> None:
        """Give up the references to optimizers and models: the next boundary finds those that the script has then."""
        self.owner, batches.batches.models = None, ()

    def record_boundary(self, n: int, optimizer: Any) -> None:
        """The parameters are those after n steps, and ``optimizer`` is about to change them."""
        now = (time.monotonic(), time.process_time())
        if self._last is not None:
            elapsed_s, cpu_s = now[0] - self._last[0], now[1] - self._last[1]
            budget.add_step(elapsed_s, elapsed_s if self._has_device else cpu_s)
        if self.owner is None or self.owner.is_outdated(optimizer):
            self._identify(optimizer)
        assert self.owner is not None
        if (
            self.saves is not None
            and self.saves.path
            and self.saves.is_new()
            and budget.affords_full(now[0] - self._full_at)
        ):
            self.request_full()
        if n < self._quiet_until and not self._is_full_due:
            self._last = now
            return
        choice = budget.choose(n)
        if choice is not None:
            record.line("every", **choice)
            _record_ddp(n, self.owner)
        if self._is_full_due or budget.is_state_due(n):
            is_full = self._is_full_due or budget.is_in_window(n)
            begin = time.thread_time()
            self._record(n, optimizer, full=is_full)
            budget.add_cost("full" if is_full else "state", time.thread_time() - begin)
        elif budget.is_moment_due(n) or n & (n - 1) == 0:  # of a short job it is known early whether steps draw
            begin = time.thread_time()
            self._moment = (generators(), self.owner.rates())
            budget.add_cost("generators", time.thread_time() - begin)
        self._quiet_until = budget.quiet_until(n)
        self._last = (time.monotonic(), time.process_time())

    def take_moment(self) -> dict[str, Any] | None:
        """Return what was known before the step that has just ended, as fields of its line, where no state has it.

        What is as in the moment before is left out.
        """
        if self._moment is None:
            return None
        (rng, rates), (before_rng, before_rates) = self._moment, self._written
        self._written, self._moment = self._moment, None
        changed = {name: value for name, value in rng.items() if before_rng.get(name) != value}
        return {"rng": changed, **({"lr": rates} if rates != before_rates else {})}

    def replace_old(self, n: int) -> None:
        """The record has ranges for old steps from time to time; the next moment then states all that it knows."""
        if not n % OLD and record.replace_old(n, max(0, int(budget.offset))):
            self._written = ({}, [])

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
        batches.batches.models = self.owner.modules
        digest.prepare(self.owner.devices)
        self._has_device = any(device.type != "cpu" for device in self.owner.devices)
        first, known = self.owner.optimizers[0], self.owner
        record.line(
            "owner", optimizer=getattr(first, "engine_name", type(first).__name__), index=0,
            optimizers=len(known.optimizers), tensors=len(known.parts),
            numel=known.numel, names=known.naming, sharded=bool(known.shards), shards=list(known.shards), groups=None,
            parameters=known.shapes(), compiled=steps.has_compiled(),
        )  # fmt: skip
        buffers_saved = tuple(name for name, _ in saved_buffers(known.modules))
        self._has_buffers = bool(buffers_saved)
        saved_contents.owner.set(describe_owner(known, buffers_saved))

    def _record(self, n: int, optimizer: Any, *, full: bool) -> None:
        known = self.owner
        assert known is not None
        fields = self._weights()
        counter = known.counter()
        budget.offset = 0 if counter is None else counter - n
        if not n:
            self._kept.find(n, known)
        elif self._is_full_due:
            self._kept.keep_untouched(n)
        if full:
            fields.update(self._rest(known))
        elif self._has_buffers:  # each rank has its own, and only the ranks that save record the rest at that moment
            fields["buffers"] = buffers(known.modules)
        if not n and _places:
            fields["places"] = _places[-2:]
        if self._is_full_due:  # what was saved may have been in the middle of an accumulation
            is_due = steps.groups.passes > steps.groups.used_passes  # else the backward pass comes with a closure
            fields["gradients"] = owner.gradients(optimizer) if is_due else None
        self._is_full_due, self._full_at = False, time.monotonic() if full else self._full_at
        record.line("state", n=n, full=full, **fields, counter=counter, rng=generators(), batch=batches.batches.first())

    def _weights(self) -> dict[str, Any]:
        """The digest of the parameters, or why there is none."""
        assert self.owner is not None
        try:
            weights, numel = self.owner.weights()
        except digest.Undigestible as error:
            record.unknown("digest", str(error))
            return {"weights": None, "numel": 0, "why": str(error)}
        return {"weights": weights, "numel": numel, "sums": self.owner.sums()}

    def _rest(self, known: owner.Owner) -> dict[str, Any]:
        for name in filter(sys.modules.__contains__, generator_states.UNREAD):
            record.unknown("RNG", f"of {name}: its state is not read, and cannot be put back", is_sure=False)
        return {
            "buffers": buffers(known.modules),
            "copies": {**copies(known.copies), **self._kept.digests()},
            "optimizer": known.optimizer_states(),
            "lr": known.rates(),
            "groups": known.settings(),
            "scaler": _scaler(known.scalers[0]) if known.scalers else None,
            "scheduler": [[item.last_epoch, getattr(item, "_step_count", None)] for item in known.schedulers] or None,
        }


@record.guarded("ddp")
def _record_ddp(n: int, known: owner.Owner | None) -> None:
    """Record what DDP has timed itself until now."""
    for fields in time_split.read_ddp_timers(known.modules if known is not None else ()):
        record.line("ddp", n=n, **fields)


def saved_buffers(modules: list[Any]) -> Iterator[tuple[str, Any]]:
    """The buffers that are saved with the modules, by normalised name."""
    for prefix, module in tensor_names.modules_by_name(modules):
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
    """Class of each copy of the model, with its number -> the digest of its parameters and saved buffers.

    Of a wrapper, such as an average that counts what it holds, there is a second one without its own buffers: jobs save either.
    """
    result: dict[str, str | None] = {}
    for number, module in enumerate(modules):
        name = f"{type(module).__name__} {number}"
        result[name] = _digest_of_module(module)
        inner = getattr(module, "module", None)
        if hasattr(inner, "_parameters"):
            result[f"{name} inside"] = _digest_of_module(inner)
    return result


def _digest_of_module(module: Any) -> str | None:
    tensors = [
        (prefix + name, parameter)
        for prefix, part in tensor_names.modules_by_name([module])
        for name, parameter in part._parameters.items()
        if parameter is not None
    ]
    try:
        with digest.undisturbed():
            return digest.total([*tensors, *saved_buffers([module])])[0]
    except digest.Undigestible:
        return None


def generators() -> dict[str, str]:
    """A fingerprint of each random generator."""
    kinds = {"cuda": "torch"}
    return {name: _generator(name, kinds.get(name, name), state) for name, state in generator_states.read().items()}


#: Generator -> its last state and fingerprint: scripts draw from few of them.
_known: dict[str, tuple[Any, str]] = {}


def _generator(name: str, kind: str, state: Any) -> str:
    """The fingerprint of a state, computed only if it has changed."""
    comparable = (state[1].tobytes(), state[2:]) if kind == "numpy" else state
    if kind != "torch" and name in _known and _known[name][0] == comparable:
        return _known[name][1]
    value = generator_states.fingerprint(kind, state)
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
    iterator.__init__ = importlib_bootstrap.observe(
        iterator.__init__, lambda *_: _torch_fingerprint(), lambda before, *_: _equate(before)
    )


#: What the script did with torch's generator before its first step, and where: it restored it, and a DataLoader drew from it then.
_places: list[str] = []


@record.guarded("rng")
def _note_place(what: str) -> None:
    frame, own = sys._getframe(), __name__.partition(".")[0]
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in (own, "torch"):
        frame = frame.f_back
    if not steps.completed():
        _places.append(f"{what} at {frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}")


@record.guarded("rng")
def _torch_fingerprint() -> str:
    import torch

    return _generator("torch", "torch", torch.get_rng_state())


@record.guarded("rng")
def _equate(before: str | None) -> None:
    after = _torch_fingerprint()
    if _places:
        _note_place("drawn from by a DataLoader")
    _equivalent.clear()
    if before and after != before:
        _equivalent[after] = before


def _scaler(scaler: Any) -> dict[str, str | int]:
    """The state of a gradient scaler; numbers as ``float.hex``."""
    return {name: value.hex() if isinstance(value, float) else value for name, value in scaler.state_dict().items()}


#: The states of this process.
states = States()


def watch() -> None:
    """Record the state at every boundary of steps."""
    _discount_seeds()
    torch: Any = sys.modules["torch"]
    restore = importlib_bootstrap.observe(torch.set_rng_state, lambda *_: _note_place("restored"))
    torch.set_rng_state = torch.random.set_rng_state = restore
    steps.measure("states", states.take_moment)
    steps.groups.releases.append(states.release)
    steps.groups.boundaries.append(record.guarded("states")(states.record_boundary))
    steps.on_step(states.replace_old)


def begin() -> None:
    """Read the environment of this rank."""
    budget.fix(os.environ.get("CCBED_WATCH_EVERY", "auto"))
    states.saves = save_moments.SaveMoments()


def describe_owner(known: owner.Owner, buffers: tuple[str, ...]) -> saved_contents.Owner:
    """Names, addresses and shapes of the owner's parameters. ``buffers``: names of those that are saved with the model."""
    held_by = {id(parameter): held for parameter, held in known.parameters()}
    pointers = tuple(int(digest.local(parameter).data_ptr()) for parameter, held in known.parameters() for _ in held)
    reference = weakref.ref(known)
    counted = {name for name, part in known.parts.items() if sharding.counts(part, known.shards, known.rank)}
    return saved_contents.Owner(
        parameters=tuple(known.parts),
        buffers=buffers,
        pointers=pointers,
        shapes=tuple(part.shape for part in known.parts.values()),
        optimizers=tuple(
            tuple(part.name for parameter in owner.parameters_of(optimizer) for part in held_by.get(id(parameter), ()))
            for optimizer in known.owning
        ),
        counted=frozenset(counted),
        scalars=frozenset(name for name in counted if known.parts[name].holds_first()),
        gradients=lambda: _gradients(reference()),
        live=lambda: _live(reference()),
    )


def _live(known: owner.Owner | None) -> fused_names.Tensors:
    return {of[0].name: x for x, of in known.parameters() if len(of) == 1 and not of[0].select} if known else {}


def _gradients(known: owner.Owner | None) -> str | None:
    """The digest of the gradients; None if a parameter has none, or where ranks hold shards."""
    held = {of[0].name: x.grad for x, of in known.parameters() if of} if known is not None and not known.shards else {}
    digested = tensor_parts.digest_all((name, item) for name, item in held.items() if item is not None)
    return tensor_parts.total(digested)[0] if held and len(digested) == len(held) else None
