"""Two runs side by side as a page: each figure with the interval of its change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

import jinja2
from markupsafe import Markup

from ...model.frozen import dataclass
from ...model.ratio import Outcome
from ...model.run import Run
from ...views import comparison, quantities
from . import page_facts, svg

#: A badge of a verdict has the colour of an outcome.
COLOURS: Mapping[Outcome, str] = {"slower": "fail", "faster": "pass", "equal": "skipped", "not resolved": "unknown"}
HEAD = ("A ms", "B ms", "change", "95 % for all", "n")
WIDTH, HEIGHT = 260.0, 22.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A run of the comparison. ``address``: of its page."""

    name: str
    trial: str
    bed: str
    started: str
    address: str = ""


def side(run: Run, address: str = "") -> Side:
    return Side(
        name=page_facts.name(run),
        trial=run.trial.name,
        bed=page_facts.bed(run),
        started=page_facts.started(run),
        address=address,
    )


def render(first: Side, second: Side, compared: comparison.Comparison) -> bytes:
    """A page that is complete in itself."""
    loader = jinja2.PackageLoader("orchestrator.reports", "page")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    reach = _reach(compared)
    return environment.get_template("compared.html.j2").render(
        sides=(("A", first), ("B", second)), sentence=sentence(compared), what=what(compared), head=HEAD, colours=COLOURS,
        rows=[(row, figures(row), draw(row, reach, f"change{index}")) for index, row in enumerate(compared.rows)],
        reach=f"{reach:.0%}", notes=list(notes(compared)), differences=compared.differences,
    ).encode(errors="replace")  # fmt: skip


def what(compared: comparison.Comparison) -> str:
    return f"p50 over {comparison.OVER.get(compared.over, compared.over)}" if compared.over else "p50 of"


def sentence(compared: comparison.Comparison) -> str:
    counts = Counter(row.verdict for row in compared.rows)
    parts = [f"{verdict} in {counts[verdict]}" for verdict in COLOURS if counts[verdict]]
    return f"B beside A: {', '.join(parts)} of {counts.total()} figure{'s' * (counts.total() != 1)}"


def figures(row: comparison.Compared) -> tuple[str, ...]:
    interval = f"{row.change.low:+.1%} to {row.change.high:+.1%}" if row.change else "too few samples"
    change, count = f"{row.relative:+.1%}" if math.isfinite(row.relative) else "-", f"{row.counts[0]}, {row.counts[1]}"
    return quantities.milliseconds(row.before), quantities.milliseconds(row.after), change, interval, count


def notes(compared: comparison.Comparison) -> Iterator[tuple[str, str]]:
    """Yield what must be known to read the table: label and text."""
    floor = f"{comparison.FLOOR:.0%}"
    yield (
        "note",
        f"one run each: the spread between runs is not known, so nothing is claimed below {floor}; {comparison.REPEAT}",
    )
    if compared.losses:
        same, both, differs = compared.losses
        text = "equal" if differs is None else f"different from step {differs} on; equal"
        yield "loss", f"{text} at {same} of {both} steps"
    yield from ((f"only {which}", name) for which, name in compared.only)


def draw(row: comparison.Compared, reach: float, name: str) -> Markup:
    """The interval on a scale from -``reach`` to ``reach``, with a band up to the floor; empty without an interval."""
    if row.change is None:
        return Markup()
    offset, factor = svg.scale(-reach, reach, 4.0, WIDTH - 4.0)

    def x(value: float) -> float:
        return offset + factor * max(-reach, min(reach, value))

    left, right = x(-comparison.FLOOR), x(comparison.FLOOR)
    band = svg.element("rect", x=left, y=3, width=right - left, height=HEIGHT - 6, class_="noise")
    middle = HEIGHT / 2
    return svg.element(
        "svg", svg.element("title", f"{row.what}: {row.change.low:+.1%} to {row.change.high:+.1%}", id=f"{name}-t"), band,
        svg.line(x(0.0), 1.0, x(0.0), HEIGHT - 1, "axis"), svg.line(x(row.change.low), middle, x(row.change.high), middle, "interval"),
        svg.element("circle", cx=x(row.change.value), cy=middle, r=3.6, class_=COLOURS[row.verdict]),
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", class_="change", role="img",
        aria_labelledby=f"{name}-t",
    )  # fmt: skip


def _reach(compared: comparison.Comparison) -> float:
    """The widest end of an interval or of the floor; wider ones than 100 % are cut."""
    ends = [abs(end) for row in compared.rows if row.change for end in (row.change.low, row.change.high)]
    return min(1.0, max([comparison.FLOOR * 1.5, *(end for end in ends if math.isfinite(end))]))
