"""Faults at the keeper: what is observed before and after the injection, and rollbacks that come before the proof."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model import codec
from orchestrator.model.act import Act, Primitive
from orchestrator.model.event import Command
from orchestrator.model.payload import Payload
from orchestrator.node.files import inbox, label
from orchestrator.node.keeper import fault_lifecycle, keeper, node_primitives
from orchestrator.node.keeper.fault_lifecycle import FaultLifecycle
from orchestrator.node.keeper.lease_records import Lease, Leases
from orchestrator.node.oslayer.event_loop import Loop
from orchestrator.store import bed_files

from .fault_stand import (
    CRASH,
    CUT,
    KILL,
    OFF,
    ON,
    PAUSE,
    START,
    Node,
    Stand,
    Switches,
    close_fifo,
    make_command,
    make_program,
    make_stand,
)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return make_stand(tmp_path, monkeypatch)


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
    acts = FaultLifecycle(loop, Leases(tmp_path), lambda name: Node(), lambda lease, payload: None)  # type: ignore[arg-type,return-value]
    acts.act("r", make_command("fault.act"), lambda kind, payload: answers.update(act=(kind, codec.plain(payload))))
    acts.heal("r", make_command("fault.heal"), lambda kind, payload: answers.update(heal=(kind, codec.plain(payload))))
    while len(answers) < 2:
        loop.run_once()
    assert done == ["on", "off"]
    assert (answers["act"][0], answers["heal"][0]) == ("fail", "ok")


def test_a_task_that_cannot_wait_fails_and_those_behind_it_run() -> None:
    """Without a free descriptor nothing can be waited for."""
    ended: list[str] = []

    def cannot_wait(go_on: Any) -> None:
        raise OSError(24, "Too many open files")

    def first() -> Generator[Any, Any, None]:
        try:
            yield cannot_wait
        except OSError:
            ended.append("first")
            raise

    def second() -> Generator[Any, Any, None]:
        ended.append("second")
        yield 0.0

    loop = Loop()
    queue = fault_lifecycle.SerialQueue(loop)
    with contextlib.suppress(OSError):
        queue.add("n0", first())
    queue.add("n0", second())
    while "second" not in ended:
        loop.run_once()
    assert ended == ["first", "second"]


def test_a_fault_that_shows_when_its_healing_was_ordered_is_proved_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switches = Switches({"pause": "off"})
    monkeypatch.setattr(node_primitives, "perform", switches.apply)
    monkeypatch.setattr(node_primitives, "observe", switches.holds)
    loop = Loop()
    answers: list[tuple[str, Mapping[str, Any]]] = []
    acts = FaultLifecycle(loop, Leases(tmp_path), lambda name: Node(), lambda lease, payload: None)  # type: ignore[arg-type,return-value]
    acts.act("r", make_command("fault.act"), lambda kind, payload: answers.append((kind, codec.plain(payload))))
    acts.heal("r", make_command("fault.heal"), lambda kind, payload: answers.append((kind, codec.plain(payload))))
    while len(answers) < 2:
        loop.run_once()
    assert [kind for kind, _ in answers] == ["ok", "ok"]
    assert answers[0][1]["evidence"] == {"pause seen": "on"}
    assert switches.done == ["pause on", "pause off"]


def test_a_node_is_started_again_only_after_the_fault_that_ends_it_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An injection is repeated until it is verified: it killed the next incarnation while that started."""
    switches = Switches({"power": "on"}, broken=("power",))
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
        make_command(
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
    switches = Switches({"pause": "off"})
    monkeypatch.setattr(node_primitives, "perform", switches.apply)
    monkeypatch.setattr(node_primitives, "observe", switches.holds)
    loop, noted, calls = Loop(), [], [0]

    def driven(run: str) -> bool:
        calls[0] += 1
        return calls[0] < 4

    def note(lease: Lease, payload: Payload) -> None:
        noted.append(payload.NAME)

    acts = FaultLifecycle(loop, Leases(tmp_path), lambda name: Node(), note, driven)  # type: ignore[arg-type,return-value]
    acts.act("r", make_command("fault.act", replace(PAUSE, lease_s=0.01)), lambda kind, value: None)
    while "heal.verified" not in noted:
        loop.run_once()
    assert calls[0] == 4
    assert noted.count("lease.over") == 1


def test_whether_a_run_is_driven_is_told_by_the_lock_of_its_orchestrator(tmp_path: Path) -> None:
    assert label.driven_run(tmp_path) == ""
    with bed_files.run_lock(tmp_path, "r1", tmp_path / "r1"):
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

    acts = FaultLifecycle(loop, Leases(tmp_path), lambda name: Node(), note)  # type: ignore[arg-type,return-value]
    acts.act("r", make_command("fault.act"), lambda kind, value: None)
    while "fault.verified" not in noted:
        loop.run_once()
    assert before <= noted["fault.injected"]["began"] <= made[0]


def test_the_state_to_verify_is_observed_before_the_injection_and_recorded(stand: Stand) -> None:
    assert stand.act(PAUSE)[0] == "ok"
    assert stand.noted == ["lease.armed", "fault.before", "fault.injected", "fault.verified"]
    assert stand.notes[1][1] == {"id": "f0", "held": False, "evidence": {"pause seen": "off"}}


def test_a_state_that_already_held_proves_nothing_and_nothing_is_injected(stand: Stand) -> None:
    stand.switches.state["pause"] = "on"
    kind, value = stand.act(PAUSE)
    assert (kind, value["verified"]) == ("fail", False)
    assert "already held before the injection" in value["reason"]
    assert stand.noted == ["lease.armed", "fault.before"]
    assert stand.notes[1][1]["held"] is True
    assert stand.switches.done == []
    assert Leases(stand.directory).all() == []
    assert stand.perform("fault.heal", PAUSE)[0] == "ok"
    assert stand.switches.done == [], "what ccbed has not paused it does not resume"


def test_a_fault_of_a_host_that_could_not_be_seen_to_return_is_not_injected(stand: Stand) -> None:
    """Its port refuses connections: its loss would be observed, its return would not."""
    stand.switches.hides = lambda primitive, state: primitive == OFF
    of_host = replace(PAUSE, disables=("host",))
    kind, value = stand.act(of_host)
    assert (kind, value["verified"]) == ("fail", False)
    assert "the state that must hold once it is undone does not hold" in value["reason"]
    assert stand.perform("fault.heal", of_host)[0] == "ok"
    assert stand.switches.done == []
    stand.switches.hides = lambda primitive, state: False
    assert stand.act(of_host)[0] == "ok", "the control: once the host can be observed, it is injected"
    assert stand.perform("fault.heal", of_host)[0] == "ok"
    assert stand.switches.done == ["pause on", "pause off"]


def test_a_fault_that_resumes_what_runs_is_never_verified(stand: Stand) -> None:
    """SIGCONT to a running node: inject, verify and heal are one and the same."""
    kind, _ = stand.act(replace(PAUSE, inject=(OFF,), verify=(OFF,)))
    assert kind == "fail"
    assert "fault.verified" not in stand.noted


@pytest.mark.parametrize("verify", [(), (ON,)])
def test_a_state_that_is_not_known_before_the_injection_proves_nothing(
    stand: Stand, verify: tuple[Primitive, ...]
) -> None:
    stand.switches.unseen = ("pause",)
    kind, value = stand.act(replace(PAUSE, verify=verify))
    assert kind == "fail"
    assert "not known" in value["reason"]
    assert "held" not in stand.notes[1][1]
    assert stand.switches.done == []


def test_an_injection_that_a_second_keeper_repeats_is_not_judged_by_its_own_effect(stand: Stand) -> None:
    """The keeper died between its injection and its answer: what holds now is what it did itself."""
    stand.switches.broken = ("pause",)
    assert stand.act(PAUSE)[0] == "fail"
    stand.switches.state["pause"] = "on"
    stand.acts = stand.holder()
    stand.acts.resume()
    assert stand.act(PAUSE)[0] == "ok"
    assert stand.noted.count("fault.before") == 1


def test_a_link_that_is_cut_before_a_kill_is_verified_before_the_kill(stand: Stand) -> None:
    """A dead node shows no link, whether it was cut or not."""
    stand.switches.hides = lambda primitive, state: primitive.kind == "link" and state["power"] == "off"
    kind, value = stand.act(CRASH)
    assert kind == "ok"
    assert value["evidence"] == {
        "link": "down", "link seen": "down", "power": "off", "killed": [7], "power seen": "off"
    }  # fmt: skip


def test_a_crash_whose_link_was_not_cut_is_not_verified_and_nothing_is_killed(stand: Stand) -> None:
    stand.switches.broken = ("link",)
    kind, value = stand.act(CRASH)
    assert (kind, value["reason"]) == ("fail", "link: not verified")
    assert stand.switches.done == ["link down"]
    assert "fault.verified" not in stand.noted


def _crash_after(program: Primitive) -> Act:
    """A program, then the kill that decides."""
    return Act(
        inject=(program, KILL), verify=(KILL,), heal=(START,), verify_heal=(START,), lease_s=60.0, safety="node"
    )  # fmt: skip


def test_a_fault_that_is_healed_before_its_last_part_is_neither_injected_nor_verified(stand: Stand) -> None:
    """An interruption ends the rank by itself: the state to verify shows, although the kill was never sent."""
    act = _crash_after(make_program(stand.directory / "fifo"))
    stand.order("fault.act", act)
    stand.order("fault.heal", act)
    stand.switches.state["power"] = "off"
    close_fifo(stand.directory / "fifo")
    stand.run(lambda: len(stand.answers) == 2)
    (kind, value), (healed, _) = stand.answers
    assert (kind, value["reason"], value["verified"]) == ("fail", "healed before it was injected", False)
    assert "fault.injected" not in stand.noted
    assert "fault.verified" not in stand.noted
    assert (healed, stand.switches.done) == ("ok", ["power on"])


def test_a_kill_that_reaches_no_process_verifies_nothing(stand: Stand) -> None:
    """The processes ended by themselves between the first part and the kill, and no healing was ordered."""
    act = _crash_after(make_program(stand.directory / "fifo"))
    stand.order("fault.act", act)
    stand.switches.state["power"] = "off"
    close_fifo(stand.directory / "fifo")
    stand.run(lambda: bool(stand.answers))
    assert (stand.answers[0][0], stand.answers[0][1]["reason"]) == ("fail", "power: no process was left to end")
    assert "fault.verified" not in stand.noted


def test_a_fault_may_show_as_late_as_its_limit(stand: Stand) -> None:
    stand.switches.broken = ("pause",)
    stand.order("fault.act", replace(PAUSE, limit_s=60.0))
    stand.loop.call_later(5 * fault_lifecycle.VERIFY_S, lambda: stand.switches.state.update(pause="on"))
    stand.run(lambda: bool(stand.answers))
    assert stand.answers[0][0] == "ok"


def test_a_part_that_is_verified_before_the_next_may_show_as_late_as_the_limit(stand: Stand) -> None:
    stand.switches.broken = ("link",)
    stand.order("fault.act", replace(CRASH, limit_s=60.0))
    stand.loop.call_later(5 * fault_lifecycle.VERIFY_S, lambda: stand.switches.state.update(link="down"))
    stand.run(lambda: bool(stand.answers))
    assert stand.answers[0][0] == "ok"


def test_a_fault_that_never_shows_is_not_verified_after_its_limit(stand: Stand) -> None:
    stand.switches.broken = ("pause",)
    began = time.monotonic()
    kind, value = stand.act(replace(PAUSE, limit_s=0.2))
    assert (kind, value["reason"]) == ("fail", "not verified")
    assert time.monotonic() - began >= 0.2


def test_a_fault_that_is_verified_by_its_first_part_only_needs_no_later_observation(stand: Stand) -> None:
    assert stand.act(replace(CRASH, verify=(CUT,)))[0] == "ok"
    assert stand.noted[-2:] == ["fault.injected", "fault.verified"]


def test_a_notice_that_is_to_be_verified_is_observed_at_the_end(stand: Stand) -> None:
    """A notice waits for its grace only, whether the processes end or not."""
    notice = replace(CUT, args={**CUT.args, "grace_s": 0.01})
    stand.switches.broken = ("link",)
    kind, value = stand.act(replace(CRASH, inject=(notice, KILL), verify=(notice, KILL)))
    assert (kind, value["reason"]) == ("fail", "not verified")
