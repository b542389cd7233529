"""Statistics of collectives against values worked out by hand, and arrays against the records they come from."""

from __future__ import annotations

import math
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestrator.collectives import views as collectives
from orchestrator.collectives.page import measured_charts
from orchestrator.collectives.views import fastest, finding_text, samples
from orchestrator.model.ratio import Interval
from orchestrator.model.run import StepRecord
from orchestrator.store import recorded_files
from orchestrator.views import statistics

from .. import simulated
from . import collective_runs
from .collective_runs import Part

Floats = NDArray[np.float64]


def small(**changes: object) -> Part:
    part = Part(
        operation="all-reduce", algorithm="ring", bytes=4096, iterations=5, cost=(6, 1.5),
        gang=simulated.Gang(schedules=simulated.ring(4, 4096)),
    )  # fmt: skip
    return replace(part, **changes)  # type: ignore[arg-type]


def test_a_percentile_is_a_sample_by_nearest_rank() -> None:
    result = statistics.spread(np.array([15.0, 20.0, 35.0, 40.0, 50.0]))
    assert result is not None
    assert (result.min, result.p50, result.p95, result.max, result.mean) == (15, 35, 50, 50, 32)
    assert result.p99 is None
    assert statistics.spread(np.array([])) is None


def test_a_p99_needs_a_hundred_samples() -> None:
    known = statistics.spread(np.arange(1.0, 101.0))
    assert known is not None
    assert (known.p50, known.p95, known.p99) == (50, 95, 99)
    few = statistics.spread(np.arange(1.0, 100.0))
    assert few is not None
    assert few.p99 is None


@pytest.mark.parametrize(
    ("operation", "factor"),
    [("all-reduce", 1.5), ("all-gather", 0.75), ("all-to-all", 0.75), ("broadcast", 1.0), ("send-recv", 1.0)],
)
def test_bus_bandwidth_is_that_of_nccl_tests(operation: str, factor: float) -> None:
    assert collectives.factor(operation, 4) == factor


def test_a_test_against_chance_is_the_tail_of_the_binomial_distribution() -> None:
    assert statistics.above_chance(3, 3, 0.25) == pytest.approx(0.25**3)
    assert statistics.above_chance(1, 2, 0.25) == pytest.approx(1 - 0.75**2)
    assert statistics.above_chance(0, 9, 0.25) == 1
    assert statistics.above_chance(50_000, 160_000, 0.25) < 1e-12
    assert statistics.above_chance(40_000, 160_000, 0.25) == pytest.approx(0.5, abs=0.01)


def timed(seconds: Floats, first: int = 1) -> samples.Timed:
    return samples.Timed(trials=np.arange(first, first + seconds.size), seconds=seconds)


def race(*seconds: Floats, sizes: int = 1) -> tuple[fastest.Fastest, ...]:
    """Of the reference's algorithms, which took turns; in each of so many sizes the same."""
    result = collectives.setting(collective_runs.reference())
    assert result is not None
    cases = [
        replace(case, number=size * 3 + place, bytes=case.bytes << size)
        for size in range(sizes)
        for place, case in enumerate(result.cases[: len(seconds)])
    ]
    return fastest.fastest(cases, {case.number: timed(seconds[case.number % 3]) for case in cases})


def test_the_fastest_is_named_only_where_pairs_tell_it() -> None:
    draw = np.random.default_rng(5)
    same = [1 + 0.1 * draw.random(30) for _ in range(3)]
    (tied,) = race(*same)
    assert (
        tied.unresolved is not None
        and set(tied.algorithms) == {"ring", "recursive-doubling", "library"}
        and not tied.clear
    )
    (won,) = race(same[0], same[0] * 0.8, same[2])
    assert won.algorithms == ("recursive-doubling",) and won.clear


def test_what_meets_all_alike_hides_no_difference_and_makes_none() -> None:
    """The machine becomes twice as slow while it is measured: trials of one number are a pair all the same."""
    drift = np.linspace(1, 2, 20)
    (won,) = race(drift, drift * 1.05)
    assert won.clear and won.algorithms == ("ring",)
    draw = np.random.default_rng(9)
    (tied,) = race(drift + 0.01 * draw.random(20), drift + 0.01 * draw.random(20))
    assert not tied.clear


def test_a_difference_below_the_margin_is_none_however_sure_it_is() -> None:
    steady = 1 + np.zeros(200)
    (near,) = race(steady, steady * 1.015)
    assert finding_text.winners([near]) == [f"recursive-doubling or ring, equal within 2 % ({finding_text.JUDGED})"]
    assert race(steady, steady * 1.025)[0].clear


def test_too_few_trials_for_any_difference_are_not_judged_and_it_is_said_how_many_it_takes() -> None:
    for sizes, needed in ((1, 6), (17, 10), (34, 11)):
        for count in (needed - 1, needed):
            result = race(np.ones(count), 2 * np.ones(count), sizes=sizes)
            assert {entry.needed for entry in result} == {needed}
            assert {race_.clear for race_ in result} == {race_.judged for race_ in result} == {count == needed}
    (few,) = race(np.ones(3), 2 * np.ones(3))
    assert finding_text.winners([few]) == ["not judged: needs 6 iterations (got 3)"]


def test_what_is_not_resolved_says_by_how_much_and_how_many_iterations_would_decide() -> None:
    """Three algorithms with two speeds, each at times: medians differ by up to three times, and by chance."""
    draw = np.random.default_rng(2)
    (tied,) = race(*(np.where(draw.random(20) < 0.5, 2.5, 7.0) * draw.lognormal(0, 0.05, 20) for _ in range(3)))
    assert not tied.clear and tied.unresolved is not None
    (text,) = finding_text.winners([tied])
    assert re.fullmatch(
        r"library or recursive-doubling or ring, not resolved: [a-z-]+ [\d.]+x faster than [a-z-]+ in the median, 95 % [\d.]+ to [\d.]+; "
        rf"about [\d,]+ iterations would decide: --iterations \d+ {re.escape(f'({finding_text.JUDGED})')}",
        text,
    )
    assert "equal" not in text and "no difference" not in text


@pytest.mark.slow
def test_in_twenty_sweeps_no_size_is_equal_whose_medians_differ_by_more_than_four_percent() -> None:
    draw, equal, resolved = np.random.default_rng(8), 0, 0
    for _ in range(20):
        spread = float(draw.choice([0.002, 0.02, 0.2]))
        levels = draw.choice([1.0, 1.005, 1.05], 3)
        seconds = [level * draw.lognormal(0, spread, 40) for level in levels]
        (result,) = race(*seconds)
        medians = [float(np.median(samples)) for samples in seconds]
        named = [medians[("ring", "recursive-doubling", "library").index(name)] for name in result.algorithms]
        if result.unresolved is None:
            assert max(named) / min(named) <= 1.04
            equal += len(named) > 1
        resolved += result.unresolved is None
    assert equal and resolved < 20, "the draws have both"


def test_auto_says_when_its_choice_lost() -> None:
    run = collective_runs.run(
        [small(algorithm="ring", iterations=20), small(algorithm="library", iterations=20)],
        notes=[("collective.auto", {"case": 0, "chosen": "ring", "why": "chosen from 2"})],
    )
    result = collectives.measured(run)
    assert result is not None and finding_text.autos(result) == ["all-reduce ring 4 KiB: chosen from 2"]
    slow = fastest.Rival(algorithm="ring", change=Interval(value=0.3, low=0.1, high=0.6), outcome="slower")
    (race_,) = result.fastest
    lost = replace(result, fastest=(replace(race_, best="library", rivals=(slow,)),))
    assert finding_text.autos(lost) == [
        "all-reduce ring 4 KiB: chosen from 2; the choice lost: library was 1.30x faster, 95 % 1.10 to 1.60"
    ]


def test_a_case_that_auto_chose_again_is_one_algorithm() -> None:
    run = collective_runs.run([small(algorithm=name, iterations=20) for name in ("ring", "ring", "library")])
    result = collectives.measured(run)
    assert result is not None
    assert [(len(race_.rivals), race_.algorithms) for race_ in result.fastest] == [(1, ("library", "ring"))]


def test_trials_are_paired_by_their_number_and_not_by_their_place() -> None:
    """Of the first algorithm trial 1 was lost, and what disturbed the 4th trial met both."""
    result = collectives.setting(collective_runs.reference())
    assert result is not None
    seconds = np.ones(12)
    seconds[1::2] = 10
    times = {0: timed(seconds[1:], first=2), 1: timed(seconds * 1.1)}
    (won,) = fastest.fastest(result.cases[:2], times)
    assert won.count == 11 and won.clear and won.algorithms == ("ring",)


def test_algorithms_that_did_not_take_turns_are_not_judged() -> None:
    result = collectives.setting(collective_runs.reference())
    assert result is not None
    apart = [replace(case, stride=1, first_step=1 + 20 * case.number) for case in result.cases[:2]]
    (message,) = fastest.fastest(apart, {0: timed(np.ones(20)), 1: timed(2 * np.ones(20))})
    assert not message.clear and finding_text.winners([message]) == ["not judged: the algorithms did not take turns"]


def test_equal_algorithms_are_told_apart_in_no_more_than_one_run_of_twenty() -> None:
    draw = np.random.default_rng(13)
    named = 0
    for _ in range(300):
        drift = np.cumsum(draw.normal(0, 0.03, 20))
        named += any(race_.clear for race_ in race(*(np.exp(drift + draw.normal(0, 0.2, 20)) for _ in range(2))))
    assert named <= 15


def test_each_case_has_the_trials_of_its_own_where_algorithms_took_turns() -> None:
    together, alone = collective_runs.reference(), []
    result = collectives.measured(together)
    assert result is not None
    steps = {record.step for record in together.files.steps()}
    assert [(case.first_step, case.stride) for case in result.setting.cases[:4]] == [(1, 3), (2, 3), (3, 3), (61, 3)]
    assert steps == {step for case in result.setting.cases for step in case.steps}
    assert all(row.lost == 0 and row.trial and row.trial.count == 20 for row in result.rows)
    assert all(row.transfers == row.transfers_due for row in result.rows)
    alone = [entry for entry in result.slow if entry.case.bytes == 971048]
    assert [(algorithm.case.algorithm, algorithm.trial, algorithm.step) for algorithm in alone] == [("ring", 5, 133)]


@pytest.mark.parametrize(("count", "places"), [(5, None), (6, (0, 5)), (20, (5, 14)), (50, (17, 32)), (100, (39, 60))])
def test_the_interval_of_a_median_is_between_samples(count: int, places: tuple[int, int] | None) -> None:
    """The places are those of the usual table for 95 %."""
    result = statistics.median(np.arange(count, dtype=np.float64)[::-1])
    assert result.value == (count - 1) / 2
    assert (result.low, result.high) == (places or (-np.inf, np.inf))


def test_figures_of_a_case_are_those_of_its_records() -> None:
    run = collective_runs.run([small()])
    result = collectives.measured(run)
    assert result is not None
    (row,) = result.rows
    by_step: dict[int, list[StepRecord]] = {}
    for record in run.files.steps():
        by_step.setdefault(record.step, []).append(record)
    slowest = sorted(max(record.end - record.start for record in records) for records in by_step.values())
    cct = sorted(max(r.end for r in records) - min(r.start for r in records) for records in by_step.values())
    mean = sum(cct) / len(cct)
    assert row.trial is not None
    assert (row.trial.count, row.trial.p50) == (5, slowest[2])
    assert row.algbw == pytest.approx(4096 / mean / 1e9)
    assert row.busbw == pytest.approx(1.5 * 4096 / mean / 1e9)
    model = 6 * collective_runs.ALPHA + 1.5 * 4096 * collective_runs.BETA
    assert row.model_s == pytest.approx(model)
    assert row.of_model == pytest.approx(cct[2] / model)
    assert row.of_line == pytest.approx(1.5 * 4096 / mean / (145e6 / 8))
    assert row.chunks is not None
    assert row.chunks.count == 2 * 3 * 4 * 5


@pytest.mark.parametrize(("gather", "count"), [(False, 192), (True, 96)])
def test_the_percentiles_of_the_origin_are_over_chunks(gather: bool, count: int) -> None:
    result = collectives.measured(collective_runs.figure(gather=gather), "chunk")
    assert result is not None
    assert result.rows[0].time is not None
    assert result.rows[0].time.count == count
    cct = result.rows[0].cct
    assert cct is not None and result.rows[0].mean_s == cct.mean, "by trials, whatever the percentiles are over"


def test_over_changes_what_a_sample_is() -> None:
    run = collective_runs.run([small()])
    times = {over: collectives.measured(run, over) for over in ("max_rank", "mean_rank", "cct")}
    p50 = {over: result.rows[0].time.p50 for over, result in times.items() if result and result.rows[0].time}
    assert p50["mean_rank"] < p50["max_rank"] <= p50["cct"]


def test_a_completion_time_takes_off_what_clocks_are_apart() -> None:
    run = collective_runs.run([small()])
    plain = collectives.measured(run, "cct")
    early, local = (
        {"host": host, "offset_s": apart, "uncertainty_s": 1e-4} for host, apart in (("h2", -5.0), ("h1", 0.0))
    )
    clocks = {"b1": local, "b2": early}
    nodes = {f"n{rank}": {"host": "h2" if rank == 3 else "h1"} for rank in range(4)}
    shifted = tuple(replace(r, start=r.start + 5, end=r.end + 5) if r.rank == 3 else r for r in run.files.steps())
    plan = {**run.extras["plan.json"], "clocks": clocks, "nodes": nodes}
    other = replace(run, files=collective_runs.Files(shifted), extras={**run.extras, "plan.json": plan})
    result = collectives.measured(other, "cct")
    assert plain is not None
    assert result is not None
    assert result.rows[0].time is not None
    assert plain.rows[0].time is not None
    assert result.rows[0].time.p50 == pytest.approx(plain.rows[0].time.p50)


def test_of_a_step_that_was_done_again_the_last_epoch_counts() -> None:
    run = collective_runs.run([small()])
    repeated = tuple(replace(r, epoch=1, start=r.start + 9, end=r.end + 9.5) for r in run.files.steps() if r.step == 2)
    result = collectives.measured(replace(run, files=collective_runs.Files((*repeated, *run.files.steps()))))
    assert result is not None
    assert result.rows[0].trial is not None
    assert result.rows[0].trial.max > 0.5
    assert result.rows[0].trial.count == 5


def test_a_trial_that_not_every_rank_finished_is_no_sample() -> None:
    run = collective_runs.run([small()])
    torn = tuple(record for record in run.files.steps() if (record.step, record.rank) != (5, 3))
    result = collectives.measured(replace(run, files=collective_runs.Files(torn)))
    assert result is not None
    assert (result.rows[0].lost, result.rows[0].trial and result.rows[0].trial.count) == (1, 4)


def test_a_run_that_measured_nothing_yet_has_a_table_all_the_same() -> None:
    result = collectives.measured(replace(collective_runs.run([small()], probe=False), files=collective_runs.Files()))
    assert result is not None
    assert result.rows[0].trial is None
    assert result.rows[0].busbw is None


def test_the_record_of_the_arrays_is_that_of_the_files() -> None:
    dtype = np.dtype(samples.RECORD)
    assert dtype.itemsize == struct.calcsize(recorded_files.CHUNK_FORMAT)
    assert dtype.names == recorded_files.CHUNK_FIELDS


def test_chunk_files_are_read_as_whole_records(tmp_path: Path) -> None:
    run = collective_runs.run([small()])
    place = collective_runs.write(run, tmp_path / "one")
    blob = place / "nodes" / "n1" / "i1-e0" / "chunks-r1.bin"
    blob.write_bytes(blob.read_bytes() + b"torn")
    remote = recorded_files.BundleFiles(place, {})
    plan = collectives.setting(run)
    assert plan is not None
    assert (samples.records(remote, plan) == samples.records(run.files, plan)).all()


def test_a_grid_leaves_out_a_trial_whose_transfers_are_not_those_of_the_others() -> None:
    run = collective_runs.run([small()])
    size = struct.calcsize(recorded_files.CHUNK_FORMAT)
    blocks = [(n, r, e, blob[:-size] if r == 3 else blob) for n, r, e, blob in run.files.chunk_blocks()]
    setting = collectives.setting(run)
    assert setting is not None
    result = samples.transfers(samples.records(collective_runs.Files(blocks=tuple(blocks)), setting), setting.cases[0])
    assert result is not None
    assert list(result.trials) == [1, 2, 3, 4]


def test_thinned_points_keep_every_extreme() -> None:
    y = np.ones(100_000)
    y[[17, 99_000]] = 9, 0
    _, kept = measured_charts.thinned(np.arange(100_000.0), y, 1500)
    assert kept.size <= 1500
    assert {0, 9} <= set(kept)
    value, part = measured_charts.curve(y, 400)
    assert value.size <= 800
    assert (value[0], value[-1], part[-1]) == (0, 9, 1)


def test_a_training_run_is_checked_without_arrays() -> None:
    script = (
        "import sys; from tests.unit import run_builder; from orchestrator.reports import html, summary;"
        "from orchestrator.collectives.plugins.reports import collectives;"
        "from orchestrator.core.verdict import run_metrics; run = run_builder.run(); assert collectives.render(run) == {};"
        "html.render(run); summary.render(run); list(run_metrics.of(run)); print('numpy' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root, timeout=900, check=False)  # fmt: skip
    assert done.stdout.strip() == "False", done.stderr


def test_a_ratio_to_an_unknown_line_is_not_told() -> None:
    result = collectives.measured(collective_runs.run([small(cost=None)], rate=None))
    assert result is not None
    assert result.rows[0].of_line is None
    assert result.rows[0].model_s is None
    assert not math.isnan(result.rows[0].busbw or 0)
