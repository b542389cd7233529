"""Acts that stop processes of the same node: each is undone by itself, in any order, also by a later keeper."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.act import Primitive
from orchestrator.node.files import label
from orchestrator.node.keeper import node_primitives, primitive_runner
from orchestrator.node.keeper.process_lifecycle import ProcessLifecycle, _Start
from orchestrator.node.keeper.process_node import ProcessNode
from orchestrator.node.oslayer import cgroups, processes
from orchestrator.node.oslayer.event_loop import Loop
from orchestrator.node.oslayer.processes import Process
from orchestrator.system import plain_files

PAUSE, UNPAUSE = (Primitive(kind="pause", args={"state": state}) for state in ("on", "off"))
HANG, CONTINUE = (Primitive(kind="signal", args={"signal": name, "local_rank": 1}) for name in ("STOP", "CONT"))
SLOW, FULL = (Primitive(kind="limit", args={"state": state, "cpu_percent": 50}) for state in ("on", "off"))


class Node(ProcessNode):
    """A node of two ranks, which are its only processes."""

    def __init__(self, directory: Path, pids: list[int]) -> None:
        nothing: Any = None
        super().__init__(Loop(), "n2", directory, prefix="b/n2/", switch=nothing, start=nothing, orphans=set)
        self.pids = pids
        ranks = {str(rank): [pid, processes.start_time(pid)] for rank, pid in enumerate(pids)}
        plain_files.write_json(directory / label.RANKS, {"ranks": ranks})

    def processes(self) -> list[Process]:
        return [process for pid in self.pids if (process := processes.find(pid))]

    def does(self, primitive: Primitive) -> None:
        """Perform it, and repeat it until it is observed, as a keeper does: a process stops a moment after its signal."""
        until = time.monotonic() + 600
        node_primitives.perform(primitive, self)
        while not node_primitives.observe(primitive, self)[0]:
            assert time.monotonic() < until, (primitive, self.processes())
            time.sleep(0.002)
            if primitive.kind in primitive_runner.REPEATED:
                node_primitives.perform(primitive, self)

    @property
    def stopped(self) -> list[bool]:
        return [process.state == processes.STOPPED for process in self.processes()]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(cgroups, "is_available", lambda amounts: False)
    with subprocess.Popen(["sleep", "600"]) as first, subprocess.Popen(["sleep", "600"]) as second:
        yield Node(tmp_path, [first.pid, second.pid])
        for child in (first, second):
            child.kill()


def test_a_healed_pause_leaves_a_rank_stopped_that_another_fault_has_hung(node: Node) -> None:
    for primitive in (HANG, PAUSE, UNPAUSE):
        node.does(primitive)
    assert node.stopped == [False, True]
    node.does(CONTINUE)
    assert node.stopped == [False, False]


def test_a_rank_that_hangs_in_a_paused_node_still_hangs_after_it(node: Node) -> None:
    node.does(PAUSE)
    assert node_primitives.observe(HANG, node)[0] is False
    for primitive in (HANG, UNPAUSE):
        node.does(primitive)
    assert node.stopped == [False, True]


def test_a_rank_that_is_healed_in_a_paused_node_continues_with_the_node(node: Node) -> None:
    for primitive in (HANG, PAUSE, CONTINUE):
        node.does(primitive)
    assert node.stopped == [True, True]
    node.does(UNPAUSE)
    assert node.stopped == [False, False]


def test_a_node_that_is_slowed_by_turns_does_not_continue_a_rank_that_hangs(node: Node) -> None:
    node.does(HANG)
    node_primitives.perform(SLOW, node)
    node.does(FULL)
    assert node.stopped == [False, True]


def test_a_later_keeper_continues_only_what_the_pause_has_stopped(node: Node) -> None:
    for primitive in (HANG, PAUSE):
        node.does(primitive)
    later = Node(node.directory, node.pids)
    primitive_runner.adopt((PAUSE, HANG), later)
    later.does(UNPAUSE)
    assert later.stopped == [False, True]


def test_a_pause_that_does_not_end_is_observed(node: Node) -> None:
    node.does(PAUSE)
    assert node_primitives.observe(UNPAUSE, node)[0] is False


def test_a_rank_of_a_new_incarnation_is_hung_and_healed_whatever_held_the_earlier_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause ended with its processes, and no act has undone it."""
    node.does(PAUSE)
    loop = Loop()
    lifecycle = object.__new__(ProcessLifecycle)
    lifecycle._loop = loop
    for process in node.processes():
        os.kill(process.pid, signal.SIGCONT)  # as those of a new incarnation, which nothing has stopped
    read, write = os.pipe()
    monkeypatch.setattr(lifecycle, "_watch", lambda node: None)
    lifecycle._observe_start(
        node, _Start(node=node, label={}, switch=-1, body=lambda _: 0, pid=node.pids[0], read=read)
    )
    node.does(HANG)
    node.does(CONTINUE)
    assert node.stopped == [False, False]
    loop.remove_reader(read)
    for fd in (read, write):
        os.close(fd)


def test_a_duty_cycle_goes_on_with_a_new_incarnation(node: Node) -> None:
    node_primitives.perform(SLOW, node)
    node.forget_stops()
    assert not any(node.is_stopped(process) for process in node.processes()), (
        "stopped in turn, not by a fault of its own"
    )
    node.does(FULL)
    assert node.stopped == [False, False]
