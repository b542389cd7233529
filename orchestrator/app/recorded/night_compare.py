"""Compare two nights: each figure of the later one beside the same figure of the other, by the judge of nights."""

from __future__ import annotations

from pathlib import Path

from ...model import codec
from ...model.errors import UsageError
from ...model.frozen import dataclass
from ...nightly import classes, night_files
from ...nightly.judging import figures
from ...nightly.judging import night as judging
from ...nightly.night_judgement import NightJudgement
from ...nightly.suite import Night
from ..requests import BASELINES


@dataclass(frozen=True, slots=True, kw_only=True)
class NightsCompared:
    """``night``: the second one, whose figures are judged; ``before``: the name of the other."""

    before: str
    night: Night
    judgement: NightJudgement

    @property
    def document(self) -> dict[str, object]:
        return {"a": self.before, "b": self.night.name, **codec.plain(self.judgement)}


def resolve(handle: str, runs: Path) -> Path | None:
    """The directory of a night: its path, its name, or the end of its name; None where it names none."""
    for path in (Path(handle), runs / handle):
        if night_files.is_night(path):
            return path.resolve()
    matches = [path for path in night_files.nights(runs) if handle and path.name.rpartition("-")[2].startswith(handle)]
    return matches[0].resolve() if len(matches) == 1 else None


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
