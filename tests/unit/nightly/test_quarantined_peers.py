"""A node in quarantine is still judged, and is no reference for the other nodes: neither in a night nor in a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.nightly import judging, sweeps
from orchestrator.nightly.night_judgement import NightJudgement

from .night_bundles import figure, write_night
from .test_judging import NODES
from .test_judging_links import links
from .test_sweeps import fleet, record

SIX = NODES[:6]


def judge_rates(tmp_path: Path, slow: float, *quarantined: str) -> NightJudgement:
    rates = [
        [
            figure("gemm", (slow if node == "n5" else 100.0) + repeat / 10, "TFLOP/s", "higher", node=node)
            for node in SIX
            for repeat in range(3)
        ]
    ]
    return judging.judge(write_night(tmp_path, 1, {"gemm": rates}, nodes=SIX), (), (), quarantined)


def texts(judgement: NightJudgement) -> list[str]:
    return [
        f"{judged.state} {judged.finding.text}" for judged in judgement.findings if judged.finding.gate == "reference"
    ]


def test_a_night_has_no_peer_in_quarantine(tmp_path: Path) -> None:
    """A node in quarantine is judged beside the others, and moves none of them."""
    for slow in (100.0, 20.0):
        judgement = judge_rates(tmp_path / f"{slow:g}", slow, "n5", "n4")
        assert {judged.finding.node for judged in judgement.cells if judged.state == "pass"} >= {"n0", "n1", "n2", "n3"}
        excesses = [
            judged.compared.excess for judged in judgement.cells if judged.compared and judged.finding.node != "n5"
        ]
        assert excesses == [0.0] * 5


def test_a_night_still_measures_a_node_in_quarantine(tmp_path: Path) -> None:
    judgement = judge_rates(tmp_path / "bad", 50.0, "n5")
    assert (judgement.outcome, judgement.exit) == ("pass", 0)
    assert any(text.startswith("xfail n5: gemm is -50.0% beside 5 equal nodes") for text in texts(judgement))
    assert judge_rates(tmp_path / "control", 50.0).outcome == "warn"


@pytest.mark.parametrize(("quarantined", "outcome"), [(("n1",), "pass"), ((), "warn")])
def test_pairs_of_a_node_in_quarantine_are_an_expected_defect(
    tmp_path: Path, quarantined: tuple[str, ...], outcome: str
) -> None:
    options: dict[str, Any] = {"nodes": SIX, "workload": "collective"}
    directory = write_night(tmp_path, 1, {"links": links({"n1->n4": 1.25})}, **options)
    judgement = judging.judge(directory, (), (), quarantined)
    assert judgement.outcome == outcome
    states = {judged.finding.gate: judged.state for judged in judgement.findings if judged.state != "pass"}
    assert states == ({"reference": "xfail"} if quarantined else {"reference": "warn", "pairs": "warn"})


def test_pairs_name_another_slow_direction_beside_a_node_in_quarantine(tmp_path: Path) -> None:
    slow = {"n1->n4": 1.25, "n3->n0": 1.3}
    directory = write_night(tmp_path, 1, {"links": links(slow)}, nodes=SIX, workload="collective")
    judgement = judging.judge(directory, (), (), ("n1",))
    [judged] = [judged for judged in judgement.findings if judged.state == "warn" and judged.finding.gate == "pairs"]
    assert judged.finding.culprits == ("direction n3 -> n0",)


def test_a_sweep_has_no_peer_in_quarantine() -> None:
    (finding,) = sweeps.judge_nodes([record(fleet(8, n3=0.9))], quarantined=("n3",))
    assert (finding.outcome, finding.culprits) == ("warn", ("n3",))
    assert "worse than the median of 7 peers" in finding.text
    assert finding.text.endswith(", and is set aside")
    (finding,) = sweeps.judge_nodes([record(fleet(3))], quarantined=("n2",))
    assert (finding.outcome, finding.text) == ("unknown", "gemm float32: 2 nodes of equal hardware; 3 are needed")
    (finding,) = sweeps.judge_nodes([record(fleet(3))])
    assert finding.outcome == "pass"


def test_nodes_that_are_all_in_quarantine_have_no_peers() -> None:
    (finding,) = sweeps.judge_nodes([record(fleet(3))], quarantined=tuple(f"n{i}" for i in range(6)))
    assert finding.outcome == "unknown"
