"""History -> what people and checkers want to know: status, milestones, timeline. Pure."""

from .agreement import Agreement, agreement
from .clock import Clocks, clock, clocks, listing, mapping, names, number, text, whole
from .collective_runs import is_collective, measured
from .command_outcomes import Operation, operations, unasked
from .event_times import event_times, uncertain_times
from .failovers import failovers, struck
from .faults import FaultTrace, faults, traces
from .findings import Finding, conclude, found, unended, unknown, unstarted
from .gangs import Gang, abnormal, begin_nodes, blamed, epoch_at, epoch_of, gangs, hosts_of, slots_at
from .gathered import excuse, unfetched
from .identity import NOT_COMPARED, by_same_code, identity
from .lineage import choices, commits, kept, kept_steps, resume_steps
from .order import disorder
from .overview import counts_steps, ending, view
from .progress import caught_up, goodput, lost_steps
from .shapes import MILESTONES, PHASES, Failover, FaultView, Milestone, RunView, Span
from .timeline import timeline

__all__ = [
    "MILESTONES",
    "NOT_COMPARED",
    "PHASES",
    "Agreement",
    "Clocks",
    "Failover",
    "FaultTrace",
    "FaultView",
    "Finding",
    "Gang",
    "Milestone",
    "Operation",
    "RunView",
    "Span",
    "abnormal",
    "agreement",
    "begin_nodes",
    "blamed",
    "by_same_code",
    "caught_up",
    "choices",
    "clock",
    "clocks",
    "commits",
    "conclude",
    "counts_steps",
    "disorder",
    "ending",
    "epoch_at",
    "epoch_of",
    "event_times",
    "excuse",
    "failovers",
    "faults",
    "found",
    "gangs",
    "goodput",
    "hosts_of",
    "identity",
    "is_collective",
    "kept",
    "kept_steps",
    "listing",
    "lost_steps",
    "mapping",
    "measured",
    "names",
    "number",
    "operations",
    "resume_steps",
    "slots_at",
    "struck",
    "text",
    "timeline",
    "traces",
    "unasked",
    "uncertain_times",
    "unended",
    "unfetched",
    "unknown",
    "unstarted",
    "view",
    "whole",
]  # fmt: skip
