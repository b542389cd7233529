"""Shows on the terminal what the probes measured: a row for each figure, a column for each node, medians and spreads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...app.places import short_list
from ...model import codec
from ...model.event import History
from ...model.events import ProbeDone
from ...views import json_values, probes
from .terminal import Terminal

#: With more nodes the table has the least, the median and the worst of them instead.
COLUMNS = 8
#: Figures of a probe that are shown as soon as it ends.
_FIRST = 2


def show(terminal: Terminal, history: History) -> None:
    """Print the table, what was not measured, and the facts that all figures depend on."""
    rows = probes.rows(history)
    if rows:
        names = list(dict.fromkeys(figure.node for row in rows for figure in row.nodes))
        terminal.table(*(_by_node(rows, names) if len(names) <= COLUMNS else _condensed(rows)))
        terminal.line(
            "          median of the repeats, ± half of their range; spread: range of the nodes over their median"
        )
    terminal.lines(_missing(history))


def medians(probe: ProbeDone) -> str:
    """The first figures of a probe: ``gemm float32 0.0892 TFLOP/s``."""
    texts = []
    for figure in probe.figures or ():
        known = [number for value in figure.values if (number := json_values.number(value)) is not None]
        finite = [number for number in known if math.isfinite(number)]
        texts += [f"{figure.name} {_number(json_values.median(finite))} {figure.unit}"] if finite else []
    return ", ".join(texts[:_FIRST])


def document(history: History) -> object:
    """The figures as JSON; None where nothing was probed."""
    if not probes.ends(history):
        return None
    return {
        "figures": codec.plain(probes.figures(history)),
        "facts": {
            f"{event.node}/{event.data.rank}/{event.data.probe}": dict(event.data.facts or {})
            for event in probes.ends(history)
        },
        "missing": [
            {"what": what, "reason": reason, "nodes": list(nodes)}
            for (what, reason), nodes in probes.missing(history).items()
        ],
    }


def _by_node(rows: Sequence[probes.FigureRow], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    body = []
    for row in rows:
        figures = {figure.node: figure for figure in row.nodes}
        cells = [_cell(figures[name]) if name in figures else "-" for name in names]
        body.append([row.name, row.unit, *cells, *_ends(row)])
    return ["figure", "unit", *names, "spread", "of ceiling"], body


def _condensed(rows: Sequence[probes.FigureRow]) -> tuple[list[str], list[list[str]]]:
    body = [
        [
            row.name,
            row.unit,
            _number(row.median),
            f"{_cell(row.worst)} {row.worst.node}",
            str(len(row.nodes)),
            *_ends(row),
        ]
        for row in rows
    ]
    return ["figure", "unit", "median", "worst", "nodes", "spread", "of ceiling"], body


def _ends(row: probes.FigureRow) -> list[str]:
    """The spread between nodes, and the share of the ceiling that the median reaches."""
    ceiling = next((figure.ceiling for figure in row.nodes if figure.ceiling), None)
    share = f"{row.median / ceiling:.0%}" if ceiling else "-"
    return ["-" if row.spread is None else f"{row.spread:.1%}", share]


def _cell(figure: probes.NodeFigure) -> str:
    spread = figure.spread
    return _number(figure.median) + (f" ±{spread:.0%}" if spread is not None else "")


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _missing(history: History) -> Iterator[str]:
    whats: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (what, reason), nodes in probes.missing(history).items():
        whats.setdefault((reason, nodes), []).append(what)
    for (reason, nodes), names in whats.items():
        yield f"missing   {', '.join(names)}: {reason} ({short_list(nodes)})"
