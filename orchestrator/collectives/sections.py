"""Makes what the terminal, the page, the summaries and JSON show of a run that measured collectives: the same lines everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .. import views
from ..app.places import run_path
from ..core.verdict import sentence
from ..model import codec, events
from ..model.run import Run
from ..reports.summary import cell, table_lines
from ..views import quantities
from . import views as collectives
from .page import iteration, link_map, measured_charts
from .views import case_table, finding_text, phrases

Figure = tuple[str, str, str]
#: Rows of the table at the end of a run, and on a page before a size is chosen.
CASES, ROWS = 24, 60
#: Slow iterations that the terminal lists with the whole table, and the page; outliers.csv has more.
SLOW, SLOW_ON_PAGE = 20, 12
#: Names of lines that differ on the terminal.
_LABELS = {"slow iterations": "slow", "percentiles": "note      percentiles"}
TIMES = "Part of all iterations whose slowest rank took at most so long."
CHUNKS = "Part of all transfers that took at most so long, from when the receiver asked to when it had all."
DELAYS = "Dots: chunk transfers; lines: the slowest rank of each iteration."


def statements(run: Run, measured: collectives.Measured) -> Iterator[tuple[str, str]]:
    """Yield (what, text) of each line below the table."""
    yield "link", phrases.link(measured.setting)
    yield from (("auto", text) for text in finding_text.autos(measured))
    yield from (("fastest", text) for text in finding_text.winners(measured.fastest))
    gaps = collectives.replay_gaps(run, measured.setting)
    known = {
        "straggler": finding_text.straggler(measured),
        "slow iterations": finding_text.slow_iterations(measured),
        "time": phrases.path(measured),
        "gaps": phrases.gaps(gaps) if gaps else "",
        "bucket": phrases.bucket(measured.setting),
        "precision": phrases.stops(measured),
        "verified": phrases.verified(run.history, measured),
        "percentiles": phrases.percentiles(measured).removeprefix("percentiles "),
    }
    yield from ((what, text) for what, text in known.items() if text)


def lines(run: Run, directory: Path, *, whole: bool = False, width: int = 0) -> Iterator[str]:
    """Yield the lines of the terminal; none for a run that measured no collectives. ``width``: that of the terminal, for the table."""
    measured = collectives.measured(run)
    if measured is None:
        return
    if not measured.trials:
        yield f"measured  {_kept(run, measured) or 'nothing: no iteration was gathered from all of its ranks'}"
        return
    (_, link), *rest = statements(run, measured)
    yield f"link      {link}"
    shown = measured if whole else case_table.largest(measured, CASES)
    yield from case_table.lines(shown, width)
    if len(shown.rows) < len(measured.rows):
        hidden = len(measured.rows) - len(shown.rows)
        yield f"          … {hidden} more of smaller sizes: ccbed report {run_path(directory)} --table"
    before, last_of_slow = "", "time" if "time" in dict(rest) else "slow iterations"
    for what, text in rest:
        label = "" if what == before == "auto" else _LABELS.get(what, what)
        yield f"{label:<9} {text}"
        before = what
        if whole and what == last_of_slow:
            yield from _slow(measured)


def _kept(run: Run, measured: collectives.Measured) -> str:
    """Return what `resume` keeps of a run that was interrupted, whose records stay on its nodes; empty for a run that has ended."""
    if run.history.last(events.RunInterrupted) is None or run.history.last(events.RunEnd):
        return ""
    resumes, cases = views.resume_steps(run.history), measured.setting.cases
    commits = [(event.epoch or 0, event.data.step or 0) for event in run.history.of(events.CheckpointCommit)]
    last = max((step for epoch, step in commits if views.is_kept(epoch, step, resumes)), default=0)
    if kept := sum(bool(case.steps) and case.steps[-1] <= last for case in cases):
        return f"{kept} of {len(cases)} cases, which are kept: resume goes on with the others and shows all"
    return f"none of {len(cases)} cases to its end, so nothing is kept: resume begins with the first"


def _slow(measured: collectives.Measured) -> Iterator[str]:
    """Yield the slow iterations, each with where its delay began."""
    slowest = _slowest(measured, SLOW)
    yield from (f"          {text}" for text in slowest)
    if hidden := measured.outliers - len(slowest):
        yield f"          … {hidden:,} more slow iteration{'s' * (hidden > 1)}: report/outliers.csv"


def _slowest(measured: collectives.Measured, most: int) -> list[str]:
    slowest = sorted(measured.slow, key=lambda slow: -slow.seconds)[:most]
    return [phrases.slow(slow, measured.setting) for slow in slowest]


def document(run: Run) -> object:
    measured = collectives.measured(run)
    if measured is None:
        return None
    return {
        "rows": codec.plain(measured.rows),
        "link": codec.plain(measured.setting.link),
        "auto": codec.plain(measured.setting.autos),
        "fastest": codec.plain(measured.fastest),
        "slow": codec.plain(measured.slow),
        "held": measured.held,
        "late": codec.plain(measured.stragglers.late),
        "slow_links": codec.plain(measured.stragglers.links),
        "stopped": codec.plain(measured.stragglers.stopped),
        "critical_path_s": codec.plain(measured.path),
        "straggler": finding_text.straggler(measured),
        "percentiles": collectives.DEFINITION,
    }


def markdown(run: Run) -> Iterator[str]:
    """Yield the table with single headings, for Markdown has no bands, and the lines below it."""
    measured = collectives.measured(run)
    if measured is None:
        return
    made = case_table.table(measured)
    bands = [title for title, count in made.bands for _ in range(count)]
    names = zip(bands, made.head, strict=True)
    head = [f"{name} ms" if "," in band else f"{band} {name}".strip() for band, name in names]
    yield from ("## Collectives", "")
    for title, rows in made.groups:
        yield from (f"### {cell(title)}", "")
        yield from table_lines(head, rows)
    yield from (f"- {what}: {cell(text)}" for what, text in statements(run, measured))
    yield ""


def pairs_of(run: Run) -> Iterable[tuple[str, str]]:
    """The name and the text of each figure, for JUnit."""
    measured = collectives.measured(run)
    return [(name, f"{figure} ({note})") for name, figure, note in figures(measured)] if measured else ()


def page(run: Run) -> dict[str, Any] | None:
    """The values for this part of the template; None for a run that measured no collectives."""
    measured = collectives.measured(run)
    if measured is None:
        return None
    shown = case_table.largest(measured, ROWS)
    directions = measured.setting.link.directions
    return {
        "headline": finding_text.headline(measured),
        "figures": list(figures(measured)),
        "table": case_table.table(shown),
        "left_out": len(measured.rows) - len(shown.rows),
        "most": ROWS,
        "lines": list(statements(run, measured)),
        "slow": _slowest(measured, SLOW_ON_PAGE),
        "more": measured.outliers - len(measured.slow[:SLOW_ON_PAGE]),
        "directions": len(directions),
        "bandwidths": list(bandwidths(measured)),
        "charts": list(distributions(measured)),
        "iteration": iteration.slowest(measured),
        "maps": link_map.maps(measured),
        "rough": phrases.roughly_known(measured.setting) if any(link.is_wide for link in directions) else "",
        "data": measured_charts.document(measured),
    }


def bandwidths(measured: collectives.Measured) -> Iterator[tuple[str, int, list[tuple[str, str, str, str]]]]:
    """(kind of cases, how many sizes, of a single size a bar per algorithm: name, figure, width in percent, the model's figure)."""
    for kind, rows in measured_charts.kinds(measured).items():
        sizes = len({row.case.bytes for row in rows})
        yield kind, sizes, [] if sizes > 1 else _bars(rows)


def _bars(rows: list[collectives.Row]) -> list[tuple[str, str, str, str]]:
    most = max(row.busbw or 0.0 for row in rows)
    ranked = sorted(rows, key=lambda row: -(row.busbw or 0.0))
    return [
        (
            row.case.algorithm,
            quantities.bandwidth(row.busbw),
            f"{100 * (row.busbw or 0.0) / most:.1f}",
            quantities.bandwidth(model) if (model := measured_charts.model(row)) else "",
        )
        for row in ranked
    ]


def distributions(measured: collectives.Measured) -> Iterator[tuple[str, str, str]]:
    """(name, title, caption) of the charts of the size that is chosen."""
    yield "times", "Time of iterations", TIMES
    if any(moved is not None for _, _, moved in measured.data.values()):
        yield "chunks", "Delay of chunk transfers", CHUNKS
    yield "delays", "Delay over time", DELAYS


def figures(measured: collectives.Measured) -> Iterator[Figure]:
    """(name, figure, meaning) for the row below the sentence."""
    best = max((row for row in measured.rows if row.busbw is not None), key=lambda row: row.busbw or 0, default=None)
    if best is not None and best.cct is not None:
        line = f", {quantities.percent(best.of_line)} of the line" if best.of_line is not None else ""
        cct = best.cct
        peak = quantities.bandwidth((best.busbw or 0.0) * (best.mean_s or 0.0) / max(cct.min, 1e-9))
        what = f"GB/s bus bandwidth in the mean, peak {peak}, {phrases.case(best.case)}"
        yield (
            "best bandwidth",
            quantities.bandwidth(best.busbw),
            f"{what}{line}{_tied(measured, best.case)}",
        )
        yield (
            "p50",
            f"{quantities.milliseconds(cct.p50)} ms",
            f"of {cct.count:,} iterations of it, first start to last end",
        )
        yield "p95", f"{quantities.milliseconds(cct.p95)} ms", f"at most {quantities.milliseconds(cct.max)} ms"
    models = [row.of_model for row in measured.rows if row.of_model is not None]
    if models:
        span = f"{min(models):.2f} to {max(models):.2f}" if len(models) > 1 else f"{models[0]:.2f}"
        yield "measured / model", span, "median over the model by the probe's latency and bandwidth"
    yield _straggler(measured)
    yield (
        "wrong results",
        f"{measured.wrong:,}" if measured.setting.verify else "not verified",
        f"of {sentence.count(measured.trials, 'iteration')} in {sentence.count(len(measured.rows), 'case')}",
    )


def _tied(measured: collectives.Measured, case: collectives.Case) -> str:
    """The algorithms that are equal to the named one, or that the iterations cannot tell from it."""
    race = next(
        (fastest for fastest in measured.fastest if (fastest.kind, fastest.bytes) == (case.kind, case.bytes)), None
    )
    if race is None or race.clear:
        return ""
    if not race.judged:
        return "; not judged against the others"
    others = [name for name in race.algorithms if name != case.algorithm]
    how = "not resolved against" if race.unresolved else "equal to"
    return f"; {how} {', '.join(others)}" if others else ""


def _straggler(measured: collectives.Measured) -> Figure:
    known, node = measured.stragglers, measured.setting.node
    if not known:
        outcome, why = finding_text.unnamed(measured)
        return "straggler", outcome, why
    names = [*(node(stop.rank) for stop in known.stopped), *(node(late.rank) for late in known.late)]
    names += [f"{node(link.sender)} to {node(link.receiver)}" for link in known.links]
    return "straggler", ", ".join(names[:3]) + " …" * (len(names) > 3), finding_text.straggler(measured)
