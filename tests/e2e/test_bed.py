"""Real beds: keeper, agents and stub ranks on this machine, driven through the process provider."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model import codec
from orchestrator.model.act import Act, Primitive
from orchestrator.model.bed import BedSpec, NodeSpec
from orchestrator.model.errors import InfrastructureError
from orchestrator.model.event import Command, Event
from orchestrator.model.gang import GangSpec
from orchestrator.node.oslayer import processes
from orchestrator.providers import archive
from orchestrator.providers.process.process_provider import ProcessProvider

from ..patience import until
from .reserves import have_exited, reserves, working
from .stub import RANK


class Bed:
    """A bed under test: sends commands, waits for what they lead to."""

    def __init__(self, state: Path, names: tuple[str, ...], **changes: Any) -> None:
        workdir = state / "beds" / "t"
        nodes = tuple(_node(name) for name in names)
        self.spec = BedSpec(
            name="t",
            provider="process",
            nodes=nodes,
            inventory="t.yml",
            workdir=str(workdir),
            shared_dir=str(workdir / "shared"),
            agent=archive.agent_hash(),
            **changes,
        )
        self.workdir = workdir
        self.provider = ProcessProvider(state, sys.executable)
        self.events: list[Event] = []
        self._number = 0

    def up(self) -> Bed:
        self.provider.prepare(self.spec)
        self.open("up")
        for node in self.spec.nodes:
            self.send("node.apply", f"apply/{node.name}", node.name, codec.plain(node))
        for node in self.spec.nodes:
            assert self.outcome(f"apply/{node.name}").type == "ok"
        return self

    def open(self, run: str) -> None:
        self.cursors = self.provider.open(self.spec, run)
        self.run, self.events = run, []

    def send(self, f: str, key: str, node: str, value: Mapping[str, Any], **fences: Any) -> None:
        self.provider.perform(Command(f=f, key=key, node=node, value=value, **fences))

    def ask(self, f: str, node: str, value: Mapping[str, Any], **fences: Any) -> Event:
        self._number += 1
        key = f"{f}/{self._number}"
        self.send(f, key, node, value, **fences)
        return self.outcome(key)

    def outcome(self, key: str) -> Event:
        return self.wait(lambda event: event.key == key and event.type in ("ok", "fail"))

    def note(self, f: str, node: str) -> Event:
        return self.wait(lambda event: event.f == f and event.node == node and event.type == "note")

    def wait(self, wanted: Callable[[Event], bool], limit_s: float = 600.0) -> Event:
        until = time.monotonic() + limit_s
        while True:
            event = next((event for event in self.events if wanted(event)), None)
            if event:
                return event
            assert time.monotonic() < until, f"not seen; last events: {self.events[-5:]}"
            events, self.cursors = self.provider.poll(self.cursors, 0.5)
            self.events += events

    def status(self, node: str) -> Any:
        return ProcessProvider(self.workdir).observe(self.spec).node(node)

    def gang(self, node: str, payload: str, *, epoch: int = 0, ranks: tuple[int, ...] = (0,), **params: Any) -> Event:
        out = self.workdir / "nodes" / node / "runs" / self.run / f"i1-e{epoch}"
        spec = GangSpec(
            run=self.run, epoch=epoch, world_size=len(ranks), nodes=1, group_rank=0, ranks=ranks, master_addr="127.0.0.1",
            master_port=1, backend="gloo", timeout_s=5.0, max_restarts=0, workload="stub", params=params, seed=1,
            payload=payload, out=str(out), checkpoints=params.pop("checkpoints", ""), interface="lo",
            deadline_s=params.pop("deadline_s", 60.0),
        )  # fmt: skip
        self.out = out
        return self.ask("gang.start", node, codec.plain(spec), epoch=epoch)

    def marked(self) -> list[int]:
        """Every process of the bed by its mark, by /proc alone."""
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if self._is_marked(path)]

    def _is_marked(self, path: Path) -> bool:
        try:
            return f"CCBED_NODE={self.tag}/".encode() in (path / "environ").read_bytes()
        except OSError:
            return False

    @property
    def tag(self) -> str:
        return f"{self.spec.name}-{hashlib.sha256(self.spec.workdir.encode()).hexdigest()[:8]}"


def _node(name: str, hash: str = "h1") -> NodeSpec:
    return NodeSpec(name=name, host="localhost", role="node", address="127.0.0.1", hash=hash, env={"OF_NODE": name})


pytestmark = pytest.mark.e2e
#: A payload needs its packages as well.
EMPTY_PACKAGES = {f"orchestrator/{name}/__init__.py": b"" for name in ("rank", "rank/runtime")}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    bed = Bed(tmp_path_factory.mktemp("state"), ("n0", "n1", "n2"))
    try:
        yield bed.up()
    finally:
        bed.provider.retire(bed.spec)


@pytest.fixture
def run(bed: Bed, request: pytest.FixtureRequest) -> Iterator[Bed]:
    """The shared bed, bound to a run of its own, with all of its nodes up."""
    bed.open(request.node.name)
    for node in bed.spec.nodes:
        bed.ask("fault.heal", node.name, _fault(PAUSE))
        assert bed.ask("node.apply", node.name, codec.plain(node)).type == "ok"
    bed.open(request.node.name)
    yield bed
    for node in bed.spec.nodes:
        bed.ask("gang.stop", node.name, {"epoch": 9}, epoch=9)


@pytest.fixture
def payload(run: Bed) -> str:
    return run.provider.put({**EMPTY_PACKAGES, "orchestrator/rank/runtime/rank_main.py": RANK.encode()})


def test_a_node_is_warm_before_it_is_called_ready(run: Bed) -> None:
    status = run.status("n0")
    first = json.loads((run.workdir / "nodes/n0/events.jsonl").read_text().splitlines()[0])
    assert (status.state, status.spec_hash, status.ordinal >= 1) == ("warm", "h1", True)
    assert first["f"] == "agent.ready" and first["value"]["threads"] == 1 and first["value"]["torch"]
    assert status.shared_mib > 50 > status.own_mib > 0


def test_a_second_apply_changes_nothing(run: Bed) -> None:
    before = run.provider.observe(run.spec)
    run.provider.prepare(run.spec)
    repeated = [run.ask("node.apply", node.name, codec.plain(node)) for node in run.spec.nodes]
    after = run.provider.observe(run.spec)
    assert [event.value["incarnation"] for event in repeated] == [node.incarnation for node in before.nodes]
    assert (after.keeper_pid, [n.pid for n in after.nodes]) == (before.keeper_pid, [n.pid for n in before.nodes])


def test_ranks_are_forked_warm_and_report_their_exit(run: Bed, payload: str) -> None:
    started = run.gang("n0", payload, ranks=(0, 1), steps=7, code=3)
    exits = [run.wait(lambda e, r=rank: e.f == "rank.exit" and e.value["rank"] == r) for rank in (0, 1)]  # type: ignore[misc]
    assert started.value["threads"] == 1
    assert {str(e.value["rank"]): e.value["pid"] for e in exits} == started.value["pids"]
    assert [(e.value["code"], e.value["last_step"], e.epoch) for e in exits] == [(3, 7, 0), (3, 7, 0)]
    assert f"rank 0 True {run.tag}/n0/{run.status('n0').incarnation}" in (run.out / "rank-0.log").read_text()


def test_stopping_a_gang_ends_strays_in_sessions_of_their_own(run: Bed, payload: str) -> None:
    run.gang("n0", payload, stray=True, bare=True, until_killed=True, steps=2)
    until(lambda: len(working(run, "n0")) == 4)
    stopped = run.ask("gang.stop", "n0", {"epoch": 0}, epoch=0)
    assert (stopped.type, stopped.value["left"], stopped.value["last_step"]) == ("ok", 0, {"0": 2})
    assert len(stopped.value["killed"]) == 4
    assert working(run, "n0") == [] and run.status("n0").state == "warm"


def test_a_released_rank_goes_on(run: Bed, payload: str) -> None:
    run.gang("n0", payload, release=True)
    assert run.ask("rank.release", "n0", {"rank": 0, "hold": "f0"}, epoch=0).type == "ok"
    assert run.note("rank.exit", "n0").value["code"] == 0
    assert "released f0" in (run.out / "rank-0.log").read_text()


def test_a_gang_past_its_deadline_says_why_it_has_no_stacks_and_ends(run: Bed, payload: str) -> None:
    run.gang("n0", payload, until_killed=True, deadline_s=2.0)
    assert run.note("rank.exit", "n0").value["code"] == -signal.SIGKILL
    assert "no stack: py-spy is not installed" in (run.out / "rank-0.log").read_text()


def test_a_taken_port_is_passed_over_and_named(run: Bed) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        opened = run.ask("store.open", "n0", {"epoch": 0, "address": "127.0.0.1", "port": port}, epoch=0)
    assert opened.type == "ok" and opened.value["retries"][0] == port and opened.value["port"] > port
    socket.create_connection(("127.0.0.1", opened.value["port"]), 2).close()
    assert opened.value["pid"] in run.ask("gang.stop", "n0", {"epoch": 0}, epoch=0).value["killed"]


def test_a_repeated_command_is_answered_from_the_first_outcome(run: Bed, payload: str) -> None:
    started = run.gang("n0", payload, until_killed=True)
    first = len(run.events)
    spec = {"left": "out: nothing of the value is looked at again"}
    run.send("gang.start", str(started.key), "n0", spec, epoch=0)
    run.wait(lambda event: event.key == started.key and event in run.events[first:])
    assert run.events[-1].value == {**started.value, "repeated": True} and run.events[-1].source.n > started.source.n
    assert len(working(run, "n0")) == 1


def test_commands_of_another_incarnation_or_an_epoch_that_is_over_are_refused(run: Bed) -> None:
    value = {"dir": str(run.workdir / "shared/c"), "epoch": 1}
    assert run.ask("fence.write", "n0", value, incarnation="feed", epoch=1).type == "fail"
    assert run.ask("fence.write", "n0", value, incarnation=run.status("n0").incarnation, epoch=1).type == "ok"
    late = run.ask("fence.write", "n0", {**value, "epoch": 0}, epoch=0)
    assert late.type == "fail" and "over" in late.value["reason"]
    assert "incarnation feed" in run.note("command.refused", "n0").value["reason"]


def test_a_node_that_was_left_behind_starts_no_gang_of_an_epoch_that_is_fenced_off(run: Bed, payload: str) -> None:
    shared = str(run.workdir / "shared/fenced")
    assert run.ask("fence.write", "n0", {"dir": shared, "epoch": 1}, epoch=1).type == "ok"
    late = run.gang("n1", payload, checkpoints=shared, until_killed=True)
    assert (late.type, late.value["reason"]) == ("fail", "epoch 0 is over; the fence is at epoch 1")
    until(lambda: working(run, "n1") == [])


def test_links_in_an_inbox_are_refused(run: Bed, tmp_path: Path) -> None:
    command = {"f": "gang.stop", "key": "k", "value": {"epoch": 0}, "run": run.run}
    (tmp_path / "command").write_text(json.dumps(command))
    os.symlink(tmp_path / "command", run.workdir / "nodes/n0/inbox" / f"{run.run}.k.json")
    until(lambda: not list((run.workdir / "nodes/n0/inbox").glob("*.k.json")))
    assert "command.refused" in (run.workdir / "nodes/n0/events.jsonl").read_text()
    assert not (run.workdir / "nodes/n0/done" / f"{run.run}.k.json").exists()


def test_a_program_run_in_a_node_has_its_environment_and_code(run: Bed, tmp_path: Path) -> None:
    argv = ["sh", "-c", "echo $OF_NODE $CCBED_NODE $MORE; exit 5"]
    done = run.ask("exec", "n1", {"argv": argv, "env": {"MORE": "more"}, "out": str(tmp_path), "cwd": "/"})
    assert done.value == {"code": 5}
    assert (tmp_path / "stdout").read_text() == f"n1 {run.tag}/n1/{run.status('n1').incarnation} more\n"
    assert run.ask("exec", "n1", {"argv": ["/not/there"], "out": str(tmp_path)}).type == "fail"


CRASH = Act(
    inject=(Primitive(kind="power", args={"state": "off"}),),
    verify=(Primitive(kind="power", args={"state": "off"}),),
    heal=(Primitive(kind="power", args={"state": "on"}),),
    verify_heal=(Primitive(kind="power", args={"state": "on"}),),
    lease_s=60.0,
    safety="container",
)
PAUSE = Act(
    inject=(Primitive(kind="pause", args={"state": "on"}),),
    verify=(Primitive(kind="pause", args={"state": "on"}),),
    heal=(Primitive(kind="pause", args={"state": "off"}),),
    verify_heal=(Primitive(kind="pause", args={"state": "off"}),),
    lease_s=60.0,
    safety="container",
)


def _fault(act: Act, id: str = "f0") -> dict[str, Any]:
    return {"id": id, "fault": "of-a-test", "act": codec.plain(act)}


def test_a_crashed_node_is_gone_with_its_strays_and_heals_into_a_new_incarnation(run: Bed, payload: str) -> None:
    before = run.status("n1")
    run.gang("n1", payload, stray=True, bare=True, until_killed=True)
    until(lambda: len(working(run, "n1")) == 4)
    own_pids = [before.pid, *(process.pid for process in processes.descendants(before.pid))]
    acted = run.ask("fault.act", "n1", _fault(CRASH), incarnation=before.incarnation)
    assert acted.type == "ok" and acted.value["verified"]
    until(lambda: have_exited(own_pids))
    assert run.status("n1").state == "dead" and run.provider.observe(run.spec).leases
    healed = run.ask("fault.heal", "n1", _fault(CRASH))
    after = run.status("n1")
    assert healed.type == "ok" and after.state == "warm" and after.ordinal == before.ordinal + 1
    assert after.incarnation != before.incarnation and not run.provider.observe(run.spec).leases


def test_a_crash_is_told_in_order_and_the_exit_by_itself(run: Bed) -> None:
    run.ask("fault.act", "n1", _fault(CRASH))
    run.ask("fault.heal", "n1", _fault(CRASH))
    notes = [(e.f, e.node) for e in run.events if e.type == "note" and e.source.writer == "keeper"]
    names = [f for f, node in notes if node == "n1" and f != "node.ended"]
    order = ["lease.armed", "fault.before", "fault.injected", "fault.verified", "fault.healed", "heal.verified"]
    assert [name for name in names if name != "node.exit"] == order
    # The keeper verifies the fault by the node's processes, which may be over before the kernel reports their end.
    assert names.index("fault.injected") < names.index("node.exit") < names.index("fault.healed")
    assert run.note("node.exit", "n1").value["code"] == -signal.SIGKILL
    assert run.note("node.ended", "n1").value["left"] == 0
    assert run.note("fault.injected", "n1").value["id"] == "f0"


def test_a_node_killed_by_hand_is_told_the_same_way(run: Bed) -> None:
    pid, start = run.status("n1").pid, time.monotonic()
    os.kill(pid, signal.SIGKILL)
    event = run.note("node.exit", "n1")
    assert event.value == {"code": -signal.SIGKILL, "pid": pid} and event.at.mono - start < 10.0
    assert run.ask("node.apply", "n1", {"node": "n1"}).type == "ok"


def test_a_paused_node_is_stopped_whole_and_goes_on(run: Bed, payload: str) -> None:
    run.gang("n2", payload, stray=True, bare=True, until_killed=True)
    before = run.status("n2")
    until(lambda: len(working(run, "n2")) == 4)
    acted = run.ask("fault.act", "n2", _fault(PAUSE), incarnation=before.incarnation)
    assert acted.type == "ok" and set(acted.value["evidence"]["states"].values()) == {"T"}
    assert len(acted.value["evidence"]["states"]) >= 5 and run.status("n2").state == "paused"
    assert run.ask("fault.heal", "n2", _fault(PAUSE)).type == "ok"
    after = run.status("n2")
    assert (after.state, after.incarnation) == ("busy", before.incarnation)


def test_a_node_that_starts_processes_all_the_time_can_be_paused(run: Bed, payload: str) -> None:
    """A parent in vfork cannot be stopped while its child is: many tries, so that some hit that moment."""
    run.gang("n2", payload, ranks=(0, 1), spawn=True)
    for number in range(20):
        answer = run.ask("fault.act", "n2", _fault(PAUSE, f"f{number}"))
        assert answer.type == "ok", answer.value
        assert run.ask("fault.heal", "n2", _fault(PAUSE, f"f{number}")).type == "ok"


def test_a_paused_node_can_be_killed_and_started_again(run: Bed) -> None:
    before = run.status("n2")
    run.ask("fault.act", "n2", _fault(PAUSE))
    killed = run.ask("node.kill", "n2", {}, incarnation=before.incarnation).value
    assert ({*killed["killed"]} - reserves(run.workdir, "n2"), killed["left"]) == ({before.pid}, 0)
    assert run.ask("node.apply", "n2", codec.plain(_node("n2"))).value["ordinal"] == before.ordinal + 1
    assert run.ask("fault.heal", "n2", _fault(PAUSE)).type == "ok"


def test_a_signalled_rank_ends_and_its_node_does_not(run: Bed, payload: str) -> None:
    run.gang("n2", payload, ranks=(0, 1), until_killed=True)
    kill = Primitive(kind="signal", args={"signal": "KILL", "rank": 1})
    act = Act(inject=(kill,), verify=(kill,), heal=(), verify_heal=(), lease_s=60.0, safety="process")
    assert run.ask("fault.act", "n2", _fault(act)).type == "ok"
    event = run.note("rank.exit", "n2")
    assert (event.value["rank"], event.value["code"]) == (1, -signal.SIGKILL)
    assert len(working(run, "n2")) == 1


def test_a_fault_for_another_incarnation_or_a_dead_node_is_refused(run: Bed) -> None:
    assert run.ask("fault.act", "n1", _fault(CRASH), incarnation="feed").type == "fail"
    run.ask("node.kill", "n1", {})
    assert "does not run" in run.ask("fault.act", "n1", _fault(CRASH)).value["reason"]
    assert run.ask("node.apply", "n1", {"node": "n1"}).type == "ok"


def test_a_primitive_of_other_providers_is_refused_before_anything_is_done(run: Bed) -> None:
    cut = Primitive(kind="link", args={})
    act = Act(inject=(cut,), verify=(cut,), heal=(), verify_heal=(), lease_s=60.0, safety="node")
    answer = run.ask("fault.act", "n1", _fault(act))
    assert answer.type == "fail" and "no link of its own" in answer.value["reason"]
    assert not run.provider.observe(run.spec).leases


def test_a_lease_that_is_over_heals_without_anybody(run: Bed) -> None:
    before = run.status("n2")
    run.ask("fault.act", "n2", _fault(replace(PAUSE, lease_s=8.0)))
    assert run.status("n2").state == "paused"
    run.note("heal.verified", "n2")
    names = [e.f for e in run.events if e.type == "note" and e.node == "n2" and e.source.writer == "keeper"]
    assert names[-4:] == ["lease.over", "fault.lasted", "fault.healed", "heal.verified"]
    assert replace(run.status("n2"), own_mib=0, shared_mib=0) == replace(before, own_mib=0, shared_mib=0)


def test_another_spec_is_not_applied_over_a_living_node(run: Bed) -> None:
    assert run.ask("node.apply", "n0", codec.plain(_node("n0", "h2"))).type == "fail"
    assert run.status("n0").spec_hash == "h1"


def test_lines_of_another_run_are_not_told(run: Bed) -> None:
    other = ProcessProvider(run.workdir.parent.parent)
    other.open(run.spec, "another")
    other.perform(Command(f="node.apply", key="apply/another", node="n0", value={"node": "n0"}))
    run.ask("node.apply", "n1", {"node": "n1"})
    until(lambda: "apply/another" in (run.workdir / "keeper/events.jsonl").read_text())
    run.ask("node.apply", "n1", {"node": "n1"})
    assert "apply/another" not in {event.key for event in run.events}


def test_every_event_has_an_identity_of_its_own(run: Bed, payload: str) -> None:
    run.gang("n0", payload)
    run.note("rank.exit", "n0")
    identities = [event.source.identity for event in run.events]
    assert len(set(identities)) == len(identities) > 1


@pytest.mark.parametrize("victims", [("keeper",), ("agent",), ("keeper", "agent")], ids="+".join)
def test_nothing_is_left_whoever_was_killed_before(tmp_path: Path, victims: tuple[str, ...]) -> None:
    """A process without mark and session is found by descent, as long as one of keeper and agent lives to be its parent."""
    bed = Bed(tmp_path, ("n0", "n1")).up()
    try:
        bed.open("r")
        files = {**EMPTY_PACKAGES, "orchestrator/rank/runtime/rank_main.py": RANK.encode()}
        bare = len(victims) == 1
        bed.gang("n0", bed.provider.put(files), stray=True, bare=bare, until_killed=True)
        status = bed.provider.observe(bed.spec)
        until(lambda: len(working(bed, "n0")) == 3 + bare and len(reserves(bed.workdir, "n1")) == 1)
        waiting = reserves(bed.workdir, "n0", "n1")
        pids = {"keeper": status.keeper_pid, "agent": status.node("n0").pid}
        everyone = {status.keeper_pid, *(process.pid for process in processes.descendants(status.keeper_pid))}
        for victim in victims:
            os.kill(pids[victim], signal.SIGKILL)
        if "keeper" in victims:
            until(lambda: bed.provider.observe(bed.spec).keeper_pid == 0)
            assert bed.status("n1").state == "warm"
    finally:
        bed.provider.retire(bed.spec)
    assert len(everyone - waiting) == 6 + bare and bed.marked() == []
    until(lambda: have_exited(everyone))
    assert not bed.workdir.exists() and bed.provider.observe(bed.spec).node("n0").state == "absent"
    assert bed.provider.retire(bed.spec) == ()


def test_a_new_keeper_adopts_living_nodes_and_reports_those_that_died_unseen(tmp_path: Path) -> None:
    bed = Bed(tmp_path, ("n0", "n1")).up()
    try:
        before = bed.provider.observe(bed.spec)
        bed.open("r")
        acted = bed.ask("fault.act", "n1", _fault(replace(PAUSE, lease_s=6.0)))
        assert acted.type == "ok"
        for pid in (before.keeper_pid, before.node("n0").pid):
            os.kill(pid, signal.SIGKILL)
        until(lambda: bed.provider.observe(bed.spec).keeper_pid == 0)
        beats = bed.provider.heartbeats()
        bed.provider.prepare(bed.spec)
        after = bed.provider.observe(bed.spec)
        assert after.keeper_pid not in (0, before.keeper_pid)
        assert bed.note("node.exit", "n0").value == {"code": None, "pid": before.node("n0").pid}
        bed.note("lease.over", "n1")
        bed.note("heal.verified", "n1")
        assert bed.status("n1").incarnation == before.node("n1").incarnation
        until(lambda: bed.provider.heartbeats()["n1"] > beats["n1"])
        os.kill(before.node("n1").pid, signal.SIGKILL)
        assert bed.note("node.exit", "n1").value["code"] is None
        assert len({event.source.identity for event in bed.events}) == len(bed.events)
    finally:
        bed.provider.retire(bed.spec)
    assert bed.marked() == []


def test_an_injection_that_does_nothing_is_not_called_verified(tmp_path: Path) -> None:
    nothing = (Primitive(kind="power", args={"state": "on"}), Primitive(kind="pause", args={"state": "off"}))
    bed = Bed(tmp_path, ("n0",)).up()
    try:
        bed.open("r")
        pid = bed.status("n0").pid
        for id, act in (("f0", CRASH), ("f1", PAUSE)):
            answer = bed.ask("fault.act", "n0", _fault(replace(act, inject=nothing, limit_s=1.0), id))
            assert answer.type == "fail" and answer.value["reason"] == "not verified"
        assert not [event for event in bed.events if event.f == "fault.verified"]
        assert (bed.status("n0").pid, bed.status("n0").state) == (pid, "warm")
    finally:
        bed.provider.retire(bed.spec)


def test_a_keeper_that_cannot_start_says_why(tmp_path: Path) -> None:
    bed = Bed(tmp_path, ("n0",))
    shadow = tmp_path / "without-torch"
    shadow.mkdir()
    (shadow / "torch.py").write_text("raise ImportError('no torch in here')")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shadow} exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    with pytest.raises(InfrastructureError, match="no torch in here"):
        ProcessProvider(tmp_path, str(python)).prepare(bed.spec)
    assert bed.marked() == []


def test_outside_of_runs_the_nodes_answer_as_well(run: Bed, tmp_path: Path) -> None:
    run.open("bed")
    done = run.ask("exec", "n1", {"argv": ["true"], "out": str(tmp_path)})
    assert (done.type, done.value) == ("ok", {"code": 0})
    run.open("bed")
    assert run.provider.poll(run.cursors, 0)[0] == []
