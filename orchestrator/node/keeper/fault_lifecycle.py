"""Injects, verifies and heals faults: on command, and by itself when the lease of a fault expires, also without an orchestrator."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec

from ...model.event import Command
from ...model.events import faults
from ...model.events.commands import CommandFailed, FaultAct, FaultActDone, FaultHeal, FaultHealDone
from ...model.payload import Payload
from ..files.inbox import Respond, required
from ..oslayer import host_facts
from ..oslayer.event_loop import Loop, Timer
from . import primitive_runner
from .lease_records import Lease, Leases
from .node_protocol import Node

#: How long each observation before an injection may take, and that after it at least.
VERIFY_S = 2.0
HELD = "fault not proved: the state to verify already held before the injection"
NOT_KNOWN = "fault not proved: it is not known whether the state to verify already held before the injection"
UNHEALABLE = "fault not injected: the state that must hold once it is undone does not hold now, so undoing it could not be proved"

P = ParamSpec("P")
Evidence = Mapping[str, Any]
Note = Callable[[Lease, Payload], None]
Call = Callable[[], None]
#: Work that calls its argument when it is done.
Work = Callable[[Call], None]
#: Work that responds to a command, or to the expiry of a lease.
Job = Callable[["Reply"], None]


class FaultLifecycle:
    """The faults in force on the nodes of a keeper, or on their hosts."""

    def __init__(
        self,
        loop: Loop,
        leases: Leases,
        find_node: Callable[[str], Node],
        note: Note,
        is_driven: Callable[[str], bool] = lambda run: False,
        holder: str = "keeper",
    ) -> None:
        """``is_driven``: does an orchestrator drive that run now? ``holder``: the name under which leases are held."""
        self._loop = loop
        self._leases = leases
        self._find_node = find_node
        self._note = note
        self._is_driven = is_driven
        self._holder = holder
        self._queue = SerialQueue()
        self._timers: dict[tuple[str, str], Timer] = {}
        #: (node, id) of the faults whose injection is not yet verified, with the time after which it is not waited for.
        self._injecting: dict[tuple[str, str], Timer] = {}
        self._watches: dict[tuple[str, str], primitive_runner.FaultWatch] = {}
        #: (node, id) of the faults that were rejected before their injection: nothing is to be healed.
        self._rejected: set[tuple[str, str]] = set()
        #: (node, call) of what waits until no fault is being injected on the node.
        self._waiting: list[tuple[str, Call]] = []

    def resume(self) -> None:
        """Continue the leases of an earlier keeper."""
        leases = self._leases.all()
        for name in {lease.node for lease in leases}:
            injected = [item for lease in leases if lease.node == name for item in lease.act.inject]
            primitive_runner.adopt(injected, self._find_node(name))
        for lease in leases:
            self._start_timer(lease)
            self._watch(lease, self._find_node(lease.node))

    def act(self, run: str, command: Command[FaultAct], respond: Respond) -> None:
        """Perform a fault.act: respond ok with evidence once the fault shows on its target, else fail."""
        lease, node = _lease(run, command), self._find_node(str(command.node))
        act = lease.act
        primitive_runner.check_supported((*act.inject, *act.verify, *act.heal, *act.verify_heal), node)
        before = next((item for item in self._leases.all() if item.key == lease.key and item.run == run), None)
        if before is None and not node.is_up():
            respond("fail", CommandFailed(reason=f"{node.name} does not run: a fault needs a running node"))
            return
        lease = replace(lease, inspected=before is not None and before.inspected)
        self._rejected.discard((lease.node, lease.id))
        self._leases.arm(lease)
        self._start_timer(lease)
        self._note(lease, faults.LeaseArmed(key=lease.key, lease_s=lease.act.lease_s, holder=self._holder))
        self._begin_injection(lease)

        def acted(kind: str, payload: Payload) -> None:
            self._end_injection(lease)
            respond(kind, payload)

        self._add(lease, lambda reply: self._inspect(lease, node, reply), acted)

    def is_injecting(self, node: str) -> bool:
        """Is a fault being injected on the node? Until it is verified it is repeated: it would end a new incarnation too."""
        return any(name == node for name, _ in self._injecting)

    def after_injections(self, node: str, then: Call) -> None:
        """Call once no fault is being injected on the node."""
        if self.is_injecting(node):
            self._waiting.append((node, then))
        else:
            then()

    def heal(self, run: str, command: Command[FaultHeal], respond: Respond) -> None:
        """Perform a fault.heal, also if the lease has healed the fault already or nothing is in force."""
        lease = _lease(run, command)
        held = self._leases.of(lease.node, command.data.id or command.data.fault)
        for item in held:
            self._cancel_timer(item)
        self._add(lease, lambda reply: self._heal(lease, reply), self._drop_then(held, respond))

    def _add(self, lease: Lease, job: Job, respond: Respond) -> None:
        """Queue a job of a fault. An exception is a failure of its command, and the next job of the fault follows."""

        def work(done: Call) -> None:
            reply = Reply(respond, done)
            reply.guard(job)(reply)

        self._queue.add(f"{lease.node}/{lease.id}", work)

    def _begin_injection(self, lease: Lease) -> None:
        self._end_injection(lease)
        limit_s = 3 * VERIFY_S + (len(lease.act.inject) + 1) * lease.act.limit_s
        timer = self._loop.call_later(limit_s, lambda: self._end_injection(lease))
        self._injecting[lease.node, lease.id] = timer

    def _end_injection(self, lease: Lease) -> None:
        """Start what waits for the end of this injection."""
        if timer := self._injecting.pop((lease.node, lease.id), None):
            timer.cancel()
        waiting, self._waiting = self._waiting, []
        for node, call in waiting:
            if self.is_injecting(node):
                self._waiting.append((node, call))
            else:
                self._loop.call_later(0.0, call)

    def _inspect(self, lease: Lease, node: Node, respond: Reply) -> None:
        """Reject a fault whose state already holds, as it would prove nothing. A repeated injection was inspected before."""
        if lease.inspected:
            self._inject(lease, node, respond)
            return

        @respond.guard
        def inspected(held: bool | None, evidence: Evidence) -> None:
            self._note(lease, faults.FaultBefore(id=lease.id, evidence=evidence, held=held))
            if not self._is_in_force(lease):
                respond("fail", CommandFailed(reason=primitive_runner.OVERTAKEN))
            elif held is not False:
                self._reject(lease, HELD if held else NOT_KNOWN, evidence, respond)
            elif lease.act.of_host and lease.act.verify_heal:
                primitive_runner.observe_until(
                    self._loop,
                    lease.act.verify_heal,
                    (),
                    node,
                    VERIFY_S,
                    lambda: self._is_in_force(lease),
                    observed_end,
                )
            else:
                begin()

        @respond.guard
        def observed_end(holds: bool, evidence: Evidence) -> None:
            """A host that cannot be observed now would not be seen to return."""
            if not self._is_in_force(lease):
                respond("fail", CommandFailed(reason=primitive_runner.OVERTAKEN))
            elif holds:
                begin()
            else:
                self._reject(lease, UNHEALABLE, evidence, respond)

        def begin() -> None:
            repeatable = replace(lease, inspected=True)
            self._leases.arm(repeatable)
            self._start_timer(repeatable)
            self._inject(repeatable, node, respond)

        primitive_runner.observe_once(self._loop, lease.act.verify, node, VERIFY_S, inspected)

    def _reject(self, lease: Lease, reason: str, evidence: Evidence, respond: Reply) -> None:
        self._drop(lease)
        self._rejected.add((lease.node, lease.id))
        respond("fail", CommandFailed(reason=reason, verified=False, evidence=evidence))

    def _inject(self, lease: Lease, node: Node, respond: Reply) -> None:
        """Perform and verify the injection. The first failing primitive ends it, and the fault counts as not verified.

        So does a fault whose healing is ordered before the last primitive: it was not injected.
        """
        act, began = lease.act, time.monotonic()
        until = began + act.limit_s
        early = [item for item in act.verify if item in act.inject[:-1] and not item.args.get("grace_s")]
        late = [primitive for primitive in act.verify if primitive not in early]

        @respond.guard
        def injected(evidence: Evidence, problems: Sequence[str]) -> None:
            if primitive_runner.OVERTAKEN not in problems:
                self._note(lease, faults.FaultInjected(id=lease.id, evidence=evidence, began=began))

            @respond.guard
            def report(is_verified: bool, evidence: Evidence) -> None:
                if is_verified:
                    lasts = self._watch(lease, node)
                    self._note(lease, faults.FaultVerified(id=lease.id, evidence=evidence, lasts=lasts))
                    respond("ok", FaultActDone(verified=True, evidence=evidence))
                else:
                    reason = problems[0] if problems else "not verified"
                    respond("fail", CommandFailed(reason=reason, verified=False, evidence=evidence))

            if problems or not late:
                report(not problems, evidence)
                return
            limit_s = max(VERIFY_S, until - time.monotonic())
            primitive_runner.observe_until(
                self._loop, late, act.inject, node, limit_s, lambda: self._is_in_force(lease),
                lambda is_reached, more: report(is_reached, {**(evidence if early else {}), **more}),
            )  # fmt: skip

        def may_continue(problems: Sequence[str]) -> bool:
            return self._is_in_force(lease) and not problems

        primitive_runner.perform_all(
            self._loop, act.inject, node, act.limit_s, may_continue, injected, proofs=act.verify
        )

    def _watch(self, lease: Lease, node: Node) -> bool | None:
        """Observe a verified fault until it is healed; None if its state cannot be observed on."""
        watch = primitive_runner.watch(self._loop, lease.act, node)
        if earlier := self._watches.pop((lease.node, lease.id), None):
            earlier.end(lease.id)
        if watch:
            self._watches[lease.node, lease.id] = watch
        return True if watch else None

    def _is_in_force(self, lease: Lease) -> bool:
        return (lease.node, lease.id) in self._timers

    def _heal(self, lease: Lease, respond: Reply) -> None:
        """Perform all primitives, also after one fails, then verify the healing. What was never injected is left as it is."""
        is_rejected = (lease.node, lease.id) in self._rejected
        if watch := self._watches.pop((lease.node, lease.id), None):
            self._note(lease, watch.end(lease.id))
        act, node, until = lease.act, self._find_node(lease.node), time.monotonic() + lease.act.limit_s

        @respond.guard
        def healed(evidence: Evidence, problems: Sequence[str]) -> None:
            self._note(lease, faults.FaultHealed(id=lease.id, evidence=evidence))

            @respond.guard
            def report(is_verified: bool, evidence: Evidence) -> None:
                if is_verified:
                    self._note(lease, faults.HealVerified(id=lease.id, evidence=evidence))
                    respond("ok", FaultHealDone(verified=True, evidence=evidence))
                else:
                    reason = problems[0] if problems else "undoing not verified"
                    respond("fail", CommandFailed(reason=reason, verified=False, evidence=evidence))

            if (act.heal or act.verify_heal) and not is_rejected:
                limit_s = max(VERIFY_S, until - time.monotonic())
                primitive_runner.observe_until(
                    self._loop, act.verify_heal, act.heal, node, limit_s, lambda: True, report
                )
            else:
                report(True, {"undo": "nothing"})  # recovery replaces what such a fault breaks

        primitives = () if is_rejected else act.heal
        primitive_runner.perform_all(self._loop, primitives, node, act.limit_s, lambda problems: True, healed)

    def _start_timer(self, lease: Lease) -> None:
        self._cancel_timer(lease)
        self._timers[lease.node, lease.id] = self._loop.call_later(lease.left_s, lambda: self._expire(lease))

    def _expire(self, lease: Lease) -> None:
        """Heal a fault whose lease is over. A fault that lasts until the end of its run is renewed while the run is driven."""
        if lease.act.heal_after_s is None and self._is_driven(lease.run):
            renewed = replace(lease, until=time.monotonic() + lease.act.lease_s, boot=host_facts.boot_id())
            self._start_timer(renewed)
            self._leases.arm(renewed)
            return
        self._cancel_timer(lease)
        try:
            self._note(lease, faults.LeaseOver(key=lease.key))
        finally:
            dropped = self._drop_then([lease], lambda kind, payload: None)
            self._add(lease, lambda reply: self._heal(lease, reply), dropped)

    def _drop_then(self, leases: Sequence[Lease], respond: Respond) -> Respond:
        """Drop the leases of a fault when its healing has ended, then respond: a keeper that is killed before heals again.

        A lease that was armed meanwhile under the same name stays.
        """

        def healed(kind: str, payload: Payload) -> None:
            for lease in leases:
                if not self._is_in_force(lease):
                    self._leases.drop(lease)
            respond(kind, payload)

        return healed

    def _drop(self, lease: Lease) -> None:
        self._cancel_timer(lease)
        self._leases.drop(lease)

    def _cancel_timer(self, lease: Lease) -> None:
        timer = self._timers.pop((lease.node, lease.id), None)
        if timer:
            timer.cancel()


class SerialQueue:
    """Runs works of the same name one after the other: a healing never overtakes its injection."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Work]] = {}

    def add(self, name: str, work: Work) -> None:
        """Run ``work`` once all earlier works of this name have called their ``done``."""
        if name in self._waiting:
            self._waiting[name].append(work)
            return
        self._waiting[name] = deque()
        work(lambda: self._next(name))

    def _next(self, name: str) -> None:
        if self._waiting[name]:
            self._waiting[name].popleft()(lambda: self._next(name))
        else:
            del self._waiting[name]


class Reply:
    """Responds to a command once, then starts the next work of the queue."""

    def __init__(self, respond: Respond, done: Call) -> None:
        self._respond = respond
        self._done = done
        self._is_sent = False

    def __call__(self, kind: str, payload: Payload) -> None:
        if self._is_sent:
            return
        self._is_sent = True
        try:
            self._respond(kind, payload)
        finally:
            self._done()

    def guard(self, call: Callable[P, None]) -> Callable[P, None]:
        """The call, of which an exception is a failure of the command: no command and no work waits for it in vain."""

        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                call(*args, **kwargs)
            except Exception as error:
                if self._is_sent:
                    raise
                self("fail", CommandFailed(reason=f"{type(error).__name__}: {error}"))

        return guarded


def _lease(run: str, command: Command[FaultAct] | Command[FaultHeal]) -> Lease:
    order = command.data
    act, id = required(order.act, "act"), order.id or command.key
    return Lease(
        id=id,
        fault=order.fault or id,
        node=str(command.node),
        key=command.key,
        run=run,
        epoch=command.epoch,
        until=time.monotonic() + act.lease_s,
        boot=host_facts.boot_id(),
        act=act,
    )
