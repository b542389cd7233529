"""Compare two runs: the same cases or steps side by side, slower, faster, or no difference."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from ...model import codec
from ...model.errors import EXIT_FINDING, EXIT_PASS, EXIT_UNKNOWN, UsageError
from ...store import bundle, index
from ...views import comparison
from ...views.collectives import phrases
from ..inputs import beds, options
from ..inputs.session import Session
from . import check

#: So many differences between the surroundings are told.
_TOLD = 12


def _limit(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """``5%`` or ``0.05``."""
    if text is None:
        return None
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"--fail-over: must be a part such as 5% or 0.05 (got {text!r})")
    return value


@options.command()
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--fail-over",
    callback=_limit,
    metavar="PART",
    help="Exit 1 where something got slower by more, its whole interval, or is missing: 5%. Exit 2 with too few samples.",
)
@options.runs_dir
@options.as_json
@click.pass_obj
def command(session: Session, before: str, after: str, fail_over: float | None, runs_dir: Path, as_json: bool) -> int:
    """Compare run B with run A (directories, ends of names, or `latest`)."""
    first, second = (index.resolve(handle, runs_dir) for handle in (before, after))
    for directory in (first, second):
        check.verify(directory)
    found = comparison.compare(bundle.load(first), bundle.load(second))
    if not found.rows:
        raise UsageError(
            f"{beds.shown(first)} and {beds.shown(second)} have no case and no step in common",
            hint="compare runs of one kind of trial, with the same sizes and algorithms",
        )
    judged = fail_over is not None
    late = [row.what for row in found.rows if fail_over is not None and row.slower_than(fail_over)]
    missing = [f"{what} (only in {which})" for which, what in found.only] if judged else []
    undecided = [row.what for row in found.rows if judged and row.undecided]
    code = EXIT_FINDING if late or missing else EXIT_UNKNOWN if undecided else EXIT_PASS
    if as_json:
        document = {**_document(found), "failed": [*late, *missing], "undecided": undecided, "exit": code}
        session.terminal.json({"a": str(first), "b": str(second), **document})
        return code
    _show(session, found, first, second)
    if fail_over is not None:
        limit = f"{fail_over:.3g}" if fail_over >= 10 else f"{fail_over * 100:.3g} %"
        name = {EXIT_FINDING: "FAIL", EXIT_UNKNOWN: "UNKNOWN"}.get(code, "PASS")
        word = session.terminal.style(f"{name:<9}", name)
        text = f"{len(late)} of {len(found.rows)} slower by more than {limit}"
        text += f"; {len(missing)} missing on one side" if missing else ""
        if undecided:
            text += f"; {len(undecided)} undecided: needs {found.least_samples} or more iterations of each run"
        session.terminal.line(f"{word} {text}     exit {code}")
    return code


def _show(session: Session, found: comparison.Comparison, first: Path, second: Path) -> None:
    terminal = session.terminal
    terminal.lines([f"A  {beds.shown(first)}", f"B  {beds.shown(second)}"])
    what = f"p50 over {phrases.OVER.get(found.over, found.over)}" if found.over else "p50 of"
    terminal.table(
        (what, "A ms", "B ms", "change", "95 % for all", "noise", "n", "verdict"), [_row(row) for row in found.rows]
    )
    terminal.line(
        "note      slower or faster: the interval leaves out 0, and the change is more than the noise, which is what the"
        f" halves of either run differ by, {comparison.MARGIN:.0%} at least"
    )
    if found.losses:
        same, both, differs = found.losses
        text = "equal" if differs is None else f"different from step {differs} on; equal"
        terminal.line(f"loss      {text} at {same} of {both} steps")
    terminal.lines(f"only {which}    {what}" for which, what in found.only)
    for name, a, b in found.differences[:_TOLD]:
        terminal.line(f"differs   {name}: {a} | {b}")
    if len(found.differences) > _TOLD:
        terminal.line(f"          … {len(found.differences) - _TOLD} more: --json")


def _row(row: comparison.Compared) -> tuple[str, ...]:
    interval = f"{row.change.low:+.1%} to {row.change.high:+.1%}" if row.change else "too few samples apart"
    noise = f"{row.noise:.1%}" if row.change else "-"
    count = f"{row.counts[0]}, {row.counts[1]}"
    change = f"{row.relative:+.1%}" if math.isfinite(row.relative) else "-"
    before, after = phrases.milliseconds(row.before), phrases.milliseconds(row.after)
    return row.what, before, after, change, interval, noise, count, row.verdict


def _document(found: comparison.Comparison) -> dict[str, Any]:
    document: dict[str, Any] = codec.plain(found)
    return document
