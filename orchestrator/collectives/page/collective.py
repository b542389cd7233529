"""The page of a collective run: figures, the table, late ranks and links, pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...core.verdict import sentence
from ...model.run import Run
from ...views import quantities
from .. import views as collectives
from ..views import comparisons, phrases, straggler_text, table
from .plots import bandwidth, charts, iteration, link_map, trial

Figure = tuple[str, str, str]
#: The page has at most so many slow iterations; outliers.csv has more.
SLOW = 12
#: Rows of the table before a size is chosen.
ROWS = 60
TIMES = "Part of all iterations whose slowest rank took at most so long."
CHUNKS = "Part of all transfers that took at most so long, from when the receiver asked to when it had all."
DELAYS = "Dots: chunk transfers; lines: the slowest rank of each iteration."
ITERATION = (
    "A bar is a transfer in its receiver's row, coloured by sender, light while it waits for the sender; upright lines: where a "
    "rank's timed region begins and ends."
)


def values(run: Run) -> dict[str, Any] | None:
    """The values for this part of the template; None for a run that measured no collectives."""
    measured = collectives.measured(run)
    if measured is None:
        return None
    shown = table.largest(measured, ROWS)
    return {
        "headline": straggler_text.headline(measured),
        "figures": list(figures(measured)),
        "table": table.table(shown),
        "left_out": len(measured.rows) - len(shown.rows),
        "most": ROWS,
        "lines": lines(run, measured),
        "slow": [
            phrases.slow(iteration, measured.setting)
            for iteration in sorted(measured.slow, key=lambda slow: -slow.seconds)[:SLOW]
        ],
        "more": measured.outliers - len(measured.slow[:SLOW]),
        "directions": len(measured.setting.link.directions),
        "bandwidths": list(bandwidths(measured)),
        "charts": list(distributions(measured)),
        "iteration": slowest(measured),
        "maps": link_map.maps(measured),
        "rough": phrases.roughly_known(measured.setting)
        if any(direction.is_wide for direction in measured.setting.link.directions)
        else "",
        "data": charts.document(measured),
    }


def bandwidths(measured: collectives.Measured) -> Iterator[tuple[str, int, list[tuple[str, str, str, str]]]]:
    """(kind of cases, how many sizes, of a single size a bar per algorithm: name, figure, width in percent, the model's figure)."""
    for kind, rows in bandwidth.kinds(measured).items():
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
            quantities.bandwidth(model) if (model := charts.model(row)) else "",
        )
        for row in ranked
    ]


def distributions(measured: collectives.Measured) -> Iterator[tuple[str, str, str]]:
    """(name, title, caption) of the charts of the size that is chosen."""
    yield "times", "Time of iterations", TIMES
    if any(moved is not None for _, _, moved in measured.data.values()):
        yield "chunks", "Delay of chunk transfers", CHUNKS
    yield "delays", "Delay over time", DELAYS


def slowest(measured: collectives.Measured) -> dict[str, Any] | None:
    """The iteration that is the slowest against its median, drawn; None without records of transfers."""
    chosen = trial.choose(measured)
    picture = iteration.draw(measured, chosen) if chosen else ""
    if chosen is None or not picture:
        return None
    slow = trial.recorded(measured, chosen)
    parts = phrases.where(slow, measured.setting) if slow else ""
    against = f"The slowest against its median: {quantities.duration(chosen.seconds)}, p50 {quantities.duration(chosen.usual)}{parts}."
    return {
        "title": f"One iteration: {phrases.case(chosen.case)}, iteration {chosen.trial}",
        "picture": picture,
        "caption": f"{against} {ITERATION}",
    }


def lines(run: Run, measured: collectives.Measured) -> list[tuple[str, str]]:
    """(what, text): the same as at the end of a run on the terminal."""
    return [
        ("link", phrases.link(measured.setting)),
        *(("auto", text) for text in comparisons.autos(measured)),
        *(("fastest", text) for text in comparisons.winners(measured.fastest)),
        ("straggler", straggler_text.straggler(measured)),
        ("slow iterations", straggler_text.slow_iterations(measured)),
        *([("time", path)] if (path := phrases.path(measured)) else []),
        *paces(run, measured),
        ("verified", phrases.verified(run.history, measured)),
        ("percentiles", phrases.percentiles(measured).removeprefix("percentiles ")),
    ]


def paces(run: Run, measured: collectives.Measured) -> Iterator[tuple[str, str]]:
    """The gaps that a replay reached, what they do on a shaped link, and cases that stopped early."""
    gaps = collectives.replay_gaps(run, measured.setting)
    if gaps is not None:
        yield "gaps", phrases.gaps(gaps)
    if stops := phrases.stops(measured):
        yield "precision", stops
    if bucket := phrases.bucket(measured.setting):
        yield "bucket", bucket


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


def pairs(measured: collectives.Measured) -> Iterator[tuple[str, str]]:
    """The main figures as name and text, for reports that are no page."""
    for name, figure, note in figures(measured):
        yield name, f"{figure} ({note})"


def _straggler(measured: collectives.Measured) -> Figure:
    known, node = measured.stragglers, measured.setting.node
    if not known:
        outcome, why = straggler_text.unnamed(measured)
        return "straggler", outcome, why
    names = [*(node(stop.rank) for stop in known.stopped), *(node(late.rank) for late in known.late)]
    names += [f"{node(link.sender)} to {node(link.receiver)}" for link in known.links]
    return "straggler", ", ".join(names[:3]) + " …" * (len(names) > 3), straggler_text.straggler(measured)
