"""Slow directions of links and those that are known roughly, on every output; chunk figures say how many transfers they are of."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.collectives import sections
from orchestrator.collectives import views as collectives
from orchestrator.collectives.page import link_map, sheet
from orchestrator.collectives.plugins.reports import collectives as report
from orchestrator.collectives.views import Direction, phrases
from orchestrator.collectives.views import directions as link_directions
from orchestrator.core.verdict import run_metrics as core_metrics
from orchestrator.model.event import History
from orchestrator.model.run import Run
from orchestrator.reports import html, metrics

from .. import simulated
from . import collective_runs

SIZE = 4096
BETA = collective_runs.BETA


@pytest.fixture(scope="module")
def run() -> Run:
    """The direction from n0 to n3 is known roughly: its trains were disturbed."""
    wide = {"rank": 0, "peer": 3, "alpha_s": 1e-4, "beta_s_per_byte": BETA, "interval": [BETA, 1.6 * BETA]}
    return made([("link.pair", wide)])


def made(notes: list[tuple[str, dict[str, object]]]) -> Run:
    gang = simulated.Gang(schedules=simulated.ring(4, SIZE))
    part = collective_runs.Part(operation="all-reduce", algorithm="ring", bytes=SIZE, gang=gang, cost=(6, 1.5))
    return collective_runs.run([part], notes=notes)


def measured(run: Run) -> collectives.Measured:
    result = collectives.measured(run)
    assert result is not None
    return result


def link_line(run: Run) -> str:
    return next(iter(sections.lines(run, Path("runs/x"))))


def directions(count: int, *, slow: tuple[int, ...] = (), by: float = 1.0, width: float = 0.004) -> list[Direction]:
    betas = [BETA * (by if number in slow else 1.0) * (1 + 0.001 * (number % 3)) for number in range(count)]
    return [
        Direction(
            sender=number,
            receiver=number + 1,
            alpha_s=1e-5,
            beta=beta,
            interval=(beta * (1 - width), beta * (1 + width)),
        )
        for number, beta in enumerate(betas)
    ]


@pytest.mark.parametrize("slow", [(0,), (5,), (3, 4, 5), (0, 1, 2, 3)])
def test_directions_that_are_five_percent_slower_are_named_and_no_others(slow: tuple[int, ...]) -> None:
    named = link_directions.slow(directions(6, slow=slow, by=1.05))
    assert {direction.sender for direction in named} == set(slow)


@pytest.mark.parametrize("width", [0.0, 0.004, 0.3])
def test_of_equal_directions_none_is_named(width: float) -> None:
    assert link_directions.slow(directions(12, width=width)) == []


def test_a_direction_is_equal_slower_or_not_resolved_by_its_interval() -> None:
    for width, by, outcome in (
        (0.004, 1.0, "equal"),
        (0.004, 1.05, "slower"),
        (0.3, 1.0, "not resolved"),
        (0.3, 1.05, "not resolved"),
    ):
        compared = link_directions.changes(directions(12, slow=(4,), by=by, width=width))
        assert {change.outcome() for direction, change in compared if direction.sender == 4} == {outcome}
        assert all(change.low <= change.value <= change.high for _, change in compared)


def test_a_wide_interval_is_no_reason_to_name_a_direction() -> None:
    """The negative control of naming by the number alone: this one has the greatest beta."""
    rough = Direction(sender=9, receiver=1, alpha_s=1e-5, beta=1.3 * BETA, interval=(0.99 * BETA, 1.6 * BETA))
    assert link_directions.slow([*directions(6), rough]) == []
    clear = replace(rough, interval=(1.2 * BETA, 1.6 * BETA))
    assert link_directions.slow([*directions(6), clear]) == [clear]


def test_directions_that_are_faster_than_their_link_are_no_measure_for_the_others() -> None:
    """Five of twelve are faster than the wire carries, so that their buckets had not been empty: the others are as they should be."""
    fast = [replace(direction, beta=None, interval=(BETA / 2, BETA / 2)) for direction in directions(5)]
    others = directions(12)[5:]
    assert link_directions.slow([*fast, *others]) == []
    late = replace(others[0], beta=1.1 * BETA, interval=(1.09 * BETA, 1.11 * BETA))
    assert link_directions.slow([*fast, late, *others[1:]]) == [late]


def test_ranks_of_one_node_are_no_measure_for_the_links_between_nodes() -> None:
    """Two nodes of two ranks: four directions stay on a node and pass no link."""
    ends = [(a, b) for a in range(4) for b in range(4) if a != b]
    every = [
        Direction(sender=a, receiver=b, alpha_s=1e-5, beta=beta, interval=(beta, beta), is_internal=a // 2 == b // 2)
        for a, b in ends
        for beta in [BETA / 20 if a // 2 == b // 2 else BETA]
    ]
    assert link_directions.slow(every) == []
    late = [
        replace(direction, beta=1.1 * BETA, interval=(1.1 * BETA, 1.1 * BETA)) if direction.sender == 1 else direction
        for direction in every
    ]
    assert [(direction.sender, direction.receiver) for direction in link_directions.slow(late)] == [(1, 2), (1, 3)]
    assert link_directions.slow_end(1, 2, late) == "sending"


def test_the_run_says_which_directions_stay_on_a_node() -> None:
    run = made([])
    events = [
        replace(event, value={**event.value, "ranks": [0, 1]})
        if (event.f, event.node) == ("gang.start", "n0")
        else event
        for event in run.history.events
        if (event.f, event.node) != ("gang.start", "n1")
    ]
    within = {
        (direction.sender, direction.receiver)
        for direction in measured(replace(run, history=History(tuple(events)))).setting.link.directions
        if direction.is_internal
    }
    assert within == {(0, 1), (1, 0)}
    assert not any(direction.is_internal for direction in measured(run).setting.link.directions)


def test_the_worst_direction_is_named_with_its_interval() -> None:
    slow = {"rank": 2, "peer": 1, "alpha_s": 1e-4, "beta_s_per_byte": 2 * BETA, "interval": [1.99 * BETA, 2.01 * BETA]}
    text = link_line(made([("link.pair", slow)]))
    assert " · worst direction n2 -> n1 70 Mbit/s (69.65 to 70.35 Mbit/s) · " in text
    also = {**slow, "peer": 0, "beta_s_per_byte": 1.99 * BETA}
    text = link_line(made([("link.pair", slow), ("link.pair", also)]))
    assert "worst direction n2 -> n1" in text and ", 2 directions are slower than the others · " in text


def test_where_no_direction_is_slower_the_terminal_says_within_which_share() -> None:
    assert " · no direction is more than 2 % slower than the others · " in link_line(made([]))


def test_a_probe_that_knows_a_direction_roughly_claims_nothing_of_it() -> None:
    """It was "no direction is slower than the others (down to 1827 %)"."""
    wide = {"rank": 2, "peer": 1, "alpha_s": 1e-4, "beta_s_per_byte": 2 * BETA, "interval": [0.9 * BETA, 19 * BETA]}
    text = link_line(made([("link.pair", wide)]))
    assert "no direction is" not in text and "worst direction" not in text
    assert (
        " · slower directions not resolved, 1 of 12: n2 -> n1 takes 2.0 times as long as the others, 95 % 0.90 to 19.1;"
        " a longer probe would decide: --probe-s · "
    ) in text


def test_a_direction_that_is_known_roughly_has_its_interval(run: Run) -> None:
    text = "1 of 12 directions known roughly: n0 -> n3 140 Mbit/s (87.5 to 140 Mbit/s)"
    assert f" · {text} · " in link_line(run)
    assert "roughly" not in link_line(made([]))


def test_a_rate_that_the_link_cannot_carry_is_no_number() -> None:
    fast = {"rank": 0, "peer": 3, "alpha_s": 1e-4, "beta_s_per_byte": None, "interval": [BETA / 3, BETA / 2]}
    run = made([("link.pair", {**fast, "reason": "faster than the link carries"})])
    assert "n0 -> n3 280 to 420 Mbit/s (faster than the link carries)" in link_line(run)
    rows = list(csv.DictReader(io.StringIO(report.render(run)["links.csv"].decode())))
    (row,) = [row for row in rows if row["reason"]]
    assert (row["bits_per_s"], row["least_bits_per_s"]) == ("", "280000000")


def test_older_records_have_one_direction_of_each_pair_and_name_no_worst_one() -> None:
    run = made([])
    older = [
        replace(event, value={key: item for key, item in event.value.items() if key != "interval"})
        for event in run.history.events
        if event.f != "link.pair" or event.value["rank"] < event.value["peer"]
    ]
    setting = measured(replace(run, history=History(tuple(older)))).setting
    assert len(setting.link.directions) == 6
    assert phrases.worst_direction(setting) == "worst direction not known: the record has no intervals"


def test_every_output_says_that_a_probe_was_reused_or_why_it_was_not() -> None:
    fit = {"rank": 0, "alpha_s": 5e-5, "beta_s_per_byte": BETA}
    reused = made([("link.fit", {**fit, "reused_from": "51ab", "measured_at": "2026-11-21 09:12 UTC"})])
    text = "reused from 51ab, 2026-11-21 09:12 UTC, and confirmed"
    assert f" · {text} · " in link_line(reused) and text in html.render(reused)["index.html"].decode()
    changed = made([("link.fit", {**fit, "changed": "rank 1 -> 3 has another rate than in run RUN"})])
    assert " · measured again: rank 1 -> 3 has another rate than in run RUN · " in link_line(changed)


def test_the_page_marks_the_direction_in_its_map_and_says_what_the_mark_is(run: Run) -> None:
    page = html.render(run)["index.html"].decode()
    assert "With a question mark: 1 of 12 directions known roughly: n0 -&gt; n3 140 Mbit/s" in page
    assert 'href="links.csv"' in page
    drawn, sure = (link_map.maps(measured(known)) for known in (run, made([])))
    texts, certain = (
        [text for of_map in maps for _, row in of_map.rows for text, _, _ in row if text] for maps in (drawn, sure)
    )
    assert len(texts) == 24 and sum(text.endswith("?") for text in texts) == 2, "one direction, in both maps"
    assert not any(text.endswith("?") for text in certain)


def test_files_for_programs_have_a_line_for_each_direction(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(report.render(run)["links.csv"].decode())))
    assert len(rows) == 12
    (rough,) = [row for row in rows if (row["node"], row["peer_node"]) == ("n0", "n3")]
    assert (rough["bits_per_s"], rough["least_bits_per_s"]) == ("140000000", "87500000")
    values = {metric.metric: metric.value for metric in core_metrics.of(run) if metric.metric.startswith("link ")}
    assert values["link 0-3 greatest beta"] == 1.6 * BETA and values["link 3-0 beta"] == BETA
    text = metrics.render(run)["metrics.prom"].decode()
    assert (
        'ccbed_collective_link_least_bytes_per_second{trial="allreduce",bed="fabric",from="n0",to="n3"} 10937500'
        in text
    )


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
