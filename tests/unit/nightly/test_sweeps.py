"""Sweeps: an odd node and a slow part of the fabric are named as suspects, and what cannot be judged is unknown."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from orchestrator.cli.render import terminal
from orchestrator.model.event import History
from orchestrator.nightly import sweeps
from orchestrator.nightly.records import Finding, Key, Metric
from orchestrator.nightly.render import sweep_view
from orchestrator.nightly.run_record import Measurement, RunRecord

from .. import history

RATE = Metric(name="gemm float32", unit="TFLOP/s", better="higher")
KEY = Key(hardware="Xeon", workload="node-probe")


def record(values: Mapping[str, Sequence[float]], metric: Metric = RATE, key: Key = KEY) -> RunRecord:
    measurements = tuple(
        Measurement(node=node, metric=metric, key=key, values=tuple(repeats)) for node, repeats in values.items()
    )
    return RunRecord(
        run="r", directory="runs/r", bed="b", trial="gemm", workload="node-probe", started="", outcome="pass", is_sealed=True,
        measurements=measurements,
    )  # fmt: skip


def fleet(count: int, **odd: float) -> dict[str, list[float]]:
    rng = np.random.default_rng(count)
    return {
        f"n{i}": [float(value) for value in odd.get(f"n{i}", 1.0) * np.exp(rng.normal(0, 0.003, 5))]
        for i in range(count)
    }


def test_a_node_that_is_slower_than_its_peers_is_a_suspect_and_no_failure() -> None:
    (finding,) = sweeps.judge_nodes([record(fleet(8, n3=0.9))])
    assert (finding.outcome, finding.node, finding.culprits) == ("warn", "n3", ("n3",))
    assert "n3 is 10." in finding.text or "n3 is 9." in finding.text
    assert sweeps.exit_code([finding]) == 2


def test_equal_nodes_pass_and_a_faster_node_is_not_odd() -> None:
    assert [finding.outcome for finding in sweeps.judge_nodes([record(fleet(8))])] == ["pass"]
    assert [finding.outcome for finding in sweeps.judge_nodes([record(fleet(8, n3=1.2))])] == ["pass"]
    [majority] = sweeps.judge_nodes([record(fleet(3, n1=0.7, n2=0.7))])
    assert (majority.outcome, majority.culprits) == (
        "warn",
        (),
    ) and "n0 is 42.8% better than the median of 2 peers (limit 12.9%), which may be slow" in majority.text


def test_the_rounds_count_together() -> None:
    rounds = [record(fleet(8, n3=0.9)), record(fleet(8)), record(fleet(8))]
    assert [finding.outcome for finding in sweeps.judge_nodes(rounds)] == ["pass"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (fleet(2), "3 are needed"),
        (fleet(8, **{f"n{index}": 0.0 for index in range(8)}), "has no ratio"),
        ({f"n{index}": [3.0**index] for index in range(8)}, "differ too much"),
    ],
)
def test_what_cannot_be_judged_is_unknown(values: dict[str, list[float]], reason: str) -> None:
    (finding,) = sweeps.judge_nodes([record(values)])
    assert (finding.outcome, reason in finding.text) == ("unknown", True)
    assert sweeps.exit_code([finding]) == 2
    if "differ" in reason:
        (passed,) = sweeps.judge_nodes([record(fleet(8))])
        assert sweeps.exit_code([finding, passed]) == 2, "a node that is much worse does not pass beside another metric"


def test_a_node_whose_rate_is_zero_is_the_suspect_and_the_others_are_judged() -> None:
    other = Metric(name="memory", unit="GB/s", better="higher")
    findings = sweeps.judge_nodes([record(fleet(8, n1=0.0, n4=0.9)), record(fleet(8), metric=other)])
    by_metric = {finding.metric: finding for finding in findings}
    assert (by_metric["gemm float32"].outcome, set(by_metric["gemm float32"].culprits)) == ("warn", {"n1", "n4"})
    assert "n1 is at 0 TFLOP/s; n4 is " in by_metric["gemm float32"].text
    assert (by_metric["memory"].outcome, sweeps.exit_code(findings)) == ("pass", 2)
    latency = Metric(name="fsync", unit="ms", better="lower")
    of_latency = sweeps.judge_nodes([record(fleet(8, n1=0.0), metric=latency)])
    assert sorted(finding.outcome for finding in of_latency) == ["pass", "unknown"]


@pytest.mark.parametrize("values", [[], [float("nan")]])
def test_a_node_without_a_value_was_not_measured_and_the_sweep_does_not_pass(values: list[float]) -> None:
    findings = sweeps.judge_nodes([record({**fleet(8), "n3": values})])
    assert [(finding.gate, finding.outcome, finding.node) for finding in findings] == [
        ("measurement", "unknown", "n3"), ("peers", "pass", None),
    ]  # fmt: skip
    assert findings[0].text == "gemm float32: n3 was not measured"
    assert sweeps.exit_code(findings) == 2


def test_only_equal_hardware_is_compared() -> None:
    other = Key(hardware="Epyc", workload="node-probe")
    slow = {f"m{i}": values for i, values in enumerate(fleet(6).values())}
    half = {node: [value / 2 for value in values] for node, values in slow.items()}
    findings = sweeps.judge_nodes([record(fleet(6)), record(half, key=other)])
    assert [finding.outcome for finding in findings] == ["pass"]


def finding(outcome: str) -> Finding:
    return Finding(gate="peers", outcome=outcome, text="text")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ((), 2),
        (("pass",), 0),
        (("pass", "unknown"), 0),
        (("unknown",), 2),
        (("pass", "warn"), 2),
        (("warn", "fail"), 1),
    ],
)
def test_the_exit_code_of_a_sweep(outcomes: tuple[str, ...], code: int) -> None:
    assert sweeps.exit_code([finding(outcome) for outcome in outcomes]) == code


def linked(slow: Mapping[tuple[int, int], float], world: int = 4, trains: int = 5) -> History:
    """Probes of 1 GB/s, of which some directions have a share of the rate."""
    rng = np.random.default_rng(world)
    bed = history.Bed(trial=history.trial(workload="collective"))
    bed.begin()
    bed.start()
    for rank in range(world):
        for peer in range(world):
            if rank != peer:
                rates = 1e9 * slow.get((rank, peer), 1.0) * np.exp(rng.normal(0, 0.003, trains))
                bed.rank(rank, "link.pair", peer=peer, trains=[float(1 / rate) for rate in rates])
    return bed.run().history


NODES = ("n0", "n1", "n2", "n3")
LEAVES = dict.fromkeys(NODES, 0)


@pytest.mark.parametrize(
    ("slow", "label"),
    [
        ({(1, 3): 0.8}, "direction n1 -> n3"),
        ({(1, 3): 0.8, (3, 1): 0.8}, "link n1 <-> n3"),
        ({(2, peer): 0.8 for peer in (0, 1, 3)}, "egress n2"),
        ({(peer, 2): 0.8 for peer in (0, 1, 3)}, "ingress n2"),
        ({pair: 0.8 for peer in (0, 1, 3) for pair in ((peer, 2), (2, peer))}, "node n2"),
    ],
)
def test_the_slow_part_of_four_nodes_is_named(slow: dict[tuple[int, int], float], label: str) -> None:
    sweep = sweeps.judge_pairs([linked(slow)], NODES, LEAVES)
    assert (sweep.finding.outcome, sweep.finding.culprits) == ("warn", (label,))
    assert sweep.medians[1, 2] > 0.75e9


def test_equal_links_pass_and_three_nodes_are_unknown() -> None:
    assert sweeps.judge_pairs([linked({})], NODES, LEAVES).finding.outcome == "pass"
    few = sweeps.judge_pairs([linked({(0, 1): 0.5}, world=3)], NODES[:3], LEAVES)
    assert few.finding.outcome == "unknown"
    assert sweeps.judge_pairs([], NODES, LEAVES).finding.outcome == "unknown"


def test_a_sweep_with_a_node_without_any_pair_does_not_pass() -> None:
    sweep = sweeps.judge_pairs([linked({}, world=4)], (*NODES, "n4"), {})
    assert (sweep.finding.outcome, sweeps.exit_code([sweep.finding])) == ("unknown", 2)
    assert sweep.finding.text.endswith("; not measured: n4")


def test_nodes_of_one_host_have_no_link_to_judge() -> None:
    slow = {(1, 3): 0.8}
    sweep = sweeps.judge_pairs([linked(slow)], NODES, LEAVES, dict.fromkeys(NODES, "localhost"))
    assert (sweep.finding.outcome, sweeps.exit_code([sweep.finding])) == ("unknown", 2)
    assert "not judged: n0, n1, n2 and n3 share host localhost" in sweep.finding.text
    other_hosts = {name: f"host of {name}" for name in NODES}
    assert sweeps.judge_pairs([linked(slow)], NODES, LEAVES, other_hosts).finding.culprits == ("direction n1 -> n3",)


def test_pairs_that_differ_without_a_pattern_are_unknown_and_no_pass() -> None:
    slow = {(0, 1): 0.8, (1, 2): 0.8, (2, 3): 0.8, (3, 0): 0.8, (0, 2): 0.8, (1, 3): 0.8}
    sweep = sweeps.judge_pairs([linked(slow)], NODES, LEAVES)
    assert sweep.finding.outcome != "pass"


def test_the_map_shows_each_direction_and_the_verdict_names_the_part() -> None:
    sweep = sweeps.judge_pairs([linked({(1, 3): 0.8})], NODES, LEAVES)
    out = io.StringIO()
    screen = terminal.Terminal(out=out, err=out)
    sweep_view.show(screen, [], sweep, [sweep.finding])
    sweep_view.conclude(screen, [sweep.finding], 2)
    text = out.getvalue()
    assert re.search(r"▒ 6\.[34]", text)
    assert "suspect   link rate: direction n1 -> n3 is 20% slower" in text
    assert "SUSPECT   direction n1 -> n3     exit 2" in text
    document = sweeps.document(sweep)
    assert document["rates_bytes_per_s"][0][0] is None
    assert document["culprits"][0]["parts"] == ["n1", "n3"]
