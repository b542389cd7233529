"""What the records cannot tell, or tell wrongly, is told as such: nothing gathered, nothing verified, one rank alone."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.app import ended
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import summary_lines, terminal
from orchestrator.collectives import sections
from orchestrator.collectives import views as collectives
from orchestrator.collectives.page import measured_charts, nccl, sheet
from orchestrator.collectives.plugins.reports import collectives as report
from orchestrator.collectives.plugins.reports import plots
from orchestrator.collectives.views import case_table, fastest, phrases, samples
from orchestrator.core.verdict import run_metrics as core_metrics
from orchestrator.model.event import Event, History
from orchestrator.model.run import Run
from orchestrator.reports import html
from orchestrator.store import bundle
from orchestrator.views import comparison

from .. import simulated
from . import collective_runs
from .collective_runs import Part


def part(**changes: Any) -> Part:
    made = Part(
        operation="all-reduce", algorithm="ring", bytes=4096, iterations=6, cost=(6, 1.5),
        gang=simulated.Gang(schedules=simulated.ring(4, 4096)),
    )  # fmt: skip
    return replace(made, **changes)


def measured(run: Run) -> collectives.Measured:
    result = collectives.measured(run)
    assert result is not None
    return result


def planned(run: Run, **changes: Any) -> Run:
    """The same with other values in its plan."""

    def changed(event: Event) -> Event:
        value = {**event.value, **changes} if event.f == "collective.plan" else event.value
        return dataclasses.replace(event, value=value)

    return replace(run, history=History(tuple(changed(event) for event in run.history.events)))


@pytest.mark.parametrize("groups", [[[0]], [[0], [1], [2], [3]]])
@pytest.mark.parametrize("sizes", [(4096,), (4096, 8192)])
def test_ranks_that_are_alone_have_all_reports(groups: list[list[int]], sizes: tuple[int, ...]) -> None:
    world = max(rank for group in groups for rank in group) + 1
    parts = [
        part(bytes=size, cost=(0, 0), about={"groups": groups}, gang=simulated.Gang(schedules=[[((), ())]] * world))
        for size in sizes
    ]
    run = collective_runs.run(parts, world=world)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = {**report.render(run), **html.render(run)}
    assert {"collective.csv", "nccl-tests.json", "index.html"} <= set(made)
    assert "plots/times.png" in set(plots.render(run))


def test_a_time_of_nothing_breaks_no_report() -> None:
    gang = simulated.Gang(schedules=[[((), ())]], noise=0)
    run = collective_runs.run([part(cost=(0, 0), about={"groups": [[0]]}, gang=gang)], world=1)
    still = tuple(replace(record, end=record.start) for record in run.files.steps())
    run = replace(run, files=collective_runs.Files(still))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "index.html" in {**report.render(run), **html.render(run)}
        assert comparison.compare(run, run).rows


def test_a_report_that_broke_is_said_and_changes_no_exit_code(tmp_path: Path) -> None:
    directory = collective_runs.write(collective_runs.run([part()]), tmp_path / "run")
    (directory / bundle.REPORT).mkdir()
    (directory / bundle.REPORT / "html-failed.txt").write_text("Traceback: …")
    out = io.StringIO()
    session = Session(state=tmp_path, terminal=terminal.Terminal(out=out, err=io.StringIO()))
    result = ended.saved(directory)
    assert summary_lines.show(session, result) == result.code
    assert "html could not be written" in out.getvalue()
    assert "report/html-failed.txt" in out.getvalue()
    out.truncate(0)
    assert summary_lines.show(session, result, as_json=True) == result.code
    assert json.loads(out.getvalue().strip("\0"))["reports_failed"] == ["html"]


def test_what_nobody_verified_is_no_zero() -> None:
    run = planned(collective_runs.run([part()]), verify=False)
    result = measured(run)
    assert phrases.verified(run.history, result) == "not verified"
    assert case_table.lines(result)[-1].endswith("-")
    (row,) = csv.DictReader(io.StringIO(sheet.cases(result)))
    assert row["wrong"] == ""
    value = json.loads(nccl.document(run, result))
    assert value["config"]["validation"] == 0
    assert value["results"][0]["in_place"]["nwrong"] is None
    assert value["out_of_bounds"]["okay"] == "unchecked"
    assert not [metric for metric in core_metrics.of(run) if metric.metric.endswith(" wrong")]
    assert [figure for name, figure, _ in sections.figures(result) if name == "wrong results"] == ["not verified"]


def test_runs_are_compared_by_one_definition_of_a_time() -> None:
    before, after = (collective_runs.run([part()], over=over) for over in ("chunk", "mean_rank"))
    changes = comparison.compare(before, after)
    assert changes.over == "max_rank"
    assert changes.rows[0].before == changes.rows[0].after
    assert comparison.compare(after, after).over == "mean_rank"


def test_cases_of_other_shares_are_other_cases() -> None:
    even, uneven = part(operation="all-to-all"), part(operation="all-to-all", about={"shares": [0.1, 0.1, 0.1, 0.7]})
    changes = comparison.compare(collective_runs.run([even]), collective_runs.run([uneven]))
    assert changes.rows == ()
    assert len(changes.only) == 2
    run = collective_runs.run([even, uneven])
    assert len({case.identity for case in measured(run).setting.cases}) == 2
    assert "shares 0.1:0.1:0.1:0.7" in "\n".join(case_table.lines(measured(run)))
    assert [row["shares"] for row in csv.DictReader(io.StringIO(sheet.cases(measured(run))))] == ["", "0.1:0.1:0.1:0.7"]
    assert len({metric.metric for metric in core_metrics.of(run) if metric.metric.endswith("busbw")}) == 2


@pytest.mark.parametrize("operation", ["all-gather", "reduce-scatter", "all-to-all", "gather", "scatter"])
def test_the_count_of_nccl_tests_is_that_of_one_rank(operation: str) -> None:
    run = collective_runs.run([part(operation=operation)])
    (row,) = json.loads(nccl.document(run, measured(run)))["results"]
    assert (row["size"], row["count"]) == (4096, 256)


def test_the_p99_of_nccl_tests_is_a_number_however_few_samples_there_are() -> None:
    """Its readers compute with it; what we say ourselves of so few is in wording.percentiles."""
    run = collective_runs.run([part()])
    (row,) = json.loads(nccl.document(run, measured(run)))["results"]
    result = row["in_place_per_iter"]
    assert result["p50_us"] <= result["p99_us"] <= result["max_us"]


def test_without_a_gathered_trial_there_is_no_table() -> None:
    run = replace(collective_runs.run([part()]), files=collective_runs.Files())
    (line,) = sections.lines(run, Path("runs/x"))
    assert line.startswith("measured  nothing")


def test_the_title_says_type_operator_and_root_and_the_table_both_bandwidths_and_the_count() -> None:
    result = measured(collective_runs.run([part(operation="reduce", about={"root": 0})]))
    lines = case_table.lines(result)
    assert "reduce, float32 sum, root 0" in lines
    assert "algbw" in lines[0]
    assert "count" in lines[1]
    assert "1,024" in lines[-1]


def step(run: Run, number: int, epoch: int, ranks: range, later: float) -> list[Any]:
    result = [record for record in run.files.steps() if record.step == number and record.rank in ranks]
    return [replace(entry, epoch=epoch, start=entry.start + later, end=entry.end + later) for entry in result]


def test_of_a_step_that_only_some_ranks_did_again_the_epoch_before_counts() -> None:
    run = collective_runs.run([part()])
    before = measured(run).data[0][0]
    torn = (*run.files.steps(), *step(run, 3, 1, range(2), 9.0), *step(run, 2, 1, range(4), 9.0))
    result = collectives.setting(run)
    assert result is not None
    spans = samples.spans(torn, result)[0]
    assert spans.lost == 0
    assert spans.end[2] == pytest.approx(before.end[2])
    assert spans.end[1] == pytest.approx(before.end[1] + 9)


def test_winners_are_told_from_noise_over_all_sizes_together() -> None:
    """With forty sizes and no difference, uncorrected tests at 5 % would find some."""
    parts = [part(bytes=4096 << spot, algorithm=name) for spot in range(40) for name in ("ring", "other")]
    result = measured(collective_runs.run([replace(run, iterations=1) for run in parts]))
    draw = np.random.default_rng(11)
    numbers = np.arange(1, 21)
    times = {
        case.number: samples.Timed(trials=numbers, seconds=1 + 0.1 * draw.random(20)) for case in result.setting.cases
    }
    assert not [race_ for race_ in fastest.fastest(result.setting.cases, times) if race_.clear]
    few = {number: samples.Timed(trials=numbers[:5], seconds=np.array([1.0 + number % 2] * 5)) for number in times}
    assert not [race_ for race_ in fastest.fastest(result.setting.cases, few) if race_.clear]


def test_no_iterations_are_recommended_where_chunks_are_counted() -> None:
    few = measured(collective_runs.run([part(iterations=2)], over="chunk"))
    assert phrases.percentiles(few).endswith("p99 needs 100 or more")
    assert "--iterations 100" in phrases.percentiles(measured(collective_runs.run([part()])))


BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("link.pair", {"rank": 0, "peer": 1, "alpha_s": 1e-5, "beta_s_per_byte": 1e-9, "interval": [1e-9, "fast"]}),
    ("link.pair", {"rank": 0, "peer": 1, "alpha_s": 1e-5, "beta_s_per_byte": 1e-9, "interval": [2e-9, 1e-9]}),
    (
        "link.pair",
        {"rank": 0, "peer": 1, "alpha_s": 1e-5, "beta_s_per_byte": 1e-9, "samples": [["x", 1, 2], [4, None, 1], 7]},
    ),
]


@pytest.mark.parametrize(("name", "value"), BROKEN)
def test_a_probe_that_is_no_number_breaks_nothing(name: str, value: dict[str, Any]) -> None:
    result = measured(collective_runs.run([part()], probe=False, notes=[(name, value)]))
    (direction,) = result.setting.link.directions
    assert direction.interval is None and direction.samples == ()


def test_auto_is_told_with_its_reason() -> None:
    chosen = {"case": 0, "chosen": "ring", "seconds": {"ring": 1e-3}, "why": "the model expects 1 ms"}
    run = collective_runs.run([part(about={"asked": "auto"})], notes=[("collective.auto", chosen)])
    message = "auto      all-reduce ring 4 KiB: the model expects 1 ms"
    assert message in list(sections.lines(run, Path("runs/x")))
    assert ("auto", message.removeprefix("auto      ")) in list(sections.statements(run, measured(run)))
    document: Any = sections.document(run)
    assert document is not None
    assert document["auto"] == [{"case": 0, "chosen": "ring", "why": "the model expects 1 ms"}]


def test_a_wrong_result_that_was_found_again_after_a_restart_counts_once() -> None:
    wrong = {"case": 0, "step": 2, "offset": 7, "expected": 6.0, "got": 5.0, "rank": 3}
    run = collective_runs.run([part()], notes=[("collective.wrong", wrong), ("collective.wrong", wrong)])
    first = next(event for event in run.history.events if event.f == "collective.wrong")
    events = [
        dataclasses.replace(event, epoch=1) if event.f == "collective.wrong" and event is not first else event
        for event in run.history.events
    ]
    second = replace(run, history=History(tuple(events)))
    assert measured(second).rows[0].wrong == 1
    assert phrases.verified(second.history, measured(second)).startswith("1 wrong, the first at rank 3")


BAD = ("nan", "inf", "-inf", -1e-5)


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("event", ["link.fit", "link.pair"])
@pytest.mark.parametrize("field", ["alpha_s", "beta_s_per_byte"])
def test_a_figure_of_a_link_that_is_no_time_is_not_known_in_any_output(
    event: str, field: str, value: str | float
) -> None:
    run = collective_runs.run([part()])
    events = [
        replace(entry, value={**entry.value, field: value}) if entry.f == event else entry
        for entry in run.history.events
    ]
    damaged = replace(run, history=History(tuple(events)))
    texts = [*sections.lines(damaged, Path("x")), *(metric.metric for metric in core_metrics.of(damaged))]
    values = [metric.value for metric in core_metrics.of(damaged)]
    assert np.isfinite(values).all() and min(values) >= 0
    assert not any(word in text.split() for text in texts for word in ("nan", "inf", "-inf"))
    result = collectives.measured(damaged)
    assert result is not None and html.render(damaged)
    assert (result.rows[0].of_model is None) == (event == "link.fit")


@pytest.mark.parametrize("end", [float("nan"), float("inf"), 0.0], ids=["nan", "inf", "before its start"])
def test_a_transfer_or_an_iteration_that_ended_before_it_began_is_not_counted(end: float) -> None:
    run = collective_runs.run([part()])
    files = run.files
    assert isinstance(files, collective_runs.Files)
    (node, rank, epoch, blob), *others = files.blocks
    torn = replace(files, blocks=((node, rank, epoch, blob[:-8] + np.float64(end).tobytes()), *others))
    result = collectives.measured(replace(run, files=torn))
    assert result is not None
    assert (result.rows[0].transfers, result.rows[0].transfers_due) == (120, 144)
    late = replace(
        files, records=tuple(replace(record, end=end) if record.step == 3 else record for record in files.records)
    )
    row = collectives.measured(replace(run, files=late)).rows[0]  # type: ignore[union-attr]
    assert row.lost == 1 and row.trial is not None and row.trial.count == 5 and row.trial.min > 0


def test_records_of_ranks_that_are_not_in_the_plan_explain_nothing() -> None:
    run = collective_runs.run([part(about={"groups": [[0, 1, 2, 70]]})])
    result = collectives.measured(run)
    assert result is not None and result.path == {} and not result.stragglers
    assert any("straggler not known" in line for line in sections.lines(run, Path("x")))


def test_the_bandwidth_of_the_model_is_that_of_its_time_however_long_one_iteration_took() -> None:
    result = collectives.measured(collective_runs.figure())
    assert result is not None
    (row,) = result.rows
    assert row.model_s and row.mean_s and row.trial and row.mean_s > 5 * row.trial.p50, "an iteration of 4.5 s"
    expected = row.case.bytes * 1.5 / row.model_s / 1e9
    assert measured_charts.model(row) == pytest.approx(expected)
