"""Every kind of page in a real browser: on a phone and a desk, light and dark, nothing leaves its card, and all can be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nightly.reports import page, runs_page
from orchestrator.reports import html
from orchestrator.reports.page import compared
from orchestrator.views import comparison

from ..contract import report_contract
from . import browser, simulated
from .browser import Browser, needs_chromium
from .collectives import collective_runs
from .nightly import synthetic_nights, test_runs_page
from .test_compare import collective

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.opened() as opened:
        yield opened


def _compared(_: Path) -> bytes:
    first, second = collective(18e6, 1), collective(16e6, 2)
    return compared.render(compared.side(first), compared.side(second), comparison.compare(first, second))


def _runs(directory: Path) -> bytes:
    entries = [test_runs_page.run(directory, number) for number in range(200)]
    return runs_page.render(directory, entries, test_runs_page.nights(directory))


#: Name -> the page; it gets a directory for what it names.
PAGES: dict[str, Callable[[Path], bytes]] = {
    "night": lambda _: page.render(synthetic_nights.report(nodes=16, nights=24)),
    "runs": _runs,
    "compared": _compared,
    "run": lambda _: html.render(report_contract.whole())["index.html"],
    "run-failed": lambda _: html.render(report_contract.failed(report_contract.whole()))["index.html"],
    "run-hostile": lambda _: html.render(report_contract.hostile(report_contract.whole()))["index.html"],
    "collective": lambda _: html.render(report_contract.collective())["index.html"],
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_readable_on_a_phone_and_a_desk(chromium: Browser, tmp_path: Path, name: str) -> None:
    file = tmp_path / f"{name}.html"
    file.write_bytes(PAGES[name](tmp_path))
    browser.check(chromium, file)


def sweep() -> bytes:
    """17 sizes by three algorithms, 4 KiB to 256 MiB."""
    parts = [
        collective_runs.Part(
            operation="all-reduce", algorithm=name, bytes=4096 << spot, iterations=20, cost=(6, 1.5),
            gang=simulated.Gang(schedules=simulated.ring(4, 4096 << spot), seed=spot),
        )
        for spot in range(17)
        for name in ("ring", "library", "halving-doubling")
    ]  # fmt: skip
    return html.render(collective_runs.run(parts))["index.html"]


def test_the_page_of_a_sweep_is_small_and_shows_the_size_that_is_chosen(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "sweep.html"
    file.write_bytes(sweep())
    assert file.stat().st_size < 1_000_000
    assert browser.check(chromium, file).elements < 5000
    with chromium.page(file) as page:
        rows = "[...document.querySelectorAll('#cases tbody tr')].map((row) => row.cells[0].textContent)"
        legend = "[...document.querySelectorAll('[data-chart=times] .u-label')].map((cell) => cell.textContent)"
        assert page.evaluate(rows).count("8 KiB") == 3
        table = page.locator("#cases").evaluate("table => [table.scrollWidth, table.parentElement.clientWidth]")
        assert table[0] <= table[1], "its last column, the wrong results, is in view"
        page.select_option("#case-choice", label="8 KiB")
        assert page.evaluate(rows)[1:] == ["8 KiB"] * 3
        assert page.evaluate(legend)[1:] == ["ring", "library", "halving-doubling"]
        assert set(page.locator("[data-shown]").all_text_contents()) == {"8 KiB"}
        borders = "[...document.querySelectorAll('.u-legend .u-series:not(:first-child) .u-marker')].map((mark) => mark.style.border)"
        assert all(page.evaluate(borders)), "every curve has its colour in the legend"
        _point_at(page, "[data-chart=bandwidth]")
        values = page.locator("[data-chart=bandwidth] .u-value").all_text_contents()
        assert "KiB" in values[0] or "MiB" in values[0], values
        assert all(float(value) > 0 for value in values[1:]), values


def _point_at(page: Any, chart: str) -> None:
    """The pointer is in the middle of the chart."""
    place = page.locator(f"{chart} .u-over")
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def test_a_chart_is_zoomed_by_dragging_and_back_by_a_double_click(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "zoom.html"
    file.write_bytes(html.render(report_contract.collective())["index.html"])
    with chromium.page(file) as page:
        chart = "[data-chart=delays]"
        ground = f"document.querySelector('{chart} canvas').toDataURL()"
        whole = page.evaluate(ground)
        _point_at(page, chart)
        box = page.locator(f"{chart} .u-over").bounding_box()
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 20, steps=4)
        page.mouse.up()
        page.mouse.move(0, 0)  # a chart under the pointer looks different, zoomed or not
        page.wait_for_function(f"(whole) => {ground} !== whole", arg=whole)
        page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + 20)
        page.mouse.move(0, 0)
        page.wait_for_function(f"(whole) => {ground} === whole", arg=whole)


def test_events_are_folded_filtered_and_opened_by_a_link(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "events.html"
    file.write_bytes(html.render(report_contract.with_verdicts(report_contract.whole(), "fail"))["index.html"])
    with chromium.page(file) as page:
        rows = page.locator("#events tbody tr")
        assert not rows.first.is_visible()
        page.click('.evidence a[href="#e1"]')
        assert page.locator("#e1").is_visible()
        page.fill("#event-words", "crash-node n2")
        shown = page.locator("#events tbody tr:visible").all_text_contents()
        assert 0 < len(shown) < rows.count()
        assert all("n2" in text and "crash-node" in text for text in shown)
        assert page.locator("#event-count").text_content() == f"{len(shown)} of {rows.count()} events"
        page.click('.evidence a[href="#e2"]')
        page.wait_for_selector("#events tr:visible #e2, #e2:visible")
        assert page.input_value("#event-words") == ""
        page.fill("#event-words", "crash-node n2")
        assert not page.locator("#e1").is_visible()
        page.click('.evidence a[href="#e2"]')
        assert page.locator("#e1").is_visible(), "the address is the same as before, and the filter is gone"


def test_the_end_of_a_log_is_in_view(chromium: Browser, tmp_path: Path) -> None:
    run = report_contract.hostile(report_contract.whole())
    lines = [f"step {step}" for step in range(60)]
    file = tmp_path / "log.html"
    file.write_bytes(
        html.render(dataclasses.replace(run, files=report_contract.HostileFiles(run.files, lines)))["index.html"]
    )
    with chromium.page(file) as page:
        log = page.locator("pre.log").last
        assert log.text_content().splitlines() == lines[-40:]
        assert log.evaluate("log => log.scrollHeight - log.clientHeight") > 0, "the control: it does not fit"
        assert log.evaluate("log => log.scrollHeight - log.clientHeight - log.scrollTop") < 2


def test_no_text_of_a_run_is_executed(chromium: Browser, tmp_path: Path) -> None:
    """Neither through a hole in the escaping: the policy of the page allows its own scripts alone."""
    file = tmp_path / "injected.html"
    hostile = html.render(report_contract.hostile(report_contract.whole()))["index.html"]
    file.write_bytes(hostile.replace(b"</main>", b"<script>document.title = 'executed'</script></main>"))
    with chromium.browser.new_page() as page:
        page.goto(file.as_uri())
        assert page.title() != "executed"
        assert page.locator("#event-count").text_content(), "the control: its own script runs"


PICTURE = (
    '<svg viewBox="0 0 90 20" width="90" role="img" aria-label="x">'
    '<rect width="90" height="20" fill="#123"/><text y="14" fill="#234">t</text></svg>'
)
WHOLE = (
    "<!doctype html><html lang='en'><title>x</title><body><main><h1>x</h1><section>{}</section></main></body></html>"
)
#: What is wrong with a page -> its card, and a part of what is reported.
WRONG = {
    "wider than the window": ("<div style='width:900px'>x</div>", "px wide in a window of 400"),
    "out of its card": ("<div style='overflow:clip'><p style='margin-right:-9px'>x</p></div><p style='margin-right:-9px'>x</p>", "leaves"),
    "text out of its card": ("<p style='white-space:nowrap;width:50px'>" + "a word, " * 80 + "</p>", "text leaves its card"),
    "no contrast": ("<p style='color:#eee;background:#fff'>pale</p>", "color-contrast"),
    "a picture without contrast": (PICTURE, "of text in a picture"),
    "no label": ("<input>", "label"),
    "an error of a script": ("<script>missing()</script>", "missing is not defined"),
    "an error on the console": ("<script>console.error('broken')</script>", "console: error: broken"),
    "an address outside": ("<img alt='x' src='http://127.0.0.1:9/x.png'>", "asks for http://127.0.0.1:9/x.png"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_page_is_noticed(chromium: Browser, tmp_path: Path, what: str) -> None:
    card, expected = WRONG[what]
    file = tmp_path / "wrong.html"
    file.write_text(WHOLE.format(card))
    problems = chromium.inspect(file, browser.WIDTHS[0], "light").problems
    assert any(expected in problem for problem in problems), problems


def test_a_page_without_a_fault_has_no_problem(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "right.html"
    file.write_text(WHOLE.format("<p>x</p>"))
    assert chromium.inspect(file, browser.WIDTHS[0], "light").problems == ()
