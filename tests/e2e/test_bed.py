"""Real beds: keeper, agents and stub ranks on this machine, driven through the process provider."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import processes
from orchestrator.model import codec
from orchestrator.model.act import Act, Primitive
from orchestrator.model.bed import BedSpec, NodeSpec
from orchestrator.model.event import Command, Event
from orchestrator.model.gang import GangSpec
from orchestrator.providers import archive
from orchestrator.providers.process import ProcessProvider

#: A rank that does what its params say. ``stray``: leaves a forked and an exec'd process behind, each in its own session.
RANK = '''
import json, os, subprocess, sys, time
def main(gang, rank, *, events_path, release_fd, node, incarnation):
    print("rank", rank, "torch" in sys.modules, os.environ["CCBED_NODE"], flush=True)
    with open(os.path.join(gang.out, f"steps-r{rank}.jsonl"), "w") as steps:
        for step in range(1, int(gang.params.get("steps", 0)) + 1):
            steps.write(json.dumps({"step": step}) + "\\n")
        steps.write('{"step": 99')
    if gang.params.get("stray"):
        if os.fork() == 0:
            os.setsid()
            while True: time.sleep(1)
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        subprocess.Popen(["sleep", "1000"], start_new_session=True, env={})
    if gang.params.get("release"):
        print("released", os.read(release_fd, 100).decode(), flush=True)
    if gang.params.get("until_killed"):
        while True: time.sleep(1)
    return int(gang.params.get("code", 0))
'''  # fmt: skip


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
        self.seen: list[Event] = []
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
        self.run, self.seen = run, []

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

    def wait(self, wanted: Callable[[Event], bool], limit_s: float = 15.0) -> Event:
        until = time.monotonic() + limit_s
        while True:
            found = next((event for event in self.seen if wanted(event)), None)
            if found:
                return found
            assert time.monotonic() < until, f"not seen; last events: {self.seen[-5:]}"
            events, self.cursors = self.provider.poll(self.cursors, 0.5)
            self.seen += events

    def status(self, node: str) -> Any:
        return self.provider.observe(self.spec).node(node)

    def gang(self, node: str, payload: str, *, epoch: int = 0, ranks: tuple[int, ...] = (0,), **params: Any) -> Event:
        out = self.workdir / "nodes" / node / "runs" / self.run / f"i1-e{epoch}"
        spec = GangSpec(
            run=self.run, epoch=epoch, world_size=len(ranks), nodes=1, group_rank=0, ranks=ranks, master_addr="127.0.0.1",
            master_port=1, backend="gloo", timeout_s=5.0, max_restarts=0, workload="stub", params=params, seed=1,
            payload=payload, out=str(out), checkpoints="", interface="lo", deadline_s=params.pop("deadline_s", 60.0),
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
        return inbox_tag(self.spec)


def inbox_tag(spec: BedSpec) -> str:
    import hashlib

    return f"{spec.name}-{hashlib.sha256(spec.workdir.encode()).hexdigest()[:8]}"


def _node(name: str, hash: str = "h1") -> NodeSpec:
    return NodeSpec(name=name, host="localhost", role="node", address="127.0.0.1", hash=hash, env={"OF_NODE": name})


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
    bed.open(request.node.name.replace("[", "-").rstrip("]"))
    yield bed
    for node in bed.spec.nodes:
        bed.ask("gang.stop", node.name, {"epoch": 9}, epoch=9)


@pytest.fixture
def payload(run: Bed) -> str:
    return run.provider.put({"orchestrator/rank/__init__.py": b"", "orchestrator/rank/main.py": RANK.encode()})


def test_a_node_is_warm_before_it_is_called_ready(run: Bed) -> None:
    status = run.status("n0")
    first = json.loads((run.workdir / "nodes/n0/events.jsonl").read_text().splitlines()[0])
    assert (status.state, status.spec_hash, status.ordinal >= 1) == ("warm", "h1", True)
    assert first["f"] == "agent.ready" and first["value"]["threads"] == 1 and first["value"]["torch"]
    assert status.shared_mib > 50 > status.own_mib > 0


def test_a_second_apply_changes_nothing(run: Bed) -> None:
    before = run.provider.observe(run.spec)
    run.provider.prepare(run.spec)
    again = [run.ask("node.apply", node.name, codec.plain(node)) for node in run.spec.nodes]
    after = run.provider.observe(run.spec)
    assert [event.value["incarnation"] for event in again] == [node.incarnation for node in before.nodes]
    assert (after.keeper_pid, [n.pid for n in after.nodes]) == (before.keeper_pid, [n.pid for n in before.nodes])


def test_ranks_are_forked_warm_and_report_their_exit(run: Bed, payload: str) -> None:
    started = run.gang("n0", payload, ranks=(0, 1), steps=7, code=3)
    exits = [run.wait(lambda e, r=rank: e.f == "rank.exit" and e.value["rank"] == r) for rank in (0, 1)]  # type: ignore[misc]
    assert started.value["threads"] == 1
    assert {str(e.value["rank"]): e.value["pid"] for e in exits} == started.value["pids"]
    assert [(e.value["code"], e.value["last_step"], e.epoch) for e in exits] == [(3, 7, 0), (3, 7, 0)]
    assert f"rank 0 True {run.tag}/n0/{run.status('n0').incarnation}" in (run.out / "rank-0.log").read_text()


def test_stopping_a_gang_ends_strays_in_sessions_of_their_own(run: Bed, payload: str) -> None:
    run.gang("n0", payload, stray=True, until_killed=True, steps=2)
    agent = run.status("n0").pid
    _until(lambda: len(processes.descendants(agent)) == 4)
    stopped = run.ask("gang.stop", "n0", {"epoch": 0}, epoch=0)
    assert (stopped.type, stopped.value["left"], stopped.value["last_step"]) == ("ok", 0, {"0": 2})
    assert len(stopped.value["killed"]) == 4
    assert processes.descendants(agent) == [] and run.status("n0").state == "warm"


def test_a_released_rank_goes_on(run: Bed, payload: str) -> None:
    run.gang("n0", payload, release=True)
    assert run.ask("rank.release", "n0", {"rank": 0, "hold": "f0"}, epoch=0).type == "ok"
    assert run.note("rank.exit", "n0").value["code"] == 0
    assert "released f0" in (run.out / "rank-0.log").read_text()


def test_a_gang_past_its_deadline_leaves_its_stacks_and_ends(run: Bed, payload: str) -> None:
    run.gang("n0", payload, until_killed=True, deadline_s=0.3)
    assert run.note("rank.exit", "n0").value["code"] == -signal.SIGKILL
    assert "most recent call first" in (run.out / "rank-0.log").read_text()


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
    first = len(run.seen)
    spec = {"left": "out: nothing of the value is looked at again"}
    run.send("gang.start", str(started.key), "n0", spec, epoch=0)
    run.wait(lambda event: event.key == started.key and event in run.seen[first:])
    assert run.seen[-1].value == started.value and run.seen[-1].source.n > started.source.n
    assert len(processes.descendants(run.status("n0").pid)) == 1


def test_commands_of_another_incarnation_or_an_epoch_that_is_over_are_refused(run: Bed) -> None:
    value = {"dir": str(run.workdir / "shared/c"), "epoch": 1}
    assert run.ask("fence.write", "n0", value, incarnation="feed", epoch=1).type == "fail"
    assert run.ask("fence.write", "n0", value, incarnation=run.status("n0").incarnation, epoch=1).type == "ok"
    late = run.ask("fence.write", "n0", {**value, "epoch": 0}, epoch=0)
    assert late.type == "fail" and "over" in late.value["reason"]
    assert "incarnation feed" in run.note("command.refused", "n0").value["reason"]


def test_links_in_an_inbox_are_refused(run: Bed, tmp_path: Path) -> None:
    command = {"f": "gang.stop", "key": "k", "value": {"epoch": 0}, "run": run.run}
    (tmp_path / "command").write_text(json.dumps(command))
    os.symlink(tmp_path / "command", run.workdir / "nodes/n0/inbox" / f"{run.run}.k.json")
    _until(lambda: not list((run.workdir / "nodes/n0/inbox").glob("*.k.json")))
    assert "command.refused" in (run.workdir / "nodes/n0/events.jsonl").read_text()
    assert not (run.workdir / "nodes/n0/done" / f"{run.run}.k.json").exists()


def test_a_program_run_in_a_node_has_its_environment_and_code(run: Bed, tmp_path: Path) -> None:
    argv = ["sh", "-c", "echo $OF_NODE $CCBED_NODE $MORE; exit 5"]
    done = run.ask("exec", "n1", {"argv": argv, "env": {"MORE": "more"}, "out": str(tmp_path), "cwd": "/"})
    assert done.value == {"code": 5}
    assert (tmp_path / "stdout").read_text() == f"n1 {run.tag}/n1/{run.status('n1').incarnation} more\n"
    assert run.ask("exec", "n1", {"argv": ["/not/there"], "out": str(tmp_path)}).type == "fail"


def _until(true: Callable[[], bool], limit_s: float = 10.0) -> None:
    until = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)
