"""The loss of the run against its twin, with the steps that were lost and done again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from ...model.frozen import dataclass
from ...model.run import StepRecord, Twin
from . import svg

TOP, HEIGHT = 24, 240
#: More points than this are thinned; a page stays small and a line is no finer than a pixel.
POINTS = 1000

Curve = Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """``epochs``: epoch -> step -> mean loss over ranks; ``kept``: what the last epoch to execute a step found."""

    epochs: Mapping[int, Curve]
    twin: Curve

    @property
    def kept(self) -> Curve:
        losses: dict[int, float] = {}
        for epoch in sorted(self.epochs):
            first = min(self.epochs[epoch])
            losses = {step: loss for step, loss in losses.items() if step < first} | dict(self.epochs[epoch])
        return losses


def collect(steps: Iterable[StepRecord], twin: Twin | None) -> Losses:
    """Mean over ranks of each step's loss; records that are not numbers are left out."""
    losses: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in steps:
        for loss in _loss(record.loss):
            losses[record.epoch][record.step].append(loss)
    epochs = {epoch: {step: _mean(losses[epoch][step]) for step in sorted(losses[epoch])} for epoch in sorted(losses)}
    return Losses(epochs=epochs, twin=_twin(twin) if twin else {})


def equal(losses: Losses) -> tuple[int, int]:
    """(kept steps whose mean loss is that of the twin, kept steps that the twin has too)."""
    both = [step for step in losses.kept if step in losses.twin]
    return sum(losses.kept[step] == losses.twin[step] for step in both), len(both)


def draw(losses: Losses, resumes: Sequence[tuple[int, int]] = ()) -> Markup:
    """The picture; ``resumes``: (step lost, step resumed from). Empty without at least two finite losses."""
    values = [
        loss for curve in (*losses.epochs.values(), losses.twin) for loss in curve.values() if math.isfinite(loss)
    ]
    steps = [step for curve in (*losses.epochs.values(), losses.twin) for step in curve]
    if not losses.epochs or len(values) < 2 or min(steps) == max(steps):
        return Markup("")
    frame = _Frame.fit(min(steps), max(steps), min(values), max(values))
    parts = [
        *_grid(frame),
        *_lost(frame, resumes),
        *([svg.element("path", d=frame.path(losses.twin), class_="twin")] if losses.twin else []),
        *_lines(frame, losses),
        *_legend(losses),
    ]
    return svg.picture("loss", TOP + HEIGHT + 48, "Loss by step", describe(losses), *parts)


def describe(losses: Losses) -> str:
    curve = losses.kept
    first, last = min(curve), max(curve)
    same, both = equal(losses)
    twin = f" Equal to the reference run at {same} of {both} steps." if both else ""
    return f"{len(curve)} steps, loss {curve[first]:.4f} at the first and {curve[last]:.4f} at step {last}.{twin}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    first: int
    last: int
    low: float
    high: float

    @classmethod
    def fit(cls, first: int, last: int, low: float, high: float) -> _Frame:
        margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        floor = 0.0 if 0 <= low < (high - low) * 0.5 else low - margin
        return cls(first=first, last=last, low=floor, high=high + margin)

    def x(self, step: float) -> float:
        offset, factor = svg.scale(self.first, self.last)
        return offset + factor * step

    def inside(self, step: float) -> float:
        """``x``, kept within the frame."""
        return self.x(min(max(step, self.first), self.last))

    def y(self, loss: float) -> float:
        offset, factor = svg.scale(self.low, self.high, TOP + HEIGHT, TOP)
        return offset + factor * loss

    def path(self, curve: Curve) -> str:
        """Line segments; a loss that is not finite breaks the line."""
        parts, pen = [], "M"
        for step, loss in thin(curve).items():
            if math.isfinite(loss):
                parts.append(f"{pen}{self.x(step):.1f} {self.y(loss):.2f}")
            pen = "L" if math.isfinite(loss) else "M"
        return "".join(parts)


def thin(curve: Curve) -> Curve:
    """Every n-th point and the last, at most about ``POINTS``; losses that are not finite stay."""
    stride = max(1, math.ceil(len(curve) / POINTS))
    last = len(curve) - 1
    is_shown = (i % stride == 0 or i == last or not math.isfinite(loss) for i, loss in enumerate(curve.values()))
    return {step: loss for (step, loss), keep in zip(curve.items(), is_shown, strict=True) if keep}


def _grid(frame: _Frame) -> list[Markup]:
    right, bottom = svg.WIDTH - svg.RIGHT, TOP + HEIGHT
    parts = []
    for tick in svg.ticks(frame.low, frame.high, 5):
        y = frame.y(tick)
        parts += [svg.line(svg.LEFT, y, right, y, "grid"), svg.text(svg.LEFT - 10, y + 4, f"{tick:g}", "tick", "end")]
    for tick in svg.ticks(frame.first, frame.last, 10):
        if tick == int(tick):
            parts.append(svg.text(frame.x(tick), bottom + 20, f"{tick:g}", "tick", "middle"))
    label = svg.text((svg.LEFT + right) / 2, bottom + 40, "step", "muted", "middle")
    return [*parts, svg.line(svg.LEFT, bottom, right, bottom, "axis"), label]


def _lost(frame: _Frame, resumes: Sequence[tuple[int, int]]) -> list[Markup]:
    parts = [part for lost, resumed in resumes for part in _stretch(frame, lost, resumed)]
    if len(resumes) == 1:
        (lost, resumed), *_ = resumes
        start = svg.text(frame.inside(resumed) - 6, TOP + 12, f"resumed after {resumed}", "muted", "end")
        return [*parts, start, svg.text(frame.inside(lost) + 6, TOP + 12, f"✕ lost in step {lost}", "fault")]
    ordered = sorted(lost for lost, _ in resumes)
    labels = [f"✕ {lost}" for lost in ordered]
    sizes = [svg.width(label) for label in labels]
    positions = svg.spread([frame.inside(lost) + 16 for lost in ordered], sizes, svg.LEFT, svg.WIDTH - svg.RIGHT, 4)
    named = zip(positions, labels, strict=True)
    return [*parts, *(svg.text(position, TOP + 12, label, "fault", "middle") for position, label in named)]


def _stretch(frame: _Frame, lost: int, resumed: int) -> list[Markup]:
    """Draw the stretch from the checkpoint to the step in which training broke off."""
    x1, x2 = frame.inside(resumed), frame.inside(lost)
    tip = svg.element("title", f"lost in step {lost}, resumed after step {resumed}")
    return [
        svg.element("rect", tip, x=x1, y=TOP, width=max(x2 - x1, 1.0), height=HEIGHT, class_="band"),
        svg.line(x2, TOP, x2, TOP + HEIGHT, "strike"),
        svg.line(x1, TOP, x1, TOP + HEIGHT, "caught"),
    ]


def _lines(frame: _Frame, losses: Losses) -> list[Markup]:
    kept_losses = losses.kept
    redone = [
        {
            step: loss
            for step, loss in curve.items()
            if any(later > epoch and min(other) <= step for later, other in losses.epochs.items())
        }
        for epoch, curve in losses.epochs.items()
    ]
    dots = [
        svg.element("circle", cx=frame.x(step), cy=frame.y(loss), r=3.5, class_="redone")
        for curve in redone
        for step, loss in thin(curve).items()
        if math.isfinite(loss)
    ]
    return [svg.element("path", d=frame.path(kept_losses), class_="loss"), *dots]


def _legend(losses: Losses) -> list[Markup]:
    entries = [("loss", "this run")] + ([("twin", "reference run, never interrupted")] if losses.twin else [])
    parts, x = [], float(svg.LEFT)
    for class_, label in entries:
        parts += [svg.line(x, 10, x + 26, 10, class_), svg.text(x + 32, 14, label, "label")]
        x += 48 + svg.width(label)
    if len(losses.epochs) > 1:
        parts += [
            svg.element("circle", cx=x + 6, cy=10, r=3.5, class_="redone"),
            svg.text(x + 16, 14, "done before the loss, and again after it", "label"),
        ]
    return parts


def _loss(value: str) -> list[float]:
    try:
        return [float.fromhex(value)]
    except (TypeError, ValueError, OverflowError):
        return []


def _mean(values: Sequence[float]) -> float:
    """The mean in the order of the ranks' records, summed exactly, so that the order does not matter."""
    return math.fsum(values) / len(values) if all(math.isfinite(value) for value in values) else math.nan


def _twin(twin: Twin) -> Curve:
    losses: dict[int, list[float]] = defaultdict(list)
    for curve in twin.losses.values():
        for step, value in curve.items():
            losses[int(step)] += _loss(value)
    return {step: _mean(losses[step]) for step in sorted(losses) if losses[step]}
