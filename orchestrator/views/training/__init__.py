"""Tells what is known of a training, by its own records or by the watcher's: attempts, where they resumed, steps executed again. Pure."""

from . import checkpoint_cost, completeness, doubts, replicas, rounding, saved_state, stated_steps
from .attempts import Attempt, Process, attempts
from .doubts import job_doubts, lost_lines, missing_ranks, nothing_to_resume, unknown_starts, unobserved, why_unreached
from .job_checkpoints import Checkpoint, Damage, checkpoints, damages, lack, saves_of, usable
from .job_steps import is_observed, kept_steps, lineage_of, resumes, steps, view, watched
from .kept import KeptFacts, final_digests, kept_facts, other_random_state, repeats, restarts_shown, step_of, unrepeated
from .recovery_times import RecoveryFigures, recovery_figures
from .redone_steps import NONE_TWICE, Replay, redone, replays
from .resumption import Lineage, RankResume, Resumption, Sizes, lineage
from .uneven import UNEXPLAINED, by_rank, of_rank, uneven_ranks
from .worker_returns import Return, recoveries, worker_returns
