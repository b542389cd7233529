"""A probe of a node that may be lost never blocks the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from orchestrator.model.bed import NodeState, NodeStatus
from orchestrator.run.drive import FRESH_S, OVERDUE_S, Probes


def settled(probes: Probes, node: str) -> str:
    until = time.monotonic() + 600
    while (state := probes.status(node).state) == "starting" and time.monotonic() < until:
        time.sleep(0.002)
    return state


def in_turn(states: Iterator[NodeState]) -> Callable[[str], NodeStatus]:
    return lambda node: NodeStatus(name=node, state=next(states))


def test_the_result_of_a_started_probe_is_there_when_it_is_needed() -> None:
    observed = threading.Event()

    def observe(node: str) -> NodeStatus:
        observed.set()
        return NodeStatus(name=node, state="paused")

    probes = Probes(observe, lambda: 0.0)
    probes.start("n2")
    assert observed.wait(600)
    assert settled(probes, "n2") == "paused"


def test_a_host_that_does_not_answer_does_not_block_and_is_unreachable_once_overdue() -> None:
    released, now = threading.Event(), [0.0]

    def observe(node: str) -> NodeStatus:
        released.wait(600)
        return NodeStatus(name=node, state="warm")

    probes, begun = Probes(observe, lambda: now[0]), time.monotonic()
    assert probes.status("n2").state == "starting"
    now[0] = OVERDUE_S - 0.1
    assert probes.status("n2").state == "starting"
    now[0] = OVERDUE_S
    assert probes.status("n2").state == "unreachable"
    assert time.monotonic() - begun < 300, "the observation waits for 600 s"
    released.set()


def test_each_result_is_returned_once() -> None:
    states: Iterator[NodeState] = iter(("busy", "dead"))
    probes = Probes(in_turn(states), lambda: 0.0)
    probes.start("n2")
    probes.start("n2")
    assert [settled(probes, "n2"), settled(probes, "n2")] == ["busy", "dead"]


def test_a_stale_result_is_replaced() -> None:
    states: Iterator[NodeState] = iter(("unreachable", "busy"))
    now = [0.0]
    probes = Probes(in_turn(states), lambda: now[0])
    probes.start("n2")
    while probes._under_way["n2"].status is None:
        time.sleep(0.002)
    now[0] = 600.0
    probes.start("n2")
    assert settled(probes, "n2") == "busy"


def test_an_unreachable_host_is_probed_again_before_it_counts() -> None:
    states: Iterator[NodeState] = iter(("unreachable", "busy"))
    now = [0.0]
    probes = Probes(in_turn(states), lambda: now[0])
    probes.start("n2")
    while probes._under_way["n2"].status is None:
        time.sleep(0.002)
    now[0] = FRESH_S + 0.1
    assert settled(probes, "n2") == "busy"
    assert next(states, None) is None, "both states were observed"
