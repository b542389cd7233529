"""A node that responds slowly is not lost while its heartbeat goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from . import world
from .test_failover import decisions, end
from .test_hosts_judged import judged


@pytest.mark.parametrize("delay_s", [2.0, 4.0, 7.0, 20.0, 59.0])
def test_a_node_that_is_slow_to_stop_its_ranks_is_not_lost_with_another_one(delay_s: float) -> None:
    """Many ranks on a busy machine end late, while the heartbeat of their agent goes on."""
    trial, bed = world.trial(world.crash(2)), world.bed()
    world.delay(bed, "gang.stop", {"n1": delay_s})
    _, book = world.run(trial, bed)
    assert [(d["lost"], d["slots"]) for d in decisions(book)] == [(["n2"], ["n0", "n1", "n4", "n3"])]
    late = {"recovered-within"} if delay_s > 10.0 else set()
    assert {check for check, verdict in judged(trial, book).items() if verdict.outcome != "pass"} == late


def test_a_node_that_does_not_stop_its_ranks_is_lost_at_the_deadline_of_the_stop() -> None:
    trial, bed = world.trial(world.crash(2)), world.bed()
    world.delay(bed, "gang.stop", {"n1": 3600.0})
    _, book = world.run(trial, bed)
    assert decisions(book)[0]["lost"] == ["n1", "n2"]
    late = next(e for e in book.events if e.f == "gang.stop" and e.type == "info")
    assert (late.node, late.value["reason"]) == ("n1", "no reply within 60 s")


def test_an_agent_that_hangs_is_given_up_soon_after_the_stop() -> None:
    """Its process runs, so that its silence alone would show a loss only after 10 s."""
    bed = world.bed()

    def hang() -> None:
        bed.kill("n2")
        bed.nodes["n1"].paused = True

    bed.status = lambda name, status=bed.status: replace(status(name), state="warm") if name == "n1" else status(name)  # type: ignore[method-assign,misc]
    bed.at(0.2, hang)
    _, book = world.run(world.trial(policy=("spare", "restart")), bed)
    decided = next(e for e in book.events if e.f == "recovery.decided")
    stopped = next(e for e in book.events if e.f == "gang.stop")
    assert decided.value["lost"] == ["n1", "n2"]
    assert decided.t - stopped.t < 4.0, "liveness.settle_s, not the deadline of the stop"


@pytest.mark.parametrize("f", ["fence.write", "checkpoint.scan", "store.open", "gang.start", "node.apply"])
def test_a_slow_response_does_not_make_a_node_lost_whose_heartbeat_goes_on(f: str) -> None:
    trial, bed = world.trial(world.crash(0), policy=("restart",)), world.bed()
    world.delay(bed, f, dict.fromkeys(bed.nodes, 25.0))
    _, book = world.run(trial, bed)
    assert [d["lost"] for d in decisions(book)] == [["n0"]]
    assert end(book)["outcome"] == "finished", end(book)
    assert world.names(book, "node.silent") == []
