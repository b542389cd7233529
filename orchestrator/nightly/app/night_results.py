"""A night that was judged, an acceptance, and what follows a night."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...model import codec
from ...model.frozen import dataclass
from ...store import bundle
from ..night_judgement import NightJudgement
from ..suite import Night, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A night that was judged. ``notes``: what its judgement lacks, and what failed after it."""

    directory: Path
    night: Night
    rows: tuple[Row, ...]
    judgement: NightJudgement
    notes: tuple[str, ...]

    @property
    def page(self) -> Path:
        """Its report, which may be missing."""
        from .. import reports

        return self.directory / reports.REPORT / "index.html"

    @property
    def link(self) -> Path:
        """The night as people name it: by the link to the newest one, if it refers to this one."""
        link = self.directory.parent / bundle.LATEST_NIGHT
        return link if link.is_symlink() and link.resolve() == self.directory.resolve() else self.directory

    @property
    def document(self) -> object:
        """All of it, for programs."""
        judgement, night = self.judgement, self.night
        return {
            "night": night.name,
            "directory": str(self.directory),
            "suite": night.suite.name,
            "bed": night.bed,
            "number": night.number,
            "outcome": judgement.outcome,
            "exit": judgement.exit,
            "sentence": judgement.sentence,
            "rows": [codec.plain(row) for row in self.rows],
            "findings": [codec.plain(judged) for judged in judgement.findings],
            "notes": list(self.notes),
            "report": str(self.page) if self.page.is_file() else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """A certificate, and the file that has it as text."""

    directory: Path
    summary: Path
    certificate: dict[str, Any]

    @property
    def code(self) -> int:
        return int(self.certificate["exit"])

    @property
    def document(self) -> object:
        return {**self.certificate, "directory": str(self.directory)}
