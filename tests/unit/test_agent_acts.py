"""Faults at the keeper: what happens when the rollback comes before the proof."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import label, primitives
from orchestrator.agent.acts import Acts
from orchestrator.agent.lease import Leases
from orchestrator.agent.loop import Loop
from orchestrator.model import codec
from orchestrator.model.act import Act, Primitive
from orchestrator.model.event import Command
from orchestrator.store import beds

ON, OFF = (Primitive(kind="pause", args={"state": state}) for state in ("on", "off"))
PAUSE = Act(inject=(ON,), verify=(ON,), heal=(OFF,), verify_heal=(OFF,), lease_s=60.0, safety="container")


class _Node:
    name = "n2"

    @staticmethod
    def is_up() -> bool:
        return True


def _command(f: str, act: Act = PAUSE) -> Command:
    return Command(f=f, key=f"f/f0/{f}", node="n2", value={"id": "f0", "fault": "pause", "act": codec.plain(act)})


def test_a_fault_that_is_healed_before_it_is_proved_is_not_injected_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    answers: dict[str, tuple[str, Mapping[str, Any]]] = {}

    def apply(one: Primitive, node: object) -> dict[str, Any]:
        done.append(str(one.args["state"]))
        return {}

    monkeypatch.setattr(primitives, "apply", apply)
    monkeypatch.setattr(primitives, "holds", lambda one, node: (one == OFF, {}))
    loop = Loop()
    acts = Acts(loop, Leases(tmp_path), lambda name: _Node(), lambda f, lease, value: None)  # type: ignore[arg-type,return-value]
    acts.act("r", _command("fault.act"), lambda kind, value: answers.update(act=(kind, value)))
    acts.heal("r", _command("fault.heal"), lambda kind, value: answers.update(heal=(kind, value)))
    while len(answers) < 2:
        loop.turn()
    assert done == ["on", "off"]
    assert (answers["act"][0], answers["heal"][0]) == ("fail", "ok")


def test_a_lease_of_a_fault_that_lasts_until_the_run_ends_is_renewed_while_the_run_is_driven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primitives, "apply", lambda one, node: {})
    monkeypatch.setattr(primitives, "holds", lambda one, node: (True, {}))
    loop, told, asked = Loop(), [], [0]

    def driven(run: str) -> bool:
        asked[0] += 1
        return asked[0] < 4

    def note(f: str, lease: object, value: object) -> None:
        told.append(f)

    acts = Acts(loop, Leases(tmp_path), lambda name: _Node(), note, driven)  # type: ignore[arg-type,return-value]
    acts.act("r", _command("fault.act", replace(PAUSE, lease_s=0.01)), lambda kind, value: None)
    while "heal.verified" not in told:
        loop.turn()
    assert asked[0] == 4
    assert told.count("lease.over") == 1


def test_whether_a_run_is_driven_is_told_by_the_lock_of_its_orchestrator(tmp_path: Path) -> None:
    assert label.driven(tmp_path) == ""
    with beds.run_lock(tmp_path, "r1", tmp_path / "r1"):
        assert label.driven(tmp_path) == "r1"
    assert label.driven(tmp_path) == ""


def test_an_injection_tells_when_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Mapping[str, Any]] = {}
    made: list[float] = []

    def apply(one: Primitive, node: object) -> dict[str, Any]:
        made.append(time.monotonic())
        return {}

    monkeypatch.setattr(primitives, "apply", apply)
    monkeypatch.setattr(primitives, "holds", lambda one, node: (True, {}))
    loop, before = Loop(), time.monotonic()
    acts = Acts(loop, Leases(tmp_path), lambda name: _Node(), lambda f, lease, value: told.update({f: value}))  # type: ignore[arg-type,return-value]
    acts.act("r", _command("fault.act"), lambda kind, value: None)
    while "fault.verified" not in told:
        loop.turn()
    assert before <= told["fault.injected"]["began"] <= made[0]
