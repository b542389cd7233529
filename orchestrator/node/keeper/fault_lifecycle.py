"""Injects, verifies and heals faults: on command, and by itself when the lease of a fault expires, also without an orchestrator."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...model.event import Command
from ...model.events.commands import CommandFailed, FaultAct, FaultActDone, FaultHeal, FaultHealDone
from ...model.events.faults import (
    FaultBefore,
    FaultHealed,
    FaultInjected,
    FaultVerified,
    HealVerified,
    LeaseArmed,
    LeaseOver,
)  # fmt: skip
from ...model.payload import Payload
from ..files.inbox import Respond, required
from ..oslayer import host_facts
from ..oslayer.event_loop import Loop, Timer
from . import primitive_runner
from .lease_records import Lease, Leases
from .node_protocol import Node

VERIFY_S = 2.0
HELD = "fault not proved: the state to verify already held before the injection"
NOT_KNOWN = "fault not proved: it is not known whether the state to verify already held before the injection"

Evidence = Mapping[str, Any]
Note = Callable[[Lease, Payload], None]
#: Work that calls its argument when it is done.
Work = Callable[[Callable[[], None]], None]


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
        #: (node, id) of the faults whose injection is not yet verified.
        self._injecting: set[tuple[str, str]] = set()

    def resume(self) -> None:
        """Continue the leases of an earlier keeper."""
        for lease in self._leases.all():
            self._start_timer(lease)

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
        self._leases.arm(lease)
        self._start_timer(lease)
        self._note(lease, LeaseArmed(key=lease.key, lease_s=lease.act.lease_s, holder=self._holder))
        self._injecting.add((lease.node, lease.id))

        def acted(kind: str, payload: Payload) -> None:
            self._injecting.discard((lease.node, lease.id))
            respond(kind, payload)

        self._queue.add(_name(lease), lambda done: self._inspect(lease, node, _respond_then(acted, done)))

    def is_injecting(self, node: str) -> bool:
        """Is a fault being injected on the node? Until it is verified it is repeated: it would end a new incarnation too."""
        return any(name == node for name, _ in self._injecting)

    def heal(self, run: str, command: Command[FaultHeal], respond: Respond) -> None:
        """Perform a fault.heal, also if the lease has healed the fault already or nothing is in force."""
        lease = _lease(run, command)
        for held in self._leases.of(lease.node, command.data.id or command.data.fault):
            self._drop(held)
        self._queue.add(_name(lease), lambda done: self._heal(lease, _respond_then(respond, done)))

    def _inspect(self, lease: Lease, node: Node, respond: Respond) -> None:
        """Reject a fault whose state already holds, as it would prove nothing. A repeated injection was inspected before."""
        if lease.inspected:
            self._inject(lease, node, respond)
            return

        def inspected(held: bool | None, evidence: Evidence) -> None:
            self._note(lease, FaultBefore(id=lease.id, evidence=evidence, held=held))
            if not self._is_in_force(lease):
                respond("fail", CommandFailed(reason="healed before it was injected"))
            elif held is not False:
                self._drop(lease)
                reason = HELD if held else NOT_KNOWN
                respond("fail", CommandFailed(reason=reason, verified=False, evidence=evidence))
            else:
                self._leases.arm(replace(lease, inspected=True))
                self._inject(lease, node, respond)

        primitive_runner.observe_once(self._loop, lease.act.verify, node, VERIFY_S, inspected)

    def _inject(self, lease: Lease, node: Node, respond: Respond) -> None:
        """Perform and verify the injection. The first failing primitive ends it, and the fault counts as not verified."""
        act, began = lease.act, time.monotonic()
        until = began + act.limit_s
        early = [primitive for primitive in act.verify if primitive in act.inject[:-1]]
        late = [primitive for primitive in act.verify if primitive not in early]

        def injected(evidence: Evidence, problems: Sequence[str]) -> None:
            self._note(lease, FaultInjected(id=lease.id, evidence=evidence, began=began))

            def report(is_verified: bool, evidence: Evidence) -> None:
                if is_verified:
                    self._note(lease, FaultVerified(id=lease.id, evidence=evidence))
                    respond("ok", FaultActDone(verified=True, evidence=evidence))
                else:
                    reason = problems[0] if problems else "not verified"
                    respond("fail", CommandFailed(reason=reason, verified=False, evidence=evidence))

            if problems:
                report(False, evidence)
                return
            limit_s = max(VERIFY_S, until - time.monotonic()) if act.of_host else VERIFY_S
            primitive_runner.observe_until(
                self._loop, late, act.inject, node, limit_s, lambda: self._is_in_force(lease),
                lambda is_reached, more: report(is_reached, {**(evidence if early else {}), **more}),
            )  # fmt: skip

        def may_continue(problems: Sequence[str]) -> bool:
            return self._is_in_force(lease) and not problems

        primitive_runner.perform_all(self._loop, act.inject, node, act.limit_s, may_continue, injected, proofs=early)

    def _is_in_force(self, lease: Lease) -> bool:
        return (lease.node, lease.id) in self._timers

    def _heal(self, lease: Lease, respond: Respond) -> None:
        """Perform all primitives, also after one fails, then verify the healing."""
        act, node, until = lease.act, self._find_node(lease.node), time.monotonic() + lease.act.limit_s

        def healed(evidence: Evidence, problems: Sequence[str]) -> None:
            self._note(lease, FaultHealed(id=lease.id, evidence=evidence))

            def report(is_verified: bool, evidence: Evidence) -> None:
                if is_verified:
                    self._note(lease, HealVerified(id=lease.id, evidence=evidence))
                    respond("ok", FaultHealDone(verified=True, evidence=evidence))
                else:
                    reason = problems[0] if problems else "healing not verified"
                    respond("fail", CommandFailed(reason=reason, verified=False, evidence=evidence))

            if act.heal or act.verify_heal:
                limit_s = max(VERIFY_S, until - time.monotonic())
                primitive_runner.observe_until(
                    self._loop, act.verify_heal, act.heal, node, limit_s, lambda: True, report
                )
            else:
                report(True, {"undo": "nothing"})  # recovery replaces what such a fault breaks

        primitive_runner.perform_all(self._loop, act.heal, node, act.limit_s, lambda problems: True, healed)

    def _start_timer(self, lease: Lease) -> None:
        self._cancel_timer(lease)
        self._timers[lease.node, lease.id] = self._loop.call_later(lease.left_s, lambda: self._expire(lease))

    def _expire(self, lease: Lease) -> None:
        """Heal a fault whose lease is over. A fault that lasts until the end of its run is renewed while the run is driven."""
        if lease.act.heal_after_s is None and self._is_driven(lease.run):
            renewed = replace(lease, until=time.monotonic() + lease.act.lease_s)
            self._leases.arm(renewed)
            self._start_timer(renewed)
            return
        self._drop(lease)
        self._note(lease, LeaseOver(key=lease.key))
        self._queue.add(_name(lease), lambda done: self._heal(lease, _respond_then(lambda kind, payload: None, done)))

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
        try:
            work(lambda: self._next(name))
        except BaseException:
            self._next(name)
            raise

    def _next(self, name: str) -> None:
        if self._waiting[name]:
            self._waiting[name].popleft()(lambda: self._next(name))
        else:
            del self._waiting[name]


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


def _name(lease: Lease) -> str:
    return f"{lease.node}/{lease.id}"


def _respond_then(respond: Respond, done: Callable[[], None]) -> Respond:
    """Respond, then start the next work of the queue."""

    def both(kind: str, payload: Payload) -> None:
        respond(kind, payload)
        done()

    return both
