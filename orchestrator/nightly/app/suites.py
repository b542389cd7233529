"""Read the suite of `nightly`: a built-in one or a file, with the options applied."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...app import trials
from ...app.session import Session
from ...core.spec import source_positions, written_values
from ...model.bed import BedSpec
from ...model.errors import UsageError
from ...store import paths, shipped
from .. import parse_suite
from ..suite import Suite
from .night_requests import NightRequest

_SUFFIXES = (".yml", ".yaml")


def open_suite(session: Session, name: str, bed: BedSpec | None) -> Suite:
    """Raises UsageError for a name that is neither a built-in suite nor a readable file, and with every mistake in the file."""
    path = _path(name)
    try:
        text = paths.read(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"{path}: cannot be read: {reason}", hint="ccbed list suites") from None
    suite = parse_suite.parse(
        text, name if path == Path(name) else f"{name}.yml", session.catalogue, _reader(session, path.parent), bed
    )
    return replace(suite, text=text)


def as_asked(suite: Suite, request: NightRequest) -> Suite:
    """``--only``, ``--repeat`` and ``--budget``. Raises UsageError for a cell that the suite does not have."""
    cells = suite.cells
    if request.only:
        _require_cells(suite, request.only)
        cells = tuple(cell for cell in cells if any(_matches(cell.name, pattern) for pattern in request.only))
    if request.repeat:
        cells = tuple(replace(cell, repeats=request.repeat, precision=None) for cell in cells)
    budget_s = suite.budget_s
    if request.budget:
        try:
            budget_s = written_values.seconds(request.budget)
        except ValueError as error:
            raise UsageError(f"--budget: {error} (got {request.budget})", hint="--budget 30m") from None
    return replace(suite, cells=cells, budget_s=budget_s)


def _require_cells(suite: Suite, patterns: Sequence[str]) -> None:
    names = [cell.name for cell in suite.cells]
    unknown = [pattern for pattern in patterns if not any(_matches(name, pattern) for name in names)]
    if unknown:
        known = ", ".join(names)
        raise UsageError(
            *(
                f"--only: suite {suite.name} has no cell {name}; {written_values.nearest(name, names)}"
                for name in unknown
            ),
            hint=f"its cells: {known}",
        )


def _matches(name: str, pattern: str) -> bool:
    """Return whether the pattern is the name, the name before the matrix, or a shell pattern such as gemm* that fits."""
    return pattern in (name, name.partition("[")[0]) or fnmatch.fnmatchcase(name, pattern)


def _path(name: str) -> Path:
    shipped_suites = shipped.suites()
    if name in shipped_suites:
        return shipped_suites[name]
    path = Path(name)
    if path.suffix in _SUFFIXES:
        return path
    raise UsageError(
        f"no suite {name}; {written_values.nearest(name, shipped_suites)}", hint="ccbed list suites, or give FILE.yml"
    )


def _reader(session: Session, directory: Path) -> parse_suite.TrialReader:
    """Files are relative to the suite's directory."""

    def read(name: str) -> tuple[str, source_positions.Document]:
        full = name
        if name not in session.catalogue.trials and Path(name).suffix in (*_SUFFIXES, ".py"):
            full = str((directory / name).resolve())
        return full, trials.open_source(full, (), session.catalogue).document

    return read
