"""Compare two runs or groups of runs: slower, faster, equal, or not resolved; or runs of one job under several systems, side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

from ... import products
from ...model import codec
from ...model.errors import EXIT_FINDING, EXIT_PASS, EXIT_UNKNOWN, UsageError
from ...model.frozen import dataclass
from ...reports.page import compared as compared_page
from ...reports.page import systems_page
from ...store import bundle, index
from ...views import comparison, mapping
from ...views.training import loss_bands
from ...views.training.compared_systems import System
from ...views.training.compared_systems import systems as side_by_side
from .. import check
from ..places import short_path
from ..requests import argument, named_run, option, runs_directory
from ..session import Session


@runtime_checkable
class Nights(Protocol):
    """Two nights, as the product of nights compares them."""

    @property
    def code(self) -> int: ...
    @property
    def document(self) -> Mapping[str, object]: ...
    def show(self, terminal: Any) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """The request of `ccbed compare`: handles of runs, of which the first two may be groups; ``NAME=RUN`` names a column."""

    before: str = named_run(metavar="A")
    after: str = named_run(metavar="B")
    others: tuple[str, ...] = argument((), metavar="[C ...]")
    html: Path | None = option(None, "Also write a page, of two runs or of systems.", metavar="FILE")
    systems: bool = option(
        False, "Show runs of one script under several launchers, a column each. Three or more runs are always shown so."
    )
    loss_band: bool = option(
        False,
        "Judge whether the loss of A, a script that recovered, lies within the band of five or more undisturbed runs of it.",
    )
    fail_over: str | None = option(
        None,
        "Exit 1 where the whole interval of a change is slower than this, such as 5%, or a case is missing."
        " Exit 2 where only a part of it is, or with too few samples.",
        metavar="SHARE",
    )
    runs_dir: Path = runs_directory()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A comparison. ``content``: of two runs, groups, or nights, a loss and its band, or of systems; ``sides``: the runs A, and B.

    ``failed``, ``undecided``: rows beyond the ``limit``, and rows that may be; ``missing``: failed cases that a run lacks;
    ``few``: undecided ones with too few samples; ``page``: that was written.
    """

    content: comparison.Comparison | comparison.Groups | loss_bands.LossBands | Nights | tuple[System, ...]
    sides: tuple[tuple[Path, ...], ...] = ((), ())
    limit: float | None = None
    failed: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    missing: int = 0
    few: int = 0
    page: Path | None = None

    @property
    def code(self) -> int:
        if isinstance(self.content, Nights):
            return self.content.code
        if isinstance(self.content, loss_bands.LossBands):
            return {"pass": EXIT_PASS, "fail": EXIT_FINDING}.get(self.content.outcome, EXIT_UNKNOWN)
        return EXIT_FINDING if self.failed else EXIT_UNKNOWN if self.undecided else EXIT_PASS

    @property
    def document(self) -> object:
        """All of it, for programs."""
        if isinstance(self.content, Nights):
            return self.content.document
        content = codec.plain(self.content)
        if isinstance(self.content, tuple):
            return {"runs": content}
        if isinstance(self.content, loss_bands.LossBands):
            return {**content, "exit": self.code}
        a, b = ([str(path) for path in side] for side in self.sides)
        names = {"a": a[0], "b": b[0]} if isinstance(self.content, comparison.Comparison) else {"a": a, "b": b}
        return {**names, **content, "failed": list(self.failed), "undecided": list(self.undecided), "exit": self.code}


def run(_session: Session, request: CompareRequest) -> Compared:
    """Compare runs, whose seals are verified first. Raises UsageError, TornBundleError, InfrastructureError."""
    limit = _limit(request.fail_over)
    if nights := _nights(request, limit):
        return nights
    before, after = (_group(handle, request.runs_dir) for handle in (request.before, request.after))
    if max(len(before), len(after)) > 1:
        if request.others or request.systems or request.html or request.loss_band:
            raise UsageError("groups of runs are compared two at a time, without --systems, --html and --loss-band")
        return _groups(before, after, limit)
    named = [_named(handle) for handle in (request.before, request.after, *request.others)]
    directories = [index.resolve(handle, request.runs_dir) for _, handle in named]
    for directory in directories:
        check.verify(directory)
    if request.loss_band:
        if request.systems or request.html or limit is not None:
            raise UsageError("--loss-band excludes --systems, --html and --fail-over")
        disturbed, *undisturbed = map(bundle.load, directories)
        return Compared(content=loss_bands.loss_bands(disturbed, undisturbed))
    if request.others or request.systems or any(name for name, _ in named):
        if limit is not None:
            raise UsageError("--fail-over compares two runs of one system", hint="give two runs, without --systems")
        loaded = ((name, bundle.load(path)) for (name, _), path in zip(named, directories, strict=True))
        columns = side_by_side(loaded)
        if request.html:
            _write_page(request.html, systems_page.render(columns))
        return Compared(content=tuple(columns), page=request.html)
    return _two(directories[0], directories[1], limit, request.html)


def _nights(request: CompareRequest, limit: float | None) -> Compared | None:
    """None where A and B are not both nights. Raises UsageError."""
    first, second = (index.night(handle, request.runs_dir) for handle in (request.before, request.after))
    if first is None or second is None:
        return None
    if request.others or request.systems or request.html or request.loss_band or limit is not None:
        raise UsageError("nights are compared two at a time, by the limits of their metrics, without other options")
    return Compared(
        content=products.part("nightly", "app.night_compare").compare(first, second), sides=((first,), (second,))
    )


def _limit(text: str | None) -> float | None:
    """``5%`` or ``0.05``. Raises UsageError."""
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


def _two(first: Path, second: Path, limit: float | None, html: Path | None) -> Compared:
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
    late = [row.what for row in compared.rows if limit is not None and row.slower_than(limit)]
    missing = [f"{what} (only in {which})" for which, what in compared.only] if limit is not None else []
    unclear = [row for row in compared.rows if limit is not None and row.is_undecided(limit)]
    return Compared(
        content=compared, sides=((first,), (second,)), limit=limit, failed=(*late, *missing),
        undecided=tuple(row.what for row in unclear), missing=len(missing), few=sum(row.change is None for row in unclear), page=html,
    )  # fmt: skip


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


def _group(handle: str, runs_dir: Path) -> tuple[Path, ...]:
    """The runs of ``8aa1,77cd``, or of a directory of runs without their twins; one run for any other handle."""
    if Path(handle).is_dir() and not (Path(handle) / bundle.TRIAL).is_file():
        runs = [entry.directory for entry in index.runs(Path(handle), nested=True) if not _is_twin(entry.directory)]
        if not runs:
            raise UsageError(f"{handle}: no runs in this directory", hint="ccbed list runs --runs-dir DIRECTORY")
        return tuple(runs)
    if "," not in handle:
        return (index.resolve(_named(handle)[1], runs_dir),)
    runs = [index.resolve(part.strip(), runs_dir) for part in handle.split(",") if part.strip()]
    if len(set(runs)) < len(runs):
        raise UsageError(f"{handle}: names a run twice", hint="a group needs independent runs")
    return tuple(runs)


def _is_twin(directory: Path) -> bool:
    return bool(mapping(bundle.load(directory).extras.get("bundle.json")).get("twin_of"))


def _groups(before: Sequence[Path], after: Sequence[Path], limit: float | None) -> Compared:
    if both := set(before) & set(after):
        raise UsageError(f"{short_path(min(both))}: is in both groups", hint="a group needs independent runs")
    for directory in (*before, *after):
        check.verify(directory)
    try:
        groups = comparison.compare_groups(*([bundle.load(path) for path in paths] for paths in (before, after)))
    except ValueError as error:
        raise UsageError(str(error), hint="a group has the runs of one trial: ccbed run TRIAL --repeat 10") from None
    if not groups.rows:
        raise UsageError("A and B have no figure in common", hint="compare runs that finished, of one kind of trial")
    failed = [row.what for row in groups.rows if limit is not None and row.worse_than(limit)]
    undecided = [row.what for row in groups.rows if limit is not None and row.is_undecided(limit)]
    sides = (tuple(before), tuple(after))
    return Compared(content=groups, sides=sides, limit=limit, failed=tuple(failed), undecided=tuple(undecided))


def _named(handle: str) -> tuple[str, str]:
    """``torchft=8c7c`` -> the name of its column, and the run; without a name the handle alone."""
    name, is_named, run = handle.partition("=")
    return (name, run) if is_named and run and not Path(handle).exists() else ("", handle)
