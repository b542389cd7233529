"""What planned-faults-only says of nodes that exit, fall silent, or are given up: limits, and what a fault explains."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.model.trial import FaultPlan, Trigger

from . import history
from .verdicts import ask

EPSILON = 1e-6


@pytest.mark.parametrize(
    ("limit", "difference", "outcome"),
    [("ordered", -EPSILON, "fail"), ("ordered", EPSILON, "pass"), ("healed", -EPSILON, "pass"), ("healed", EPSILON, "fail")],
)  # fmt: skip
def test_a_silence_belongs_to_a_healed_fault_from_its_order_to_its_heal_and_lost_s_around(
    limit: str, difference: float, outcome: str
) -> None:
    fault = FaultPlan(id="f0", fault="pause-node", node=1, at=Trigger(step=30))
    bed = history.acted(fault)
    bed._heal(fault, [])
    ordered = next(event for event in bed.events if event.f == "fault.act" and event.type == "invoke")
    healed = next(event for event in bed.events if event.f == "fault.heal" and event.type == "ok")
    lost_s = bed.trial.liveness.lost_s
    began_s = difference + (ordered.t - lost_s if limit == "ordered" else healed.t + lost_s)
    bed.now += 10.0
    silent = bed.ctl("node.silent", {}, node="n1")
    bed.events[-1] = dataclasses.replace(silent, value={"silent_s": silent.t - began_s})
    bed.ctl("run.end", {"outcome": "finished", "reason": "", "kind": ""})
    assert ask(bed.run(), "planned-faults-only").outcome == outcome


@pytest.mark.parametrize(
    ("suspicion", "has_settled", "outcome"),
    [
        (("node.suspect",), True, "pass"),
        (("node.suspect",), False, "fail"),
        (("node.suspect", "node.heard"), True, "fail"),
        (("node.suspect", "node.heard", "node.suspect"), True, "pass"),
        ((), True, "fail"),
    ],
)
def test_a_node_is_given_up_without_its_exit_or_silence_only_as_a_suspect_whose_gang_had_its_time_to_stop(
    suspicion: tuple[str, ...], has_settled: bool, outcome: str
) -> None:
    """The peers of a node without power fail before its silence counts as a loss."""
    fault = FaultPlan(id="f0", fault="pause-node", node=1, at=Trigger(step=30))
    bed = history.acted(fault)
    for name in suspicion:
        bed.ctl(name, {"silent_s": 1.0}, node="n1")
    bed.say("agent", "rank.exit", {"rank": 0, "pid": 1, "code": 1, "last_step": 29}, node="n0", epoch=0)
    bed.stop(lost=["n1"])
    if has_settled:
        bed.ask("timer", "e0/settle", "", {"after_s": 3.0})
        bed.answer("ctl", "timer", "e0/settle", "", {})
    bed.recover("n1", "restart", 25, detector="rank.exit")
    bed.train(60)
    bed.finish()
    assert ask(bed.run(history.twin()), "planned-faults-only").outcome == outcome


@pytest.mark.parametrize("fault", ["crash-node", "pause-node", "crash-rank"])
@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_node_that_was_given_up_was_hit_itself(fault: str, node: str) -> None:
    """A fault of n1 explains nothing of n2, and the crash of a rank no silence of its node."""
    bed = history.acted(FaultPlan(id="f0", fault=fault, node=1, at=Trigger(step=30)))
    bed.say("agent", "rank.exit", {"rank": 1, "pid": 101, "code": -9}, node="n1", epoch=0)
    bed.ctl("node.suspect", {"silent_s": 1.0}, node=node)
    bed.stop(lost=[node])
    bed.ask("timer", "e0/settle", "", {"after_s": 3.0})
    bed.answer("ctl", "timer", "e0/settle", "", {})
    bed.recover(node, "restart", 25, detector="rank.exit")
    bed.train(60)
    bed.finish()
    verdict = ask(bed.run(history.twin()), "planned-faults-only")
    assert verdict.outcome == ("pass" if node == "n1" and fault != "crash-rank" else "fail")
    assert verdict.outcome == "pass" or f"{node} fell silent, which was not planned" in verdict.text


def test_a_suspicion_ends_with_the_incarnation_of_its_node() -> None:
    bed = history.acted(FaultPlan(id="f0", fault="pause-node", node=1, at=Trigger(step=30)))
    bed.ctl("node.suspect", {"silent_s": 1.0}, node="n1")
    bed.do("keeper", "node.apply", "e0/apply/n1", "n1", {"pid": 7})
    bed.stop(lost=["n1"])
    bed.ask("timer", "e0/settle", "", {"after_s": 3.0})
    bed.answer("ctl", "timer", "e0/settle", "", {})
    bed.recover("n1", "restart", 25, detector="rank.exit")
    bed.train(60)
    bed.finish()
    assert ask(bed.run(history.twin()), "planned-faults-only").outcome == "fail"


def with_a_failed_command(fault: str, f: str, node: str, *, healed: bool = False) -> history.Bed:
    """A fault on n1, and the command ``f`` to ``node`` without a reply: the node counts as lost."""
    planned = FaultPlan(id="f0", fault=fault, node=1, at=Trigger(step=30))
    bed = history.acted(planned)
    if healed:
        bed._heal(planned, [])
        bed.now += bed.trial.liveness.lost_s + 1.0
    bed.say("agent", "rank.exit", {"rank": 1, "pid": 101, "code": -9}, node="n1", epoch=0)
    bed.ask(f, f"e0/again/{node}", node, {"epoch": 0})
    bed.ctl(f, {"reason": "no reply within 5 s"}, type="info", key=f"e0/again/{node}", node=node, epoch=0)
    bed.stop(lost=[node])
    bed.recover(node, "restart", 25, detector="rank.exit")
    bed.train(60)
    bed.finish(healing=not healed)
    return bed


@pytest.mark.parametrize("f", ["gang.stop", "gang.start"])
@pytest.mark.parametrize("fault", ["crash-node", "pause-node", "crash-rank"])
@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_node_that_is_lost_for_a_failed_command_was_hit_itself(f: str, fault: str, node: str) -> None:
    verdict = ask(with_a_failed_command(fault, f, node).run(history.twin()), "planned-faults-only")
    assert verdict.outcome == ("pass" if node == "n1" and fault != "crash-rank" else "fail")
    assert verdict.outcome == "pass" or f"{node} did not carry out {f}, which was not planned" in verdict.text


def test_a_command_that_fails_long_after_the_heal_is_explained_by_nothing() -> None:
    bed = with_a_failed_command("pause-node", "gang.stop", "n1", healed=True)
    assert ask(bed.run(history.twin()), "planned-faults-only").outcome == "fail"


def test_the_loss_before_its_last_start_does_not_show_a_node_as_lost() -> None:
    """n2 crashed as planned and came back; then its agent does not stop the ranks of the next attempt."""
    bed = history.bed_at_fault("restart")
    bed.say("agent", "rank.exit", {"rank": 0, "pid": 100, "code": -9}, node="n0", epoch=1)
    bed.ask("gang.stop", "e1/stop/n2", "n2", {"epoch": 1})
    bed.ctl("gang.stop", {"reason": "no reply within 5 s"}, type="info", key="e1/stop/n2", node="n2", epoch=1)
    bed.stop(lost=["n2"])
    bed.recover("n2", "restart", 25, detector="rank.exit")
    bed.train(60)
    bed.finish()
    verdict = ask(bed.run(history.twin()), "planned-faults-only")
    assert "n2 did not carry out gang.stop, which was not planned" in str(verdict.evidence)


def lose(bed: history.Bed, how: str) -> None:
    """n1 is lost; ``how``: the report, or the command without a reply, that shows it."""
    if how == "node.silent":
        bed.ctl("node.silent", {"silent_s": 2.0}, node="n1")
    else:
        bed.say("agent", "rank.exit", {"rank": 1, "pid": 101, "code": 1}, node="n1", epoch=bed.epoch)
        bed.ask("gang.stop", f"e{bed.epoch}/again/n1", "n1", {"epoch": bed.epoch})
        about: dict[str, Any] = {"key": f"e{bed.epoch}/again/n1", "node": "n1", "epoch": bed.epoch}
        bed.ctl("gang.stop", {"reason": "no reply within 60 s"}, type="info", **about)
    bed.stop(lost=["n1"])


def judged(bed: history.Bed, *, healing: bool = False) -> tuple[str, bool]:
    """A spare takes the place of n1: the outcome, and whether the loss of n1 is a finding."""
    bed.recover("n1", "spare", 25, detector="rank.exit")
    bed.train(60)
    bed.finish(healing=healing)
    verdict = ask(bed.run(history.twin()), "planned-faults-only")
    losses = ("n1 exited", "n1 fell silent", "n1 did not carry out gang.stop")
    return verdict.outcome, any(f"{loss}, which was not planned" in str(verdict.evidence) for loss in losses)


FAIL, PASS = ("fail", True), ("pass", False)
LOSSES = ["node.silent", "gang.stop"]


@pytest.mark.parametrize("how", LOSSES)
def test_a_rank_that_exits_under_a_fault_does_not_keep_its_node_damaged_after_the_heal(how: str) -> None:
    fault = FaultPlan(id="f0", fault="pause-node", node=1, at=Trigger(step=30))
    bed = history.acted(fault)
    bed.say("agent", "rank.exit", {"rank": 1, "pid": 101, "code": -9}, node="n1", epoch=0)
    bed._heal(fault, [])
    bed.now += 100.0
    lose(bed, how)
    assert judged(bed) == FAIL


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize(("first", "outcome"), [("slow-node", PASS), (None, FAIL)])
def test_the_heal_of_one_fault_leaves_the_damage_of_another(
    first: str | None, outcome: tuple[str, bool], how: str
) -> None:
    """n1 is slow until the end; a pause of it ends, and ten seconds later n1 is lost."""
    slow = [FaultPlan(id="f0", fault=first, node=1, at=Trigger(step=30))] if first else []
    pause = FaultPlan(id="f1", fault="pause-node", node=1, at=Trigger(step=30))
    bed = history.Bed(trial=history.trial(*slow, pause))
    bed.begin()
    bed.start()
    bed.train(29)
    for fault in (*slow, pause):
        bed.act(fault)
        bed.answer("keeper", "fault.act", f"f/{fault.id}/act", "n1", {"verified": True})
    bed._heal(pause, [])
    bed.now += 10.0
    lose(bed, how)
    assert judged(bed) == outcome


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize(("fault", "outcome"), [("slow-node", PASS), ("pause-node", FAIL)])
def test_a_fault_that_slows_a_node_lasts_when_it_is_started_again_and_a_pause_ends(
    fault: str, outcome: tuple[str, bool], how: str
) -> None:
    bed = history.acted(FaultPlan(id="f0", fault=fault, node=1, at=Trigger(step=30)))
    lose(bed, "node.silent")
    bed.recover("n1", "restart", 25, detector="node.silent")
    bed.train(40)
    lose(bed, how)
    assert judged(bed, healing=True) == outcome


@pytest.mark.parametrize(("since_heal_s", "outcome"), [(-EPSILON, PASS), (EPSILON, FAIL)])
def test_an_exit_that_is_reported_after_the_heal_happened_before_it(
    since_heal_s: float, outcome: tuple[str, bool]
) -> None:
    """A keeper that was gone with its host reports late."""
    fault = history.crash_at(30, node=1)
    bed = history.acted(fault)
    bed._heal(fault, [])
    healed = next(event for event in bed.events if event.f == "fault.heal" and event.type == "ok")
    reported = bed.say("keeper", "node.exit", {"code": -9, "pid": 7}, node="n1", epoch=0)
    bed.events[-1] = dataclasses.replace(reported, t=healed.t + since_heal_s)
    bed.stop(lost=["n1"])
    assert judged(bed) == outcome
