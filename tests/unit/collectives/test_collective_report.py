"""What is told of a collective run: the table, the files for programs, the page and its pictures."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator.collectives import sections
from orchestrator.collectives import views as collectives
from orchestrator.collectives.page import link_map, measured_charts, nccl, sheet
from orchestrator.collectives.plugins.reports import collectives as report
from orchestrator.collectives.plugins.reports import plots
from orchestrator.collectives.views import case_table, finding_text, phrases
from orchestrator.core.verdict import run_metrics as core_metrics
from orchestrator.model.run import Run
from orchestrator.reports import html, junit, metrics, summary
from orchestrator.run import judging
from orchestrator.views import quantities

from ...contract.report_contract import EXTERNAL, check_forms
from .. import history, simulated
from ..catalogue import CATALOGUE
from ..golden import same_as_golden
from . import collective_runs

VOID = {"meta", "br", "hr", "img", "link", "input", "path", "use"}


@pytest.fixture(scope="module")
def run() -> Run:
    return collective_runs.reference()


@pytest.fixture(scope="module")
def page(run: Run) -> str:
    return html.render(run)["index.html"].decode()


def measured(run: Run) -> collectives.Measured:
    result = collectives.measured(run)
    assert result is not None
    return result


def test_the_table_is_as_somebody_read_it(run: Run) -> None:
    result = measured(run)
    messages = [
        phrases.link(result.setting), *case_table.lines(result), *finding_text.winners(result.fastest), finding_text.straggler(result),
        phrases.verified(run.history, result), finding_text.slow_iterations(result), phrases.percentiles(result),
    ]  # fmt: skip
    same_as_golden("collectives/table.txt", "\n".join(messages) + "\n")


def test_the_sheet_is_as_somebody_read_it(run: Run) -> None:
    same_as_golden("collectives/collective.csv", sheet.cases(measured(run)))
    same_as_golden("collectives/outliers.csv", sheet.outliers(measured(run)))


def test_the_summary_is_as_somebody_read_it(run: Run) -> None:
    same_as_golden("collectives/summary.md", summary.render(run)["summary.md"].decode())


def test_the_document_has_the_shape_of_nccl_tests(run: Run) -> None:
    text = nccl.document(run, measured(run))
    same_as_golden("collectives/nccl-tests.json", text)
    value = json.loads(text)
    assert list(value) == [
        "version", "start_time", "args", "env", "nccl_version", "config", "results", "out_of_bounds", "average_bus_bandwidth",
        "errors", "end_time",
    ]  # fmt: skip
    first = value["results"][0]
    assert list(first) == [
        "size", "count", "type", "redop", "root", "out_of_place", "in_place", "in_place_per_iter",
        "actual_iterations", "experiment_name", "ccbed",
    ]  # fmt: skip
    assert set(first["in_place"]) == {"time", "alg_bw", "bus_bw", "nwrong"}
    spread = measured(run).rows[0].cct
    assert spread is not None
    assert first["in_place"]["time"] == pytest.approx(spread.mean * 1e6)
    assert set(first["ccbed"]) == {"cct_p50_us", "cct_p95_us", "trial_p50_us", "trial_p95_us"}
    assert value["out_of_bounds"] == {"count": 0, "okay": "true"}


def test_every_cell_of_the_sheet_can_be_read_back(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(sheet.cases(measured(run)))))
    result = measured(run).rows
    assert len(rows) == len(result) == 9
    assert float(rows[0]["busbw_GBps"]) == pytest.approx(result[0].busbw)
    assert rows[2]["model_s"] == ""


def test_every_trial_has_its_line_among_the_metrics(run: Run) -> None:
    times = [metric for metric in core_metrics.of(run) if metric.metric == "all-reduce ring float32 sum time"]
    assert sorted({entry.size for entry in times if entry.size}) == [4096, 131072, 971048]
    assert [entry.rep for entry in times if entry.size == 4096] == list(range(20))
    bus = next(metric for metric in core_metrics.of(run) if metric.metric == "all-reduce library float32 sum busbw")
    assert (bus.unit, bus.better, bus.size) == ("GB/s", "higher", 4096)


def test_pictures_are_written_as_png(run: Run) -> None:
    assert not [name for name in report.render(run) if name.endswith(".png")]
    made = plots.render(run)
    assert set(made) == {f"plots/{name}.png" for name in ("bandwidth", "times", "chunks", "delays")}
    assert all(content.startswith(b"\x89PNG\r\n") for content in made.values())


def test_plots_are_drawn_only_on_request(run: Run) -> None:
    reports = judging.render_reports(run, CATALOGUE)
    assert "index.html" in reports and "collective.csv" in reports
    assert not [name for name in reports if name.endswith(".png")]
    assert "plots/bandwidth.png" in judging.render_reports(run, CATALOGUE, ["plots"])


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_narrow_terminal_has_a_table_of_whole_rows(run: Run, width: int) -> None:
    result = measured(run)
    rows = case_table.lines(result, width)
    assert all(len(row) <= width for row in rows[:-1])
    assert rows[-1].startswith("(for a wider terminal: count")
    assert len(rows) == len(case_table.lines(result)) + 1
    assert case_table.lines(result, 400) == case_table.lines(result)
    assert "busbw" in rows[0] and "p50" in rows[1] and "wrong" in rows[1]


class Nesting(HTMLParser):
    """Fails on a tag that is closed out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert [self.open.pop() if self.open else ""] == [tag], f"</{tag}> closes another element"


def test_the_page_is_one_well_formed_file_that_needs_nothing_from_outside(page: str) -> None:
    parser = Nesting()
    parser.feed(page)
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    check_forms({"index.html": page.encode()})
    assert not EXTERNAL.search(page)
    for name in re.findall(r'(?:href="#|url\(#)([^")]+)', page):
        assert name in parser.ids


def test_a_long_table_leaves_out_small_sizes_and_never_one_row_for_a_line_that_says_so() -> None:
    def of(sizes: int, names: tuple[str, ...] = ("ring", "library", "star")) -> collectives.Measured:
        gang = simulated.Gang(schedules=simulated.ring(4, 4096))
        parts = [
            collective_runs.Part(operation="all-reduce", algorithm=name, bytes=1024 << spot, iterations=1, gang=gang)
            for spot in range(sizes)
            for name in names
        ]
        result = collectives.measured(collective_runs.run(parts))
        assert result is not None
        return result

    kept = [row.case.bytes for row in case_table.largest(of(17), 24).rows]
    assert kept == [1024 << spot for spot in range(9, 17) for _ in range(3)]
    assert len(case_table.largest(of(13, ("ring", "star")), 24).rows) == 26
    assert len(case_table.largest(of(1, tuple("abcdefgh")), 4).rows) == 4


def test_the_page_shows_collectives_and_no_loss(page: str) -> None:
    charts = re.findall(r'data-chart="(\w+)"', page)
    assert charts == ["bandwidth", "times", "chunks", "delays"]
    assert "Loss against the reference run" not in page
    assert re.search(r"most of it: [a-z ]+ n\d( to n\d)? 0\.(8|9)\d* s", page)
    for label in ("best bandwidth", "p50", "p95", "measured / model", "straggler", "wrong results"):
        assert f"<dt>{label}</dt>" in page


def test_the_charts_have_every_case_with_its_rows(run: Run) -> None:
    data = json.loads(measured_charts.document(measured(run)))
    rows = measured(run).rows
    assert [(row["bytes"], row["cells"][1]) for row in data["rows"]] == [(r.case.bytes, r.case.algorithm) for r in rows]
    assert all(row["cells"][0] for row in data["rows"]), "each row has its size, for a reader who sees one size"
    drawn = [(entry["bytes"], chart) for entry in data["cases"] for chart in entry["charts"]]
    times = {(size, curve["name"]) for size, chart in drawn if chart["name"] == "times" for curve in chart["curves"]}
    assert times == {(row.case.bytes, row.case.algorithm) for row in rows}
    for chart in (*data["bandwidth"], *(chart for _, chart in drawn)):
        for x, y in (curve["points"] for curve in chart["curves"]):
            assert len(x) == len(y) and x == sorted(x), "a curve is drawn from left to right"


def test_the_map_of_links_has_every_number_and_marks_the_worse() -> None:
    result = measured(collective_runs.reference())

    def slow_link(beta: float, interval: tuple[float, float]) -> collectives.Measured:
        directions = tuple(
            replace(direction, beta=beta, interval=interval)
            if (direction.sender, direction.receiver) == (1, 2)
            else direction
            for direction in result.setting.link.directions
        )
        return replace(
            result, setting=replace(result.setting, link=replace(result.setting.link, directions=directions))
        )

    usual = collective_runs.BETA
    bandwidth, start_up = link_map.maps(slow_link(2 * usual, (1.95 * usual, 2.05 * usual)))
    for drawn in (bandwidth, start_up):
        assert sum(bool(text) for _, row in drawn.rows for text, _, _ in row) == len(result.setting.link.directions)
    assert {cell for _, row in bandwidth.rows for cell in row if cell[1]} == {("70", 2, "n1 to n2")}
    noise, _ = link_map.maps(slow_link(1.2 * usual, (0.9 * usual, 1.5 * usual)))
    assert not [cell for _, row in noise.rows for cell in row if cell[1]], (
        "an interval that contains the others has no colour"
    )


def test_a_wrong_result_is_told_with_rank_offset_expected_and_got() -> None:
    wrong = {"case": 0, "step": 2, "offset": 7, "expected": 6.0, "got": 5.0, "rank": 3}
    part = collective_runs.Part(
        operation="all-reduce", algorithm="ring", bytes=4096, gang=simulated.Gang(schedules=simulated.ring(4, 4096))
    )  # fmt: skip
    run = collective_runs.run([part], notes=[("collective.wrong", wrong)])
    result = measured(run)
    assert result.rows[0].wrong == 1
    assert phrases.verified(run.history, result) == (
        "1 wrong, the first at rank 3, step 2, offset 7: expected 6.0, got 5.0"
    )
    assert json.loads(nccl.document(run, result))["out_of_bounds"] == {"count": 1, "okay": "false"}


PARTIAL: dict[str, dict[str, Any]] = {
    "nothing was measured": {"files": collective_runs.Files()},
    "no documents": {"extras": {}},
    "no verdicts": {"verdicts": ()},
}


@pytest.mark.parametrize("case", PARTIAL)
@pytest.mark.parametrize("module", [html, junit, metrics, summary, report], ids=lambda entry: entry.__name__)
def test_partial_runs_have_their_reports(run: Run, module: ModuleType, case: str) -> None:
    made = module.render(replace(run, **PARTIAL[case]))
    assert made
    assert all(made.values())


def _interrupted(*commits: int) -> list[str]:
    """The lines of a run of two sizes with 8 iterations each, which was interrupted after these checkpoints."""
    parts = [
        collective_runs.Part(
            operation="all-reduce", algorithm="ring", bytes=size, gang=simulated.Gang(schedules=simulated.ring(4, size))
        )
        for size in (4096, 8192)
    ]  # fmt: skip
    made = collective_runs.run(parts, notes=[("checkpoint.commit", {"name": f"{n}", "step": n}) for n in commits])
    events = [
        replace(event, f="run.interrupted", value={"reason": "SIGINT"}) if event.f == "run.end" else event
        for event in made.history.events
    ]
    open_run = replace(history.with_events(made, events), files=collective_runs.Files(), verdicts=())
    return list(sections.lines(open_run, Path("runs/x")))


def test_an_interrupted_sweep_says_which_cases_are_kept_and_that_resume_goes_on() -> None:
    kept = "measured  1 of 2 cases, which are kept: resume goes on with the others and shows all"
    assert _interrupted(8) == [kept]
    assert _interrupted(8, 12) == [kept]
    assert _interrupted(7) == ["measured  none of 2 cases to its end, so nothing is kept: resume begins with the first"]


def test_a_run_that_has_ended_without_records_keeps_nothing(run: Run) -> None:
    ended = replace(run, files=collective_runs.Files())
    (line,) = sections.lines(ended, Path("runs/x"))
    assert line == "measured  nothing: no iteration was gathered from all of its ranks"


def test_operations_without_bytes_and_with_groups_are_told() -> None:
    barrier = collective_runs.Part(
        operation="barrier", algorithm="dissemination", bytes=0, recorded=False,
        gang=simulated.Gang(schedules=simulated.doubling(4, 4)),
    )  # fmt: skip
    pairs = collective_runs.Part(
        operation="all-gather", algorithm="ring", bytes=4096, gang=simulated.Gang(schedules=simulated.ring(4, 4096)),
        about={"groups": [[0, 1], [2, 3]], "asked": "auto"},
    )  # fmt: skip
    run = collective_runs.run([barrier, pairs])
    text = "\n".join(case_table.lines(measured(run)))
    assert "barrier" in text
    assert "all-gather, float32, 2 groups of 2" in text
    assert "ring (auto)" in text
    assert [row["size"] for row in json.loads(nccl.document(run, measured(run)))["results"]] == [4096]


@pytest.mark.parametrize(
    ("count", "text"), [(4096, "4 KiB"), (1 << 20, "1 MiB"), (971_048, "971,048 B"), (6_438_912, "6,438,912 B"), (512, "512 B")]
)  # fmt: skip
def test_sizes_are_said_as_people_say_them(count: int, text: str) -> None:
    assert quantities.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.84e-4, "0.284"), (0.01341, "13.41"), (0.4782, "478.2"), (4.577, "4,577")]
)
def test_milliseconds_have_four_digits_that_matter(seconds: float, text: str) -> None:
    assert quantities.milliseconds(seconds) == text


def test_slow_trials_are_counted_alike_on_the_terminal_in_the_table_and_on_the_page() -> None:
    stops = dict.fromkeys((3, 5, 9), (2, 0.021, 0.9))
    gang = simulated.Gang(schedules=simulated.ring(4, 971048), stops=stops)
    run = collective_runs.run(
        [collective_runs.Part(operation="all-reduce", algorithm="ring", bytes=971048, iterations=20, gang=gang)]
    )
    result = collectives.measured(run)
    assert result is not None and result.outliers == 3
    assert finding_text.slow_iterations(result).startswith(
        "3 of 20 iterations over 3 x p50, longest 0.98 s (all-reduce ring"
    )
    lines = list(sections.lines(run, Path("runs/x"), whole=True))
    assert sum("iteration " in line and "most of it" in line for line in lines) == 3
    message = sections.page(run)
    assert message is not None and len(message["slow"]) == 3 and message["more"] == 0
