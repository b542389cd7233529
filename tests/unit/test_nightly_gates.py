"""The gates of the nightly regression: what they find, what they must not find, and what they do not know."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from orchestrator.nightly.gates import digests, judgement, robust
from orchestrator.nightly.gates.finding import Finding, worst
from orchestrator.nightly.gates.nights import Key, Metric, Panel, Record, build_panel
from tests.bench.fleets import Defect, Kind, Noise, fleet

RATE = Metric(name="gemm", unit="TFLOP/s", better="higher", ceiling=1000.0)
KEY = Key(hardware="gpu-a", workload="gemm")
PLAIN = Noise(bad_share=0, missing=0, reboot_rate=0, mode=0)


def panel_of(values: np.ndarray, suspects: Mapping[tuple[int, str], Mapping[str, str]] | None = None) -> Panel:
    """nights x nodes x repeats of a rate."""
    nights, nodes = range(values.shape[0]), range(values.shape[1])
    records = [
        Record(
            night=night, node=f"n{node}", metric=RATE, key=KEY, values=tuple(values[night, node]),
            date=f"2026-01-{night + 1:02d}" if night < 31 else "", suspects=(suspects or {}).get((night, f"n{node}"), {}),
        )
        for night in nights for node in nodes
    ]  # fmt: skip
    return build_panel(records, "gemm", KEY)


def rates(
    kind: Kind = "none", night: int = 0, size: float = 0.05, nights: int = 40, nodes: int = 16, seed: int = 7
) -> np.ndarray:
    defect = Defect(kind=kind, night=night, size=size)
    synthetic = fleet(seed, defect, noise=PLAIN, nodes=nodes, nights=nights, metrics=2)
    rate: np.ndarray = 100 * np.exp(-synthetic.slowness[:, :, synthetic.affected[0] if kind != "none" else 0])
    return rate


def outcomes(findings: tuple[Finding, ...], gate: str) -> dict[str | None, str]:
    return {finding.node: finding.outcome for finding in findings if finding.gate == gate}


def test_a_clean_fleet_passes_every_gate() -> None:
    findings = judgement.judge_panel(panel_of(rates()), floor=50)
    assert {finding.outcome for finding in findings} <= {"pass", "warn"}
    assert not [finding for finding in findings if finding.outcome == "fail"]
    assert outcomes(findings, "relative")["n0"] == "pass"


def test_a_step_warns_first_and_fails_second() -> None:
    values = rates("step", night=38, size=0.10)
    assert outcomes(judgement.judge_panel(panel_of(values[:39])), "relative")["n0"] == "warn"
    second = outcomes(judgement.judge_panel(panel_of(values)), "relative")
    assert second.pop("n0") == "fail"
    assert "fail" not in second.values()


def test_a_difference_below_the_minimum_is_no_offence() -> None:
    panel = panel_of(rates("step", night=38, size=0.10))
    assert outcomes(judgement.judge_panel(panel, minimum_absolute=30.0), "relative")["n0"] == "pass"
    assert outcomes(judgement.judge_panel(panel, minimum_absolute=1.0), "relative")["n0"] == "fail"


def test_a_slow_drift_is_found_and_the_night_is_named() -> None:
    findings = judgement.judge_panel(panel_of(rates("drift", night=25, size=0.005, nights=45)))
    (finding,) = [finding for finding in findings if finding.gate == "drift" and finding.outcome == "fail"]
    assert finding.node == "n0" and "slides" in finding.text
    assert finding.since is not None and 22 <= int(finding.since[-2:]) - 1 <= 30


def test_one_odd_night_is_neither_a_drift_nor_a_failure() -> None:
    for night in (30, 39):
        values = rates()
        values[night, 0] *= 0.7
        findings = judgement.judge_panel(panel_of(values))
        assert outcomes(findings, "drift")["n0"] == "pass"
        assert outcomes(findings, "relative")["n0"] == ("warn" if night == 39 else "pass")


def test_a_node_bad_in_one_repeat_of_five_fails_while_its_median_is_good() -> None:
    findings = judgement.judge_panel(panel_of(rates("intermittent", night=35)))
    assert outcomes(findings, "intermittent")["n0"] == "fail"
    assert outcomes(findings, "relative")["n0"] == "pass"
    assert set(outcomes(findings, "intermittent").values()) == {"pass", "fail"}


def test_the_first_night_has_suspects_and_no_failures() -> None:
    values = rates(nights=1)
    values[0, 3] *= 0.7
    findings = judgement.judge_panel(panel_of(values))
    assert outcomes(findings, "peers")["n3"] == "warn"
    assert [name for name, outcome in outcomes(findings, "peers").items() if outcome != "pass"] == ["n3"]
    for gate in ("relative", "drift", "intermittent", "fleet"):
        assert set(outcomes(findings, gate).values()) == {"unknown"}


def test_five_peers_are_needed() -> None:
    assert set(outcomes(judgement.judge_panel(panel_of(rates(nodes=5))), "peers").values()) == {"unknown"}
    assert set(outcomes(judgement.judge_panel(panel_of(rates(nodes=6))), "peers").values()) == {"pass"}


@pytest.mark.parametrize(("nodes", "nights"), [(1, 40), (2, 40), (8, 5)])
def test_small_fleets_and_short_histories_are_judged_without_an_error(nodes: int, nights: int) -> None:
    findings = judgement.judge_panel(panel_of(rates(nodes=nodes, nights=nights)))
    assert not [finding for finding in findings if finding.outcome == "fail"]
    assert ("unknown" in outcomes(findings, "relative").values()) == (nights < 20)


def test_a_metric_that_became_nan_is_unknown_and_fails_its_floor() -> None:
    values = rates()
    values[-1, 2] = math.nan
    findings = judgement.judge_panel(panel_of(values), floor=50)
    assert {finding.outcome for finding in findings if finding.node == "n2" and finding.gate != "floor"} == {"unknown"}
    assert outcomes(findings, "floor")["n2"] == "fail"
    assert outcomes(findings, "floor")["n1"] == "pass"


def test_one_repeat_that_is_nan_leaves_the_others() -> None:
    values = rates()
    values[-1, 2, 1] = math.nan
    assert outcomes(judgement.judge_panel(panel_of(values)), "relative")["n2"] == "pass"


def test_missing_nights_are_normal() -> None:
    values = rates("step", night=38, size=0.10)
    values[10:14] = math.nan
    values[20:38:3, 0] = math.nan
    assert outcomes(judgement.judge_panel(panel_of(values)), "relative")["n0"] == "fail"


def test_equal_values_have_no_spread_and_pass() -> None:
    findings = judgement.judge_panel(panel_of(np.full((40, 8, 5), 100.0)))
    assert {finding.outcome for finding in findings} == {"pass"}


def test_no_spread_and_then_a_step_fails() -> None:
    values = np.full((40, 8, 5), 100.0)
    values[38:, 0] = 90.0
    findings = judgement.judge_panel(panel_of(values))
    assert [finding.node for finding in findings if finding.outcome == "fail" and finding.gate == "relative"] == ["n0"]


def test_an_improvement_passes() -> None:
    assert (
        "fail"
        not in outcomes(judgement.judge_panel(panel_of(rates("step", night=38, size=-0.10))), "relative").values()
    )


def test_a_value_of_zero_has_no_ratio() -> None:
    findings = judgement.judge_panel(panel_of(np.zeros((40, 8, 5))))
    assert {finding.outcome for finding in findings} == {"unknown"}


def test_a_rate_that_is_zero_in_some_repeats_passes_no_gate() -> None:
    values = rates()
    values[-1, 3, 2:4] = 0.0
    findings = [finding for finding in judgement.judge_panel(panel_of(values)) if finding.node == "n3"]
    assert {finding.outcome for finding in findings} == {"unknown"}
    assert all("was not above 0 in 2 of 5 repeats" in finding.text for finding in findings)


def test_a_value_beyond_the_ceiling_is_not_believed() -> None:
    values = rates()
    values[-1, 4] = 2000.0
    findings = judgement.judge_panel(panel_of(values), floor=50)
    of_node = [finding for finding in findings if finding.node == "n4"]
    assert {finding.outcome for finding in of_node} == {"unknown"}
    assert all("ceiling 1000" in finding.text for finding in of_node)


def test_nights_are_in_the_order_of_recording_when_the_clock_goes_backwards() -> None:
    dates = ("2026-01-03", "2026-01-01", "2026-01-02")
    records = [
        Record(night=night, node="a", metric=RATE, key=KEY, values=(1.0 + night,), date=date)
        for night, date in enumerate(dates)
    ]
    panel = build_panel(reversed(records), "gemm", KEY)
    assert panel.dates == dates and panel.latest("a") == (3.0,)


def test_only_equal_keys_are_compared() -> None:
    other = Key(hardware="gpu-b", workload="gemm")
    records = [Record(night=0, node=key.hardware, metric=RATE, key=key, values=(1.0,)) for key in (KEY, other)]
    assert build_panel(records, "gemm", KEY).nodes == ("gpu-a",)
    with pytest.raises(ValueError, match="0 definitions"):
        build_panel(records, "latency", KEY)


def test_a_version_that_changed_with_the_metric_is_named() -> None:
    versions = {
        (night, f"n{node}"): {"driver": "580.1" if night < 38 or node else "580.2"}
        for night in range(40)
        for node in range(16)
    }
    findings = judgement.judge_panel(panel_of(rates("step", night=38, size=0.10), versions))
    (finding,) = [finding for finding in findings if finding.gate == "relative" and finding.outcome == "fail"]
    assert finding.suspects == ("driver 580.1 -> 580.2",)
    assert "driver 580.1 -> 580.2" in finding.text


def test_a_change_of_the_whole_fleet_names_the_driver_and_fails_no_node() -> None:
    values = rates(nights=39)
    values[-1] *= 0.85
    versions = {
        (night, f"n{node}"): {"driver": "1" if night < 38 else "2"} for night in range(39) for node in range(16)
    }
    findings = judgement.judge_panel(panel_of(values, versions))
    assert findings[-1].outcome == "warn" and findings[-1].suspects == ("driver 1 -> 2 on 16 of 16 nodes",)
    assert not [finding for finding in findings if finding.outcome == "fail"]


@pytest.mark.parametrize(
    ("value", "better", "outcome"),
    [
        (9.0, "higher", "fail"), (9.0, "lower", "pass"), (11.0, "lower", "fail"),
        (10.0, "higher", "pass"), (10.0, "lower", "pass"),
    ],
)  # fmt: skip
def test_a_floor_has_a_direction(value: float, better: str, outcome: str) -> None:
    metric = Metric(name="m", unit="s", better="lower" if better == "lower" else "higher")
    assert judgement.judge_floor(metric, "a", (value,), 10.0).outcome == outcome


def digest(node: str, bits: str, library: str = "cublas 12") -> digests.Digest:
    return digests.Digest(node=node, device="gpu-a", software=library, digest=bits, seconds=10.0)


def test_equal_bits_are_never_a_pass() -> None:
    (finding,) = digests.judge([digest("a", "x"), digest("b", "x")])
    assert finding.outcome == "unknown" and "no mismatch in 20 device-seconds" in finding.text


def test_the_node_that_differs_from_the_majority_is_the_culprit() -> None:
    (finding,) = digests.judge([digest("a", "x"), digest("b", "x"), digest("c", "y")])
    assert (finding.outcome, finding.culprits) == ("fail", ("c",))


def test_without_a_majority_the_culprit_is_not_known() -> None:
    for bits in ("xy", "xxyy"):
        (finding,) = digests.judge([digest(f"n{number}", bit) for number, bit in enumerate(bits)])
        assert (finding.outcome, finding.culprits) == ("fail", ())
        assert "not known" in finding.text


def test_a_node_that_differs_from_itself_is_the_culprit_alone() -> None:
    (finding,) = digests.judge([digest("a", "x"), digest("a", "y"), digest("b", "x")])
    assert finding.culprits == ("a",)


def test_other_libraries_are_not_compared() -> None:
    findings = digests.judge([digest("a", "x"), digest("b", "y", "cublas 13")])
    assert [finding.outcome for finding in findings] == ["unknown", "unknown"]


def test_the_worst_of_no_gates_is_unknown() -> None:
    assert worst(()) == "unknown"
    assert (
        worst((Finding(gate="a", outcome="pass", text=""), Finding(gate="b", outcome="unknown", text=""))) == "unknown"
    )


def test_the_median_of_others_leaves_the_own_value_out() -> None:
    for count in range(2, 8):
        values = np.random.default_rng(count).normal(size=count)
        expected = [np.median(np.delete(values, index)) for index in range(count)]
        assert robust.median_of_others(values[:, None])[:, 0] == pytest.approx(expected)
    holes = np.array([[1.0], [math.nan], [3.0], [7.0]])
    assert robust.median_of_others(holes)[:, 0] == pytest.approx([5.0, 3.0, 4.0, 2.0])


def test_the_limit_of_an_estimated_sigma_is_that_of_student() -> None:
    assert robust.limit(0.001, 20) == pytest.approx(3.552, abs=0.01)
    assert robust.limit(0.001, 1e9) == pytest.approx(3.0902, abs=1e-3)
