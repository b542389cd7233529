"""Gauges in the Prometheus text format, for a textfile collector or a push gateway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from .. import views
from ..core.verdict import rungs
from ..model.frozen import dataclass
from ..model.run import Run
from ..views import training
from .page import page_facts

OUTCOMES = {"pass": 0, "fail": 1, "unknown": 2, "broken": 4, "interrupted": 130}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One metric: its name, its meaning, and (labels, value) for each sample."""

    name: str
    help: str
    samples: tuple[tuple[Mapping[str, str], float], ...]


def render(run: Run) -> Mapping[str, bytes]:
    """``metrics.prom``; a figure that is not known is left out, not zero."""
    view = training.view(run)
    base = {"trial": run.trial.name, "bed": page_facts.bed(run)}
    return {"metrics.prom": text(gauges(run, view), base).encode(errors="replace")}


def text(shown: Iterable[Gauge], base: Mapping[str, str]) -> str:
    """Gauges that have samples, each with the labels ``base``."""
    return "\n".join(line for gauge in shown if gauge.samples for line in _lines(gauge, base)) + "\n"


def gauges(run: Run, view: views.RunView) -> tuple[Gauge, ...]:
    """All gauges of a run, without the labels that all of them share."""
    known = _run(run, view)
    single = (Gauge(name=f"ccbed_{name}", help=text, samples=(({}, value),)) for name, text, value in known)
    collectives = views.part_of_collectives(run.history, "exports")
    measured = collectives.gauges(run) if collectives else ()
    return (_info(run), *single, _checks(run), *_failovers(view), *measured)


def _info(run: Run) -> Gauge:
    """The run's id as a label of one metric only, so that the others stay one series per trial and bed."""
    labels = {"run": page_facts.name(run), "trial_id": run.trial.id}
    return Gauge(name="ccbed_run_info", help="The run that the other figures are of.", samples=((labels, 1.0),))


def _run(run: Run, view: views.RunView) -> Iterator[tuple[str, str, float]]:
    outcome = OUTCOMES[rungs.overall(run.verdicts, view.outcome, view.kind, run.trial.require)]
    yield "run_outcome", "How the run came out: 0 pass, 1 fail, 2 unknown, 4 broken, 130 interrupted.", outcome
    yield "run_duration_seconds", "From the first event to the last.", view.duration_s
    if view.step is not None:
        yield "run_steps", "Last step that was completed.", view.step
    yield "run_failovers", "Losses and their recoveries.", len(view.failovers)
    if view.goodput is not None:
        yield "run_goodput_ratio", "Time on steps that were never redone over the run's time.", view.goodput
    if view.loss is not None:
        yield "run_loss", "Last loss that was reported.", view.loss


def _checks(run: Run) -> Gauge:
    samples = tuple(
        ({"check": verdict.check}, float(OUTCOMES[verdict.outcome]))
        for verdict in run.verdicts
        if verdict.outcome in OUTCOMES
    )
    return Gauge(name="ccbed_check_outcome", help="A verdict: 0 pass, 1 fail, 2 unknown.", samples=samples)


def _failovers(view: views.RunView) -> Iterator[Gauge]:
    failovers = view.failovers
    labels = [{"failover": str(failover.index), "detector": failover.detector} for failover in failovers]
    figures: list[tuple[str, str, list[float | None]]] = [
        ("ttr", "Fault to first step of every rank.", [failover.ttr_s for failover in failovers]),
        ("detect", "Fault to its detection.", [failover.detect_s for failover in failovers]),
        ("caught_up", "Fault to the first new step.", [failover.caught_up_s for failover in failovers]),
    ]
    for name, text, values in figures:
        yield known_gauge(f"failover_{name}_seconds", text, zip(labels, values, strict=True))
    pairs = list(zip(labels, failovers, strict=True))
    if view.step is not None:
        lost = [(at, len(failover.lost_steps)) for at, failover in pairs]
        yield known_gauge("failover_lost_steps", "Steps that were done twice.", lost)
    phases = (({**at, "phase": name}, size) for at, failover in pairs for name, size in failover.phases)
    yield known_gauge("failover_phase_seconds", "Phases of a failover; they sum to its time to recover.", phases)


def known_gauge(name: str, text: str, samples: Iterable[tuple[Mapping[str, str], float | None]]) -> Gauge:
    known = tuple((labels, float(value)) for labels, value in samples if value is not None)
    return Gauge(name=f"ccbed_{name}", help=text, samples=known)


def _lines(gauge: Gauge, base: Mapping[str, str]) -> Iterator[str]:
    yield f"# HELP {gauge.name} {gauge.help}"
    yield f"# TYPE {gauge.name} gauge"
    for labels, value in gauge.samples:
        pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in {**base, **labels}.items())
        yield f"{gauge.name}{{{pairs}}} {value:.9g}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
