"""The page of a trial that ran several times: figures over its runs, and nothing from runs that have none."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from orchestrator.nightly.distribution import Distribution
from orchestrator.nightly.reports import repeats_page
from orchestrator.nightly.suite import Row

from ...contract.report_contract import EXTERNAL, HOSTILE, check_forms
from . import synthetic_nights


def rows(count: int = 20, *, failed: int = 0) -> list[Row]:
    """The first ``failed`` runs did not recover."""
    return [
        Row(cell="crash-node", repeat=number, state="failed" if number < failed else "passed", run=f"r{number}", exit=0,
            duration_s=4.0, reason="not back" if number < failed else "")
        for number in range(count)
    ]  # fmt: skip


def figure(metric: str, *values: float, unit: str = "s", first: int = 0, has_bounds: bool = True) -> Distribution:
    """``first``: the number of the first run that has a value."""
    ordered = sorted(values)
    low, high = (ordered[0], ordered[-1]) if has_bounds else (None, None)
    return Distribution(
        metric=metric, unit=unit, values={f"r{first + index}": (value,) for index, value in enumerate(values)}, count=len(values),
        median=ordered[len(values) // 2], low=low, high=high, minimum=ordered[0], maximum=ordered[-1],
    )  # fmt: skip


def figures(count: int = 20, first: int = 0) -> list[Distribution]:
    return [
        figure("duration", *([4.0] * count), first=first), figure("ttr", *(0.5 + i / 100 for i in range(count)), first=first),
        figure("phase detect", *(0.2 + i / 200 for i in range(count)), first=first),
        figure("phase step", *(0.3 + i / 200 for i in range(count)), first=first),
    ]  # fmt: skip


def page(runs: list[Row], shown: list[Distribution], links: dict[str, str] | None = None) -> str:
    return repeats_page.render(synthetic_nights.night(4, 0), runs, shown, links or {}).decode()


def test_the_page_begins_with_the_median_and_its_interval() -> None:
    text = page(rows(), figures())
    check_forms({"index.html": text.encode()})
    assert not EXTERNAL.search(text)
    assert "<h1>Back in 600 ms (median of 20, 500 ms to 690 ms); 20 passed</h1>" in text
    assert text.index(">time to recover</th>") < text.index(">detect</th>") < text.index(">duration</th>")
    assert text.count("<circle ") == 20 * 4


def test_phases_share_the_scale_of_the_time_to_recover() -> None:
    shown = figures()
    ends = [float(x) for x in re.findall(r'cx="([\d.]+)"', repeats_page.draw(shown[2], "x", shown[1].maximum))]
    expected = repeats_page.MARGIN + shown[2].maximum / shown[1].maximum * (
        repeats_page.WIDTH - 2 * repeats_page.MARGIN
    )
    assert max(ends) == pytest.approx(expected, abs=0.02)


def test_a_run_that_did_not_recover_is_counted_and_has_no_time() -> None:
    text = page(rows(failed=3), figures(17, first=3))
    assert text.count("17 of 20") == 4
    assert text.count("not known") == 3
    assert '<header class="fail">' in text and "not back" in text
    assert "3 failed, 17 passed</h1>" in text


def test_few_runs_have_no_interval() -> None:
    text = page(rows(2), [figure("ttr", 0.5, 0.6, has_bounds=False)])
    assert "too few runs" in text and "(median of 2);" in text


def test_each_run_with_a_page_is_linked() -> None:
    text = page(rows(2), figures(2), {"r0": "../runs/r0/report/index.html"})
    assert re.findall(r'<a href="([^"]*)"', text) == ["../runs/r0/report/index.html"]


@pytest.mark.parametrize("count", [0, 3])
def test_without_figures_the_page_says_so(count: int) -> None:
    assert "No run finished" in page(rows(count, failed=count), [])


def test_several_failovers_of_a_run_are_several_dots() -> None:
    shown = replace(figure("ttr", 0.5, 0.7), values={"r0": (0.5, 0.6), "r1": (0.7,)}, count=3)
    assert page(rows(2), [shown]).count("<circle ") == 3
    assert "500 ms, 600 ms" in page(rows(2), [shown])


def test_hostile_text_stays_text() -> None:
    bad = replace(figure("ttr", 1.0), metric=HOSTILE, unit=HOSTILE, values={HOSTILE: (1.0,)})
    row = replace(rows(1)[0], run=HOSTILE, reason=HOSTILE)
    check_forms({"index.html": page([row], [bad], {HOSTILE: "x"}).encode()})
