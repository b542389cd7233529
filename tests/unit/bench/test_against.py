"""The comparison with a commit: its interval holds the true ratio, its decision follows, and its pairs are taken in turns."""

from __future__ import annotations

import math
import random
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.bench.against import __main__ as command
from tests.bench.against import checkouts, ratios
from tests.bench.against.measures import MEASURES
from tests.bench.against.turns import FailedError, Times, Turns


def pairs(number: int, ratio: float, noise: float, rng: random.Random) -> list[ratios.Pair]:
    """Both sides share a busy machine; each has noise of its own, and now and then a pair is spoiled."""
    samples = []
    for _ in range(number):
        shared = rng.lognormvariate(0, 0.3)
        spoiled = 3.0 if rng.random() < 0.05 else 1.0
        before = shared * rng.lognormvariate(0, noise)
        now = ratio * shared * spoiled * rng.lognormvariate(0, noise)
        samples.append((before, now))
    return samples


def result(number: int, ratio: float, noise: float, seed: int = 1) -> ratios.Ratio:
    return ratios.ratio(pairs(number, ratio, noise, random.Random(seed)))


@pytest.mark.parametrize("true_ratio", [0.8, 1.0, 1.3])
def test_the_interval_holds_the_true_ratio_as_often_as_it_says(true_ratio: float) -> None:
    rng = random.Random(7)
    known = []
    for _ in range(300):
        logs = [(1.0, true_ratio * rng.lognormvariate(0, 0.05)) for _ in range(12)]
        known.append(ratios.ratio(logs))
    held = sum(item.lower <= true_ratio <= item.upper for item in known)
    assert 0.91 <= held / len(known) <= 0.99


def test_noise_that_both_sides_share_is_none() -> None:
    known = result(30, 1.0, noise=0.01)
    assert known.is_resolved and known.result == "same"


def test_a_start_that_takes_a_tenth_longer_is_too_slow_although_pairs_are_spoiled() -> None:
    known = result(30, 1.1, noise=0.02)
    assert known.value == pytest.approx(1.1, rel=0.02)
    assert known.is_too_slow and known.result == "more than 5% slower"


def test_an_interval_above_the_limit_is_too_slow_although_it_is_wide() -> None:
    known = ratios.Ratio(value=1.3, lower=1.06, upper=1.6)
    assert known.is_too_slow and not known.is_resolved


@pytest.mark.parametrize(
    ("lower", "value", "upper", "text"),
    [
        (1.01, 1.02, 1.03, "slower"),
        (0.97, 0.98, 0.99, "faster"),
        (0.99, 1.00, 1.01, "same"),
        (0.95, 1.00, 1.05, "not resolved"),
        (1.04, 1.08, 1.12, "not resolved"),
        (0.00, 2.00, math.inf, "not resolved"),
        (1.0501, 1.06, 1.07, "more than 5% slower"),
    ],
)
def test_the_decision(lower: float, value: float, upper: float, text: str) -> None:
    assert ratios.Ratio(value=value, lower=lower, upper=upper).result == text


def test_too_few_pairs_resolve_nothing_however_equal_they_are() -> None:
    assert [ratios.ratio([(1.0, 2.0)] * number).result for number in (1, 5)] == ["not resolved"] * 2
    assert ratios.ratio([(1.0, 2.0)] * 6) == ratios.Ratio(value=2.0, lower=2.0, upper=2.0)


def test_the_signed_rank_distribution_is_that_of_tables() -> None:
    """Critical values of Wilcoxon's test, two-sided, 5 %: one less than the number that is left out."""
    tables = {6: 0, 7: 2, 8: 3, 10: 8, 20: 52, 30: 137}
    assert {number: ratios.averages_left_out(number) - 1 for number in tables} == tables
    assert sum(ratios.rank_sums(8)) == 2**8


def test_the_table_says_what_is_not_there() -> None:
    samples: dict[str, Sequence[ratios.Pair]] = {"start": [(1.0, 1.1)] * 8, "check": [], "up": [(0.5, 0.5)]}
    rows = ratios.table(samples).splitlines()[2:]
    assert rows == [
        "| start | 1.000 s | 1.100 s | 1.100 | 1.100 to 1.100 | 8 | more than 5% slower |",
        "| check | - | - | - | - | - | - |",
        "| up | 0.500 s | 0.500 s | 1.000 | - | 1 | not resolved |",
    ]
    assert ratios.too_slow(samples) == ["start"]


class Taken:
    """Seconds by measure and side from a script of values; ``order``: what was measured when."""

    def __init__(self, **values: Iterator[Times | FailedError]) -> None:
        self.values = values
        self.order: list[str] = []

    def __call__(self, measure: str, side: str) -> Times:
        self.order.append(f"{measure} {side}")
        value = next(self.values[measure])
        if isinstance(value, FailedError):
            raise value
        return value


def endless(*values: Times | FailedError) -> Iterator[Times | FailedError]:
    yield from values
    while True:
        yield values[-1]


def turns(taken: Taken, **titles: Sequence[str]) -> Turns:
    return Turns(titles=titles, take=taken, report=lambda _: None)


def test_pairs_are_taken_in_turns_and_a_resolved_measure_no_longer() -> None:
    rng = random.Random(3)
    noisy = ({"b": rng.lognormvariate(0, 1)} for _ in range(100))
    taken = Taken(a=endless({"a": 1.0}), b=iter(noisy))
    comparison = turns(taken, a=["a"], b=["b"])
    comparison.measure(9)
    assert taken.order[:8] == ["a before", "a now", "b before", "b now", "a now", "a before", "b now", "b before"]
    assert {title: len(samples) for title, samples in comparison.samples.items()} == {"a": 6, "b": 9}


def test_a_pair_has_the_times_of_its_sides_whichever_came_first() -> None:
    taken = Taken(a=iter([{"a": 1.0}, {"a": 2.0}, {"a": 20.0}, {"a": 10.0}]))
    comparison = turns(taken, a=["a"])
    comparison.measure(2)
    assert comparison.samples == {"a": [(1.0, 2.0), (10.0, 20.0)]}


def test_a_measure_of_two_rows_goes_on_until_both_are_resolved() -> None:
    rng = random.Random(5)
    taken = Taken(a=iter([{"wall": rng.lognormvariate(0, 1), "cpu": 1.0} for _ in range(100)]))
    comparison = turns(taken, a=["wall", "cpu"])
    comparison.measure(8)
    assert [len(samples) for samples in comparison.samples.values()] == [8, 8]


def test_a_failed_pair_is_left_out_and_the_third_ends_the_comparison() -> None:
    failed = FailedError("exit 1")
    comparison = turns(Taken(a=endless({"a": 1.0}, failed, {"a": 1.0})), a=["a"])
    comparison.measure(7)
    assert len(comparison.samples["a"]) == 6
    with pytest.raises(FailedError):
        turns(Taken(a=endless(failed)), a=["a"]).measure(7)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([""], "no commit is named; next: make against REF=HEAD~1"),
        (["HEAD", "--measures", "start,speed"], "no measure is called speed; there are start, failover"),
        (["HEAD", "--pairs", "0"], "must be a number of pairs, 1 or more (got 0)"),
        (["HEAD", "--pairs", "many"], "must be a number of pairs, 1 or more (got many)"),
    ],
)
def test_a_wrong_option_is_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        command.parse(argv)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_options_left_empty_are_all_measures_and_thirty_pairs() -> None:
    options = command.parse(["HEAD", "--measures", "", "--pairs", ""])
    assert (options.measures, options.pairs) == (list(MEASURES), 30)


def test_each_package_of_a_checkout_can_be_imported() -> None:
    """Of this one, in which a folder below ``orchestrator`` holds a package; of an earlier one, which names none."""
    root = Path(__file__).parents[3]
    folders = checkouts.import_folders(tomllib.loads((root / "pyproject.toml").read_text()))
    for package in ("orchestrator", "ccbed"):
        assert any((root / folder / package / "__init__.py").exists() for folder in folders), package
    assert checkouts.import_folders({"project": {}}) == ["."]


def test_an_unknown_commit_is_one_error_with_a_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["no-such-commit"]) == command.FAILED
    assert "REF=no-such-commit: no commit has this name here; next:" in capsys.readouterr().err
