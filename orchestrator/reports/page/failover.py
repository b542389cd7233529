"""A failover in detail: the nodes around it and its phases, on one time scale."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ... import views
from . import svg, timeline

BAR = 30


def draw(run: views.RunView, spans: Sequence[views.Span], failover: views.Failover) -> Markup:
    """The picture of one failover; empty where it has no phases."""
    phases = [(views.STAGES[name], max(size, 0.0)) for name, size in failover.phases]
    total = sum(size for _, size in phases)
    if not failover.milestones or total <= 0:
        return Markup("")
    zero = failover.milestones[0].t
    start, end = zero - total * 0.12, zero + max(total, failover.caught_up_s or 0.0) + total * 0.12
    names = timeline.order(spans, run.slots)
    bottom = timeline.TOP + timeline.ROW * len(names)
    parts = [
        *timeline.shade([timeline.Band(start=zero, end=zero + total, text="")], start, end, bottom + 8),
        *timeline.rows(names, spans, start, end),
        *timeline.strikes(names, timeline.marks(run), start, end),
        *_bar(phases, zero, start, end, bottom + 12),
        *_caught(failover, zero, start, end, bottom),
        *timeline.axis(start, end, bottom + 96, 1000.0, "ms", zero),
    ]
    title = f"Failover {failover.index + 1}, {total * 1000:.0f} ms"
    return svg.picture(f"failover{failover.index}", bottom + 130, title, describe(phases), *parts)


def describe(phases: Sequence[tuple[str, float]]) -> str:
    return "Phases in order: " + ", ".join(f"{name} {milliseconds(size)}" for name, size in phases) + "."


def milliseconds(size: float) -> str:
    """Whole milliseconds from 10 up, else one decimal."""
    return f"{size * 1000:,.0f} ms" if size >= 0.00995 else f"{size * 1000:.1f} ms"


def _bar(phases: Sequence[tuple[str, float]], zero: float, start: float, end: float, y: float) -> list[Markup]:
    offset, factor = svg.scale(start, end)
    labels = [f"{name} {milliseconds(size)}" for name, size in phases]
    edges = [zero + sum(size for _, size in phases[:i]) for i in range(len(phases))]
    centres = [offset + factor * (edge + size / 2) for edge, (_, size) in zip(edges, phases, strict=True)]
    positions = svg.spread(centres, [svg.width(label) for label in labels], svg.LEFT - 80, svg.WIDTH - svg.RIGHT, 12)
    parts = [svg.text(svg.LEFT - 12, y + BAR / 2 + 4, "phases", "name", "end")]
    for i, (edge, (_, size)) in enumerate(zip(edges, phases, strict=True)):
        top, low = y + BAR, y + BAR + 20
        parts += [
            svg.element(
                "rect",
                svg.element("title", labels[i]),
                x=offset + factor * edge,
                y=y,
                width=max(factor * size, 1.0),
                height=BAR,
                class_=f"phase p{i % 7}",
            ),
            svg.element(
                "polyline",
                points=f"{centres[i]:.1f},{top:.1f} {centres[i]:.1f},{top + 8:.1f} {positions[i]:.1f},{low:.1f}",
                class_="leader",
            ),
            svg.text(positions[i], low + 14, labels[i], "label", "middle"),
        ]
    return parts


def _caught(failover: views.Failover, zero: float, start: float, end: float, bottom: float) -> list[Markup]:
    if failover.caught_up_s is None:
        return []
    offset, factor = svg.scale(start, end)
    x = offset + factor * (zero + failover.caught_up_s)
    anchor = "end" if x > svg.WIDTH - 160 else "start"
    label = svg.text(x + (-6 if anchor == "end" else 6), timeline.TOP - 14, "steps redone", "muted", anchor)
    return [svg.line(x, timeline.TOP - 8, x, bottom + 8, "caught"), label]
