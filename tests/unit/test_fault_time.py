"""The time of a fault that is healed on purpose counts from its injection, however long the proof takes."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.engine import engine, faults
from orchestrator.core.engine.state import FaultState
from orchestrator.faults import cut_link
from orchestrator.model.act import Primitive
from orchestrator.model.event import Clock, Event, Source
from orchestrator.node.keeper import host_primitives

from ..sim import world


def _event(kind: str, f: str, at: float, boot: str = "b", **more: Any) -> Event:
    clock = Clock(boot=boot, mono=at, wall=at)
    return Event(type=kind, f=f, at=clock, source=Source(writer="outside", n=int(at * 10)), node="n2", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("proved", "boot", "left_s"), [(100.0, "b", 3.0), (102.0, "b", 1.0), (109.0, "b", 0.0), (7.0, "anew", 3.0)]
)
def test_a_healing_is_due_when_its_time_after_the_injection_is_over(proved: float, boot: str, left_s: float) -> None:
    trial = world.trial(world.crash(2))
    acts = {"f0": world.host_act("cut-link", for_s=3.0)}
    state, _ = engine.begin(trial, world.plan(trial, acts, world.HOSTS))
    state = replace(state, faults={"f0": FaultState(stage="acting", node="n2")})
    state, _ = engine.step(trial, state, _event("note", "fault.injected", 100.0, value={"id": "f0"}))
    _, commands = faults.acted(trial, state, _event("ok", "fault.act", proved, boot, key="f/f0/act"))
    assert [(command.f, command.value["after_s"]) for command in commands] == [("timer", left_s)]


def test_a_short_cut_is_proved_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    patience: list[float] = []

    def connect(where: object, timeout: float) -> None:
        patience.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    for within_s in (0.5, 100.0, 1e-9):
        args = {"state": "down", "of": "host", "address": "198.18.0.9", "port": 22, "within_s": within_s}
        assert host_primitives.observe(Primitive(kind="link", args=args))[0]
    assert patience == [0.25, 0.25, 1.0, 1.0, 0.1, 0.1]
    assert cut_link.VERIFY_SHARE < 1.0
