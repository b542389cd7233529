"""One offline page: the verdict, the time line with the fault, the failover's phases, the loss or the collectives measured."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from .. import products, views
from ..core.verdict import ladder, rungs, sentence
from ..model.run import Run
from ..views import training
from .page import bundle_links, loss_chart, node_timeline, page_facts, page_tables, scripts, terms


def render(run: Run) -> Mapping[str, bytes]:
    """``index.html``, complete in itself: its own scripts, and links to files of the bundle and to other runs."""
    return {"index.html": terms.explained(_template().render(values(run))).encode(errors="replace")}


def warm_up() -> None:
    """Read the template, which takes longer than to fill it in."""
    _template()


def values(run: Run) -> dict[str, Any]:
    steps = training.steps(run)
    view = training.view(run)
    spans = views.timeline(run.history)
    curves = loss_chart.collect(steps, run.twin)
    has_loss = view.loss is not None or not curves.epochs or any(curves.kept.values())
    collectives = views.part_of_collectives(run.history, "sections")
    measured = collectives.page(run) if collectives else None
    listed = page_tables.events(run)
    probed = page_tables.probed(run)
    shown = ladder.ladder(run, view)
    return {
        "outcome": rungs.overall(run.verdicts, view.outcome, view.kind, run.trial.require),
        "failed": page_facts.failed(run, view),
        "address": bundle_links.address,
        "sentence": ladder.headline(run, view, shown),
        "rungs": [(ladder.WORDS[rung.state], rung) for rung in shown],
        "headline": measured["headline"] if measured else "",
        "name": page_facts.name(run),
        "subtitle": [run.trial.name, f"bed {page_facts.bed(run)}", page_facts.started(run)],
        "figures": figures(run, view, curves if has_loss else None, measured["figures"] if measured else ()),
        "collective": measured,
        "timeline": node_timeline.draw(view, spans),
        "kinds": {**_kinds(spans), **({"run": "measuring"} if measured or probed[1] else {})},
        "failovers": list(
            zip(page_tables.failovers(run.trial, view), pictures(view, spans), recoveries(run, view), strict=True)
        ),
        "loss": loss_chart.draw(curves, resumes(run, view)),
        "has_loss": has_loss and not measured,
        "has_twin": bool(curves.twin),
        "has_twin_beside": run.has_twin_beside,
        "run_link": bundle_links.other_run,
        "loss_text": loss_chart.describe(curves) if curves.epochs else "",
        "probed": probed,
        "not_probed": page_tables.not_probed(run),
        "verdicts": page_tables.verdicts(run),
        "faults": page_tables.faults(view.faults),
        "stages": [*page_tables.STAGES.values()],
        "facts": [
            ("Trial", page_facts.trial(run)),
            ("Run", [*_linked(run, page_facts.run_facts(run, view)), *_spare_probe(run)]),
            ("Machine", page_facts.fingerprint(run)),
        ],
        "commands": [("run it again", page_facts.rerun(run)), ("check it again", page_facts.recheck(run))],
        "documents": bundle_links.documents(run),
        "nodes": (nodes := bundle_links.of_nodes(run)),
        "anchors": {node: bundle_links.anchor(node) for node, _, _ in nodes},
        "events": listed,
        "shown": {row.seq: row.text for row in listed},
        "scripts": scripts.of_page("index.js", *(("vendor/uPlot.iife.min.js", "charts.js") if measured else ())),
    }


def _linked(run: Run, pairs: page_facts.Pairs) -> list[tuple[str, Markup | str]]:
    """Link the page of the reference run, where it lies beside this run: another directory of runs may have it."""
    twin = run.twin.run if run.twin and run.has_twin_beside else ""
    return [
        (name, bundle_links.other_run(twin, text) if name == "reference run" and twin else text) for name, text in pairs
    ]


def _spare_probe(run: Run) -> list[tuple[str, Markup]]:
    path = str((page_facts.document(run, "plan.json").get("placement") or {}).get("spare_probe") or "")
    return [("  probe", bundle_links.link(f"{path}/report/index.html", path.rpartition("/")[2]))] if path else []


def figures(
    run: Run, view: views.RunView, curves: loss_chart.Losses | None, measured: Sequence[tuple[str, str, str]] = ()
) -> list[tuple[str, str, str]]:
    """(name, figure, meaning) for the row below the sentence; only known figures.

    ``curves``: None if the workload has no loss; ``measured``: of collectives.
    """
    cards = list(measured) or _steps(view)
    if view.failovers:
        times = [failover.ttr_s for failover in view.failovers if failover.ttr_s is not None]
        detectors = sorted({failover.detector for failover in view.failovers if failover.detector})
        detected = [failover.detect_s for failover in view.failovers if failover.detect_s is not None]
        worst = " (longest)" if len(times) > 1 else ""
        if times or view.step is not None:
            cards.append(
                ("back in", page_tables.moment(max(times, default=None)), f"fault to first step of every rank{worst}")
            )
        if detected:
            cards.append(("detected in", page_tables.moment(max(detected)), "by " + ", ".join(detectors)))
        elif detectors:
            cards.append(("detected", "by " + ", ".join(detectors), "the moment of the loss is not known"))
        if view.step is not None:
            lost = sum(len(failover.lost_steps) for failover in view.failovers)
            cards.append(("redone", sentence.count(lost, "step"), "since the newest checkpoint"))
    if view.goodput is not None and not measured:
        cards.append(("goodput", f"{view.goodput:.0%}", f"of {sentence.seconds(view.duration_s)}"))
    return [*cards, *(() if measured or curves is None else _loss(view, curves))]


def _steps(view: views.RunView) -> list[tuple[str, str, str]]:
    done = f"{view.step:,}" if view.step is not None else "not reported"
    return [("steps", done + (f" / {view.steps:,}" if view.steps else ""), view.outcome)]


def _kinds(spans: tuple[views.Span, ...]) -> dict[str, str]:
    return {kind: text for kind, text in node_timeline.KINDS.items() if any(span.kind == kind for span in spans)}


def _loss(view: views.RunView, curves: loss_chart.Losses) -> list[tuple[str, str, str]]:
    """The mean over ranks of the last step, as in the chart; without step files, the last report of rank 0."""
    last = max(curves.kept, default=None)
    loss = view.loss if last is None else curves.kept[last]
    same, both = loss_chart.equal(curves)
    note = f"equal to the reference run at {same:,}/{both:,} steps" if both else "no reference run"
    return [] if loss is None else [("loss", f"{loss:.4f}", note)]


def pictures(view: views.RunView, spans: tuple[views.Span, ...]) -> list[str]:
    return [node_timeline.draw_failover(view, spans, recovery) for recovery in view.failovers]


def recoveries(run: Run, view: views.RunView) -> list[list[tuple[str, str]]]:
    """Return for each failover what is known of a watched script beside the phases."""
    return page_tables.recoveries(training.recovery_figures(run, view.failovers))


def resumes(run: Run, view: views.RunView) -> list[tuple[int, int]]:
    pairs = ((sentence.lost_step(run.trial, view, recovery), recovery.resume_step) for recovery in view.failovers)
    return [(lost, step) for lost, step in pairs if lost is not None and step is not None]


@functools.cache
def _template() -> jinja2.Template:
    pages = (folder / "page" for folder in products.folders().values())
    loader = jinja2.FileSystemLoader([Path(__file__).parent / "page", *pages])
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("index.html.j2")
