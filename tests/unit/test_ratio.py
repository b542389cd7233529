"""The one rule of comparisons: Student's t by tables, what is faster, equal or not resolved, and how often that is wrong."""

from __future__ import annotations

import random
import re
import statistics
from pathlib import Path

import pytest

from orchestrator.model import ratio
from orchestrator.model.ratio import Interval
from orchestrator.views import comparison
from orchestrator.views.comparison import Figure


@pytest.mark.parametrize(
    ("level", "freedom", "expected"),
    [(0.05, 1, 12.706), (0.05, 2, 4.303), (0.05, 3, 3.182), (0.01, 4, 4.604), (0.01, 9, 3.250), (0.001, 30, 3.646),
     (2e-4, 4, 13.0337), (2e-3, 10, 4.1437), (2e-5, 30, 5.0540)],
)  # fmt: skip
def test_the_quantile_of_student_is_that_of_the_tables(level: float, freedom: int, expected: float) -> None:
    assert ratio.student(level, freedom) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (0.021, 0.5, "slower"),
        (-0.5, -0.021, "faster"),
        (-0.019, 0.019, "equal"),
        (0.005, 0.019, "equal"),
        (0.005, 0.5, "not resolved"),
        (-0.001, 0.021, "not resolved"),
    ],
)
def test_the_outcome_is_that_of_the_whole_interval(low: float, high: float, outcome: str) -> None:
    assert Interval(value=(low + high) / 2, low=low, high=high).outcome() == outcome


def test_the_number_of_samples_that_would_decide_shrinks_the_interval_to_the_least_difference() -> None:
    wide = Interval(value=1.8, low=-0.1, high=5.0)
    assert wide.needed(100) == 130, "the interval need not exclude more than the least difference"
    assert Interval(value=0.1, low=-0.06, high=0.26).needed(100) == 440
    assert Interval(value=0.1, low=-0.06, high=0.26).needed(100, is_relative=False) == 400
    assert Interval(value=0.0, low=-0.04, high=0.04).needed(100) == 430, "to be equal"
    assert Interval(value=0.02, low=-0.04, high=0.04).needed(100) is None, "at the least difference none decides"


@pytest.mark.slow
def test_so_many_samples_do_decide() -> None:
    draw, decided = random.Random(5), 0
    for _ in range(40):
        first = ratio.change(*noisy(draw, 40, 0.1, 1.06), level=0.05, in_turn=True)
        assert first is not None
        if first.outcome() == "not resolved" and (needed := first.needed(40)) is not None and needed < 4000:
            more = ratio.change(*noisy(draw, needed, 0.1, 1.06), level=0.05, in_turn=True)
            decided += more is not None and more.outcome() != "not resolved"
    assert decided >= 15


def noisy(draw: random.Random, count: int, spread: float, factor: float) -> tuple[list[float], list[float]]:
    before, after = ([draw.lognormvariate(0, spread) for _ in range(count)] for _ in range(2))
    return before, [factor * seconds for seconds in after]


def test_the_change_is_that_of_the_medians_and_within_its_interval() -> None:
    draw = random.Random(2)
    for count in (3, 6, 20, 101):
        before, after = noisy(draw, count, 0.5, 1.3)
        change = ratio.change(before, after, level=0.05)
        assert change is not None and change.low <= change.value <= change.high
        assert change.value == pytest.approx(statistics.median_low(after) / statistics.median_low(before) - 1)
    assert ratio.change([1.0] * 2, [2.0] * 9, level=0.05) is None
    with pytest.raises(ValueError, match="above 0"):
        ratio.change([0.0] * 9, [2.0] * 9, level=0.05)


def test_samples_that_hang_together_count_for_fewer() -> None:
    draw = random.Random(4)
    steady = [1 + 0.1 * draw.random() for _ in range(30)]
    drifting = [1 + 0.1 * place / 30 for place in range(30)]
    widths = []
    for samples in (steady, drifting):
        change = ratio.change(samples, [1.05 * seconds for seconds in samples], level=0.05)
        assert change is not None
        widths.append(change.high - change.low)
    assert widths[1] > 3 * widths[0]


def test_what_meets_both_alike_is_no_uncertainty_of_those_in_turn() -> None:
    drift = [1 + place / 20 for place in range(20)]
    change = ratio.change(drift, [1.05 * seconds for seconds in drift], level=0.05, in_turn=True)
    assert change is not None and change.outcome() == "slower"
    assert change.high - change.low < 1e-9


# --- rates of error, from 1,000 pairs that are resampled by blocks ------------------------------------------------------

#: A run on two busy cores: 12 phases, each with a level of its own; a part of the iterations waits for a CPU.
RUNS, ITERATIONS, BLOCK, PAIRS = 20, 100, 10, 1000


def recorded(draw: random.Random, busy: float) -> list[float]:
    """A run's iterations: its own level (0.5 %), slow changes (1 %), noise (1 %), and waits of up to 20 times the time."""
    level, slow, seconds = draw.gauss(0, 0.005), 0.0, []
    for _ in range(ITERATIONS):
        slow = 0.9 * slow + 0.0044 * draw.gauss(0, 1)
        wait = draw.expovariate(0.3) if draw.random() < busy else 0.0
        seconds.append(0.01 * (1 + level + slow + 0.01 * draw.gauss(0, 1) + wait))
    return seconds


def resampled(draw: random.Random, seconds: list[float]) -> list[float]:
    """Blocks of consecutive iterations, drawn with replacement (Kuensch, Annals of Statistics 17, 1989)."""
    starts = [draw.randrange(len(seconds) - BLOCK + 1) for _ in range(len(seconds) // BLOCK)]
    return [sample for start in starts for sample in seconds[start : start + BLOCK]]


def outcome_of_groups(draw: random.Random, runs: list[list[float]], factor: float) -> str:
    """Three runs each, by the median iteration of each run."""
    sides = [
        [{"x": Figure(value=scale * statistics.median_low(resampled(draw, draw.choice(runs))))} for _ in range(3)]
        for scale in (1.0, factor)
    ]
    return comparison.compare_figures(*sides)[0].verdict


@pytest.mark.slow
@pytest.mark.parametrize("busy", [0.0, 0.3])
def test_equal_pairs_are_called_different_in_at_most_one_of_a_hundred(busy: float) -> None:
    draw = random.Random(11)
    runs = [recorded(draw, busy) for _ in range(RUNS)]
    groups = sum(outcome_of_groups(draw, runs, 1.0) in ("slower", "faster") for _ in range(PAIRS))
    turns = sum(outcome_in_turn(draw, draw.choice(runs), 1.0) in ("slower", "faster") for _ in range(PAIRS))
    assert groups <= PAIRS // 100 and turns <= PAIRS // 100


def outcome_in_turn(draw: random.Random, run: list[float], factor: float) -> str:
    """Two algorithms in turn within a run: its even and its odd iterations."""
    drawn = resampled(draw, run)
    change = ratio.change(drawn[::2], [factor * seconds for seconds in drawn[1::2]], level=0.05, in_turn=True)
    assert change is not None
    medians = statistics.median_low(drawn[1::2]) * factor / statistics.median_low(drawn[::2])
    assert change.outcome() != "equal" or abs(medians - 1) <= 0.04, "nothing is equal whose medians differ"
    return change.outcome()


@pytest.mark.slow
@pytest.mark.parametrize("busy", [0.0, 0.3])
def test_ten_percent_are_found_in_95_of_100_and_never_called_equal(busy: float) -> None:
    draw = random.Random(12)
    runs = [recorded(draw, busy) for _ in range(RUNS)]
    outcomes = [outcome_of_groups(draw, runs, 1.1) for _ in range(PAIRS)]
    assert outcomes.count("slower") >= 0.95 * PAIRS
    assert set(outcomes) <= {"slower", "not resolved"}


# --- one rule everywhere ------------------------------------------------------------------------------------------------


def test_no_other_module_has_a_rule_of_its_own() -> None:
    """Who says slower or faster of times, calls ``outcome``; nobody tests ends of an interval against zero."""
    root = Path(__file__).parents[2] / "orchestrator"
    paths = [*root.glob("views/co*/*.py"), *root.glob("collectives/rank/*.py"), *root.glob("cli/render/*.py")]
    own = re.compile(r"\.(low|high) [<>] (0|-)|no difference|mann|wilcoxon", re.IGNORECASE)
    assert {path.name for path in paths if own.search(path.read_text())} == set()
