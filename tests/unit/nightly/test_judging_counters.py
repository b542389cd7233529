"""Counters that are mostly zero: growth is a warning on every night, and what is usual for the fleet is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.nightly import judging, levels
from orchestrator.nightly.judging import metric_kinds
from orchestrator.nightly.night_judgement import NightJudgement
from orchestrator.nightly.records import Key, Metric, Record
from orchestrator.nightly.suite import Cell, MetricRule

from .night_bundles import figure, write_night
from .test_judging import NIGHT, NODES, bad, records_of

Count = Callable[[int, str], float]


def judge(tmp_path: Path, count: Count, nights: int = NIGHT - 1, **options: Any) -> NightJudgement:
    """The night after so many; ``count``: by night and node."""
    night = nights + 1
    lines = [[figure("ecc corrected", count(night, node), "count", "lower", node=node) for node in NODES]]
    directory = write_night(tmp_path, night, {"gpu": lines}, nodes=NODES, **options)
    tonight = records_of(directory)
    history = [
        dataclasses.replace(record, night=earlier, values=(float(count(earlier, record.node)),), date="")
        for earlier in range(1, night) for record in tonight
    ]  # fmt: skip
    return judging.judge(directory, history)


def of_n3(count: Callable[[int], float]) -> Count:
    return lambda night, node: count(night) if node == "n3" else 0


def test_a_counter_that_was_zero_warns_when_it_counts(tmp_path: Path) -> None:
    judgement = judge(tmp_path, of_n3(lambda night: night // NIGHT))
    assert bad(judgement) == [("counter", "n3", "warn")]
    text = "n3: ecc corrected is 1 count; it was 0 at most on 30 earlier nights; the limit is 0"
    assert judgement.sentence.startswith(text)
    [judged] = [judged for judged in judgement.findings if judged.state == "warn"]
    assert judged.value == 1
    clean = judge(tmp_path / "clean", lambda *where: 0)
    assert (clean.outcome, clean.findings) == ("pass", ())


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (lambda night: {10: 1, NIGHT: 5_000_000}.get(night, 0), True),  # it was 1 once
        (lambda night: {10: 1, NIGHT: 1}.get(night, 0), True),  # and nobody has accepted it
        (lambda night: 2 ** (night - 25) if night >= 25 else 0, True),  # it grows from night to night
        (lambda night: 40 if night >= NIGHT - 2 else 0, True),  # on its third night
        (lambda night: (0, 40, 0, 25)[night % 4] if night < NIGHT else 50, False),  # it jitters
        (lambda night: (0, 40, 0, 25)[night % 4] if night < NIGHT else 500, True),
    ],
)
def test_a_counter_is_judged_on_every_night(tmp_path: Path, count: Callable[[int], float], expected: bool) -> None:
    assert bad(judge(tmp_path, of_n3(count)), "counter") == ([("counter", "n3", "warn")] if expected else [])


def test_a_node_that_always_counts_hides_no_other_one(tmp_path: Path) -> None:
    def count(night: int, node: str) -> float:
        return {"n1": 900 + night % 7, "n3": 3 * (night // NIGHT)}.get(node, 0)

    assert bad(judge(tmp_path, count), "counter") == [("counter", "n3", "warn")]


def test_the_second_night_knows_new_errors_and_the_first_one_none(tmp_path: Path) -> None:
    for nights, expected in ((1, ["counter"]), (0, [])):
        judgement = judge(tmp_path / str(nights), of_n3(lambda night, last=nights + 1: 9 * (night // last)), nights)  # type: ignore[misc]
        assert [gate for gate, _, _ in bad(judgement, "counter")] == expected


def test_new_errors_warn_until_their_level_is_accepted(tmp_path: Path) -> None:
    count = of_n3(lambda night: 40 if night >= 3 else 0)
    assert bad(judge(tmp_path / "open", count), "counter") == [("counter", "n3", "warn")]
    (tmp_path / "accepted").mkdir()
    levels.add(tmp_path / "accepted", [levels.Level(bed="lab", night=5, nodes=("n3",))])
    assert bad(judge(tmp_path / "accepted", count), "counter") == []


def test_a_suite_may_set_the_least_difference(tmp_path: Path) -> None:
    for least, expected in ((50.0, []), (3.0, [("counter", "n3", "warn")])):
        cell = Cell(name="gpu", trial="probe", rules=(MetricRule(metric="ecc corrected", minimum_absolute=least),))
        judgement = judge(tmp_path / f"{least:g}", of_n3(lambda night: 5 * (night // NIGHT)), cells=[cell])
        assert bad(judgement, "counter") == expected


@pytest.mark.parametrize("mean", [0.001, 1.0, 10.0])
def test_a_sound_fleet_of_counters_has_few_false_warnings(mean: float) -> None:
    """At most 1 in 100 metrics and node-nights, for events as rare as one in 1,000 nights or as frequent as ten in each."""
    nodes, nights = 8, 30
    values = np.random.default_rng(1).poisson(mean, (nights, nodes)).astype(float)
    metric, key = Metric(name="drops", unit="count", better="lower"), Key(hardware="h", workload="w")
    records = [
        Record(night=night, node=f"n{node}", metric=metric, key=key, values=(values[night, node],))
        for night in range(nights) for node in range(nodes)
    ]  # fmt: skip
    warned = 0
    for night in range(3, nights):
        past = [record for record in records if record.night < night]
        warned += sum(
            metric_kinds.judge_count(metric, f"n{node}", (values[night, node],), past, past, ()) is not None
            for node in range(nodes)
        )
    assert warned / (nodes * (nights - 3)) <= 2e-2
