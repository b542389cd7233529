"""Compare two runs or groups of runs: slower, faster, equal, or not resolved; or runs of one job under several systems, side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ...app import check
from ...app.places import short_path
from ...model import codec, ratio
from ...model.errors import EXIT_FINDING, EXIT_PASS, EXIT_UNKNOWN, UsageError
from ...reports.page import compared as compared_page
from ...reports.page import systems as systems_page
from ...store import bundle, index
from ...views import comparison, mapping
from ...views.training import loss_bands
from ...views.training.systems import System
from ...views.training.systems import systems as side_by_side
from ..inputs import options
from ..inputs.session import Session
from ..render.terminal import Terminal

#: Differences between the environments of the runs that are printed.
_MOST_DIFFERENCES = 12


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
        raise UsageError(f"--fail-over: must be a share such as 5% or 0.05 (got {text!r})")
    return value


@options.command()
@options.of_run("before", metavar="A")
@options.of_run("after", metavar="B")
@click.argument("others", nargs=-1, metavar="[C ...]")
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write a page, of two runs or of systems."
)
@click.option(
    "--systems",
    is_flag=True,
    help="Show runs of one script under several launchers, a column each. Three or more runs are always shown so.",
)
@click.option(
    "--loss-band",
    is_flag=True,
    help="Judge whether the loss of A, a script that recovered, lies within the band of five or more undisturbed runs of it.",
)
@click.option(
    "--fail-over",
    callback=_limit,
    metavar="SHARE",
    help="Exit 1 where the whole interval of a change is slower than this, such as 5%, or a case is missing."
    " Exit 2 where only a part of it is, or with too few samples.",
)
@options.runs_dir
@options.as_json
@click.pass_obj
def command(
    session: Session, before: str, after: str, others: tuple[str, ...], html: Path | None, systems: bool, loss_band: bool,
    fail_over: float | None, runs_dir: Path, as_json: bool,
) -> int:  # fmt: skip
    """Compare run B with run A (directories, ends of names, or `latest`), or three and more runs of one job.

    A and B may be groups of repeated runs, with commas between them, or directories of runs. Then one figure of each run
    is compared, such as the time to recover: ccbed compare 8aa1,77cd,… 3f9c,aa01,…

    NAME=RUN names a column: ccbed compare ccbed=8aa1 torchrun=8c7c torchft=a40b
    """
    groups = [_group(handle, runs_dir) for handle in (before, after)]
    if max(map(len, groups)) > 1:
        if others or systems or html or loss_band:
            raise UsageError("groups of runs are compared two at a time, without --systems, --html and --loss-band")
        return _compare_groups(session, groups[0], groups[1], fail_over, as_json=as_json)
    named = [_named(handle) for handle in (before, after, *others)]
    directories = [index.resolve(handle, runs_dir) for _, handle in named]
    for directory in directories:
        check.verify(directory)
    if loss_band:
        if systems or html or fail_over is not None:
            raise UsageError("--loss-band excludes --systems, --html and --fail-over")
        run, *undisturbed = map(bundle.load, directories)
        return _judge_loss(session, loss_bands.loss_bands(run, undisturbed), as_json=as_json)
    if others or systems or any(name for name, _ in named):
        if fail_over is not None:
            raise UsageError("--fail-over compares two runs of one system", hint="give two runs, without --systems")
        loaded = ((name, bundle.load(path)) for (name, _), path in zip(named, directories, strict=True))
        return _show_systems(session, side_by_side(loaded), html, as_json=as_json)
    return _compare_two(session, directories[0], directories[1], fail_over, html, as_json=as_json)


def _compare_two(
    session: Session, first: Path, second: Path, fail_over: float | None, html: Path | None, *, as_json: bool
) -> int:
    before, after = bundle.load(first), bundle.load(second)
    compared = comparison.compare(before, after)
    if not compared.rows:
        raise UsageError(
            f"{short_path(first)} and {short_path(second)} have no case and no step in common",
            hint="compare runs of one kind of trial, with the same sizes and algorithms",
        )
    if html:
        a, b = (compared_page.side(run, _address(path, html)) for run, path in ((before, first), (after, second)))
        _write_page(html, compared_page.render(a, b, compared))
    has_limit = fail_over is not None
    late = [row.what for row in compared.rows if fail_over is not None and row.slower_than(fail_over)]
    missing = [f"{what} (only in {which})" for which, what in compared.only] if has_limit else []
    unclear = [row for row in compared.rows if fail_over is not None and row.is_undecided(fail_over)]
    undecided, few = [row.what for row in unclear], sum(row.change is None for row in unclear)
    code = EXIT_FINDING if late or missing else EXIT_UNKNOWN if undecided else EXIT_PASS
    if as_json:
        document = {**_document(compared), "failed": [*late, *missing], "undecided": undecided, "exit": code}
        session.terminal.json({"a": str(first), "b": str(second), **document})
        return code
    _show(session, compared, first, second)
    if html:
        session.terminal.line(f"page      {short_path(html)}")
    if fail_over is not None:
        limit = f"{fail_over:.3g}" if fail_over >= 10 else f"{fail_over * 100:.3g} %"
        name = {EXIT_FINDING: "FAIL", EXIT_UNKNOWN: "UNKNOWN"}.get(code, "PASS")
        word = session.terminal.style(f"{name:<9}", name)
        text = f"{len(late)} of {len(compared.rows)} slower by more than {limit}"
        text += f"; {len(missing)} missing on one side" if missing else ""
        if few:
            text += f"; {few} undecided: needs {compared.least_samples} or more iterations of each run"
        if len(undecided) > few:
            text += f"; {len(undecided) - few} undecided: the interval reaches beyond the limit"
        session.terminal.line(f"{word} {text}     exit {code}")
    return code


def _write_page(file: Path, content: bytes) -> None:
    """Raises UsageError where the file cannot be written."""
    try:
        file.write_bytes(content)
    except OSError as error:
        raise UsageError(
            f"--html {file}: cannot be written: {error.strerror}", hint="name a file in a directory that exists"
        ) from error


def _address(run: Path, html: Path) -> str:
    """The page of a run, relative to the page of the comparison; empty if it has none."""
    page = run / bundle.REPORT / "index.html"
    return quote(os.path.relpath(page, html.resolve().parent)) if page.is_file() else ""


def _group(handle: str, runs_dir: Path) -> list[Path]:
    """The runs of ``8aa1,77cd``, or of a directory of runs without their twins; one run for any other handle."""
    if Path(handle).is_dir() and not (Path(handle) / bundle.TRIAL).is_file():
        runs = [entry.directory for entry in index.runs(Path(handle), nested=True) if not _is_twin(entry.directory)]
        if not runs:
            raise UsageError(f"{handle}: no runs in this directory", hint="ccbed list runs --runs-dir DIRECTORY")
        return runs
    if "," not in handle:
        return [index.resolve(_named(handle)[1], runs_dir)]
    runs = [index.resolve(part.strip(), runs_dir) for part in handle.split(",") if part.strip()]
    if len(set(runs)) < len(runs):
        raise UsageError(f"{handle}: names a run twice", hint="a group needs independent runs")
    return runs


def _is_twin(directory: Path) -> bool:
    return bool(mapping(bundle.load(directory).extras.get("bundle.json")).get("twin_of"))


def _compare_groups(
    session: Session, before: list[Path], after: list[Path], fail_over: float | None, *, as_json: bool
) -> int:
    """Exit 1 where a figure is worse by more than the limit, 2 where one may be, or is not known; without a limit 0."""
    both = set(before) & set(after)
    if both:
        raise UsageError(f"{short_path(min(both))}: is in both groups", hint="a group needs independent runs")
    for directory in (*before, *after):
        check.verify(directory)
    try:
        groups = comparison.compare_groups(*([bundle.load(path) for path in paths] for paths in (before, after)))
    except ValueError as error:
        raise UsageError(str(error), hint="a group has the runs of one trial: ccbed run TRIAL --repeat 10") from None
    if not groups.rows:
        raise UsageError("A and B have no figure in common", hint="compare runs that finished, of one kind of trial")
    failed = [row.what for row in groups.rows if fail_over is not None and row.worse_than(fail_over)]
    undecided = [row.what for row in groups.rows if fail_over is not None and row.is_undecided(fail_over)]
    code = EXIT_FINDING if failed else EXIT_UNKNOWN if undecided else EXIT_PASS
    if as_json:
        names = {side: [str(path) for path in paths] for side, paths in (("a", before), ("b", after))}
        session.terminal.json({**names, **codec.plain(groups), "failed": failed, "undecided": undecided, "exit": code})
    else:
        _show_groups(session.terminal, groups, (len(before), len(after)))
        if fail_over is not None:
            word = {EXIT_FINDING: "FAIL", EXIT_UNKNOWN: "UNKNOWN"}.get(code, "PASS")
            text = f"{len(failed)} of {len(groups.rows)} worse by more than {fail_over * 100:.3g} %; {len(undecided)} undecided"
            session.terminal.line(f"{session.terminal.style(f'{word:<9}', word)} {text}     exit {code}")
    return code


def _judge_loss(session: Session, judged: loss_bands.LossBands, *, as_json: bool) -> int:
    code = {"pass": EXIT_PASS, "fail": EXIT_FINDING}.get(judged.outcome, EXIT_UNKNOWN)
    if as_json:
        session.terminal.json({**codec.plain(judged), "exit": code})
        return code
    rows = [
        (f"{band.name} ({band.steps[0]} to {band.steps[1]})", *(f"{x:.6g}" for x in (band.loss, band.low, band.high)))
        for band in judged.bands
    ]
    if rows:
        session.terminal.table(("mean loss of", "A", "band from", "to"), rows)
    word = session.terminal.style(f"{judged.outcome.upper():<9}", judged.outcome.upper())
    session.terminal.line(f"{word} {judged.text}     exit {code}")
    return code


def _named(handle: str) -> tuple[str, str]:
    """``torchft=8c7c`` -> the name of its column, and the run; without a name the handle alone."""
    name, is_named, run = handle.partition("=")
    return (name, run) if is_named and run and not Path(handle).exists() else ("", handle)


def _show_systems(session: Session, columns: Sequence[System], html: Path | None, *, as_json: bool) -> int:
    """A column for each run. A figure that is not known is a dash; its reason follows the table."""
    if html:
        _write_page(html, systems_page.render(columns))
    if as_json:
        session.terminal.json({"runs": [codec.plain(column) for column in columns]})
        return EXIT_PASS
    session.terminal.table(("", *(column.system for column in columns)), systems_page.rows(columns))
    session.terminal.lines(f"note      {text}" for text in systems_page.notes(columns))
    if html:
        session.terminal.line(f"page      {short_path(html)}")
    return EXIT_PASS


def _show(session: Session, compared: comparison.Comparison, first: Path, second: Path) -> None:
    terminal = session.terminal
    terminal.lines([f"A  {short_path(first)}", f"B  {short_path(second)}"])
    rows = [(row.what, *compared_page.figures(row), row.verdict) for row in compared.rows]
    terminal.table((compared_page.what(compared), *compared_page.HEAD, "verdict"), rows)
    terminal.lines(f"{label:<10}{text}" for label, text in compared_page.notes(compared))
    for name, a, b in compared.differences[:_MOST_DIFFERENCES]:
        terminal.line(f"differs   {name}: {a} | {b}")
    if len(compared.differences) > _MOST_DIFFERENCES:
        terminal.line(f"          … {len(compared.differences) - _MOST_DIFFERENCES} more: --json")


def _document(compared: comparison.Comparison) -> dict[str, Any]:
    document: dict[str, Any] = codec.plain(compared)
    return document


#: Differences between the environments of the groups that are printed.
_SHOWN_DIFFERENCES = 12


def _show_groups(terminal: Terminal, groups: comparison.Groups, counts: tuple[int, int]) -> None:
    """A row per figure: both medians, the change with its interval, and the verdict or the reason why there is none."""
    terminal.lines([f"A  {counts[0]} runs", f"B  {counts[1]} runs"])
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
    for name, a, b in groups.differences[:_SHOWN_DIFFERENCES]:
        terminal.line(f"differs   {name}: {a} | {b}")
    if len(groups.differences) > _SHOWN_DIFFERENCES:
        terminal.line(f"          … {len(groups.differences) - _SHOWN_DIFFERENCES} more: --json")


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
