"""What is known of a training, by its own records or by the watcher's: attempts, where they resumed, steps executed again. Pure."""

from . import claims, completeness, cost, doubts, replicas, rounding, saved_state, world_sizes
from .attempts import Attempt, Process, attempts
from .checkpoints import Checkpoint, Damage, checkpoints, damages, lack, usable
from .doubts import job_doubts, lost_lines, missing_ranks, nothing_to_resume, unknown_starts, unobserved, why_unreached
from .kept import KeptFacts, final_digests, kept_facts, other_random_state, repeats, restarts_shown, step_of, unrepeated
from .overview import kept_steps, resumes, steps, view, watched
from .recovery import RecoveryFigures, recovery_figures
from .replay import Replay, redone, replays
from .resumption import Lineage, RankResume, Resumption, lineage
from .sources import is_observed, lineage_of
from .uneven import by_rank, of_rank, uneven_ranks
from .worker_returns import Return, recoveries, worker_returns
