"""The distribution of figures over repeated runs: every run counts once, and what was not measured has no figure."""

from __future__ import annotations

from orchestrator.nightly import distribution
from orchestrator.nightly.records import Key, Metric
from orchestrator.nightly.run_record import Measurement, RunRecord

KEY = Key(hardware="cpu", workload="train-dp")


def record(run: str, outcome: str = "pass", duration_s: float | None = 3.0, **figures: float) -> RunRecord:
    measurements = tuple(
        Measurement(
            node="", metric=Metric(name=name.replace("_", " "), unit="s", better="lower"), key=KEY, values=(value,)
        )
        for name, value in figures.items()
    )
    return RunRecord(
        run=run, directory="", bed="b", trial="t", workload="train-dp", started="", outcome=outcome, is_sealed=True,
        duration_s=duration_s, measurements=measurements,
    )  # fmt: skip


def test_a_figure_has_its_median_its_range_and_an_exact_interval() -> None:
    records = [record(f"r{index}", ttr=float(index), phase_stop=0.5) for index in range(1, 8)]
    by_name = {figure.metric: figure for figure in distribution.collect(records)}
    assert list(by_name) == ["duration", "ttr", "phase stop"]
    ttr = by_name["ttr"]
    assert (ttr.count, ttr.median, ttr.low, ttr.high, ttr.minimum, ttr.maximum) == (7, 4.0, 1.0, 7.0, 1.0, 7.0)
    assert ttr.values["r3"] == (3.0,)


def test_five_values_have_no_interval() -> None:
    (duration,) = distribution.collect([record(f"r{index}") for index in range(5)])
    assert (duration.low, duration.high) == (None, None)


def test_broken_runs_and_values_that_are_no_numbers_are_left_out() -> None:
    records = [
        record("a", ttr=1.0),
        record("b", outcome="broken", ttr=9.0),
        record("c", ttr=float("nan"), duration_s=None),
    ]
    by_name = {figure.metric: figure.values for figure in distribution.collect(records)}
    assert by_name == {"duration": {"a": (3.0,)}, "ttr": {"a": (1.0,)}}
    assert distribution.collect([]) == ()
