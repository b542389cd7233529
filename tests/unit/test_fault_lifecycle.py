"""Faults at the keeper: what is observed before and after the injection, and rollbacks that come before the proof."""

from __future__ import annotations

import errno
import os
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
#: A fault that does not show is not verified after this time.
LIMIT_S = 0.05
PAUSE = Act(
    inject=(ON,), verify=(ON,), heal=(OFF,), verify_heal=(OFF,), lease_s=60.0, safety="container", limit_s=LIMIT_S
)


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
        before = self.state[primitive.kind]
        if primitive.kind not in self.broken:
            self.state[primitive.kind] = primitive.args["state"]
        killed = {"killed": [7] if before == "on" else []} if primitive == KILL else {}
        return {primitive.kind: primitive.args["state"], **killed}

    def holds(self, primitive: Primitive, node: object) -> tuple[bool | None, dict[str, Any]]:
        evidence = {f"{primitive.kind} seen": self.state[primitive.kind]}
        hidden = primitive.kind in self.unseen or self.hides(primitive, self.state)
        return (None if hidden else self.state[primitive.kind] == primitive.args["state"]), evidence


@dataclass
class _Stand:
    """A holder over such switches. A note whose name is in ``unwritable`` raises an error, as on a full disk."""

    directory: Path
    switches: _Switches
    unwritable: tuple[str, ...] = ()
    notes: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    answers: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    loop: Loop = field(default_factory=Loop)

    def __post_init__(self) -> None:
        self.acts = self.holder()

    def holder(self) -> FaultLifecycle:
        return FaultLifecycle(self.loop, Leases(self.directory), lambda name: _Node(), self._note)  # type: ignore[arg-type,return-value]

    def _note(self, lease: Lease, payload: Payload) -> None:
        if payload.NAME in self.unwritable:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.notes.append((payload.NAME, codec.plain(payload)))

    def order(self, f: str, act: Act) -> None:
        perform = self.acts.act if f == "fault.act" else self.acts.heal
        perform("r", _command(f, act), lambda kind, payload: self.answers.append((kind, codec.plain(payload))))

    def act(self, act: Act) -> tuple[str, Mapping[str, Any]]:
        return self.perform("fault.act", act)

    def perform(self, f: str, act: Act) -> tuple[str, Mapping[str, Any]]:
        count = len(self.answers)
        self.order(f, act)
        self.run(lambda: len(self.answers) > count)
        return self.answers[-1]

    def run(self, until: Callable[[], bool]) -> None:
        """Run the loop until the condition holds, for 10 s at most."""
        give_up = self.loop.call_later(10.0, lambda: None)
        end = time.monotonic() + 10.0
        while not until():
            assert time.monotonic() < end, (self.notes, self.answers)
            self.loop.run_once()
        give_up.cancel()

    @property
    def noted(self) -> list[str]:
        return [name for name, _ in self.notes]


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Stand:
    switches = _Switches({"pause": "off", "link": "up", "power": "on"})
    monkeypatch.setattr(node_primitives, "perform", switches.apply)
    monkeypatch.setattr(node_primitives, "observe", switches.holds)
    monkeypatch.setattr(node_primitives, "check_supported", lambda wanted, node: None)
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
    inject=(CUT, KILL), verify=(CUT, KILL), heal=(JOIN, START), verify_heal=(START,), lease_s=60.0, safety="node",
    limit_s=LIMIT_S,
)  # fmt: skip


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
    assert value["evidence"] == {
        "link": "down", "link seen": "down", "power": "off", "killed": [7], "power seen": "off"
    }  # fmt: skip


def test_a_crash_whose_link_was_not_cut_is_not_verified_and_nothing_is_killed(stand: _Stand) -> None:
    stand.switches.broken = ("link",)
    kind, value = stand.act(CRASH)
    assert (kind, value["reason"]) == ("fail", "link: not verified")
    assert stand.switches.done == ["link down"]
    assert "fault.verified" not in stand.noted


def _program(fifo: Path) -> Primitive:
    """A program that runs until the FIFO is opened for writing and closed."""
    os.mkfifo(fifo)
    return Primitive(kind="argv", args={"run": ["cat", str(fifo)]})


def _close(fifo: Path) -> None:
    os.close(os.open(fifo, os.O_WRONLY))


def _crash_after(program: Primitive) -> Act:
    """A program, then the kill that decides."""
    return Act(
        inject=(program, KILL), verify=(KILL,), heal=(START,), verify_heal=(START,), lease_s=60.0, safety="node"
    )  # fmt: skip


def test_a_fault_that_is_healed_before_its_last_part_is_neither_injected_nor_verified(stand: _Stand) -> None:
    """An interruption ends the rank by itself: the state to verify shows, although the kill was never sent."""
    act = _crash_after(_program(stand.directory / "fifo"))
    stand.order("fault.act", act)
    stand.order("fault.heal", act)
    stand.switches.state["power"] = "off"
    _close(stand.directory / "fifo")
    stand.run(lambda: len(stand.answers) == 2)
    (kind, value), (healed, _) = stand.answers
    assert (kind, value["reason"], value["verified"]) == ("fail", "healed before it was injected", False)
    assert "fault.injected" not in stand.noted
    assert "fault.verified" not in stand.noted
    assert (healed, stand.switches.done) == ("ok", ["power on"])


def test_a_kill_that_reaches_no_process_verifies_nothing(stand: _Stand) -> None:
    """The processes ended by themselves between the first part and the kill, and no healing was ordered."""
    act = _crash_after(_program(stand.directory / "fifo"))
    stand.order("fault.act", act)
    stand.switches.state["power"] = "off"
    _close(stand.directory / "fifo")
    stand.run(lambda: bool(stand.answers))
    assert (stand.answers[0][0], stand.answers[0][1]["reason"]) == ("fail", "power: no process was left to end")
    assert "fault.verified" not in stand.noted


def test_a_fault_may_show_as_late_as_its_limit(stand: _Stand) -> None:
    stand.switches.broken = ("pause",)
    stand.order("fault.act", replace(PAUSE, limit_s=60.0))
    stand.loop.call_later(5 * fault_lifecycle.VERIFY_S, lambda: stand.switches.state.update(pause="on"))
    stand.run(lambda: bool(stand.answers))
    assert stand.answers[0][0] == "ok"


def test_a_part_that_is_verified_before_the_next_may_show_as_late_as_the_limit(stand: _Stand) -> None:
    stand.switches.broken = ("link",)
    stand.order("fault.act", replace(CRASH, limit_s=60.0))
    stand.loop.call_later(5 * fault_lifecycle.VERIFY_S, lambda: stand.switches.state.update(link="down"))
    stand.run(lambda: bool(stand.answers))
    assert stand.answers[0][0] == "ok"


def test_a_fault_that_never_shows_is_not_verified_after_its_limit(stand: _Stand) -> None:
    stand.switches.broken = ("pause",)
    began = time.monotonic()
    kind, value = stand.act(replace(PAUSE, limit_s=0.2))
    assert (kind, value["reason"]) == ("fail", "not verified")
    assert time.monotonic() - began >= 0.2


def test_a_fault_that_is_verified_by_its_first_part_only_needs_no_later_observation(stand: _Stand) -> None:
    assert stand.act(replace(CRASH, verify=(CUT,)))[0] == "ok"
    assert stand.noted[-2:] == ["fault.injected", "fault.verified"]


def test_a_notice_that_is_to_be_verified_is_observed_at_the_end(stand: _Stand) -> None:
    """A notice waits for its grace only, whether the processes end or not."""
    notice = replace(CUT, args={**CUT.args, "grace_s": 0.01})
    stand.switches.broken = ("link",)
    kind, value = stand.act(replace(CRASH, inject=(notice, KILL), verify=(notice, KILL)))
    assert (kind, value["reason"]) == ("fail", "not verified")


@pytest.mark.parametrize("unwritable", ["fault.before", "fault.injected", "fault.verified"])
def test_a_fault_whose_event_cannot_be_written_fails_and_blocks_neither_its_healing_nor_its_node(
    stand: _Stand, unwritable: str
) -> None:
    stand.unwritable = (unwritable,)
    kind, value = stand.act(PAUSE)
    assert kind == "fail"
    assert "No space left" in value["reason"]
    assert not stand.acts.is_injecting("n2")
    stand.unwritable = ()
    assert stand.perform("fault.heal", PAUSE)[0] == "ok"
    assert stand.switches.state["pause"] == "off"


def test_a_lease_that_cannot_be_written_again_blocks_neither_the_healing_nor_the_node(
    stand: _Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm, armed = Leases.arm, list[Lease]()

    def arm_once(leases: Leases, lease: Lease) -> None:
        if armed:
            raise OSError(errno.ENOSPC, "No space left on device")
        armed.append(lease)
        arm(leases, lease)

    monkeypatch.setattr(Leases, "arm", arm_once)
    assert stand.act(PAUSE)[0] == "fail"
    assert stand.switches.done == [], "nothing is injected"
    assert not stand.acts.is_injecting("n2")
    assert stand.perform("fault.heal", PAUSE)[0] == "ok"


@pytest.mark.parametrize("unwritable", ["fault.healed", "heal.verified"])
def test_a_healing_whose_event_cannot_be_written_fails_and_can_be_repeated(stand: _Stand, unwritable: str) -> None:
    stand.act(PAUSE)
    stand.unwritable = (unwritable,)
    assert stand.perform("fault.heal", PAUSE)[0] == "fail"
    stand.unwritable = ()
    assert stand.perform("fault.heal", PAUSE)[0] == "ok"


def test_an_expired_lease_heals_although_its_end_cannot_be_written(stand: _Stand) -> None:
    stand.unwritable = ("lease.over",)
    stand.act(replace(PAUSE, lease_s=0.1, heal_after_s=0.1))
    stand.run(lambda: "heal.verified" in stand.noted)
    assert stand.switches.state["pause"] == "off"


def test_a_renewal_that_cannot_be_written_does_not_end_the_lease(
    stand: _Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper still heals by itself once the run is no longer driven."""
    calls: list[str] = []

    def is_driven(run: str) -> bool:
        calls.append(run)
        return len(calls) < 3

    stand.acts._is_driven = is_driven
    stand.act(replace(PAUSE, lease_s=0.1))

    def arm(leases: Leases, lease: Lease) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Leases, "arm", arm)
    stand.run(lambda: "heal.verified" in stand.noted)
    assert len(calls) == 3


def test_a_renewed_lease_still_says_that_the_state_was_observed_before(stand: _Stand) -> None:
    stand.acts._is_driven = lambda run: True
    stand.act(replace(PAUSE, lease_s=0.1))
    (armed,) = Leases(stand.directory).all()
    stand.run(lambda: Leases(stand.directory).all()[0].until > armed.until)
    assert Leases(stand.directory).all()[0].inspected


@pytest.mark.parametrize("ends_by", ["lease", "command"])
def test_a_keeper_that_is_killed_while_it_heals_leaves_the_lease_to_the_next(stand: _Stand, ends_by: str) -> None:
    fifo = stand.directory / "fifo"
    act = replace(PAUSE, heal=(_program(fifo), OFF), lease_s=0.1 if ends_by == "lease" else 60.0, limit_s=60.0)
    act = replace(act, heal_after_s=0.1 if ends_by == "lease" else None)
    stand.act(act)
    if ends_by == "command":
        stand.order("fault.heal", act)
    else:
        stand.run(lambda: "lease.over" in stand.noted)
    assert [lease.id for lease in Leases(stand.directory).all()] == ["f0"], "it is not yet healed"
    _close(fifo)
    stand.run(lambda: "heal.verified" in stand.noted)
    assert Leases(stand.directory).all() == []


def test_what_waits_for_two_injections_on_a_node_starts_after_both(stand: _Stand) -> None:
    started: list[str] = []
    stand.switches.broken = ("pause", "link")
    cut = replace(CRASH, inject=(CUT,), verify=(CUT,), limit_s=60.0)
    for id, act in (("f0", replace(PAUSE, limit_s=60.0)), ("f1", cut)):
        command = Command(f="fault.act", key=id, node="n2", value={"id": id, "act": codec.plain(act)})
        stand.acts.act("r", command, lambda kind, payload: stand.answers.append((kind, codec.plain(payload))))
    stand.acts.after_injections("n2", lambda: started.append("n2"))
    stand.acts.after_injections("n3", lambda: started.append("n3"))
    stand.switches.state["pause"] = "on"
    stand.run(lambda: len(stand.answers) == 1)
    assert started == ["n3"]
    stand.switches.state["link"] = "down"
    stand.run(lambda: len(started) == 2)
    assert [kind for kind, _ in stand.answers] == ["ok", "ok"]


def test_a_node_waits_for_an_injection_without_an_end_no_longer_than_the_injection_may_take(
    stand: _Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primitive_runner, "observe_once", lambda *arguments: None)
    stand.order("fault.act", PAUSE)
    started: list[str] = []
    stand.acts.after_injections("n2", lambda: started.append("n2"))
    stand.run(lambda: bool(started))
