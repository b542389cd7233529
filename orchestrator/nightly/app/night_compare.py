"""Compare two nights: each figure of the later one beside the same figure of the other, by the judge of nights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...app.recorded.compare import Nights
from ...app.requests import BASELINES
from ...model import codec
from ...model.errors import UsageError
from ...model.frozen import dataclass
from .. import classes, night_files
from ..judging import figures
from ..judging import night as judging
from ..night_judgement import NightJudgement
from ..suite import Night


@dataclass(frozen=True, slots=True, kw_only=True)
class NightsCompared(Nights):
    """``night``: the second one, whose figures are judged; ``before``: the name of the other."""

    before: str
    night: Night
    judgement: NightJudgement

    @property
    def code(self) -> int:
        return self.judgement.exit

    def show(self, terminal: Any) -> None:
        from ..render import night_lines

        terminal.line(f"A  {self.before}")
        terminal.line(f"B  {self.night.name}")
        night_lines.show_judgement(terminal, self.night, self.judgement)

    @property
    def document(self) -> dict[str, object]:
        return {"a": self.before, "b": self.night.name, **codec.plain(self.judgement)}


def compare(before: Path, after: Path) -> NightsCompared:
    """Raises UsageError for nights without a figure in common, TornBundleError for one that is damaged."""
    earlier, later = night_files.read_night(before), night_files.read_night(after)
    runs, notes = judging.read_runs(before, night_files.read_rows(before), earlier)
    number = later.number - 1 if later.number else 1
    date = earlier.started if later.number or earlier.started < later.started else ""
    past = [record for series in figures.collect(runs).values() for record in series.records(number, date)]
    judgement = judging.judge(after, past, known=classes.read(Path(BASELINES)))
    if not any(judged.compared and judged.compared.nights for judged in judgement.cells):
        raise UsageError(
            f"{before.name} and {after.name} have no figure in common", *notes,
            hint="compare nights of one bed and one suite, on the same hardware",
        )  # fmt: skip
    return NightsCompared(before=earlier.name, night=later, judgement=judgement)
