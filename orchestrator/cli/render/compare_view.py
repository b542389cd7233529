"""The comparison of two groups of runs on the terminal."""

from __future__ import annotations

from ...model import ratio
from ...views import comparison
from .terminal import Terminal

#: Differences between the environments of the groups that are printed.
_MOST_DIFFERENCES = 12


def show_groups(terminal: Terminal, groups: comparison.Groups, counts: tuple[int, int]) -> None:
    """A row per figure: both medians, the change with its interval, and the verdict or the reason why there is none."""
    terminal.lines([f"A  {counts[0]} runs", f"B  {counts[1]} runs"])
    confidence = f"{1 - groups.level:.2%} each"
    terminal.table(("median of", "A", "B", "change", confidence, "n", "verdict"), [_row(row) for row in groups.rows])
    reasons = dict.fromkeys(f"open      {row.what}: {row.reason}" for row in groups.rows if row.reason)
    terminal.lines(reasons)
    terminal.line(
        f"note      of 100 pairs of equal groups at most {comparison.GROUP_LEVEL * 100:.0f} has a row that is called changed;"
        f" slower, faster: the whole interval is beyond {ratio.MARGIN:.0%}; equal: it is within"
    )
    if groups.is_separate:
        terminal.line(
            "note      all runs of one group began before those of the other: a change of the machine's load between them looks"
            " the same; to exclude it, run A and B in turn"
        )
    for name, a, b in groups.differences[:_MOST_DIFFERENCES]:
        terminal.line(f"differs   {name}: {a} | {b}")
    if len(groups.differences) > _MOST_DIFFERENCES:
        terminal.line(f"          … {len(groups.differences) - _MOST_DIFFERENCES} more: --json")


def _row(row: comparison.Grouped) -> tuple[str, ...]:
    change = interval = "-"
    if row.change is not None:
        form = "{:+.1%}" if row.is_relative else "{:+.3g}"
        change = form.format(row.change.value)
        interval = f"{form.format(row.change.low)} to {form.format(row.change.high)}"
    medians = (_figure(value, row.unit) for value in (row.before, row.after))
    return row.what, *medians, change, interval, f"{row.counts[0]}, {row.counts[1]}", row.verdict


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:.4g} s" if unit == "s" else f"{value:.4g}"
