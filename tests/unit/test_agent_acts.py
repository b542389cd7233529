"""Faults at the keeper: what happens when the rollback comes before the proof."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import primitives
from orchestrator.agent.acts import Acts
from orchestrator.agent.lease import Leases
from orchestrator.agent.loop import Loop
from orchestrator.model import codec
from orchestrator.model.act import Act, Primitive
from orchestrator.model.event import Command

ON, OFF = (Primitive(kind="pause", args={"state": state}) for state in ("on", "off"))
PAUSE = Act(inject=(ON,), verify=(ON,), heal=(OFF,), verify_heal=(OFF,), lease_s=60.0, safety="container")


class _Node:
    name = "n2"

    @staticmethod
    def is_up() -> bool:
        return True


def _command(f: str) -> Command:
    return Command(f=f, key=f"f/f0/{f}", node="n2", value={"id": "f0", "fault": "pause", "act": codec.plain(PAUSE)})


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
