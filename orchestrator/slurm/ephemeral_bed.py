"""A bed of a Slurm job that lives as long as one command: `ccbed run -i` allocates, runs, releases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ..app import bed_job
from ..app.session import Session
from ..model.bed import BedSpec
from ..store import beds as store
from . import slurm_jobs


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
    with bed_job.released(session, bed, quiet=quiet, give_up=slurm_jobs.cancel):
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
