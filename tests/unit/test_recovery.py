"""Which spare takes the place of a lost node: hosts that can be trusted first, those that cannot never."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.engine import engine, gang_commands, recovery, shutdown
from orchestrator.core.engine.state import Commands, Ending, State
from orchestrator.model import event as model
from orchestrator.model.event import Clock, Source
from orchestrator.model.events import GangStop, GangStopDone, Gather, NodeApplyDone, RankError
from orchestrator.model.plan import PluginFile
from orchestrator.model.plugin import BUILT_IN
from orchestrator.model.provider import AT_ONCE, FETCH_S, count_waves
from orchestrator.run import collect

from ..sim import world

GONE = {"alive": False, "reachable": False}
SILENT = {"reachable": False}
SUSPECT = {"suspect": True}
CUT_OFF = {"reachable": False, "cut_off": True}


def state(changes: Mapping[str, Mapping[str, bool]], policy: tuple[str, ...] = ("spare", "restart")) -> State:
    trial = world.trial(policy=policy)
    begun, _ = engine.begin(trial, world.plan(trial, hosts=world.HOSTS))
    nodes = {name: replace(node, **dict[str, Any](changes.get(name, {}))) for name, node in begun.nodes.items()}
    return replace(begun, nodes=nodes)


def decided(
    changes: Mapping[str, Mapping[str, bool]], policy: tuple[str, ...] = ("spare", "restart")
) -> tuple[str, str]:
    decision = recovery.decide(world.trial(policy=policy), state(changes, policy))
    return (decision.policies["n2"], decision.slots[2]) if decision.policies else ("refused", decision.refused)


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        pytest.param({"n2": GONE}, "n6", id="an exit alone: the standby of the same host"),
        pytest.param({"n2": GONE, "n6": GONE}, "n4", id="two exits on one host: another host"),
        pytest.param({"n2": SILENT}, "n4", id="silence: another host"),
        pytest.param({"n2": SILENT, "n6": SUSPECT}, "n4", id="silence, and the standby is late too: another host"),
        pytest.param(
            {"n2": GONE, "n4": SUSPECT, "n5": SUSPECT, "n6": GONE},
            "n7",
            id="a spare that beats before one that is late",
        ),
        pytest.param({"n2": GONE, "n6": SUSPECT}, "n4", id="an exit, and the standby is late: another host"),
    ],
)
def test_the_spare(changes: Mapping[str, Mapping[str, bool]], chosen: str) -> None:
    assert decided(changes) == ("spare", chosen)


@pytest.mark.parametrize("standby", [SUSPECT, SILENT, CUT_OFF])
def test_a_standby_on_a_silent_host_is_not_taken_even_if_it_is_the_only_one(standby: Mapping[str, bool]) -> None:
    others = dict.fromkeys(("n4", "n5", "n7", "n8"), GONE)
    assert decided({"n2": SILENT, "n6": standby, **others}, ("spare",))[0] == "refused"


def test_a_standby_that_beats_beside_a_silent_node_shows_that_the_host_is_there() -> None:
    others = dict.fromkeys(("n4", "n5", "n7", "n8"), GONE)
    assert decided({"n2": SILENT, **others}, ("spare",)) == ("spare", "n6")


def test_a_restart_is_the_last_resort_on_a_silent_host_and_the_first_choice_on_one_that_answers() -> None:
    assert decided({"n2": CUT_OFF}, ("restart", "spare")) == ("spare", "n4")
    assert decided({"n2": CUT_OFF}, ("restart",)) == ("restart", "n2")
    assert decided({"n2": GONE}, ("restart", "spare")) == ("restart", "n2")


@pytest.mark.parametrize(("workload", "backend", "source", "accepts"), [
    ("train-dp", "gloo", BUILT_IN, True), ("script", "gloo", BUILT_IN, None), ("train-dp", "nccl", BUILT_IN, None),
    ("collective", "gloo", BUILT_IN, None), ("node-probe", "gloo", BUILT_IN, None), ("moe-a2a", "gloo", BUILT_IN, None),
    ("mine", "gloo", "plugins/workloads/mine.py", None), ("train-dp", "gloo", "plugins/workloads/train_dp.py", None),
])  # fmt: skip
def test_only_small_ranks_without_a_gpu_may_still_be_exiting_when_the_next_attempt_begins(
    workload: str, backend: str, source: str, accepts: bool | None
) -> None:
    """A plugin may use a GPU under gloo, and other workloads have buffers of any size."""
    trial, begun = replace(world.trial(policy=("spare",)), workload=workload), state({"n2": GONE})
    plugin = PluginFile(name=workload, sha256="", source=source)
    begun = replace(begun, plan=replace(begun.plan, backend=backend, workload=plugin))
    _, between = gang_commands.stop(trial, begun)
    _, final = shutdown.close(trial, begun, Ending(outcome="finished"))
    assert {order.data.accepts_exiting for order in between if order.kind is GangStop} == {accepts}
    assert {order.data.accepts_exiting for order in final if order.kind is GangStop} == {None}, (
        "the final count is complete"
    )


def test_a_node_that_was_started_later_can_be_started_again() -> None:
    before = replace(state({"n2": GONE}), unrestartable={"n2": "node.apply failed: no reply", "n3": "too old"})
    own = Source(writer="keeper", n=1, node="n2", incarnation="n2-2")
    done = model.event(
        NodeApplyDone(incarnation="n2-2", ordinal=2, pid=2), at=Clock(boot="b", mono=0.0, wall=0.0), source=own, key="k", node="n2",
    )  # fmt: skip
    after = gang_commands.with_applied_node(before, done)
    assert after.usable("n2")
    assert dict(after.unrestartable) == {"n3": "too old"}


def test_a_node_whose_heartbeat_goes_on_has_the_whole_time_to_end_its_ranks() -> None:
    """A node that was silent and is heard again is not restarted because it is slow; one that stays silent delays no end."""
    begun = state({"n1": SILENT, "n2": {**SILENT, **SUSPECT}, "n3": SUSPECT})
    closed, stops = shutdown.close(world.trial(), begun, Ending(outcome="finished"))
    assert {order.node: order.deadline_s for order in stops} == {"n0": 60.0, "n3": 60.0}
    quiet: Commands = ()
    for order in stops:
        done = model.event(
            GangStopDone(left=0), at=Clock(boot="b", mono=0.0, wall=0.0), key=order.key, node=order.node,
            source=Source(writer="agent", n=1), type="ok",
        )  # fmt: skip
        closed, quiet = shutdown.on_response(world.trial(), closed, done)
    assert {order.node: order.deadline_s for order in quiet if order.kind is GangStop} == {"n1": 60.0, "n2": 5.0}


@pytest.mark.parametrize(("count", "deadline_s"), [(4, 60.0), (AT_ONCE, 60.0), (AT_ONCE + 1, 120.0), (1024, 960.0)])
def test_the_deadline_of_a_gather_is_longer_than_its_limit_however_many_nodes_there_are(
    count: int, deadline_s: float
) -> None:
    """A gather of more than 64 nodes may take longer than 60 s, and must not fail the check no-hang."""
    trial = world.trial()
    begun, _ = engine.begin(trial, world.plan(trial, hosts={f"n{n}": "here" for n in range(count)}))
    closing = replace(begun, ending=Ending(outcome="finished", at="restore"))
    (order,) = [order for order in shutdown._gather(trial, closing)[1] if order.kind is Gather]
    assert order.deadline_s == deadline_s
    assert inspect.signature(collect.gather).parameters["patience_s"].default == FETCH_S
    assert FETCH_S * count_waves(count) < deadline_s


@pytest.mark.parametrize(("lost_at", "kind"), [
    pytest.param({"n2": 5.5}, "infrastructure", id="lost with the rank"),
    pytest.param({}, "infrastructure", id="given up by time, so nobody knows when it was lost"),
    pytest.param({"n2": 9.0}, "finding", id="lost later"),
])  # fmt: skip
def test_a_rank_that_failed_is_the_root_cause_only_if_no_node_can_have_been_lost_before(
    lost_at: Mapping[str, float], kind: str
) -> None:
    failed = replace(state({"n2": {**SILENT, **SUSPECT}}), failed=frozenset({2}), failed_at=5.0, lost_at=lost_at)
    ending = recovery.defeat(failed, ("n2",), recovery.Decision(refused="the recovery policy is none"))
    assert ending.kind == kind
    assert ending.reason.startswith("lost n2" if kind == "infrastructure" else "rank 2 failed; then n2 was lost")


@pytest.mark.parametrize(
    ("kind", "best_step", "is_hopeless"),
    [("NameError", 0, True), ("ModuleNotFoundError", 0, True), ("NameError", 5, False), ("RuntimeError", 0, False)],
)
def test_a_script_that_is_broken_from_its_first_line_is_not_started_again(
    kind: str, best_step: int, is_hopeless: bool
) -> None:
    error = RankError(rank=0, kind=kind, message="no luck")
    after = recovery.with_hopeless_error(replace(state({}), best_step=best_step), error)
    reason = f"{kind} before the first step: a restart would end in the same way"
    assert recovery.decide(world.trial(), after).refused == (reason if is_hopeless else "")
    assert not after.unfit, "the hosts are not to blame"
