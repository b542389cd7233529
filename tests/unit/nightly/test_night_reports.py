"""The reports of a night: a page that says the worst first, a summary, JUnit XML, metrics, and a dashboard over their names."""

from __future__ import annotations

import dataclasses
import functools
import html
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.model.errors import InfrastructureError
from orchestrator.nightly import reports
from orchestrator.nightly.night_judgement import REFERENCE, Judged, NightJudgement
from orchestrator.nightly.records import Finding
from orchestrator.nightly.reports import figure_units, night_junit, night_summary, night_table, page
from orchestrator.nightly.reports.night_report import NightReport, suspects, unknowns
from orchestrator.nightly.statistics.night_statistics import Compared
from orchestrator.nightly.suite import Row

from ...contract.report_contract import EXTERNAL, HOSTILE, check_forms
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
    "bad": bad, "clean": clean, "first": first, "empty": empty, "hostile": hostile,
}  # fmt: skip
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
    monkeypatch.setattr(night_junit, "render", lambda report: 1 / 0)
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


def test_the_page_begins_with_the_verdict_then_the_table_the_trends_and_the_suspects() -> None:
    text = text_of(bad())
    order = [
        text.index(part)
        for part in ('<span class="badge fail">FAIL', "<h1>gemm on n5", "h-table", "h-trends", "h-suspects", "h-rows")
    ]
    assert order == sorted(order)


@of_every_kind
def test_the_page_has_at_most_1500_words(kind: str) -> None:
    body = re.sub(r"<(style|title|desc)[^>]*>.*?</\1>", " ", text_of(REPORTS[kind]()), flags=re.DOTALL)
    assert len(re.sub(r"<[^>]+>", " ", body).split()) <= 1500


def test_a_finding_stands_once_on_the_page() -> None:
    text = re.sub(r' title="[^"]*"', "", text_of(bad()))
    (finding,) = [judged for judged in bad().judgement.cells if judged.state == "fail"]
    assert text.count(html.escape(finding.finding.text)) == 1


def test_every_run_is_linked() -> None:
    text = text_of(bad())
    assert set(bad().links.values()) <= set(re.findall(r'href="([^"]*)"', text))


def test_a_cell_without_a_row_is_shown_as_not_run() -> None:
    assert '<span class="badge not-run">not run</span></td><th scope="row">late' in text_of(bad())


def test_the_reason_of_a_repeat_stands_in_its_row() -> None:
    assert "host h1 does not answer: node n9 is lost" in text_of(bad())


def test_the_bad_node_is_the_first_suspect_with_its_driver() -> None:
    suspect = suspects(bad())[0]
    assert (suspect.name, suspect.state) == (synthetic_nights.SLOW, "fail")
    assert suspect.changed == ("driver 580.159 -> 580.170",)
    assert suspect.since.startswith("2026-11-09"), "the night before the last"


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
    assert [(part.name, part.state) for part in suspects(report)] == [
        ("all nodes", "warn"),
        ("allreduce (whole run)", "warn"),
    ]


def test_a_clean_night_names_no_suspect() -> None:
    assert suspects(clean()) == ()


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
    report = bad()
    night = dataclasses.replace(report.night, number=0, started="2026-12-24T02:00:00Z")
    text = text_of(dataclasses.replace(report, night=night))
    assert "<title>2026-12-24T02:00:00Z: " in text
    assert "night on bed lab, not recorded" in text


def test_figures_without_a_reference_are_one_line() -> None:
    assert "6 metrics have no reference yet." in text_of(synthetic_nights.report(nodes=2, nights=1, is_broken=False))


def test_equal_reasons_of_many_nodes_are_one_line() -> None:
    texts = {f"n{n}": f"n{n}: rate was not measured" for n in range(64)}
    unknown = [
        Judged(finding=Finding(gate="pairs", outcome="unknown", text=text, metric="rate", node=node), state="unknown")
        for node, text in texts.items()
    ]
    assert unknowns(judge(clean(), *unknown)) == (("was not measured", ("rate",)),)


# --- the table ----------------------------------------------------------------------------------------------------------


def figure(
    metric: str, node: str, excess: float | None, state: str = "pass", again: float | None = None, **more: object
) -> Judged:
    compared = Compared(kind="rate", better="higher", excess=excess, limit=0.0513, reference=41.2, again=again)
    finding = Finding(gate=REFERENCE, outcome=state, text=f"{node}: {metric}", metric=metric, node=node)  # type: ignore[arg-type]
    return Judged(finding=finding, state=state, unit="TFLOP/s", value=40.0, compared=compared, **more)  # type: ignore[arg-type]


def of_figures(*figures: Judged, outcome: str = "fail") -> night_table.Table:
    report = judge(first(), *figures, outcome=outcome)
    return night_table.table(report.night, report.judgement)


def test_the_table_has_the_worst_first_with_what_the_second_measurement_says() -> None:
    slow, flaky = math.log(1 / 0.413), math.log(1 / 0.939)
    shown = of_figures(
        figure("memory copy", "n1", flaky, "warn", again=0.02), figure("memory copy", "n0", -0.001),
        figure("gemm float32", "n1", slow, "fail", again=slow + 0.01), figure("gemm float32", "n0", 0.004),
        figure("disk write", "n2", 0.04), figure("disk read", "n2", 0.01),
    )  # fmt: skip
    lines = [
        (line.metric, line.state, {node: cell.change for node, cell in line.cells.items()}, line.limit, line.notes)
        for line in shown.shown
    ]
    assert lines == [
        ("gemm float32", "fail", {"n1": "-58.7 %", "n0": "-0.4 %"}, "5 %", ("n1 again -59.1 %",)),
        ("memory copy", "warn", {"n1": "-6.1 %", "n0": "+0.1 %"}, "5 %", ("n1 again -2.0 %: flaky",)),
    ]
    assert shown.shown[0].reference == "41.2 TFLOP/s"
    assert shown.rest == "2 others within limits (worst: disk write n2 -3.9 %, limit 5 %)"
    assert night_table.grid(shown, shown.shown, 1)[0] == ("", "n1", "limit", "reference", "")


def test_a_figure_of_all_nodes_has_a_column_of_its_own_and_the_time_of_a_byte_is_shown_as_a_rate() -> None:
    beta = Compared(kind="network", better="lower", excess=math.log(2), limit=0.05, reference=8e-9)
    finding = Finding(gate=REFERENCE, outcome="fail", text="slow", metric="link beta", node="n0->n1")
    link = Judged(finding=finding, state="fail", unit="s/byte", value=16e-9, compared=beta)
    shown = of_figures(link, figure("busbw", "", 0.06, "warn"))
    first_line, second = shown.shown
    assert (first_line.metric, first_line.cells["n1"].change, first_line.reference) == (
        "link rate",
        "-50.0 %",
        "1 Gbit/s",
    )
    assert first_line.notes == ("n0->n1",)
    assert second.cells["all nodes"].change == "-5.8 %"
    assert night_table.grid(shown, shown.shown, 8)[0][1:4] == ("n0", "n1", "all nodes")


def test_a_night_without_a_reference_counts_its_metrics() -> None:
    shown = of_figures(
        figure("gemm float32", "n0", None, "unknown"), figure("gemm float32", "n1", None, "unknown"), outcome="unknown"
    )
    assert (shown.lines, shown.rest) == ((), "1 without a reference yet")


def test_the_next_step_looks_closer_at_the_worst_figure_and_accepts_it() -> None:
    slow = figure("gemm float32", "n1", 0.9, "fail", cell="gemm")
    report = judge(bad(), slow, outcome="fail", code=1)
    step = night_table.next_step(report.night, report.judgement, "runs/latest-night")
    assert (
        step == 'ccbed sweep gemm --each-node · wanted? ccbed baseline accept runs/latest-night --node n1 --because "…"'
    )
    assert night_table.next_step(clean().night, clean().judgement, "x") == ""


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.007407, "s", "7.41 ms"), (9.646e-10, "s/byte", "8.29 Gbit/s"), (61.234, "TFLOP/s", "61.2 TFLOP/s"), (0.9666, "1", "0.967"),
     (0.0, "s", "0 s"), (-0.002, "s", "-2 ms"), (75.0, "s", "75 s"), (0.0412, "TFLOP/s", "41.2 GFLOP/s"), (1450.0, "MB/s", "1.45 GB/s"),
     (2.5e-5, "s", "25 µs"), (1234.0, "1/s", "1,234 1/s")],
)  # fmt: skip
def test_quantities_have_a_prefix_that_fits(value: float, unit: str, text: str) -> None:
    assert figure_units.quantity(value, unit) == text


# --- the summary --------------------------------------------------------------------------------------------------------


@of_every_kind
def test_the_summary_has_twenty_lines_at_most_and_the_path(kind: str) -> None:
    lines = night_summary.render(REPORTS[kind]()).decode().splitlines()
    assert len(lines) <= night_summary.LINES
    assert lines[-1].startswith("Report: `")


def test_the_summary_names_the_verdict_the_figures_that_moved_and_failures() -> None:
    text = night_summary.render(bad()).decode()
    assert text.startswith("# FAIL: gemm on n5 is 12 % slower")
    assert "- crash-node: failed (2 of 3 repeats): bit-exact" in text
    assert re.search(r"\| rate \|.*-1\d\.\d %.*n5 again -1\d\.\d %; since 2026-11-09", text)


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
