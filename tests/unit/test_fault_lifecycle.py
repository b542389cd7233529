"""Faults at the keeper: what is observed before and after the injection, and rollbacks that come before the proof."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model import codec
from orchestrator.model.act import Act, Primitive
from orchestrator.model.event import Command
from orchestrator.model.payload import Payload
from orchestrator.node.files import inbox, label
from orchestrator.node.keeper import fault_lifecycle, keeper, node_primitives, primitive_runner
from orchestrator.node.keeper.fault_lifecycle import FaultLifecycle
from orchestrator.node.keeper.lease_records import Lease, Leases
from orchestrator.node.oslayer.event_loop import Loop
from orchestrator.store import beds

ON, OFF = (Primitive(kind="pause", args={"state": state}) for state in ("on", "off"))
PAUSE = Act(inject=(ON,), verify=(ON,), heal=(OFF,), verify_heal=(OFF,), lease_s=60.0, safety="container")


class _Node:
    name = "n2"

    @staticmethod
    def is_up() -> bool:
        return True


@dataclass
class _Switches:
    """Primitives as switches: kind -> state. What is ``broken`` is applied without effect, ``unseen`` is never known."""

    state: dict[str, str]
    broken: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    hides: Callable[[Primitive, Mapping[str, str]], bool] = lambda primitive, state: False
    done: list[str] = field(default_factory=list)

    def apply(self, primitive: Primitive, node: object) -> dict[str, Any]:
        self.done.append(f"{primitive.kind} {primitive.args['state']}")
        if primitive.kind not in self.broken:
            self.state[primitive.kind] = primitive.args["state"]
        return {primitive.kind: primitive.args["state"]}

    def holds(self, primitive: Primitive, node: object) -> tuple[bool | None, dict[str, Any]]:
        evidence = {f"{primitive.kind} seen": self.state[primitive.kind]}
        hidden = primitive.kind in self.unseen or self.hides(primitive, self.state)
        return (None if hidden else self.state[primitive.kind] == primitive.args["state"]), evidence


@dataclass
class _Stand:
    """A holder over such switches."""

    directory: Path
    switches: _Switches
    notes: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    answers: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    loop: Loop = field(default_factory=Loop)

    def __post_init__(self) -> None:
        self.acts = self.holder()

    def holder(self) -> FaultLifecycle:
        return FaultLifecycle(self.loop, Leases(self.directory), lambda name: _Node(), self._note)  # type: ignore[arg-type,return-value]

    def _note(self, lease: Lease, payload: Payload) -> None:
        self.notes.append((payload.NAME, codec.plain(payload)))

    def act(self, act: Act) -> tuple[str, Mapping[str, Any]]:
        count = len(self.answers)
        self.acts.act(
            "r", _command("fault.act", act), lambda kind, payload: self.answers.append((kind, codec.plain(payload)))
        )
        while len(self.answers) == count:
            self.loop.run_once()
        return self.answers[-1]

    @property
    def noted(self) -> list[str]:
        return [name for name, _ in self.notes]


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Stand:
    switches = _Switches({"pause": "off", "link": "up", "power": "on"})
    monkeypatch.setattr(node_primitives, "perform", switches.apply)
    monkeypatch.setattr(node_primitives, "observe", switches.holds)
    monkeypatch.setattr(node_primitives, "check_supported", lambda wanted, node: None)
    monkeypatch.setattr(primitive_runner, "STEP_S", 0.02)
    monkeypatch.setattr(fault_lifecycle, "VERIFY_S", 0.02)
    return _Stand(tmp_path, switches)


def _command(f: str, act: Act = PAUSE) -> Command:
    return Command(f=f, key=f"f/f0/{f}", node="n2", value={"id": "f0", "fault": "pause", "act": codec.plain(act)})


def test_a_fault_that_is_healed_before_it_is_proved_is_not_injected_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    answers: dict[str, tuple[str, Mapping[str, Any]]] = {}

    def apply(primitive: Primitive, node: object) -> dict[str, Any]:
        done.append(str(primitive.args["state"]))
        return {}

    monkeypatch.setattr(node_primitives, "perform", apply)
    monkeypatch.setattr(node_primitives, "observe", lambda primitive, node: (primitive == OFF, {}))
    loop = Loop()
    acts = FaultLifecycle(loop, Leases(tmp_path), lambda name: _Node(), lambda lease, payload: None)  # type: ignore[arg-type,return-value]
    acts.act("r", _command("fault.act"), lambda kind, payload: answers.update(act=(kind, codec.plain(payload))))
    acts.heal("r", _command("fault.heal"), lambda kind, payload: answers.update(heal=(kind, codec.plain(payload))))
    while len(answers) < 2:
        loop.run_once()
    assert done == ["on", "off"]
    assert (answers["act"][0], answers["heal"][0]) == ("fail", "ok")


def test_a_fault_that_shows_when_its_healing_was_ordered_is_proved_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switches = _Switches({"pause": "off"})
    monkeypatch.setattr(node_primitives, "perform", switches.apply)
    monkeypatch.setattr(node_primitives, "observe", switches.holds)
    loop = Loop()
    answers: list[tuple[str, Mapping[str, Any]]] = []
    acts = FaultLifecycle(loop, Leases(tmp_path), lambda name: _Node(), lambda lease, payload: None)  # type: ignore[arg-type,return-value]
    acts.act("r", _command("fault.act"), lambda kind, payload: answers.append((kind, codec.plain(payload))))
    acts.heal("r", _command("fault.heal"), lambda kind, payload: answers.append((kind, codec.plain(payload))))
    while len(answers) < 2:
        loop.run_once()
    assert [kind for kind, _ in answers] == ["ok", "ok"]
    assert answers[0][1]["evidence"] == {"pause seen": "on"}
    assert switches.done == ["pause on", "pause off"]


def test_a_node_is_started_again_only_after_the_fault_that_ends_it_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An injection is repeated until it is verified: it killed the next incarnation while that started."""
    switches = _Switches({"power": "on"}, broken=("power",))
    monkeypatch.setattr(node_primitives, "perform", switches.apply)
    monkeypatch.setattr(node_primitives, "observe", switches.holds)
    made = keeper.Keeper(tmp_path / "host", "b", "hash", keeper.CONTAINERS, str(tmp_path / "no.sock"))
    started: list[list[str]] = []
    node = made._nodes.get("n2")
    node.alive = node.ready = True
    node.label = {"incarnation": "i1"}
    monkeypatch.setattr(made._nodes, "start", lambda *_: started.append(list(switches.done)))
    directory = tmp_path / "host/keeper"
    off = Primitive(kind="power", args={"state": "off"})
    inbox.post_command(
        directory,
        "R",
        _command(
            "fault.act", Act(inject=(off,), verify=(off,), heal=(), verify_heal=(), lease_s=60.0, safety="container")
        ),
    )
    made._take_commands()
    node.alive = node.ready = False
    inbox.post_command(directory, "R", Command(f="node.apply", key="e1/apply/n2", node="n2", value={"node": "n2"}))
    made._take_commands()
    assert started == []
    made._loop.call_later(0.05, lambda: switches.state.update(power="off"))
    while not started:
        made._loop.run_once()
    assert len(switches.done) > 1
    assert started == [switches.done]


def test_a_lease_of_a_fault_that_lasts_until_the_run_ends_is_renewed_while_the_run_is_driven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switches = _Switches({"pause": "off"})
    monkeypatch.setattr(node_primitives, "perform", switches.apply)
    monkeypatch.setattr(node_primitives, "observe", switches.holds)
    loop, noted, calls = Loop(), [], [0]

    def driven(run: str) -> bool:
        calls[0] += 1
        return calls[0] < 4

    def note(lease: Lease, payload: Payload) -> None:
        noted.append(payload.NAME)

    acts = FaultLifecycle(loop, Leases(tmp_path), lambda name: _Node(), note, driven)  # type: ignore[arg-type,return-value]
    acts.act("r", _command("fault.act", replace(PAUSE, lease_s=0.01)), lambda kind, value: None)
    while "heal.verified" not in noted:
        loop.run_once()
    assert calls[0] == 4
    assert noted.count("lease.over") == 1


def test_whether_a_run_is_driven_is_told_by_the_lock_of_its_orchestrator(tmp_path: Path) -> None:
    assert label.driven_run(tmp_path) == ""
    with beds.run_lock(tmp_path, "r1", tmp_path / "r1"):
        assert label.driven_run(tmp_path) == "r1"
    assert label.driven_run(tmp_path) == ""


def test_an_injection_tells_when_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: dict[str, Mapping[str, Any]] = {}
    made: list[float] = []

    def apply(primitive: Primitive, node: object) -> dict[str, Any]:
        made.append(time.monotonic())
        return {}

    monkeypatch.setattr(node_primitives, "perform", apply)
    monkeypatch.setattr(node_primitives, "observe", lambda primitive, node: (bool(made), {}))
    loop, before = Loop(), time.monotonic()

    def note(lease: Lease, payload: Payload) -> None:
        noted[payload.NAME] = codec.plain(payload)

    acts = FaultLifecycle(loop, Leases(tmp_path), lambda name: _Node(), note)  # type: ignore[arg-type,return-value]
    acts.act("r", _command("fault.act"), lambda kind, value: None)
    while "fault.verified" not in noted:
        loop.run_once()
    assert before <= noted["fault.injected"]["began"] <= made[0]


CUT, JOIN = (Primitive(kind="link", args={"state": state}) for state in ("down", "up"))
KILL, START = (Primitive(kind="power", args={"state": state}) for state in ("off", "on"))
#: A node with a link of its own is cut off and killed.
CRASH = Act(
    inject=(CUT, KILL), verify=(CUT, KILL), heal=(JOIN, START), verify_heal=(START,), lease_s=60.0, safety="node"
)


def test_the_state_to_verify_is_observed_before_the_injection_and_recorded(stand: _Stand) -> None:
    assert stand.act(PAUSE)[0] == "ok"
    assert stand.noted == ["lease.armed", "fault.before", "fault.injected", "fault.verified"]
    assert stand.notes[1][1] == {"id": "f0", "held": False, "evidence": {"pause seen": "off"}}


def test_a_state_that_already_held_proves_nothing_and_nothing_is_injected(stand: _Stand) -> None:
    stand.switches.state["pause"] = "on"
    kind, value = stand.act(PAUSE)
    assert (kind, value["verified"]) == ("fail", False)
    assert "already held before the injection" in value["reason"]
    assert stand.noted == ["lease.armed", "fault.before"]
    assert stand.notes[1][1]["held"] is True
    assert stand.switches.done == []
    assert Leases(stand.directory).all() == []


def test_a_fault_that_resumes_what_runs_is_never_verified(stand: _Stand) -> None:
    """SIGCONT to a running node: inject, verify and heal are one and the same."""
    kind, _ = stand.act(replace(PAUSE, inject=(OFF,), verify=(OFF,)))
    assert kind == "fail"
    assert "fault.verified" not in stand.noted


@pytest.mark.parametrize("verify", [(), (ON,)])
def test_a_state_that_is_not_known_before_the_injection_proves_nothing(
    stand: _Stand, verify: tuple[Primitive, ...]
) -> None:
    stand.switches.unseen = ("pause",)
    kind, value = stand.act(replace(PAUSE, verify=verify))
    assert kind == "fail"
    assert "not known" in value["reason"]
    assert "held" not in stand.notes[1][1]
    assert stand.switches.done == []


def test_an_injection_that_a_second_keeper_repeats_is_not_judged_by_its_own_effect(stand: _Stand) -> None:
    """The keeper died between its injection and its answer: what holds now is what it did itself."""
    stand.switches.broken = ("pause",)
    assert stand.act(PAUSE)[0] == "fail"
    stand.switches.state["pause"] = "on"
    stand.acts = stand.holder()
    stand.acts.resume()
    assert stand.act(PAUSE)[0] == "ok"
    assert stand.noted.count("fault.before") == 1


def test_a_link_that_is_cut_before_a_kill_is_verified_before_the_kill(stand: _Stand) -> None:
    """A dead node shows no link, whether it was cut or not."""
    stand.switches.hides = lambda primitive, state: primitive.kind == "link" and state["power"] == "off"
    kind, value = stand.act(CRASH)
    assert kind == "ok"
    assert value["evidence"] == {"link": "down", "link seen": "down", "power": "off", "power seen": "off"}


def test_a_crash_whose_link_was_not_cut_is_not_verified_and_nothing_is_killed(stand: _Stand) -> None:
    stand.switches.broken = ("link",)
    kind, value = stand.act(CRASH)
    assert (kind, value["reason"]) == ("fail", "link: not verified")
    assert stand.switches.done == ["link down"]
    assert "fault.verified" not in stand.noted
