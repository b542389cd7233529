"""A night on the terminal: a line per cell as it ends, with the remaining time where earlier nights tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...app.places import duration
from ...model.frozen import dataclass, field
from ...nightly import selector
from ...nightly.culprits import quarantine
from ...nightly.suite import Cell, Night, Row, Suite
from .terminal import Terminal

#: The worst state of a cell's repeats is that of the cell.
_ORDER = ("error", "unfinished", "failed", "unknown", "passed", "skipped")
_WORDS = {
    "passed": "PASS", "failed": "FAIL", "unknown": "UNKNOWN", "error": "ERROR", "unfinished": "HUNG", "skipped": "SKIPPED",
}  # fmt: skip
_STYLES = {"PASS": "good", "FAIL": "bad", "ERROR": "bad", "HUNG": "bad", "UNKNOWN": "warn", "SKIPPED": "warn"}
_WIDTH = 100


@dataclass(kw_only=True)
class NightLines:
    """``quiet``: print nothing, for --json."""

    terminal: Terminal
    night: Night
    past: Mapping[str, selector.Past]
    quiet: bool = False
    _ended: set[str] = field(default_factory=set)

    def begin(self, directory: str, nodes: int) -> None:
        if self.quiet:
            return
        suite = self.night.suite
        repeats = sum(cell.repeats for cell in suite.cells)
        recorded = f"recorded as number {self.night.number}" if self.night.recorded else "not recorded"
        budget = f", budget {duration(suite.budget_s)}" if suite.budget_s else ""
        self.terminal.line(f"night    {directory}")
        self.terminal.line(
            f"suite    {suite.name}: {len(suite.cells)} cells, {repeats} repeats at most{budget}, seed {suite.seed}"
            f" · bed {self.night.bed}, {nodes} nodes · {recorded}"
        )
        self.terminal.lines(f"note     {text}" for text in quarantine.describe(self.night))

    def start(self, cell: Cell, repeat: int) -> None:
        if not self.quiet:
            self.terminal.status(
                f"{len(self._ended) + 1}/{len(self.night.order)}  {cell.name}, repeat {repeat + 1} of {cell.repeats}"
            )

    def node(self, row: Row) -> None:
        if not self.quiet:
            self.terminal.line(f"  {self._word(row.state)} {row.cell}: {row.reason}")

    def cell(self, cell: Cell, rows: Sequence[Row]) -> None:
        self._ended.add(cell.name)
        if self.quiet or not rows:
            return
        state = min((row.state for row in rows), key=_ORDER.index)
        ran = [row for row in rows if row.state != "skipped"]
        took_s = sum(row.duration_s for row in ran)
        width = max(len(name) for name in self.night.order)
        text = f"  {self._word(state)} {cell.name:<{width}}"
        if ran:
            text += f"  {len(ran)} of {cell.repeats} in {duration(took_s)}"
        reason = next((row.reason for row in rows if row.state == state and row.reason), "")
        remaining = self._remaining()
        self.terminal.line(
            text + (f": {_short(reason)}" if reason else "") + (f"     {remaining}" if remaining else "")
        )

    def _word(self, state: str) -> str:
        word = _WORDS[state]
        return self.terminal.style(f"{word:<8}", _STYLES[word])

    def _remaining(self) -> str:
        """Empty where a cell that has not run yet is not known from an earlier night."""
        open_cells = [name for name in self.night.order if name not in self._ended]
        known = [self.past.get(name, selector.NEVER).duration_s for name in open_cells]
        if not open_cells or None in known:
            return ""
        return f"about {duration(sum(filter(None, known)))} left"


def dry_run(
    terminal: Terminal, suite: Suite, order: Sequence[str], past: Mapping[str, selector.Past], *, as_json: bool
) -> int:
    """Print the cells in the order of their run."""
    cells = {cell.name: cell for cell in suite.cells}
    if as_json:
        terminal.json(
            {
                "suite": suite.name,
                "seed": suite.seed,
                "budget_s": suite.budget_s,
                "cells": [cells[name] for name in order],
            }
        )
        return 0
    rows = []
    for name in order:
        cell, known = cells[name], past.get(name, selector.NEVER)
        expected = duration(known.duration_s) if known.duration_s is not None else "not known"
        ago = "never" if known.nights_ago is None else f"{known.nights_ago} ago"
        rows.append((name, cell.trial, cell.repeats, duration(cell.deadline_s), cell.priority, expected, ago))
    terminal.table(("CELL", "TRIAL", "REPEATS", "DEADLINE", "PRIORITY", "TOOK", "LAST NIGHT"), rows)
    return 0


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
