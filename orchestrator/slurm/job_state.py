"""The state of a job and of its nodes, as Slurm's controller knows it, and its words for people."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from ..model.frozen import dataclass
from . import slurm_commands
from .slurm_commands import SlurmUsageError

#: ``ended``: the job completed or failed by itself. ``absent``: the controller has no such job, e.g. long after its end.
#: ``preempting``: it has its nodes until the grace time is over. ``unknown``: a state that is not in ``_KINDS``.
Kind = Literal[
    "pending", "running", "suspended", "completing", "requeued", "cancelled", "timed out", "node failed", "preempted",
    "preempting", "ended", "absent", "unknown",
]  # fmt: skip
_KINDS: Mapping[str, Kind] = {
    "PENDING": "pending", "CONFIGURING": "pending", "RESV_DEL_HOLD": "pending",
    "RUNNING": "running", "RESIZING": "running", "SIGNALING": "running",
    "SUSPENDED": "suspended", "STOPPED": "suspended",
    "COMPLETING": "completing", "STAGE_OUT": "completing",
    "REQUEUED": "requeued", "REQUEUE_FED": "requeued", "REQUEUE_HOLD": "requeued", "SPECIAL_EXIT": "requeued",
    "CANCELLED": "cancelled", "REVOKED": "cancelled",
    "TIMEOUT": "timed out", "DEADLINE": "timed out",
    "NODE_FAIL": "node failed", "BOOT_FAIL": "node failed",
    "PREEMPTED": "preempted",
    "COMPLETED": "ended", "FAILED": "ended", "OUT_OF_MEMORY": "ended",
}  # fmt: skip
#: States after which the job never runs again.
FINAL = ("cancelled", "timed out", "node failed", "preempted", "ended", "absent")
#: States in which the job has its nodes, and goes on.
RUNNING = ("running", "suspended")
#: Why a job ends, while its nodes complete it; Slurm shows its final state after that.
_ENDS: Mapping[str, str] = {
    "TimeLimit": "it reached its time limit", "NodeDown": "a node of it failed", "NodeFail": "a node of it failed",
}  # fmt: skip
#: Why a job waits. A reason that is not here is shown as Slurm writes it.
_REASONS: Mapping[str, str] = {
    "None": "the scheduler has not considered it yet", "Resources": "the nodes are busy", "Priority": "other jobs are before it",
    "PartitionDown": "the partition is down", "PartitionInactive": "the partition is inactive",
    "PartitionTimeLimit": "its time limit exceeds that of the partition",
    "PartitionNodeLimit": "it asks for more nodes than the partition has, or than are up",
    "PartitionConfig": "it asks for more than the partition has or permits",
    "BadConstraints": "no nodes can fulfil what it asks for", "BeginTime": "its begin time is in the future",
    "Dependency": "it depends on a job that has not ended", "DependencyNeverSatisfied": "it depends on a job that ended otherwise",
    "JobHeldUser": "its owner holds it", "JobHeldAdmin": "an administrator holds it", "Reservation": "its reservation has not begun",
    "ReqNodeNotAvail": "a node that it asks for is not available", "Licenses": "a licence is not available",
    "QOSMaxJobsPerUserLimit": "you have as many jobs as your quality of service allows",
    "AssocGrpNodeLimit": "your account has as many nodes as it may have",
}  # fmt: skip
#: A job that waits for one of these never starts: what it asks for must change first.
NEVER = (
    "PartitionTimeLimit", "PartitionConfig", "BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS",
    "AccountNotAllowed", "QOSNotAllowed", "Job's account not known", "AssocMaxWallDurationPerJobLimit",
    "QOSMaxWallDurationPerJobLimit", "QOSMaxNodePerJobLimit",
)  # fmt: skip
#: Field of squeue -> its width. Text of users is last.
_JOB = {
    "JobID": 20, "State": 20, "NumNodes": 12, "StartTime": 24, "EndTime": 24, "PreemptTime": 24, "RestartCnt": 8, "UserName": 64,
    "Partition": 256, "Name": 128, "NodeList": 8000, "Reason": 400, "Comment": 1200,
}  # fmt: skip
_NODE = {"NodeList": 256, "StateLong": 40, "NodeAddr": 256, "Port": 12, "Timestamp": 24, "User": 64, "Reason": 400}
_PARTITION = {"PartitionName": 256, "Nodes": 12, "Size": 24}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job in the queue, or one that ended a short time ago. Times are wall-clock seconds; None: not known or no limit.

    ``state``: as Slurm writes it. ``starts_at``: when it started, or when the scheduler expects to start it.
    """

    job_id: int
    kind: Kind
    state: str
    reason: str
    node_list: str
    node_count: int
    starts_at: float | None
    ends_at: float | None
    user: str
    is_preempted: bool
    partition: str
    name: str
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostNode:
    """A node of the allocation on which no new step may start. ``draining`` nodes still run their steps.

    ``removed``: the node failed, and Slurm took it out of the job. ``reason``: as an administrator or Slurm recorded it.
    """

    name: str
    kind: Literal["removed", "down", "not responding", "draining", "failing"]
    reason: str = ""
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """``reason``: in words, for people. ``at``: wall-clock time of the change, None if not known. ``lost``: of a running job."""

    kind: Kind
    reason: str
    at: float | None = None
    ends_at: float | None = None
    lost: tuple[LostNode, ...] = ()


def read_jobs(*filters: str, deadline_s: float | None = None) -> tuple[Job, ...]:
    """The jobs that ``filters`` (options of squeue) select; without any, those in the queue. One RPC.

    Raises SlurmError, SlurmUsageError.
    """
    argv = ["squeue", "--all", "--noheader", "--noconvert", slurm_commands.format_option(_JOB), *filters]
    output = slurm_commands.run(argv, deadline_s)
    return tuple(_job(row) for row in slurm_commands.rows(output, _JOB))


def read_job(job_id: int, deadline_s: float | None = None) -> Job | None:
    """A job, also when it has ended; None if the controller does not know it (any more). Raises SlurmError."""
    try:
        jobs = read_jobs(f"--jobs={job_id}", "--states=all", deadline_s=deadline_s)
    except SlurmUsageError:
        return None
    return next((job for job in jobs if job.job_id == job_id), None)


def _job(row: Mapping[str, str]) -> Job:
    kind = _KINDS.get(row["State"], "unknown")
    if kind == "pending" and row["RestartCnt"] not in ("", "0", "N/A"):
        kind = "requeued"
    is_preempted = _seconds(row["PreemptTime"]) is not None
    if kind == "running" and is_preempted:
        kind = "preempting"
    ended_at = row["PreemptTime"] if kind == "preempted" and is_preempted else row["EndTime"]
    return Job(
        job_id=int(row["JobID"].partition("_")[0]), kind=kind, state=row["State"], reason=row["Reason"], node_list=row["NodeList"],
        node_count=int(row["NumNodes"].partition("-")[0] or 0), starts_at=_seconds(row["StartTime"]), ends_at=_seconds(ended_at),
        user=row["UserName"], is_preempted=is_preempted, partition=row["Partition"], name=row["Name"], comment=row["Comment"],
    )  # fmt: skip


def _seconds(text: str) -> float | None:
    return float(text) if text.isdigit() else None


def expand(node_list: str) -> tuple[str, ...]:
    """``n[1-3]`` -> n1, n2, n3, without asking the controller."""
    return tuple(slurm_commands.run(["scontrol", "show", "hostnames", node_list]).split()) if node_list else ()


def read_nodes(names: Iterable[str], deadline_s: float | None = None) -> dict[str, Mapping[str, str]]:
    """Node -> its fields of ``_NODE``, in the order of ``names``. One RPC. Raises SlurmError."""
    wanted = tuple(names)
    argv = [
        "sinfo",
        "--all",
        "--noheader",
        "--Node",
        f"--nodes={','.join(wanted)}",
        slurm_commands.format_option(_NODE),
    ]
    output = slurm_commands.run(argv, deadline_s)
    rows = {row["NodeList"]: row for row in slurm_commands.rows(output, _NODE)}  # a line per partition of the node
    return {name: rows[name] for name in wanted if name in rows}


def read_state(job_id: int, nodes: Sequence[str], deadline_s: float | None = None) -> JobState:
    """The state of the job, and of ``nodes``, those that it began with. Two RPCs of ``deadline_s`` each. Raises SlurmError.

    Slurm takes a node that failed out of a job that goes on without it (``--no-kill``).
    """
    job = read_job(job_id, deadline_s)
    if job is None:
        return JobState(kind="absent", reason=f"the controller has no job {job_id} (any more)")
    if job.kind not in RUNNING:
        return JobState(kind=job.kind, reason=describe(job), at=job.ends_at if job.kind in FINAL else None)
    members = set(expand(job.node_list))
    lost = tuple(filter(None, (_lost(name, row, members) for name, row in read_nodes(nodes, deadline_s).items())))
    return JobState(kind=job.kind, reason=describe(job), at=job.starts_at, ends_at=job.ends_at, lost=lost)


def _lost(name: str, row: Mapping[str, str], members: set[str]) -> LostNode | None:
    """``StateLong``: a word, and a mark; ``*`` at its end: the node does not respond."""
    text = row["StateLong"]
    word = text.rstrip("*~#!%$@^-+")
    reason = "" if row["Reason"] in ("none", "Unknown") else row["Reason"]
    by = f" (by {row['User']})" if reason and row["User"] not in ("Unknown", "") else ""
    kind: Literal["removed", "down", "not responding", "draining", "failing"]
    if name not in members:
        kind = "removed"
    elif word.startswith("drain"):
        kind = "draining"
    elif word.startswith("fail"):
        kind = "failing"
    elif word.startswith(("down", "powered", "powering_down")):
        kind = "down"
    elif text.endswith("*"):
        kind = "not responding"
    else:
        return None
    return LostNode(name=name, kind=kind, reason=f"{reason}{by}", at=_seconds(row["Timestamp"]))


def never_starts(job: Job, node_limits: Callable[[], Mapping[str, float]]) -> bool:
    """Return whether what the job asks for must change before it can start. ``node_limits``: see ``read_node_limits``.

    Raises SlurmError.
    """
    reason = job.reason.strip("()")
    if reason.startswith("PartitionNodeLimit"):
        limits = node_limits()
        known = [limits[name] for name in job.partition.split(",") if name in limits]
        return bool(known) and job.node_count > max(known)
    return reason.startswith(NEVER)


def read_node_limits() -> dict[str, float]:
    """Partition -> the most nodes that a job may have there, also while some of them are down. One RPC. Raises SlurmError."""
    argv = ["sinfo", "--all", "--noheader", "--noconvert", slurm_commands.format_option(_PARTITION)]
    output = slurm_commands.run(argv)
    totals: dict[str, int] = {}
    most: dict[str, float] = {}
    for row in slurm_commands.rows(output, _PARTITION):  # a line per partition and state of its nodes
        name, largest = row["PartitionName"], row["Size"].rpartition("-")[2]
        totals[name] = totals.get(name, 0) + int(row["Nodes"])
        most[name] = float(largest) if largest.isdigit() else math.inf
    return {name: min(total, most[name]) for name, total in totals.items()}


def describe(job: Job) -> str:
    """Return what happened to the job, or why it waits, in words."""
    reason = job.reason.strip("()")
    if job.kind in ("pending", "requeued"):
        word = reason.partition(",")[0]
        waits = _REASONS.get(word, reason)
        waits = f"{waits} ({word})" if word in _REASONS and word != "None" else waits
        return f"it was put back into the queue; it waits: {waits}" if job.kind == "requeued" else waits
    why = "a job of higher priority took its nodes" if job.is_preempted else _ENDS.get(reason, "")
    return {
        "running": f"it runs on {job.node_list}",
        "suspended": "an administrator or a job of higher priority suspended it",
        "completing": why or "it ends now",
        "preempting": "a job of higher priority takes its nodes",
        "cancelled": "scancel or an administrator ended it; the queue does not record by whom",
        "timed out": "it reached its time limit",
        "node failed": "a node of it failed",
        "preempted": "a job of higher priority took its nodes",
        "ended": f"it ended ({reason})" if reason not in ("None", "") else "it ended",
        "absent": "the controller does not know it",
        "unknown": f"its state is {job.state}",
    }[job.kind]


def describe_start(job: Job, now: float) -> str:
    """``estimated start 14:32, in 12 min``, or that it is not known."""
    if job.starts_at is None or job.starts_at <= now:
        return "no estimated start"
    minutes = round((job.starts_at - now) / 60)
    when = time.strftime("%H:%M" if minutes < 12 * 60 else "%Y-%m-%d %H:%M", time.localtime(job.starts_at))
    return (
        f"estimated start {when}, in {minutes} min"
        if minutes < 120
        else f"estimated start {when}, in {minutes // 60} h"
    )
