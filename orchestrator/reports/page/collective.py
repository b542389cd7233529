"""What the page shows of a collective run: figures, the table, who was late, pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...core.verdict import sentence
from ...model.run import Run
from ...views import collectives
from ...views.collectives import phrases, table
from . import plots

Figure = tuple[str, str, str]
#: So many slow trials are told in the page; outliers.csv has more.
SLOW = 12


def values(run: Run) -> dict[str, Any] | None:
    """Everything of the template's part; None for a run that measured no collectives."""
    found = collectives.measured(run)
    if found is None:
        return None
    return {
        "figures": list(figures(found)),
        "table": table.table(found),
        "lines": lines(run, found),
        "slow": [phrases.slow(one, found.setting) for one in phrases.slowest(found)[:SLOW]],
        "more": found.outliers - len(found.slow[:SLOW]),
        "pairs": len(found.setting.link.pairs),
        "pictures": plots.drawn(found),
    }


def lines(run: Run, found: collectives.Measured) -> list[tuple[str, str]]:
    """(what, text): the same as at the end of a run on the terminal."""
    return [
        ("link", phrases.link(found.setting)),
        *(("auto", text) for text in phrases.autos(found.setting)),
        *(("fastest", text) for text in phrases.winners(found.fastest)),
        ("straggler", phrases.straggler(found)),
        ("verified", f"{phrases.verified(run.history, found)}; {phrases.outliers(found)}"),
        ("percentiles", phrases.percentiles(found).removeprefix("percentiles ")),
    ]


def figures(found: collectives.Measured) -> Iterator[Figure]:
    """(name, figure, what it means) for the row below the sentence."""
    best = max((row for row in found.rows if row.busbw is not None), key=lambda row: row.busbw or 0, default=None)
    if best is not None and best.cct is not None:
        line = f", {phrases.percent(best.of_line)} of the line" if best.of_line is not None else ""
        yield (
            "peak bandwidth",
            phrases.bandwidth(best.busbw),
            f"GB/s bus bandwidth, {phrases.case(best.case)}{line}{_tied(found, best.case)}",
        )
        cct = best.cct
        yield "p50", f"{phrases.milliseconds(cct.p50)} ms", f"of {cct.count:,} trials of it, first start to last end"
        yield "p95", f"{phrases.milliseconds(cct.p95)} ms", f"at most {phrases.milliseconds(cct.max)} ms"
    models = [row.of_model for row in found.rows if row.of_model is not None]
    if models:
        span = f"{min(models):.2f} to {max(models):.2f}" if len(models) > 1 else f"{models[0]:.2f}"
        yield "measured / model", span, "median over the model by the probe's alpha and beta"
    yield _straggler(found)
    yield (
        "wrong results",
        f"{found.wrong:,}" if found.setting.verify else "not verified",
        f"of {sentence.count(found.trials, 'trial')} in {sentence.count(len(found.rows), 'case')}",
    )


def _tied(found: collectives.Measured, case: collectives.Case) -> str:
    """That others are as fast as the one that is named, as far as the trials tell."""
    race = next((one for one in found.fastest if (one.kind, one.bytes) == (case.kind, case.bytes)), None)
    if race is None or race.clear:
        return ""
    if not race.judged:
        return "; not judged against the others"
    others = [name for name in race.algorithms if name != case.algorithm]
    return f"; no difference to {', '.join(others)}" if others else ""


def pairs(found: collectives.Measured) -> Iterator[tuple[str, str]]:
    """The main figures as name and text, for reports that are no page."""
    for name, figure, note in figures(found):
        yield name, f"{figure} ({note})"


def _straggler(found: collectives.Measured) -> Figure:
    if not phrases.names_somebody(found):
        return "straggler", "none", "nobody late beyond chance"
    worst = max((one for one in found.slow if one.blame), key=_late, default=None)
    if worst is None or worst.blame is None:
        return "straggler", "yes", phrases.straggler(found)
    why = worst.blame
    who = found.setting.node(why.rank) if why.rank is not None else "a link"
    doubt = "" if why.sure else ", or its peer or link"
    late = f"{phrases.duration(why.late_s)} late in trial {worst.trial} of {phrases.case(worst.case)}"
    return "worst straggler", who, late + doubt


def _late(one: collectives.Slow) -> float:
    return one.blame.late_s if one.blame else 0.0
