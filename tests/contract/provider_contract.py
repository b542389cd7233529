"""What every provider must do (model/provider.py), each behaviour stated once, for a bed of two nodes that are up."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.faults import pause_node
from orchestrator.model import codec
from orchestrator.model.act import HostFacts, Target
from orchestrator.model.bed import BedSpec, NodeStatus
from orchestrator.model.event import Command, Event
from orchestrator.model.payload import EventType
from orchestrator.model.provider import Cursors, Provider

RUN = "contract-run"
#: A status is read within a second, a node starts within a minute: only a hang takes longer.
LIMIT_S = 600.0
OUTCOMES: tuple[EventType, ...] = ("ok", "fail", "info")
#: A node writes it before it serves.
FILE = "system.json"


@dataclass(kw_only=True)
class Stage:
    """A provider, its bed, and the clock that its events wait by: the fake provider has a virtual one."""

    provider: Provider
    bed: BedSpec
    clock: Callable[[], float] = time.monotonic
    cursors: Cursors = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def node(self) -> str:
        """The node that a behaviour is tried on."""
        return self.bed.nodes[1].name

    def open(self, run: str = RUN) -> Stage:
        """Bind the provider to a run, with every node warm."""
        self.events = []
        self.cursors = self.provider.open(self.bed, run)
        for node in self.bed.nodes:
            if self.status(node.name).state != "warm":
                outcome = self.do("node.apply", codec.plain(node), node=node.name)
                assert outcome.type == "ok", outcome.value
        return self

    def up(self) -> Stage:
        """Bring the whole bed up."""
        self.provider.prepare(self.bed)
        return self.open("bed")

    def status(self, node: str = "") -> NodeStatus:
        return self.provider.observe_node(self.bed, node or self.node)

    def command(self, f: str, value: Mapping[str, Any], *, node: str = "", **fences: Any) -> Command:
        key = f"contract-{time.monotonic_ns()}-{next(self._numbers)}"
        return Command(f=f, key=key, node=node or self.node, value=value, deadline_s=LIMIT_S, **fences)

    def do(self, f: str, value: Mapping[str, Any], *, node: str = "", **fences: Any) -> Event:
        return self.perform(self.command(f, value, node=node, **fences))

    def perform(self, command: Command) -> Event:
        """Send a command; the outcome that it leads to."""
        count = len(self.events)
        self.provider.perform(command)
        return self.wait(lambda event: event.key == command.key and event.type in OUTCOMES, since=count)

    def wait(self, wanted: Callable[[Event], bool], since: int = 0) -> Event:
        until = self.clock() + LIMIT_S
        while True:
            event = next((event for event in self.events[since:] if wanted(event)), None)
            if event:
                return event
            assert self.clock() < until, f"no such event; the last ones: {self.events[-5:]}"
            events, self.cursors = self.provider.poll(self.cursors, 0.25)
            self.events += events

    def wait_until(self, condition: Callable[[], bool], problem: str) -> None:
        until = self.clock() + LIMIT_S
        while not condition():
            assert self.clock() < until, problem
            events, self.cursors = self.provider.poll(self.cursors, 0.05)
            self.events += events

    def fault(self) -> dict[str, Any]:
        """A pause of the node, as the engine would order it."""
        facts = HostFacts(
            name=self.bed.nodes[1].host, provider=self.bed.provider, capabilities=self.provider.capabilities("")
        )
        act = pause_node.plan(pause_node.Params(), Target(node=self.node, rank=1), facts)
        return {"id": f"f{next(self._numbers)}", "fault": "pause-node", "act": codec.plain(act)}


Behaviour = Callable[[Stage, Path], None]
BEHAVIOURS: dict[str, Behaviour] = {}


def behaviour(function: Behaviour) -> Behaviour:
    BEHAVIOURS[function.__name__] = function
    return function


@behaviour
def observe_lists_every_node_with_its_identity(stage: Stage, tmp_path: Path) -> None:
    status = stage.provider.observe(stage.bed)
    for node in stage.bed.nodes:
        node_status = status.node(node.name)
        assert node_status.state == "warm"
        assert node_status.incarnation and node_status.ordinal >= 1 and node_status.pid > 0
    assert len({node.incarnation for node in status.nodes}) == len(stage.bed.nodes)


@behaviour
def observe_node_agrees_with_observe(stage: Stage, tmp_path: Path) -> None:
    single, other = stage.status(), stage.provider.observe(stage.bed).node(stage.node)
    assert (single.state, single.incarnation, single.ordinal) == (other.state, other.incarnation, other.ordinal)


@behaviour
def warm_up_returns_at_once_and_changes_nothing(stage: Stage, tmp_path: Path) -> None:
    before, start = stage.status().incarnation, time.monotonic()
    stage.provider.warm_up(stage.bed)
    assert time.monotonic() - start < LIMIT_S / 10
    assert stage.status().incarnation == before


@behaviour
def prepare_is_idempotent_and_keeps_the_nodes(stage: Stage, tmp_path: Path) -> None:
    before = [node.incarnation for node in stage.provider.observe(stage.bed).nodes]
    stage.provider.prepare(stage.bed)
    stage.open()
    assert [node.incarnation for node in stage.provider.observe(stage.bed).nodes] == before


@behaviour
def a_host_can_kill_and_pause_its_nodes(stage: Stage, tmp_path: Path) -> None:
    for node in stage.bed.nodes:
        assert {"kill", "pause"} <= stage.provider.capabilities(node.host)


@behaviour
def perform_returns_at_once_and_the_outcome_is_an_event_with_the_key(stage: Stage, tmp_path: Path) -> None:
    command = stage.command("fence.write", {"epoch": 0, "dir": str(tmp_path), "keep": ""}, epoch=0)
    start = time.monotonic()
    stage.provider.perform(command)
    assert time.monotonic() - start < LIMIT_S / 10
    outcome = stage.wait(lambda event: event.key == command.key and event.type in OUTCOMES)
    assert (outcome.f, outcome.node, outcome.epoch) == ("fence.write", stage.node, 0)
    assert outcome.source.writer == "agent" and outcome.source.incarnation == stage.status().incarnation


@behaviour
def an_acknowledged_kill_has_ended_the_node(stage: Stage, tmp_path: Path) -> None:
    before = stage.status()
    assert stage.do("node.kill", {}).type == "ok"
    assert stage.status().state in ("dead", "absent")
    exit_event = stage.wait(lambda event: event.f == "node.exit" and event.node == stage.node)
    assert exit_event.type == "note" and exit_event.source.incarnation == before.incarnation


@behaviour
def a_killed_node_comes_back_as_a_new_incarnation(stage: Stage, tmp_path: Path) -> None:
    before = stage.status()
    assert stage.do("node.kill", {}).type == "ok"
    outcome = stage.do("node.apply", codec.plain(stage.bed.nodes[1]))
    after = stage.status()
    assert outcome.type == "ok", outcome.value
    assert after.state == "warm"
    assert after.incarnation != before.incarnation and after.ordinal == before.ordinal + 1
    assert outcome.value["incarnation"] == after.incarnation and outcome.value["ordinal"] == after.ordinal


@behaviour
def applying_a_node_that_lives_keeps_it(stage: Stage, tmp_path: Path) -> None:
    before = stage.status().incarnation
    assert stage.do("node.apply", codec.plain(stage.bed.nodes[1])).value["incarnation"] == before
    assert stage.status().incarnation == before


@behaviour
def a_repeated_command_is_not_performed_again(stage: Stage, tmp_path: Path) -> None:
    kill = stage.command("node.kill", {})
    first = stage.perform(kill)
    assert stage.do("node.apply", codec.plain(stage.bed.nodes[1])).type == "ok"
    second = stage.perform(kill)
    assert (first.type, second.type) == ("ok", "ok")
    assert "repeated" not in first.value and second.value.get("repeated") is True
    assert stage.status().state == "warm", "the second kill ended the new incarnation"


@behaviour
def a_command_for_another_incarnation_is_rejected(stage: Stage, tmp_path: Path) -> None:
    outcome = stage.do("node.kill", {}, incarnation="of-long-ago")
    assert outcome.type == "fail" and outcome.value["reason"]
    assert stage.status().state == "warm"


@behaviour
def an_unknown_command_fails_with_a_reason(stage: Stage, tmp_path: Path) -> None:
    outcome = stage.do("no.such.command", {})
    assert outcome.type == "fail" and outcome.value["reason"]


@behaviour
def a_fault_is_acknowledged_only_once_it_is_verified(stage: Stage, tmp_path: Path) -> None:
    before, fault = stage.status(), stage.fault()
    injected = stage.do("fault.act", fault, incarnation=before.incarnation)
    assert injected.type == "ok", injected.value
    assert stage.status().state == "paused"
    names = [event.f for event in stage.events if event.value.get("id") == fault["id"] and event.type == "note"]
    assert names[:3] == ["fault.before", "fault.injected", "fault.verified"]
    healed = stage.do("fault.heal", fault)
    after = stage.status()
    assert healed.type == "ok", healed.value
    assert (after.state, after.incarnation) == ("warm", before.incarnation)


@behaviour
def poll_waits_no_longer_than_it_may(stage: Stage, tmp_path: Path) -> None:
    until = stage.clock() + LIMIT_S
    while True:  # an event of an earlier command may come late
        start = stage.clock()
        events, cursors = stage.provider.poll(stage.cursors, 0.2)
        assert dict(cursors) == {**stage.cursors, **cursors}
        if not events:
            break
        stage.cursors = cursors
        assert stage.clock() < until, events
    assert stage.clock() - start < LIMIT_S / 10


@behaviour
def poll_delivers_from_any_cursors_and_nothing_twice_after_them(stage: Stage, tmp_path: Path) -> None:
    before = dict(stage.cursors)
    outcome = stage.do("node.apply", codec.plain(stage.bed.nodes[1]))
    replayed, after = stage.provider.poll(before, 0.0)
    assert outcome.source.identity in {event.source.identity for event in replayed}
    later, _ = stage.provider.poll(after, 0.0)
    assert outcome.source.identity not in {event.source.identity for event in later}


@behaviour
def a_closed_provider_can_be_opened_again(stage: Stage, tmp_path: Path) -> None:
    before = stage.status().incarnation
    stage.provider.close()
    stage.open()
    assert stage.do("node.apply", codec.plain(stage.bed.nodes[1])).value["incarnation"] == before


@behaviour
def a_living_node_beats_and_a_killed_one_stops(stage: Stage, tmp_path: Path) -> None:
    name, incarnation = stage.node, stage.status().incarnation

    def beat() -> tuple[str, int]:
        return stage.provider.heartbeats().get(name, ("", 0))

    stage.wait_until(lambda: beat()[0] == incarnation, "no heart-beat of the living incarnation")
    count = beat()[1]
    stage.wait_until(lambda: beat()[1] > count, "the count of the heart-beat stays")
    assert stage.do("node.kill", {}).type == "ok"
    newest, since = beat(), stage.clock()

    def is_still() -> bool:
        """Beats from before the kill may arrive late."""
        nonlocal newest, since
        if (current := beat()) not in (newest, ("", 0)):
            newest, since = current, stage.clock()
        return stage.clock() > since + 1.0

    stage.wait_until(is_still, "a dead node beats")


@behaviour
def equal_payloads_have_one_path_and_different_ones_two(stage: Stage, tmp_path: Path) -> None:
    path = stage.provider.put({"a.txt": b"one", "b/c.txt": b"two"})
    assert stage.provider.put({"b/c.txt": b"two", "a.txt": b"one"}) == path
    assert stage.provider.put({"a.txt": b"one", "b/c.txt": b"three"}) != path


@behaviour
def a_file_of_a_node_is_fetched_whole(stage: Stage, tmp_path: Path) -> None:
    result = stage.provider.fetch(stage.node, FILE, tmp_path / "whole" / FILE, 1 << 20)
    assert (result.path, result.capped, result.reason) == (FILE, (), "")
    assert result.size == (tmp_path / "whole" / FILE).stat().st_size > 0


@behaviour
def a_fetch_stops_at_its_limit_and_says_so(stage: Stage, tmp_path: Path) -> None:
    result = stage.provider.fetch(stage.node, FILE, tmp_path / FILE, 5)
    assert result.capped and result.size == 5 == (tmp_path / FILE).stat().st_size


@behaviour
def a_file_that_is_not_there_is_missing_with_a_reason(stage: Stage, tmp_path: Path) -> None:
    result = stage.provider.fetch(stage.node, "no-such-file", tmp_path / "none", 1 << 20)
    assert result.size == 0 and result.reason and not (tmp_path / "none").exists()


@behaviour
def a_fetch_does_not_leave_the_directory_of_its_node(stage: Stage, tmp_path: Path) -> None:
    result = stage.provider.fetch(stage.node, "../../../../../../../../etc/hostname", tmp_path / "out", 1 << 20)
    assert result.size == 0 and result.reason and not (tmp_path / "out").exists()


@behaviour
def fetch_all_keeps_the_order_and_one_limit_for_all(stage: Stage, tmp_path: Path) -> None:
    size = stage.provider.fetch(stage.node, FILE, tmp_path / "size", 1 << 20).size
    wanted = [(FILE, tmp_path / "first"), ("no-such-file", tmp_path / "second"), (FILE, tmp_path / "third")]
    results = stage.provider.fetch_all(stage.node, wanted, size + 3)
    assert [result.path for result in results] == [FILE, "no-such-file", FILE]
    assert [result.size for result in results] == [size, 0, 3]
    assert results[1].reason and results[2].capped


@behaviour
def a_run_and_a_payload_are_left_over_until_they_are_removed(stage: Stage, tmp_path: Path) -> None:
    path = stage.provider.put({"left.txt": str(tmp_path).encode()})
    stage.do("fence.write", {"epoch": 0, "dir": str(tmp_path), "keep": ""}, epoch=0)  # leaves a file of the run

    def names(kind: str) -> set[str]:
        return {str(entry["name"]) for _, entry in stage.provider.leftovers(stage.bed) if entry["kind"] == kind}

    assert Path(path).name in names("payload") and RUN in names("run")
    entries = [(host, str(e["kind"]), str(e["name"])) for host, e in stage.provider.leftovers(stage.bed)]
    stage.provider.remove_leftovers(stage.bed, [entry for entry in entries if entry[2] == Path(path).name])
    assert Path(path).name not in names("payload") and RUN in names("run")
    stage.provider.forget(stage.bed, RUN, is_gathered=True)
    assert RUN in names("run"), "it may have checkpoints"
    stage.provider.forget(stage.bed, RUN)
    assert RUN not in names("run")


@behaviour
def retire_ends_every_node_and_a_second_time_nothing(stage: Stage, tmp_path: Path) -> None:
    assert stage.provider.retire(stage.bed)
    assert {stage.status(node.name).state for node in stage.bed.nodes} <= {"dead", "absent"}
    assert stage.provider.retire(stage.bed) == ()
    stage.up()
    assert {stage.status(node.name).state for node in stage.bed.nodes} == {"warm"}
