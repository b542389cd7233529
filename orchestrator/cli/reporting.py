"""Every report of the catalogue, rendered and written beside the evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..model.run import Run
from ..model.verdict import Verdict
from ..store import bundle
from .session import Session


def write(session: Session, run: Run, verdicts: tuple[Verdict, ...]) -> tuple[str, ...]:
    """Replace the verdicts and the report of a bundle; the names of the report's files.

    A report that breaks leaves its place empty and is warned about: it must not take the verdicts with it.
    """
    judged = replace(run, verdicts=verdicts)
    rendered: dict[str, bytes] = {}
    for name, plugin in session.catalogue.reports.items():
        module: Any = plugin.module
        try:
            rendered.update(module.render(judged))
        except Exception as error:
            session.terminal.warn(f"report {name} failed: {type(error).__name__}: {error}")
    bundle.write_derived(Path(run.directory), verdicts, rendered)
    return tuple(rendered)
