"""Shows what a sweep found on the terminal: the figures of the nodes, or a map of the rates of links, and who is odd."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...app.places import run_path
from ...cli.render import probe_table
from ...cli.render.terminal import Terminal
from ...model.event import History
from .. import sweeps
from ..app.sweep_rounds import Swept
from ..records import Finding

#: With more nodes only the slowest directions are listed.
COLUMNS, SLOWEST = 16, 16
#: Share of the median rate from which on a cell has this shade.
SHADES = ((0.97, "█"), (0.9, "▓"), (0.75, "▒"), (0.0, "░"))
_WORDS = {0: "PASS", 1: "FAIL", 2: "UNKNOWN"}
_SENTENCES = {0: "nothing is odd", 1: "a check fails", 2: "nothing could be judged"}
_SUSPECT = "SUSPECT"


def show_all(terminal: Terminal, swept: Swept) -> None:
    """Print what all rounds say, and what of their runs makes the figures mean less."""
    show(terminal, swept.histories(), swept.sweep, swept.findings)
    for result in swept.results:
        bad = [verdict for verdict in result.verdicts if verdict.outcome in ("fail", "unknown")]
        terminal.lines(f"run       {result.run}: {verdict.outcome} {verdict.check}: {verdict.text}" for verdict in bad)
    conclude(terminal, swept.findings, swept.code)
    terminal.line(f"runs      {' '.join(run_path(directory) for directory in swept.directories)}")


def show(
    terminal: Terminal, histories: Sequence[History], sweep: sweeps.PairSweep | None, findings: Sequence[Finding]
) -> None:
    """Print the table or the map, and a line for each finding."""
    if sweep is None:
        probe_table.show(terminal, histories[-1])
    elif len(sweep.nodes) <= COLUMNS:
        terminal.table(*_map(sweep))
        terminal.line("          Gbit/s from row to column; █ from 97 % of the median on, ▓ 90 %, ▒ 75 %, ░ less")
    else:
        terminal.table(*_slowest(sweep))
    for finding in findings:
        label = {"warn": "suspect", "fail": "fail"}.get(finding.outcome, finding.outcome)
        terminal.line(f"{label:<9} {finding.text}")


def conclude(terminal: Terminal, findings: Sequence[Finding], code: int) -> None:
    suspects = [name for finding in findings if finding.outcome == "warn" for name in finding.culprits]
    word, text = _WORDS.get(code, "FAIL"), _SENTENCES.get(code, "")
    if code == 2 and any(finding.outcome == "warn" for finding in findings):
        word, text = _SUSPECT, ", ".join(dict.fromkeys(suspects)) or "cannot tell which part"
    elif code == 2 and any(finding.outcome == "pass" for finding in findings):
        text = "not all could be judged"
    terminal.line(f"{terminal.style(f'{word:<9}', _WORDS.get(code, 'FAIL'))} {text}     exit {code}")


def _map(sweep: sweeps.PairSweep) -> tuple[list[str], list[list[str]]]:
    usual = _usual(sweep)
    body = [
        [name, *(_cell(float(sweep.medians[row, column]), usual) for column in range(len(sweep.nodes)))]
        for row, name in enumerate(sweep.nodes)
    ]
    return ["from", *sweep.nodes], body


def _slowest(sweep: sweeps.PairSweep) -> tuple[list[str], list[list[str]]]:
    usual = _usual(sweep)
    known = [
        (float(sweep.medians[row, column]), f"{sender} -> {receiver}")
        for row, sender in enumerate(sweep.nodes)
        for column, receiver in enumerate(sweep.nodes)
        if math.isfinite(sweep.medians[row, column])
    ]
    body = [[name, f"{rate * 8e-9:.4g}", f"{rate / usual:.0%}"] for rate, name in sorted(known)[:SLOWEST]]
    return ["slowest directions", "Gbit/s", "of median"], body


def _usual(sweep: sweeps.PairSweep) -> float:
    import numpy as np

    return float(np.nanmedian(sweep.medians)) if np.isfinite(sweep.medians).any() else math.nan


def _cell(rate: float, usual: float) -> str:
    if not math.isfinite(rate):
        return "-"
    shade = next(mark for share, mark in SHADES if rate >= share * usual)
    return f"{shade} {rate * 8e-9:.4g}"
