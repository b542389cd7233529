"""History -> status, milestones, failovers, time line: the values that people and checkers read. Pure."""

from .agreement import NOT_COMPARED, Agreement, agreement, by_same_code, identity, missing_files, why_missing
from .clock import Clocks, clock, clocks
from .command_outcomes import Operation, operations, unrequested
from .event_times import event_times, uncertain_times
from .failovers import MILESTONES, PHASES, Failover, Milestone, failovers, fault_start
from .faults import FaultTrace, FaultView, faults, traces
from .findings import Finding, conclude, finding, not_ended, not_started, unknown
from .gangs import (
    Cause,
    Gang,
    begin_nodes,
    culprit_of,
    epoch_at,
    epoch_of,
    first_slots,
    gangs,
    hosts_of,
    is_abnormal,
    replacements,
    root_cause,
    slots_at,
)
from .lineage import chosen_checkpoints, committed_checkpoints, is_kept, kept_steps, resume_steps, world_sizes
from .order import disorder
from .overview import RunView, counts_steps, ending, is_collective, view
from .progress import Growth, Reduced, caught_up, goodput, growths, lost_steps, reduced
from .timeline import Span, timeline
from .values import listing, mapping, number, whole

__all__ = [
    "MILESTONES",
    "NOT_COMPARED",
    "PHASES",
    "Agreement",
    "Cause",
    "Clocks",
    "Failover",
    "FaultTrace",
    "FaultView",
    "Finding",
    "Gang",
    "Growth",
    "Milestone",
    "Operation",
    "Reduced",
    "RunView",
    "Span",
    "agreement",
    "begin_nodes",
    "by_same_code",
    "caught_up",
    "chosen_checkpoints",
    "clock",
    "clocks",
    "committed_checkpoints",
    "conclude",
    "counts_steps",
    "culprit_of",
    "disorder",
    "ending",
    "epoch_at",
    "epoch_of",
    "event_times",
    "failovers",
    "fault_start",
    "faults",
    "finding",
    "first_slots",
    "gangs",
    "goodput",
    "growths",
    "hosts_of",
    "identity",
    "is_abnormal",
    "is_collective",
    "is_kept",
    "kept_steps",
    "listing",
    "lost_steps",
    "mapping",
    "missing_files",
    "not_ended",
    "not_started",
    "number",
    "operations",
    "reduced",
    "replacements",
    "resume_steps",
    "root_cause",
    "slots_at",
    "timeline",
    "traces",
    "uncertain_times",
    "unknown",
    "unrequested",
    "view",
    "whole",
    "why_missing",
    "world_sizes",
]
