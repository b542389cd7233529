"""Counters that are mostly zero: growth is a warning on every night, and what is usual for the fleet is none."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.nightly import judging
from orchestrator.nightly.gates.nights import Key, Metric, Panel
from orchestrator.nightly.judging import counters
from orchestrator.nightly.night_judgement import NightJudgement
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
    text = "n3: ecc corrected is 1 count; it was 0 on each of 20 earlier nights; the limit is 0"
    assert judgement.sentence.startswith(text)
    [judged] = [judged for judged in judgement.findings if judged.state == "warn"]
    assert (judged.value, judged.reference) == (1, "the counts of 20 earlier nights")
    clean = judge(tmp_path / "clean", lambda *where: 0)
    assert (clean.outcome, clean.findings) == ("pass", ())


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (lambda night: {10: 1, NIGHT: 5_000_000}.get(night, 0), True),  # it was 1 once
        (lambda night: {10: 1, NIGHT: 1}.get(night, 0), False),
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


def test_a_node_with_too_few_nights_is_not_judged_by_its_counts(tmp_path: Path) -> None:
    enough = counters.LEAST_NIGHTS + 2
    for nights, expected in ((enough, ["counter"]), (enough - 1, [])):
        judgement = judge(tmp_path / str(nights), of_n3(lambda night, last=nights + 1: 9 * (night // last)), nights)  # type: ignore[misc]
        assert [gate for gate, _, _ in bad(judgement, "counter")] == expected


def test_a_suite_may_set_the_least_difference(tmp_path: Path) -> None:
    for least, expected in ((50.0, []), (3.0, [("counter", "n3", "warn")])):
        cell = Cell(name="gpu", trial="probe", rules=(MetricRule(metric="ecc corrected", minimum_absolute=least),))
        judgement = judge(tmp_path / f"{least:g}", of_n3(lambda night: 5 * (night // NIGHT)), cells=[cell])
        assert bad(judgement, "counter") == expected


def warnings_of(mean: float, seed: int, nodes: int = 16, nights: int = 60) -> tuple[int, int]:
    """False warnings of a sound fleet whose counts are Poisson, and how many node-nights were judged."""
    values = np.random.default_rng(seed).poisson(mean, (nights, nodes, 1)).astype(float)
    warned = total = 0
    for night in range(12, nights):
        panel = Panel(
            metric=Metric(name="drops", unit="count", better="lower"), key=Key(hardware="h", workload="w"),
            nights=tuple(range(night + 1)), dates=("",) * (night + 1), nodes=tuple(f"n{node}" for node in range(nodes)),
            values=values[: night + 1], suspects={},
        )  # fmt: skip
        fleet = counters.past_counts(panel)
        warned += sum(counters.judge(panel, fleet, node) is not None for node in panel.nodes)
        total += nodes
    return warned, total


@pytest.mark.parametrize("mean", [0.001, 0.01, 0.1, 1.0, 10.0])
def test_a_sound_fleet_of_counters_has_few_false_warnings(mean: float) -> None:
    """At most 1 in 500 metrics and node-nights, for events as rare as one in 1,000 nights or as frequent as ten in each."""
    warned, total = map(sum, zip(*(warnings_of(mean, seed) for seed in range(4)), strict=True))
    assert warned / total <= 2e-3, f"{warned} of {total}"


def test_bursts_beyond_twice_the_usual_count_are_seen() -> None:
    rng = random.Random(1)
    own = np.array([float(rng.choice((0, 0, 0, 30, 45))) for _ in range(20)])
    assert 90 <= counters.limit(own, own) <= 400
