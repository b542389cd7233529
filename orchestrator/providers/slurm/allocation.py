"""The allocation of a bed: one Slurm job that holds its hosts. Host ``hN`` of the bed is the N-th node of the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: ``ended``: the job completed or failed by itself. ``absent``: the controller has no such job, e.g. long after its end.
#: ``unknown``: the controller does not respond, so the state of the job is not known.
Kind = Literal[
    "pending", "running", "suspended", "completing", "requeued", "cancelled", "timed out", "node failed", "preempted",
    "ended", "absent", "unknown",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A job that holds nodes. ``nodes``: their names in Slurm, in the job's order; lost nodes keep their position.

    ``addresses``: the address of each node, as Slurm reaches it (a name or a number). ``ends_at``: wall-clock time of the
    time limit; None: no limit. ``is_owned``: ccbed submitted the job, so ``release`` cancels it.
    """

    job_id: int
    nodes: tuple[str, ...]
    addresses: tuple[str, ...]
    ends_at: float | None
    is_owned: bool
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostNode:
    """A node of the allocation that Slurm does not trust: no new step may start on it.

    ``draining`` nodes still run their steps. ``reason``: as an administrator or Slurm recorded it, in words.
    """

    name: str
    kind: Literal["down", "not responding", "draining", "failing"]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a job. ``reason``: in words, for people. ``at``: wall-clock time since when, None if not known.

    ``lost``: the nodes of a running job that are down, drained or do not respond; of a job that ended as ``node failed``,
    those that caused it.
    """

    kind: Kind
    reason: str = ""
    at: float | None = None
    lost: tuple[LostNode, ...] = ()
    ends_at: float | None = None
