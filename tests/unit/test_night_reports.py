"""The reports of a night: a page that says the worst first, a summary, JUnit XML, metrics, and a dashboard over their names."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.model.errors import InfrastructureError
from orchestrator.nightly import night_files, reports
from orchestrator.nightly.gates.finding import Finding
from orchestrator.nightly.night_judgement import Judged, NightJudgement
from orchestrator.nightly.reports import changes, junit, night_report, page, summary
from orchestrator.nightly.reports.night_report import NightReport, PreviousNight, culprits, floors
from orchestrator.nightly.suite import Row

from ..contract.report_contract import EXTERNAL, HOSTILE, check_forms
from . import synthetic_nights


@functools.cache
def bad() -> NightReport:
    """64 nodes, 40 nights, failures, tickets, culprits."""
    return synthetic_nights.report()


@functools.cache
def clean() -> NightReport:
    return synthetic_nights.report(nodes=8, nights=25, is_broken=False)


@functools.cache
def first() -> NightReport:
    """Without any history."""
    return synthetic_nights.report(nodes=4, nights=1, is_broken=False)


def empty() -> NightReport:
    """No row, no finding, no record: the suite broke before its first run."""
    judgement = NightJudgement(outcome="unknown", exit=4, sentence="No trial ran: the bed is not up.")
    return dataclasses.replace(first(), rows=(), records=(), judgement=judgement, links={})


def hostile() -> NightReport:
    report = first()
    finding = Finding(gate=HOSTILE, outcome="fail", text=HOSTILE, metric=HOSTILE, node=HOSTILE, culprits=(HOSTILE,))
    judged = Judged(
        finding=finding, state="fail", cell=HOSTILE, ticket=HOSTILE, reference=HOSTILE, unit=HOSTILE, value=1.0
    )
    row = Row(cell=HOSTILE, repeat=0, state="failed", reason=HOSTILE, run=HOSTILE)
    judgement = NightJudgement(outcome="fail", exit=1, sentence=HOSTILE, findings=(judged,), notes=(HOSTILE,))
    night = dataclasses.replace(report.night, bed=HOSTILE, command=HOSTILE, hosts={HOSTILE: HOSTILE})
    return dataclasses.replace(report, night=night, rows=(row,), judgement=judgement, directory=HOSTILE)


REPORTS: dict[str, Callable[[], NightReport]] = {
    "bad": bad,
    "clean": clean,
    "first": first,
    "empty": empty,
    "hostile": hostile,
}
of_every_kind = pytest.mark.parametrize("kind", REPORTS)


def judge(report: NightReport, *findings: Judged, outcome: str = "pass", code: int = 0) -> NightReport:
    judgement = dataclasses.replace(report.judgement, findings=findings, outcome=outcome, exit=code)  # type: ignore[arg-type]
    return dataclasses.replace(report, judgement=judgement)


def judged(state: str, node: str = "n1", gate: str = "floor", **fields: object) -> Judged:
    outcome = {"xfail": "fail", "xpass": "pass"}.get(state, state)
    finding = Finding(gate=gate, outcome=outcome, text=f"{node}: rate is {state}", metric="rate", node=node)  # type: ignore[arg-type]
    return Judged(finding=finding, state=state, cell="gemm", **fields)  # type: ignore[arg-type]


# --- every file ---------------------------------------------------------------------------------------------------------


@of_every_kind
def test_every_file_is_well_formed_and_needs_nothing_from_outside(kind: str) -> None:
    files = reports.render(REPORTS[kind]())
    check_forms({name: content for name, content in files.items() if not name.endswith(".prom")})
    assert not [name for name, content in files.items() if EXTERNAL.search(content.decode())]


def test_write_links_the_page_of_each_run_that_has_one(tmp_path: Path) -> None:
    report = bad()
    with_page, without = synthetic_nights.run_name("gemm", 0), synthetic_nights.run_name("gemm", 1)
    (tmp_path / "runs" / with_page / "report").mkdir(parents=True)
    (tmp_path / "runs" / with_page / "report" / "index.html").touch()
    (tmp_path / "runs" / without).mkdir()
    paths = reports.write(tmp_path, report.night, report.rows, report.judgement, report.records)
    assert [path.name for path in paths] == ["summary.md", "junit.xml", "metrics.prom", "index.html"]
    text = paths[-1].read_text()
    links = set(re.findall(r'href="(\.\./runs/[^"]*)"', text))
    assert links == {f"../runs/{with_page}/report/index.html", f"../runs/{without}/"}
    assert all((paths[-1].parent / link).exists() for link in links)
    assert reports.write(tmp_path, report.night, report.rows, report.judgement, report.records) == paths, (
        "written again"
    )


def test_a_report_that_cannot_be_made_does_not_take_the_others_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(junit, "render", lambda report: 1 / 0)
    report = clean()
    with pytest.raises(InfrastructureError, match=r"junit\.xml: ZeroDivisionError"):
        reports.write(tmp_path, report.night, report.rows, report.judgement, report.records)
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert names == {"summary.md", "metrics.prom", "index.html"}


# --- the page -----------------------------------------------------------------------------------------------------------


def text_of(report: NightReport) -> str:
    return page.render(report).decode()


@of_every_kind
def test_the_page_fits(kind: str) -> None:
    text = text_of(REPORTS[kind]())
    assert len(text) <= 1 << 20
    assert len(re.findall(r"<[a-z]", text)) <= 5000
    assert "None" not in text and not re.search(r"\bnan\b", text)


def test_a_page_of_many_cells_repeats_and_metrics_fits() -> None:
    report = synthetic_nights.report(nodes=12, nights=12, count=70)
    rows = tuple(dataclasses.replace(row, repeat=index) for index in range(100) for row in report.rows)
    text = text_of(dataclasses.replace(report, rows=rows))
    assert len(rows) > page.REPEATS
    assert (len(text) <= 1 << 20, len(re.findall(r"<[a-z]", text)) <= 5000) == (True, True)


def test_a_page_of_a_night_in_which_everything_fails_fits() -> None:
    """64 bad nodes, 40 metrics, 400 cells: the tables of parts and cells are as long as they can be."""
    report = synthetic_nights.report(nodes=4, nights=3, count=40)
    bad_findings = [
        judged("fail", f"n{node}", gate, key=entry.key, runs=tuple(f"run{n}" for n in range(10)))
        for node in range(64) for gate in ("floor", "relative", "drift", "peers", "intermittent") for entry in report.judgement.findings[:1]
    ]  # fmt: skip
    report = judge(report, *report.judgement.findings, *bad_findings, outcome="fail", code=1)
    rows = tuple(
        dataclasses.replace(row, cell=f"cell{cell}", repeat=n)
        for cell in range(400)
        for n, row in enumerate(report.rows[:3])
    )
    text = text_of(dataclasses.replace(report, rows=rows, links={f"run{n}": "x" for n in range(10)}))
    assert (len(text) <= 1 << 20, len(re.findall(r"<[a-z]", text)) <= 5000) == (True, True)


def test_the_page_begins_with_the_verdict_then_the_changes_then_the_culprits() -> None:
    text = text_of(bad())
    order = [
        text.index(part)
        for part in ('<span class="badge fail">FAIL', "<h1>gemm on n5", "h-changes", "h-culprits", "h-rows")
    ]
    assert order == sorted(order)


@pytest.mark.parametrize("is_compared", [True, False])
def test_medians_that_were_not_compared_are_not_said_to_be_unchanged(is_compared: bool) -> None:
    """The night before has other metrics, as one of another suite has: its figures have other keys."""
    report = clean()
    last = tuple(record for record in report.records if record.night == report.night.number)
    other = dataclasses.replace(last[0].key, parameters="of another suite")
    before = [
        dataclasses.replace(record, night=record.night - 1, key=record.key if is_compared else other) for record in last
    ]
    previous = PreviousNight(night=report.night, rows=report.rows, judgement=report.judgement)
    text = text_of(dataclasses.replace(report, records=(*before, *last), previous=previous))
    assert ("no median moved by 1 % or more" in text) == is_compared
    assert ("no median was compared with that of an earlier night" in text) != is_compared


def test_every_run_is_linked() -> None:
    text = text_of(bad())
    assert set(bad().links.values()) <= set(re.findall(r'href="([^"]*)"', text))


def test_a_cell_without_a_row_is_shown_as_not_run() -> None:
    assert '<span class="badge not-run">not run</span></td><th scope="row">late' in text_of(bad())


def test_the_reason_of_a_repeat_stands_in_its_row() -> None:
    assert "host h1 does not answer: node n9 is lost" in text_of(bad())


def test_the_bad_node_is_the_first_culprit_with_its_driver() -> None:
    culprit = culprits(bad())[0]
    assert (culprit.name, culprit.state) == (synthetic_nights.SLOW, "fail")
    assert culprit.suspects == ("driver 580.159 -> 580.170",)
    assert culprit.since.startswith("2026-11-09"), "the night before the last"


def test_a_row_that_failed_accuses_no_node_and_a_figure_of_a_run_its_cell_alone() -> None:
    run = Judged(finding=Finding(gate="run", outcome="fail", text="gemm, repeat 1: failed"), state="fail", cell="gemm")
    gang = Judged(
        finding=Finding(gate="relative", outcome="warn", text="busbw is slow", metric="busbw"),
        state="warn",
        cell="allreduce",
    )
    fleet = Judged(
        finding=Finding(gate="fleet", outcome="warn", text="rate -7 %", metric="rate"), state="warn", cell="gemm"
    )
    report = judge(clean(), run, gang, fleet, outcome="fail", code=1)
    assert [(part.name, part.state) for part in culprits(report)] == [
        ("all nodes", "warn"),
        ("allreduce (whole run)", "warn"),
    ]
    assert not [change for change in changes.changes(report) if "repeat 1" in change.text], "the rows say so"


def test_a_clean_night_names_no_culprit_that_failed() -> None:
    assert [culprit for culprit in culprits(clean()) if culprit.state != "warn"] == []


def test_a_trend_marks_tonight_and_shows_the_bad_node_and_each_value() -> None:
    text = text_of(bad())
    figure = text[text.index('<figure class="trend"') :]
    figure = figure[: figure.index("</figure>")]
    assert 'class="tonight"' in figure
    assert re.search(
        r"<title>2026-11-10T02:00:07Z: [\d.]+ TFLOP/s, [\d.]+ TFLOP/s to [\d.]+ TFLOP/s; n5 [\d.]+ TFLOP/s</title>",
        figure,
    )
    assert figure.count('class="hit"') == 30


def test_a_node_that_was_not_measured_tonight_says_so_in_its_trend() -> None:
    report = bad()
    records = tuple(record for record in report.records if (record.node, record.night) != ("n5", 40))
    text = text_of(dataclasses.replace(report, records=records))
    assert "n5: not measured" in text


def test_a_casual_night_stands_at_the_end_of_the_trend() -> None:
    report = clean()
    night = dataclasses.replace(report.night, number=0, started="2026-12-24T02:00:00Z")
    text = text_of(dataclasses.replace(report, night=night))
    assert "<title>2026-12-24T02:00:00Z: " in text
    assert "casual night, not recorded" in text


def test_floors_are_summed_up_over_nodes_with_the_worst_one() -> None:
    row = floors(bad())[0]
    assert (row.metric, row.below, row.count, row.worst.finding.node) == ("rate", 1, 64, "n5")


def test_findings_without_a_history_are_one_line_with_the_number_of_nodes() -> None:
    text = text_of(synthetic_nights.report(nodes=64, nights=1, is_broken=False))
    assert text.count("<td>has too few earlier nights for a reference of its own") == 1
    assert "n0, n1, n10 and 61 more" in text


def test_an_unknown_that_counts_comes_before_a_gate_without_a_history() -> None:
    text = text_of(
        judge(clean(), judged("unknown", gate="relative", is_counted=False), judged("unknown", gate="pairs"))
    )
    part = text[text.index("h-unknown") :]
    assert part.index('>pairs <span class="badge unknown">') < part.index(">relative</th>")


# --- changes ------------------------------------------------------------------------------------------------------------


def test_what_changed_names_findings_rows_and_versions() -> None:
    texts = [f"{change.kind}: {change.text}" for change in changes.changes(bad())]
    assert "worse: pairs: error, was passed" in texts
    assert any(text.startswith("worse: fail, was warn: n5: rate is") for text in texts)


def test_a_version_that_changed_tonight_is_named_with_its_nodes() -> None:
    report = bad()
    records = tuple(record for record in report.records if record.night != 39)
    texts = [
        change.text
        for change in changes.changes(dataclasses.replace(report, records=records))
        if change.kind == "version"
    ]
    assert texts == ["driver 580.159 -> 580.170 on n5"]


def test_a_failure_that_was_not_judged_tonight_is_not_called_better() -> None:
    report = judge(clean(), judged("unknown"))
    assert isinstance(report.previous, PreviousNight)
    before = dataclasses.replace(report.previous.judgement, findings=(judged("fail"),))
    report = dataclasses.replace(report, records=(), previous=dataclasses.replace(report.previous, judgement=before))
    assert [(change.kind, change.text[:17]) for change in changes.changes(report)] == [("worse", "unknown, was fail")]


def test_a_slow_node_that_is_missing_is_no_progress() -> None:
    report = clean()
    slow = tuple(
        dataclasses.replace(record, values=tuple(value / 2 for value in record.values))
        if record.node == "n1"
        else record
        for record in report.records
        if (record.node, record.night) != ("n1", 25)
    )
    texts = [change.text for change in changes.changes(dataclasses.replace(report, records=slow, previous=None))]
    assert [text for text in texts if text.startswith("rate ")] == []


def test_without_an_earlier_night_the_page_says_so() -> None:
    assert [change.text for change in changes.changes(first())] == ["No earlier recorded night to compare with"]


def test_the_last_recorded_night_of_the_bed_is_read_from_beside_this_one(tmp_path: Path) -> None:
    report = bad()
    assert isinstance(report.previous, PreviousNight)
    nights = {number: synthetic_nights.night(4, number) for number in (38, 39)}
    nights[0] = dataclasses.replace(
        synthetic_nights.night(4, 39), number=0, name=nights[39].name.replace("3f9c", "0000")
    )
    other = dataclasses.replace(nights[39], bed="other", name=nights[39].name.replace("3f9c", "aaaa"))
    for night in (*nights.values(), other):
        night_files.write_night(tmp_path / night.name, night)
        night_files.write_judgement(tmp_path / night.name, report.previous.judgement)
    previous = reports.read_previous(tmp_path / report.night.name, report.night)
    assert isinstance(previous, PreviousNight)
    assert (previous.night.number, previous.night.bed) == (39, "lab")
    assert previous.judgement.outcome == "pass"


def test_an_earlier_night_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    earlier = synthetic_nights.night(4, 39)
    night_files.write_night(tmp_path / earlier.name, earlier)
    previous = reports.read_previous(tmp_path / bad().night.name, bad().night)
    assert previous == f"{earlier.name} was not judged"
    (tmp_path / earlier.name / "findings.json").write_text("{")
    previous = reports.read_previous(tmp_path / bad().night.name, bad().night)
    assert isinstance(previous, str) and "cannot be read" in previous
    first_change = changes.changes(dataclasses.replace(bad(), previous=previous))[0]
    assert first_change.text.startswith("Findings and rows are not compared: ")


def test_no_night_beside_this_one_is_no_previous_night(tmp_path: Path) -> None:
    assert reports.read_previous(tmp_path / bad().night.name, bad().night) is None


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.007407, "s", "7.407 ms"), (9.646e-10, "s/byte", "964.6 ps/byte"), (61.234, "TFLOP/s", "61.23 TFLOP/s"), (0.9666, "1", "0.9666"),
     (0.0, "s", "0 s"), (-0.002, "s", "-2 ms"), (75.0, "s", "75 s")],
)  # fmt: skip
def test_quantities_have_a_prefix_that_fits(value: float, unit: str, text: str) -> None:
    assert night_report.quantity(value, unit) == text


# --- the summary --------------------------------------------------------------------------------------------------------


@of_every_kind
def test_the_summary_has_twenty_lines_at_most_and_the_path(kind: str) -> None:
    lines = summary.render(REPORTS[kind]()).decode().splitlines()
    assert len(lines) <= summary.LINES
    assert lines[-1].startswith("Report: `")


def test_the_summary_names_the_verdict_failures_and_culprits() -> None:
    text = summary.render(bad()).decode()
    assert text.startswith("# FAIL: gemm on n5 is 12 % slower")
    assert "- crash-node: failed (2 of 3 repeats): bit-exact" in text
    assert "- fail n5, since 2026-11-09" in text


# --- colours ------------------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """WCAG 2.1, relative luminance."""
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_the_contrast_of_wcag_aa(scheme: str) -> None:
    css = text_of(first())
    blocks = [
        dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)[:2]
    ]
    colours = blocks[0] if scheme == "light" else blocks[0] | blocks[1]
    for text, ground in [
        *((name, "--card") for name in ("--ink", "--soft", "--link", "--fail", "--pass")), ("--ink", "--paper"),
        *((f"--{name}", f"--{name}-bg") for name in ("pass", "fail", "unknown")),
    ]:  # fmt: skip
        light, dark = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)
