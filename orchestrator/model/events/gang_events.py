"""The gang as a whole: joining, standstill, recovery, and the port of its store."""

from __future__ import annotations

from collections.abc import Mapping

from ..payload import Payload, payload
from .field_types import Attempt, Rank, Seconds, Step, Whole


@payload("gang.joined", writer="ctl")
class GangJoined(Payload):
    """Every rank of the attempt has joined."""


@payload("gang.stalled", writer="ctl")
class GangStalled(Payload):
    """No step was completed for ``since_s``: a detector.

    ``reason``: of a script, where its ranks stand; ``culprit``: the first rank that did not enter the collective in which
    others wait.
    """

    since_s: Seconds | None = None
    reason: str | None = None
    culprit: Rank | None = None


@payload("gang.quiet", writer="ctl")
class GangQuiet(Payload):
    """A script completed no step for ``since_s``, or some of its ranks (``left``) ended so long ago: its ranks are inspected.

    ``limit_s``: of its standstill. ``is_strict``: the user has set it, so it counts even while ranks work.
    ``is_joining``: not every rank has joined yet, which is reported and ends nothing.
    """

    since_s: Seconds
    limit_s: Seconds
    is_strict: bool | None = None
    left: tuple[Rank, ...] | None = None
    is_joining: bool | None = None


@payload("gang.busy", writer="ctl")
class GangBusy(Payload):
    """A quiet gang works: these ranks use their CPU or move data."""

    ranks: tuple[Rank, ...] | None = None
    reason: str | None = None


@payload("gang.joining", writer="ctl")
class GangJoining(Payload):
    """Not every rank of a script has joined ``since_s`` after their start. ``reason``: where they stand, and what keeps them apart."""

    since_s: Seconds
    reason: str


@payload("store.retried", writer="ctl")
class StoreRetried(Payload):
    """The ports ``taken`` are in use; the store of the attempt listens on ``port``."""

    taken: tuple[Whole, ...] | None = None
    port: Whole | None = None


@payload("recovery.decided", writer="ctl")
class RecoveryDecided(Payload):
    """The next attempt. ``policy``: by lost node; ``slots``: group rank -> node; ``best_step``: the newest step of any rank.

    ``joined``: nodes by which the gang had shrunk before, and that are there again. ``hosts``: of the nodes that the policy
    ``replace`` chose.
    """

    lost: tuple[str, ...] | None = None
    failed: tuple[Rank, ...] | None = None
    detector: str | None = None
    policy: Mapping[str, str] | None = None
    slots: tuple[str, ...] | None = None
    epoch: Attempt | None = None
    best_step: Step | None = None
    joined: tuple[str, ...] | None = None
    hosts: Mapping[str, str] | None = None


@payload("recovery.waiting", writer="ctl")
class RecoveryWaiting(Payload):
    """No host has room for a lost node: recovery waits for ``wait_s``. ``hosts``: every host of the bed -> why it is refused."""

    lost: tuple[str, ...] | None = None
    detector: str | None = None
    wait_s: Seconds | None = None
    hosts: Mapping[str, str] | None = None


@payload("hosts.drained", writer="ctl")
class HostsDrained(Payload):
    """The hosts that are drained from now on -> the reason. No node is placed there."""

    hosts: Mapping[str, str]


@payload("recovery.growing", writer="ctl")
class RecoveryGrowing(Payload):
    """A checkpoint was committed, and nodes by which the gang had shrunk are there again: it is stopped, so that they rejoin."""

    joining: tuple[str, ...] | None = None


@payload("recovery.grown", writer="ctl")
class RecoveryGrown(Payload):
    """The next attempt, after a checkpoint of a gang that had shrunk: the nodes ``joined`` are there again."""

    joined: tuple[str, ...] | None = None
    slots: tuple[str, ...] | None = None
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
