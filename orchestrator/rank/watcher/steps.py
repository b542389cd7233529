"""Steps: outermost calls of ``Optimizer.step`` between two backward passes, counted by the optimizer with the most parameters.

The *leader* is the optimizer with the most parameters among those that have stepped; its step completes a step. The state
after n steps is that at the first ``step()`` of the next cycle, of whichever optimizer opens a cycle. So GANs, several
optimizers, wrappers that call ``step`` of another optimizer, and an optimizer per parameter have one step per iteration.
A job that trains one model after another, as for cross-validation, goes on to count by the optimizer of the next one.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from . import digest, record, tensor_names

#: Functions that call ``step`` only to create the optimizer's state.
_INITIALISERS = {"_init_optim_state", "initialize_optimizer_states"}
#: Every so many steps, and at first at each, the line says what CPU time was used.
ACCOUNTED = 32
#: Optimizers that appear while the leader lives, until which each new one is looked at: that takes a garbage collection.
MAX_ADDED = 3


class StepGroups:
    """Groups the calls of the hooks into steps. ``n``: steps completed and closed by this process."""

    def __init__(self) -> None:
        self.n = 0
        self._pending: dict[str, Any] | None = None
        self._first: weakref.ref[Any] | None = None
        self._leader: weakref.ref[Any] | None = None
        self._sizes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Optimizers that appeared later, beside a leader that went on to live.
        self._added = 0
        #: The leader has stepped since the state was recorded.
        self._is_state_due = True
        #: The step that has begun only creates the optimizer's states.
        self._is_initial = False
        self._step_code: CodeType | None = None
        self._last_end: float | None = None
        self.started: float | None = None
        #: Backward passes that have begun, and those that the last step of an optimizer has used.
        self.passes = self.used_passes = 0
        #: ``callback(n, optimizer)`` with the state after n steps, before ``optimizer`` changes it.
        self.boundaries: list[Callable[[int, Any], None]] = []
        #: ``callback()`` to give up references to optimizers.
        self.releases: list[Callable[[], None]] = []
        #: ``callback(n)`` once step n is complete.
        self.completions: list[Callable[[int], None]] = []
        #: (what it observes, ``callback()`` -> fields of the step line that has just ended, or None).
        self.measures: list[tuple[str, Callable[[], dict[str, Any] | None]]] = []

    def completed(self) -> int:
        """Steps completed by this process, with one that is complete but not yet written."""
        return self.n + (self._pending is not None)

    def begin_backward(self) -> None:
        """A backward pass begins: the group before it is over, unless an optimizer calls it as its closure."""
        self.passes += 1
        if self.started is None:
            self.started = time.monotonic()
        if self._pending is not None and not self._is_inside_step(sys._getframe(1)):
            self.flush()

    def begin_step(self, optimizer: Any, frame: FrameType) -> None:
        """The pre-hook. ``frame``: that of torch's wrapper of ``step``."""
        self._step_code = frame.f_code
        if self._is_part(frame.f_back):
            return
        is_new = optimizer not in self._known
        self._is_initial = is_new and self.passes == self.used_passes and _creates_states(optimizer)
        if self._is_initial:
            return
        if is_new:
            self._known.add(optimizer)
            self._release_leader(optimizer)
        if self._first is None:
            self._first = weakref.ref(optimizer)
        leader = self._leader() if self._leader is not None else None
        opens = self._first() is optimizer or leader is optimizer
        if self._is_state_due and (opens or (leader is not None and self._replaces(optimizer, leader))):
            self.flush()
            self._is_state_due = False
            for callback in self.boundaries:
                callback(self.n, optimizer)

    def end_step(self, optimizer: Any, frame: FrameType) -> None:
        """The post-hook."""
        if self._is_part(frame.f_back) or self._is_initial:
            return
        self.used_passes = self.passes
        leader = self._leader() if self._leader is not None else None
        if leader is None or (optimizer is not leader and self._replaces(optimizer, leader)):
            self._leader = weakref.ref(optimizer)
        elif optimizer is not leader:
            if self._pending is not None:
                self._measure()
            if self._size(optimizer) > self._size(leader):  # it takes over: the step it is part of is counted already
                self._leader = weakref.ref(optimizer)
                self._is_state_due = True
            return
        self._is_state_due = True
        self._measure()

    def flush(self) -> None:
        """Write the line of a step that is complete."""
        if self._pending is None:
            return
        self.n += 1
        fields, self._pending = {"n": self.n, **self._pending}, None
        if not self.n % ACCOUNTED or self.n < ACCOUNTED:
            fields.update(watcher_cpu_s=record.cpu_s(), cpu_s=time.process_time())
        record.write("step", fields)
        self._last_end = fields["end"]
        for callback in self.completions:
            callback(self.n)

    def _measure(self) -> None:
        """The step ends now, if nothing of its group follows."""
        end = time.monotonic()
        begun = self._last_end if self._last_end is not None else self.started
        is_first = self._pending is None
        pending = self._pending or {"start": end if begun is None else begun}
        pending["end"] = end
        self._pending = pending
        off = record.switched_off()
        for where, callback in self.measures:  # here and not each ``guarded``: a call costs as much as what it does
            if where in off:
                continue
            try:
                fields = callback()
            except Exception as error:  # noqa: BLE001 the user's script goes on
                record.report(where, error)
                continue
            if fields and is_first:
                pending.update(fields)
            elif fields:
                _merge(pending, fields)

    def _size(self, optimizer: Any) -> int:
        if optimizer not in self._sizes:
            groups = optimizer.param_groups
            self._sizes[optimizer] = sum(int(p.numel()) for group in groups for p in group["params"])
        return self._sizes[optimizer]

    def _replaces(self, optimizer: Any, leader: Any) -> bool:
        """Return whether the script has made ``optimizer`` for the parameters of the leader, of which the watcher knew until now."""
        if self._size(optimizer) < self._size(leader):
            return False
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return any(id(p) in own for group in leader.param_groups for p in group["params"])

    def _release_leader(self, optimizer: Any) -> None:
        """A new optimizer of other parameters opens a step if the script has none of those before it any more."""
        leader = self._leader() if self._leader is not None else None
        if self.n < 2 or self._added >= MAX_ADDED or (leader is not None and self._replaces(optimizer, leader)):
            return
        del leader
        for callback in self.releases:
            callback()
        gc.collect()  # a scheduler and its optimizer refer to each other
        leader = self._leader() if self._leader is not None else None
        if leader is None or (self._size(leader) == self._size(optimizer) and _is_left(leader, optimizer)):
            self._first, self._leader, self._is_state_due = None, None, True
        else:
            self._added += 1

    def _is_inside_step(self, frame: FrameType | None) -> bool:
        """Does ``step()`` of an optimizer call this frame? Read from the stack: a step that raised leaves no trace."""
        step_code = self._step_code
        while frame is not None:
            if frame.f_code is step_code:
                return True
            frame = frame.f_back
        return False

    def _is_part(self, frame: FrameType | None) -> bool:
        """Return whether another ``step()``, or what creates an optimizer's state, calls this frame."""
        step_code, near = self._step_code, 6
        while frame is not None:
            code = frame.f_code
            if code is step_code or (near > 0 and code.co_name in _INITIALISERS):
                return True
            frame, near = frame.f_back, near - 1
        return False


def _creates_states(optimizer: Any) -> bool:
    """Return whether a first step without a backward pass has only gradients of 0, for parameters without a state:
    libraries make states so.
    """
    held = [p for group in optimizer.param_groups for p in group["params"] if getattr(p, "grad", None) is not None]
    with digest.undisturbed():
        return bool(held) and all(p not in optimizer.state and digest.is_zero(p.grad) for p in held)


def _is_left(old: Any, new: Any) -> bool:
    module = sys.modules["torch"].nn.Module
    return tensor_names.is_left(old, new, tensor_names.live_objects(module)[module])


def _merge(fields: dict[str, Any], more: dict[str, Any]) -> None:
    """Add up numbers and lists of a group with several optimizers; other values are those of the last one."""
    for name, value in more.items():
        is_sum = isinstance(value, (int, float, list)) and type(fields.get(name)) is type(value)
        fields[name] = fields[name] + value if is_sum else value


#: The steps of this process.
groups = StepGroups()


def completed() -> int:
    """Steps that this process has completed."""
    return groups.completed()


def note_error(where: str, error: BaseException | None) -> None:
    """An error of torch itself in the middle of a step: a script that catches it, and makes no further step, hides it."""
    trace = error.__traceback__ if isinstance(error, RuntimeError) else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace and "/torch/" in trace.tb_frame.f_code.co_filename and groups.passes > groups.used_passes:
        record.line("raised", n=completed(), where=where, error=f"{type(error).__name__}: {error}"[:160])


def on_step(callback: Callable[[int], None]) -> None:
    """Call ``callback(n)`` once step n is complete and written."""
    groups.completions.append(callback)


def on_boundary(callback: Callable[[int, Any], None]) -> None:
    """Call ``callback(n, optimizer)`` right before ``optimizer`` begins step n + 1, which changes the parameters."""
    groups.boundaries.append(callback)


def measure(where: str, callback: Callable[[], dict[str, Any] | None]) -> None:
    """Add the fields that ``callback()`` returns to the line of the step that has just ended. It resets its counters.

    Where it raises, the observation ``where`` is switched off.
    """
    groups.measures.append((where, callback))


def flush() -> None:
    """Write the line of a step that is complete: before a save, and at exit."""
    groups.flush()


def is_traced() -> bool:
    """Does torch.compile trace this call, or a CUDA graph capture it? Then nothing may be done, and replays are not seen."""
    torch: Any = sys.modules["torch"]
    if torch.compiler.is_compiling():
        return True
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        record.unknown("steps", "a CUDA graph contains the optimizer's step: its replays are not seen")
        return True
    return False


def has_compiled() -> bool:
    """Has torch.compile made a graph in this process?"""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return utils is not None and utils.counters["stats"].get("unique_graphs", 0) > 0
