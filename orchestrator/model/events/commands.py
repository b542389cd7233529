"""Commands of the orchestrator, and what comes of them. ``X`` is the value of the invoke, ``XDone`` that of the ok.

A fail or an info (indeterminate) carries ``CommandFailed``, unless the class of the outcome has both. A command that comes
again is not performed again: its outcome is repeated with ``repeated: true`` in its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..act import Act
from ..payload import REGISTRY, EventType, Payload, Record, null, payload, record
from .checkpoint_events import CheckpointFacts, SkippedCheckpoint
from .field_types import Attempt, Count, Port, Rank, Ranks, Seconds, Step, Whole
from .ranks import FilePrefix


@record
class Order(Payload):
    """``deadline_s``: when the outcome counts as not known; the journal adds it."""

    deadline_s: Seconds | None = None


@record
class ResumeFacts(Record):
    """The checkpoint that a gang loads (``Resume`` of model/gang.py)."""

    name: str | None = None
    path: str | None = None
    step: Step | None = None
    sha256: str | None = None


@record
class MissingFile(Record):
    """A file that could not be fetched from a node."""

    node: str | None = None
    path: str | None = None
    reason: str | None = None


@record
class CappedFile(Record):
    """A path of which not all was fetched, as a node's share is ``limit`` bytes. ``files``: those below it that were cut."""

    node: str | None = None
    path: str | None = None
    limit: Count | None = None
    files: tuple[str, ...] | None = None

    @property
    def are_logs(self) -> bool:
        """Return whether only logs of ranks were cut: no verdict reads them beyond their first line."""
        names = [file.rpartition("/")[2] for file in self.files or ()]
        return bool(names) and all(
            name.startswith("rank-") and name.endswith(".log") and name[5:-4].isdecimal() for name in names
        )


@payload("note", "invoke")
class Note(Payload):
    """A decision of the engine: the loop appends a note named ``f``; this command itself is not in the history."""

    f: str
    value: Mapping[str, Any]


@payload("timer", "invoke", writer="ctl")
class Timer(Order):
    """The controller waits."""

    after_s: Seconds | None = None


@payload("timer", "ok", writer="ctl")
class TimerDone(Payload):
    """The time is over."""


@payload("fence.write", "invoke", writer="ctl")
class FenceWrite(Order):
    """No attempt below ``epoch`` commits to ``dir`` any more. ``keep``: checkpoints; ``fresh``: ``dir`` may be made."""

    epoch: Attempt | None = None
    dir: str | None = None
    keep: Count | None = None
    fresh: bool | None = None


@payload("fence.write", "ok", writer="agent")
class FenceWriteDone(Payload):
    """The fence is written."""

    epoch: Attempt | None = None


@payload("checkpoint.scan", "invoke", writer="ctl")
class CheckpointScan(Order):
    """Find the newest valid checkpoint in ``dir``. ``lineage``: (attempt, step that it resumed from)."""

    dir: str | None = None
    lineage: tuple[tuple[int, int], ...] | None = None


@payload("checkpoint.scan", "ok", writer="agent")
class CheckpointScanDone(Payload):
    """``newest``: null where there is none; ``skipped``: damaged or half-written ones that are newer."""

    newest: CheckpointFacts | None = null()
    skipped: tuple[SkippedCheckpoint, ...] | None = None


@payload("store.open", "invoke", writer="ctl")
class StoreOpen(Order):
    """Host the store of the attempt at ``address``. ``port`` 0: any. ``reserve``: only choose a free port, for a launcher."""

    epoch: Attempt | None = None
    address: str | None = None
    port: Whole | None = None
    reserve: bool | None = None


@payload("store.open", "ok", writer="agent")
class StoreOpenDone(Payload):
    """The store listens. ``retries``: ports that were in use."""

    address: str
    pid: Whole | None = None
    port: Port
    retries: tuple[Whole, ...] | None = None


@payload("gang.start", "invoke", writer="ctl")
class GangStart(Order):
    """Fork the ranks of one node. The value is a ``GangSpec`` (model/gang.py); these are the fields that readers rely on."""

    run: str | None = None
    epoch: Attempt | None = None
    world_size: Ranks | None = None
    nodes: Count | None = None
    group_rank: Rank | None = None
    ranks: tuple[Rank, ...] | None = None
    out: str | None = None
    params: Mapping[str, Any] | None = None
    holds: tuple[Any, ...] | None = None
    resume: ResumeFacts | None = None


@payload("gang.start", "ok", writer="agent")
class GangStartDone(Payload):
    """``pids``: by rank; ``agent``: its pid as ranks see it; ``begin``, ``system``: SHA-256 of run.begin and of system.json."""

    pids: Mapping[str, Whole] | None = None
    threads: Count | None = None
    agent: Whole | None = None
    begin: str | None = None
    system: str | None = None


@payload("gang.stop", "invoke", writer="ctl")
class GangStop(Order):
    """End the ranks of the attempt. ``dump``: their stacks are written into their logs first, and are in the response.

    ``grace_s``: from SIGTERM to SIGKILL; without it they are killed at once. ``save_grace_s``: the ranks of a node are killed so
    much later, or once none of them is inside a save. ``accepts_exiting``: respond once they run no more code, while the kernel
    still frees their memory.
    """

    epoch: Attempt | None = None
    dump: bool | None = None
    grace_s: Seconds | None = None
    save_grace_s: Seconds | None = None
    accepts_exiting: bool | None = None


@payload("gang.stop", "ok", "fail", "info", writer="agent")
class GangStopDone(Payload):
    """``left``: processes that can still run code; ``exiting``: pids of those that exit; ``last_step``: by rank.

    ``had_s``: by rank, the time from its notice, SIGTERM or the order to stop, to its end or SIGKILL. ``stacks``: as in
    ``gang.inspect``.
    """

    killed: tuple[Whole, ...] | None = None
    left: Count | None = None
    exiting: tuple[Whole, ...] | None = None
    last_step: Mapping[str, Step | None] | None = None
    had_s: Mapping[str, Seconds] | None = None
    stacks: Mapping[str, tuple[str, ...]] | None = None
    reason: str | None = None


@payload("gang.inspect", "invoke", writer="ctl")
class GangInspect(Order):
    """Observe for a second whether the ranks of the attempt work. ``stacks``: take the stacks of ranks that work, too."""

    epoch: Attempt | None = None
    stacks: bool | None = None


@payload("gang.inspect", "ok", writer="agent")
class GangInspectDone(Payload):
    """The activity of each rank within ``window_s``. ``states``: as in /proc/<pid>/stat; ``stacks``: innermost frame first.

    ``no_stack``: why the stack of a rank could not be taken.
    """

    window_s: Seconds
    cpu_s: Mapping[str, Seconds]
    bytes: Mapping[str, Whole]
    states: Mapping[str, str]
    stacks: Mapping[str, tuple[str, ...]]
    no_stack: Mapping[str, str] | None = None


@payload("node.apply", "invoke", writer="ctl")
class NodeApply(Order):
    """Start a node: by its name from the spec that it had, or, with ``hash``, from the ``NodeSpec`` (model/bed.py) in the value."""

    node: str | None = None
    hash: str | None = None


@payload("node.apply", "ok", writer="keeper")
class NodeApplyDone(Payload):
    """The node runs. ``ordinal``: its how many-th incarnation."""

    incarnation: str
    ordinal: Count
    pid: Whole | None = null()


@payload("node.kill", "invoke", writer="ctl")
class NodeKill(Order):
    """End every process of a node. ``host``: where it is, for a node that the bed does not list."""

    host: str | None = None


@payload("node.kill", "ok", "fail", "info", writer="keeper")
class NodeKillDone(Payload):
    """``left``: processes that still live; ``gone``, ``bed_ended``: see ``CommandFailed``."""

    killed: tuple[Whole, ...] | None = None
    left: Count | None = None
    reason: str | None = None
    gone: bool | None = None
    bed_ended: str | None = None


@payload("fault.act", "invoke", writer="ctl")
class FaultAct(Order):
    """Inject a fault and verify it. ``hold``: of the rank that waits for it."""

    id: str | None = None
    fault: str | None = None
    act: Act | None = None
    hold: Any = None


@payload("fault.act", "ok", writer="keeper")
class FaultActDone(Payload):
    """The fault was injected and verified."""

    verified: bool | None = None
    evidence: Any = None


@payload("fault.heal", "invoke", writer="ctl")
class FaultHeal(Order):
    """Heal a fault and verify it."""

    id: str | None = None
    fault: str | None = None
    act: Act | None = None


@payload("fault.heal", "ok", writer="keeper")
class FaultHealDone(Payload):
    """The fault was healed, and that was verified."""

    verified: bool | None = None
    evidence: Any = None


@payload("rank.release", "invoke", writer="ctl")
class RankRelease(Order):
    """Let a held rank continue. ``hold``: id of the fault."""

    rank: Rank | None = None
    hold: str | None = None


@payload("rank.release", "ok", writer="agent")
class RankReleaseDone(Payload):
    """The agent released the rank."""


@payload("rank.hold", "invoke", writer="ctl")
class RankHold(Order):
    """Hold a running rank of a script at ``phase`` of the first step from ``step`` on. ``hold``: id of the fault.

    ``saved_at``, ``saves_every``: the newest checkpoint and the steps between two. A rank that is past ``step`` already stops where
    a fault costs steps that are trained again, which may be after a later checkpoint.
    """

    rank: Rank | None = None
    hold: str | None = None
    step: Step | None = None
    phase: str | None = None
    limit_s: Seconds | None = None
    saved_at: Step | None = None
    saves_every: Step | None = None


@payload("rank.hold", "ok", writer="agent")
class RankHoldDone(Payload):
    """The order was written for the rank, which may not have read it yet."""


@payload("gather", "invoke", writer="ctl")
class Gather(Order):
    """Fetch the files of the run from all nodes."""


@payload("gather", "ok", writer="ctl")
class GatherDone(Payload):
    """``sums``: path -> SHA-256; ``keepers``: path -> what they had written; ``keeper_pids``: by host, 0 for none;
    ``keeper_losses``: why those are gone that the kernel killed for memory."""

    files: Count | None = None
    sums: Mapping[str, str] | None = None
    bytes: Count | None = None
    missing: tuple[MissingFile, ...] | None = None
    capped: tuple[CappedFile, ...] | None = None
    keepers: Mapping[str, FilePrefix] | None = None
    keeper_pids: Mapping[str, Whole] | None = None
    keeper_losses: Mapping[str, str] | None = None


@payload("exec", "invoke", writer="ctl")
class Exec(Order):
    """Run a program in a node, its output in files below ``out``; or a ``check``: {op, args} of the preflight."""

    argv: tuple[str, ...] | None = None
    env: Mapping[str, str] | None = None
    out: str
    cwd: str | None = null()
    umask: Count | None = None
    check: Mapping[str, Any] | None = None


@payload("exec", "ok", writer="agent")
class ExecDone(Payload):
    """The program left with ``code``."""

    code: Whole | None = None


@payload("exec.stop", "invoke", writer="ctl")
class ExecStop(Order):
    """Kill the program that writes to ``out``."""

    out: str


@payload("exec.stop", "ok", writer="agent")
class ExecStopDone(Payload):
    """The program does not run any more."""


@record
class CommandFailed(Payload):
    """The reason why a command failed, or why its outcome is not known. ``gone``: nothing is left that could perform it.

    ``bed_ended``: why the whole bed has ended, as after the end of its job.
    """

    TYPES: ClassVar[tuple[EventType, ...]] = ("fail", "info")

    reason: str | None = None
    gone: bool | None = None
    bed_ended: str | None = None
    errno: int | None = None
    log: str | None = None
    retries: tuple[Whole, ...] | None = None
    verified: bool | None = None
    evidence: Any = None


for _name, _type in [key for key in REGISTRY if key[1] == "invoke" and key[0] != Note.NAME]:
    for _failure in CommandFailed.TYPES:
        REGISTRY.setdefault((_name, _failure), CommandFailed)
