"""Two groups of repeated runs: figures of single runs, such as the time to recover, with intervals of their change."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator.model.errors import EXIT_FINDING, EXIT_PASS, EXIT_UNKNOWN, EXIT_USAGE
from orchestrator.model.event import History
from orchestrator.model.run import Run
from orchestrator.views import comparison
from orchestrator.views.comparison import Figure

from . import history, run_builder
from .test_compare import ccbed, collective, sealed

NAMES = ("whole run", "goodput", "step", "TTR", "detected", "caught up", "steps redone", "stop")


def group(draw: np.random.Generator, runs: int, slower: float = 1.0, spread: float = 0.1) -> list[dict[str, Figure]]:
    """Runs of eight figures, each with this spread; ``slower``: the factor of the time to recover."""
    factor = {"TTR": slower}
    return [
        {name: Figure(value=float(factor.get(name, 1.0) * draw.lognormal(0, spread))) for name in NAMES}
        for _ in range(runs)
    ]


@pytest.mark.parametrize("runs", [8, 12])
def test_of_equal_groups_at_most_one_in_a_hundred_is_called_changed(runs: int) -> None:
    draw = np.random.default_rng(runs)
    results = [comparison.compare_figures(group(draw, runs), group(draw, runs)) for _ in range(400)]
    changed = sum(any(row.verdict not in ("equal", "not resolved") for row in rows) for rows in results)
    assert changed <= 4
    assert all(row.change is not None for rows in results for row in rows), "each was decided"


def test_a_slower_recovery_is_found_by_its_figure_alone() -> None:
    draw = np.random.default_rng(5)
    results = [comparison.compare_figures(group(draw, 10), group(draw, 10, slower=1.35)) for _ in range(100)]
    named = [[row.what for row in rows if row.verdict == "slower"] for rows in results]
    assert sum(what == ["TTR"] for what in named) >= 95
    covered = sum(
        row.change.low < 0.35 < row.change.high for rows in results for row in rows if row.what == "TTR" and row.change
    )
    assert covered >= 98


def test_too_few_runs_are_not_resolved_and_the_number_that_is_needed_is_said() -> None:
    draw = np.random.default_rng(1)
    rows = comparison.compare_figures(group(draw, 2), group(draw, 2, slower=4.0))
    assert {row.verdict for row in rows} == {"not resolved"} and all(row.change is None for row in rows)
    assert "needs 3 or more in each group" in rows[0].reason
    wide = comparison.compare_figures(group(draw, 3), group(draw, 3, slower=1.3))
    assert re.fullmatch(r"about [1-9][0-9,]* runs in each group would decide", wide[3].reason)
    enough = comparison.compare_figures(group(draw, 4), group(draw, 4, slower=4.0))
    assert [row.verdict for row in enough if row.what == "TTR"] == ["slower"]


def test_a_figure_that_a_run_does_not_have_is_not_resolved() -> None:
    draw = np.random.default_rng(2)
    old, new = group(draw, 10), group(draw, 10, slower=3.0)
    new[4]["TTR"] = Figure(value=None)
    new[7] = {}
    row = next(row for row in comparison.compare_figures(old, new) if row.what == "TTR")
    assert (row.verdict, row.change, row.reason) == ("not resolved", None, "2 of 10 runs of B do not have it")


def test_less_goodput_is_worse_and_fewer_steps_redone_are_better() -> None:
    def runs(goodput: float, redone: int) -> list[dict[str, Figure]]:
        return [
            {
                "goodput": Figure(value=goodput + 0.001 * number, unit="1", is_higher_better=True),
                "steps redone": Figure(value=float(redone), unit="steps"),
            }
            for number in range(10)
        ]

    rows = comparison.compare_figures(runs(0.9, 8), runs(0.7, 0))
    assert [(row.what, row.verdict) for row in rows] == [("goodput", "worse"), ("steps redone", "better")]
    assert rows[0].worse_than(0.1) and not rows[0].worse_than(0.3) and not rows[1].worse_than(0.0)
    same = comparison.compare_figures(runs(0.9, 8), runs(0.9, 8))
    assert {row.verdict for row in same} == {"equal"}


def recovered(index: int, factor: float) -> Run:
    """The reference failover, each of its times so much longer."""
    run = history.reference()
    begin, scale = run.history.events[0].at, factor * (1 + 0.01 * index)
    events = [
        replace(
            event,
            at=replace(
                event.at,
                mono=begin.mono + scale * (event.at.mono - begin.mono),
                wall=begin.wall + scale * (event.at.wall - begin.wall),
            ),
        )
        for event in run.history.events
    ]
    return replace(run, history=History(tuple(events)))


def test_times_to_recover_of_groups_are_compared() -> None:
    result = comparison.compare_groups(
        [recovered(n, 1.0) for n in range(10)], [recovered(n, 1.5) for n in range(10)]
    )  # fmt: skip
    rows = {row.what: row for row in result.rows}
    assert rows["failover: TTR"].verdict == "slower" and rows["whole run"].verdict == "slower"
    assert rows["failover: TTR"].change and rows["failover: TTR"].change.value == pytest.approx(0.5, abs=0.05)
    assert rows["failover: steps redone"].verdict == "equal"
    assert not result.is_separate, "they began at the same time"


def test_groups_that_ran_one_after_the_other_are_named() -> None:
    def later(run: Run, seconds: float) -> Run:
        events = (replace(event, at=replace(event.at, wall=event.at.wall + seconds)) for event in run.history.events)
        return replace(run, history=History(tuple(events)))

    runs = [later(recovered(number, 1.0), 100.0 * number) for number in range(4)]
    assert comparison.compare_groups(runs[:2], runs[2:]).is_separate
    assert not comparison.compare_groups(runs[::2], runs[1::2]).is_separate


def test_a_twin_is_no_run_of_a_group(tmp_path: Path) -> None:
    a, b = (written(tmp_path / name, 18e6, 2, seed) for name, seed in (("a", 1), ("b", 9)))
    twin = collective(18e6, 30, (131_072,), iterations=3)
    about: dict[str, object] = {**twin.extras["bundle.json"], "twin_of": "r0"}
    sealed(replace(twin, extras={**twin.extras, "bundle.json": about}), Path(a) / "twin")
    document = json.loads(ccbed("compare", a, b, "--json")[1])
    assert [Path(run).name for run in document["a"]] == ["r0", "r1"]


def test_runs_of_different_trials_are_no_group() -> None:
    with pytest.raises(ValueError, match="B: its runs are of different trials"):
        comparison.compare_groups([collective(18e6, 1)] * 2, [collective(18e6, 1), run_builder.run()])


def written(directory: Path, rate: float, runs: int, first_seed: int) -> str:
    for seed in range(runs):
        sealed(collective(rate, first_seed + seed, (131_072,), iterations=3), directory / f"r{seed}")
    return str(directory)


def test_directories_of_runs_are_groups(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    a, b, c = (
        written(tmp_path / name, rate, 8, seed)
        for name, rate, seed in (("a", 18e6, 1), ("b", 16e6, 20), ("c", 18e6, 40))
    )
    code, out, _ = ccbed("compare", a, b, "--fail-over", "5%")
    assert (code, "slower" in out, "A  8 runs" in out) == (EXIT_FINDING, True, True)
    code, out, _ = ccbed("compare", a, c, "--fail-over", "5%", "--json")
    document = json.loads(out)
    assert (code, document["rows"][0]["verdict"], len(document["a"])) == (EXIT_PASS, "equal", 8)
    pair = ",".join(str(Path(a) / name) for name in ("r0", "r1"))
    code, out, _ = ccbed("compare", pair, b, "--fail-over", "5%")
    assert code == EXIT_UNKNOWN and "too few runs" in out
    code, _, err = ccbed("compare", pair, a)
    assert code == EXIT_USAGE and "is in both groups" in err
    code, _, err = ccbed("compare", a, b, c)
    assert code == EXIT_USAGE and "two at a time" in err


@pytest.mark.parametrize(
    ("factor", "is_higher_better", "is_undecided"), [(1.06, False, True), (1.06, True, False), (0.94, True, True), (1.0, False, False)]
)  # fmt: skip
def test_a_group_that_may_be_worse_than_the_limit_is_undecided(
    factor: float, is_higher_better: bool, is_undecided: bool
) -> None:
    """The figures spread by 3 %: an interval around 6 % has ends on both sides of 5 %."""
    draw = np.random.default_rng(4)
    old, new = (
        [{"x": Figure(value=float(scale * draw.lognormal(0, 0.03 if scale != 1.0 else 0.01)), unit="1", is_higher_better=is_higher_better)}
         for _ in range(10)]
        for scale in (1.0, factor)
    )  # fmt: skip
    (row,) = comparison.compare_figures(old, new)
    assert row.change is not None and not row.worse_than(0.05)
    assert row.is_undecided(0.05) == is_undecided
