"""Replayed sequences: when each collective is due, which results can be verified, and whether the gaps were reached."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.collectives import views as collectives
from orchestrator.collectives.page import sheet
from orchestrator.collectives.rank import replay_pacing, replay_sequence
from orchestrator.model.event import History
from orchestrator.model.run import Run, StepRecord
from orchestrator.rank.exchange import cases

from .. import simulated, verdicts
from . import collective_runs

GAPS = (60.0, 25.0, 15.0, 120.0)


def planned(*items: cases.Item) -> tuple[cases.Case, ...]:
    return cases.cases(items, 4)


def item(**fields: Any) -> cases.Item:
    return cases.Item(**{"operation": "all-reduce", "bytes": 4096, **fields})


def starts(case: tuple[cases.Case, ...], took_s: float) -> list[float]:
    """The starts on one rank of all groups, if every collective takes so long and no start is late."""
    schedule = replay_pacing.Schedule(begin=10.0)
    made, now = [], 10.0
    for iteration in replay_pacing.iterations(case):
        start = max(now, due := schedule.due(iteration.waits))
        now = start + took_s
        schedule.add(start, now, due)
        made.append(round(start - 10.0, 6))
    return made


def test_a_gap_counts_from_the_end_of_the_collective_before() -> None:
    assert starts(planned(item(trials=4, gap_ms=GAPS)), 0.010) == [0.06, 0.095, 0.12, 0.25]


def test_a_gap_from_start_to_start_includes_the_collective() -> None:
    assert starts(planned(item(trials=4, gap_ms=GAPS, gap_from="start")), 0.010) == [0.06, 0.085, 0.1, 0.22]
    assert starts(planned(item(trials=3, gap_ms=5.0, gap_from="start")), 0.020) == [0.005, 0.025, 0.045]


def test_dependencies_wait_for_the_longest_path() -> None:
    """The second bucket is ready while the first is reduced; the third needs both."""
    sequence_ = planned(item(after=((0, 30.0),)), item(after=((0, 40.0),)), item(after=((2, 12.0), (1, 5.0))))
    assert starts(sequence_, 0.002) == [0.03, 0.04, 0.047]
    assert starts(sequence_, 0.020) == [0.03, 0.05, 0.075]


def test_late_starts_do_not_add_up_and_are_not_caught_up() -> None:
    schedule = replay_pacing.Schedule(begin=0.0)
    waits = (replay_pacing.Wait(back=replay_pacing.LAST, seconds=0.1, is_from_start=True),)
    schedule.add(0.1004, 0.11, schedule.due(waits))
    assert schedule.due(waits) == pytest.approx(0.2)
    schedule.add(0.25, 0.26, schedule.due(waits))
    assert schedule.due(waits) == pytest.approx(0.35)


def test_a_rank_waits_for_its_own_collectives_only() -> None:
    schedule = replay_pacing.Schedule(begin=0.0)
    schedule.add(1.0, 2.0, 1.0)
    schedule.skip()
    assert schedule.due((replay_pacing.Wait(back=replay_pacing.LAST, seconds=0.5),)) == 2.5
    assert schedule.due((replay_pacing.Wait(back=1, seconds=0.5),)) == 2.0
    assert schedule.due((replay_pacing.Wait(back=1, seconds=0.5), replay_pacing.Wait(back=2, seconds=0.1))) == 2.1


def test_only_long_gaps_leave_time_for_verification() -> None:
    iterations = replay_pacing.iterations(planned(item(trials=5, gap_ms=(0.0, 60.0, 2.0, 60.0, 60.0))))
    costs = {0: replay_pacing.Costs(fill_s=0.002, check_s=0.003, run_s=0.01)}
    assert replay_pacing.verified(iterations, costs) == (True, False, False, True, True)
    from_start = replay_pacing.iterations(planned(item(trials=3, gap_ms=20.0, gap_from="start")))
    assert replay_pacing.verified(from_start, costs) == (False, False, False)
    assert replay_pacing.verified(from_start, {0: dataclasses.replace(costs[0], run_s=0.002)}) == (True, True, True)


def test_cases_without_gaps_are_no_sequence() -> None:
    assert not replay_pacing.is_paced(planned(item(), item(bytes=8)))
    assert [len(part) for part in replay_pacing.concurrent(planned(item(), item(bytes=8)))] == [1, 1]
    assert [len(part) for part in replay_pacing.concurrent(planned(item(), item(bytes=8, gap_ms=1.0)))] == [2]


def test_a_wait_in_the_past_returns_at_once() -> None:
    replay_sequence.wait_until(0.0)


def paced(*late_s: float, gap_from: str = "end", took_s: float = 0.01) -> Run:
    """A run of two ranks with GAPS, whose starts on rank 1 are so late; the last iterations may be absent."""
    gang = simulated.Gang(schedules=simulated.ring(2, 4096))
    about = {"gap_ms": None, "gaps_ms": list(GAPS), **({"gap_from": "start"} if gap_from == "start" else {})}
    part = collective_runs.Part(
        operation="all-reduce",
        algorithm="ring",
        bytes=4096,
        gang=gang,
        iterations=len(GAPS),
        about=about,
        recorded=False,
    )
    bed = collective_runs.Bed(world=2)
    bed.carry_out([part])
    bed.steps, ends = [], [100.0, 100.0]
    begins = [100.0, 100.0]
    for step, gap in enumerate(GAPS[: len(late_s)], 1):
        for rank in range(2):
            due = (begins[rank] if gap_from == "start" else ends[rank]) + gap / 1e3
            start = max(due, ends[rank]) + late_s[step - 1] * rank
            begins[rank], ends[rank] = start, start + took_s
            bed.steps.append(
                StepRecord(
                    epoch=0, node=f"n{rank}", rank=rank, step=step, loss="0x0.0p+0", start=start, end=start + took_s
                )
            )
    begun = [("collective.sequence", {"rank": rank, "step": 1, "begin": 100.0, "iterations": 4, "cases": 1, "verified": [1]})
             for rank in range(2)]  # fmt: skip
    return collective_runs.run([], world=2, probe=False, notes=begun, drawn=bed)


def gaps_of(run: Run) -> collectives.ReplayGaps:
    setting = collectives.setting(run)
    assert setting is not None
    gaps = collectives.replay_gaps(run, setting)
    assert gaps is not None
    return gaps


@pytest.mark.parametrize("gap_from", ["end", "start"])
def test_the_gap_reached_stands_beside_the_gap_wanted(gap_from: str) -> None:
    run = paced(0.0, 0.0002, 0.004, 0.0, gap_from=gap_from)
    gaps = gaps_of(run)
    assert [round(gap.wanted_s * 1e3) for gap in gaps.measured] == [60, 25, 15, 120]
    assert [round(gap.reached_s * 1e3, 1) for gap in gaps.measured] == [60, 25.2, 19, 120]
    assert (gaps.kept, gaps.held, gaps.worst.rank, gaps.worst.trial) == (3, 0, 1, 3)
    assert sheet.gaps(gaps).splitlines()[3].endswith("3,1,0.015,0.019,0.004,0,0")


def test_a_start_that_the_network_delays_is_no_deviation() -> None:
    gaps = gaps_of(paced(0.0, 0.0, 0.0, 0.0, gap_from="start", took_s=0.05))
    assert (gaps.kept, gaps.held) == (4, 2)


def test_a_replay_that_keeps_its_gaps_passes_and_one_that_does_not_fails() -> None:
    assert verdicts.ask(paced(0.0, 0.0005, 0.0, 0.002), "gaps-kept").outcome == "pass"
    verdict = verdicts.ask(paced(0.16, 0.15, 0.1, 0.15), "gaps-kept")
    assert verdict.outcome == "fail"
    assert "0 of 4 gaps reached within 1 ms or 2 %; largest deviation 0.16 s, 220.0 ms for 60.00 ms" in verdict.text


def test_gaps_without_records_are_unknown_and_no_gaps_are_skipped() -> None:
    run = paced(0.0, 0.0)
    assert verdicts.ask(run, "gaps-kept").outcome == "unknown"
    begun = History(tuple(event for event in run.history.events if event.f != "collective.sequence"))
    assert gaps_of(dataclasses.replace(paced(0.0, 0.0, 0.0, 0.0), history=begun)).wanted == 4
    assert verdicts.ask(dataclasses.replace(paced(0.0, 0.0, 0.0, 0.0), history=begun), "gaps-kept").outcome == "unknown"
    assert verdicts.ask(collective_runs.figure(), "gaps-kept").outcome == "skipped"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"trials": 3, "gap_ms": (1.0, 2.0)}, "gap_ms: needs a value for each of 3 trials (got 2)"),
        ({"gap_ms": (-1.0,)}, "gap_ms: must be >= 0 (got -1.0)"),
        ({"gap_from": "middle"}, "gap_from: must be one of end, start (got 'middle')"),
        ({"after": ((-1, 0.0),)}, "after: must count >= 0 places back (got -1)"),
        ({"after": ((1, 0.0),), "gap_ms": 1.0}, "after: replaces gap_ms; give one of them"),
    ],
)
def test_wrong_gaps_are_refused(fields: dict[str, Any], problem: str) -> None:
    assert list(cases.problems(item(**fields))) == [problem]
