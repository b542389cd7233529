"""The table of a night: metrics by nodes, worst first, each in percent of its reference and beside its limit; and what to do next. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...model.errors import EXIT_INFRASTRUCTURE
from ...model.frozen import dataclass
from ..night_judgement import Judged, NightJudgement
from ..run_record import nodes_of
from ..statistics.night_statistics import Compared
from ..suite import Night
from . import figure_units

#: States from the worst to the best; the first ones are shown, the others are counted.
ORDER = ("fail", "xpass", "warn", "unknown", "xfail", "pass")
BAD = ("fail", "xpass", "warn")
#: After a limit that is much wider than the least change that counts: what is within it is not shown to be sound.
UNRESOLVED = ", not resolved"
#: The column of figures of all nodes together.
ALL_NODES = "all nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A figure in its place. ``change``: -58.7 %, or why there is none; ``title``: the figure itself, and what is known of it."""

    state: str
    change: str
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A metric over the nodes. ``rank``: order of the line, the least first; ``worst``: the place of its worst figure."""

    metric: str
    state: str
    rank: tuple[int, float]
    cells: Mapping[str, Cell]
    limit: str
    reference: str
    worst: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """``nodes``: the columns. ``unmeasured``: metrics that have no reference yet."""

    nodes: tuple[str, ...]
    lines: tuple[Line, ...]
    unreferenced: int = 0

    @property
    def shown(self) -> tuple[Line, ...]:
        """The lines with a figure that is not within its limit."""
        return tuple(line for line in self.lines if line.state != "pass")

    @property
    def rest(self) -> str:
        """Return what the other lines come to, in one sentence; empty without any."""
        others = [line for line in self.lines if line.state == "pass"]
        parts = []
        if others:
            worst = others[0]
            figure = f"{worst.metric} {worst.worst} {worst.cells[column(worst.worst)].change}".replace("  ", " ")
            text = f"{len(others)} {'others ' if self.shown else ''}within limits"
            parts.append(f"{text} (worst: {figure}, limit {worst.limit})")
            wide = sum(line.limit.endswith(UNRESOLVED) for line in others)
            parts += [f"{wide} of them not resolved"] if wide else []
        if self.unreferenced:
            parts.append(f"{self.unreferenced} without a reference yet")
        return "; ".join(parts)


def column(place: str) -> str:
    """The column of a node, of a device of it, and of a figure of the whole gang; of a link that of its first node."""
    return nodes_of(place)[0] if place else ALL_NODES


def table(night: Night, judgement: NightJudgement) -> Table:
    """Metrics with a reference, worst first; those without one are counted."""
    groups: dict[tuple[str, str], list[Judged]] = {}
    unreferenced = set()
    for judged in (*judgement.fleet, *judgement.cells):
        name = judged.finding.metric, judged.cell
        is_waiting = judged.state == "unknown" and not judged.is_counted
        if judged.compared and judged.compared.excess is not None and not is_waiting:
            groups.setdefault(name, []).append(judged)
        elif judged.state not in BAD:
            unreferenced.add(name)
    names = [metric for metric, _ in groups]
    lines = [_line(metric, cell if names.count(metric) > 1 else "", group) for (metric, cell), group in groups.items()]
    measured = {node for group in groups.values() for judged in group for node in nodes_of(judged.finding.node or "")}
    nodes = [node for node in night.hosts if node in measured]
    nodes += sorted(measured.difference(nodes))
    return Table(
        nodes=tuple(nodes), lines=tuple(sorted(lines, key=lambda line: line.rank)),
        unreferenced=len(unreferenced - groups.keys()),
    )  # fmt: skip


def grid(table: Table, lines: Sequence[Line], nodes: int) -> tuple[tuple[str, ...], list[tuple[Line, tuple[str, ...]]]]:
    """Return what a terminal and a chat show of some lines: the heads of the columns, and the texts of each line.

    Of many ``nodes`` those with the worst figures have a column, and all nodes together where a line is of them.
    """
    states = {node: [line.cells[node].state for line in lines if node in line.cells] for node in table.nodes}
    ranked = sorted(table.nodes, key=lambda node: min(map(ORDER.index, states[node]), default=len(ORDER)))
    names = [node for node in table.nodes if node in ranked[:nodes]]
    names += [ALL_NODES] if any(ALL_NODES in line.cells for line in lines) else []
    rows = [
        (line, (
            line.metric, *(line.cells[name].change if name in line.cells else "" for name in names), line.limit, line.reference,
            "; ".join(line.notes),
        ))
        for line in lines
    ]  # fmt: skip
    return ("", *names, "limit", "reference", ""), rows


def head(night: Night, judgement: NightJudgement, table: Table) -> str:
    """``night 5 of bed lab · 3 nodes · 34 metrics · compared with 4 nights, 2026-11-20 to 2026-11-24``."""
    earlier = judgement.earlier
    compared = f"compared with {len(earlier)} night{'s' * (len(earlier) > 1)}" if earlier else "compared with no night"
    if earlier:
        compared += f", {earlier[0][:10]}" + (f" to {earlier[-1][:10]}" if len(earlier) > 1 else "")
    title = f"night {night.number} of bed {night.bed}" if night.recorded else f"night on bed {night.bed}, not recorded"
    metrics = len(table.lines) + table.unreferenced
    parts = [title, f"{len(night.hosts)} nodes", f"{metrics} metrics", compared]
    if judgement.busy:
        more = f" and {len(judgement.busy) - 1} more" if len(judgement.busy) > 1 else ""
        parts.append(f"machine busy: {judgement.busy[0]}{more}")
    return " · ".join(parts)


def _line(metric: str, cell: str, group: Sequence[Judged]) -> Line:
    ranked = sorted(group, key=_rank)
    cells: dict[str, Cell] = {}
    for judged in ranked:
        for place in nodes_of(judged.finding.node or "") or (ALL_NODES,):
            cells.setdefault(place, _cell(judged))
    worst, compared = ranked[0], _compared(ranked[0])
    reference = figure_units.quantity(compared.reference, worst.unit) if compared.reference is not None else ""
    return Line(
        metric=figure_units.name(metric) + (f" ({cell})" if cell else ""), state=worst.state, rank=_rank(worst), cells=cells,
        limit=_limit(compared), reference=reference,
        worst=worst.finding.node or "", notes=tuple(dict.fromkeys(_notes(ranked))),
    )  # fmt: skip


def _limit(compared: Compared) -> str:
    if compared.limit is None:
        return ""
    is_open = not compared.is_resolved and (compared.excess or 0.0) <= compared.limit
    return figure_units.limit(compared.limit) + (UNRESOLVED if is_open else "")


def _compared(judged: Judged) -> Compared:
    assert judged.compared is not None
    return judged.compared


def _rank(judged: Judged) -> tuple[int, float]:
    """Rank by state, then by how much of its limit the figure has moved for the worse."""
    compared = _compared(judged)
    moved = (compared.excess or 0.0) / (compared.limit or 1.0)
    return ORDER.index(judged.state), -moved


def _cell(judged: Judged) -> Cell:
    compared = _compared(judged)
    change = figure_units.change(compared.change or 0.0, judged.unit)
    value = f"{figure_units.quantity(judged.value, judged.unit)}; " if judged.value is not None else ""
    return Cell(state=judged.state, change=change, title=f"{value}{judged.finding.text}")


def _notes(ranked: Iterable[Judged]) -> Iterator[str]:
    """Yield what the second measurement of a figure says, why one is not known, and since when it is so; the three worst figures."""
    noted = [judged for judged in ranked if judged.state != "pass"][:3]
    for judged in noted:
        compared, place = _compared(judged), judged.finding.node or ALL_NODES
        if compared.change_again is not None:
            beyond = [value > (compared.limit or 0.0) for value in (compared.excess or 0.0, compared.again or 0.0)]
            doubt = ": flaky" if any(beyond) else ": not resolved"
            yield f"{place} again {figure_units.change(compared.change_again, judged.unit)}{doubt if judged.state == 'warn' else ''}"
        elif "->" in place or ":" in place:
            yield place
        if judged.finding.since:
            yield f"since {judged.finding.since[:10]}"
    unknown = [judged.finding.node or ALL_NODES for judged in noted if judged.state == "unknown"]
    if unknown:
        yield f"{', '.join(unknown)} not known" if len(noted) > len(unknown) else "not known"


def next_step(night: Night, judgement: NightJudgement, directory: str) -> str:
    """Empty where there is nothing to do. ``directory``: of the night, as people name it."""
    if judgement.exit == EXIT_INFRASTRUCTURE:
        return f"ccbed status · then: ccbed nightly {shlex.quote(night.suite.name)}"
    if judgement.busy and judgement.outcome == "unknown":
        hosts = list(dict.fromkeys(entry.partition(":")[0].rpartition(" ")[2] for entry in judgement.busy))
        more = f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""
        return (
            f"end other work on host {', '.join(hosts[:3])}{more}, then: ccbed nightly {shlex.quote(night.suite.name)}"
        )
    bad = sorted((*judgement.cells, *judgement.fleet), key=lambda judged: ORDER.index(judged.state))
    if not bad or bad[0].state not in BAD:
        has_reference = any(judged.compared and judged.compared.excess is not None for judged in bad)
        if has_reference or night.recorded:
            return ""
        return f"record a night, which the next ones are compared with: ccbed nightly {night.suite.name} --record"
    worst = bad[0]
    nodes = nodes_of(worst.finding.node or "")
    trials = {cell.name: cell.trial for cell in night.suite.cells}
    trial = shlex.quote(trials.get(worst.cell, "") or "node-probe")
    closer = "ccbed sweep links --each-pair" if len(nodes) > 1 else f"ccbed sweep {trial} --each-node"
    if not nodes:
        closer = f"ccbed run {trial}"
    accept = f"ccbed baseline accept {directory}"
    accept += f" --node {nodes[0]}" if len(nodes) == 1 else ""
    return f'{closer} · wanted? {accept} --because "…"'
