"""A bed of a Slurm job that lives as long as one command: `ccbed run -i` allocates, runs, releases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..model.bed import BedSpec
from .inputs import slurm_jobs
from .inputs.session import Session
from .verbs import down


@contextmanager
def of_command(session: Session, bed: BedSpec, *, is_wanted: bool) -> Iterator[None]:
    """If the body brings up a bed of provider slurm, the bed goes down at its end, also after an error, Ctrl-C or SIGTERM.

    A bed that `ccbed up` brought up stays. A job that a killed command left is used, and released. Raises InfrastructureError
    with the job where that is not possible.
    """
    if bed.slurm is None or not is_wanted:
        yield
        return
    session.job = replace(session.job, is_ephemeral=True)
    is_abandoned = _is_abandoned(session, bed)
    with slurm_jobs.sigterm_as_interrupt():
        try:
            yield
        finally:
            if is_abandoned or bed.name in session.obtained:
                down.end(session, bed, force=True)


def _is_abandoned(session: Session, bed: BedSpec) -> bool:
    """Whether the command that submitted the bed's job was killed; a warning names the job."""
    from ..providers.slurm import allocation

    present = allocation.read(Path(bed.workdir))
    if present is None or not allocation.is_abandoned(present):
        return False
    session.terminal.warn(
        f"job {present.job_id} of bed {bed.name} was left by a command that was killed; it is used and released"
    )
    return True
