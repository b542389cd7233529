"""Holds what nights add to the verbs of the test-bed: repeats of a run, probes of spares, the page over all runs, what `prune` keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..model.errors import InfrastructureError, UsageError
from ..model.frozen import dataclass

if TYPE_CHECKING:
    from ..app.nights import Nights
    from ..app.requests import RunRequest
    from ..app.run import CheckedTrial
    from ..app.trials import Source
    from ..cli.inputs.terminal_session import Session
    from ..model.plan import Placement
    from . import extensions  # noqa: PLW0406
    from .render.night_lines import NightLines

    _offered: Nights = extensions


def repeat(session: Session, request: RunRequest, source: Source) -> int:
    """Run a trial again and again, and print how the runs ended. Returns their exit code."""
    from .app import repeats
    from .render import repeats_view

    return repeats_view.show(session.terminal, repeats.run(session, request, source), as_json=session.is_json)


def resumed_words(directory: Path) -> Sequence[str]:
    """The words after ``ccbed`` that resume repeated runs. Raises UsageError for a night."""
    from ..app.places import short_path
    from .app import repeats

    words = repeats.resumed_command(directory)
    if not words:
        hint = f"ccbed nightly --resume {short_path(directory)}"
        raise UsageError(f"{short_path(directory)}: a night, not a run", hint=hint)
    return () if repeats.has_ended(directory) else words


def show_ended(session: Session, directory: Path) -> int:
    """Print how repeated runs ended. Returns their exit code."""
    from .render import repeats_view

    return repeats_view.show_ended(session.terminal, directory, as_json=session.is_json)


def observer(session: Session) -> NightLines:
    """Return what prints a night."""
    from .render import night_lines

    return night_lines.NightLines(terminal=session.terminal, quiet=session.is_json)


def place(
    session: Session, request: RunRequest, checked: CheckedTrial, placement: Placement, limit_s: float
) -> Placement:
    """The placement without the spares that are too slow. Raises InfrastructureError if too few are fit."""
    from .app import spare_probe

    return spare_probe.place(session, request, checked, placement, limit_s)


def kept_runs(runs_dir: Path, baselines: Path, *, recorded: bool) -> dict[str, str]:
    """Run or night -> why it is kept. ``recorded``: those that a night is compared with may go as well."""
    from . import retention

    return retention.reasons(runs_dir, baselines, recorded=recorded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page over many runs: how many it has. ``notes``: of the index."""

    file: Path
    runs: int
    nights: int
    notes: tuple[str, ...]


def show_page(session: Session, runs_dir: Path) -> None:
    """Write one page over many runs, and print its path."""
    from ..app.places import short_path
    from ..core.verdict.sentence import count
    from .render import trend_view

    page = write_page(session, runs_dir)
    if session.is_json:
        session.terminal.json(page)
        return
    trend_view.warn(session.terminal, page.notes)
    counts = f"{count(page.runs, 'run')}, {count(page.nights, 'night')}"
    session.terminal.line(f"page      {short_path(page.file)}     {counts}")


def write_page(session: Session, runs_dir: Path) -> Page:
    """Write one page over many runs. Raises UsageError where there is none, InfrastructureError where it cannot be written."""
    from ..app.places import short_path
    from ..store import paths
    from . import index
    from .reports import runs_page

    with index.open(runs_dir, state=session.state) as opened:
        opened.refresh()
        listed, _ = opened.runs()
        nights, notes = opened.nights(), opened.notes
    if not listed and not nights:
        raise UsageError(f"{short_path(runs_dir)}: no runs in this directory", hint="ccbed run dp-ring")
    file = runs_dir / runs_page.FILE
    try:
        paths.write(file, runs_page.render(runs_dir.resolve(), listed, nights, notes))
    except OSError as error:
        raise InfrastructureError(f"{file}: cannot be written: {error.strerror}") from error
    return Page(file=file, runs=len(listed), nights=len(nights), notes=tuple(notes))
