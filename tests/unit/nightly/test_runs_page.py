"""The page over many runs: its data, its size with 10,000 runs, and what its script does in a browser."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.nightly.index.entries import NightEntry, RunEntry
from orchestrator.nightly.reports import runs_page
from orchestrator.store import seal

from ...contract.report_contract import EXTERNAL, HOSTILE
from ..collectives import collective_runs
from . import synthetic_nights

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def run(directory: Path, number: int, **changes: Any) -> RunEntry:
    """Every third one is of a night, every tenth one failed."""
    entry = RunEntry(
        run="", directory="", bed="lab", trial=("gemm", "crash-node", "pairs")[number % 3], workload="",
        started=f"2026-11-{1 + number % 28:02d}T02:00:07Z", outcome="fail" if number % 10 == 0 else "pass", is_sealed=True, exit=0,
        duration_s=5.0 + number % 50, ttr_s=0.5 + number / 1e4 if number % 3 == 1 else None,
        night=nights(directory)[0].name if number % 3 == 0 else "", cell="", repeat=0,
    )  # fmt: skip
    entry = dataclasses.replace(entry, **changes)
    name = f"{entry.started.replace(':', '-')}-{entry.trial}-{number:04x}"
    folder = directory / entry.night / "runs" if entry.night else directory
    return dataclasses.replace(entry, run=name, directory=str(folder / name))


def nights(directory: Path) -> tuple[NightEntry, ...]:
    night = synthetic_nights.night(4, 3)
    return (
        NightEntry(
            directory=str(directory / night.name), name=night.name, bed="lab", suite="standard", number=3, started=night.started,
            is_closed=True, outcome="warn", exit=0, sentence="n5 is a suspect", runs=9,
        ),
    )  # fmt: skip


class Elements(HTMLParser):
    """Fails on a tag that is closed out of order; keeps the scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def parse(page: bytes) -> Elements:
    elements = Elements()
    elements.feed(page.decode())
    assert elements.open == []
    return elements


def table(page: bytes) -> Any:
    return json.loads(parse(page).scripts[0])


def test_ten_thousand_runs_fit_in_three_megabytes(tmp_path: Path) -> None:
    page = runs_page.render(tmp_path, [run(tmp_path, number) for number in range(10_000)], nights(tmp_path))
    assert len(table(page)["rows"]) == 10_000
    assert len(page) < 3 << 20
    assert len(re.findall(rb"<[a-z]", page)) < 5000


def test_the_page_needs_nothing_from_outside_and_has_no_other_script(tmp_path: Path) -> None:
    page = runs_page.render(tmp_path, [run(tmp_path, number) for number in range(20)], nights(tmp_path), ["a note"])
    assert len(parse(page).scripts) == 2
    assert not EXTERNAL.search(page.decode())
    assert "default-src 'none'" in page.decode()


def test_no_text_of_a_run_ends_the_script(tmp_path: Path) -> None:
    text = HOSTILE.replace("\0", "") + "</script><!--<script>\u2028"
    page = runs_page.render(tmp_path, [run(tmp_path, 1, trial="gemm", bed=text)], notes=[text])
    assert table(page)["names"]["bed"] == [text]
    assert len(parse(page).scripts) == 2


def test_a_value_that_is_not_known_is_null(tmp_path: Path) -> None:
    page = runs_page.render(tmp_path, [run(tmp_path, 0, duration_s=None)])
    row = table(page)["rows"][0]
    assert (row[4], row[5]) == (None, None)
    assert "NaN" not in page.decode()


@pytest.mark.parametrize("kind", ["repeat", "sweep"])
def test_repeated_runs_are_no_night(tmp_path: Path, kind: str) -> None:
    (night,) = nights(tmp_path)
    name = f"2026-11-23T01-06-03Z-{kind}-dp-ring-f056"
    group = dataclasses.replace(
        night, name=name, directory=str(tmp_path / name), suite="dp-ring", number=0, outcome=None, runs=6
    )
    page = runs_page.render(tmp_path, [run(tmp_path, 0)], (night, group)).decode()
    assert "<h1>1 run, 1 night</h1>" in page
    assert "Repeated runs" in page and "not judged" not in page


# --- in a browser -------------------------------------------------------------------------------------------------------

#: Uses the page as its reader does, and leaves what it shows in the title.
USE = """
<script>
const shown = () => [...document.querySelectorAll("#rows tr")].map((row) => [...row.children].map((cell) => cell.textContent));
const use = (id, value, type) => {
  const element = document.getElementById(id); element.value = value; element.dispatchEvent(new Event(type));
};
const click = (query) => document.querySelector(query).click();
const report = { first: shown().length, count: document.getElementById("count").textContent, newest: shown()[0][0],
  address: document.querySelector("#rows a").getAttribute("href") };
use("filter-outcome", "fail", "change"); report.failed = document.getElementById("count").textContent;
report.outcomes = [...new Set(shown().map((row) => row[1]))];
use("filter-trial", "crash-node", "change"); use("filter-text", "0a", "input"); report.words = shown().length;
report.both = [...new Set(shown().map((row) => row[1] + row[2]))];
use("filter-outcome", "", "change"); use("filter-trial", "", "change"); use("filter-text", "", "input");
click("[data-sort=ttr]"); report.slowest = shown()[0][4]; click("[data-sort=ttr]"); report.fastest = shown()[0][4];
click("#next"); report.page = document.getElementById("page").textContent;
click("#filter-recorded"); report.recorded = document.getElementById("count").textContent;
report.nights = [...new Set(shown().map((row) => row[6]))];
report.sort = document.querySelector("[data-sort=ttr]").closest("th").getAttribute("aria-sort");
document.title = "RESULT" + JSON.stringify(report) + "END";
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_filters_sorting_and_paging_in_a_browser(tmp_path: Path) -> None:
    entries = [run(tmp_path, number) for number in range(1000)]
    with_page = Path(entries[27].directory) / "report" / "index.html"
    with_page.parent.mkdir(parents=True)
    with_page.touch()
    page = runs_page.render(tmp_path, entries, nights(tmp_path))
    (tmp_path / "index.html").write_bytes(page.replace(b"</body>", USE.encode() + b"</body>"))
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/chromium", "--dump-dom",
         f"file://{tmp_path}/index.html"],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    result = re.search(r"<title>RESULT(.*?)END</title>", done.stdout)
    assert result, done.stderr[-2000:]
    report = json.loads(result[1])
    assert (report["first"], report["count"], report["newest"]) == (100, "1,000 of 1,000 runs", "2026-11-28T02:00:07Z")
    assert report["address"] == f"{nights(tmp_path)[0].name}/runs/{with_page.parents[1].name}/report/index.html"
    assert (report["failed"], report["outcomes"]) == ("100 of 1,000 runs", ["fail"])
    assert (report["words"] > 0, report["both"]) == (True, ["failcrash-node"])
    assert (report["slowest"], report["fastest"]) == ("0.60 s", "0.50 s")
    assert (report["page"], report["recorded"]) == ("page 2 of 10", "334 of 1,000 runs")
    assert (report["nights"], report["sort"]) == (["night-standard-3f9c"], "ascending")


# --- the command --------------------------------------------------------------------------------------------------------


def ccbed(state: Path, *args: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    session = Session(state=state, terminal=terminal.Terminal(out=out, err=err))
    return main.run(args, session), out.getvalue(), err.getvalue()


def test_every_outcome_is_counted(tmp_path: Path) -> None:
    outcomes = ("pass", "fail", "interrupted", "broken", "")
    runs = [run(tmp_path, number, outcome=outcome) for number, outcome in enumerate(outcomes)]
    (note,) = (note for label, _, note in runs_page.figures(runs, ()) if label == "passed")
    assert note == "1 failed, 0 unknown, 1 interrupted, 1 broken, 1 not judged"


def test_report_index_writes_the_page_of_a_directory_of_runs(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    directory = collective_runs.write(collective_runs.reference(), runs / "2026-10-11T02-00-07Z-allreduce-abcd")
    seal.seal(directory)
    code, out, err = ccbed(tmp_path / "state", "report", "--index", str(runs))
    assert (code, err) == (0, "")
    assert "1 run, 0 nights" in out
    rows = table((runs / "index.html").read_bytes())["rows"]
    assert [row[7] for row in rows] == [directory.name]


def test_a_directory_without_runs_is_refused(tmp_path: Path) -> None:
    code, _, err = ccbed(tmp_path / "state", "report", "--index", str(tmp_path))
    assert (code, "no runs in this directory" in err) == (3, True)
    assert not (tmp_path / "index.html").exists()
