"""Faults as operations with proof: lease, inspect, inject, verify, answer; heal on order, or when the lease is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...model import codec
from ...model.act import Act
from ...model.event import Command
from ..files import label
from ..oslayer.event_loop import Loop, Timer
from . import primitive_runner, programs
from .lease import Lease, Leases
from .primitives import Node
from .process_nodes import Answer

PROVE_S = 2.0
HELD = "fault not proved: the state to verify already held before the injection"
NOT_KNOWN = "fault not proved: it is not known whether the state to verify already held before the injection"

Evidence = Mapping[str, Any]
Note = Callable[[str, Lease, Mapping[str, Any]], None]


class Acts:
    """The faults in force on the nodes of a keeper, or on what they live in."""

    def __init__(
        self,
        loop: Loop,
        leases: Leases,
        find: Callable[[str], Node],
        note: Note,
        driven: Callable[[str], bool] = lambda run: False,
        holder: str = "keeper",
    ) -> None:
        """``driven``: does an orchestrator hold that run now? ``holder``: the name under which leases are held."""
        self._loop = loop
        self._leases = leases
        self._find = find
        self._note = note
        self._driven = driven
        self._holder = holder
        self._line = programs.Line()
        self._timers: dict[tuple[str, str], Timer] = {}

    def resume(self) -> None:
        """Go on holding the leases of a keeper before this one."""
        for lease in self._leases.all():
            self._time(lease)

    def act(self, run: str, command: Command, answer: Answer) -> None:
        """Perform a fault.act: ok with evidence once what was hit itself shows it, else fail."""
        lease, node = _lease(run, command), self._find(str(command.node))
        primitive_runner.check((*lease.act.inject, *lease.act.verify, *lease.act.heal, *lease.act.verify_heal), node)
        before = next((one for one in self._leases.all() if one.key == lease.key and one.run == run), None)
        if before is None and not node.is_up():
            answer("fail", {"reason": f"{node.name} does not run: there is nothing to act on"})
            return
        lease = replace(lease, inspected=before is not None and before.inspected)
        self._leases.arm(lease)
        self._time(lease)
        self._note("lease.armed", lease, {"key": lease.key, "lease_s": lease.act.lease_s, "holder": self._holder})
        self._line.add(_name(lease), lambda done: self._inspect(lease, node, _finally(answer, done)))

    def heal(self, run: str, command: Command, answer: Answer) -> None:
        """Perform a fault.heal; also right after the lease has healed already, or where nothing is in force."""
        lease = _lease(run, command)
        for one in self._leases.of(lease.node, command.value):
            self._drop(one)
        self._line.add(_name(lease), lambda done: self._heal(lease, _finally(answer, done)))

    def _inspect(self, lease: Lease, node: Node, answer: Answer) -> None:
        """Only a state that did not hold before proves anything. An injection that is repeated was inspected before."""
        if lease.inspected:
            self._inject(lease, node, answer)
            return

        def inspected(held: bool | None, evidence: Evidence) -> None:
            known = {} if held is None else {"held": held}
            self._note("fault.before", lease, {"id": lease.id, "evidence": evidence, **known})
            if not self._in_force(lease):
                answer("fail", {"reason": "healed before it was injected"})
            elif held is not False:
                self._drop(lease)
                answer("fail", {"reason": HELD if held else NOT_KNOWN, "verified": False, "evidence": evidence})
            else:
                self._leases.arm(replace(lease, inspected=True))
                self._inject(lease, node, answer)

        primitive_runner.inspect(self._loop, lease.act.verify, node, PROVE_S, inspected)

    def _inject(self, lease: Lease, node: Node, answer: Answer) -> None:
        """A part that fails ends it: what is broken by then is healed, not called a fault."""
        act, began = lease.act, time.monotonic()
        until = began + act.limit_s
        early = [one for one in act.verify if one in act.inject[:-1]]
        late = [one for one in act.verify if one not in early]

        def injected(evidence: Evidence, problems: Sequence[str]) -> None:
            self._note("fault.injected", lease, {"id": lease.id, "evidence": evidence, "began": began})
            proved = self._proving(lease, "fault.verified", problems or ["not verified"], answer)
            if problems:
                proved(False, evidence)
                return
            limit_s = max(PROVE_S, until - time.monotonic()) if act.of_host else PROVE_S
            primitive_runner.prove(
                self._loop, late, act.inject, node, limit_s, lambda: self._in_force(lease),
                lambda good, more: proved(good, {**(evidence if early else {}), **more}),
            )  # fmt: skip

        def go_on(problems: Sequence[str]) -> bool:
            return self._in_force(lease) and not problems

        primitive_runner.each(self._loop, act.inject, node, act.limit_s, go_on, injected, proofs=early)

    def _in_force(self, lease: Lease) -> bool:
        return (lease.node, lease.id) in self._timers

    def _heal(self, lease: Lease, answer: Answer) -> None:
        """Every part is tried, also where one before it failed: what counts is the proof."""
        act, node, until = lease.act, self._find(lease.node), time.monotonic() + lease.act.limit_s

        def undone(evidence: Evidence, problems: Sequence[str]) -> None:
            self._note("fault.healed", lease, {"id": lease.id, "evidence": evidence})
            proved = self._proving(lease, "heal.verified", [*problems, "healing not verified"], answer)
            if act.heal or act.verify_heal:
                limit_s = max(PROVE_S, until - time.monotonic())
                primitive_runner.prove(self._loop, act.verify_heal, act.heal, node, limit_s, lambda: True, proved)
            else:
                proved(True, {"undo": "nothing"})  # what such a fault breaks is replaced, not repaired

        primitive_runner.each(self._loop, act.heal, node, act.limit_s, lambda problems: True, undone)

    def _proving(
        self, lease: Lease, f: str, problems: Sequence[str], answer: Answer
    ) -> Callable[[bool, Evidence], None]:
        """What a proof is told to: note and answer; ``problems``: what may be wrong where there is none, the first is told."""

        def proved(good: bool, evidence: Evidence) -> None:
            if good:
                self._note(f, lease, {"id": lease.id, "evidence": evidence})
                answer("ok", {"verified": True, "evidence": evidence})
            else:
                answer("fail", {"reason": problems[0], "verified": False, "evidence": evidence})

        return proved

    def _time(self, lease: Lease) -> None:
        self._cancel(lease)
        self._timers[lease.node, lease.id] = self._loop.later(lease.left_s, lambda: self._over(lease))

    def _over(self, lease: Lease) -> None:
        """Nobody healed in time: do it, and say that it was the lease. What lasts until the run ends, lasts while it is driven."""
        if lease.act.heal_after_s is None and self._driven(lease.run):
            renewed = replace(lease, until=time.monotonic() + lease.act.lease_s)
            self._leases.arm(renewed)
            self._time(renewed)
            return
        self._drop(lease)
        self._note("lease.over", lease, {"key": lease.key})
        self._line.add(_name(lease), lambda done: self._heal(lease, _finally(lambda kind, value: None, done)))

    def _drop(self, lease: Lease) -> None:
        self._cancel(lease)
        self._leases.drop(lease)

    def _cancel(self, lease: Lease) -> None:
        timer = self._timers.pop((lease.node, lease.id), None)
        if timer:
            timer.cancel()


def _lease(run: str, command: Command) -> Lease:
    value = command.value
    act = codec.build(Act, value["act"])
    id = str(value.get("id") or command.key)
    return Lease(
        id=id,
        fault=str(value.get("fault", id)),
        node=str(command.node),
        key=command.key,
        run=run,
        epoch=command.epoch,
        until=time.monotonic() + act.lease_s,
        boot=label.boot_id(),
        act=act,
    )


def _name(lease: Lease) -> str:
    return f"{lease.node}/{lease.id}"


def _finally(answer: Answer, done: Callable[[], None]) -> Answer:
    """Answer, then let go of the place in the line."""

    def both(kind: str, value: Mapping[str, Any]) -> None:
        answer(kind, value)
        done()

    return both
