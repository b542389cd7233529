"""What the watcher recorded of a user's job: attempts, where they resumed and with what, steps executed again. Pure."""

from ...model.run import Run
from . import claims, completeness, cost, doubts, replicas, rounding, saved_state, world_sizes
from .attempts import Attempt, Process, attempts
from .checkpoints import Checkpoint, Damage, checkpoints, damages, lack, saves_of, usable
from .doubts import job_doubts, lost_lines, missing_ranks, nothing_to_resume, unknown_starts, unobserved, why_unreached
from .kept import KeptFacts, kept_facts, other_random_state, repeats, restarts_shown, step_of, unrepeated
from .overview import kept_steps, resumes, steps, view, watched
from .recovery import RecoveryFigures, recovery_figures
from .replay import Replay, redone, replays
from .resumption import Lineage, RankResume, Resumption, lineage
from .uneven import by_rank, of_rank, uneven_ranks
from .worker_returns import Return, recoveries, worker_returns


def is_observed(run: Run) -> bool:
    """Whether the run is judged by the watcher's records: that of a user's script."""
    return run.trial.workload == "script"


def lineage_of(run: Run) -> Lineage:
    """The attempts of the run, and where each resumed from."""
    return lineage(attempts(run), damages(run.history))
