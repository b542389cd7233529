"""The page of a trial that ran several times: figures over its runs, and nothing from runs that have none."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.model.run import Run
from orchestrator.nightly.reports import repeats_page
from orchestrator.nightly.reports.repeats_page import TTR, Figure, Repeat

from ..contract.report_contract import EXTERNAL, HOSTILE, check_forms
from . import collective_runs, history


def repeats(count: int = 20, *, missing: int = 0) -> list[Repeat]:
    """Times to recover of a few hundred milliseconds; the first ``missing`` runs have none."""
    random = np.random.default_rng(5)
    made = []
    for number in range(count):
        detect, step = 0.2 + 0.05 * random.random(), 0.3 + 0.1 * random.random()
        figures = {
            TTR: Figure(detect + step, "s"), "detect": Figure(detect, "s", is_phase=True), "step": Figure(step, "s", is_phase=True),
            "goodput": Figure(0.9, "1"),
        }  # fmt: skip
        is_bad = number < missing
        made.append(Repeat(
            run=f"2026-11-23T02-{number:02d}-07Z-crash-node-{number:04x}", trial="crash-node", outcome="fail" if is_bad else "pass",
            sentence="not back" if is_bad else "back", duration_s=4.0, figures={} if is_bad else figures,
            address=f"../r{number}/report/index.html",
        ))  # fmt: skip
    return made


def page(runs: list[Repeat]) -> str:
    return repeats_page.render("crash-node", runs, "ccbed run crash-node --repeat 20").decode()


def test_the_interval_encloses_the_median_in_95_of_100_groups() -> None:
    random, inside = np.random.default_rng(1), 0
    for _ in range(400):
        values = random.lognormal(0, 0.3, 20)
        group = [
            replace(entry, figures={TTR: Figure(float(value), "s")})
            for entry, value in zip(repeats(), values, strict=True)
        ]
        median = repeats_page.distributions(group)[0].median
        inside += median.low <= 1.0 <= median.high
    assert inside >= 0.93 * 400


def test_the_page_shows_the_median_its_interval_and_the_number_of_runs() -> None:
    text = page(repeats())
    check_forms({"index.html": text.encode()})
    assert not EXTERNAL.search(text)
    assert re.search(r"<h1>Back in [\d.]+ ms \(median of 20 runs, [\d.]+ ms to [\d.]+ ms\); 20 pass</h1>", text)
    assert text.count("<circle>") + text.count("<circle ") == 20 * 4


def test_phases_are_marked_as_parts_and_share_the_scale_of_the_time_to_recover() -> None:
    shown = repeats_page.distributions(repeats())
    assert [figure.is_phase for figure in shown] == [False, True, True, False]
    text = page(repeats())
    assert text.count('<th scope="row" class="part">') == 2
    longest = max(shown[0].values)
    drawn = str(repeats_page.draw(shown[1], "x", longest))
    ends = [float(x) for x in re.findall(r'cx="([\d.]+)"', drawn)]
    expected = repeats_page.MARGIN + max(shown[1].values) / longest * (repeats_page.WIDTH - 2 * repeats_page.MARGIN)
    assert max(ends) == pytest.approx(expected, abs=0.02)


def test_a_run_that_did_not_recover_is_counted_and_has_no_time() -> None:
    text = page(repeats(missing=3))
    assert "17 of 20" in text
    assert text.count("not known") == 3
    assert '<header class="fail">' in text


@pytest.mark.parametrize("count", [1, 5])
def test_few_runs_have_no_interval(count: int) -> None:
    shown = repeats_page.distributions(repeats(count))
    assert not shown[0].has_bounds
    assert "too few runs" in page(repeats(count))
    document = repeats_page.document(repeats(count))
    assert (document["figures"][0]["low"], document["figures"][0]["n"]) == (None, count)
    assert "Infinity" not in json.dumps(document)


def test_six_runs_have_an_interval() -> None:
    assert repeats_page.distributions(repeats(6))[0].has_bounds


def test_without_a_finished_run_there_are_no_figures() -> None:
    text = page(repeats(4, missing=4))
    assert "No run finished" in text
    assert page([])


def test_hostile_text_stays_text() -> None:
    bad = replace(repeats(1)[0], run=HOSTILE, sentence=HOSTILE, figures={HOSTILE: Figure(1.0, HOSTILE)})
    check_forms({"index.html": page([bad]).encode()})


def test_a_run_gives_its_time_to_recover_with_the_phases_that_sum_to_it() -> None:
    repeat = repeats_page.read(history.reference())
    phases = [figure.value for figure in repeat.figures.values() if figure.is_phase]
    assert math.isclose(sum(phases), repeat.figures[TTR].value, rel_tol=1e-6)
    assert "goodput" in repeat.figures


def test_a_run_that_did_not_finish_gives_no_figure() -> None:
    run: Run = history.changed(
        history.reference(), "run.end", value={"outcome": "failed", "reason": "x", "kind": "finding"}
    )
    assert repeats_page.read(run).figures == {}


def test_bundles_are_read_and_linked_and_one_that_is_damaged_is_a_row_without_figures(tmp_path: Path) -> None:
    first = collective_runs.write(
        collective_runs.reference(), tmp_path / "runs" / "2026-10-11T02-00-07Z-allreduce-aaaa"
    )
    (first / "report").mkdir(exist_ok=True)
    (first / "report" / "index.html").touch()
    second = tmp_path / "runs" / "2026-10-11T02-00-08Z-allreduce-bbbb"
    shutil.copytree(first, second)
    (second / "history.jsonl").write_text("{\n{}\n")
    folder = tmp_path / "group"
    folder.mkdir()
    file, group = repeats_page.write(folder, [first, second])
    assert [bool(entry.figures) for entry in group] == [True, False]
    assert group[1].outcome == "broken" and "history.jsonl" in group[1].sentence
    address = re.findall(r'<a href="([^"]*)"', file.read_text())[0]
    assert (folder / address).is_file()
