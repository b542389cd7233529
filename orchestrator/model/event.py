"""Events, commands and the history: what happened, what is asked for, and in which order.

Vocabulary of ``Event.f``. *Commands* appear as ``invoke`` when the orchestrator issues them and close with one
``ok``, ``fail`` or ``info`` (indeterminate) that carries the same ``key``. *Observations* are ``note``.

===================  ============================================================================================
commands             value of the invoke -> value of the ok
===================  ============================================================================================
note                 (no invoke) the engine's own decisions, appended as a note under the ``f`` named in the value
timer                {after_s} -> {}
fence.write          {epoch, dir, keep} -> {epoch}
checkpoint.scan      {dir, lineage} -> {newest: {name, file, step, epoch, sha256, parent, bytes} | null,
                      skipped: [{name, reason}]}
store.open           {epoch, address, port} -> {address, port, pid, retries: [port]}
gang.start           GangSpec (see model/gang.py) -> {pids: {rank: pid}, threads, agent: its own pid, as ranks see it,
                      begin: SHA-256 of run.begin, system: of system.json}
gang.stop            {epoch} -> {killed: [pid], left: 0, last_step: {rank: step}}
node.apply           NodeSpec -> {incarnation, ordinal, pid}
node.kill            {} -> {killed: [pid], left: 0}
fault.act            {fault, act: Act, hold} -> {verified: true, evidence}
fault.heal           {fault, act: Act} -> {verified: true, evidence}
rank.release         {rank, hold} -> {}
gather               {} -> {files, bytes, sums: {path: SHA-256}, keepers: {path: {bytes, sha256}},
                      missing: [{node, path, reason}], capped: [...], keeper_pids: as in run.begin}
===================  ============================================================================================

A command that comes again is not performed again: its answer is given again, with ``repeated: true`` in its value. Where
the history has that answer, the second is written down as the note command.repeated.

===================  ============================================================================================
observations         writer, value
===================  ============================================================================================
run.begin            ctl {run, bed, pid, nodes: {name: {incarnation, ordinal, pid, role, address, host}}, cursors,
                         clocks: {boot: {host, offset_s, uncertainty_s}}, left_out: {spare: why it takes no part},
                         format: of the bundle, trial: its id, twin: its key or null, plan: SHA-256 of plan.json,
                         inputs: {path below inputs/: SHA-256}, keeper_pids: {host: pid, or 0}}
run.resumed          ctl {pid, torn_bytes}
run.interrupted      ctl {}                                  with the value of run.resumed where a journal was cut off before
run.end              ctl {outcome: finished | failed | interrupted, reason, kind: "" | finding | infrastructure}
fault.planned        ctl {fault, id, node, trigger}          one per planned fault, before the first gang
fault.target         ctl {id, asked, node, rank}             the late resolution of a target
fault.unreached      ctl {id, reason}                        the run ended before the trigger fired
store.retried        ctl {taken: [port], port}               ports were taken, the next free one is the epoch's
gang.joined          ctl {}                                  every rank of the epoch has joined
recovery.decided     ctl {lost: [node], failed: [rank], detector, policy: {node: policy}, slots: [node], epoch}
recovery.refused     ctl {reason}                            no policy applies, budget spent, or a crash loop
resume.chosen        ctl {name, file, step, epoch, sha256}        or {step: 0} for a fresh start
node.suspect         ctl {silent_s}                          heart-beat late
node.silent          ctl {silent_s, seen}                    heart-beat lost: a detector; what an observation found then
node.heard           ctl {silent_s}                          a suspect, or silent, node beats again
gang.stalled         ctl {since_s}                           no progress: a detector
controller.late      ctl {late_s}                            the controller itself slept; limits were scaled up
node.exit            keeper {code, pid, left}                a detector; left: 0 where nothing can outlive it
node.ended           keeper {code, oom, pid, killed, left}   a little later: what the container's engine knows of that exit; of a
                                                             process node, what the keeper ended of it and how many are left
lease.armed          keeper {key, lease_s, holder}           keeper, or ``outside``: the holder on the controller's machine
lease.over           keeper {key}                            the lease ran out and the holder healed by itself
fault.before         keeper {id, evidence, held}             was the state to verify there before the injection? absent: not known
fault.injected       keeper {id, evidence, began}            the call returned; ``began``: CLOCK_MONOTONIC when it was made
fault.verified       keeper {id, evidence}
fault.healed         keeper {id, evidence}
heal.verified        keeper {id, evidence}
agent.ready          agent {pid, threads, torch, frozen}
rank.exit            agent {rank, pid, code, last_step}      code < 0: signal; a detector unless the code is 0
command.refused      agent {key, reason}
command.repeated     agent or keeper {f, key}                the command came again, and its answer, which stands here already
rank.start           rank {rank, pid, ppid, threads, preloaded: [module], files: {name: SHA-256}}
rank.joined          rank {rank, world, backend}
rank.restored        rank {rank, step, name, sha256, weights: sha256 of the parameters after broadcast or load}
                     a measurement keeps no state: step 0, the rest null
rank.step            rank {rank, step, mark: "first"}        the first step that this rank completed in this epoch
rank.inside          rank {rank, step, phase, hold}          passed the point at which another rank is held
rank.held            rank {rank, step, phase, hold}
rank.released        rank {rank, hold, held_s}
hold.expired         rank {rank, hold, held_s}               nobody released it in time: verdict unknown
rank.finished        rank {rank, steps, loss, digest: {tensor or rng name: sha256}, metrics, transfers: chunk records,
                         files: {name: SHA-256}}
rank.error           rank {rank, kind, message, culprit?: the rank to blame, where that may be another one}
progress             rank {step, steps, loss}                rank 0 only, at most twice a second
checkpoint.commit    rank {name, step, epoch, sha256, parent, bytes, write_s, files?: how many, where each rank wrote one}
checkpoint.refused   rank {name, fence}                      an old epoch tried to commit
checkpoint.failed    rank {name, reason, attempts, tried_s}  it is lost, e.g. disk full; training goes on
checkpoint.skipped   ctl {name, reason}                      damaged or half-written, the one before was taken
===================  ============================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EventType = Literal["invoke", "ok", "fail", "info", "note"]

#: Observations from which recovery may start. The outcome of our own injection is not among them.
DETECTORS = ("node.exit", "rank.exit", "node.silent", "gang.stalled")
#: In the value of an answer that was given before, to a command that came again.
REPEATED = "repeated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """When the writer wrote: its boot id, CLOCK_MONOTONIC in seconds, and wall-clock seconds since 1970."""

    boot: str
    mono: float
    wall: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Who wrote an event. ``(node, incarnation, writer, n)`` is its identity; the journal drops repeats by it."""

    writer: str
    n: int
    node: str | None = None
    incarnation: str | None = None

    @property
    def identity(self) -> tuple[str | None, str | None, str, int]:
        return (self.node, self.incarnation, self.writer, self.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a history. ``seq`` and ``t`` (seconds since the run began, controller's clock) are set by the journal."""

    type: EventType
    f: str
    at: Clock
    source: Source
    seq: int = 0
    t: float = 0.0
    key: str | None = None
    node: str | None = None
    epoch: int | None = None
    value: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something to be done, once. ``key`` makes it idempotent; the incarnation and epoch fence it."""

    f: str
    key: str
    node: str | None = None
    incarnation: str | None = None
    epoch: int | None = None
    deadline_s: float = 10.0
    value: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class History:
    """A closed or growing sequence of events, in journal order."""

    events: tuple[Event, ...] = ()

    def of(self, *names: str) -> tuple[Event, ...]:
        """The events whose ``f`` is one of ``names``, in order."""
        return tuple(e for e in self.events if e.f in names)

    def first(self, name: str) -> Event | None:
        return next((e for e in self.events if e.f == name), None)

    def last(self, name: str) -> Event | None:
        return next((e for e in reversed(self.events) if e.f == name), None)
