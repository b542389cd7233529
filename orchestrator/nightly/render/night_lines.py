"""A night on the terminal: a line per cell as it ends, with the remaining time where earlier nights tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...app.hosts import quarantine
from ...app.places import duration, short_path
from ...cli.render.terminal import Terminal
from ...model.frozen import dataclass, field
from .. import selector
from ..app.night_results import Finished
from ..app.night_runs import NightPlan
from ..night_judgement import NightJudgement
from ..reports import night_table
from ..suite import ALL, Cell, Night, Row

#: The worst state of a cell's repeats is that of the cell.
_ORDER = ("error", "unfinished", "failed", "unknown", "passed", "skipped")
_WORDS = {
    "passed": "PASS", "failed": "FAIL", "unknown": "UNKNOWN", "error": "ERROR", "unfinished": "HUNG", "skipped": "SKIPPED",
}  # fmt: skip
_STYLES = {"PASS": "good", "FAIL": "bad", "ERROR": "bad", "HUNG": "bad", "UNKNOWN": "warn", "SKIPPED": "warn"}
_WIDTH = 100
#: Findings that are printed; the report has all of them.
_FINDINGS = 6
#: Metrics and nodes of the table; the report has all of them.
_LINES, _COLUMNS = 12, 8
_FINDING_ORDER = ("fail", "xpass", "warn", "unknown")


@dataclass(kw_only=True)
class NightLines:
    """Follows a night on a terminal. ``quiet``: print nothing, for --json."""

    terminal: Terminal
    quiet: bool = False
    night: Night = field(init=False)
    past: Mapping[str, selector.Past] = field(default_factory=dict)
    _ended: dict[str, float] = field(default_factory=dict)
    _again: set[tuple[str, str]] = field(default_factory=set)

    def begin(self, night: Night, past: Mapping[str, selector.Past], directory: Path, nodes: int) -> None:
        self.night, self.past = night, past
        if self.quiet:
            return
        suite = self.night.suite
        repeats = sum(cell.repeats for cell in suite.cells)
        recorded = f"recorded as number {self.night.number}" if self.night.recorded else "not recorded"
        budget = f", budget {duration(suite.budget_s)}" if suite.budget_s else ""
        self.terminal.line(f"night    {short_path(directory)}")
        self.terminal.line(
            f"suite    {suite.name}: {len(suite.cells)} cells, {repeats} repeats at most{budget}, seed {suite.seed}"
            f" · bed {self.night.bed}, {nodes} nodes · {recorded}"
        )
        self.terminal.lines(f"note     {text}" for text in quarantine.describe(self.night))

    def start(self, cell: Cell, repeat: int, again: str) -> None:
        if self.quiet:
            return
        if again and (cell.name, again) not in self._again:
            self._again.add((cell.name, again))
            who = "all nodes" if again == ALL else f"{again} alone"
            self.terminal.line(f"  again    {cell.name}: {who}, to confirm what was measured")
        done = f"{len(self._ended)} of {len(self.night.order)} trials done"
        self.terminal.status(
            f"{done}  {cell.name}, {'again on ' + again if again else f'pass {repeat + 1} of {cell.repeats}'}"
        )

    def node(self, row: Row) -> None:
        if not self.quiet:
            self.terminal.line(f"  {self._word(row.state)} {row.cell}: {row.reason}")

    def cell(self, cell: Cell, rows: Sequence[Row]) -> None:
        self._ended[cell.name] = took_s = sum(row.duration_s for row in rows if row.state != "skipped")
        if self.quiet or not rows:
            return
        state = min((row.state for row in rows), key=_ORDER.index)
        ran = [row for row in rows if row.state != "skipped"]
        width = max(len(name) for name in self.night.order)
        text = f"  {self._word(state)} {cell.name:<{width}}"
        if ran:
            text += f"  {len(ran)} of {cell.repeats} in {duration(took_s)}"
        reason = next((row.reason for row in rows if row.state == state and row.reason), "")
        remaining = self._remaining()
        self.terminal.line(
            text + (f": {_short(reason)}" if reason else "") + (f"     {remaining}" if remaining else "")
        )

    def ended(self, finished: Finished) -> None:
        if not self.quiet:
            show(self.terminal, finished)

    def closed(self, night: Night, done: str, code: int) -> None:
        """An open night of a process that died has ended. With --json this is a warning: the document is that of the new night."""
        text = f"open night {night.name}, begun {night.started}: {done}, exit {code}; the new night begins"
        (self.terminal.warn if self.quiet else self.terminal.line)(text)

    def _word(self, state: str) -> str:
        word = _WORDS[state]
        return self.terminal.style(f"{word:<8}", _STYLES[word])

    def _remaining(self) -> str:
        """A cell that no earlier night knows takes as long as those of tonight do on average."""
        open_cells = [name for name in self.night.order if name not in self._ended]
        took = [seconds for seconds in self._ended.values() if seconds]
        usual_s = sum(took) / len(took) if took else None
        known = [self.past.get(name, selector.NEVER).duration_s or usual_s for name in open_cells]
        if not open_cells or None in known:
            return ""
        return f"{len(open_cells)} of {len(self.night.order)} left, about {duration(sum(filter(None, known)))}"


def show(terminal: Terminal, finished: Finished) -> None:
    """Print how a night ended: the table of what moved, other findings, its verdict, and what to do next."""
    terminal.lines(f"note     {note}" for note in finished.notes)
    show_judgement(terminal, finished.night, finished.judgement)
    if step := night_table.next_step(finished.night, finished.judgement, short_path(finished.link)):
        terminal.line(f"next     {step}")
    if finished.page.is_file():
        terminal.line(f"report   {short_path(finished.page)}")


def show_judgement(terminal: Terminal, night: Night, judgement: NightJudgement) -> None:
    """The table, findings that are not in it, and the verdict."""
    shown = night_table.table(night, judgement)
    terminal.line(night_table.head(night, judgement, shown))
    _show_table(terminal, shown)
    others = [entry for entry in judgement.others if entry.is_counted and entry.state in _FINDING_ORDER]
    others.sort(key=lambda judged: _FINDING_ORDER.index(judged.state))
    for judged in others[:_FINDINGS]:
        terminal.line(f"{terminal.style(f'{judged.state.upper():<8}', judged.state.upper())} {judged.finding.text}")
    if len(others) > _FINDINGS:
        terminal.line(f"… and {len(others) - _FINDINGS} more; the report has them")
    if judgement.history:
        terminal.line(f"history  {judgement.history}")
    word = judgement.word.upper()
    terminal.line(f"{terminal.style(f'{word:<8}', word)} {judgement.sentence}     exit {judgement.exit}")


def _show_table(terminal: Terminal, shown: night_table.Table) -> None:
    """The lines that are not within their limits, worst first; then what the others come to."""
    show_lines(terminal, shown, shown.shown[:_LINES])
    if len(shown.shown) > _LINES:
        terminal.line(f"{len(shown.shown) - _LINES} more metrics beyond their limits; the report has them")
    if shown.rest:
        terminal.line(shown.rest)


def show_lines(terminal: Terminal, shown: night_table.Table, lines: Sequence[night_table.Line]) -> None:
    """Lines of the table, with the nodes that they concern."""
    heads, rows = night_table.grid(shown, lines, _COLUMNS)
    widths = [max(map(len, column)) for column in zip(heads, *(texts for _, texts in rows), strict=True)]
    for line, texts in [(None, heads), *rows] if rows else ():
        first, *cells = (
            f"{text:>{width}}" if 0 < index < len(heads) - 2 else f"{text:<{width}}"
            for index, (text, width) in enumerate(zip(texts, widths, strict=True))
        )
        states = [line.cells[name].state.upper() if line and name in line.cells else "" for name in heads[1:]]
        styled = (terminal.style(cell, state) if state else cell for cell, state in zip(cells, states, strict=True))
        terminal.line("  ".join((first, *styled)).rstrip())


def dry_run(terminal: Terminal, planned: NightPlan, *, as_json: bool) -> None:
    """Print the cells in the order of their run."""
    suite, past = planned.suite, planned.past
    cells = {cell.name: cell for cell in suite.cells}
    if as_json:
        terminal.json(
            {
                "suite": suite.name,
                "seed": suite.seed,
                "budget_s": suite.budget_s,
                "cells": [cells[name] for name in planned.order],
            }
        )
        return
    rows = []
    for name in planned.order:
        cell, known = cells[name], past.get(name, selector.NEVER)
        expected = duration(known.duration_s) if known.duration_s is not None else "not known"
        ago = "never" if known.nights_ago is None else f"{known.nights_ago} ago"
        rows.append((name, cell.trial, cell.repeats, duration(cell.deadline_s), cell.priority, expected, ago))
    terminal.table(("CELL", "TRIAL", "REPEATS", "DEADLINE", "PRIORITY", "TOOK", "LAST NIGHT"), rows)


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
