"""The Slurm job of a bed: held while `up` and `run` work, shown by `plan`, and rejected where a run does not fit into it."""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.bed import slurm_job
from ...model.bed import BedSpec
from ...model.errors import CcbedError, UsageError
from ...model.trial import Trial
from ...store import beds as store
from ..render.terminal import short_path

#: The shortest run: start a gang, train, gather, and judge.
LEAST_S = 10.0

if TYPE_CHECKING:
    from ...model.provider import Provider
    from ...providers.slurm.allocation import Allocation
    from .session import Session


def show_plan(session: Session, bed: BedSpec) -> None:
    """Print the job as it would be submitted, and a batch script that runs ccbed inside of such a job."""
    from ...providers.slurm import allocation

    if bed.slurm is None:
        return
    inventory = short_path(bed.inventory)
    session.terminal.line(
        f"job of bed {bed.name}, submitted by `ccbed up {inventory}` and by `ccbed run TRIAL -i {inventory}`:"
    )
    session.terminal.line(f"  {shlex.join(allocation.submit_command(bed))}")
    session.terminal.line("as a batch script: ccbed uses the job in which it runs")
    session.terminal.lines([f"  {line}" for line in allocation.batch_script(bed, _run_command(bed)).splitlines()])


def plan(bed: BedSpec) -> dict[str, Any] | None:
    """The same as values; None for a bed of another provider."""
    from ...providers.slurm import allocation

    if bed.slurm is None:
        return None
    return {"submit": allocation.submit_command(bed), "batch_script": allocation.batch_script(bed, _run_command(bed))}


def _run_command(bed: BedSpec) -> str:
    nodes = sum(node.role == "node" for node in bed.nodes)
    return shlex.join(["ccbed", "run", "dp-ring", "--nodes", str(nodes), "-i", bed.inventory])


@contextmanager
def held(session: Session, bed: BedSpec, provider: Provider, *, is_new: bool) -> Iterator[None]:
    """A bed of provider slurm has a job that runs in the body, recorded in the bed's directory.

    If the body fails, what it started and a job that was submitted here end; a bed that ``is_new`` is forgotten.
    Raises UsageError, InfrastructureError.
    """
    if bed.slurm is None or _is_running(session, bed):
        yield
        return
    with sigterm_as_interrupt():
        job_id = 0
        try:
            job_id = _obtain(session, bed).job_id
            yield
        except BaseException:
            if job_id:
                _withdraw(session, bed, provider, job_id)
            if is_new:
                store.forget(session.state, bed.name)
            raise


def keep_abandoned(session: Session, bed: BedSpec) -> None:
    """`up` makes a kept bed of one whose command was killed: no later run releases its job; a warning names the job."""
    if bed.slurm is None:
        return
    from ...providers.slurm import allocation

    present = allocation.read(Path(bed.workdir))
    if present is not None and allocation.is_abandoned(present):
        allocation.write(replace(present, driver=""), Path(bed.workdir))
        session.terminal.warn(
            f"job {present.job_id} of bed {bed.name} was left by a command that was killed; it is kept now"
        )


def _is_running(session: Session, bed: BedSpec) -> bool:
    """Whether the recorded job still holds its nodes; a warning says how a job ended."""
    from ...providers.slurm import allocation

    present = allocation.read(Path(bed.workdir))
    if present is None:
        return False
    state = allocation.read_state(present)
    if state.kind in ("running", "suspended"):
        return True
    session.terminal.warn(f"job {present.job_id} of bed {bed.name} holds no nodes any more: {state.reason}")
    return False


def _obtain(session: Session, bed: BedSpec) -> Allocation:
    from ...providers.slurm import allocation

    terminal = session.terminal
    job_id = session.job.job_id or allocation.current_job(os.environ)
    if job_id:
        result = allocation.adopt(bed, job_id)
    else:
        terminal.status("  job         is submitted …")
        result = allocation.acquire(bed, wait_s=session.job.wait_s, report=lambda line: terminal.line(f"  {line}"))
    driver = allocation.this_process() if session.job.is_ephemeral else ""
    allocation.write(replace(result, driver=driver), Path(bed.workdir))
    session.obtained.append(bed.name)
    whose = "" if result.is_owned else ", not submitted by ccbed: it stays when the bed goes"
    terminal.line(f"  job         {result.job_id} on {' '.join(result.nodes)}, {time_left(result.ends_at)}{whose}")
    return result


def _withdraw(session: Session, bed: BedSpec, provider: Provider, job_id: int) -> None:
    """A job without a bed would only cost: what was started ends, and the job with it; else a warning names the job."""
    from ...providers.slurm import allocation

    try:
        try:
            provider.retire(bed)
        finally:
            allocation.release(bed, allocation.read(Path(bed.workdir)))
    except CcbedError as failure:
        session.terminal.warn(f"job {job_id} of bed {bed.name} may be left: {failure}; {failure.hint}")


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does, so that no job is left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def summary(bed: BedSpec) -> str:
    """The job as an error names it; empty for a bed of another provider."""
    return f"a job with {' '.join(slurm_job.limits(bed.slurm))}" if bed.slurm else ""


def time_left(ends_at: float | None, now: float | None = None) -> str:
    """``ends at 14:32, in 1 h 58 min``."""
    if ends_at is None:
        return "without a time limit"
    minutes = max(0, int(ends_at - (time.time() if now is None else now)) // 60)
    left = f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
    form = "%H:%M" if minutes < 12 * 60 else "%Y-%m-%d %H:%M"
    return f"ends at {time.strftime(form, time.localtime(ends_at))}, in {left}"


def refuse_short(bed: BedSpec, trial: Trial) -> None:
    """Raises UsageError where the job of the bed ends before the trial can: its last fault by time is known beforehand."""
    if bed.slurm is None:
        return
    from ...providers.slurm import allocation

    present = allocation.read(Path(bed.workdir))
    if present is None or present.ends_at is None:
        return
    left_s = max(0.0, present.ends_at - time.time())
    needed_s = max([LEAST_S, *(fault.at.after_s for fault in trial.faults if fault.at.after_s is not None)])
    if needed_s > left_s:
        raise UsageError(
            f"the run needs at least {needed_s:.0f} s, and job {present.job_id} of bed {bed.name} ends in {left_s:.0f} s",
            hint=f"ccbed down {bed.name}, set a longer ccbed_time, then: ccbed up {short_path(bed.inventory)}",
        )
