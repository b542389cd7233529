"""History -> status, milestones, failovers, time line: the values that people and checkers read. Pure."""

from .agreement import NOT_COMPARED, Agreement, agreement, by_same_code, identity, missing_files, why_missing
from .command_outcomes import Operation, operations, unrequested
from .event_order import Clocks, clock, clocks
from .event_times import event_times, uncertain_times
from .failovers import MILESTONES, PHASES, STAGES, Failover, Milestone, failovers, fault_start
from .fault_stages import FaultTrace, FaultView, contradictions, faults, signs_of_life, traces
from .findings import Finding, conclude, finding, not_ended, not_started, unknown
from .gangs import (
    WINDOW_S,
    Cause,
    FailedRank,
    Gang,
    begin_nodes,
    culprit_of,
    epoch_at,
    epoch_of,
    failed_rank,
    first_slots,
    gangs,
    hosts_of,
    is_abnormal,
    log_paths,
    replacements,
    root_cause,
    slots_at,
    start_name,
)
from .json_values import flat, listing, mapping, number, whole
from .lineage import batch_losses, chosen_checkpoints, committed_checkpoints, is_kept, kept_steps, resume_steps
from .order import disorder
from .overview import RunView, bed_end, counts_steps, ending, is_collective, part_of_collectives, view
from .progress import Growth, Reduced, caught_up, goodput, growths, lost_steps, omitted_steps, reduced
from .timeline import Span, timeline
