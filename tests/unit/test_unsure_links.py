"""Pairs of which the probe's line tells little are told everywhere, and chunk figures say of how many transfers they are."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.render import collective
from orchestrator.core.verdict import metrics as core_metrics
from orchestrator.model.run import Run
from orchestrator.reports import collectives as report
from orchestrator.reports import html, metrics
from orchestrator.reports.page import sheet
from orchestrator.reports.page.plots import bandwidth
from orchestrator.views import collectives
from orchestrator.views.collectives import phrases

from . import collective_runs, simulated

SIZE = 4096


@pytest.fixture(scope="module")
def run() -> Run:
    pair = {"rank": 0, "peer": 3, "alpha_s": 1e-4, "beta_s_per_byte": 1e-7, "r2": 0.5, "samples": [[4, 1e-4, 9]]}
    return made([("link.pair", {**pair, "spread": 0.93, "off": 0.4, "sure": False})])


def made(notes: list[tuple[str, dict[str, object]]]) -> Run:
    gang = simulated.Gang(schedules=simulated.ring(4, SIZE))
    part = collective_runs.Part(operation="all-reduce", algorithm="ring", bytes=SIZE, gang=gang, cost=(6, 1.5))
    return collective_runs.run([part], notes=notes)


def measured(run: Run) -> collectives.Measured:
    result = collectives.measured(run)
    assert result is not None
    return result


def test_the_terminal_names_the_pair_and_its_spread(run: Run) -> None:
    lines = list(collective.lines(run, Path("runs/x")))
    assert " · 1 of 6 pairs unsure: n0-n3 (spread 93 %, off the line 40 %), left out · " in lines[0]
    assert "unsure" not in next(iter(collective.lines(made([]), Path("runs/x"))))


def test_where_all_are_unsure_nothing_is_left_out(run: Run) -> None:
    setting = measured(run).setting
    pairs = tuple(replace(entry, sure=False) for entry in setting.link.pairs)
    text = phrases.unsure(replace(setting, link=replace(setting.link, pairs=pairs)))
    assert text.startswith("6 of 6 pairs unsure: n0-n1, n0-n2, n0-n3 (spread 93 %, off the line 40 %), n1-n2, 2 more; ")
    assert "left out" not in text


def test_the_page_marks_the_pair_in_its_map_and_says_what_the_mark_is(run: Run) -> None:
    page = html.render(run)["index.html"].decode()
    assert (
        "Crossed out, with a question mark: 1 of 6 pairs unsure: n0-n3 (spread 93 %, off the line 40 %), left out."
        in page
    )
    assert "report/links.csv" in page
    drawn = bandwidth.between_pairs(measured(run))
    assert drawn is not None
    texts = [text.get_text() for axes in drawn.axes for text in axes.texts]
    assert sum(text.endswith("?") for text in texts) == 4, "both directions, in both maps"
    assert [len(axes.lines) for axes in drawn.axes] == [4, 4]
    sure = bandwidth.between_pairs(measured(made([])))
    assert sure is not None
    assert not any(text.get_text().endswith("?") or axes.lines for axes in sure.axes for text in axes.texts)


def test_files_for_programs_have_a_line_for_each_pair(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(report.render(run)["links.csv"].decode())))
    assert len(rows) == 6
    (odd,) = [row for row in rows if row["sure"] == "0"]
    assert (odd["node"], odd["peer_node"], odd["spread"], odd["off"], odd["bits_per_s"]) == (
        "n0",
        "n3",
        "0.93",
        "0.4",
        "80000000",
    )
    message = {metric.metric: metric.value for metric in core_metrics.of(run) if metric.metric.startswith("link ")}
    assert (message["link 0-3 sure"], message["link 0-3 spread"], message["link 0-1 sure"]) == (0.0, 0.93, 1.0)
    assert "link 0-1 spread" not in message
    text = metrics.render(run)["metrics.prom"].decode()
    assert [line for line in text.splitlines() if "link_sure" in line and line.endswith(" 0")] == [
        'ccbed_collective_link_sure{trial="allreduce",bed="fabric",from="n0",to="n3"} 0'
    ]


def test_chunk_figures_say_of_how_many_transfers_they_are(run: Run) -> None:
    result = measured(run)
    assert (result.rows[0].transfers, result.rows[0].transfers_due) == (192, 192)
    assert "; chunks: 192 of 192 transfers" in phrases.percentiles(result)


def test_transfers_that_were_lost_are_missed_in_the_note_and_in_the_sheet() -> None:
    whole = made([])
    files = whole.files
    assert isinstance(files, collective_runs.Files)
    node, rank, epoch, blob = files.blocks[2]
    torn = replace(
        files, blocks=(*files.blocks[:2], (node, rank, epoch, blob[: len(blob) // 2 - 40]), *files.blocks[3:])
    )
    result = measured(replace(whole, files=torn))
    row = result.rows[0]
    assert (row.transfers, row.transfers_due) == (72, 192), (
        "a torn trial is not whole, and all trials have as many as the fullest"
    )
    assert "; chunks: 72 of 192 transfers" in phrases.percentiles(result)
    (cells,) = csv.DictReader(io.StringIO(sheet.cases(result)))
    assert (cells["transfers"], cells["transfers_due"]) == ("72", "192")


def test_where_nothing_is_recorded_no_count_is_told() -> None:
    gang = simulated.Gang(schedules=simulated.ring(4, SIZE))
    part = collective_runs.Part(operation="all-reduce", algorithm="library", bytes=SIZE, gang=gang, recorded=False)
    assert "transfers" not in phrases.percentiles(measured(collective_runs.run([part])))
