"""The files of a night for programs: JUnit XML by its schema, metrics for Prometheus, and a dashboard over their names."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import xmlschema
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.nightly.night_judgement import Judged
from orchestrator.nightly.records import Finding
from orchestrator.nightly.reports import night_gauges, night_junit
from orchestrator.nightly.reports.night_report import NightReport

from . import synthetic_nights
from .test_night_reports import REPORTS, bad, clean, first, judge, judged, of_every_kind, text_of

XSD = Path(__file__).parents[2] / "golden" / "formats" / "junit.xsd"


# --- JUnit --------------------------------------------------------------------------------------------------------------


def cases(report: NightReport) -> dict[str, str]:
    """Suite and case -> its tag."""
    root = ET.fromstring(night_junit.render(report))
    return {
        f"{suite.get('name', '').removeprefix('ccbed.standard.')}/{case.get('name')}": next(
            (child.tag for child in case if child.tag != "system-out"), "passed"
        )
        for suite in root
        for case in suite.iter("testcase")
    }


@of_every_kind
def test_junit_keeps_to_the_schema(kind: str) -> None:
    schema = xmlschema.XMLSchema(str(XSD))
    text = night_junit.render(REPORTS[kind]()).decode()
    schema.validate(text.split("?>", 1)[1])
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        schema.validate(text.split("?>", 1)[1].replace("testcase ", "testcase file='x' "))


def test_junit_has_a_case_per_repeat_and_per_metric_and_node() -> None:
    tags = cases(bad())
    assert {name: tags[name] for name in ("gemm/repeat 1", "crash-node/repeat 2", "crash-node/repeat 3", "copies/repeat 3")} == {
        "gemm/repeat 1": "passed", "crash-node/repeat 2": "failure", "crash-node/repeat 3": "failure", "copies/repeat 3": "error",
    }  # fmt: skip
    assert (tags["gemm: rate/n5"], tags["gemm: rate/n4"]) == ("failure", "passed")
    assert tags["all-reduce: busbw/n1"] == "passed"
    assert tags["late/run"] == "skipped"


@pytest.mark.parametrize(
    ("state", "tag"), [("pass", "passed"), ("warn", "passed"), ("fail", "failure"), ("xpass", "failure"), ("xfail", "skipped"),
                       ("unknown", "error")]
)  # fmt: skip
def test_junit_tag_of_a_finding(state: str, tag: str) -> None:
    assert cases(judge(clean(), judged(state)))["gemm: rate/n1"] == tag


def test_a_gate_without_a_history_does_not_count() -> None:
    early = judged("unknown", gate="relative", is_counted=False)
    assert cases(judge(clean(), early))["gemm: rate/n1"] == "skipped"
    assert cases(judge(clean(), early, judged("pass")))["gemm: rate/n1"] == "passed"
    assert cases(judge(clean(), early, judged("unknown", gate="pairs")))["gemm: rate/n1"] == "error"


def test_a_finding_that_repeats_a_row_is_no_case_of_its_own() -> None:
    run = Judged(finding=Finding(gate="run", outcome="fail", text="gemm, repeat 1: failed"), state="fail", cell="gemm")
    assert not [name for name in cases(judge(clean(), run)) if ": " in name]
    lost = Judged(
        finding=Finding(gate="run", outcome="unknown", text="its bundle cannot be read"), state="unknown", cell="gemm"
    )
    assert "error" in cases(judge(clean(), lost)).values(), "a passed row alone would hide it"


def test_an_expected_failure_names_its_ticket() -> None:
    root = ET.fromstring(night_junit.render(judge(clean(), judged("xfail", ticket="OPS-7"))))
    assert [element.get("message") for element in root.iter("skipped") if element.get("type") == "xfail"] == [
        "OPS-7: n1: rate is xfail"
    ]


@pytest.mark.parametrize(
    ("outcome", "code", "tag"),
    [("pass", 0, "passed"), ("fail", 1, "failure"), ("unknown", 2, "error"), ("pass", 4, "error")],
)
def test_junit_is_as_red_as_the_exit_code(outcome: str, code: int, tag: str) -> None:
    assert cases(judge(clean(), judged("unknown"), outcome=outcome, code=code))["night/verdict"] == tag


def test_junit_counts_its_cases() -> None:
    for suite in ET.fromstring(night_junit.render(bad())):
        tags = [child.tag for case in suite.iter("testcase") for child in case]
        assert suite.get("tests") == str(len(suite.findall("testcase")))
        assert (suite.get("failures"), suite.get("errors")) == (str(tags.count("failure")), str(tags.count("error")))


# --- metrics and the dashboard ------------------------------------------------------------------------------------------


def samples(report: NightReport) -> dict[str, list[tuple[dict[str, str], float]]]:
    parsed: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(night_gauges.render(report).decode()):
        assert family.type == "gauge" and family.documentation
        for sample in family.samples:
            parsed.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return parsed


@of_every_kind
def test_metrics_are_read_by_prometheus_and_no_series_comes_twice(kind: str) -> None:
    for name, series in samples(REPORTS[kind]()).items():
        labels = [json.dumps(labels, sort_keys=True) for labels, _ in series]
        assert len(labels) == len(set(labels)), name
        assert {len(labels) for labels, _ in series} == {len(series[0][0])}, "one set of labels per name"


def test_metrics_have_the_outcome_and_each_value() -> None:
    parsed = samples(bad())
    assert parsed["ccbed_night_outcome"] == [({"bed": "lab", "suite": "standard"}, 1.0)]
    slow = [
        (labels, value)
        for labels, value in parsed["ccbed_night_metric_value"]
        if labels["node"] == "n5" and labels["metric"] == "rate"
    ]
    assert [labels for labels, _ in slow] == [
        {"bed": "lab", "suite": "standard", "cell": "gemm", "metric": "rate", "node": "n5", "unit": "TFLOP/s"}
    ]
    assert 50 < slow[0][1] < 57
    assert (
        {"bed": "lab", "suite": "standard", "cell": "gemm", "metric": "rate", "node": "n5", "gate": "reference"},
        1.0,
    ) in parsed["ccbed_night_finding"]


def test_a_value_that_findings_disagree_about_is_left_out() -> None:
    report = judge(
        clean(), judged("pass", value=1.0), judged("pass", gate="peers", value=2.0), judged("pass", "n2", value=3.0)
    )
    assert [value for _, value in samples(report)["ccbed_night_metric_value"]] == [3.0]


def test_the_first_night_has_values_although_no_gate_has_a_reference() -> None:
    values = samples(first())["ccbed_night_metric_value"]
    assert len(values) == 4 * 6
    assert {labels["cell"] for labels, _ in values} == {cell for cell, *_ in synthetic_nights.metrics()}


def test_a_figure_that_no_gate_reads_has_no_series_and_no_picture() -> None:
    report = judge(bad(), *(entry for entry in bad().judgement.findings if entry.finding.metric == "rate"))
    assert {labels["metric"] for labels, _ in samples(report)["ccbed_night_metric_value"]} == {"rate"}
    assert text_of(report).count('<figure class="trend"') == 1


def test_a_gate_that_could_not_judge_is_unknown_beside_one_that_passed() -> None:
    report = judge(clean(), judged("pass"), judged("unknown", gate="peers"))
    assert {labels["gate"]: value for labels, value in samples(report)["ccbed_night_finding"]} == {
        "floor": 0.0,
        "peers": 2.0,
    }


def test_the_dashboard_uses_names_and_labels_that_exist() -> None:
    parsed = samples(bad())
    shown = json.loads((Path(night_gauges.__file__).parent / "grafana.json").read_text())
    names = set()
    expressions = [target["expr"] for panel in shown["panels"] for target in panel["targets"]]
    expressions += [variable["query"]["query"] for variable in shown["templating"]["list"]]
    for expression in expressions:
        for name, labels in re.findall(r"(ccbed_\w+)(?:\{([^}]*)\})?", expression):
            names.add(name)
            assert set(re.findall(r"(\w+)[=!]~?\"", labels)) <= parsed[name][0][0].keys(), expression
        for name, label in re.findall(r"label_values\((\w+), (\w+)\)", expression):
            assert label in parsed[name][0][0]
    assert names == parsed.keys(), "each metric is shown"
    ids = [panel["id"] for panel in shown["panels"]]
    assert len(ids) == len(set(ids))
