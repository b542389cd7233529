"""Floors of suites and baselines, and known defects: what must fail fails, and a floor that cannot be applied is no pass."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nightly import judging
from orchestrator.nightly.baselines import Baseline, Floor
from orchestrator.nightly.judging import shipped_floors
from orchestrator.nightly.night_judgement import NightJudgement
from orchestrator.nightly.suite import Cell, MetricRule, Row

from .night_bundles import figure, write_night
from .test_judging import NODES, bad, from_night, judge, rates, records_of, usual
from .test_judging_links import links

FLOOR = Cell(name="gemm", trial="probe", rules=(MetricRule(metric="gemm", floor=90.0),))


def test_the_floor_of_a_suite_fails_a_worse_node_and_only_that(tmp_path: Path) -> None:
    judgement = judge(tmp_path, from_night(1, "n1", 0.2), nights=0, cells=[FLOOR])
    assert bad(judgement, "floor") == [("floor", "n1", "fail")]
    assert (judgement.outcome, judgement.exit) == ("fail", 1)


def test_a_metric_that_a_node_lacks_fails_its_floor(tmp_path: Path) -> None:
    without = [[line for line in repeat if line["node"] != "n4"] for repeat in rates(usual, 1)]
    judgement = judging.judge(write_night(tmp_path, 1, {"gemm": without}, nodes=NODES, cells=[FLOOR]), ())
    assert bad(judgement) == [("floor", "n4", "fail")]
    assert judgement.sentence.startswith("n4: gemm was not measured; its floor is 90")


def of_ranks(*absent: str) -> list[list[dict[str, Any]]]:
    """A rate of each of two ranks of four nodes."""
    labels = [(node, rank) for node in range(4) for rank in range(2) if f"n{node}:{rank}" not in absent]
    lines = [figure("gemm", 100.0, "TFLOP/s", "higher", node=f"n{node}", rank=2 * node + rank) for node, rank in labels]
    return [lines]


@pytest.mark.parametrize(
    ("absent", "failed"),
    [((), []), (("n3:0", "n3:1"), ["n3"]), (("n3:1",), ["n3:1"]), (("n0:0", "n1:1"), ["n0:0", "n1:1"])],
)
def test_a_node_or_rank_without_the_metric_of_the_others_fails_its_floor(
    tmp_path: Path, absent: tuple[str, ...], failed: list[str]
) -> None:
    options: dict[str, Any] = {"nodes": NODES[:4], "ranks_per_node": 2, "cells": [FLOOR]}
    judgement = judging.judge(write_night(tmp_path, 1, {"gemm": of_ranks(*absent)}, **options), ())
    assert bad(judgement) == [("floor", label, "fail") for label in failed]


#: Inventories of nodes as nvidia-smi and the kernel named them, and a figure of a sound node of them.
KNOWN = {
    "NVIDIA H100 80GB HBM3": ("memory device copy", "GB/s", 2890.0),
    "NVIDIA H200": ("memory device triad", "GB/s", 4140.0),
    "NVIDIA A100-SXM4-80GB": ("gemm float16", "TFLOP/s", 252.0),
    "NVIDIA A100-SXM4-40GB": ("copy to device", "GB/s", 24.6),
}


def shipped(tmp_path: Path, gpu: str, slow: float, metric: str, unit: str, usual: float, **more: Any) -> NightJudgement:
    lines = [figure(metric, usual * (slow if node == "n1" else 1), unit, "higher", node=node) for node in NODES[:2]]
    facts = {node: {"gpus": [gpu] * 8, "memory_mib": 1_864_000} for node in NODES[:2]}
    more = {"facts": facts, "device": gpu, **more}
    return judging.judge(write_night(tmp_path, 1, {"probe": [lines] * 3}, nodes=NODES[:2], **more), ())


@pytest.mark.parametrize("gpu", KNOWN)
def test_a_first_night_on_known_hardware_is_compared_with_the_limit_that_is_shipped(tmp_path: Path, gpu: str) -> None:
    sound = shipped(tmp_path / "sound", gpu, 1.0, *KNOWN[gpu])
    assert (sound.outcome, sound.exit) == ("pass", 0)
    [judged] = [judged for judged in sound.findings if judged.finding.node == "n1" and judged.finding.gate == "floor"]
    assert judged.reference.startswith(f"the limit that ccbed ships for {gpu}: ") and "https://" in judged.reference
    slow = shipped(tmp_path / "slow", gpu, 0.7, *KNOWN[gpu])
    assert ("floor", "n1", "warn") in bad(slow) and slow.exit == 0  # it never fails
    two = {node: {"gpus": [gpu] * 7 + ["Tesla T4"]} for node in NODES[:2]}
    others: list[dict[str, Any]] = [{"device": f"{gpu} MIG 1g.10gb"}, {"facts": two}, {"device": ""}]
    for number, other in enumerate(
        others
    ):  # torch names what was measured: the driver gives a slice the name of its GPU
        findings = shipped(tmp_path / str(number), gpu, 0.1, *KNOWN[gpu], **other).findings
        assert not [judged for judged in findings if judged.finding.gate == "floor"], other


def test_a_limit_that_is_shipped_and_met_is_no_unexpected_pass_of_a_known_defect(tmp_path: Path) -> None:
    cell = Cell(name="probe", trial="probe", rules=(MetricRule(metric="memory *", xfail="NET-12"),))
    sound = shipped(tmp_path, "NVIDIA H200", 1.0, *KNOWN["NVIDIA H200"], cells=[cell])
    assert (sound.outcome, sound.exit, bad(sound)) == ("pass", 0, [])


def test_every_shipped_limit_has_a_source_and_lies_below_its_data_sheet() -> None:
    limits = shipped_floors.read()
    assert all(limit.floor < limit.reached < limit.sheet and "https://" in limit.source for limit in limits)
    assert len({(limit.part, limit.metric) for limit in limits}) == len(limits)


def test_a_baseline_replaces_the_limits_that_are_shipped(tmp_path: Path) -> None:
    slow = shipped(tmp_path, "NVIDIA H200", 0.7, *KNOWN["NVIDIA H200"])
    [hardware] = {judged.key.hardware for judged in slow.findings if judged.key}
    floor = Floor(
        metric="gemm", floor=1.0, unit="TFLOP/s", better="higher", measured=1.0, margin=0.1, n=1, evidence=(), accepted="2026-01-01",
        trial="gemm", workload="node-probe",
    )  # fmt: skip
    [directory] = [path for path in tmp_path.iterdir() if path.is_dir()]
    judgement = judging.judge(directory, (), [Baseline(hardware=hardware, floors=(floor,))])
    assert not bad(judgement, "floor")


@pytest.mark.parametrize("lost", ["", "n3"])
def test_a_node_without_any_link_fails_the_floor_of_links(tmp_path: Path, lost: str) -> None:
    lines = [line for line in links({})[0] if "3" not in line["metric"] or not lost]
    rule = Cell(name="links", trial="probe", rules=(MetricRule(metric="link beta", floor=2e-9),))
    options: dict[str, Any] = {"nodes": NODES[:6], "workload": "collective", "cells": [rule]}
    judgement = judging.judge(write_night(tmp_path, 1, {"links": [lines]}, **options), ())
    assert bad(judgement, "floor") == ([("floor", lost, "fail")] if lost else [])


@pytest.mark.parametrize(("workload", "outcome"), [("train-dp", "pass"), ("node-probe", "fail")])
def test_a_figure_that_rank_0_reports_for_the_gang_is_missing_on_no_other_node(
    tmp_path: Path, workload: str, outcome: str
) -> None:
    figures_of_rank_0 = [[figure("gemm", 100.0, "TFLOP/s", "higher", node="n0", rank=0)]]
    night = write_night(tmp_path, 1, {"gemm": figures_of_rank_0}, nodes=NODES, workload=workload, cells=[FLOOR])
    assert judging.judge(night, ()).outcome == outcome


def test_a_metric_that_no_run_has_fails_its_floor_but_a_skipped_cell_does_not(tmp_path: Path) -> None:
    rule = dataclasses.replace(FLOOR, rules=(MetricRule(metric="memory", floor=1.0),))
    judgement = judging.judge(write_night(tmp_path / "a", 1, {"gemm": rates(usual, 1)}, nodes=NODES, cells=[rule]), ())
    assert bad(judgement) == [("floor", None, "fail")]
    skipped = dataclasses.replace(rule, name="memory")
    row = Row(cell="memory", repeat=0, state="skipped", reason="over the budget")
    night = write_night(tmp_path / "b", 1, {"gemm": rates(usual, 1)}, nodes=NODES, cells=[skipped], rows=[row])
    assert judging.judge(night, ()).outcome == "pass"


def baseline_of(directory: Path, **changes: Any) -> Baseline:
    record = records_of(directory)[0]
    floor = Floor(
        metric="gemm", floor=90, unit="TFLOP/s", better="higher", measured=100, margin=0.1, n=5, evidence=("r",),
        accepted="2026-01-01", trial="probe", workload=record.key.workload, parameters=record.key.parameters,
    )  # fmt: skip
    return Baseline(hardware=record.key.hardware, floors=(dataclasses.replace(floor, **changes),), file="h100.yml")


def test_the_floor_of_a_baseline_holds_for_its_hardware_only(tmp_path: Path) -> None:
    night = write_night(tmp_path, 1, {"gemm": rates(from_night(1, "n1", 0.2), 1)}, nodes=NODES)
    [failed] = [judged for judged in judging.judge(night, (), [baseline_of(night)]).findings if judged.state == "fail"]
    assert (failed.finding.node, failed.finding.gate) == ("n1", "floor")
    assert failed.reference == "the floor of h100.yml, accepted 2026-01-01, 10% below 100 TFLOP/s"
    other = dataclasses.replace(baseline_of(night), hardware="8x H200")
    assert bad(judging.judge(night, (), [other]), "floor") == []


def test_a_metric_of_a_baseline_that_is_missing_fails_and_one_in_another_unit_is_unknown(tmp_path: Path) -> None:
    night = write_night(tmp_path, 1, {"gemm": rates(usual, 1)}, nodes=NODES)
    assert bad(judging.judge(night, (), [baseline_of(night, metric="disk")])) == [("floor", None, "fail")]
    other_unit = judging.judge(night, (), [baseline_of(night, unit="GFLOP/s")])
    assert (other_unit.outcome, other_unit.exit) == ("unknown", 2)
    assert bad(judging.judge(night, (), [baseline_of(night, metric="disk", trial="other")])) == []


def test_a_floor_for_other_parameters_than_those_of_tonight_is_unknown_with_both_named(tmp_path: Path) -> None:
    night = write_night(tmp_path, 1, {"gemm": rates(usual, 1)}, nodes=NODES)
    accepted = baseline_of(night, parameters="size=9")
    judgement = judging.judge(night, (), [accepted])
    assert (judgement.outcome, judgement.exit) == ("unknown", 2)
    tonight = baseline_of(night).floors[0].parameters
    assert "size=9" in judgement.sentence and tonight in judgement.sentence
    both = dataclasses.replace(accepted, floors=(*accepted.floors, *baseline_of(night).floors))
    judgement = judging.judge(night, (), [both])
    assert (judgement.outcome, judgement.notes) == ("pass", ("h100.yml: floors of probe: not measured by this suite",))


def test_floors_of_another_trial_or_hardware_are_notes(tmp_path: Path) -> None:
    night = write_night(tmp_path, 1, {"gemm": rates(usual, 1)}, nodes=NODES)
    judgement = judging.judge(night, (), [baseline_of(night, metric="disk", trial="disk", parameters="size=9")])
    assert (judgement.outcome, judgement.notes) == ("pass", ("h100.yml: floors of disk: not measured by this suite",))
    other = dataclasses.replace(baseline_of(night), hardware="8x H200")
    assert "; they are for 8x H200" in judging.judge(night, (), [other]).notes[0]


def test_a_floor_of_a_trial_that_was_run_without_any_figure_fails(tmp_path: Path) -> None:
    disk = Cell(name="disk", trial="disk")
    row = Row(cell="disk", repeat=0, state="error", exit=4, reason="node n3 is lost")
    night = write_night(tmp_path, 1, {"gemm": rates(usual, 1)}, nodes=NODES, cells=[disk], rows=[row])
    baseline = baseline_of(night, metric="disk", trial="disk", parameters="size=9")
    assert ("floor", None, "fail") in bad(judging.judge(night, (), [baseline]))
    skipped = dataclasses.replace(row, state="skipped", exit=None)
    night = write_night(tmp_path / "skipped", 1, {"gemm": rates(usual, 1)}, nodes=NODES, cells=[disk], rows=[skipped])
    assert judging.judge(night, (), [baseline]).outcome == "pass"


def test_a_known_defect_is_expected_and_an_unexpected_pass_fails(tmp_path: Path) -> None:
    rules = (MetricRule(metric="gemm", floor=90.0, xfail="OPS-17"),)
    cell = dataclasses.replace(FLOOR, rules=rules)
    expected = judge(tmp_path / "a", from_night(1, "n1", 0.2), nights=0, cells=[cell])
    assert (expected.outcome, expected.exit) == ("pass", 0)
    assert ("floor", "n1", "xfail") in bad(expected)
    unexpected = judge(tmp_path / "b", usual, nights=0, cells=[cell])
    assert (unexpected.outcome, unexpected.exit, bad(unexpected)) == ("fail", 1, [("xfail", None, "xpass")])
    assert "OPS-17" in unexpected.sentence


def test_a_known_defect_of_a_node_that_took_no_part_is_no_unexpected_pass(tmp_path: Path) -> None:
    cell = dataclasses.replace(FLOOR, rules=(MetricRule(metric="gemm", floor=90.0, xfail="OPS-17"),))
    before = write_night(tmp_path / "before", 1, {"gemm": rates(from_night(1, "n1", 0.2), 1)}, nodes=NODES)
    rest = [node for node in NODES if node != "n1"]
    directory = write_night(tmp_path, 2, {"gemm": rates(usual, 2, nodes=rest)}, nodes=rest, cells=[cell])
    document = json.loads((directory / "night.json").read_text())
    document["hosts"]["n1"] = "host-n1"
    (directory / "night.json").write_text(json.dumps(document))
    judgement = judging.judge(directory, records_of(before))
    assert (judgement.outcome, bad(judgement)) == ("pass", [])


def tickets(**rule: Any) -> list[Cell]:
    return [Cell(name="gemm", trial="probe", rules=(MetricRule(metric="gemm", floor=90.0, **rule),))]


def slow(*nodes: str) -> Any:
    return lambda night, node, repeat: usual(night, node, repeat) * (0.8 if node in nodes else 1)


def test_a_node_that_turns_bad_under_a_ticket_is_a_failure(tmp_path: Path) -> None:
    cells = tickets(xfail="NET-12")
    first = judge(tmp_path / "first", slow("n3"), nights=0, cells=cells)
    assert bad(first, "floor") == [("floor", "n3", "xfail")]
    night = write_night(tmp_path, 2, {"gemm": rates(slow("n3", "n5"), 2)}, nodes=NODES, cells=cells)
    second = judging.judge(night, (), (), (), [first])
    assert bad(second, "floor") == [("floor", "n3", "xfail"), ("floor", "n5", "fail")]
    assert (second.outcome, second.exit) == ("fail", 1)
    assert "NET-12 does not cover it: n5 was not bad under it before" in second.sentence
    third = judging.judge(night, (), (), (), [second, first])
    assert ("floor", "n5", "fail") in bad(third), "a node that was reported is not covered later"
    same = write_night(tmp_path / "same", 2, {"gemm": rates(slow("n3"), 2)}, nodes=NODES, cells=cells)
    assert judging.judge(same, (), (), (), [first]).outcome == "pass"


def test_a_ticket_with_nodes_covers_these_only(tmp_path: Path) -> None:
    cells = tickets(xfail="NET-12", xfail_nodes=("n3", "n4"))
    judgement = judge(tmp_path / "a", slow("n3", "n5"), nights=0, cells=cells)
    assert bad(judgement, "floor", "xfail") == [
        ("floor", "n3", "xfail"), ("floor", "n5", "fail"), ("xfail", "n4", "xpass"),
    ]  # fmt: skip
    assert judge(tmp_path / "b", slow("n3", "n4"), nights=0, cells=cells).outcome == "pass"


def test_cells_with_equal_keys_have_the_rules_of_both(tmp_path: Path) -> None:
    """One trial under two names is one series: the strictest floor holds, and a ticket of either cell."""
    loose, strict = (
        Cell(name=name, trial="probe", rules=(MetricRule(metric="gemm", floor=floor),))
        for name, floor in (("loose", 10.0), ("strict", 90.0))
    )
    both = {"loose": rates(slow("n3"), 1), "strict": rates(slow("n3"), 1)}
    judgement = judging.judge(write_night(tmp_path / "a", 1, both, nodes=NODES, cells=[loose, strict]), ())
    assert bad(judgement, "floor") == [("floor", "n3", "fail")]
    ticket = dataclasses.replace(strict, rules=(MetricRule(metric="gemm", xfail="NET-12"),))
    floor = dataclasses.replace(loose, rules=strict.rules)
    judgement = judging.judge(write_night(tmp_path / "b", 1, both, nodes=NODES, cells=[floor, ticket]), ())
    assert (judgement.outcome, bad(judgement, "floor")) == ("pass", [("floor", "n3", "xfail")])
    peers = {judged.state for judged in judgement.findings if judged.finding.node == "n3"}
    assert "warn" not in peers


def test_two_tickets_of_one_metric_are_no_unexpected_pass(tmp_path: Path) -> None:
    rules = (MetricRule(metric="gemm", floor=90.0, xfail="A-1"), MetricRule(metric="*gemm*", xfail="B-2"))
    cell = Cell(name="gemm", trial="probe", rules=rules)
    assert judge(tmp_path, slow("n3"), nights=0, cells=[cell]).outcome == "pass"


def _clocks(absent: Sequence[str] = ("n0",)) -> list[list[dict[str, Any]]]:
    """The offsets of four nodes, and a figure that all of them have."""
    offsets = [figure("clock offset", 1e-4, node=f"n{n}", rank=n) for n in range(4) if f"n{n}" not in absent]
    bounds = [figure("clock offset bound", 1e-5, node=f"n{n}", rank=n) for n in range(1, 4)]
    return [[*offsets, *bounds, *(figure("gemm", 9.0, "TFLOP/s", "higher", node=f"n{n}", rank=n) for n in range(4))]]


CLOCK: dict[str, Any] = {"metric": "clock offset", "unit": "s", "better": "lower", "floor": 2e-4, "measured": 1e-4}
BOOTS: dict[str, Any] = {"facts": {f"n{n}": {"boot": f"boot-{n}"} for n in range(4)}}
SHARED: dict[str, Any] = {"facts": {f"n{n}": {"boot": f"boot-{n // 2}"} for n in range(4)}}


@pytest.mark.parametrize(
    ("absent", "options", "failed"),
    [
        (["n0"], BOOTS, []),
        (["n0", "n2"], BOOTS, ["n2"]),
        (["n0", "n1"], BOOTS, ["n1"]),
        (["n0", "n1"], SHARED, []),
        (["n0", "n1", "n3"], SHARED, ["n3"]),
        (["n0", "n1"], {}, ["n1"]),
    ],
    ids=["the reference", "another", "a neighbour", "with its clock", "another clock", "clocks not known"],
)
def test_the_node_with_the_reference_clock_has_no_offset_and_every_other_node_must_have_one(
    absent: Sequence[str], options: dict[str, Any], failed: list[str], tmp_path: Path
) -> None:
    rules = tuple(MetricRule(metric=name, floor=2e-4) for name in ("clock offset bound", "clock offset"))
    suite = Cell(name="probe", trial="probe", rules=rules[:1])
    night = write_night(tmp_path, 1, {"probe": _clocks(absent)}, nodes=NODES[:4], cells=[suite], **options)
    judgement = judging.judge(night, (), [baseline_of(night, **CLOCK)])
    assert bad(judgement, "floor") == [("floor", node, "fail") for node in failed]
    assert judgement.outcome == ("fail" if failed else "pass")


@pytest.mark.parametrize(("nodes", "state"), [(1, None), (4, "fail")], ids=["the reference alone", "others too"])
def test_an_offset_that_no_node_has_is_missing_where_a_node_could_have_it(
    nodes: int, state: str | None, tmp_path: Path
) -> None:
    gemm = [[line for line in _clocks()[0] if line["metric"] == "gemm"][:nodes]]
    night = write_night(tmp_path, 1, {"probe": gemm}, nodes=NODES[:nodes], **BOOTS)
    floors = bad(judging.judge(night, (), [baseline_of(night, **CLOCK)]), "floor")
    assert floors == ([("floor", None, state)] if state else [])


def test_a_drift_that_is_too_small_to_be_shown_is_not_missing(tmp_path: Path) -> None:
    drift = figure("clock drift", 1e-6, "s/s", node="n1", rank=1)
    night = write_night(tmp_path, 1, {"probe": [[*_clocks()[0], drift]]}, nodes=NODES[:4], **BOOTS)
    floor = {**CLOCK, "metric": "clock drift", "unit": "s/s"}
    assert bad(judging.judge(night, (), [baseline_of(night, **{**floor, "floor": 2e-6})])) == []
    assert bad(judging.judge(night, (), [baseline_of(night, **{**floor, "floor": 1e-7})])) == [("floor", "n1", "fail")]


def test_a_drift_that_earlier_nights_could_show_is_not_missed(tmp_path: Path) -> None:
    drift = figure("clock drift", 1e-6, "s/s", node="n1", rank=1)
    before = write_night(tmp_path / "a", 1, {"probe": [[*_clocks()[0], drift]]}, nodes=NODES[:4], **BOOTS)
    for name, figures, outcome in (("b", _clocks(), "pass"), ("c", _clocks([f"n{n}" for n in range(4)]), "unknown")):
        night = write_night(tmp_path / name, 2, {"probe": figures}, nodes=NODES[:4], **BOOTS)
        judgement = judging.judge(night, records_of(before))
        assert judgement.outcome == outcome, judgement.sentence
    assert "clock offset was not measured" in judgement.sentence
