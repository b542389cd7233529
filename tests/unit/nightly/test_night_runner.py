"""A night ends with a row for every cell, whatever its trials do, and goes on where a killed one stopped."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from orchestrator.model.errors import InfrastructureError, Interrupted, UsageError
from orchestrator.nightly import night_files, row_states, runner, selector
from orchestrator.nightly.runner import Attempt
from orchestrator.nightly.suite import Cell, Night, Row, State, Suite

End = int | BaseException | Attempt


class Killed(BaseException):
    """Stands for kill -9: no code of the runner may handle it."""


@dataclasses.dataclass(kw_only=True)
class FakeTrials:
    """``ends``: cell -> how its repeats end, in order; a missing one passes. A run takes ``run_s`` of the virtual clock, a question for
    an obstacle ``probe_s``, and bringing nodes back ``restore_s``."""

    directory: Path
    ends: Mapping[str, Sequence[End]] = dataclasses.field(default_factory=dict)
    figures: Callable[[str], float | None] = lambda run: None
    obstacles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lost: list[Mapping[str, str]] = dataclasses.field(default_factory=list)
    ended_by: Callable[[int], str] | None = None
    run_s: float = 10.0
    probe_s: float = 0.0
    restore_s: float = 0.0
    time_s: float = 0.0
    launched: list[tuple[str, int, str]] = dataclasses.field(default_factory=list)

    def now(self) -> float:
        return self.time_s

    def obstacle(self, cell: Cell) -> str:
        self.time_s += self.probe_s
        return self.obstacles.get(cell.name, "")

    def launch(self, cell: Cell, repeat: int, open_run: str, again: str = "") -> Attempt:
        name = f"{cell.name} again on {again}" if again else cell.name
        self.launched.append((name, repeat, open_run))
        self.time_s += self.run_s
        ends = self.ends.get(name, ())
        end = ends[repeat] if repeat < len(ends) else 0
        run = open_run or f"{name.replace(' ', '-')}-{repeat}"
        bundle = self.directory / "runs" / run
        bundle.mkdir(exist_ok=True)
        (bundle / "bundle.json").write_text(
            json.dumps({"reason": night_files.reason(self.directory.name, cell.name, repeat, again)})
        )
        if isinstance(end, BaseException):
            raise end
        return end if isinstance(end, Attempt) else Attempt(run=run, exit=end)

    def figure(self, run: str, metric: str) -> float | None:
        return self.figures(run)

    def obstacle_to_all(self) -> str:
        return self.ended_by(len(self.launched)) if self.ended_by else ""

    def restore(self) -> Mapping[str, str]:
        self.time_s += self.restore_s
        return self.lost.pop(0) if self.lost else {}


def cells(*names: str, **fields: object) -> tuple[Cell, ...]:
    return tuple(Cell(name=name, trial=name, **fields) for name in names)  # type: ignore[arg-type]


def begin(root: Path, *suite_cells: Cell, budget_s: float | None = None) -> tuple[Path, Night]:
    directory = night_files.new(root, "s", datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC))
    night = Night(
        name=directory.name, suite=Suite(name="s", cells=suite_cells, budget_s=budget_s), bed="lab", provider="process",
        hosts={}, number=0, started="", order=tuple(cell.name for cell in suite_cells), command="", ccbed="",
    )  # fmt: skip
    night_files.write_night(directory, night)
    return directory, night


def run(
    directory: Path, night: Night, trials: FakeTrials, past: Mapping[str, selector.Past] | None = None
) -> list[Row]:
    result = runner.Runner(directory=directory, night=night, trials=trials, now=trials.now, past=past or {}).run()
    assert result == night_files.read_rows(directory)
    assert night_files.verify(directory) == ()
    return list(result)


def states(result: Sequence[Row]) -> list[tuple[str, str]]:
    return [(row.cell, row.state) for row in result]


def of(result: Sequence[Row], cell: str) -> list[str]:
    return [row.state for row in result if row.cell == cell]


def test_every_end_of_a_trial_is_a_row_and_the_suite_goes_on(tmp_path: Path) -> None:
    names = ("passes", "fails", "unknown", "broken", "hangs", "raises", "bug", "last")
    directory, night = begin(tmp_path, *cells(*names))
    trials = FakeTrials(
        directory=directory,
        ends={
            "fails": [1], "unknown": [2], "broken": [4], "raises": [InfrastructureError("host h2 is gone")],
            "hangs": [Attempt(run="hangs-0", exit=1, reason="not finished after 5 s", is_overdue=True)],
            "bug": [RuntimeError("x")],
        },
    )  # fmt: skip
    result = run(directory, night, trials)
    assert states(result) == [
        ("passes", "passed"), ("fails", "failed"), ("unknown", "unknown"), ("broken", "error"), ("hangs", "unfinished"),
        ("raises", "error"), ("bug", "error"), ("last", "passed"),
    ]  # fmt: skip
    by_cell = {row.cell: row for row in result}
    assert by_cell["raises"].reason == "host h2 is gone"
    assert by_cell["bug"].reason == "internal error: RuntimeError: x"
    assert [row.duration_s for row in result] == [10.0] * 8


@pytest.mark.parametrize(
    ("suite_states", "code"),
    [
        (["passed"], 0), (["passed", "skipped"], 0), (["skipped"], 2), ([], 2), (["passed", "unknown"], 2),
        (["unknown", "failed"], 1), (["passed", "unfinished"], 1), (["failed", "error"], 4),
    ],
)  # fmt: skip
def test_the_exit_code_of_rows(suite_states: list[State], code: int) -> None:
    ended = [Row(cell=str(index), repeat=0, state=state) for index, state in enumerate(suite_states)]
    assert row_states.exit_code(ended) == code


def test_a_cell_that_does_not_end_twice_is_given_no_more_time(tmp_path: Path) -> None:
    directory, night = begin(tmp_path, *cells("dead", "last", repeats=5))
    trials = FakeTrials(directory=directory, ends={"dead": [0, 4, 0, 4, 4]})
    result = run(directory, night, trials)
    assert of(result, "dead") == ["passed", "error", "passed", "error", "error"]
    assert of(result, "last") == ["passed"] * 5
    directory, night = begin(tmp_path / "2", *cells("dead", "last", repeats=5))
    trials = FakeTrials(directory=directory, ends={"dead": [4, 4]})
    result = run(directory, night, trials)
    assert (of(result, "dead"), of(result, "last")) == (["error", "error", "skipped"], ["passed"] * 5)
    assert result[4].reason == "2 repeats before it did not end"


def test_what_the_bed_lacks_is_skipped_with_the_reason(tmp_path: Path) -> None:
    directory, night = begin(tmp_path, *cells("a", "b", repeats=3))
    trials = FakeTrials(directory=directory, obstacles={"a": "needs a GPU on every node; bed lab has none"})
    result = run(directory, night, trials)
    assert result[0] == Row(cell="a", repeat=0, state="skipped", reason="needs a GPU on every node; bed lab has none")
    assert states(result[1:]) == [("b", "passed")] * 3


def test_a_lost_node_is_one_row_with_its_state(tmp_path: Path) -> None:
    directory, night = begin(tmp_path, *cells("a", "b", "c"))
    lost = {"n2": "was dead (exit -9); brought up again"}
    result = run(directory, night, FakeTrials(directory=directory, lost=[{}, lost, lost]))
    assert states(result) == [("a", "passed"), ("node n2", "unknown"), ("b", "passed"), ("c", "passed")]
    assert (result[1].reason, row_states.node(result[1]), row_states.exit_code(result)) == (lost["n2"], "n2", 0)


@pytest.mark.parametrize(
    "row",
    [
        Row(cell="node n2", repeat=0, state="unknown", run="r", exit=2),
        Row(cell="node n2", repeat=0, state="error", exit=4),
        Row(cell="node n2", repeat=0, state="unfinished"),
        Row(cell="nodes", repeat=0, state="unknown"),
    ],
)
def test_a_repeat_of_a_cell_with_the_name_of_a_node_counts(row: Row) -> None:
    assert row_states.node(row) == ""
    assert row_states.exit_code([row]) == {"unknown": 2, "error": 4, "unfinished": 1}[row.state]


def test_a_night_that_lost_all_nodes_and_ran_nothing_is_no_pass(tmp_path: Path) -> None:
    assert row_states.exit_code([row_states.of_node("n0", "is dead"), Row(cell="a", repeat=0, state="skipped")]) == 2


def test_repeats_stop_when_the_interval_is_narrow_enough(tmp_path: Path) -> None:
    directory, night = begin(tmp_path, *cells("a", repeats=50, precision=0.02))
    wide = {f"a-{index}": value for index, value in enumerate([100.0, 104.0, 96.0, 101.0, 99.0, 103.0])}
    trials = FakeTrials(directory=directory, figures=lambda run: wide.get(run, 100.0))
    count = len(run(directory, night, trials))
    assert 6 < count < 50


@pytest.mark.parametrize("figure", [None, float("nan")])
def test_without_the_metric_all_repeats_run(tmp_path: Path, figure: float | None) -> None:
    directory, night = begin(tmp_path, *cells("a", repeats=12, precision=0.02))
    trials = FakeTrials(directory=directory, figures=lambda run: figure if run == "a-3" else 100.0)
    assert len(run(directory, night, trials)) == 12


def test_five_repeats_are_never_precise(tmp_path: Path) -> None:
    directory, night = begin(tmp_path, *cells("a", repeats=9, precision=0.5))
    assert len(run(directory, night, FakeTrials(directory=directory, figures=lambda run: 100.0))) == 6


@pytest.mark.parametrize("field", ["probe_s", "restore_s"])
def test_probes_of_spares_and_bringing_nodes_back_count_for_the_budget(tmp_path: Path, field: str) -> None:
    directory, night = begin(tmp_path, *cells("a", "b", "c"), budget_s=45.0)
    trials = FakeTrials(directory=directory, **{field: 25.0})  # type: ignore[arg-type]
    assert states(run(directory, night, trials)) == [("a", "passed"), ("b", "passed"), ("c", "skipped")]


def test_what_does_not_fit_into_the_budget_is_skipped(tmp_path: Path) -> None:
    directory, night = begin(tmp_path, *cells("a", "b", "c", "d", repeats=2), budget_s=45.0)
    past = {"b": selector.Past(nights_ago=1, duration_s=40.0), "c": selector.Past(nights_ago=1, duration_s=20.0)}
    result = run(directory, night, FakeTrials(directory=directory), past)
    assert states(result) == [
        ("a", "passed"), ("b", "skipped"), ("c", "passed"), ("d", "passed"), ("a", "passed"), ("c", "passed"), ("d", "passed"),
    ]  # fmt: skip
    assert result[1].reason == "over the budget of 45 s"


def test_a_cell_that_begins_keeps_the_time_of_its_later_passes(tmp_path: Path) -> None:
    directory, night = begin(tmp_path, *cells("a", repeats=3), *cells("b"), budget_s=35.0)
    past = {"b": selector.Past(nights_ago=1, duration_s=10.0)}
    result = run(directory, night, FakeTrials(directory=directory), past)
    assert states(result) == [("a", "passed"), ("a", "passed"), ("b", "skipped"), ("a", "passed")]


def test_passes_lie_at_the_begin_in_the_middle_and_at_the_end_of_the_night(tmp_path: Path) -> None:
    directory, night = begin(tmp_path, *cells("probe", repeats=3), *cells("long", "longer"))
    result = run(directory, night, FakeTrials(directory=directory))
    assert [(row.cell, row.repeat) for row in result] == [
        ("probe", 0), ("long", 0), ("probe", 1), ("longer", 0), ("probe", 2),
    ]  # fmt: skip


def with_suspects(directory: Path, night: Night, trials: FakeTrials, *suspects: tuple[str, str]) -> list[Row]:
    night_runner = runner.Runner(
        directory=directory, night=night, trials=trials, now=trials.now, suspects=lambda ended: suspects
    )
    return list(night_runner.run())


def test_what_is_suspect_is_measured_again_at_once_with_rows_that_say_so(tmp_path: Path) -> None:
    directory, night = begin(tmp_path, *cells("gemm", "disk", repeats=3))
    trials = FakeTrials(directory=directory, ends={"gemm again on n1": [0, 4]})
    result = with_suspects(directory, night, trials, ("disk", "all"), ("gemm", "n1"))
    again = [(row.cell, row.repeat, row.again, row.state) for row in result if row.again]
    assert again == [
        ("disk", 0, "all", "passed"), ("disk", 1, "all", "passed"), ("disk", 2, "all", "passed"),
        ("gemm", 0, "n1", "passed"), ("gemm", 1, "n1", "error"),
    ]  # fmt: skip
    assert [row.again for row in result[:6]] == [""] * 6
    assert tuple(result) == night_files.read_rows(directory) and night_files.verify(directory) == ()


@pytest.mark.parametrize("kill_at", range(1, 5))
def test_a_second_measurement_that_is_killed_goes_on(tmp_path: Path, kill_at: int) -> None:
    directory, night = begin(tmp_path, *cells("gemm", repeats=2))
    trials = FakeTrials(directory=directory, ends={"gemm again on n1": [0] * (kill_at // 2) + [Killed()]})
    if kill_at < 4:
        with pytest.raises(Killed):
            with_suspects(directory, night, trials, ("gemm", "n1"))
    resumed = FakeTrials(directory=directory)
    result = with_suspects(directory, night, resumed, ("gemm", "n1"))
    assert [(row.repeat, row.again) for row in result] == [(0, ""), (1, ""), (0, "n1"), (1, "n1")]
    assert len({row.run for row in result}) == 4
    if kill_at < 4:
        assert resumed.launched[0] == ("gemm again on n1", kill_at // 2, f"gemm-again-on-n1-{kill_at // 2}")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("interrupted"), Attempt(run="b-0", exit=130)])
def test_an_interrupted_night_stays_open_and_goes_on(tmp_path: Path, error: End) -> None:
    directory, night = begin(tmp_path, *cells("a", "b", "c"))
    with pytest.raises(Interrupted) as caught:
        run(directory, night, FakeTrials(directory=directory, ends={"b": [error]}))
    assert caught.value.hint == f"ccbed nightly --resume {directory}"
    assert not night_files.is_closed(directory)
    trials = FakeTrials(directory=directory)
    assert states(run(directory, night, trials)) == [("a", "passed"), ("b", "passed"), ("c", "passed")]
    assert trials.launched == [("b", 0, "b-0"), ("c", 0, "")]


@pytest.mark.parametrize("kill_at", range(1, 12))
def test_a_killed_night_runs_nothing_twice_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    """Killed before or after each row was written, which are the steps that last."""
    directory, night = begin(tmp_path, *cells("a", "b", "c", repeats=2))
    append, calls = night_files.Journal.append, 0

    def killed_append(journal: night_files.Journal, row: Row) -> None:
        nonlocal calls
        calls += 1
        if calls * 2 - 1 == kill_at:
            raise Killed
        append(journal, row)
        if calls * 2 == kill_at:
            raise Killed

    monkeypatch.setattr(night_files.Journal, "append", killed_append)
    first = FakeTrials(directory=directory)
    with pytest.raises(Killed):
        run(directory, night, first)
    written = len(night_files.read_rows(directory))
    assert written == kill_at // 2
    monkeypatch.setattr(night_files.Journal, "append", append)
    second = FakeTrials(directory=directory)
    result = run(directory, night, second)
    assert states(result) == [(name, "passed") for name in "abcabc"]
    assert len(second.launched) == 6 - written
    if kill_at % 2:  # the run had ended, its row was not written: its bundle is taken, not made again
        cell, repeat, _ = first.launched[-1]
        assert second.launched[0] == (cell, repeat, f"{cell}-{repeat}")


def test_a_usage_error_of_one_trial_is_an_error_of_the_night(tmp_path: Path) -> None:
    directory, night = begin(tmp_path, *cells("a"))
    result = run(directory, night, FakeTrials(directory=directory, ends={"a": [UsageError("bed lab is busy")]}))
    assert (result[0].state, result[0].reason, row_states.exit_code(result)) == ("error", "bed lab is busy", 4)


# --- the order ----------------------------------------------------------------------------------------------------------


def suite(*suite_cells: Cell, seed: int = 1, budget_s: float | None = None) -> Suite:
    return Suite(name="s", cells=suite_cells, seed=seed, budget_s=budget_s)


def test_the_seed_shuffles_and_nothing_else_without_a_budget() -> None:
    many = cells(*(f"c{index}" for index in range(20)), priority=3)
    orders = {selector.order(suite(*many, seed=seed), {}) for seed in range(5)}
    assert len(orders) == 5
    past = {"c3": selector.Past(nights_ago=9, findings=9)}
    assert selector.order(suite(*many), past) == selector.order(suite(*many), {})


def test_with_a_budget_the_most_urgent_of_the_highest_priority_comes_first() -> None:
    plain = cells("old", "recent", "never", "finds")
    important = cells("important", priority=1)
    past = {
        "old": selector.Past(nights_ago=4), "recent": selector.Past(nights_ago=1), "finds": selector.Past(nights_ago=2, findings=3),
        "important": selector.Past(nights_ago=1),
    }  # fmt: skip
    order = selector.order(suite(*plain, *important, budget_s=60.0), past)
    assert order == ("important", "never", "finds", "old", "recent")


@pytest.mark.parametrize(("budget_s", "expected"), [(None, 60.0), (45.0, 45.0), (90.0, 60.0)])
def test_a_night_takes_what_its_known_cells_took_within_the_budget(budget_s: float | None, expected: float) -> None:
    past = {"a": selector.Past(nights_ago=1, duration_s=40.0), "b": selector.Past(nights_ago=3, duration_s=20.0)}
    assert selector.expected_s(suite(*cells("a", "b", "never"), budget_s=budget_s), past) == expected


def test_the_past_of_a_cell() -> None:
    def night(state: State, duration_s: float, findings: int = 0) -> selector.PastNight:
        row = Row(cell="a", repeat=0, state=state, duration_s=duration_s)
        return selector.PastNight(rows=(row, row), findings={"a": findings})

    nights = [night("skipped", 0.0), night("passed", 2.0, 1), night("failed", 4.0, 2), night("passed", 3.0)]
    past = selector.past(nights, ["a", "b"])
    assert past["a"] == selector.Past(nights_ago=2, duration_s=6.0, findings=3)
    assert past["b"] == selector.NEVER


def test_a_night_that_is_given_up_ends_with_an_unfinished_row_for_each_open_cell(tmp_path: Path) -> None:
    directory, night = begin(tmp_path, *cells("a", "b", "c", repeats=2))
    trials = FakeTrials(directory=directory, ends={"b": [0, Killed()]})
    with pytest.raises(Killed):
        run(directory, night, trials)
    launched = list(trials.launched)
    ended = runner.Runner(directory=directory, night=night, trials=trials, now=trials.now).give_up("died")
    assert [(row.cell, row.repeat, row.state) for row in ended] == [
        ("a", 0, "passed"), ("b", 0, "passed"), ("c", 0, "passed"), ("a", 1, "passed"),
        ("b", 1, "unfinished"), ("c", 1, "unfinished"),
    ]  # fmt: skip
    assert trials.launched == launched
    assert night_files.is_closed(directory)
    assert row_states.exit_code(ended) == 1


def test_a_bed_that_is_taken_down_ends_the_night_and_is_not_brought_up_again(tmp_path: Path) -> None:
    directory, night = begin(tmp_path, *cells("a"), *cells("b", repeats=3), *cells("c"))
    reason = "bed lab was taken down during the night (ccbed down)"
    trials = FakeTrials(
        directory=directory, ends={"b": [0, InfrastructureError(reason)]}, lost=[{}, {}, {}, {"n0": "was absent; brought up again"}],
        ended_by=lambda launched: reason if launched == 3 else "",
    )  # fmt: skip
    result = run(directory, night, trials)
    assert states(result) == [("b", "passed"), ("a", "passed"), ("b", "error"), ("c", "error"), ("b", "error")]
    assert [row.reason for row in result[-2:]] == [f"not run: {reason}"] * 2
    assert trials.lost == [{"n0": "was absent; brought up again"}], "not asked again"
    assert row_states.exit_code(result) == 4


@pytest.mark.parametrize("error", [InfrastructureError("beds/lab.json: not a readable bed file"), LookupError("lab")])
@pytest.mark.parametrize("method", ["obstacle", "obstacle_to_all", "restore", "figure"])
def test_a_night_ends_with_a_row_for_every_cell_whichever_question_to_the_bed_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    def fail(*_: object) -> str:
        raise error

    directory, night = begin(tmp_path, *cells("a", "b", repeats=6, precision=0.1))
    trials = FakeTrials(directory=directory)
    monkeypatch.setattr(trials, method, fail)
    result = run(directory, night, trials)
    assert {row.cell for row in result if not row.cell.startswith("node ")} == {"a", "b"}
    reasons = {row.reason for row in result if row.reason}
    text = "beds/lab.json: not a readable bed file" if isinstance(error, InfrastructureError) else "LookupError"
    assert all(text in reason for reason in reasons)
    assert bool(reasons) == (method in ("obstacle_to_all", "restore"))
    assert row_states.exit_code(result) == 4 or method != "obstacle_to_all"


def test_rounds_of_a_sweep_follow_each_other_and_those_of_a_night_are_spread() -> None:
    many = [*cells("rounds", repeats=2), *cells("confirming")]
    assert [cell.name for cell, _ in selector.one_by_one(many)] == ["rounds", "rounds", "confirming"]
    assert [cell.name for cell, _ in selector.schedule(many)] == ["rounds", "confirming", "rounds"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("interrupted")])
def test_an_interruption_while_nodes_are_brought_back_leaves_the_night_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def interrupt() -> Mapping[str, str]:
        raise error

    directory, night = begin(tmp_path, *cells("a"))
    trials = FakeTrials(directory=directory)
    monkeypatch.setattr(trials, "restore", interrupt)
    with pytest.raises(Interrupted, match="the night is open"):
        run(directory, night, trials)
    assert not night_files.is_closed(directory)
