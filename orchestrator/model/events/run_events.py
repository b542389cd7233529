"""Beginning, resumption and end of a run, and the controller's own delays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..payload import Payload, Record, null, payload, record
from .field_types import Count, Seconds, Whole


@record
class NodeFacts(Record):
    """A node as it was when the controller saw it. ``ordinal``: its how many-th incarnation."""

    incarnation: str | None = None
    ordinal: Count | None = None
    pid: Whole | None = None
    role: str | None = None
    address: str | None = None
    host: str | None = None


@record
class ClockFacts(Record):
    """The clock of a boot, relative to the controller's: add ``offset_s``, plus or minus ``uncertainty_s``."""

    host: str | None = None
    offset_s: Seconds | None = None
    uncertainty_s: Seconds | None = None


@payload("run.begin", writer="ctl")
class RunBegin(Payload):
    """A run begins. ``plan``, ``inputs``, ``documents``, ``code``: SHA-256; ``clocks``: by boot; ``keeper_pids``: by host, 0 for none."""

    run: str | None = None
    bed: str | None = None
    pid: Whole | None = None
    nodes: Mapping[str, NodeFacts] | None = None
    cursors: Mapping[str, Any] | None = None
    format: Count | None = None
    trial: str | None = None
    twin: str | None = null()
    plan: str | None = None
    inputs: Mapping[str, str] | None = None
    documents: Mapping[str, str] | None = None
    code: str | None = null()
    keeper_pids: Mapping[str, Whole] | None = None
    clocks: Mapping[str, ClockFacts] | None = None
    left_out: Mapping[str, str] | None = None


@payload("run.resumed", writer="ctl")
class RunResumed(Payload):
    """Another orchestrator continues the run. ``nodes``: those that live; ``torn_bytes``: cut off the end of the journal."""

    pid: Whole | None = None
    torn_bytes: Count | None = None
    nodes: Mapping[str, NodeFacts] | None = None


@payload("run.interrupted", writer="ctl")
class RunInterrupted(Payload):
    """The user interrupts the run; with ``reason`` and ``nodes`` where the journal could not be written before.

    ``is_final``: the run ends with it, and cannot be resumed.
    """

    reason: str | None = None
    is_final: bool | None = None
    pid: Whole | None = None
    torn_bytes: Count | None = None
    nodes: Mapping[str, NodeFacts] | None = None


@payload("run.stopped", writer="ctl")
class RunStopped(Payload):
    """The run is ended on purpose, as its trial plans (``at``). ``steps``: of all attempts together; ``saves``: committed."""

    at: str
    steps: Count | None = None
    saves: Count | None = None


@payload("run.end", writer="ctl")
class RunEnd(Payload):
    """A run ends. ``outcome``: finished, failed or interrupted; ``kind``: empty, finding or infrastructure."""

    outcome: str | None = None
    reason: str | None = None
    kind: str | None = None


@payload("controller.late", writer="ctl")
class ControllerLate(Payload):
    """The controller itself slept; liveness limits are scaled up by that time."""

    late_s: Seconds | None = None


@payload("command.repeated", writer="agent, keeper")
class CommandRepeated(Payload):
    """A command came again, and its performer repeated the outcome, which the history holds already."""

    f: str
    key: str | None = null()


@payload("command.refused", writer="agent, keeper")
class CommandRefused(Payload):
    """A command was rejected without being performed."""

    key: str | None = None
    reason: str | None = None
