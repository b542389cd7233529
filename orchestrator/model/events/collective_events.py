"""Reports of the workload ``collective`` and its relatives: cases, links, wrong results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..payload import Payload, Record, null, payload, record
from .field_types import Count, Figure, Rank, Ranks, Seconds, Step, Stride


@record
class CaseFacts(Record):
    """One case of the plan; ``bytes`` as the user gave them, ``per_rank`` and ``total`` as they result.

    ``gap_ms`` before every iteration, or ``gaps_ms`` before each, since the end (``gap_from``: or the start) of the collective
    before; or ``after``: (places back, ms since the end of that collective, or, for 0, since the start of the sequence).
    """

    case: Step | None = None
    operation: str | None = None
    algorithm: str | None = None
    dtype: str | None = None
    operator: str | None = None
    bytes: Count | None = None
    per_rank: Count | None = None
    total: Count | None = None
    count: Count | None = None
    root: Rank | None = None
    groups: tuple[tuple[Rank, ...], ...] | None = None
    first_step: Step | None = None
    stride: Stride | None = None
    iterations: Step | None = None
    cost: Mapping[str, Figure | None] | None = null()
    asynchronous: bool | None = None
    gap_ms: Seconds | None = None
    gaps_ms: tuple[Seconds, ...] | None = None
    gap_from: str | None = None
    after: tuple[tuple[Step, Seconds], ...] | None = None
    asked: str | None = None
    shares: tuple[float, ...] | None = None
    port_bytes: Count | None = None
    uplink_bytes: Count | None = None


@payload("link.probing", writer="rank")
class LinkProbing(Payload):
    """A probe of the links begins. ``directions`` between the ranks; ``limit_s``: about how long it may take on an idle machine.
    ``known``: whether an earlier probe is confirmed first, which is quicker."""

    rank: Rank | None = None
    directions: Count | None = None
    limit_s: Seconds | None = None
    known: bool | None = None


@payload("collective.plan", writer="rank")
class CollectivePlan(Payload):
    """The cases that are measured. ``over``: what a result is the median over; ``bandwidth``: how it is taken from the times.

    ``precision``: a case may stop when the interval of its median is narrower than this share of it, after the
    ``least`` number of iterations, or after ``precision_s`` seconds. ``expected_s``: the time of
    all iterations by the cost model, with warm-up and verification; ``uncosted``: cases that it leaves out; ``cases_s``: of each case.
    """

    rank: Rank | None = None
    cases: tuple[CaseFacts, ...] | None = None
    over: str | None = None
    warmup: Count | None = None
    world: Ranks | None = None
    drain: Any = None
    verify: bool | None = None
    bandwidth: str | None = None
    precision: float | None = None
    least: Step | None = None
    precision_s: Seconds | None = None
    expected_s: Seconds | None = null()
    uncosted: Count | None = None
    cases_s: tuple[Seconds, ...] | None = None


@payload("collective.sequence", writer="rank")
class CollectiveSequence(Payload):
    """A rank starts to replay collectives with their gaps, at ``begin`` on its monotonic clock; the first has ``step``.

    ``verified``: the steps whose results are checked in the gaps; each of ``cases`` is also checked before and after the sequence.
    """

    rank: Rank | None = None
    step: Step | None = None
    begin: Seconds | None = None
    iterations: Count | None = None
    cases: Count | None = None
    verified: tuple[Step, ...] | None = None


@payload("collective.measured", writer="rank")
class CollectiveMeasured(Payload):
    """A case is measured: the ``median_s`` of its iterations with the interval of 95 %; null with too few iterations.

    ``over``: the kind of times, the slowest rank's in older records. ``reason``: why it has no more iterations: ``all`` of the plan,
    the ``precision`` that the user set, or its ``time``. ``seconds``: all iterations of its size took so long.
    """

    rank: Rank | None = None
    case: Step | None = None
    iterations: Step | None = None
    median_s: Seconds | None = None
    low_s: Seconds | None = null()
    high_s: Seconds | None = null()
    reason: str | None = None
    over: str | None = None
    seconds: Seconds | None = None


@payload("collective.auto", writer="rank")
class CollectiveAuto(Payload):
    """The algorithm that ``auto`` chose for a case, with the expected seconds of each candidate.

    ``measured``: median seconds in the warm-up, of those that the model could not tell apart.
    """

    rank: Rank | None = None
    case: Step | None = None
    step: Step | None = None
    chosen: str | None = None
    seconds: Any = None
    measured: Mapping[str, Seconds] | None = None
    why: Any = None


@payload("collective.wrong", writer="rank")
class CollectiveWrong(Payload):
    """A wrong element of a result: its ``offset``, what was ``expected`` there, and what the rank ``got``."""

    rank: Rank | None = None
    case: Step | None = None
    step: Step | None = None
    offset: Any = None
    expected: Any = None
    got: Any = None


@payload("link.pair", writer="rank")
class LinkPair(Payload):
    """The link from ``rank`` to ``peer``: start-up time ``alpha_s`` and time per byte, with the ``interval`` of that.

    ``reason``: why one is not known. ``trains``: the time per byte by each train of messages. Older records have one direction.
    """

    rank: Rank | None = None
    peer: Rank | None = None
    alpha_s: Seconds | None = null()
    beta_s_per_byte: Seconds | None = null()
    interval: tuple[Any, ...] | None = None
    reason: str | None = None
    trains: tuple[Any, ...] | None = None
    samples: tuple[Any, ...] | None = None


@payload("link.fit", writer="rank")
class LinkFit(Payload):
    """The line that models use for all links. ``reused_from``: the run that measured it, at ``measured_at`` (UTC).

    ``changed``: why the probe of an earlier run was not reused.
    """

    rank: Rank | None = None
    alpha_s: Figure | None = None
    beta_s_per_byte: Figure | None = None
    reused_from: str | None = None
    measured_at: str | None = None
    changed: str | None = None


@payload("reference.compared", writer="rank")
class ReferenceCompared(Payload):
    """The largest ``difference`` of a value (``of``) from a run of one process, after ``steps``."""

    rank: Rank | None = None
    steps: Step | None = None
    difference: Figure | None = None
    of: str | None = None
    loss: Figure | None = None
    reference_loss: Figure | None = None
