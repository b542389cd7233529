"""SVG as escaped text: elements, axes, labels that do not overlap. Colours come from the style sheet by class."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

WIDTH = 1080
LEFT = 96
RIGHT = 24


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """``element("rect", x=1, class_="run")``: underscores become dashes, a trailing one goes; None: no attribute."""
    pairs = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value is not None)
    text = "".join(f' {escape(name)}="{escape(_number(value))}"' for name, value in pairs)
    return Markup(f"<{escape(tag)}{text}>{''.join(map(escape, children))}</{escape(tag)}>")  # noqa: S704 all parts are escaped


def picture(name: str, height: float, title: str, description: str, *children: Markup) -> Markup:
    """The whole figure. ``title`` and ``description`` are what a screen reader says."""
    return element(
        "svg",
        element("title", title, id=f"{name}-t"),
        element("desc", description, id=f"{name}-d"),
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height:g}",
        role="img",
        aria_labelledby=f"{name}-t {name}-d",
    )


def text(x: float, y: float, content: str, class_: str = "", anchor: str = "start") -> Markup:
    return element("text", content, x=x, y=y, class_=class_ or None, text_anchor=anchor if anchor != "start" else None)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def width(content: str, size: float = 12) -> float:
    """A safe estimate of the width of a text in the page's font, in pixels."""
    return len(content) * size * 0.56


def scale(start: float, end: float, left: float = LEFT, right: float = WIDTH - RIGHT) -> tuple[float, float]:
    """(offset, factor) so that ``offset + factor * value`` puts start..end on left..right."""
    factor = (right - left) / (end - start) if end > start else 0.0
    return left - factor * start, factor


def ticks(start: float, end: float, about: int = 8) -> list[float]:
    """Round values from ``start`` to ``end``, steps of 1, 2 or 5 times a power of ten."""
    if not (math.isfinite(start) and math.isfinite(end) and end > start):
        return [start] if math.isfinite(start) else []
    rough = (end - start) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= rough * 0.999)
    first = math.ceil(start / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(end / step + 1e-9) + 1)]


def spread(wanted: Sequence[float], widths: Sequence[float], left: float, right: float, gap: float = 10) -> list[float]:
    """Centres near ``wanted`` (ascending) for labels of these widths: no overlap, within left..right if they fit."""
    centres: list[float] = []
    edge = left
    for centre, size in zip(wanted, widths, strict=True):
        centres.append(max(centre, edge + size / 2))
        edge = centres[-1] + size / 2 + gap
    edge = right
    for index in range(len(centres) - 1, -1, -1):
        centres[index] = min(centres[index], edge - widths[index] / 2)
        edge = centres[index] - widths[index] / 2 - gap
    return centres


def _number(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
