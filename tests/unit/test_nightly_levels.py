"""Scores of lasting changes: calibrated for correlated noise, missing nights and odd nights; several bad nodes hide none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orchestrator.nightly.gates import deviations, drift, intermittent, judgement, levels, relative, robust
from tests.bench import bounds
from tests.bench.fleets import Defect, Noise, fleet

from .test_nightly_gates import outcomes, panel_of, rates

SIGMA, CORRELATION = 0.01, 0.5


def correlated(seed: int, nights: int = 40, nodes: int = 3000) -> np.ndarray:
    """AR(1) without any change of level."""
    rng = np.random.default_rng(seed)
    rows = [rng.normal(0, SIGMA, nodes)]
    for _ in range(nights - 1):
        rows.append(CORRELATION * rows[-1] + rng.normal(0, SIGMA * math.sqrt(1 - CORRELATION**2), nodes))
    return np.stack(rows)[..., None]


def score(series: np.ndarray, shape: np.ndarray, cut: float = math.inf) -> tuple[np.ndarray, np.ndarray]:
    model = np.array([SIGMA]), np.array([CORRELATION])
    scores, changes = levels.scores(series, [shape], *model, cut=cut)
    return scores[0, :, 0], changes[0, :, 0]


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_score_of_noise_has_a_spread_of_one_or_less(missing: float) -> None:
    series = correlated(1)
    series[:-1][np.random.default_rng(2).random(series[:-1].shape) < missing] = math.nan
    for length in (1, 3):
        assert np.std(score(series, levels.step(40, length))[0]) == pytest.approx(1, abs=0.1)
    # The level is allowed to wander, so that the score of a long shape is the smaller where it does not.
    assert 0.5 < np.std(score(series, levels.ramp(40, 20))[0]) < 1.05


@pytest.mark.parametrize("length", [2, 3])
def test_a_step_has_the_score_that_theory_gives(length: int) -> None:
    """The first innovation of a step in AR(1) is 1, the others 1 - rho, over the innovation's sigma."""
    series = correlated(3)
    series[-length:] += 0.05
    expected = 0.05 / SIGMA * math.sqrt((1 + (length - 1) * (1 - CORRELATION) ** 2) / (1 - CORRELATION**2))
    values, change = score(series, levels.step(40, length))
    assert 0.85 * expected < np.mean(values) < expected
    assert np.mean(change) == pytest.approx(0.05, abs=0.001)


def test_a_night_that_was_not_measured_has_no_score() -> None:
    series = correlated(4, nodes=3)
    series[-1, 1] = math.nan
    assert list(np.isnan(score(series, levels.step(40, 2))[0])) == [False, True, False]


def test_a_cut_bounds_what_one_odd_night_counts() -> None:
    series = np.zeros((40, 1, 1))
    series[-1] = 1.0
    assert score(series, levels.step(40, 1))[0][0] > 50
    assert score(series, levels.step(40, 1), cut=6.0)[0][0] == pytest.approx(6, abs=0.3)
    assert score(series, levels.step(40, 2), cut=6.0)[0][0] < 4


def test_sigma_and_correlation_are_learned_beside_different_levels() -> None:
    series = correlated(5, nodes=60) + np.random.default_rng(6).normal(0, 1, 60)[None, :, None]
    sigma, correlation = levels.noise(series)
    assert sigma[0] == pytest.approx(SIGMA, rel=0.1) and correlation[0] == pytest.approx(CORRELATION, abs=0.1)
    series[20:, 0] += 0.3
    assert levels.noise(series)[0][0] == pytest.approx(SIGMA, rel=0.15)


def test_without_neighbouring_nights_the_noise_is_not_known() -> None:
    series = correlated(7, nights=4, nodes=5)
    series[::2] = math.nan
    assert math.isnan(levels.noise(series)[0][0])
    assert np.isnan(levels.scores(series, [levels.step(4, 1)], *levels.noise(series))[0]).all()


def with_nights(*shares: float) -> np.ndarray:
    """The last nights of node 0, as shares of what it usually has beside the others."""
    values = rates()
    beside = values[:, 0] / values[:, 1:].mean(axis=1)
    for night, share in zip(range(40 - len(shares), 40), shares, strict=True):
        values[night, 0] = share * np.median(beside) * values[night, 1:].mean()
    return values


@pytest.mark.parametrize(
    ("shares", "outcome"), [((0.972, 0.6), "warn"), ((0.6, 0.972), "pass"), ((0.93, 0.93), "fail"), ((0.975,), "pass")]
)  # fmt: skip
def test_one_odd_night_beside_an_offence_by_chance_does_not_fail(shares: tuple[float, ...], outcome: str) -> None:
    findings = judgement.judge_panel(panel_of(with_nights(*shares)))
    (own,) = [finding for finding in findings if finding.gate == "relative" and finding.node == "n0"]
    assert own.outcome == outcome
    assert ("exceeded on" in own.text, "within chance" in own.text) == (True, outcome == "pass")


@pytest.mark.parametrize("count", [1, 4])
def test_several_nodes_that_drift_at_once_hide_none(count: int) -> None:
    values = rates(nights=55, nodes=32)
    slide = np.exp(-0.005 * np.maximum(np.arange(55) - 29, 0))
    values[:, :count] *= slide[:, None, None]
    by_node = outcomes(judgement.judge_panel(panel_of(values)), "drift")
    assert [node for node, outcome in by_node.items() if outcome == "fail"] == [f"n{node}" for node in range(count)]


def test_a_drift_warns_before_it_fails() -> None:
    def at(change: float) -> drift.Drift:
        return drift.Drift(score=np.array([[change]]), change=np.array([[0.05]]), warn_limit=4.0, fail_limit=6.0)

    assert [(bool(at(value).warns[0, 0]), bool(at(value).fails[0, 0])) for value in (3.9, 4.1, 6.1)] == [
        (False, False), (True, False), (True, True),
    ]  # fmt: skip
    panel = panel_of(rates("drift", night=25, size=0.005, nights=45))
    sequence = [
        outcomes(judgement.judge_panel(panel_of(panel.values[:night])), "drift")["n0"] for night in range(28, 46, 2)
    ]
    assert sequence[0] == "pass" and sequence[-1] == "fail" and "warn" in sequence
    assert sequence == sorted(sequence, key=["pass", "warn", "fail"].index)


def test_half_of_four_nodes_do_not_hide_each_other() -> None:
    """Negative control of the day's effect: the centre of the others, not of a cut mean."""
    excess = np.zeros((10, 4))
    excess[-1, :2] = 0.05
    assert deviations.without_day(excess)[-1] == pytest.approx([0.05, 0.05, -0.05, -0.05])


def test_the_effect_of_a_day_is_taken_away_and_one_odd_node_does_not_move_it() -> None:
    rng = np.random.default_rng(8)
    excess = rng.normal(0, 0.01, (200, 8)) + rng.normal(0, 0.1, (200, 1))
    excess[:, 0] += 0.5
    rest = deviations.without_day(excess)
    assert np.std(rest[:, 1:]) < 0.0115
    assert np.mean(rest[:, 0]) == pytest.approx(0.5, abs=0.01)
    assert abs(np.mean(rest[:, 1:])) < 0.004


def test_the_gates_stay_below_the_bound_of_the_best_test() -> None:
    """A gate that finds more than the best test at its rate of false failures would be measured wrongly."""
    strict, loose = (bounds.power(rate, 0.05, 3, cases=1000) for rate in (1e-4, 1e-2))
    assert 0.9 < strict < loose < 1
    assert bounds.power(1e-4, 0.05, 3, least_nights=2, cases=1000) < 0.973
    assert bounds.power(1e-4, 0.001, 3, cases=1000) < 0.01
    failed = 0
    for seed in range(10):
        synthetic = fleet(seed, Defect(kind="step", night=30, size=0.05), noise=Noise(missing=0))
        medians = robust.median(synthetic.slowness[:33, :, list(synthetic.affected)], axis=-1)
        result = relative.judge(deviations.deviations(medians), deviations.long_deviations(medians))
        failed += bool(result.fails[0, 0])
    assert 4 <= failed <= 10


@pytest.mark.parametrize(("measured", "bad", "fails"), [(4, 4, True), (5, 5, True), (5, 4, False), (3, 3, False)])
def test_an_intermittent_node_fails_where_all_of_four_nights_are_bad(measured: int, bad: int, fails: bool) -> None:
    """Where a sound node has a bad repeat on one night in twenty."""
    chance = robust.binomial_tail(bad, measured, 0.05)
    result = intermittent.Intermittent(
        bad=np.array([[bad]]), measured=np.array([[measured]]), usual=np.array([0.05]), chance=np.array([[chance]]),
        limit=np.array([0.03]), is_bad_tonight=np.array([[True]]),
    )  # fmt: skip
    assert (bool(result.fails[0, 0]), bool(result.warns[0, 0])) == (fails, True)


def clock_rates(seed: int, nights: int = 40, nodes: int = 12) -> np.ndarray:
    """nights x nodes x repeats of a metric with two values: 3.5 on a tenth of the nights, else 3.6."""
    values = np.where(np.random.default_rng(seed).random((nights, nodes)) < 0.1, 3.5, 3.6)
    return np.repeat(values[:, :, None], 5, axis=2)


def test_a_metric_with_two_values_fails_no_sound_node() -> None:
    """Its nights mostly equal the night before, so that the differences between nights have the median 0."""
    findings = [
        finding
        for seed in range(6)
        for night in range(20, 40, 2)
        for finding in judgement.judge_panel(panel_of(clock_rates(seed)[:night]))
    ]
    assert [finding.text for finding in findings if finding.outcome == "fail"] == []
    warned = sum(finding.outcome == "warn" for finding in findings)
    assert warned <= 0.01 * 6 * 10 * 12


@pytest.mark.parametrize(("rate", "outcome"), [(3.0, "fail"), (3.5, "pass")])
def test_a_node_of_such_a_metric_fails_if_no_sound_night_was_as_bad(rate: float, outcome: str) -> None:
    values = clock_rates(seed=1)
    values[-2:, 4] = rate
    values[-3, 4] = 3.6
    by_node = outcomes(judgement.judge_panel(panel_of(values)), "relative")
    assert by_node.pop("n4") == outcome
    assert "fail" not in by_node.values()
