"""The page of a trial that ran several times: the distribution of the time to recover, of its phases, and of other figures."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from ...core.verdict import sentence
from ...model.errors import CcbedError
from ...model.run import Run
from ...reports.page import facts, svg
from ...store import bundle
from ...views import training
from ...views.collectives import Interval, statistics
from ...views.comparison import run_figures
from . import page
from .night_report import quantity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Outcomes of runs, from the worst to the best.
ORDER = ("interrupted", "broken", "fail", "unknown", "pass")
TTR = "time to recover"
WIDTH, HEIGHT, MARGIN = 420.0, 34.0, 8.0
#: Values from which quartiles have a meaning.
LEAST_BOX = 5


class Figure(NamedTuple):
    """``is_phase``: part of a time to recover, drawn on its scale."""

    value: float
    unit: str
    is_phase: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One run. ``address``: of its page, empty without one."""

    run: str
    trial: str
    outcome: str
    sentence: str
    duration_s: float
    figures: Mapping[str, Figure]
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A figure over the runs that have it, ``values`` in the order of the runs. ``of``: all runs.

    ``median``: with bounds that enclose the median of such runs with a probability of 95 %; infinite: too few runs.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    runs: tuple[str, ...]
    of: int
    median: Interval
    is_phase: bool = False

    @property
    def has_bounds(self) -> bool:
        return math.isfinite(self.median.low)


def write(folder: Path, directories: Sequence[Path], command: str = "") -> tuple[Path, tuple[Repeat, ...]]:
    """Write ``index.html`` into ``folder``, which exists, over the bundles in ``directories``. Raises OSError."""
    repeats = tuple(_read_bundle(directory, folder) for directory in directories)
    names = dict.fromkeys(repeat.trial for repeat in repeats if repeat.trial)
    file = folder / "index.html"
    file.write_bytes(render(", ".join(names) or "no trial", repeats, command))
    return file, repeats


def _read_bundle(directory: Path, folder: Path) -> Repeat:
    """A bundle that cannot be read is a row without figures, with the reason."""
    page_file = directory / "report" / "index.html"
    address = quote(os.path.relpath(page_file, folder)) if page_file.is_file() else ""
    try:
        return read(bundle.load(directory), address)
    except (CcbedError, OSError) as error:
        return Repeat(
            run=directory.name,
            trial="",
            outcome="broken",
            sentence=str(error),
            duration_s=0.0,
            figures={},
            address=address,
        )


def read(run: Run, address: str = "") -> Repeat:
    """The figures of a run. A run that did not finish has none: a time to recover of it would be of something else."""
    view = training.view(run)
    return Repeat(
        run=facts.name(run), trial=run.trial.name, outcome=sentence.overall(run.verdicts, view.outcome, view.kind),
        sentence=sentence.sentence(run.trial, view, run.verdicts), duration_s=view.duration_s, figures=_figures(run), address=address,
    )  # fmt: skip


def _figures(run: Run) -> dict[str, Figure]:
    view = training.view(run)
    figures: dict[str, Figure] = {}
    if view.outcome != "finished":
        return figures
    for number, failover in enumerate(view.failovers, 1):
        if failover.ttr_s is not None:
            prefix = f"failover {number}: " if len(view.failovers) > 1 else ""
            figures[f"{prefix}{TTR}"] = Figure(failover.ttr_s, "s")
            figures |= {f"{prefix}{name}": Figure(seconds, "s", is_phase=True) for name, seconds in failover.phases}
    others = {name: figure for name, figure in run_figures(run).items() if not name.endswith(": TTR")}
    return figures | {
        name: Figure(figure.value, figure.unit) for name, figure in others.items() if figure.value is not None
    }


def distributions(repeats: Sequence[Repeat]) -> tuple[Distribution, ...]:
    """In the order in which the runs have the figures."""
    import numpy as np

    names = list(dict.fromkeys(name for repeat in repeats for name in repeat.figures))
    result = []
    for name in names:
        holders = [repeat for repeat in repeats if name in repeat.figures]
        figures = [repeat.figures[name] for repeat in holders]
        values = tuple(figure.value for figure in figures)
        result.append(Distribution(
            name=name, unit=figures[0].unit, values=values, runs=tuple(repeat.run for repeat in holders), of=len(repeats),
            median=statistics.median(np.array(values, dtype=np.float64)), is_phase=figures[0].is_phase,
        ))  # fmt: skip
    return tuple(result)


def document(repeats: Sequence[Repeat]) -> dict[str, Any]:
    """The distributions for ``--json``; bounds that are not known are null."""
    return {
        "repeats": len(repeats),
        "outcomes": dict(Counter(repeat.outcome for repeat in repeats)),
        "figures": [
            {
                "name": figure.name, "unit": figure.unit, "n": len(figure.values), "median": figure.median.value,
                "low": figure.median.low if figure.has_bounds else None, "high": figure.median.high if figure.has_bounds else None,
                "min": min(figure.values), "max": max(figure.values), "values": list(figure.values),
            }
            for figure in distributions(repeats)
        ],
    }  # fmt: skip


def render(trial: str, repeats: Sequence[Repeat], command: str = "") -> bytes:
    """``index.html``, complete in itself."""
    shown = distributions(repeats)
    outcomes = Counter(repeat.outcome for repeat in repeats)
    scale = max((max(figure.values) for figure in shown if _is_recovery(figure)), default=0.0)
    figures = [(figure, _cells(figure), draw(figure, f"figure{index}", scale)) for index, figure in enumerate(shown)]
    return page.environment().get_template("repeats.html.j2").render(
        outcome=next((name for name in ORDER if name in outcomes), "unknown"), title=f"{trial}, {sentence.count(len(repeats), 'run')}",
        sentence=headline(shown, outcomes), outcomes=outcomes.most_common(), figures=figures, repeats=repeats, command=command,
        ttr=next((figure.name for figure in shown if figure.name.endswith(TTR)), ""),
    ).encode(errors="replace")  # fmt: skip


def headline(shown: Sequence[Distribution], outcomes: Mapping[str, int]) -> str:
    """For example: back in 0.52 s (median of 20, 0.48 s to 0.55 s); 20 pass."""
    counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
    recovery = next((figure for figure in shown if figure.name.endswith(TTR)), None)
    if recovery is None:
        return counts or "no run"
    value = quantity(recovery.median.value, recovery.unit)
    bounds = f", {_bounds(recovery)}" if recovery.has_bounds else ""
    return f"Back in {value} (median of {len(recovery.values)} runs{bounds}); {counts}"


def _bounds(figure: Distribution) -> str:
    return f"{quantity(figure.median.low, figure.unit)} to {quantity(figure.median.high, figure.unit)}"


def _cells(figure: Distribution) -> tuple[str, ...]:
    count = f"{len(figure.values)}" if len(figure.values) == figure.of else f"{len(figure.values)} of {figure.of}"
    bounds = _bounds(figure) if figure.has_bounds else "too few runs"
    ends = (quantity(end(figure.values), figure.unit) for end in (min, max))
    return count, quantity(figure.median.value, figure.unit), bounds, *ends


def _is_recovery(figure: Distribution) -> bool:
    return figure.is_phase or figure.name.endswith(TTR)


def draw(figure: Distribution, name: str, recovery_s: float) -> Markup:
    """A dot for each run, a box from the first to the third quartile, a line at the median.

    ``recovery_s``: the longest time to recover. It and its phases have one scale from 0; other figures their own.
    """
    import numpy as np

    values = np.array(figure.values, dtype=np.float64)
    low, high = (0.0, recovery_s) if _is_recovery(figure) else (float(values.min()), float(values.max()))
    offset, factor = svg.scale(low, high, MARGIN, WIDTH - MARGIN) if high > low else (WIDTH / 2, 0.0)
    middle = HEIGHT / 2
    shapes = [svg.line(MARGIN, middle, WIDTH - MARGIN, middle, "rail"), *_box(values, offset, factor)]
    at = offset + factor * figure.median.value
    shapes.append(svg.line(at, 4.0, at, HEIGHT - 4, "median"))
    for index, value in enumerate(figure.values):
        text = f"{figure.runs[index]}: {quantity(value, figure.unit)}"
        height = middle + (index % 5 - 2) * 3.5
        shapes.append(svg.element("circle", svg.element("title", text), cx=offset + factor * value, cy=height, r=2.6))
    return svg.element(
        "svg", svg.element("title", f"{figure.name} of {len(figure.values)} runs", id=f"{name}-t"), *shapes,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", class_="dots", role="img", aria_labelledby=f"{name}-t",
    )  # fmt: skip


def _box(values: NDArray[np.float64], offset: float, factor: float) -> list[Markup]:
    """Empty with too few values."""
    import numpy as np

    if values.size < LEAST_BOX:
        return []
    first, third = (offset + factor * float(quartile) for quartile in np.percentile(values, (25, 75)))
    return [svg.element("rect", x=first, y=6, width=max(third - first, 0.5), height=HEIGHT - 12, class_="box")]
