"""Leases and errors at the keeper: what heals, waits or is answered when a disk is full, or a keeper is killed."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model import codec
from orchestrator.model.act import Act, Primitive
from orchestrator.model.event import Command
from orchestrator.model.payload import Payload
from orchestrator.node.keeper import primitive_runner
from orchestrator.node.keeper.lease_records import Lease, Leases
from orchestrator.node.oslayer.event_loop import Loop, Steps

from .fault_stand import (
    CRASH,
    CUT,
    JOIN,
    OFF,
    PAUSE,
    Stand,
    close_fifo,
    make_program,
    make_stand,
)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return make_stand(tmp_path, monkeypatch)


@pytest.mark.parametrize("unwritable", ["fault.before", "fault.injected", "fault.verified"])
def test_a_fault_whose_event_cannot_be_written_fails_and_blocks_neither_its_healing_nor_its_node(
    stand: Stand, unwritable: str
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
    stand: Stand, monkeypatch: pytest.MonkeyPatch
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
def test_a_healing_whose_event_cannot_be_written_fails_and_can_be_repeated(stand: Stand, unwritable: str) -> None:
    stand.act(PAUSE)
    stand.unwritable = (unwritable,)
    assert stand.perform("fault.heal", PAUSE)[0] == "fail"
    stand.unwritable = ()
    assert stand.perform("fault.heal", PAUSE)[0] == "ok"


def test_an_expired_lease_heals_although_its_end_cannot_be_written(stand: Stand) -> None:
    stand.unwritable = ("lease.over",)
    stand.act(replace(PAUSE, lease_s=0.1, heal_after_s=0.1))
    stand.run(lambda: "heal.verified" in stand.noted)
    assert stand.switches.state["pause"] == "off"


def test_a_renewal_that_cannot_be_written_does_not_end_the_lease(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_renewed_lease_still_says_that_the_state_was_observed_before(stand: Stand) -> None:
    stand.acts._is_driven = lambda run: True
    stand.act(replace(PAUSE, lease_s=0.1))
    (armed,) = Leases(stand.directory).all()
    stand.run(lambda: Leases(stand.directory).all()[0].until > armed.until)
    assert Leases(stand.directory).all()[0].inspected


@pytest.mark.parametrize("ends_by", ["lease", "command"])
def test_a_keeper_that_is_killed_while_it_heals_leaves_the_lease_to_the_next(stand: Stand, ends_by: str) -> None:
    fifo = stand.directory / "fifo"
    act = replace(PAUSE, heal=(make_program(fifo), OFF), lease_s=0.1 if ends_by == "lease" else 60.0, limit_s=60.0)
    act = replace(act, heal_after_s=0.1 if ends_by == "lease" else None)
    stand.act(act)
    if ends_by == "command":
        stand.order("fault.heal", act)
    else:
        stand.run(lambda: "lease.over" in stand.noted)
    assert [lease.id for lease in Leases(stand.directory).all()] == ["f0"], "it is not yet healed"
    close_fifo(fifo)
    stand.run(lambda: "heal.verified" in stand.noted)
    assert Leases(stand.directory).all() == []


def test_a_fault_with_a_time_is_healed_by_its_lease_although_its_run_is_driven(stand: Stand) -> None:
    calls: list[str] = []

    def is_driven(run: str) -> bool:
        calls.append(run)
        return True

    stand.acts._is_driven = is_driven
    stand.act(replace(PAUSE, lease_s=0.05, heal_after_s=0.05))
    stand.run(lambda: "heal.verified" in stand.noted or len(calls) > 1)
    assert stand.switches.state["pause"] == "off"


def test_a_command_that_arrives_again_while_its_fault_is_healed_keeps_its_lease(stand: Stand) -> None:
    """The repeated injection follows the healing: a later keeper has to know of it."""
    fifo = stand.directory / "fifo"
    act = replace(PAUSE, heal=(make_program(fifo), OFF), limit_s=60.0)
    stand.act(act)
    stand.order("fault.heal", act)
    stand.order("fault.act", act)
    close_fifo(fifo)
    stand.run(lambda: len(stand.answers) == 3)
    assert [kind for kind, _ in stand.answers] == ["ok", "ok", "ok"]
    assert stand.switches.state["pause"] == "on"
    assert [lease.id for lease in Leases(stand.directory).all()] == ["f0"]


def test_a_part_of_a_healing_that_fails_does_not_keep_the_others_from_being_healed(stand: Stand) -> None:
    broken = Primitive(kind="file", args={"state": "off"})  # of which the switches know nothing
    act = replace(PAUSE, inject=(CUT,), verify=(CUT,), heal=(broken, JOIN), verify_heal=(JOIN,))
    assert stand.act(act)[0] == "ok"
    assert stand.perform("fault.heal", act)[0] == "ok"
    assert stand.switches.state["link"] == "up"


def test_what_waits_for_two_injections_on_a_node_starts_after_both(stand: Stand) -> None:
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
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object) -> Steps[tuple[bool | None, Any]]:
        yield 3600.0
        return None, {}

    monkeypatch.setattr(primitive_runner, "observe_once", never)
    stand.order("fault.act", PAUSE)
    started: list[str] = []
    stand.acts.after_injections("n2", lambda: started.append("n2"))
    stand.run(lambda: bool(started))


class _Killed(BaseException):
    """The keeper is killed: no handler of exceptions runs."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "event", ["lease.armed", "fault.before", "fault.injected", "fault.verified", "fault.healed", "heal.verified"]
)
@pytest.mark.parametrize("act", [PAUSE, CRASH], ids=["pause", "crash"])
def test_a_keeper_that_is_killed_at_any_event_leaves_no_false_proof_and_no_fault(
    stand: Stand, act: Act, event: str, when: str
) -> None:
    """Its successor continues the leases, and takes the commands that have no reply again."""
    write, killed = stand._note, list[str]()

    def note(lease: Lease, payload: Payload) -> None:
        if when == "after":
            write(lease, payload)
        if event == payload.NAME and not killed:
            killed.append(event)
            raise _Killed
        if when == "before":
            write(lease, payload)

    stand.note = note
    stand.acts = stand.holder()
    for f in ("fault.act", "fault.heal"):
        try:
            stand.perform(f, act)
        except _Killed:
            stand.loop = Loop()
            stand.acts = stand.holder()
            stand.acts.resume()
            stand.perform(f, act)
    assert killed
    performed = {"pause on"} if act is PAUSE else {"link down", "power off"}
    assert "fault.verified" not in stand.noted or performed <= set(stand.switches.done)
    assert "heal.verified" in stand.noted
    assert stand.switches.state == {"pause": "off", "link": "up", "power": "on"}
    assert Leases(stand.directory).all() == []
