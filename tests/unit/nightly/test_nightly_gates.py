"""Floors, equal bits, and the small parts of gates."""

from __future__ import annotations

import math
import random

import pytest

from orchestrator.nightly import classes
from orchestrator.nightly.judging import cells, figures, floor_limits, metric_kinds
from orchestrator.nightly.records import Better, Finding, Key, Metric, Record, worst
from orchestrator.nightly.statistics import digests


@pytest.mark.parametrize(
    ("value", "better", "outcome"),
    [
        (9.0, "higher", "fail"), (9.0, "lower", "pass"), (11.0, "lower", "fail"),
        (10.0, "higher", "pass"), (10.0, "lower", "pass"),
    ],
)  # fmt: skip
def test_a_floor_has_a_direction(value: float, better: Better, outcome: str) -> None:
    metric = Metric(name="m", unit="s", better=better)
    assert floor_limits.judge_value(metric, "a", (value,), 10.0).outcome == outcome


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((10.0, 11.0), ""), ((), "was not measured"), ((math.nan,), "was not measured"),
        ((0.0, 0.0), "has no positive value, so that ratios have no meaning"), ((5.0, 0.0, 5.0), "was not above 0 in 1 of 3 repeats"),
        ((2000.0,), "2000 TFLOP/s is better than its ceiling 1000: measured wrongly"),
    ],
)  # fmt: skip
def test_a_figure_that_has_no_ratio_says_why(values: tuple[float, ...], reason: str) -> None:
    metric = Metric(name="gemm", unit="TFLOP/s", better="higher", ceiling=1000.0)
    assert metric_kinds.missing_reason(metric, values) == reason


def test_a_time_of_0_in_one_pass_hides_no_loss_of_the_others() -> None:
    """No time is 0, so that such a pass says nothing; a rate of 0 is a node that stopped."""
    latency, key = Metric(name="step time", unit="s", better="lower"), Key(hardware="Xeon", workload="node-probe")
    past = [
        Record(night=night, node="n0", metric=latency, key=key, values=(1.0, 1.01, 1.0 + night / 1000))
        for night in range(1, 7)
    ]
    tonight = figures.Series(latency, key, values={"n0": [0.0, 2.0, 2.0]}, versions={"n0": {}}, cells=["steps"])
    subject = cells.Subject(series=tonight, past=past, kind=classes.of("step time", classes.read()))
    (judged,) = cells.judge([subject], cells.Tonight(number=7, date="2026-01-07"))
    assert (judged.state, judged.finding.text.startswith("n0: step time +99")) == ("warn", True)


@pytest.mark.slow
@pytest.mark.parametrize(("better", "size"), [("higher", 1 / 1.7), ("lower", 1.7)])
def test_no_night_passes_that_lost_two_fifths(better: Better, size: float) -> None:
    """Some or all of one to six nodes, after any number of nights, with noise, missing nights and nodes in quarantine."""
    metric, key = Metric(name="gemm", unit="s", better=better), Key(hardware="Xeon", workload="node-probe")
    for seed in range(60):
        rng = random.Random(seed)
        nodes, nights = [f"n{index}" for index in range(rng.randint(1, 6))], rng.randint(1, 30)
        noise, missing = rng.choice([0.002, 0.01, 0.05]), rng.choice([0, 0.1, 0.5])
        slow = set(nodes) if rng.random() < 0.4 else set(rng.sample(nodes, rng.randint(1, len(nodes))))
        apart = set(rng.sample(nodes, rng.randint(0, len(nodes) - 1))) if rng.random() < 0.2 else set()

        def measure(node: str, rng: random.Random = rng, noise: float = noise) -> tuple[float, ...]:
            return tuple((100 + int(node[1:])) * math.exp(rng.gauss(0, noise)) for _ in range(3))

        past = [
            Record(night=night, node=node, metric=metric, key=key, values=measure(node))
            for night in range(1, nights + 1) for node in nodes if rng.random() >= missing
        ]  # fmt: skip
        values = {node: [size ** (node in slow) * value for value in measure(node)] for node in nodes}
        chosen = [node for node in nodes if rng.random() < 0.7]
        again = {node: [size ** (node in slow) * value for value in measure(node)] for node in chosen}
        versions: dict[str, dict[str, str]] = {node: {} for node in nodes}
        tonight = figures.Series(metric, key, values=values, again=again, versions=versions, cells=["gemm"])
        subject = cells.Subject(series=tonight, past=past, kind=classes.of("gemm", classes.read()))
        judged = list(cells.judge([subject], cells.Tonight(number=nights + 1, date="", apart=apart)))
        is_judged = bool((slow & {record.node for record in past}) - apart)
        states = {entry.state for entry in judged if entry.is_counted}
        assert not is_judged or states & {"fail", "warn", "unknown"}, seed


def digest(node: str, bits: str, library: str = "cublas 12") -> digests.Digest:
    return digests.Digest(node=node, device="gpu-a", software=library, digest=bits, seconds=10.0)


def test_equal_bits_are_never_a_pass() -> None:
    (finding,) = digests.judge([digest("a", "x"), digest("b", "x")])
    assert finding.outcome == "unknown" and "no mismatch in 20 device-seconds" in finding.text


@pytest.mark.parametrize(("bits", "suspects"), [("xxy", ("n2",)), ("xy", ()), ("xxyy", ())])
def test_the_node_that_differs_from_the_majority_is_the_suspect(bits: str, suspects: tuple[str, ...]) -> None:
    (finding,) = digests.judge([digest(f"n{number}", bit) for number, bit in enumerate(bits)])
    assert (finding.outcome, finding.culprits, "not known" in finding.text) == ("fail", suspects, not suspects)


def test_a_node_that_differs_from_itself_is_the_culprit_alone() -> None:
    (finding,) = digests.judge([digest("a", "x"), digest("a", "y"), digest("b", "x")])
    assert finding.culprits == ("a",)


def test_other_libraries_are_not_compared() -> None:
    findings = digests.judge([digest("a", "x"), digest("b", "y", "cublas 13")])
    assert [finding.outcome for finding in findings] == ["unknown", "unknown"]


def test_the_worst_of_no_gates_is_unknown() -> None:
    findings = Finding(gate="a", outcome="pass", text=""), Finding(gate="b", outcome="unknown", text="")
    assert worst(()) == worst(findings) == "unknown"
