"""Installs the watcher in this process: in a warm rank before the script, elsewhere when torch is imported."""

from __future__ import annotations

import atexit
import importlib
import os
import resource
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import importlib_bootstrap, imports, live_steps, record, states, steps
from .checkpoints import file_globs, observed_calls, save_moments, saves
from .engines import deepspeed, master_weights
from .holds import points, stack_signal
from .measures import batches, losses, time_split

_installed: list[int] = []
#: Has something once the process is hooked and its record has no place yet.
_drafts: list[bool] = []
#: Begins the record of this process; whether it has one.
_starters: list[Callable[[], bool]] = []


def install(directory: str, *, via: str, notify: Callable[..., None] | None = None) -> None:
    """Record this process into ``directory`` once it has imported torch; idempotent, and never raises.

    ``via``: ``warm`` or ``site``. ``notify(name, **value)`` reports events live.
    """
    if _drafts:
        _drafts.clear()
        _begin_record(directory, via, notify)
        _hook_rank(directory)
    if _installed:
        return
    _installed.append(os.getpid())

    def start() -> bool:
        if os.getpid() == _installed[0] and not record.is_active():
            _begin_record(directory, via, notify)
            atexit.unregister(end)  # of an earlier attempt, which failed
            atexit.register(end)
        return record.is_active()

    def begin(torch: ModuleType) -> None:
        if start():
            _hook(torch)
            _hook_rank(directory)

    _starters.append(start)
    imports.when_imported("torch", begin)


def install_ahead() -> None:
    """Hook a process that has imported torch before it is known for which rank; ``install`` then begins its record."""
    _installed.append(os.getpid())
    _drafts.append(True)
    atexit.register(end)
    record.begin_draft()
    _hook(sys.modules["torch"])


def _begin_record(directory: str, via: str, notify: Callable[..., None] | None) -> None:
    try:
        record.begin(directory, via=via, notify=notify or _event_file())
    except OSError as error:
        print(f"ccbed: the watcher cannot write into {directory}: {error.strerror}", file=sys.stderr)


def start_record() -> None:
    """Begin the record of a process that has not imported torch, but has something to report."""
    for start in _starters:
        start()


def _event_file() -> Callable[..., None] | None:
    """The events of a bed, where it names their file."""
    path = os.environ.get("CCBED_WATCH_EVENTS")
    try:
        return live_steps.EventFile(path).emit if path else None
    except (OSError, KeyError, ValueError):
        return None


@record.guarded("install")
def _hook(torch: Any) -> None:
    """Observe what imports may keep a reference to, and what is the same in every rank."""
    record.stay_out_of(torch._C._dynamo.eval_frame.set_eval_frame)
    optimizer = importlib.import_module("torch.optim.optimizer")
    optimizer.register_optimizer_step_pre_hook(_before_step)
    optimizer.register_optimizer_step_post_hook(_after_step)
    _watch_backward(torch.autograd)
    observed_calls.install(torch)
    states.watch()
    if "CCBED_INCARNATION" in os.environ:  # a bed may ask for stacks
        _set_signal_aside()
    live_steps.watch()
    losses.watch()
    batches.watch()
    batches.watch_inputs()
    time_split.watch()
    deepspeed.watch()
    master_weights.watch_megatron()
    record.line(
        "torch", version=torch.__version__, device="cuda" if torch.cuda.is_available() else "cpu",
        threads=torch.get_num_threads(),
    )  # fmt: skip


@record.guarded("install")
def _hook_rank(directory: str) -> None:
    """Observe what the environment and the orders of this rank ask for."""
    points.install(directory)
    live_steps.begin()
    states.begin()
    file_globs.install()
    save_moments.watch_random_states()


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not steps.is_traced() and not master_weights.is_stepping():
        _begin_step(optimizer, sys._getframe(1))


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not steps.is_traced() and not master_weights.is_stepping():
        _end_step(optimizer, sys._getframe(1))


_begin_step = record.guarded("steps")(steps.groups.begin_step)
_end_step = record.guarded("steps")(steps.groups.end_step)
_begin_backward = record.guarded("steps")(steps.groups.begin_backward)


def _watch_backward(autograd: Any) -> None:
    """Backward passes are seen where Python enters them: ``Tensor.backward`` calls ``torch.autograd.backward``."""
    autograd.backward = importlib_bootstrap.observe(autograd.backward, _enter_backward, _leave_backward)
    autograd.grad = importlib_bootstrap.observe(autograd.grad, _enter_grad)


def _enter_backward(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the backward pass is observed."""
    is_observed = not steps.is_traced()
    if is_observed:
        _begin_pass(args[0] if args else kwargs.get("tensors"))
    return is_observed


@record.guarded("steps")
def _begin_pass(tensors: Any) -> None:
    steps.groups.begin_backward()
    _begin_pass_of_states()
    if "loss" not in record.switched_off():
        try:
            losses.losses.add(tensors)
        except Exception as error:  # noqa: BLE001 the user's script goes on, and the steps are observed
            record.report("loss", error)


def _leave_backward(is_observed: bool, result: None, error: BaseException | None) -> None:
    if is_observed and error is None:
        time_split.end_backward()
    elif error is not None:
        _note_error("the backward pass", error)


def _enter_grad(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not steps.is_traced():
        _begin_backward()


@record.guarded("end")
def end() -> None:
    """Record the last state and the end of the process."""
    steps.flush()
    if steps.groups.passes and not steps.completed():
        record.unknown(
            "steps",
            f"{steps.groups.passes} backward passes and no step of an optimizer: compiled, captured, or not of torch",
        )
    _record_last_state(steps.completed())
    saves.finish_process()
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    record.line(
        "end", n=steps.completed(), watcher_cpu_s=record.cpu_s(), cpu_s=time.process_time(), peak_bytes=peak_bytes
    )


_begin_pass_of_states = record.guarded("kept tensors")(states.states.begin_pass)
_record_last_state = record.guarded("states")(states.states.record_end)
_note_error = record.guarded("steps")(steps.note_error)
_set_signal_aside = record.guarded("stacks")(stack_signal.register)
