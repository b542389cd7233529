"""The time line: a row per node, what it did when, with faults and failovers marked; and a failover in detail, on the same scale."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from ... import views
from ...model.frozen import dataclass
from . import svg

ROW = 26
TOP = 34
#: Height of the bar of a failover's phases.
BAR = 30
#: kind of a span -> what the legend says
KINDS = {
    "run": "training",
    "start": "starting",
    "held": "held or waiting",
    "paused": "paused",
    "dead": "gone",
    "idle": "ready, idle",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment on a node's row (or on all rows, ``node`` None)."""

    t: float
    text: str
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A stretch of time across all rows."""

    start: float
    end: float
    text: str


def order(spans: Iterable[views.Span], slots: Sequence[str] = ()) -> tuple[str, ...]:
    """The rows: nodes in natural order, those of ``slots`` included."""
    names = {span.node for span in spans} | set(slots)
    return tuple(sorted(names, key=_natural))


def window(run: views.RunView, spans: Sequence[views.Span]) -> tuple[float, float]:
    """Return the time from the start of the run to the end of the last thing drawn, in seconds."""
    moments = [t for fault in run.faults for t in fault.stages.values() if t is not None]
    ends = [run.duration_s, *(span.end for span in spans), *moments]
    return 0.0, max(ends) or 1.0


def marks(run: views.RunView) -> tuple[Mark, ...]:
    """Return where each fault struck; of one that a failover is due to, where that is counted from."""
    since = {failover.fault: failover.milestones[0].t for failover in run.failovers if failover.milestones}
    struck = ((fault, since.get(fault.id, fault.began)) for fault in run.faults)
    return tuple(Mark(t=t, text=fault.fault, node=fault.node) for fault, t in struck if t is not None)


def bands(run: views.RunView) -> tuple[Band, ...]:
    """Return the bands from each fault, or its detection, to the first step of every rank."""
    ended = (failover for failover in run.failovers if failover.ttr_s is not None and failover.milestones)
    return tuple(
        Band(
            start=failover.milestones[0].t,
            end=failover.milestones[0].t + (failover.ttr_s or 0.0),
            text=f"failover {failover.index + 1}: {(failover.ttr_s or 0.0) * 1000:,.0f} ms",
        )
        for failover in ended
    )


def draw(run: views.RunView, spans: Sequence[views.Span]) -> Markup:
    """The whole run as a picture; empty where no node did anything."""
    names = order(spans, run.slots)
    if not names:
        return Markup("")
    start, end = window(run, spans)
    bottom = TOP + ROW * len(names)
    parts = [
        *shade(bands(run), start, end, bottom),
        *rows(names, spans, start, end),
        *strikes(names, marks(run), start, end),
        *axis(start, end, bottom, 1.0, "s"),
    ]
    return svg.picture("timeline", bottom + 44, "Time line per node", describe(run, names, end), *parts)


def describe(run: views.RunView, names: Sequence[str], end: float) -> str:
    struck = "; ".join(f"{mark.text} on {mark.node or 'all'} at {mark.t:.3f} s" for mark in marks(run))
    return f"{len(names)} nodes over {end:.3f} s. Faults: {struck or 'none'}."


def rows(names: Sequence[str], spans: Iterable[views.Span], start: float, end: float) -> list[Markup]:
    """Node names and spans, cut to the window."""
    heads = [svg.text(svg.LEFT - 12, TOP + ROW * i + 17, name, "name", "end") for i, name in enumerate(names)]
    rails = [_rail(TOP + ROW * i + 13) for i in range(len(names))]
    top = {name: TOP + ROW * i for i, name in enumerate(names)}
    drawn = (span for span in spans if span.end > start and span.start < end and span.node in top)
    return heads + rails + [_span(span, top[span.node], start, end) for span in drawn]


def strikes(names: Sequence[str], struck: Sequence[Mark], start: float, end: float) -> list[Markup]:
    """A cross and a line where a fault struck, with its name above the rows."""
    offset, factor = svg.scale(start, end)
    parts: list[Markup] = []
    inside = sorted((mark for mark in struck if start <= mark.t <= end), key=lambda mark: mark.t)
    centres = [offset + factor * mark.t for mark in inside]
    labels = [f"✕ {mark.text}" for mark in inside]
    positions = svg.spread(centres, [svg.width(label) for label in labels], svg.LEFT, svg.WIDTH - svg.RIGHT)
    for mark, x, label, position in zip(inside, centres, labels, positions, strict=True):
        row = names.index(mark.node) if mark.node in names else len(names) - 1
        y = TOP + ROW * row + 13
        parts += [
            svg.line(x, TOP - 8, x, y, "strike"),
            _cross(x, y),
            svg.text(position, TOP - 14, label, "fault", "middle"),
        ]
    return parts


def shade(across: Iterable[Band], start: float, end: float, bottom: float) -> list[Markup]:
    """Failovers as shaded stretches behind the rows."""
    offset, factor = svg.scale(start, end)
    parts = []
    for band in across:
        x, size = offset + factor * band.start, max(factor * (band.end - band.start), 2)
        title = svg.element("title", band.text)
        parts.append(svg.element("rect", title, x=x, y=TOP - 6, width=size, height=bottom - TOP + 6, class_="band"))
    return parts


def axis(start: float, end: float, y: float, unit: float, name: str, zero: float = 0.0) -> list[Markup]:
    """Ticks below the rows; values are ``(t - zero) * unit``."""
    offset, factor = svg.scale(start, end)
    parts = [svg.line(svg.LEFT, y + 4, svg.WIDTH - svg.RIGHT, y + 4, "axis")]
    for tick in svg.ticks((start - zero) * unit, (end - zero) * unit):
        x = offset + factor * (tick / unit + zero)
        label = f"{tick:g} {name}"
        parts += [svg.line(x, y + 4, x, y + 9, "axis"), svg.text(x, y + 23, label, "tick", "middle")]
    return parts


def _rail(y: float) -> Markup:
    return svg.line(svg.LEFT, y, svg.WIDTH - svg.RIGHT, y, "rail")


def _span(span: views.Span, y: float, start: float, end: float) -> Markup:
    offset, factor = svg.scale(start, end)
    x1, x2 = offset + factor * max(span.start, start), offset + factor * min(span.end, end)
    size = max(x2 - x1, 1.5)
    label = span.label or ("" if span.epoch is None else views.start_name(span.epoch))
    kind = span.kind if span.kind in KINDS else "idle"
    tip = f"{span.node}: {KINDS[kind]}{', ' + label if label else ''}, {span.start:.3f} to {span.end:.3f} s"
    box = svg.element(
        "rect", svg.element("title", tip), x=x1, y=y + 3, width=size, height=ROW - 6, rx=3, class_=f"span {kind}"
    )
    shown = label if kind != "idle" or span.label else ""
    fits = bool(shown) and svg.width(shown, 11) + 8 < size
    return box + (svg.text(x1 + 7, y + 17, shown, f"on {kind}") if fits else Markup(""))


def _cross(x: float, y: float) -> Markup:
    return svg.element("path", d=f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10", class_="cross")


def _natural(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


def draw_failover(run: views.RunView, spans: Sequence[views.Span], failover: views.Failover) -> Markup:
    """The picture of one failover; empty where it has no phases."""
    phases = [(views.STAGES[name], max(size, 0.0)) for name, size in failover.phases]
    total = sum(size for _, size in phases)
    if not failover.milestones or total <= 0:
        return Markup("")
    zero = failover.milestones[0].t
    start, end = zero - total * 0.12, zero + max(total, failover.caught_up_s or 0.0) + total * 0.12
    names = order(spans, run.slots)
    bottom = TOP + ROW * len(names)
    parts = [
        *shade([Band(start=zero, end=zero + total, text="")], start, end, bottom + 8),
        *rows(names, spans, start, end),
        *strikes(names, marks(run), start, end),
        *_bar(phases, zero, start, end, bottom + 12),
        *_caught(failover, zero, start, end, bottom),
        *axis(start, end, bottom + 96, 1000.0, "ms", zero),
    ]
    title = f"Failover {failover.index + 1}, {total * 1000:.0f} ms"
    return svg.picture(f"failover{failover.index}", bottom + 130, title, _describe_phases(phases), *parts)


def _describe_phases(phases: Sequence[tuple[str, float]]) -> str:
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
    label = svg.text(x + (-6 if anchor == "end" else 6), TOP - 14, "steps redone", "muted", anchor)
    return [svg.line(x, TOP - 8, x, bottom + 8, "caught"), label]
