"""A real bed of several hosts on this machine: a lost node is started on another host, waits for room there, and ends with its run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.app.session import drain_texts
from orchestrator.model.event import Event
from orchestrator.model.events import GangStart, NodeKillDone, RecoveryDecided, RecoveryRefused, RecoveryWaiting
from orchestrator.model.trial import FaultPlan, Trial, World
from orchestrator.node.oslayer import processes
from orchestrator.run import lifecycle
from orchestrator.store import bed_files, bundle

from . import trials
from .conftest import Bed, ccbed, ran

pytestmark = pytest.mark.e2e

#: n0 to n2 are on one host each; h1 and h3 have room for one more.
INVENTORY = """\
all:
  vars: {ansible_connection: local, ccbed_bed: rooms}
  hosts:
    h1: {ccbed_nodes: 1, ccbed_max_nodes: 2}
    h2: {ccbed_nodes: 1}
    h3: {ccbed_nodes: 1, ccbed_max_nodes: 2}
"""


@dataclass(kw_only=True)
class Rooms(Bed):
    """The bed of INVENTORY."""

    inventory: Path

    def unchanged(self) -> bool:
        return "nothing to change" in self.ccbed("up", str(self.inventory))[1]


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rooms]:
    directory = tmp_path_factory.mktemp("rooms")
    state, inventory = directory / "ccbed", directory / "rooms.yml"
    inventory.write_text(INVENTORY)
    code, output = ccbed(state, "up", str(inventory))
    assert code == 0, output
    spec = bed_files.read(state, "rooms")
    assert spec is not None
    yield Rooms(state=state, runs=directory / "runs", spec=spec, catalogue=plugins.discover(()), inventory=inventory)
    code, output = ccbed(state, "down", "rooms", "--force")
    assert code == 0, output
    assert [process.pid for process in processes.scan() if str(state) in process.tag] == [], (
        "nothing of the bed is left"
    )


def trial(*faults: FaultPlan, wait_s: float | None = None) -> Trial:
    made = trials.dp(*faults, policy=("replace",), world=World(nodes=3), checks=())
    return replace(made, recovery=replace(made.recovery, replace_wait_s=wait_s))


def test_a_lost_node_trains_on_from_the_checkpoint_on_another_host_and_ends_with_the_run(rooms: Rooms) -> None:
    during: list[str] = []

    def on_event(event: Event) -> None:
        if event.kind is GangStart and event.epoch == 1 and not during:
            during.append(rooms.ccbed("status", "rooms")[1])

    directory = lifecycle.launch(rooms.request(trial(trials.crash(1)), on_event=on_event)).directory
    made = ran(directory, rooms)
    assert made.bad() == []
    (decided,) = made.run.history.of(RecoveryDecided)
    assert decided.data.hosts == {"n3": "h1"}
    assert [event.node for event in made.run.history.of(GangStart) if event.epoch == 1] == ["n0", "n3", "n2"]
    (killed,) = (event for event in made.run.history.of(NodeKillDone) if event.node == "n3")
    assert killed.data.left == 0
    assert (Path(directory) / "nodes/n3/agent.log").exists()
    assert not (Path(directory) / "nodes/n4").exists(), "a replacement that was not needed has no files"
    page = (Path(directory) / "report/index.html").read_text()
    assert "n3" in page
    assert rooms.unchanged()


def test_drained_hosts_are_named_and_one_that_is_undrained_while_the_run_waits_gets_the_node(rooms: Rooms) -> None:
    assert rooms.ccbed("set-aside", "h1", "h3", "--bed", "rooms", "--reason", "fan")[0] == 0

    def on_event(event: Event) -> None:
        if event.kind is RecoveryWaiting:
            assert rooms.ccbed("set-aside", "h3", "--end", "--bed", "rooms")[0] == 0

    try:
        request = rooms.request(
            trial(trials.crash(1), wait_s=120.0), on_event=on_event, drains=lambda: drain_texts(rooms.spec)
        )
        made = ran(lifecycle.launch(request).directory, rooms)
    finally:
        for host in ("h1", "h3"):
            rooms.ccbed("set-aside", host, "--end", "--bed", "rooms")
    (waiting,) = made.run.history.of(RecoveryWaiting)
    hosts = dict(waiting.data.hosts or {})
    assert hosts["h1"].startswith("is set aside since ")
    assert hosts["h1"].endswith(": fan")
    assert hosts["h2"] == "is where n1 was lost"
    assert made.run.history.of(RecoveryDecided)[0].data.hosts == {"n4": "h3"}
    assert made.bad() == []
    assert rooms.unchanged()


def test_without_room_the_run_ends_after_its_time_with_the_reason_of_each_host(rooms: Rooms) -> None:
    full = "is drained: fan"
    request = rooms.request(trial(trials.crash(1), wait_s=1.5), drains=lambda: {"h1": full, "h3": full})
    made = ran(lifecycle.launch(request).directory, rooms)
    (waiting,), (refused,) = made.run.history.of(RecoveryWaiting), made.run.history.of(RecoveryRefused)
    assert refused.t - waiting.t >= 1.5
    expected = f"no other host has room after 1.5 s: h1 {full}; h2 is where n1 was lost; h3 {full}"
    assert expected in (refused.data.reason or "")
    assert expected in made.verdict("finished").text
    assert made.code == 1
    assert rooms.unchanged()


@pytest.fixture
def abandoned(rooms: Rooms) -> Path:
    """A run whose orchestrator was killed while a replacement trained."""
    argv = [
        sys.executable, "-m", "orchestrator.cli", "run", "dp-ring", "--nodes", "3", "--fail-node", "1", "--at", "step=6",
        "--recovery", "replace", "--no-reference", "--bed", "rooms", "--runs-dir", str(rooms.runs), "--step-min-ms", "120",
    ]  # fmt: skip
    environment = {**os.environ, "XDG_STATE_HOME": str(rooms.state.parent)}
    printed: list[str] = []
    with subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            if "first step of restart 1" in line:
                break
        process.send_signal(signal.SIGKILL)
    directory = (rooms.runs / "latest").resolve()
    assert any(event.node == "n3" for event in bundle.read_history(directory).of("gang.start")), printed
    return directory


def test_a_run_whose_orchestrator_is_killed_goes_on_with_the_replacement(rooms: Rooms, abandoned: Path) -> None:
    status = rooms.ccbed("status", "rooms")[1]
    assert "replacement" in next(line for line in status.splitlines() if line.split()[:1] == ["n3"])
    code, output = rooms.ccbed("resume", "latest", "--runs-dir", str(rooms.runs))
    assert code == 0, output
    assert rooms.unchanged()


def test_heal_ends_the_replacement_of_an_abandoned_run(rooms: Rooms, abandoned: Path) -> None:
    code, output = rooms.ccbed("heal", "rooms")
    assert (code, "n3: ended, its run is over" in output) == (0, True), output
    assert "n3" not in rooms.ccbed("status", "rooms")[1]
    assert rooms.unchanged()
