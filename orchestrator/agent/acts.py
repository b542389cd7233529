"""Faults as operations with proof: lease, inject, look, answer; heal on order, or when the lease is over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..model import codec
from ..model.act import Act, Primitive
from ..model.event import Command
from . import label, primitives
from .lease import Lease, Leases
from .loop import Loop, Timer
from .nodes import Answer
from .primitives import Node

PROVE_S = 2.0
HEAL_S = 20.0
AGAIN_S = 0.002
#: Tests of the proof set this in the keeper's environment: injections then do nothing, and say nothing of it.
DISARM = "CCBED_TEST_DISARM"
#: Primitives whose injection is repeated until the state is reached: new processes may have come in between.
REPEATED = ("power", "pause")

Evidence = Mapping[str, Any]
Note = Callable[[str, Lease, Mapping[str, Any]], None]


class Acts:
    """The faults in force on the nodes of a keeper."""

    def __init__(
        self,
        loop: Loop,
        leases: Leases,
        find: Callable[[str], Node],
        note: Note,
        driven: Callable[[str], bool] = lambda run: False,
    ) -> None:
        """``driven``: does an orchestrator hold that run now?"""
        self._loop = loop
        self._leases = leases
        self._find = find
        self._note = note
        self._driven = driven
        self._timers: dict[tuple[str, str], Timer] = {}

    def resume(self) -> None:
        """Go on holding the leases of a keeper before this one."""
        for lease in self._leases.all():
            self._time(lease)

    def act(self, run: str, command: Command, answer: Answer) -> None:
        """Perform a fault.act: ok with evidence once the processes themselves show it, else fail."""
        lease, node = _lease(run, command), self._find(str(command.node))
        primitives.check((*lease.act.inject, *lease.act.verify, *lease.act.heal, *lease.act.verify_heal))
        again = any(one.key == lease.key and one.run == run for one in self._leases.all())
        if not again and not node.is_up():
            answer("fail", {"reason": f"{node.name} does not run: there is nothing to act on"})
            return
        self._leases.arm(lease)
        self._time(lease)
        self._note("lease.armed", lease, {"key": lease.key, "lease_s": lease.act.lease_s, "holder": "keeper"})

        def proved(good: bool, evidence: Evidence) -> None:
            if good:
                self._note("fault.verified", lease, {"id": lease.id, "evidence": evidence})
                answer("ok", {"verified": True, "evidence": evidence})
            else:
                answer("fail", {"reason": "not verified", "verified": False, "evidence": evidence})

        done = self._inject(lease.act.inject, node)
        self._note("fault.injected", lease, {"id": lease.id, "evidence": done})
        again_by = [] if os.environ.get(DISARM) else lease.act.inject
        self._prove(lease.act.verify, again_by, node, PROVE_S, proved, lambda: (lease.node, lease.id) in self._timers)

    def heal(self, run: str, command: Command, answer: Answer) -> None:
        """Perform a fault.heal; also right after the lease has healed already, or where nothing is in force."""
        lease = _lease(run, command)
        for one in self._leases.of(lease.node, command.value):
            self._drop(one)
        self._heal(lease, answer)

    def _inject(self, wanted: Sequence[Primitive], node: Node) -> Evidence:
        if os.environ.get(DISARM):
            return {}
        return _merged(primitives.apply(one, node) for one in wanted)

    def _heal(self, lease: Lease, answer: Answer) -> None:
        node = self._find(lease.node)
        done = _merged(primitives.apply(one, node) for one in lease.act.heal)
        self._note("fault.healed", lease, {"id": lease.id, "evidence": done})

        def proved(good: bool, evidence: Evidence) -> None:
            if good:
                self._note("heal.verified", lease, {"id": lease.id, "evidence": evidence})
                answer("ok", {"verified": True, "evidence": evidence})
            else:
                answer("fail", {"reason": "healing not verified", "verified": False, "evidence": evidence})

        if not lease.act.heal and not lease.act.verify_heal:
            proved(True, {"undo": "nothing"})  # what such a fault breaks is replaced, not repaired
            return
        self._prove(lease.act.verify_heal, lease.act.heal, node, HEAL_S, proved)

    def _prove(
        self,
        wanted: Sequence[Primitive],
        again_by: Sequence[Primitive],
        node: Node,
        limit_s: float,
        then: Callable[[bool, Evidence], None],
        in_force: Callable[[], bool] = lambda: True,
    ) -> None:
        """Look at the processes until they show what is wanted, repeating what may be repeated; then call.

        Once it is not ``in_force`` any more nothing is repeated: a rollback must not be fought.
        """
        until = time.monotonic() + limit_s

        def look() -> None:
            if not in_force():
                then(False, {"overtaken": "healed before it was verified"})
                return
            seen = [primitives.holds(one, node) for one in wanted]
            good = bool(seen) and all(reached for reached, _ in seen)
            if good or time.monotonic() > until:
                then(good, _merged(evidence for _, evidence in seen))
                return
            for one in again_by:
                if one.kind in REPEATED:
                    primitives.apply(one, node)
            self._loop.later(AGAIN_S, look)

        self._loop.later(AGAIN_S, look)

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
        self._heal(lease, lambda kind, value: None)

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


def _merged(parts: Any) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}
