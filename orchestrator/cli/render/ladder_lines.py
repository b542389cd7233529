"""The ladder of a training on the terminal: three lines, each loss with its fix, within a page of lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from ... import views
from ...core.verdict import ladder, rungs, sentence
from ...model.run import Run
from ...model.verdict import Rung, Verdict
from .terminal import Terminal, unstyled

#: A training ends with at most so many lines of so many columns.
LINES, WIDTH = 12, 100
#: The column of the text of a rung.
_INDENT = 25
_STYLES = {"holds": "good", "does not hold": "bad", "unknown": "warn", "not asked": "dim"}
_MORE = " … (-v)"
_CLAUSE = re.compile(r"[;,] (?!\d)| · | \(")


def failovers(run: Run, view: views.RunView) -> Iterator[str]:
    """Yield where the time of the first failover went, and how many others there were."""
    if not view.failovers:
        return
    first, others = view.failovers[0], len(view.failovers) - 1
    more = f"      and {sentence.count(others, 'more failover')} (-v)" if others else ""
    yield clipped(f"recovery  {stages(view, first)}{more}", indent=10, rows=2)


def stages(view: views.RunView, failover: views.Failover) -> str:
    """The time to recover and its parts: ``143 ms: noticed 2, stopped 36, …``."""
    total = f"{failover.ttr_s * 1000:.0f} ms" if failover.ttr_s is not None else sentence.returned(view, failover)
    parts = (f"{views.STAGES[name]} {seconds * 1000:.0f}" for name, seconds in failover.phases)
    return ": ".join(filter(None, (total, ", ".join(parts))))


def body(terminal: Terminal, run: Run, shown: Sequence[Rung], other_lines: Sequence[str]) -> list[str]:
    """The lines of the ladder and of all other checks; beyond ``LINES``, with ``other_lines``, fixes and then texts are cut to a row."""
    kept = {next((item for item in shown if item.state in ("does not hold", "unknown")), shown[0]).name: (2, 2)}
    for sizes in ((2, 2), (2, 1), (1, 1)):
        ladder_rows = (line for item in shown for line in rung(terminal, item, *kept.get(item.name, sizes)))
        lines = [*ladder_rows, *others(terminal, run, sizes[1])]
        if height([*lines, *other_lines]) <= LINES:
            break
    return lines


def height(lines: Sequence[str]) -> int:
    """The number of rows of ``WIDTH`` columns that lines take."""
    return sum(max(1, -(-len(unstyled(line)) // WIDTH)) for line in lines)


def rung(terminal: Terminal, shown: Rung, rows: int, fix_rows: int) -> Iterator[str]:
    """Yield the line of a rung, and that of the fix of its worst loss. ``rows``, ``fix_rows``: of text; 0: all of it."""
    word = terminal.style(f"{ladder.WORDS[shown.state]:<9}", _STYLES[shown.state])
    yield f"{shown.name:<14} {word} {clipped(shown.text, indent=_INDENT, rows=rows)}"
    if shown.fix:
        yield f"{'':<{_INDENT}}{clipped(f'fix: {shown.fix}', indent=_INDENT, rows=fix_rows)}"


def others(terminal: Terminal, run: Run, rows: int) -> Iterator[str]:
    """Yield the first check of no rung that does not pass, and one line on all others that were made."""
    named = [*rungs.others(run.verdicts)]
    bad = [verdict for outcome in ("fail", "unknown") for verdict in named if verdict.outcome == outcome]
    for verdict in bad[:1]:
        word = terminal.style(f"{verdict.outcome:<9}", "bad" if verdict.outcome == "fail" else "warn")
        yield f"{'':<14} {word} {clipped(f'{verdict.check}: {verdict.text}', indent=_INDENT, rows=rows)}"
    if not terminal.quiet and run.verdicts:
        yield clipped(f"checked        {_checked(run, named, bad[1:])}", indent=0, rows=1)


def _checked(run: Run, named: list[Verdict], bad: list[Verdict]) -> str:
    passed = [verdict.check for verdict in named if verdict.outcome == "pass"]
    parts = ["the fault is proved"] if run.trial.faults and "fault-verified" in passed else []
    if rest := len(passed) - len(parts):
        what = sentence.count(rest, "more check" if parts else "check")
        parts.append(f"{what} {'pass' if rest > 1 else 'passes'} (-v)")
    parts += [f"{verdict.check} {'fails' if verdict.outcome == 'fail' else 'is unknown'}" for verdict in bad]
    return " · ".join(parts)


def clipped(text: str, *, indent: int, rows: int) -> str:
    """Return what of a text fits in so many rows of ``WIDTH`` columns from ``indent`` on, to the end of a clause; 0 rows: all of it."""
    if not rows:
        return text
    size = WIDTH - indent
    lines = textwrap.wrap(text, size, max_lines=rows, placeholder=_MORE, break_long_words=False, break_on_hyphens=False)
    shown = " ".join(lines).removesuffix(_MORE)
    if len(shown) >= len(" ".join(text.split())):
        return shown
    starts = (match.start() for match in _CLAUSE.finditer(shown))
    ends = [at for at in starts if at > len(shown) // 2 and shown.count("(", 0, at) == shown.count(")", 0, at)]
    return f"{(shown[: ends[-1]] if ends else shown).rstrip(' ;,:·(')}{_MORE}"
