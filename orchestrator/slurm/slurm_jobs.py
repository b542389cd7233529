"""The Slurm job of a bed: held for `up`, `run` or one command, shown by `plan`, and rejected where a run does not fit into it."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..app import bed_job
from ..app.places import short_path
from ..model.bed import BedSpec
from ..model.errors import CcbedError, InfrastructureError, UsageError
from ..model.trial import Trial
from ..store import bed_files as store
from ..store import index

#: The shortest run: start a gang, train, gather, and judge.
LEAST_S = 10.0

if TYPE_CHECKING:
    from ..app.session import Session
    from ..model.provider import Provider
    from .allocation import Allocation, Driver


def show_plan(session: Session, bed: BedSpec) -> None:
    """Print the job as it would be submitted, and a batch script that runs ccbed inside of such a job."""
    from . import allocation

    if bed.slurm is None:
        return
    inventory = short_path(bed.inventory)
    session.terminal.line(
        f"job of bed {bed.name}, submitted by `ccbed up {inventory}` and by `ccbed run TRIAL -i {inventory}`:"
    )
    session.terminal.line(f"  {shlex.join(allocation.submit_command(bed))}")
    session.terminal.line("as a batch script: ccbed uses the job in which it runs")
    session.terminal.lines([f"  {line}" for line in allocation.batch_script(bed, _run_command(bed)).splitlines()])
    _warn_of_unused_gpus(session, bed)


def plan(bed: BedSpec) -> object:
    """The same as values; None for a bed of another provider."""
    from . import allocation

    if bed.slurm is None:
        return None
    return {"submit": allocation.submit_command(bed), "batch_script": allocation.batch_script(bed, _run_command(bed))}


def _warn_of_unused_gpus(session: Session, bed: BedSpec) -> None:
    """A job step has the GPUs of its job only if the bed has some (``ccbed_gpus``); else its ranks would run on CPUs unnoticed."""
    options = bed.slurm.options if bed.slurm else {}
    is_asked = "gpu" in options.get("gres", "") or any(name.startswith("gpus") for name in options)
    if is_asked and not any(node.gpus for node in bed.nodes):
        text = "its job has GPUs, and its nodes use none: set ccbed_gpus to the number that each node uses"
        session.terminal.warn(f"{short_path(bed.inventory)}: bed {bed.name}: {text}")


def _run_command(bed: BedSpec) -> str:
    nodes = sum(node.role == "node" for node in bed.nodes)
    return shlex.join(["ccbed", "run", "dp-ring", "--nodes", str(nodes), "-i", bed.inventory])


@contextmanager
def held(session: Session, bed: BedSpec, provider: Provider, *, is_new: bool) -> Iterator[None]:
    """A bed of provider slurm has a job that runs in the body, recorded in the bed's directory.

    If the body fails, what it started and a job that was submitted here end; then a bed that ``is_new`` is forgotten. A job
    that cannot be cancelled is named, and its bed stays known, so that `down` finds it. Raises UsageError, InfrastructureError.
    """
    if bed.slurm is None or _is_running(session, bed):
        yield
        return
    with bed_job.signals_as_interrupt():
        try:
            _refuse_second(session, bed)
        except BaseException:
            if is_new:
                store.forget(session.state, bed.name)
            raise
        is_used = is_new
        try:
            _obtain(session, bed)
            is_used = True
            yield
        except BaseException:
            if _withdraw(session, bed, provider, is_used=is_used) and is_new:
                store.forget(session.state, bed.name)
            raise


def take_over(session: Session, bed: BedSpec, *, force: bool = False) -> None:
    """The job of a command that was killed is released by this command, or kept if that is `up`; the caller holds the bed's lock.

    While its run is open it stays as it is: `resume` uses and releases it. A warning names the job. ``force``: the run ends.
    """
    if bed.slurm is None:
        return
    from . import allocation

    present, terminal = allocation.read(Path(bed.workdir)), session.terminal
    if present is None or present.driver in (None, allocation.this_process()):
        return
    named = f"job {present.job_id} of bed {bed.name}"
    if not allocation.is_abandoned(present):
        terminal.warn(f"{named} ends with the command that submitted it ({_describe(present.driver)})")
        return
    run = store.open_run(Path(bed.workdir))
    if run is not None and not (force or session.job.is_resumed):
        hint = f"{_resume_command(run)} uses and releases it; to end both: ccbed down {bed.name} --force"
        terminal.warn(f"{named} was left by a command that was killed, with run {run.run}; {hint}")
        return
    driver = allocation.this_process() if session.job.is_ephemeral else None
    allocation.write(replace(present, driver=driver), Path(bed.workdir))
    if driver:
        session.obtained.append(bed.name)
    terminal.warn(
        f"{named} was left by a command that was killed; it is {'used and released' if driver else 'kept now'}"
    )


def _resume_command(run: store.OpenRun) -> str:
    night = Path(run.directory).parent.parent
    if index.is_night(night):
        return f"ccbed nightly --resume {short_path(night)}"
    return f"ccbed resume {short_path(run.directory)}"


def refuse_other_job(session: Session, bed: BedSpec) -> None:
    """Raises UsageError where the job that the user means is not that of the bed: --jobid, or the job in which `up` runs."""
    chosen = session.job.job_id
    if bed.slurm is None:
        if chosen:
            raise UsageError(f"--jobid {chosen}: bed {bed.name} has provider {bed.provider}, which has no job")
        return
    from . import allocation, job_state

    job_id = chosen or allocation.current_job(os.environ)
    present = allocation.read(Path(bed.workdir)) if job_id else None
    if present is None or present.job_id == job_id or allocation.read_state(present).kind in job_state.FINAL:
        return
    which = f"--jobid {job_id}" if chosen else f"ccbed runs in job {job_id}"
    raise UsageError(
        f"{which}: bed {bed.name} has job {present.job_id}",
        hint=f"first: ccbed down {bed.name}     or use its job: ccbed run TRIAL --bed {bed.name}",
    )


def _refuse_second(session: Session, bed: BedSpec) -> None:
    from . import allocation

    if not _existing_job(session):
        allocation.refuse_second(bed)


def _existing_job(session: Session) -> int | None:
    """The job that the user names, or in which this command runs."""
    from . import allocation

    return session.job.job_id or allocation.current_job(os.environ)


def _describe(driver: Driver | None) -> str:
    return f"pid {driver.pid} on {driver.hostname}" if driver else ""


def _is_running(session: Session, bed: BedSpec) -> bool:
    """Return whether the recorded job still holds its nodes; a warning says how a job ended. Raises InfrastructureError."""
    from . import allocation, job_state

    present = allocation.read(Path(bed.workdir))
    if present is None:
        return False
    state = allocation.read_state(present)
    if state.kind in job_state.RUNNING:
        return True
    if state.kind == "unknown":
        raise InfrastructureError(f"job {present.job_id} of bed {bed.name}: {state.reason}, which ccbed does not know")
    text = f"job {present.job_id} of bed {bed.name} holds no nodes any more: {state.reason}"
    session.terminal.warn(f"{text}; another one is requested")
    return False


def has_ended(bed: BedSpec) -> bool:
    """Return whether the bed has a job on record that holds no nodes any more. Raises SlurmError."""
    from . import allocation, job_state

    present = allocation.read(Path(bed.workdir)) if bed.slurm else None
    return present is not None and allocation.read_state(present).kind not in (*job_state.RUNNING, "unknown")


def refuse_ended(bed: BedSpec) -> None:
    """Raises InfrastructureError for a bed whose job holds no nodes any more."""
    if has_ended(bed):
        inventory = short_path(bed.inventory)
        hint = f"for another one, which stays: ccbed up {inventory}     for one that ends with this command: -i {inventory}"
        raise InfrastructureError(f"the job of bed {bed.name} has ended: ccbed status {bed.name}", hint=hint)


def deliberate_end(bed: BedSpec) -> str:
    """``job 7: cancelled (…)`` if the job of the bed was cancelled, or its time is over; else empty, also if that is not known.

    A job may complete for KillWait, after which Slurm shows how it ended.
    """
    from . import allocation
    from .slurm_commands import SlurmError

    present = allocation.read_intact(Path(bed.workdir)) if bed.slurm else None
    if present is None:
        return ""
    until = time.monotonic() + allocation.END_S
    try:
        while (state := allocation.read_state(present)).kind == "completing" and time.monotonic() < until:
            time.sleep(1.0)
    except SlurmError:
        return ""
    return f"job {present.job_id}: {state.kind} ({state.reason})" if state.kind in ("cancelled", "timed out") else ""


def _obtain(session: Session, bed: BedSpec) -> Allocation:
    from . import allocation

    terminal = session.terminal
    _warn_of_unused_gpus(session, bed)
    if job_id := _existing_job(session):
        result = allocation.adopt(bed, job_id)
    else:
        terminal.status("  job         is submitted …")
        result = allocation.acquire(bed, wait_s=session.job.wait_s, report=lambda line: terminal.line(f"  {line}"))
    driver = allocation.this_process() if session.job.is_ephemeral else None
    allocation.write(replace(result, driver=driver), Path(bed.workdir))
    session.obtained.append(bed.name)
    whose = "" if result.is_owned else ", not submitted by ccbed: it stays when the bed goes"
    terminal.line(f"  job         {result.job_id} on {' '.join(result.nodes)}, {time_left(result.ends_at)}{whose}")
    return result


def _withdraw(session: Session, bed: BedSpec, provider: Provider, *, is_used: bool) -> bool:
    """A job without a bed would only cost: what was started ends, and the job with it. False: a warning says what may be left.

    ``is_used`` False: the job was not obtained, and the files of the bed's earlier job stay.
    """
    from . import allocation

    try:
        try:
            if is_used:
                provider.retire(bed)
        finally:
            allocation.release(bed, allocation.read_intact(Path(bed.workdir)))
    except (CcbedError, OSError) as failure:
        hint = failure.hint if isinstance(failure, CcbedError) else f"ccbed down {short_path(bed.inventory)}"
        session.terminal.warn(f"the job of bed {bed.name} may be left: {failure}; {hint}")
        return False
    return True


def cancel(session: Session, bed: BedSpec) -> None:
    """Cancel the job of a bed whose `down` was interrupted, if ccbed submitted it. A warning says what is left."""
    from . import allocation

    try:
        cancelled = allocation.release(bed, allocation.read_intact(Path(bed.workdir)))
    except (CcbedError, OSError, KeyboardInterrupt):
        cancelled = ()
    jobs = f"job {' '.join(map(str, cancelled))} is cancelled; " if cancelled else ""
    session.terminal.warn(f"bed {bed.name}: {jobs}`down` was interrupted; to end what is left: ccbed down {bed.name}")


def summary(bed: BedSpec) -> str:
    """The job as an error names it; empty for a bed of another provider."""
    if not bed.slurm:
        return ""
    from . import cluster  # 5 modules, 2 ms, which other beds do not need

    return f"a job with {' '.join(cluster.limits(bed.slurm))}"


def time_left(ends_at: float | None, now: float | None = None) -> str:
    """``ends at 14:32, in 1 h 58 min``."""
    if ends_at is None:
        return "without a time limit"
    minutes = max(0, int(ends_at - (time.time() if now is None else now)) // 60)
    left = f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
    form = "%H:%M" if minutes < 12 * 60 else "%Y-%m-%d %H:%M"
    return f"ends at {time.strftime(form, time.localtime(ends_at))}, in {left}"


def describe(session: Session, bed: BedSpec) -> tuple[str, ...]:
    """The recorded job of a bed, and its time left, in a line; none if this command has shown it already."""
    if bed.slurm is None or bed.name in session.obtained:
        return ()
    from . import allocation

    present = allocation.read_intact(Path(bed.workdir))
    return (f"job    {present.job_id}, {time_left(present.ends_at)}",) if present else ()


def refuse_short(bed: BedSpec, trial: Trial) -> None:
    """Raises UsageError if the job has less time left than LEAST_S, or than the latest fault with a fixed time needs."""
    needed_s = max([LEAST_S, *(fault.at.after_s for fault in trial.faults if fault.at.after_s is not None)])
    hint = f"ccbed down {bed.name}, set a longer ccbed_time, then: ccbed up {short_path(bed.inventory)}"
    _refuse_longer(bed, needed_s, f"the run needs at least {needed_s:.0f} s", hint)


def refuse_longer(bed: BedSpec, past_s: float, what: str) -> None:
    """Do what ``refuse_short`` does, for a cell or a night that took ``past_s`` before."""
    hint = "set a longer ccbed_time, or leave cells out: --budget TIME, --only CELL"
    _refuse_longer(bed, past_s, f"{what} took {past_s:.0f} s in earlier nights", hint)


def _refuse_longer(bed: BedSpec, needed_s: float, need: str, hint: str) -> None:
    """Refuse what exceeds the time that the bed's job has left; the inventory's for one that is not submitted yet, or is to be replaced."""
    if bed.slurm is None:
        return
    from . import allocation
    from .slurm_commands import SlurmError

    present = allocation.refresh(Path(bed.workdir))
    with suppress(SlurmError):
        present = None if has_ended(bed) else present
    if present is None:
        if 0 < bed.slurm.time_s < needed_s:
            limit = f"the job of bed {bed.name} has {bed.slurm.time_s:.0f} s (ccbed_time)"
            raise UsageError(f"{need}, and {limit}", hint=hint)
    elif present.ends_at is not None and needed_s > (left_s := max(0.0, present.ends_at - time.time())):
        raise UsageError(f"{need}, and job {present.job_id} of bed {bed.name} ends in {left_s:.0f} s", hint=hint)


# --- a bed that lives as long as one command ---------------------------------------------------------------------------


@contextmanager
def of_command(
    session: Session, bed: BedSpec, *, is_wanted: bool, quiet: bool = False, is_asked: bool = False
) -> Iterator[None]:
    """The bed goes down after the body if the body brings it up from its inventory, also without --ephemeral (``is_asked``).

    A bed that `ccbed up` brought up stays. A job that a killed command left is used, and released. Raises InfrastructureError
    with the job where that is not possible. A second Ctrl-C, or a signal after it, may interrupt `down`: then the job is
    cancelled, which ends all that is left.
    """
    if not is_wanted:
        yield
        return
    with bed_job.released(session, bed, quiet=quiet, give_up=cancel):
        yield


@contextmanager
def of_resumed_run(session: Session, bed: BedSpec, *, quiet: bool, is_named: bool = False) -> Iterator[None]:
    """Do what ``of_command`` does, for the run or night of an ephemeral bed whose command was killed. A kept bed stays.

    ``is_named``: by its inventory, so that a job which the body submits is released too.
    """
    with of_command(session, bed, is_wanted=True, quiet=quiet):
        if bed.slurm is not None:
            session.job = replace(session.job, is_resumed=True)
            with store.lock(session.state, bed.name):
                take_over(session, bed)
            session.job = replace(session.job, is_ephemeral=is_named or bed.name in session.obtained)
        yield
