"""The reports show what was found, in files that stand on their own, for whole runs and for runs that ended early."""

from __future__ import annotations

import dataclasses
import itertools
import re
import string
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from types import ModuleType
from typing import Any

import pytest

from orchestrator import views
from orchestrator.model.event import History
from orchestrator.model.payload import REGISTRY
from orchestrator.model.run import Run
from orchestrator.model.verdict import Verdict
from orchestrator.reports import html, junit, metrics, summary
from orchestrator.reports.page import event_sentences, loss_chart, svg
from orchestrator.views import training

from . import history, run_builder
from .golden import same_as_golden

ALL = (html, summary, junit, metrics)
VOID = {"meta", "br", "hr", "img", "link", "input"}

#: What a run can lack: each changes the run, its view, or its time line.
PARTIAL: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "whole": ({}, {}, True),
    "no failover": ({}, {"failovers": (), "faults": ()}, True),
    "no reference run": ({"twin": None}, {}, True),
    "no steps": ({"files": run_builder.Files()}, {"step": 0, "loss": None, "goodput": None}, True),
    "no history": ({"history": History()}, {"failovers": (), "faults": (), "slots": (), "duration_s": 0.0}, False),
    "no verdicts": ({"verdicts": ()}, {}, True),
    "no documents": ({"extras": {}}, {}, True),
    "documents of another shape": (
        {"extras": {"plan.json": [], "bundle.json": "x", "fingerprint.json": None}},
        {},
        True,
    ),
    "not finished": ({"verdicts": ()}, {"outcome": "running", "step": 31, "steps": None, "loss": None}, True),
    "failed early": (
        {"verdicts": ()},
        {"outcome": "failed", "reason": "no worker group", "failovers": (), "step": 0},
        False,
    ),
    "not recovered": ({}, {"failovers": (run_builder.failover(ttr_s=None, phases=(), milestones=()),)}, True),
    "recovery broken off": (
        {},
        {"failovers": (run_builder.failover(ttr_s=None, phases=run_builder.PHASES[:2]),)},
        True,
    ),
    "no fault behind it": ({}, {"failovers": (run_builder.failover(fault=None, detect_s=None),)}, True),
    "all phases zero": ({}, {"failovers": (run_builder.failover(phases=(("detect", 0.0),), ttr_s=0.0),)}, True),
    "unreached fault": (
        {},
        {"failovers": (), "faults": (views.FaultView(id="f0", fault="x", node=None, rank=None, unreached="ended"),)},
        True,
    ),
}


def prepare(monkeypatch: pytest.MonkeyPatch, case: str = "whole") -> Run:
    changes, observed, drawn = PARTIAL[case]
    monkeypatch.setattr(training, "view", lambda run: run_builder.view(**observed))
    monkeypatch.setattr(views, "timeline", lambda history: run_builder.spans() if drawn else ())
    return run_builder.run(**changes)


def page(monkeypatch: pytest.MonkeyPatch, case: str = "whole", **changes: Any) -> str:
    return html.render(replace(prepare(monkeypatch, case), **changes))["index.html"].decode()


class Nesting(HTMLParser):
    """Fails on a tag that is closed out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert [self.open.pop() if self.open else ""] == [tag], f"</{tag}> closes another element"


@pytest.mark.parametrize("case", PARTIAL)
@pytest.mark.parametrize("report", ALL, ids=lambda module: module.__name__.rsplit(".", 1)[1])
def test_every_report_is_written_for_partial_runs(
    monkeypatch: pytest.MonkeyPatch, report: ModuleType, case: str
) -> None:
    files = report.render(prepare(monkeypatch, case))
    assert files
    assert all(content.strip() for content in files.values())


@pytest.mark.parametrize("case", PARTIAL)
def test_the_page_is_well_formed_and_needs_nothing_from_outside(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    text = page(monkeypatch, case)
    parser = Nesting()
    parser.feed(text)
    assert parser.open == []
    assert text.count("<script") == 1
    outside = set(re.findall(r"https?://[^\"' )<]+", text)) - {"http://www.w3.org/2000/svg"}
    assert not outside
    assert not re.search(r"\bsrc=|\bhref=\"(?!#|\.\./|[\w.]+\")|@import|url\(", text)
    assert not re.search(r"\b(nan|inf)\b|None", re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL))


def test_the_page_begins_with_the_verdict_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    text = page(monkeypatch)
    assert "<h1>Your job survived: node n2 lost at step 30, back in 0.16 s.</h1>" in text
    assert text.index("<h1>") < text.index('<table class="rungs">') < text.index("<h2")
    for rung in ("survived", "resumed whole", "exact"):
        assert re.search(rf'<th scope="row">(<abbr title="[^"]*">)?{rung}(</abbr>)?</th><td class="yes">yes</td>', text)


def test_the_page_shows_each_phase_with_its_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    text = page(monkeypatch)
    for label in (
        "noticed 4.0 ms",
        "stopped 9.0 ms",
        "store 22 ms",
        "joined 67 ms",
        "restored 21 ms",
        "first step 35 ms",
    ):
        assert f">{label}</text>" in text


def test_the_page_marks_the_fault_on_the_time_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = page(monkeypatch)
    assert "✕ crash-node" in text
    assert "crash-node on n2 at 0.403 s" in text


def test_evidence_leads_to_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    text = page(monkeypatch)
    for number in re.findall(r'href="#e(\d+)"', text):
        assert f'id="e{number}"' in text
    assert 'href="#e7"' in text


def test_evidence_that_is_a_run_is_a_link_to_its_page() -> None:
    evidence = {
        "steps": {"attempt 1": 20},
        "twin": "dp-ring-twin-b927",
        "differs_from_step": 23,
        "control": "../../<b>",
    }
    verdict = Verdict(check="bit-exact", outcome="pass", text="equal", evidence=evidence)
    run = dataclasses.replace(history.reference(), verdicts=(verdict,), has_twin_beside=True)
    page = html.render(run)["index.html"].decode()
    assert '<b>reference run</b> <a href="../../dp-ring-twin-b927/report/index.html">dp-ring-twin-b927</a></li>' in page
    assert "<b>steps</b> restart 1: 20 </li>" in re.sub(r'<abbr title="[^"]*">|</abbr>', "", page)
    assert "<b>differs from step</b> 23 </li>" in page and "<b>restarted reference</b> ../../&lt;b&gt;</li>" in page
    away = html.render(dataclasses.replace(run, has_twin_beside=False))["index.html"].decode()
    assert "<b>reference run</b> dp-ring-twin-b927 </li>" in away, "of another directory"


def test_every_event_of_ccbed_has_a_sentence_of_its_own_fields() -> None:
    fields: dict[str, set[str]] = {}
    for (name, _), cls in REGISTRY.items():
        fields.setdefault(name, {"node", "start", "count", "iterations"}).update(
            field.name
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        )
    templates = {**event_sentences.NOTES, **event_sentences.COMMANDS}
    assert set(fields) - set(templates) == {"note"}
    for name, texts in templates.items():
        named = {field for text in texts for _, field, _, _ in string.Formatter().parse(text) if field}
        assert named <= fields[name], name


LINK = {"rank": 2, "peer": 1, "alpha_s": 3.5e-05}
#: (name, value, its sentence); a value of another shape is shown as it is.
SENTENCES: list[tuple[str, dict[str, Any], str]] = [
    (
        "fault.planned",
        {"id": "f0", "fault": "x", "node": 2, "trigger": {"after_save": 2, "exact": True}},
        "x is planned on node 2: after save 2",
    ),
    (
        "traffic",
        {"rank": 1, "measured": {"all-reduce": 971048}},
        "rank 1 sent in its first step: 971,048 bytes by all-reduce",
    ),
    ("traffic", {"rank": 1, "measured": "?"}, "rank 1 sent in its first step: ?"),
    (
        "collective.measured",
        {"case": 3, "median_s": 0.0068905, "iterations": 30},
        "case 3 is measured: median 6.9 ms over 30 iterations",
    ),
    ("link.pair", {**LINK, "beta_s_per_byte": 8e-10}, "link from rank 2 to rank 1: start-up 35 us, 10 Gbit/s"),
    ("link.pair", {**LINK, "beta_s_per_byte": 0}, "link from rank 2 to rank 1: start-up 35 us, 0"),
    ("link.probing", {"rank": 0, "directions": 12, "known": False}, "12 directions of links are probed"),
]


@pytest.mark.parametrize(("name", "value", "text"), SENTENCES)
def test_an_event_is_a_sentence(name: str, value: dict[str, Any], text: str) -> None:
    bed = history.Bed(trial=history.trial())
    bed.say("agent", name, value, node="n1")
    assert event_sentences.sentence(bed.run().history.events[-1]) == text


def test_text_of_the_run_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Verdict(
        check="<b>x", outcome="fail", text="<script>alert(1)</script> & more", evidence={"<i>": "<img src=x>"}
    )
    text = page(monkeypatch, verdicts=(bad,))
    assert text.count("<script") == 1, "the page's own, which its policy allows by its SHA-256"
    assert "&lt;script&gt;" in text
    assert "<img" not in text


def test_a_failed_run_is_shown_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Verdict(check="bit-exact", outcome="fail", text="loss differs at step 41", evidence={"step": 41})
    text = page(monkeypatch, verdicts=(*run_builder.verdicts()[:3], bad))
    assert '<header class="fail">' in text
    assert text.index('<th scope="row">bit-exact') < text.index('<th scope="row">finished')


def test_the_loss_of_the_run_is_compared_with_the_twin_step_by_step() -> None:
    result = loss_chart.collect(run_builder.steps(), run_builder.twin())
    assert loss_chart.equal(result) == (60, 60)
    changed = [replace(record, loss=(0.5).hex()) if record.step == 41 else record for record in run_builder.steps()]
    assert loss_chart.equal(loss_chart.collect(changed, run_builder.twin())) == (59, 60)


def test_a_loss_that_is_no_number_breaks_the_line_and_not_the_page() -> None:
    records = [replace(record, loss="nan" if record.step == 40 else record.loss) for record in run_builder.steps()]
    drawn = str(loss_chart.draw(loss_chart.collect(records, None)))
    curve = re.search(r'd="([^"]+)" class="loss"', drawn)
    assert curve
    assert curve.group(1).count("M") == 2
    assert "nan" not in drawn


def test_a_record_that_is_not_a_number_is_left_out() -> None:
    assert loss_chart.collect([replace(run_builder.steps()[0], loss="torn")], None).epochs == {}


def test_a_long_run_keeps_the_page_small() -> None:
    curve = {step: float(step) for step in range(100_000)}
    thinned = loss_chart.thin(curve)
    assert len(thinned) <= loss_chart.POINTS + 1
    assert 99_999 in thinned


def test_labels_do_not_overlap() -> None:
    widths = [80.0] * 7
    places = svg.spread([100, 101, 102, 103, 300, 900, 999], widths, 0, 1000)
    assert all(b - a >= 80 for a, b in itertools.pairwise(places))
    assert places[-1] + 40 <= 1000


def test_junit_counts_a_failure_as_failure_and_an_unknown_as_error(monkeypatch: pytest.MonkeyPatch) -> None:
    message = tuple(Verdict(check=name, outcome=name, text=f"is {name}") for name in ("pass", "fail", "unknown"))
    root = ET.fromstring(junit.render(replace(prepare(monkeypatch), verdicts=message))["junit.xml"])
    suite = root.find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    error = suite.find("testcase[@name='unknown']/error")
    assert error is not None
    assert error.get("type") == "unknown"


def test_junit_of_a_run_without_verdicts_is_not_green(monkeypatch: pytest.MonkeyPatch) -> None:
    root = ET.fromstring(junit.render(prepare(monkeypatch, "no verdicts"))["junit.xml"])
    assert root.find("testsuite/testcase/error") is not None


def test_a_run_that_left_its_bed_broken_is_green_in_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(prepare(monkeypatch), verdicts=(Verdict(check="finished", outcome="pass", text="all"),))
    observed = replace(run_builder.view(), kind="infrastructure", reason="n2 could not be started again")
    monkeypatch.setattr(training, "view", lambda run: observed)
    assert ET.fromstring(junit.render(run)["junit.xml"]).find("testsuite/testcase[@name='run']/error") is not None
    assert summary.render(run)["summary.md"].startswith(b"# BROKEN: ")
    assert b'<header class="broken">' in html.render(run)["index.html"]
    assert b"} 4\n" in metrics.render(run)["metrics.prom"]


def test_junit_survives_characters_that_xml_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Verdict(check="log", outcome="fail", text="\x1b[31mred\x00\ud800", evidence={"line": "\x08"})
    files = junit.render(replace(prepare(monkeypatch), verdicts=(bad,)))
    failure = ET.fromstring(files["junit.xml"]).find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.get("message") == "\ufffd[31mred\ufffd\ufffd"


def test_a_cell_of_the_summary_keeps_to_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Verdict(check="a|b", outcome="fail", text="one\ntwo")
    text = summary.render(replace(prepare(monkeypatch), verdicts=(bad,)))["summary.md"].decode()
    assert "| fail | a\\|b | one two |" in text


def test_gauges_leave_out_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = metrics.render(prepare(monkeypatch))["metrics.prom"].decode()
    assert re.search(r"^ccbed_failover_ttr_seconds\{.*\} 0\.158$", whole, re.MULTILINE)
    partial = metrics.render(prepare(monkeypatch, "not recovered"))["metrics.prom"].decode()
    assert "ccbed_failover_ttr_seconds" not in partial


def test_every_gauge_line_has_the_form_of_the_exposition_format(monkeypatch: pytest.MonkeyPatch) -> None:
    text = metrics.render(prepare(monkeypatch))["metrics.prom"].decode()
    sample = re.compile(r'^[a-z_]+\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\} [0-9.e+-]+$')
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    assert lines
    assert [line for line in lines if not sample.match(line)] == []


@pytest.mark.parametrize(("report", "file"), [(summary, "summary.md"), (junit, "junit.xml"), (metrics, "metrics.prom")])
def test_the_reference_failover_is_reported_as_before(
    monkeypatch: pytest.MonkeyPatch, report: ModuleType, file: str
) -> None:
    same_as_golden(f"reports/{file}", report.render(prepare(monkeypatch))[file].decode())
