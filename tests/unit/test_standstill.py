"""A script that stands still: when it is inspected, and what the inspection shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.engine import engine, liveness, standstill
from orchestrator.core.engine.state import FaultState, Inspection, State
from orchestrator.faults import hang_rank
from orchestrator.model.act import HostFacts, Target
from orchestrator.model.event import Clock, Event, Source, event
from orchestrator.model.events import (
    CommandFailed,
    GangBusy,
    GangInspectDone,
    GangJoining,
    GangQuiet,
    GangStalled,
    Note,
    RankJoining,
)
from orchestrator.model.trial import Liveness

from ..sim import world
from . import history

LOAD = ("/usr/lib/python3.11/threading.py:320 wait", "/job/train.py:14 load", "/job/train.py:40 <module>")
REDUCE = ("/x/site-packages/torch/distributed/distributed_c10d.py:2900 all_reduce", "/job/train.py:20 step")
BACKWARD = ("/x/site-packages/torch/autograd/graph.py:829 _engine_run_backward", "/job/train.py:21 step")


def _done(stacks: dict[int, tuple[str, ...]], cpu_s: dict[int, float] | None = None, **states: str) -> GangInspectDone:
    return GangInspectDone(
        window_s=1.0, cpu_s={str(rank): (cpu_s or {}).get(rank, 0.0) for rank in stacks}, bytes=dict.fromkeys(map(str, stacks), 0),
        states={str(rank): states.get(f"r{rank}", "S") for rank in stacks}, stacks={str(rank): stacks[rank] for rank in stacks},
    )  # fmt: skip


def _decide(quiet: GangQuiet, *replies: GangInspectDone | None, faults: tuple[FaultState, ...] = ()) -> Any:
    """The payload of the note that follows the replies of the nodes; None: a node did not respond."""
    keys = [f"key{number}" for number in range(len(replies))]
    inspection = Inspection(quiet=quiet, awaited=frozenset(keys))
    state: State = replace(_running(), inspection=inspection, inspections=1)
    spin = hang_rank.plan(hang_rank.Params(how="spinning"), Target(node="n1", rank=1), FACTS)
    acts = {f"f{number}": {fault.node: spin} for number, fault in enumerate(faults)}
    state = replace(state, plan=replace(state.plan, acts=acts), faults=dict(zip(acts, faults, strict=True)))
    commands: Any = ()
    for key, reply in zip(keys, replies, strict=True):
        state, commands = standstill.on_inspected(history.trial(workload="script"), state, _reply(key, reply))
    (order,) = commands
    assert isinstance(order.data, Note) and state.inspection is None
    return {GangBusy.NAME: GangBusy, GangStalled.NAME: GangStalled}[order.data.f](**order.data.value)


def _running() -> State:
    trial = history.trial(workload="script")
    state, _ = engine.begin(trial, world.plan(trial))
    return replace(state, stage="run")


def _reply(key: str, reply: GangInspectDone | None) -> Event[Any]:
    at, source = Clock(boot="b", mono=1.0, wall=1.0), Source(writer="agent", n=1)
    if reply is None:
        return event(CommandFailed(reason="no reply"), at=at, source=source, type="info", f="gang.inspect", key=key)
    return event(reply, at=at, source=source, type="ok", key=key)


FACTS = HostFacts(name="h", provider="process", capabilities=frozenset())
QUIET = GangQuiet(since_s=31.0, limit_s=30.0)


def test_the_rank_outside_of_the_collective_is_the_culprit() -> None:
    report = _decide(QUIET, _done({0: REDUCE, 2: REDUCE}), _done({1: LOAD}))
    assert isinstance(report, GangStalled)
    assert report.culprit == 1
    text = "no step for 31 s: rank 1 is at train.py:14 (load), in no collective; ranks 0 and 2 wait for peers at train.py:20 (step)"
    assert report.reason == text


def test_ranks_in_different_collectives_are_told_apart_the_smallest_group_first() -> None:
    """No rank is blamed: one that has gone on to the next collective looks the same as one that left the common way."""
    report = _decide(QUIET, _done({0: REDUCE, 1: BACKWARD}), _done({2: BACKWARD}))
    places = "rank 0 in all_reduce at train.py:20, ranks 1 and 2 in backward at train.py:21"
    assert report.reason == f"no step for 31 s: ranks wait in different collectives: {places}"
    assert report.culprit is None


def test_a_stopped_rank_is_named() -> None:
    report = _decide(QUIET, _done({0: BACKWARD, 1: ()}, r1="T"))
    assert (report.culprit, "rank 1 is stopped by a signal" in report.reason) == (1, True)


def test_ranks_that_have_left_while_others_wait_are_named() -> None:
    report = _decide(replace(QUIET, left=(2,)), _done({0: REDUCE, 1: REDUCE}))
    assert report.culprit == 2
    assert report.reason.startswith(
        "the worker group stands still for 31 s: rank 2 has left; ranks 0 and 1 wait for peers"
    )


def test_if_all_wait_no_rank_is_the_culprit() -> None:
    assert _decide(QUIET, _done({0: REDUCE, 1: BACKWARD})).culprit is None


@pytest.mark.parametrize(
    "replies", [(_done({0: REDUCE, 1: ()}, {1: 0.9}),), (_done({0: REDUCE}), None)], ids=["busy", "unknown"]
)
def test_a_script_whose_ranks_work_or_are_not_known_has_not_stalled(
    replies: tuple[GangInspectDone | None, ...],
) -> None:
    assert isinstance(_decide(QUIET, *replies), GangBusy)


def test_a_rank_that_a_fault_lets_spin_has_stalled_whatever_cpu_it_uses() -> None:
    working = _done({0: (), 1: (), 2: (), 3: ()}, {1: 1.0})
    fault = FaultState(stage="acted", node="n1", epoch=0)
    report = _decide(QUIET, working, faults=(fault,))
    assert isinstance(report, GangStalled)
    assert (report.culprit, report.reason) == (
        1, "no step for 31 s: rank 1 uses its CPU and makes no step; the others wait",
    )  # fmt: skip
    assert isinstance(_decide(QUIET, working, faults=(replace(fault, stage="planned"),)), GangBusy)
    others = _decide(QUIET, _done({0: (), 1: (), 2: ()}, {1: 1.0, 2: 1.0}), faults=(fault,))
    assert isinstance(others, GangBusy) and list(others.ranks or ()) == [2], "another rank may evaluate meanwhile"


def test_ranks_that_work_have_stalled_once_their_peers_have_waited_as_long_as_nccl_does() -> None:
    long = replace(QUIET, since_s=601.0)
    report = _decide(long, _done({0: (), 1: ()}, {1: 1.0}))
    assert isinstance(report, GangStalled) and report.culprit == 1
    assert isinstance(_decide(long, _done({0: (), 1: ()}, {0: 1.0, 1: 1.0})), GangBusy), "nobody waits"


@pytest.mark.parametrize(("cpu_s", "kind"), [(0.09, GangStalled), (0.1, GangBusy)])
def test_what_counts_as_work_is_the_cpu_time_of_a_second(cpu_s: float, kind: type) -> None:
    reply = replace(_done({0: LOAD}, {0: cpu_s}), window_s=5.0)
    assert isinstance(_decide(QUIET, reply), kind)


def test_the_limit_that_a_user_has_set_counts_while_ranks_work() -> None:
    report = _decide(replace(QUIET, is_strict=True), _done({0: REDUCE, 1: LOAD}, {1: 1.0}))
    assert isinstance(report, GangStalled)
    assert report.culprit == 1


def test_a_script_is_quiet_after_30_seconds_or_20_steps_and_never_without_a_sign_of_steps() -> None:
    limits, pace = Liveness(), liveness.Pace()
    assert liveness.quiet(pace, 1000.0, limits, None) is None
    pace = liveness.advance(liveness.advance(pace, 1, 10.0), 2, 10.1)
    assert liveness.quiet(pace, 40.0, limits, None) is None
    assert liveness.quiet(pace, 40.2, limits, None) == GangQuiet(since_s=30.1, limit_s=30.0)
    slow = liveness.advance(liveness.advance(liveness.Pace(), 1, 10.0), 2, 20.0)
    assert liveness.quiet(slow, 219.0, limits, None) is None
    assert liveness.quiet(slow, 221.0, limits, None) is not None
    assert liveness.quiet(slow, 26.0, limits, 5.0) == GangQuiet(since_s=6.0, limit_s=5.0, is_strict=True)


def test_a_rank_that_reports_seldom_is_not_quiet_between_two_reports() -> None:
    limits, pace = Liveness(), liveness.advance(liveness.Pace(), 1, 10.0, pause_s=10.0)
    assert liveness.quiet(pace, 49.0, limits, None) is None
    assert liveness.quiet(pace, 51.0, limits, None) == GangQuiet(since_s=31.0, limit_s=30.0)
    assert liveness.quiet(pace, 24.0, limits, 5.0) is None
    often = liveness.advance(pace, 2, 20.0)
    assert liveness.quiet(often, 26.0, limits, 5.0) is not None


def test_before_the_first_step_only_the_limit_that_a_user_has_set_counts() -> None:
    pace = liveness.started(liveness.Pace(), 10.0)
    assert liveness.quiet(pace, 1000.0, Liveness(), None) is None
    assert liveness.quiet(pace, 14.0, Liveness(), 5.0) is None
    assert liveness.quiet(pace, 16.0, Liveness(), 5.0) == GangQuiet(since_s=6.0, limit_s=5.0, is_strict=True)
    assert liveness.quiet(liveness.advance(pace, 1, 14.0), 16.0, Liveness(), 5.0) is None
    assert liveness.quiet(liveness.advance(pace, 1, 14.0), 20.0, Liveness(), 5.0) is not None


def test_after_an_inspection_the_next_one_waits_longer_until_a_step_is_done() -> None:
    limits = Liveness()
    pace = liveness.Pace()
    for step in range(1, 6):
        pace = liveness.advance(pace, step, 0.1 * step)
    pace = liveness.inspected(pace)
    assert liveness.quiet(pace, 45.0, limits, None) is None
    assert liveness.quiet(pace, 61.0, limits, None) is not None
    assert liveness.quiet(liveness.advance(pace, 6, 61.0), 92.0, limits, None) is not None


def test_ranks_that_left_count_without_steps() -> None:
    pace = liveness.with_exit(liveness.Pace(), 1, 5.0)
    assert liveness.quiet(pace, 36.0, Liveness(), None) == GangQuiet(since_s=31.0, limit_s=30.0, left=(1,))


def test_a_rank_without_a_stack_is_named_with_the_reason() -> None:
    replies = (replace(_done({0: REDUCE, 1: ()}), no_stack={"1": "it blocks signal 58"}), _done({2: LOAD}))
    assert "; no stack of rank 1: it blocks signal 58" in _decide(QUIET, *replies).reason


JOINING = replace(QUIET, is_joining=True)


def _waits(joining: dict[int, RankJoining], **fields: Any) -> Any:
    """The note on ranks of which not all have joined, or None."""
    state = replace(_running(), **{"stage": "start", "joining": joining, "store": ("127.0.0.1", 41463), **fields})
    quiet = event(JOINING, at=Clock(boot="b", mono=1.0, wall=1.0), source=Source(writer="ctl", n=1), epoch=0)
    state, commands = standstill.on_quiet(history.trial(workload="script"), state, quiet)
    assert state.inspection is None, "a signal would interrupt torch's search for the store"
    return GangJoining(**commands[0].data.value) if commands else None


def _call(rank: int, **fields: Any) -> RankJoining:
    return RankJoining(rank=rank, **{"number": rank, "world": 4, "store": "127.0.0.1:41463", **fields})


def test_ranks_that_do_not_meet_are_told_where_they_wait_and_what_keeps_them_apart() -> None:
    calls = {rank: _call(rank) for rank in range(3)}
    head = "0 of 4 ranks have joined after 31 s: ranks 0, 1 and 2 wait in init_process_group; rank 3 has not called it"
    assert _waits(calls).reason == head
    ports = {rank: _call(rank, store="localhost:29500") for rank in range(3)}
    where = "ranks 0, 1 and 2 look for the store at localhost:29500; that of the bed has port 41463 (MASTER_ADDR, MASTER_PORT)"
    assert _waits(ports).reason == f"{head}; {where}"
    zeros = {rank: _call(rank, number=0) for rank in range(4)}
    assert (
        "ranks 0, 1, 2 and 3 join as rank 0: the script takes its rank from something else than RANK"
        in _waits(zeros).reason
    )
    sizes = {rank: _call(rank, world=8) for rank in range(4)}
    assert "join a group of 8; there are 4 ranks (WORLD_SIZE)" in _waits(sizes).reason
    assert _waits({0: RankJoining(rank=0)}).reason.startswith("0 of 4 ranks have joined after 31 s: rank 0 waits"), (
        "its own store"
    )


def test_ranks_that_wait_for_nobody_are_left_alone() -> None:
    assert _waits({}) is None, "a script may join no group"
    assert _waits({0: _call(0)}, stage="run") is None, "all of them have joined"


def test_ranks_have_30_seconds_to_join_until_a_step_is_done_or_one_has_left() -> None:
    pace = liveness.started(liveness.Pace(), 10.0)
    assert liveness.unjoined(liveness.Pace(), 100.0) is None
    assert liveness.unjoined(pace, 39.0) is None
    assert liveness.unjoined(pace, 41.0) == GangQuiet(since_s=31.0, limit_s=30.0, is_joining=True)
    assert liveness.unjoined(liveness.inspected(pace), 41.0) is None
    assert liveness.unjoined(liveness.advance(pace, 1, 11.0), 41.0) is None
    assert liveness.unjoined(liveness.with_exit(pace, 0, 11.0), 41.0) is None
