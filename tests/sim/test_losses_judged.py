"""What planned-faults-only says of nodes that are given up without a report of their exit or silence."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.model.act import Act
from orchestrator.model.bed import NodeStatus
from orchestrator.model.event import Command
from orchestrator.model.trial import FaultPlan, Trial, Trigger
from orchestrator.model.verdict import Verdict

from ..fakes.fake import FakeBed, holder
from ..fakes.fake_cluster import OUTSIDE
from . import test_replace, world
from .test_hosts_judged import SHARED, judged

DRAINED = {"h0": "drained: for a test", "h3": "drained: for a test"}
UNANSWERED = "n1 did not carry out gang.stop, which was not planned"


def crash(node: int, id: str, on: str, after_s: float, fault: str = "crash-node") -> FaultPlan:
    return FaultPlan(id=id, fault=fault, node=node, at=Trigger(on=on, after_s=after_s))


def verdict(trial: Trial, book: world.Memory) -> Verdict:
    return judged(trial, book)["planned-faults-only"]


def refuse_to_send(bed: FakeBed) -> None:
    """A command to a host that does not answer is not sent, as over a connection that is lost."""
    perform = bed.perform

    def perform_or_raise(command: Command) -> None:
        if command.node and holder(command) != OUTSIDE and not bed.cluster.host_of(str(command.node)).answers:
            raise ConnectionError("the connection is lost")
        perform(command)

    bed.perform = perform_or_raise  # type: ignore[method-assign]


def fail_command(bed: FakeBed, key: str) -> None:
    """The agent reports an error of this command."""
    find_problem = bed.agents._problem
    bed.agents._problem = lambda command, node: (  # type: ignore[method-assign]
        "its disk is broken" if command.key == key else find_problem(command, node)
    )


def drop_response(bed: FakeBed, key: str) -> None:
    respond = bed.cluster.respond
    bed.cluster.respond = lambda command, *args, **more: (  # type: ignore[method-assign]
        None if command.key == key else respond(command, *args, **more)
    )


def beat_while_paused(bed: FakeBed, slow: str) -> None:
    """The node is slow: it is suspect, and does not fall silent."""
    status = bed.status

    def status_of(name: str) -> NodeStatus:
        known = status(name)
        return replace(known, state="warm") if name == slow and known.state == "paused" else known

    bed.status = status_of  # type: ignore[method-assign]


# --- planned ----------------------------------------------------------------------------------------------------------


def test_a_connection_that_returns_late_after_a_heal_is_explained_by_the_fault() -> None:
    """n2 has been suspect since its link was cut; 2.5 s after the heal n1 crashes, and n2 is not connected yet."""
    trial = world.trial(world.crash(2), crash(1, "f1", "heal.verified", 2.5))
    bed = world.bed(world.HOSTS, steps=1500)
    refuse_to_send(bed)
    bed.cluster.reconnect_s = 3.6
    _, book = world.run(trial, bed, {"f0": world.host_act("cut-link", for_s=1.2)})
    assert (verdict(trial, book).outcome, verdict(trial, book).text) == (
        "pass",
        "2 nodes lost as planned, nothing else",
    )


def test_a_host_that_is_cut_off_before_the_fence_is_lost_as_planned() -> None:
    trial = world.trial(world.crash(2), crash(0, "f1", "node.exit", 0.5, "cut-link"))
    bed = world.bed(world.HOSTS, steps=300)
    refuse_to_send(bed)
    world.delay(bed, "gang.stop", {"n3": 1.0})
    _, book = world.run(trial, bed, {"f1": world.host_act("cut-link")})
    assert verdict(trial, book).text == "2 nodes lost as planned, nothing else"


def test_a_slow_node_that_is_given_up_and_heard_again_before_the_decision_is_lost_as_planned() -> None:
    trial = world.trial(
        FaultPlan(id="f0", fault="slow-node", node=1, at=Trigger(step=30)), crash(2, "f1", "fault.verified", 0.3)
    )
    bed = world.bed(steps=300)
    beat_while_paused(bed, "n1")
    world.delay(bed, "gang.stop", {"n3": 7.0})
    _, book = world.run(trial, bed, {"f0": world.pause(4.5)})
    assert "node.heard" in world.names(book)
    assert verdict(trial, book).text == "2 nodes lost as planned, nothing else"


def test_a_start_that_is_reported_after_its_deadline_is_no_start() -> None:
    trial = world.trial(world.crash(2), policy=("restart", "spare"))
    bed = world.bed(steps=300)
    world.delay(bed, "node.apply", {"n2": 61.0})
    world.delay(bed, "gang.stop", {"n3": 3.0})
    _, book = world.run(trial, bed)
    assert verdict(trial, book).outcome == "pass"


# --- not planned ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [True, False])
def test_a_loss_is_judged_before_recovery_waits_for_room(waits: bool) -> None:
    """While it waits, the node is ordered to end, and its exit follows from that."""
    trial = test_replace.trial(world.crash(2), wait=200.0 if waits else None)
    bed = test_replace.bed(steps=300)
    world.delay(bed, "gang.stop", {"n1": 3600.0})
    drains: Callable[[], Mapping[str, str]] = lambda: DRAINED if waits and bed.time < 170.0 else {}  # noqa: E731
    book = test_replace.run(trial, bed, test_replace.plan(trial), drains)
    assert ("recovery.waiting" in world.names(book)) == waits
    assert UNANSWERED in verdict(trial, book).text


def test_a_loss_is_judged_where_recovery_is_refused() -> None:
    trial, bed = world.trial(world.crash(2), policy=("none",)), world.bed(steps=300)
    world.delay(bed, "gang.stop", {"n1": 3600.0})
    _, book = world.run(trial, bed)
    assert UNANSWERED in verdict(trial, book).text


def test_a_fault_that_is_ordered_after_a_loss_does_not_explain_it() -> None:
    trial = world.trial(world.crash(2), crash(1, "f1", "node.exit", 2.0, "pause-node"))
    bed = world.bed(steps=300)
    world.delay(bed, "gang.stop", {"n3": 7.0})
    fail_command(bed, "e0/stop/n1")
    _, book = world.run(trial, bed, {"f1": world.pause(None)})
    assert "f/f1/act" in {event.key for event in book.events if event.type == "invoke"}
    assert UNANSWERED in verdict(trial, book).text


def test_a_node_with_which_a_run_was_resumed_is_lost_anew() -> None:
    """n1 fell silent as planned, and was back when the run was resumed."""
    trial = world.trial(world.crash(1), crash(2, "f1", "run.resumed", 8.0))
    bed, book = world.bed(steps=3000), world.Memory()
    plan = world.plan(trial, {"f0": world.pause(None)})
    world.delay(bed, "gang.stop", {"n3": 4.0})
    world.loop(trial, plan, bed, book, is_interrupted=lambda: "node.silent" in world.names(book)).run()
    drop_response(bed, "e1/stop/n1")
    world.resume(trial, plan, bed, book)
    assert UNANSWERED in verdict(trial, book).text


def test_a_replacement_that_does_not_start_on_a_sound_host_is_not_planned() -> None:
    trial, bed = test_replace.trial(world.crash(2)), test_replace.bed(steps=300)
    world.delay(bed, "node.apply", {"n4": 3600.0})
    book = test_replace.run(trial, bed, test_replace.plan(trial))
    assert "n4 did not carry out node.apply, which was not planned" in verdict(trial, book).text


# --- by chance --------------------------------------------------------------------------------------------------------

ON = ("heal.verified", "recovery.decided", "node.exit", "rank.start", "node.suspect", "gang.stop", "checkpoint.scan")


def some_act(chance: random.Random, kinds: tuple[str, ...]) -> Act | None:
    kind, for_s = chance.choice(kinds), chance.choice([None, 0.8, 1.2, 1.6, 2.5, 4.0])
    if kind == "crash":
        return None
    return world.pause(for_s) if kind == "pause" else world.host_act(kind, for_s=for_s)


def some_trigger(chance: random.Random) -> Trigger:
    return chance.choice(
        [
            Trigger(after_s=chance.uniform(0.2, 6.0)),
            Trigger(on="fault.verified", after_s=chance.uniform(0.01, 4.0)),
            Trigger(on=chance.choice(ON), after_s=chance.uniform(0.0, 3.0), nth=chance.choice([1, 2])),
        ]
    )


def some_run(seed: int, hit: tuple[int, ...] = (0, 1, 2, 3)) -> tuple[Trial, FakeBed, dict[str, Act], random.Random]:
    """One or two faults on nodes of ``hit``, hosts that return at once or late, and agents that respond late."""
    chance = random.Random(seed)
    hosts = chance.choice([world.HOSTS, SHARED, world.ONE_HOST])
    kinds = ("crash", "pause", *(() if hosts is world.ONE_HOST else world.FAULTS))
    acts = [some_act(chance, kinds) for _ in range(chance.choice([1, 2]))]
    faults = [
        FaultPlan(id=f"f{i}", fault="crash-node", node=chance.choice(hit), at=some_trigger(chance) if i else Trigger(step=30))
        for i in range(len(acts))
    ]  # fmt: skip
    policy = chance.choice([("spare", "restart"), ("restart",), ("spare", "shrink")])
    trial = world.trial(*faults, policy=policy, max_restarts=6)
    bed = world.bed(hosts, seed=chance.randrange(10**6), steps=chance.choice([300, 900]))
    bed.cluster.reconnect_s = chance.choice([0.0, 0.5, 1.5, 3.2])
    if chance.random() < 0.4:
        refuse_to_send(bed)
    for f in ("gang.stop", "gang.start"):
        if chance.random() < 0.3:
            world.delay(bed, f, {chance.choice(list(hosts)): chance.choice([0.5, 2.0, 5.0])})
    return trial, bed, {f"f{i}": act for i, act in enumerate(acts) if act}, chance


def ended(trial: Trial, bed: FakeBed, acts: dict[str, Act], chance: random.Random) -> world.Memory:
    """The run with one orchestrator, with a second one after the end of the first, or resumed after an interruption."""
    hosts = {node.name: node.host for node in bed.nodes.values()}
    book, plan = world.Memory(), world.plan(trial, acts, hosts)
    how, length = chance.choice(["through", "killed", "interrupted"]), chance.randrange(60, 200)
    if how == "killed":
        book.limit = length
    stops: dict[str, Any] = {"is_interrupted": lambda: how == "interrupted" and len(book.events) >= length}
    try:
        state = world.loop(trial, plan, bed, book, **stops).run()
    except world.Killed:
        book.limit = None
        world.wait(bed, chance.choice([0.003, 0.5, 3.0]))
        world.resume(trial, plan, bed, book)
    else:
        if state.stage == "suspended":
            world.resume(trial, plan, bed, book)
    return book


@pytest.mark.parametrize("seed", range(60))
def test_whatever_only_planned_faults_do_is_planned(seed: int) -> None:
    trial, bed, acts, chance = some_run(seed)
    book = ended(trial, bed, acts, chance)
    assert (seed, verdict(trial, book).outcome) == (seed, "pass"), verdict(trial, book).text


@pytest.mark.parametrize("seed", range(60))
def test_whatever_else_ends_a_node_is_a_finding(seed: int) -> None:
    """Faults hit n2 and n3; n0 ends by itself while the ranks train, or does not carry out its first stop, if there is one."""
    trial, bed, acts, chance = some_run(seed, hit=(2, 3))
    if chance.random() < 0.5:
        fail_command(bed, "e0/stop/n0")
    else:
        bed.at(chance.uniform(0.1, 0.25), lambda: bed.kill("n0"))
    hosts = {node.name: node.host for node in bed.nodes.values()}
    book = world.Memory()
    world.loop(trial, world.plan(trial, acts, hosts), bed, book).run()
    lost = [
        event for event in book.events if event.f.startswith("recovery.") and "n0" in (event.value.get("lost") or ())
    ]
    assert (seed, verdict(trial, book).outcome) == (seed, "fail" if lost else "pass")
    assert not lost or "n0" in str(verdict(trial, book).evidence)
