"""The facts of a training from either source: what ccbed's own workloads report of themselves, or what the watcher saw of a script."""

from __future__ import annotations

import functools

from ...model.run import Run
from ...model.trial import SCRIPT
from .attempts import attempts
from .checkpoints import damages
from .own_records import own_lineage
from .resumption import Lineage, lineage


def is_observed(run: Run) -> bool:
    """Whether the run is judged by the watcher's records: that of a user's script."""
    return run.trial.workload == SCRIPT


def lineage_of(run: Run) -> Lineage:
    """The attempts of the run, and where each resumed from."""
    return _lineage_of(_Job(run))


class _Job:
    """A run, equal to another one with the same files and history: checkers, metrics, reports and the terminal ask two dozen times."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Job)
            and self.run.files is other.run.files
            and self.run.history is other.run.history
            and is_observed(self.run) is is_observed(other.run)
        )

    def __hash__(self) -> int:
        return id(self.run.files)


@functools.lru_cache(maxsize=1)
def _lineage_of(job: _Job) -> Lineage:
    run = job.run
    return lineage(attempts(run), damages(run.history)) if is_observed(run) else own_lineage(run)
