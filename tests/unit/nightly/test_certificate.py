"""The acceptance certificate: rejected, accepted or not decided, never accepted without a floor."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.errors import UsageError
from orchestrator.nightly import judging, night_files, row_states
from orchestrator.nightly.baselines import Baseline
from orchestrator.nightly.reports import certificate
from orchestrator.nightly.suite import MetricRule
from orchestrator.store import seal
from orchestrator.system import plain_files

from .night_bundles import figure, write_night
from .test_culprits import FLOOR, NODES, rates
from .test_judging_floors import baseline_of


def certify(
    directory: Path,
    baselines: Sequence[Baseline] = (),
    quarantined: Sequence[str] = (),
    night: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Judge a night and write its certificate. ``night``: fields of it that differ."""
    file = directory / "night.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **(night or {})}))
    night_files.write_judgement(directory, judging.judge(directory, (), baselines, quarantined))
    return certificate.write(directory)


def certified(
    tmp_path: Path, *slow: str, has_floor: bool = True, nodes: tuple[str, ...] = NODES
) -> tuple[Path, dict[str, Any]]:
    cell = FLOOR if has_floor else dataclasses.replace(FLOOR, rules=())
    directory = write_night(tmp_path, 1, {"gemm": rates(*slow)}, nodes=nodes, cells=[cell])
    return directory, certify(directory)


def test_a_cluster_that_meets_its_floors_is_accepted_with_its_figures(tmp_path: Path) -> None:
    directory, document = certified(tmp_path)
    assert (document["decision"], document["exit"]) == ("ACCEPTED", 0)
    node = document["nodes"][2]
    assert (node["node"], node["host"], node["hardware"]) == ("n2", "host-n2", "8x H100, 64x Xeon, 512 GiB")
    assert node["versions"]["driver"] == "580.159"
    floor = "n2", "the floor of the suite for gemm"
    [row] = [row for row in document["figures"] if (row["of"], row["compared_with"]) == floor]
    parts = [row[name] for name in ("value", "measured", "reference", "change")]
    assert parts == [100.0, "100 TFLOP/s", "90 TFLOP/s", "+11.1 %"]
    of_peers = "3 equal nodes in the same night"
    assert json.loads((directory / certificate.DOCUMENT).read_text()) == document
    text = (directory / certificate.SUMMARY).read_text()
    assert all(f"| gemm | {node} | 100 TFLOP/s | pass | +0.0 % | 11 % |  | {of_peers} |" in text for node in NODES)


def test_a_node_below_its_floor_is_named_and_the_cluster_rejected(tmp_path: Path) -> None:
    directory, document = certified(tmp_path, "n2")
    assert (document["decision"], document["exit"]) == ("REJECTED", 1)
    assert [node["node"] for node in document["nodes"] if node["outcome"] == "fail"] == ["n2"]
    row = "| gemm | n2 | 80 TFLOP/s | fail | -11.1 % |  | 90 TFLOP/s | the floor of the suite for gemm |"
    assert row in (directory / certificate.SUMMARY).read_text()


def test_without_a_floor_nothing_is_accepted(tmp_path: Path) -> None:
    _, document = certified(tmp_path, has_floor=False)
    assert (document["decision"], document["exit"]) == ("NOT DECIDED", 2)
    names = "n0, n1, n2, n3 (8x H100, 64x Xeon, 512 GiB)"
    assert document["not_checked"][0] == f"floors: none for {names}; ccbed baseline accept writes them"
    assert [node["outcome"] for node in document["nodes"]] == ["not judged"] * 4


def of_h200(tmp_path: Path, gemm: float | None, copy: float | None) -> dict[str, Any]:
    lines = [
        figure(name, value, unit, "higher", node=node) for node in NODES
        for name, value, unit in (("gemm bfloat16", gemm, "TFLOP/s"), ("memory device copy", copy, "GB/s")) if value
    ]  # fmt: skip
    facts = {node: {"gpus": ["NVIDIA H200"] * 8} for node in NODES}
    return certify(write_night(tmp_path, 1, {"memory": [lines] * 3}, nodes=NODES, facts=facts, device="NVIDIA H200"))


@pytest.mark.parametrize(("gemm", "copy"), [(400.0, 3950.0), (740.0, 2000.0), (740.0, None), (None, 3950.0)])
def test_limits_that_are_shipped_decide_nothing_where_one_is_not_met_or_nothing_is_known_of_compute_or_of_memory(
    tmp_path: Path, gemm: float | None, copy: float | None
) -> None:
    document = of_h200(tmp_path, gemm, copy)
    assert (document["decision"], document["exit"]) == ("NOT DECIDED", 2)


def test_known_hardware_is_accepted_without_a_baseline_and_the_certificate_says_what_it_was_compared_with(
    tmp_path: Path,
) -> None:
    document = of_h200(tmp_path, 740.0, 3950.0)
    assert (document["decision"], document["exit"]) == ("ACCEPTED", 0)
    [of_n0] = [row for row in document["figures"] if row["of"] == "n0" and row["reference"] == "3.41 TB/s"]
    assert of_n0["compared_with"].startswith("the limit that ccbed ships for NVIDIA H200: 4010 GB/s is reached of 4800")


def test_a_node_whose_hardware_has_no_floor_leaves_the_cluster_undecided(tmp_path: Path) -> None:
    """The floors are of eight GPUs; a node that has lost one meets none of them."""
    for name, facts in (("seven", {"n2": {"gpus": ["H100"] * 7}}), ("eight", {})):
        directory = write_night(tmp_path / name, 1, {"gemm": rates()}, nodes=NODES, facts=facts)
        eight = baseline_of(write_night(tmp_path / f"{name} before", 1, {"gemm": rates()}, nodes=NODES))
        document = certify(directory, [eight])
        if name == "eight":
            assert (document["decision"], document["exit"]) == ("ACCEPTED", 0)
            continue
        assert (document["decision"], document["exit"]) == ("NOT DECIDED", 2)
        assert [node["outcome"] for node in document["nodes"]] == ["pass", "pass", "not judged", "pass"]
        text = "floors: none for n2 (7x H100, 64x Xeon, 512 GiB); ccbed baseline accept writes them"
        assert text in document["not_checked"]
        assert f"- {text}" in (directory / certificate.SUMMARY).read_text()


def test_a_node_that_is_like_its_peers_is_not_judged_without_a_floor(tmp_path: Path) -> None:
    nodes = tuple(f"n{number}" for number in range(6))
    lines = [[figure("gemm", 100.0 + number / 10, "TFLOP/s", "higher", node=node) for number, node in enumerate(nodes)]]
    directory = write_night(tmp_path, 1, {"gemm": lines}, nodes=nodes)
    findings = judging.judge(directory, ()).findings
    assert {judged.finding.gate for judged in findings if judged.state == "pass"} == {"reference"}
    assert {node["outcome"] for node in certify(directory)["nodes"]} == {"not judged"}


def test_a_failure_that_a_ticket_expects_is_not_accepted(tmp_path: Path) -> None:
    rules = (MetricRule(metric="gemm", floor=90.0, xfail="OPS-17"),)
    directory = write_night(
        tmp_path, 1, {"gemm": rates("n2")}, nodes=NODES, cells=[dataclasses.replace(FLOOR, rules=rules)]
    )
    document = certify(directory)
    assert (document["decision"], document["exit"]) == ("NOT DECIDED", 2)
    assert [node["outcome"] for node in document["nodes"]] == ["pass", "pass", "xfail", "pass"]


def test_nodes_that_took_no_part_are_said(tmp_path: Path) -> None:
    directory = write_night(tmp_path, 1, {"gemm": rates()}, nodes=NODES, cells=[FLOOR])
    result = certify(directory, night={"hosts": {**night_files.read_night(directory).hosts, "n9": "h9"}})
    assert "n9: took part in no run" in result["not_checked"]
    assert result["nodes"][-1]["outcome"] == "not measured"


def test_a_cluster_with_a_node_in_quarantine_is_not_accepted(tmp_path: Path) -> None:
    """Its failures are expected in a night, and so is its pass: only a release says that it is healthy."""
    for name, slow in (("bad", ("n2",)), ("healthy", ())):
        directory = write_night(tmp_path / name, 1, {"gemm": rates(*slow)}, nodes=NODES, cells=[FLOOR])
        result = certify(directory, (), ["n2"], night={"quarantined": {"n2": "is set aside since x: y"}})
        assert (result["decision"], result["exit"]) == ("NOT DECIDED", 2)
        assert "n2 is set aside since x: y" in result["not_checked"]
        assert [node["outcome"] for node in result["nodes"]] == ["pass", "pass", "set aside", "pass"]


@pytest.mark.parametrize("state", ["drained", "lost"])
def test_a_cluster_with_a_node_on_a_drained_host_or_that_lost_one_is_not_accepted(tmp_path: Path, state: str) -> None:
    """The night itself is judged by the others."""
    lost = [row_states.of_node("n9", "is dead; no memory left")] if state == "lost" else []
    directory = write_night(tmp_path, 1, {"gemm": rates()}, nodes=NODES, cells=[FLOOR], rows=lost)
    result = certify(directory, night={} if lost else {"drained": {"n9": "is on host h9, which is set aside"}})
    judgement = judging.judge(directory, ())
    assert (judgement.outcome, judgement.exit) == ("pass", 0)
    assert lost or "n9 is on host h9, which is set aside; it takes no part" in judgement.notes
    assert (result["decision"], result["exit"]) == ("NOT DECIDED", 2)
    text = "node: n9: is dead; no memory left" if lost else "n9 is on host h9, which is set aside"
    assert text in result["not_checked"]


def test_the_certificate_and_its_evidence_are_sealed(tmp_path: Path) -> None:
    directory, _ = certified(tmp_path)
    sums = seal.read(directory, certificate.SEAL)
    assert {certificate.DOCUMENT, certificate.SUMMARY, "findings.json", seal.MANIFEST} <= set(sums)
    assert all(plain_files.sha256(directory / name) == digest for name, digest in sums.items())
    assert any(name.startswith("runs/") for name in sums)


def test_a_night_that_was_not_judged_has_no_certificate(tmp_path: Path) -> None:
    directory = write_night(tmp_path, 1, {"gemm": [[figure("gemm", 1.0, node="n0")]]})
    with pytest.raises(UsageError, match="not judged yet"):
        certificate.write(directory)
