"""The gang as a whole: joining, standstill, recovery, and the port of its store."""

from __future__ import annotations

from collections.abc import Mapping

from ..payload import Payload, payload
from .units import Attempt, Rank, Seconds, Step, Whole


@payload("gang.joined", writer="ctl")
class GangJoined(Payload):
    """Every rank of the attempt has joined."""


@payload("gang.stalled", writer="ctl")
class GangStalled(Payload):
    """No step was completed for ``since_s``: a detector."""

    since_s: Seconds | None = None


@payload("store.retried", writer="ctl")
class StoreRetried(Payload):
    """The ports ``taken`` are in use; the store of the attempt listens on ``port``."""

    taken: tuple[Whole, ...] | None = None
    port: Whole | None = None


@payload("recovery.decided", writer="ctl")
class RecoveryDecided(Payload):
    """The next attempt. ``policy``: by lost node; ``slots``: group rank -> node; ``best_step``: the newest step of any rank."""

    lost: tuple[str, ...] | None = None
    failed: tuple[Rank, ...] | None = None
    detector: str | None = None
    policy: Mapping[str, str] | None = None
    slots: tuple[str, ...] | None = None
    epoch: Attempt | None = None
    best_step: Step | None = None


@payload("recovery.replaced", writer="ctl")
class RecoveryReplaced(Payload):
    """The job's own launcher recovers: a lost node is replaced within the attempt. Fields as in ``recovery.decided``."""

    lost: tuple[str, ...] | None = None
    failed: tuple[Rank, ...] | None = None
    detector: str | None = None
    policy: Mapping[str, str] | None = None
    slots: tuple[str, ...] | None = None
    epoch: Attempt | None = None


@payload("recovery.refused", writer="ctl")
class RecoveryRefused(Payload):
    """No policy applies, the budget of restarts is spent, or the run is in a crash loop."""

    reason: str | None = None
    lost: tuple[str, ...] | None = None
    failed: tuple[Rank, ...] | None = None
    detector: str | None = None
