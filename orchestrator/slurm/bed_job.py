"""What `up`, `run` and `resume` do about the Slurm job of a bed."""

from __future__ import annotations

from ..app import bed_job
from . import ephemeral_bed, slurm_jobs


class Job(bed_job.BedJob):
    """A bed of provider slurm."""

    plan = staticmethod(slurm_jobs.plan)
    show_plan = staticmethod(slurm_jobs.show_plan)
    refuse_other_job = staticmethod(slurm_jobs.refuse_other_job)
    take_over = staticmethod(slurm_jobs.take_over)
    held = staticmethod(slurm_jobs.held)
    of_command = staticmethod(ephemeral_bed.of_command)
    of_resumed_run = staticmethod(ephemeral_bed.of_resumed_run)
    summary = staticmethod(slurm_jobs.summary)
    describe = staticmethod(slurm_jobs.describe)
    refuse_short = staticmethod(slurm_jobs.refuse_short)
    refuse_longer = staticmethod(slurm_jobs.refuse_longer)
    has_ended = staticmethod(slurm_jobs.has_ended)
    refuse_ended = staticmethod(slurm_jobs.refuse_ended)
    deliberate_end = staticmethod(slurm_jobs.deliberate_end)
