"""`ccbed compare NIGHT NIGHT` shows the table of the second night beside the first one."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.app.recorded import compare
from orchestrator.app.recorded.compare import CompareRequest
from orchestrator.model.errors import UsageError
from orchestrator.nightly.app.night_compare import NightsCompared
from orchestrator.nightly.reports import night_table

from .night_bundles import figure, write_night

NODES = ("n0", "n1", "n2")


def night(runs: Path, number: int, *rates: float, metric: str = "gemm") -> Path:
    passes = [
        [
            figure(metric, rate * (1 + repeat / 1000), "TFLOP/s", "higher", node=node, rank=0)
            for node, rate in zip(NODES, rates, strict=True)
        ]
        for repeat in range(3)
    ]
    return write_night(runs, number, {"gemm": passes}, nodes=NODES)


def compared(*nights: Path, **options: object) -> compare.Compared:
    before, after = map(str, nights)
    request = CompareRequest(before=before, after=after, runs_dir=nights[0].parent, **options)  # type: ignore[arg-type]
    return compare.run(None, request)  # type: ignore[arg-type]


@pytest.mark.parametrize("numbers", [(1, 2), (2, 1)], ids=["in order", "the newer one first"])
def test_a_node_that_is_slower_in_the_second_night_stands_in_the_table(
    tmp_path: Path, numbers: tuple[int, int]
) -> None:
    before, after = night(tmp_path, numbers[0], 50.0, 50.0, 50.0), night(tmp_path, numbers[1], 50.2, 20.0, 49.9)
    result = compared(before, after)
    assert isinstance(result.content, NightsCompared)
    (line,) = night_table.table(result.content.night, result.content.judgement).shown
    assert (line.metric, line.cells["n1"].change, line.state) == ("gemm", "-59.9 %", "warn")
    assert result.code == 0, "a single warning, as in a night"
    equal = compared(before, night(tmp_path, 5, 50.2, 50.1, 49.9))
    assert isinstance(equal.content, NightsCompared)
    assert night_table.table(equal.content.night, equal.content.judgement).shown == ()


def test_nights_without_a_common_figure_and_other_options_are_errors(tmp_path: Path) -> None:
    before = night(tmp_path, 1, 50.0, 50.0, 50.0)
    other = night(tmp_path, 2, 50.0, 50.0, 50.0, metric="copy rate")
    with pytest.raises(UsageError, match="have no figure in common"):
        compared(before, other)
    with pytest.raises(UsageError, match="two at a time"):
        compared(before, night(tmp_path, 3, 50.0, 50.0, 50.0), fail_over="5%")
