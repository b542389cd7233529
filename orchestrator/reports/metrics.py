"""Gauges in the Prometheus text format, for a textfile collector or a push gateway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from .. import views
from ..core.verdict import sentence
from ..model.frozen import dataclass
from ..model.run import Run
from ..views import training
from .page import facts

if TYPE_CHECKING:
    from ..views import collectives

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
    base = {"trial": run.trial.name, "bed": facts.bed(run)}
    return {"metrics.prom": text(gauges(run, view), base).encode(errors="replace")}


def text(shown: Iterable[Gauge], base: Mapping[str, str]) -> str:
    """Gauges that have samples, each with the labels ``base``."""
    return "\n".join(line for gauge in shown if gauge.samples for line in _lines(gauge, base)) + "\n"


def gauges(run: Run, view: views.RunView) -> tuple[Gauge, ...]:
    """All gauges of a run, without the labels that all of them share."""
    known = _run(run, view)
    single = (Gauge(name=f"ccbed_{name}", help=text, samples=(({}, value),)) for name, text, value in known)
    return (_info(run), *single, _checks(run), *_failovers(view), *_collectives(run))


def _info(run: Run) -> Gauge:
    """The run's id as a label of one metric only, so that the others stay one series per trial and bed."""
    labels = {"run": facts.name(run), "trial_id": run.trial.id}
    return Gauge(name="ccbed_run_info", help="The run that the other figures are of.", samples=((labels, 1.0),))


def _run(run: Run, view: views.RunView) -> Iterator[tuple[str, str, float]]:
    outcome = OUTCOMES[sentence.overall(run.verdicts, view.outcome, view.kind, run.trial.require)]
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


def _collectives(run: Run) -> Iterator[Gauge]:
    measured = facts.measured(run)
    rows = measured.rows if measured else ()
    spreads = [
        ({**_case(row.case), "over": over}, spread)
        for row in rows
        for over, spread in (("slowest rank", row.trial), ("first start to last end", row.cct))
        if spread
    ]
    quantiles = [
        ({**labels, "quantile": name}, value)
        for labels, spread in spreads
        for name, value in (("0", spread.min), ("0.5", spread.p50), ("0.95", spread.p95), ("1", spread.max))
    ]
    yield known_gauge(
        "collective_seconds", "Time of a collective, percentiles over iterations by nearest rank.", quantiles
    )
    yield known_gauge(
        "collective_busbw_bytes_per_second", "Bus bandwidth by the mean time (older bundles: median of the slowest rank).",
        [(_case(row.case), row.busbw * 1e9 if row.busbw is not None else None) for row in rows],
    )  # fmt: skip
    yield known_gauge(
        "collective_model_ratio", "Median time over the model by the link probe.", [(_case(row.case), row.of_model) for row in rows]
    )  # fmt: skip
    yield from _links(measured.setting) if measured else ()
    yield known_gauge(
        "collective_wrong_results", "Results that were wrong, where they were verified.", [(_case(row.case), row.wrong) for row in rows]
    )  # fmt: skip


def _links(setting: collectives.Setting) -> Iterator[Gauge]:
    """By direction; a rate that is not known has only its bounds."""
    directions = [
        ({"from": setting.node(direction.sender), "to": setting.node(direction.receiver)}, direction)
        for direction in setting.link.directions
    ]
    yield known_gauge(
        "collective_link_alpha_seconds", "Start-up of a message between two ranks.",
        [(labels, direction.alpha_s) for labels, direction in directions],
    )  # fmt: skip
    yield known_gauge(
        "collective_link_bytes_per_second", "Rate from one rank to another by the probe.",
        [(labels, 1 / direction.beta if direction.beta else None) for labels, direction in directions],
    )  # fmt: skip
    for name, end in (("least", 1), ("greatest", 0)):
        yield known_gauge(
            f"collective_link_{name}_bytes_per_second", f"The {name} rate in the interval of the probe.",
            [(labels, 1 / direction.interval[end]) for labels, direction in directions if direction.interval],
        )  # fmt: skip


def _case(case: collectives.Case) -> Mapping[str, str]:
    about = {"operation": case.operation, "algorithm": case.algorithm, "dtype": case.dtype}
    return {**about, "bytes": str(case.bytes), "case": str(case.number)}


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
