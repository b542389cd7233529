"""A bed that lives as long as one command: `ccbed run -i` of a Slurm job, or of any bed with --ephemeral."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ...model.bed import BedSpec
from ...model.errors import UsageError
from ...store import beds as store
from .. import beds
from ..session import JobOptions, Session
from . import slurm_jobs


@contextmanager
def of_command(
    session: Session, bed: BedSpec, *, is_wanted: bool, quiet: bool = False, is_asked: bool = False
) -> Iterator[None]:
    """If the body brings up a bed of provider slurm, the bed goes down at its end, also after an error, Ctrl-C, SIGTERM or SIGHUP.

    A bed that `ccbed up` brought up stays. A job that a killed command left is used, and released. Raises InfrastructureError
    with the job where that is not possible. ``quiet``: print problems only, for --json. ``is_asked``: of any provider, by
    --ephemeral; raises UsageError for a bed that is up, which others may use.
    """
    if not is_asked and (bed.slurm is None or not is_wanted):
        yield
        return
    if bed.slurm is None:
        if not is_wanted:
            raise UsageError("--ephemeral is for the bed of an inventory", hint="-i INVENTORY")
        if store.read(session.state, bed.name):
            hint = f"leave --ephemeral out, or end the bed first: ccbed down {bed.name}"
            raise UsageError(f"bed {bed.name} is up; --ephemeral would end it", hint=hint)
        session.obtained.append(bed.name)
    session.job = replace(session.job, is_ephemeral=True)
    with slurm_jobs.signals_as_interrupt():
        try:
            yield
        finally:
            if session.releases(bed.name):
                at_end = replace(session, terminal=session.terminal.silent()) if quiet else session
                _release(at_end, store.read(session.state, bed.name) or bed)


def _release(session: Session, bed: BedSpec) -> None:
    """A second Ctrl-C, or a signal after it, may interrupt `down`: then the job is cancelled, which ends all that is left."""
    from .. import down  # which beds of other providers do not load

    try:
        down.end(session, bed, force=True)
    except KeyboardInterrupt:
        if bed.slurm:
            slurm_jobs.cancel(session, bed)
        raise


@contextmanager
def of_inventory(session: Session, inventory: Path | None, *, quiet: bool) -> Iterator[None]:
    """As ``of_command``, for the bed of an inventory; without one, a bed that is up stays. Raises UsageError."""
    if inventory is None:
        if session.job != JobOptions():
            raise UsageError("--wait and --jobid are for the bed of an inventory", hint="-i INVENTORY")
        yield
        return
    with of_command(session, beds.wanted(session, inventory), is_wanted=True, quiet=quiet):
        yield


@contextmanager
def of_resumed_run(session: Session, bed: BedSpec, *, quiet: bool, is_named: bool = False) -> Iterator[None]:
    """As ``of_command``, for the run or night of an ephemeral bed whose command was killed. A kept bed stays.

    ``is_named``: by its inventory, so that a job which the body submits is released too.
    """
    with of_command(session, bed, is_wanted=True, quiet=quiet):
        if bed.slurm is not None:
            session.job = replace(session.job, is_resumed=True)
            with store.lock(session.state, bed.name):
                slurm_jobs.take_over(session, bed)
            session.job = replace(session.job, is_ephemeral=is_named or bed.name in session.obtained)
        yield
