"""The tables of the measurements say medians and ratios of samples that were taken in turns."""

from __future__ import annotations

from tests.bench import table


def test_cases_are_measured_in_turns() -> None:
    order: list[str] = []

    def taken(name: str, value: float) -> float:
        order.append(name)
        return value

    result = table.paired({"a": lambda: taken("a", 2.0), "b": lambda: taken("b", 1.0)}, rounds=3)
    assert order == ["a", "b"] * 3
    assert result == {"a": [2.0] * 3, "b": [1.0] * 3}


def test_a_ratio_is_that_of_medians() -> None:
    result = table.Table(
        name="x", title="X", samples={"slow": [9.0, 4.0, 5.0], "quick": [0.5, 0.1, 9.0]}, against="slow"
    )
    assert result.ratio("quick") == 10.0
    assert "| quick | 0.5000 | 0.1000 | 9.0000 | 3 | 10.0 |" in result.text()
    assert "| slow | 5.0000 | 4.0000 | 9.0000 | 3 |  |" in result.text()
