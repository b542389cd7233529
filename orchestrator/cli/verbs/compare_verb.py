"""Compare two runs or groups of runs: slower, faster, equal, or not resolved; or runs of one job under several systems, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from ...app.places import short_path
from ...app.recorded import compare
from ...app.recorded.compare import CompareRequest
from ...model import ratio
from ...model.errors import EXIT_FINDING, EXIT_UNKNOWN
from ...reports.page import compared as compared_page
from ...reports.page import systems_page
from ...views import comparison
from ...views.training import loss_bands
from ..inputs import options
from ..inputs.terminal_session import Session
from ..render.terminal import Terminal

#: Differences between the environments of the runs that are printed.
_MOST_DIFFERENCES = 12


@options.shows(CompareRequest, compare.run)
def command(session: Session, compared: compare.Compared) -> None:
    """Compare run B with run A (directories, ends of names, or `latest`), or three and more runs of one job.

    A and B may be groups of repeated runs, with commas between them, or directories of runs. Then one figure of each run
    is compared, such as the time to recover: ccbed compare 8aa1,77cd,… 3f9c,aa01,…

    A and B may be two nights: then a table shows how each node and metric of B moved, beside its limit.

    NAME=RUN names a column: ccbed compare ccbed=8aa1 torchrun=8c7c torchft=a40b
    """
    terminal = session.terminal
    match compared.content:
        case comparison.Groups() as groups:
            _show_groups(terminal, compared, groups)
        case compare.Nights() as nights:
            nights.show(terminal)
        case loss_bands.LossBands() as judged:
            _show_loss(terminal, compared, judged)
        case comparison.Comparison() as content:
            _show_two(terminal, compared, content)
        case columns:
            terminal.table(("", *(column.system for column in columns)), systems_page.rows(columns))
            terminal.lines(f"note      {text}" for text in systems_page.notes(columns))
            _name_page(terminal, compared)


def _name_page(terminal: Terminal, compared: compare.Compared) -> None:
    if compared.page:
        terminal.line(f"page      {short_path(compared.page)}")


def _show_two(terminal: Terminal, compared: compare.Compared, content: comparison.Comparison) -> None:
    terminal.lines(f"{name}  {short_path(side[0])}" for name, side in zip("AB", compared.sides, strict=True))
    rows = [(row.what, *compared_page.figures(row), row.verdict) for row in content.rows]
    terminal.table((compared_page.what(content), *compared_page.HEAD, "verdict"), rows)
    terminal.lines(f"{label:<10}{text}" for label, text in compared_page.notes(content))
    _show_differences(terminal, content.differences)
    _name_page(terminal, compared)
    if (limit := compared.limit) is None:
        return
    undecided, missing = len(compared.undecided), compared.missing
    share = f"{limit:.3g}" if limit >= 10 else f"{limit * 100:.3g} %"
    text = f"{len(compared.failed) - missing} of {len(content.rows)} slower by more than {share}"
    text += f"; {missing} missing on one side" if missing else ""
    if compared.few:
        text += f"; {compared.few} undecided: needs {content.least_samples} or more iterations of each run"
    if undecided > compared.few:
        text += f"; {undecided - compared.few} undecided: the interval reaches beyond the limit"
    _conclude(terminal, compared.code, text)


def _conclude(terminal: Terminal, code: int, text: str) -> None:
    word = {EXIT_FINDING: "FAIL", EXIT_UNKNOWN: "UNKNOWN"}.get(code, "PASS")
    terminal.line(f"{terminal.style(f'{word:<9}', word)} {text}     exit {code}")


def _show_differences(terminal: Terminal, differences: Sequence[tuple[str, str, str]]) -> None:
    terminal.lines(f"differs   {name}: {a} | {b}" for name, a, b in differences[:_MOST_DIFFERENCES])
    if len(differences) > _MOST_DIFFERENCES:
        terminal.line(f"          … {len(differences) - _MOST_DIFFERENCES} more: --json")


def _show_loss(terminal: Terminal, compared: compare.Compared, judged: loss_bands.LossBands) -> None:
    rows = [
        (f"{band.name} ({band.steps[0]} to {band.steps[1]})", *(f"{x:.6g}" for x in (band.loss, band.low, band.high)))
        for band in judged.bands
    ]
    if rows:
        terminal.table(("mean loss of", "A", "band from", "to"), rows)
    _conclude(terminal, compared.code, judged.text)


def _show_groups(terminal: Terminal, compared: compare.Compared, groups: comparison.Groups) -> None:
    """A row per figure: both medians, the change with its interval, and the verdict or the reason why there is none."""
    terminal.lines(f"{name}  {len(side)} runs" for name, side in zip("AB", compared.sides, strict=True))
    confidence = f"{1 - groups.level:.2%} each"
    terminal.table(
        ("median of", "A", "B", "change", confidence, "n", "verdict"), [_group_row(row) for row in groups.rows]
    )
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
    _show_differences(terminal, groups.differences)
    if (limit := compared.limit) is not None:
        counts = f"{len(compared.failed)} of {len(groups.rows)} worse by more than {limit * 100:.3g} %"
        _conclude(terminal, compared.code, f"{counts}; {len(compared.undecided)} undecided")


def _group_row(row: comparison.Grouped) -> tuple[str, ...]:
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
