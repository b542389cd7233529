"""The job of a scheduler that holds the nodes of a bed: what `up`, `run` and `resume` do about it. Only beds of Slurm have one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import products
from ..model.errors import UsageError
from ..store import bed_files as store

if TYPE_CHECKING:
    from ..model.bed import BedSpec
    from ..model.provider import Provider
    from ..model.trial import Trial
    from .session import Session


class BedJob:
    """A bed without a job. The product of a scheduler has a module, ``slurm_jobs``, with the same functions."""

    @staticmethod
    def plan(bed: BedSpec) -> object:
        """Return the job as it would be submitted, as values."""
        return None

    @staticmethod
    def show_plan(session: Session, bed: BedSpec) -> None:
        """Print the same."""

    @staticmethod
    def refuse_other_job(session: Session, bed: BedSpec) -> None:
        """Raises UsageError where the user means another job than that of the bed."""
        if session.job.job_id:
            raise UsageError(
                f"--jobid {session.job.job_id}: bed {bed.name} has provider {bed.provider}, which has no job"
            )

    @staticmethod
    def take_over(session: Session, bed: BedSpec, *, force: bool = False) -> None:
        """Take over the job that a killed command left. ``force``: its open run ends."""

    @staticmethod
    @contextmanager
    def held(session: Session, bed: BedSpec, provider: Provider, *, is_new: bool) -> Iterator[None]:
        """A job runs in the body."""
        yield

    @staticmethod
    @contextmanager
    def of_command(
        session: Session, bed: BedSpec, *, is_wanted: bool, quiet: bool = False, is_asked: bool = False
    ) -> Iterator[None]:
        """A bed that the body brings up goes down at its end, if ``is_asked`` by --ephemeral.

        ``is_wanted``: the bed of an inventory. Raises UsageError for another one, and for a bed that is up, which others may use.
        """
        if not is_asked:
            yield
            return
        if not is_wanted:
            raise UsageError("--ephemeral is for the bed of an inventory", hint="-i INVENTORY")
        if store.read(session.state, bed.name):
            hint = f"leave --ephemeral out, or end the bed first: ccbed down {bed.name}"
            raise UsageError(f"bed {bed.name} is up; --ephemeral would end it", hint=hint)
        session.obtained.append(bed.name)
        with released(session, bed, quiet=quiet):
            yield

    @staticmethod
    @contextmanager
    def of_resumed_run(session: Session, bed: BedSpec, *, quiet: bool, is_named: bool = False) -> Iterator[None]:
        """The same for a run or night whose command was killed. ``is_named``: by its inventory."""
        yield

    @staticmethod
    def summary(bed: BedSpec) -> str:
        """Return the job as an error names it."""
        return ""

    @staticmethod
    def describe(session: Session, bed: BedSpec) -> tuple[str, ...]:
        """Return the recorded job and its time left, in lines."""
        return ()

    @staticmethod
    def refuse_short(bed: BedSpec, trial: Trial) -> None:
        """Raises UsageError where the job ends before the trial can."""

    @staticmethod
    def refuse_longer(bed: BedSpec, past_s: float, what: str) -> None:
        """Raises UsageError where the job ends before ``what``, which took ``past_s``, can."""

    @staticmethod
    def has_ended(bed: BedSpec) -> bool:
        """Tell whether the recorded job holds no nodes any more."""
        return False

    @staticmethod
    def refuse_ended(bed: BedSpec) -> None:
        """Raises InfrastructureError for such a job."""

    @staticmethod
    def deliberate_end(bed: BedSpec) -> str:
        """Return how the job ended, if it was cancelled or its time is over."""
        return ""


def of(bed: BedSpec) -> BedJob:
    """Return what is to be done about the job of a bed. Raises UsageError where the product of its scheduler is not installed."""
    if bed.slurm is None:
        return BedJob()
    job: BedJob = products.part("slurm", "slurm_jobs")
    return job


@contextmanager
def released(
    session: Session, bed: BedSpec, *, quiet: bool, give_up: Callable[[Session, BedSpec], None] | None = None
) -> Iterator[None]:
    """The bed goes down after the body, also after an error, Ctrl-C, SIGTERM or SIGHUP, if this command obtained it.

    ``quiet``: print problems only, for --json. ``give_up``: called where a second Ctrl-C interrupts `down`.
    """
    from . import down  # which other beds do not load

    session.job = replace(session.job, is_ephemeral=True)
    with signals_as_interrupt():
        try:
            yield
        finally:
            if session.releases(bed.name):
                at_end = replace(session, terminal=session.terminal.silent()) if quiet else session
                try:
                    down.end(at_end, store.read(session.state, bed.name) or bed, force=True)
                except KeyboardInterrupt:
                    if give_up:
                        give_up(at_end, store.read(session.state, bed.name) or bed)
                    raise


@contextmanager
def of_inventory(session: Session, inventory: Path | None, *, quiet: bool) -> Iterator[None]:
    """Do what ``of_command`` does, for the bed of an inventory; without one, a bed that is up stays. Raises UsageError."""
    from . import beds
    from .session import JobOptions

    if inventory is None:
        if session.job != JobOptions():
            raise UsageError("--wait and --jobid are for the bed of an inventory", hint="-i INVENTORY")
        yield
        return
    bed = beds.wanted(session, inventory)
    with of(bed).of_command(session, bed, is_wanted=True, quiet=quiet):
        yield


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is gone, end this process as Ctrl-C does, so that nothing is left.

    With nohup, SIGHUP stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
