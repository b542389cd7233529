"""Two runs side by side: slower or faster beyond the floor, or not resolved."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestrator.cli import main
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.model.errors import EXIT_USAGE
from orchestrator.model.ratio import Interval, Outcome
from orchestrator.model.run import Run
from orchestrator.reports.page import compared as page
from orchestrator.store import seal
from orchestrator.views import comparison

from ..contract.report_contract import EXTERNAL, check_forms
from . import run_builder, simulated
from .collectives import collective_runs


def collective(rate: float, seed: int, sizes: tuple[int, ...] = (4096, 131_072), iterations: int = 20) -> Run:
    return collective_runs.run(
        [
            collective_runs.Part(
                operation="all-reduce", algorithm="ring", bytes=size, iterations=iterations,
                gang=simulated.Gang(schedules=simulated.ring(4, size), rate=rate, seed=seed),
            )
            for size in sizes
        ]
    )  # fmt: skip


def test_single_runs_on_equal_beds_are_not_resolved() -> None:
    result = comparison.compare(collective(18e6, 1), collective(18e6, 2))
    assert [row.verdict for row in result.rows] == ["not resolved"] * 2
    assert all(row.change and row.change.low < row.change.value < row.change.high for row in result.rows)
    assert result.differences == ()


def test_a_slower_link_is_slower_and_the_other_way_round_faster() -> None:
    slow = comparison.compare(collective(18e6, 1), collective(15e6, 2)).rows[1]
    fast = comparison.compare(collective(15e6, 2), collective(18e6, 1)).rows[1]
    assert (slow.verdict, fast.verdict) == ("slower", "faster")
    assert slow.relative == pytest.approx(18 / 15 - 1, abs=0.01)
    assert slow.slower_than(0.05) and slow.change and slow.change.low < slow.relative
    assert not slow.slower_than(0.25)
    assert not fast.slower_than(0.0)


def trials(draw: np.random.Generator, count: int, is_equal: float) -> NDArray[np.float64]:
    """Times that spread by 10 %, each as like the one before as ``alike`` says (first-order autoregression)."""
    result = [draw.normal()]
    while len(result) < count:
        result.append(is_equal * result[-1] + (1 - is_equal**2) ** 0.5 * draw.normal())
    return np.exp(0.1 * np.array(result))


@pytest.mark.parametrize(("count", "is_equal"), [(10, 0.0), (20, 0.0), (50, 0.0), (20, 0.4), (50, 0.4), (100, 0.7)])
def test_equal_runs_of_ten_cases_are_called_changed_in_no_more_than_one_of_a_hundred(
    count: int, is_equal: float
) -> None:
    draw, changed = np.random.default_rng(count), 0
    for _ in range(200):
        pairs = [(trials(draw, count, is_equal), trials(draw, count, is_equal)) for _ in range(10)]
        rows = [comparison.of_samples("x", *pair, comparison.LEVEL / 10) for pair in pairs]
        changed += any(row and row.verdict in ("slower", "faster") for row in rows)
    assert changed <= 2


def test_a_real_change_beyond_the_floor_is_found() -> None:
    draw = np.random.default_rng(3)
    steady = [(1 + 0.03 * draw.normal(size=20), 1.2 + 0.036 * draw.normal(size=20)) for _ in range(100)]
    result = [comparison.of_samples("x", a, b, comparison.LEVEL / 10) for a, b in steady]
    assert sum(row is not None and row.verdict == "slower" for row in result) >= 95
    assert not any(row is None or row.slower_than(0.25) for row in result)


def test_single_runs_claim_nothing_below_the_floor_however_sure_their_iterations_are() -> None:
    draw = np.random.default_rng(4)
    before = 1 + 0.001 * draw.normal(size=100)
    for factor in (1.0, 1.05, 1 + comparison.FLOOR):
        row = comparison.of_samples("x", before, factor * (1 + 0.001 * draw.normal(size=100)))
        assert row is not None and row.verdict == "not resolved"
    notes = dict(page.notes(comparison.Comparison(rows=())))
    assert notes["note"].startswith(
        "one run each: the spread between runs is not known, so nothing is claimed below 10%"
    )


def test_the_change_that_is_shown_is_that_of_the_medians_and_lies_within_its_interval() -> None:
    """Skewed times: the middle of all ratios is another figure than the ratio of the medians."""
    draw = np.random.default_rng(73)
    for _ in range(100):
        a, b = (1 + draw.exponential(1.0, 20) * (draw.random(20) < 0.5) for _ in range(2))
        row = comparison.of_samples("x", a, b)
        assert row is not None and row.change is not None
        assert row.change.value == pytest.approx(row.relative)
        assert row.change.low - 1e-9 <= row.relative <= row.change.high + 1e-9


def test_a_limit_is_passed_with_the_whole_interval_only() -> None:
    interval = Interval(value=0.08, low=0.04, high=0.12)
    row = comparison.Compared(what="x", before=1.0, after=1.08, change=interval, verdict="slower")
    assert row.slower_than(0.03) and not row.slower_than(0.05)
    assert not replace(row, change=None, verdict="not resolved").slower_than(0.0)


@pytest.mark.parametrize(
    ("low", "value", "high", "verdict", "passes"),
    [
        (-0.01, 0.0, 0.01, "not resolved", True),
        (-0.2, 0.02, 0.4, "not resolved", False),
        (0.04, 0.08, 0.12, "slower", False),
        (0.06, 0.08, 0.09, "not resolved", False),
        (-0.2, -0.1, -0.05, "faster", True),
    ],
    ids=["equal", "wide", "around the limit", "below the floor", "faster"],
)
def test_what_may_be_slower_than_the_limit_is_undecided_and_does_not_pass(
    low: float, value: float, high: float, verdict: Outcome, passes: bool
) -> None:
    row = comparison.Compared(
        what="x",
        before=1.0,
        after=1 + value,
        change=Interval(value=value, low=low, high=high),
        verdict=verdict,
    )
    assert not row.slower_than(0.05)
    assert row.is_undecided(0.05) != passes


def test_a_change_that_the_interval_does_not_exclude_exits_with_two(tmp_path: Path) -> None:
    """17.1 for 18 Mbyte/s are 5 % more time: a limit of 5 % is neither kept nor passed."""
    a, b = sealed(collective(18e6, 1), tmp_path / "a"), sealed(collective(17.1e6, 2), tmp_path / "b")
    code, out, _ = ccbed("compare", a, b, "--fail-over", "5%")
    assert code == 2 and "undecided: the interval reaches beyond the limit     exit 2" in out and "PASS" not in out


def test_too_few_samples_are_no_verdict() -> None:
    row = comparison.of_samples("x", np.ones(2), 2 * np.ones(2))
    assert row is not None and (row.change, row.verdict, row.counts) == (None, "not resolved", (2, 2))


def test_what_only_one_of_them_has_is_named() -> None:
    result = comparison.compare(collective(18e6, 1), collective(18e6, 2, (4096, 8192)))
    assert len(result.rows) == 1
    assert [(which, "128 KiB" in what or "8 KiB" in what) for which, what in result.only] == [("A", True), ("B", True)]


def test_other_beds_and_machines_are_named() -> None:
    before = collective(18e6, 1)
    plan = {**before.extras["plan.json"], "bed": "lab", "link": {"rate": 1e9}}
    after = replace(before, extras={**before.extras, "plan.json": plan, "fingerprint.json": {"torch": "2.14.0"}})
    ccbed = {name: (a, b) for name, a, b in comparison.compare(before, after).differences}
    assert ccbed["bed"] == ("fabric", "lab")
    assert ccbed["torch"] == ("2.13.0", "2.14.0")
    assert ccbed["link.rate"] == ("145000000", "1000000000.0")


@pytest.mark.parametrize(
    ("a", "b", "is_equal"),
    [
        ({"sizes": "2M"}, {"sizes": ["2097152"]}, True),
        ({"sizes": "1K:2M"}, {"sizes": "1024:2048K"}, True),
        ({"precision": "2%"}, {"precision": "0.02"}, True),
        ({"sizes": "2M,4M"}, {"sizes": ["2M", "4M"]}, True),
        ({"sizes": "2M"}, {"sizes": "2M,4M"}, False),
        ({"algorithm": "ring"}, {"algorithm": "star"}, False),
    ],
)
def test_equal_values_do_not_differ(a: dict[str, Any], b: dict[str, Any], is_equal: bool) -> None:
    runs = [
        replace(run, trial=replace(run.trial, params=params))
        for run, params in ((collective(18e6, 1), a), (collective(18e6, 2), b))
    ]
    assert (comparison.compare(*runs).differences == ()) == is_equal


def test_versions_that_are_equal_as_numbers_differ() -> None:
    before = collective(18e6, 1)
    runs = [
        replace(before, extras={**before.extras, "fingerprint.json": {"torch": torch}}) for torch in ("2.1", "2.10")
    ]
    assert comparison.compare(*runs).differences == (("torch", "2.1", "2.10"),)


def test_training_runs_are_compared_by_steps_failover_and_loss() -> None:
    before = run_builder.run()
    steps = [replace(record, start=1.0, end=1.0 + 0.01 + record.step * 1e-5) for record in run_builder.steps()]
    late = [replace(record, end=record.end * 1.0 + 0.005) for record in steps]
    other = [replace(record, loss="0x1p+0") if record.step == 40 and record.epoch else record for record in late]
    result = comparison.compare(
        replace(before, files=run_builder.Files(tuple(steps))), replace(before, files=run_builder.Files(tuple(other)))
    )
    assert result.losses is not None
    assert result.losses[2] == 40
    assert result.losses[0] == result.losses[1] - 1
    assert result.rows[0].what == "step, slowest rank"
    assert result.rows[0].verdict == "slower"


def ccbed(*args: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    session = Session(state=Path(args[1]).parent / "state", terminal=terminal.Terminal(out=out, err=err))
    return main.run(args, session), out.getvalue(), err.getvalue()


def sealed(run: Run, directory: Path) -> str:
    collective_runs.write(run, directory)
    seal.seal(directory)
    return str(directory)


def test_the_exit_code_is_one_only_where_something_got_slower_by_more(tmp_path: Path) -> None:
    a, b = sealed(collective(18e6, 1), tmp_path / "a"), sealed(collective(15e6, 2), tmp_path / "b")
    code, out, _ = ccbed("compare", a, b, "--fail-over", "5%")
    assert code == 1
    assert "slower" in out
    assert "2 of 2 slower by more than 5 %" in out or "1 of 2 slower by more than 5 %" in out
    assert ccbed("compare", a, b, "--fail-over", "50%")[0] == 0
    assert ccbed("compare", b, a, "--fail-over", "0")[0] == 0
    assert ccbed("compare", a, b)[0] == 0
    code, out, _ = ccbed("compare", a, b, "--fail-over", "0.05", "--json")
    assert (code, json.loads(out)["exit"]) == (1, 1)
    assert json.loads(out)["failed"]


def test_what_cannot_be_judged_passes_no_limit(tmp_path: Path) -> None:
    """A node at half the rate, and three iterations: the median says +91 %, and nothing says how sure it is."""
    a, b = (sealed(collective(rate, 1, iterations=3), tmp_path / name) for rate, name in ((18e6, "a"), (9e6, "b")))
    code, out, _ = ccbed("compare", a, b, "--fail-over", "5%")
    least = comparison.compare(collective(18e6, 1), collective(18e6, 2)).least_samples
    assert code == 2 and "UNKNOWN" in out and "PASS" not in out
    assert f"2 undecided: needs {least} or more iterations of each run     exit 2" in out
    enough = [collective(rate, 1, iterations=least) for rate in (18e6, 9e6)]
    assert not any(row.is_undecided(0.05) for row in comparison.compare(*enough).rows)
    assert ccbed("compare", a, b)[0] == 0, "without a limit nothing is judged"


def test_a_case_that_one_run_lacks_is_a_finding(tmp_path: Path) -> None:
    a, b = sealed(collective(18e6, 1), tmp_path / "a"), sealed(collective(18e6, 1, (4096,)), tmp_path / "b")
    code, out, _ = ccbed("compare", a, b, "--fail-over", "5%")
    assert code == 1 and "1 missing on one side" in out


@pytest.mark.parametrize("text", ["fast", "-1%", "nan"])
def test_a_limit_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    code, _, err = ccbed("compare", "x", "y", f"--fail-over={text}")
    assert code == EXIT_USAGE
    assert "--fail-over: must be a share such as 5%" in err


def test_runs_without_anything_in_common_are_refused(tmp_path: Path) -> None:
    a, b = sealed(collective(18e6, 1), tmp_path / "a"), sealed(collective(18e6, 2, (8192,)), tmp_path / "b")
    code, _, err = ccbed("compare", a, b)
    assert code == EXIT_USAGE
    assert "have no case and no step in common" in err


def test_the_whole_table_of_a_run_is_printed_and_refused_where_there_is_none(tmp_path: Path) -> None:
    a = sealed(collective(18e6, 1), tmp_path / "a")
    code, out, _ = ccbed("report", a, "--table")
    assert code == 0
    assert "128 KiB  ring" in out
    assert "straggler none" in out
    b = sealed(replace(run_builder.run(), files=collective_runs.Files()), tmp_path / "b")
    code, _, err = ccbed("report", b, "--table")
    assert code == EXIT_USAGE
    assert "no collectives were measured" in err


def test_the_heading_of_the_page_counts_each_verdict() -> None:
    (row, *_) = comparison.compare(collective(18e6, 1), collective(15e6, 2)).rows
    rows = tuple(replace(row, verdict=verdict) for verdict in ("not resolved", "slower", "equal"))
    text = "B beside A: slower in 1, equal in 1, not resolved in 1 of 3 figures"
    assert page.sentence(comparison.Comparison(rows=rows)) == text
    assert page.sentence(comparison.Comparison(rows=rows[1:2])) == "B beside A: slower in 1 of 1 figure"


def test_two_runs_are_compared_on_a_page_that_links_both(tmp_path: Path) -> None:
    runs = {name: tmp_path / f"2026-10-11T02-00-07Z-allreduce-{name * 4}" for name in "ab"}
    for directory, run in zip(runs.values(), (collective(18e6, 1), collective(15e6, 2)), strict=True):
        sealed(run, directory)
        (directory / "report").mkdir(exist_ok=True)
        (directory / "report" / "index.html").touch()
    file = tmp_path / "pages" / "compared.html"
    file.parent.mkdir()
    code, out, err = ccbed("compare", *map(str, runs.values()), "--html", str(file))
    assert (code, err) == (0, ""), out
    assert "page      " in out
    text = file.read_text()
    check_forms({"compared.html": text.encode()})
    assert not EXTERNAL.search(text)
    assert text.count('<span class="badge fail">slower</span>') == len(re.findall(r"slower$", out, re.MULTILINE)) > 0
    addresses = re.findall(r'href="([^"]*)"', text)
    assert len(addresses) == 2 and all((file.parent / address).is_file() for address in addresses)
    assert re.search(r"<title [^>]*>all-reduce.*: \+[\d.]+% to \+[\d.]+%<", text), (
        "the interval is said, not only drawn"
    )
    code, _, err = ccbed("compare", *map(str, runs.values()), "--html", str(tmp_path / "none" / "x.html"))
    assert (code, "x.html: cannot be written: No such file or directory" in err) == (EXIT_USAGE, True)
