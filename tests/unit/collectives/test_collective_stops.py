"""Ranks that record when they did not run: stopped throughout or once; what stays of links, and what is not known."""

from __future__ import annotations

import dataclasses
import re

import pytest

from orchestrator.collectives import sections
from orchestrator.collectives import views as collectives
from orchestrator.collectives.views import experiment, finding_text, gaps, repeated_delays
from orchestrator.collectives.views.samples import Spans
from orchestrator.model import algorithm
from orchestrator.model.run import StepRecord

from .. import simulated
from ..simulated import Gang
from . import collective_runs
from .test_collective_stragglers import ALGORITHMS, MAKERS, RINGS, catalogue, lasts, measured, slow

np = pytest.importorskip("numpy")
HALF = (0.05, 0.05)


def names(result: collectives.Measured) -> list[int]:
    return [stop.rank for stop in result.stragglers.stopped]


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("name", ["ring all-reduce", "ring all-gather", "binomial tree"])
def test_a_rank_that_is_stopped_half_of_the_time_is_named_and_no_link(name: str, rank: int) -> None:
    result = measured(Gang(schedules=MAKERS[name](), naps={rank: HALF}, watched=True), iterations=30)
    assert names(result) == [rank]
    assert result.stragglers.stopped[0].share == pytest.approx(0.5, abs=0.15)
    assert result.stragglers.links == ()
    assert f"n{rank} did not run for" in finding_text.straggler(result)


def test_unwatched_ranks_are_not_named_but_the_time_is_called_unexplained() -> None:
    """Without records of the ranks themselves nothing proves that a process did not run."""
    part = collective_runs.Part(
        operation="all-reduce", algorithm="ring", bytes=971_048, iterations=30, cost=(6, 1.5),
        gang=Gang(schedules=MAKERS["ring all-reduce"](), naps={2: HALF}),
    )  # fmt: skip
    result = collectives.measured(collective_runs.run([part]))
    assert result is not None and result.stragglers.stopped == ()
    text = finding_text.straggler(result)
    assert "as long as its model, which counts the links alone; ranks did not run for 0 % of the critical paths" in text


@pytest.mark.parametrize("name", MAKERS)
def test_watched_ranks_that_run_are_not_named(name: str) -> None:
    result = measured(Gang(schedules=MAKERS[name](), watched=True), iterations=30, cases=2)
    assert not result.stragglers
    outcome = "not known: ranks with different work" if "tree" in name else "none"
    assert finding_text.straggler(result).startswith(outcome)


@pytest.mark.parametrize(
    ("iterations", "recorded", "reason"),
    [(2, True, "needs 5 or more iterations (got 2)"), (30, False, "no transfers were recorded")],
)
def test_where_no_late_rank_could_be_found_it_is_not_known_whether_there_is_one(
    iterations: int, recorded: bool, reason: str
) -> None:
    part = collective_runs.Part(
        operation="all-reduce", algorithm="ring", bytes=971_048, iterations=iterations, recorded=recorded,
        gang=Gang(schedules=MAKERS["ring all-reduce"](), drowsy={2: 0.01}),
    )  # fmt: skip
    run = collective_runs.run([part, dataclasses.replace(part, bytes=971_052)])
    result = collectives.measured(run)
    assert result is not None and finding_text.straggler(result) == f"not known: {reason}"
    assert ("straggler", f"not known ({reason})") in list(sections.pairs_of(run))
    whole = dataclasses.replace(part, iterations=30, recorded=True)
    known = collectives.measured(collective_runs.run([whole, dataclasses.replace(whole, bytes=971_052)]))
    assert known is not None and "n2 is late repeatedly" in finding_text.straggler(known), "the control"


def test_equally_stopped_ranks_name_nobody() -> None:
    gang = Gang(schedules=MAKERS["ring all-reduce"](), naps=dict.fromkeys(range(4), HALF), watched=True)
    assert not measured(gang, iterations=30, cases=2).stragglers


@pytest.mark.parametrize("name", RINGS)
def test_a_stop_in_one_iteration_is_known_from_the_ranks_own_record(name: str) -> None:
    gang = Gang(schedules=MAKERS[name](), stops={4: (1, 0.4 * lasts(name), 1.0)}, watched=True)
    result = measured(gang)
    assert slow(result, 4).stopped == 1
    (stop,) = result.stragglers.stopped
    assert stop.rank == 1 and stop.longest_s == pytest.approx(1.0, abs=0.1), "no chance stops a process"
    assert "n1 did not run for" in finding_text.straggler(result)


@pytest.mark.parametrize("world", [3, 4, 5, 8])
@pytest.mark.parametrize("factor", [0.5, 0.7])
def test_a_slow_link_of_watched_ranks_is_named_in_its_direction(world: int, factor: float) -> None:
    gang = Gang(schedules=simulated.ring(world, 971_048), slow={(1, 2): factor}, watched=True)
    result = measured(gang, iterations=20, cases=2)
    assert [(link.sender, link.receiver) for link in result.stragglers.links] == [(1, 2)]
    assert result.stragglers.stopped == ()


def test_both_slow_links_of_a_node_are_named() -> None:
    gang = Gang(schedules=simulated.ring(5, 971_048), slow={(1, 2): 0.5, (2, 3): 0.5}, watched=True)
    result = measured(gang, iterations=20, cases=2)
    assert "every link of n2 is slow" in finding_text.straggler(result)


def test_a_node_that_sends_slowly_to_several_peers_is_named_as_sending_slowly() -> None:
    gang = Gang(schedules=simulated.ring(4, 971_048), slow={(1, 2): 0.5}, watched=True)
    result = measured(gang, iterations=20, cases=2)
    (link,) = result.stragglers.links
    several = dataclasses.replace(result.stragglers, links=(link, dataclasses.replace(link, receiver=3)))
    text = finding_text.straggler(dataclasses.replace(result, stragglers=several))
    assert re.match(r"n1 sends slowly: 7\d\.?\d* of 140 Mbit/s in 2 of 2 cases", text), text


@pytest.mark.parametrize("link", [(0, 1), (3, 1), (5, 1), (1, 5)])
@pytest.mark.parametrize("name", ["recursive doubling", "ring of eight"])
def test_links_that_are_slow_in_one_round_accuse_no_other_link(name: str, link: tuple[int, int]) -> None:
    """A message that arrives before its late receiver reaches it has no known time: others are not slow beside it."""
    result = measured(Gang(schedules=MAKERS[name](), slow={link: 0.4}, watched=True), iterations=20, cases=2)
    assert {(slow.sender, slow.receiver) for slow in result.stragglers.links} <= {link}
    assert result.stragglers.stopped == ()


def test_waiting_for_a_cpu_that_the_nodes_share_names_nobody() -> None:
    """Rank 1 waits for a CPU half of the time; where it has its host to itself, that is its own."""
    begin = np.arange(30.0)[:, None] + np.zeros((1, 4))
    spans = Spans(trials=np.arange(1, 31), ranks=(0, 1, 2, 3), start=begin, end=begin + 0.1)
    waits = tuple((float(t), t + 0.05, 0.045) for t in range(30))
    known = gaps.Gaps(of_rank={0: (), 1: waits, 2: (), 3: ()})
    assert repeated_delays.stopped([spans], known, dict.fromkeys(range(4), "h0")) == ()
    (alone,) = repeated_delays.stopped([spans], known, {rank: f"h{rank}" for rank in range(4)})
    assert (alone.rank, alone.waited) == (1, True)


@pytest.mark.parametrize(
    ("gap", "named"), [((0.02, 0.01), False), ((0.03, 0.02), False), ((0.05, 0.0), True), ((0.1, 0.06), True)]
)
def test_the_sleep_of_the_thread_that_records_gaps_is_no_stop(gap: tuple[float, float], named: bool) -> None:
    """At a load of 20 a rank has a gap in most iterations: 10 ms of each are that sleep, the rest is waiting for a shared CPU."""
    begin = np.arange(30.0)[:, None] + np.zeros((1, 4))
    spans = Spans(trials=np.arange(1, 31), ranks=(0, 1, 2, 3), start=begin, end=begin + 0.1)
    length_s, waited_s = gap
    known = gaps.Gaps(of_rank={0: (), 1: tuple((float(t), t + length_s, waited_s) for t in range(30)), 2: (), 3: ()})
    stopped = repeated_delays.stopped([spans], known, dict.fromkeys(range(4), "h0"))
    assert [stop.rank for stop in stopped] == [1] * named


def test_a_rank_whose_records_lack_gaps_is_not_watched() -> None:
    record = StepRecord(epoch=0, node="n0", rank=0, step=1, loss="0", start=0.0, end=1.0, gaps=((0.2, 0.4, 0.0),))
    unwatched = dataclasses.replace(record, rank=1, gaps=None)
    known = gaps.gaps([record, unwatched], experiment.Setting(cases=(), clocks={0: (10.0, 0.0)}))
    assert known.is_watched(0) and not known.is_watched(0, 1)
    inside = known.within(0, np.array([10.0, 10.3, 10.5]), np.array([11.0, 11.0, 11.0]))
    assert inside == pytest.approx([0.2, 0.1, 0.0])
    assert known.within(1, np.array([10.0]), np.array([11.0])) == pytest.approx([0.0])


def test_waiting_for_a_late_sender_is_told_from_transfer() -> None:
    """Rank 3 takes 4 ms before each step; its receiver waits so long, and its transfers are as short as others."""
    gang = Gang(schedules=MAKERS["ring all-reduce"](), drowsy={3: 0.004}, buffered=1 << 10)
    result = measured(gang, iterations=20)
    (row,) = result.rows
    assert row.chunks is not None and row.waiting is not None and row.transferring is not None
    assert row.chunks.count == row.waiting.count == row.transferring.count
    assert row.waiting.mean + row.transferring.mean == pytest.approx(row.chunks.mean)
    assert row.waiting.max >= 0.0039
    clean = measured(Gang(schedules=MAKERS["ring all-reduce"]()), iterations=20).rows[0]
    assert clean.waiting is not None and clean.waiting.p50 < 1e-4
    assert clean.transferring is not None and clean.chunks is not None
    assert row.transferring.p50 == pytest.approx(clean.chunks.p50, rel=0.1)


@pytest.mark.parametrize(("chosen", "operation"), ALGORITHMS, ids=lambda value: getattr(value, "name", str(value)))
def test_a_slow_link_accuses_no_other_link_and_no_rank_in_any_algorithm(
    chosen: algorithm.Chosen, operation: str
) -> None:
    world = 5 if chosen.refuses(operation, 8) else 8
    if chosen.refuses(operation, world):
        pytest.skip(f"{chosen.name} does not do {operation} with {world} ranks")
    for one_port in (False, True):
        schedules = catalogue(chosen, operation, world)
        result = measured(
            Gang(schedules=schedules, slow={(0, 1): 0.4}, one_port=one_port, watched=True), iterations=10, cases=2
        )
        assert {(link.sender, link.receiver) for link in result.stragglers.links} <= {(0, 1)}
        assert not result.stragglers.stopped and not result.stragglers.late
