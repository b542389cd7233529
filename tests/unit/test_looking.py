"""Looking at a node that may be lost holds nobody up."""

from __future__ import annotations

import threading
import time

from orchestrator.model.bed import NodeStatus
from orchestrator.run.probe import FRESH_S, OVERDUE_S, Looks


def settled(looks: Looks, node: str) -> str:
    until = time.monotonic() + 5
    while (state := looks.now(node).state) == "starting" and time.monotonic() < until:
        time.sleep(0.002)
    return state


def test_what_was_begun_ahead_is_there_when_it_is_needed() -> None:
    seen = threading.Event()

    def look(node: str) -> NodeStatus:
        seen.set()
        return NodeStatus(name=node, state="paused")

    looks = Looks(look)
    looks.ahead("n2")
    assert seen.wait(5)
    assert settled(looks, "n2") == "paused"


def test_a_host_that_does_not_answer_is_not_waited_for_and_then_counts_as_gone() -> None:
    let, now = threading.Event(), [0.0]

    def look(node: str) -> NodeStatus:
        let.wait(10)
        return NodeStatus(name=node, state="warm")

    looks, begun = Looks(look, lambda: now[0]), time.monotonic()
    assert looks.now("n2").state == "starting"
    now[0] = OVERDUE_S - 0.1
    assert looks.now("n2").state == "starting"
    now[0] = OVERDUE_S
    assert looks.now("n2").state == "unreachable"
    assert time.monotonic() - begun < 1.0
    let.set()


def test_each_look_counts_once() -> None:
    states = iter(("busy", "dead"))
    looks = Looks(lambda node: NodeStatus(name=node, state=next(states)))  # type: ignore[arg-type]
    looks.ahead("n2")
    looks.ahead("n2")
    assert [settled(looks, "n2"), settled(looks, "n2")] == ["busy", "dead"]


def test_what_was_seen_long_ago_is_not_what_is() -> None:
    states, now = iter(("unreachable", "busy")), [0.0]
    looks = Looks(lambda node: NodeStatus(name=node, state=next(states)), lambda: now[0])  # type: ignore[arg-type]
    looks.ahead("n2")
    now[0] = 600.0
    looks.ahead("n2")
    assert settled(looks, "n2") == "busy"


def test_that_a_host_could_not_be_reached_is_seen_again_before_it_counts() -> None:
    states, now = iter(("unreachable", "starting")), [0.0]
    looks = Looks(lambda node: NodeStatus(name=node, state=next(states)), lambda: now[0])  # type: ignore[arg-type]
    looks.ahead("n2")
    while looks._under_way["n2"].status is None:
        time.sleep(0.002)
    now[0] = FRESH_S + 0.1
    assert looks.now("n2").state == "starting"
    assert next(states, "none") == "none", "both were seen"
