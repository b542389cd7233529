"""A fault is observed until it is healed: what was undone from outside shows, and what ended with its processes is none of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.act import HostFacts, Target
from orchestrator.model.events.fault_events import FaultLasted
from orchestrator.node.keeper import node_primitives, primitive_runner
from orchestrator.node.oslayer import processes
from orchestrator.node.oslayer.event_loop import Loop
from orchestrator.node.oslayer.processes import Process
from orchestrator.node.oslayer.stops import Stops

from .catalogue import CATALOGUE
from .fault_stand import PAUSE, Node, make_stand

HOST = HostFacts(name="h", provider="process", capabilities=frozenset({"own-link"}))


class StoppableNode(Node):
    """A node with one process, which is its rank as well."""

    name, directory = "n2", Path("/nowhere")

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self._pid, self._stops = process, process.pid, Stops()
        self.is_free = False

    def processes(self) -> list[Process]:  # type: ignore[override]
        process = processes.find(self._pid)
        return [process] if process and process.state not in processes.EXITED else []

    def rank(self, number: int) -> Process | None:
        return next(iter(self.processes()), None)

    def send_signal(self, targets: list[Process], number: int) -> list[int]:
        return self._stops.send(targets, number)

    def is_stopped(self, process: Process) -> bool:
        return self._stops.is_stopped(process)

    def pause(self, on: bool) -> dict[str, Any]:
        return self._stops.hold_all(self.processes(), on)

    def is_paused(self, on: bool) -> tuple[bool, dict[str, Any]]:
        return self._stops.are_held(self.processes(), on)

    def is_limited(self, amounts: object, on: bool) -> tuple[bool, dict[str, Any]]:
        return not self.is_free, {"cpu_percent": {str(self._pid): None if self.is_free else 1.0}}

    def limit(self, amounts: object, on: bool) -> dict[str, Any]:
        return {}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoppableNode]:
    for name, seconds in {"PAUSE_S": 0.01, "DOUBT_S": 0.01, "BROKEN_S": 0.1}.items():
        monkeypatch.setattr(primitive_runner, name, seconds)
    monkeypatch.setattr(node_primitives, "rank_numbers", lambda directory: [2])
    monkeypatch.setattr(node_primitives, "is_launched", lambda directory: False)
    process = subprocess.Popen([sys.executable, "-c", "input()\nwhile True: pass"], stdin=subprocess.PIPE)
    yield StoppableNode(process)
    process.kill()
    process.communicate()


def _state(node: StoppableNode, state: str) -> None:
    """Wait until the process is in this state, or not in it for ``!T``."""
    end = time.monotonic() + 600
    while ((process := processes.find(node._pid)) is not None and process.state == "T") is not (state == "T"):
        assert time.monotonic() < end


Until = Callable[[primitive_runner.FaultWatch], bool]
OFTEN: Until = lambda watch: watch._samples > 3  # noqa: E731
AT_ONCE: Until = lambda watch: True  # noqa: E731
BROKEN: Until = lambda watch: watch._broken is not None  # noqa: E731
OVER: Until = lambda watch: watch._timer is None  # noqa: E731


def _watched(node: StoppableNode, kind: str, meanwhile: Callable[[StoppableNode], object], until: Until) -> FaultLasted:
    """What the watch reports of a fault: ``meanwhile`` happens after its proof."""
    module = CATALOGUE.faults[kind].module
    params = {"cpu_percent": 1} if kind == "slow-node" else {}
    act = module.plan(module.Params(**params), Target(node="n2", rank=2), HOST)
    for primitive in act.inject:
        node_primitives.perform(primitive, node)  # type: ignore[arg-type]
    if kind != "slow-node":
        _state(node, "T")
    loop = Loop()
    watch = primitive_runner.watch(loop, act, node)  # type: ignore[arg-type]
    assert watch is not None
    meanwhile(node)
    while not until(watch):
        loop.run_once()
    return watch.end("f0")


def _continue(node: StoppableNode) -> None:
    os.kill(node._pid, signal.SIGCONT)
    _state(node, "!T")


def _lift(node: StoppableNode) -> None:
    """For a moment that no observation sees."""
    used_s = processes.cpu_s(node._pid)
    assert node.process.stdin
    node.process.stdin.write(b"\n")  # it computes from now on
    node.process.stdin.flush()
    if was_stopped := node.processes()[0].state == "T":
        _continue(node)
    end = time.monotonic() + 60
    while processes.cpu_s(node._pid) - used_s < 0.8:
        assert time.monotonic() < end
    if was_stopped:
        os.kill(node._pid, signal.SIGSTOP)
        _state(node, "T")


def _release(node: StoppableNode) -> None:
    node.is_free = True


def _kill(node: StoppableNode) -> None:
    os.kill(node._pid, signal.SIGKILL)
    while node.processes():
        pass


@pytest.mark.parametrize("kind", ["pause-node", "hang-rank", "slow-node"])
def test_a_fault_that_lasts_held(kind: str, node: StoppableNode) -> None:
    assert _watched(node, kind, lambda node: None, OFTEN).held is True


@pytest.mark.parametrize("until", [BROKEN, AT_ONCE])
@pytest.mark.parametrize(
    ("kind", "undo"), [("pause-node", _continue), ("hang-rank", _continue), ("slow-node", _release)]
)
def test_a_fault_that_is_undone_from_outside_did_not(
    kind: str, undo: Callable[[StoppableNode], None], until: Until, node: StoppableNode
) -> None:
    """Also if it is undone just before its healing."""
    assert _watched(node, kind, undo, until).held is False


def test_a_limit_is_not_lifted_for_as_long_as_a_killed_process_needs(
    node: StoppableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(primitive_runner, "BROKEN_S", 3600.0)
    assert _watched(node, "slow-node", _release, BROKEN).held is False


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pause-node", "hang-rank", "slow-node"])
def test_a_fault_that_is_lifted_between_two_observations_shows_by_the_cpu_time(kind: str, node: StoppableNode) -> None:
    lasted = _watched(node, kind, _lift, AT_ONCE)
    assert lasted.held is False and lasted.evidence["cpu_s_beyond_the_fault"] > 0.5


@pytest.mark.parametrize("kind", ["pause-node", "hang-rank", "slow-node"])
def test_a_fault_whose_processes_are_ended_ends_with_them(kind: str, node: StoppableNode) -> None:
    assert _watched(node, kind, _kill, OVER).held is None


@pytest.mark.parametrize("kind", ["crash-node", "crash-rank", "flip-bit"])
def test_what_leaves_nothing_to_heal_or_no_process_is_not_watched(kind: str, node: StoppableNode) -> None:
    module = CATALOGUE.faults[kind].module
    act = module.plan(module.Params(), Target(node="n2", rank=2), HOST)
    assert primitive_runner.watch(Loop(), act, node) is None  # type: ignore[arg-type]


def test_the_keeper_says_so_before_it_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = make_stand(tmp_path, monkeypatch)
    monkeypatch.setattr(Node, "processes", staticmethod(lambda: [processes.find(os.getpid())]))
    stand.act(PAUSE)
    stand.switches.state["pause"] = "off"
    stand.perform("fault.heal", PAUSE)
    assert stand.noted.index("fault.lasted") + 1 == stand.noted.index("fault.healed")
    notes = dict(stand.notes)
    assert (notes["fault.verified"]["lasts"], notes["fault.lasted"]["held"]) == (True, False)


def test_a_keeper_that_was_started_again_observes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = make_stand(tmp_path, monkeypatch)
    monkeypatch.setattr(Node, "processes", staticmethod(lambda: [processes.find(os.getpid())]))
    stand.act(PAUSE)
    stand.acts = stand.holder()
    stand.acts.resume()
    stand.perform("fault.heal", PAUSE)
    assert dict(stand.notes)["fault.lasted"]["held"] is True
