"""Injects, verifies and heals faults: on command, and by itself when the lease of a fault expires, also without an orchestrator."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...model.event import Command
from ...model.events import fault_events
from ...model.events.commands import CommandFailed, FaultAct, FaultActDone, FaultHeal, FaultHealDone
from ...model.payload import Payload
from ...system import host_facts
from ..files.inbox import Respond, required
from ..oslayer.event_loop import Call, Loop, Steps, Timer
from . import primitive_runner
from .lease_records import Lease, Leases
from .node_protocol import Node
from .primitive_runner import OVERTAKEN

#: How long each observation before an injection may take, and that after it at least.
VERIFY_S = 2.0
HELD = "fault not proved: the state to verify already held before the injection"
NOT_KNOWN = "fault not proved: it is not known whether the state to verify already held before the injection"
UNHEALABLE = "fault not injected: the state that must hold once it is undone does not hold now, so undoing it could not be proved"

Evidence = Mapping[str, Any]
Note = Callable[[Lease, Payload], None]
#: What a job of a fault ends with: the type of an outcome, and its payload.
Outcome = tuple[str, Payload]


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
        self._queue = SerialQueue(loop)
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
        self._note(lease, fault_events.LeaseArmed(key=lease.key, lease_s=lease.act.lease_s, holder=self._holder))
        self._begin_injection(lease)

        def acted(kind: str, payload: Payload) -> None:
            self._end_injection(lease)
            respond(kind, payload)

        self._add(lease, self._act(lease, node), acted)

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
        self._add(lease, self._heal(lease), self._drop_then(held, respond))

    def _add(self, lease: Lease, job: Steps[Outcome], respond: Respond) -> None:
        self._queue.add(f"{lease.node}/{lease.id}", _responded(job, respond))

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

    def _act(self, lease: Lease, node: Node) -> Steps[Outcome]:
        """Inspect, inject and verify a fault. A repeated injection was inspected before."""
        if not lease.inspected:
            if failed := (yield from self._inspect(lease, node)):
                return "fail", failed
            lease = replace(lease, inspected=True)
            self._leases.arm(lease)
            self._start_timer(lease)
        return (yield from self._inject(lease, node))

    def _inspect(self, lease: Lease, node: Node) -> Steps[CommandFailed | None]:
        """Reject a fault whose state already holds, as it would prove nothing; and one of a host that cannot be observed now:
        it would not be seen to return. None: it may be injected."""
        act = lease.act
        held, evidence = yield from primitive_runner.observe_once(act.verify, node, VERIFY_S)
        self._note(lease, fault_events.FaultBefore(id=lease.id, evidence=evidence, held=held))
        if not self._is_in_force(lease):
            return CommandFailed(reason=OVERTAKEN)
        if held is not False:
            return self._reject(lease, HELD if held else NOT_KNOWN, evidence)
        if not (act.of_host and act.verify_heal):
            return None
        is_there, evidence = yield from primitive_runner.observe_until(
            act.verify_heal, (), node, VERIFY_S, lambda: self._is_in_force(lease)
        )
        if not self._is_in_force(lease):
            return CommandFailed(reason=OVERTAKEN)
        return None if is_there else self._reject(lease, UNHEALABLE, evidence)

    def _reject(self, lease: Lease, reason: str, evidence: Evidence) -> CommandFailed:
        self._drop(lease)
        self._rejected.add((lease.node, lease.id))
        return CommandFailed(reason=reason, verified=False, evidence=evidence)

    def _inject(self, lease: Lease, node: Node) -> Steps[Outcome]:
        """Perform and verify the injection. The first failing primitive ends it, and the fault counts as not verified.

        So does a fault whose healing is ordered before the last primitive: it was not injected.
        """
        act, began = lease.act, time.monotonic()
        early = [item for item in act.verify if item in act.inject[:-1] and not item.args.get("grace_s")]
        late = [primitive for primitive in act.verify if primitive not in early]
        evidence, problems = yield from primitive_runner.perform_all(
            self._loop, act.inject, node, act.limit_s,
            lambda problems: self._is_in_force(lease) and not problems, proofs=act.verify,
        )  # fmt: skip
        if OVERTAKEN not in problems:
            self._note(lease, fault_events.FaultInjected(id=lease.id, evidence=evidence, began=began))
        is_verified = not problems
        if late and not problems:
            limit_s = max(VERIFY_S, began + act.limit_s - time.monotonic())
            is_verified, more = yield from primitive_runner.observe_until(
                late, act.inject, node, limit_s, lambda: self._is_in_force(lease)
            )
            evidence = {**(evidence if early else {}), **more}
        if not is_verified:
            reason = problems[0] if problems else str(evidence.get("problem", "not verified"))
            return "fail", CommandFailed(reason=reason, verified=False, evidence=evidence)
        lasts = self._watch(lease, node)
        self._note(lease, fault_events.FaultVerified(id=lease.id, evidence=evidence, lasts=lasts))
        return "ok", FaultActDone(verified=True, evidence=evidence)

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

    def _heal(self, lease: Lease) -> Steps[Outcome]:
        """Perform all primitives, also after one fails, then verify the healing. What was never injected is left as it is."""
        is_rejected = (lease.node, lease.id) in self._rejected
        if watch := self._watches.pop((lease.node, lease.id), None):
            self._note(lease, watch.end(lease.id))
        act, node, until = lease.act, self._find_node(lease.node), time.monotonic() + lease.act.limit_s
        primitives = () if is_rejected else act.heal
        evidence, problems = yield from primitive_runner.perform_all(
            self._loop, primitives, node, act.limit_s, lambda problems: True
        )
        self._note(lease, fault_events.FaultHealed(id=lease.id, evidence=evidence))
        is_verified, evidence = True, {"undo": "nothing"}  # recovery replaces what such a fault breaks
        if (act.heal or act.verify_heal) and not is_rejected:
            limit_s = max(VERIFY_S, until - time.monotonic())
            is_verified, evidence = yield from primitive_runner.observe_until(
                act.verify_heal, act.heal, node, limit_s, lambda: True
            )
        if not is_verified:
            reason = problems[0] if problems else "undoing not verified"
            return "fail", CommandFailed(reason=reason, verified=False, evidence=evidence)
        self._note(lease, fault_events.HealVerified(id=lease.id, evidence=evidence))
        return "ok", FaultHealDone(verified=True, evidence=evidence)

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
            self._note(lease, fault_events.LeaseOver(key=lease.key))
        finally:
            dropped = self._drop_then([lease], lambda kind, payload: None)
            self._add(lease, self._heal(lease), dropped)

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
    """Runs tasks of the same name one after the other: a healing never overtakes its injection."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: dict[str, deque[Steps[None]]] = {}

    def add(self, name: str, task: Steps[None]) -> None:
        """Run the task once all earlier tasks of this name have ended."""
        if name in self._waiting:
            self._waiting[name].append(task)
        else:
            self._waiting[name] = deque([task])
            self._loop.start(self._run(name))

    def _run(self, name: str) -> Steps[None]:
        while self._waiting[name]:
            try:
                yield from self._waiting[name].popleft()
            except Exception:  # the loop logs it, and the others follow
                self._loop.call_later(0.0, lambda: self._loop.start(self._run(name)))
                raise
        del self._waiting[name]


def _responded(job: Steps[Outcome], respond: Respond) -> Steps[None]:
    """Respond with the outcome of a job. An exception is a failure of its command: no command waits for it in vain."""
    try:
        kind, payload = yield from job
    except Exception as error:  # noqa: BLE001
        kind, payload = "fail", CommandFailed(reason=f"{type(error).__name__}: {error}")
    respond(kind, payload)


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
