"""The metrics of a run, a line of ``metrics.jsonl`` each: failovers, goodput, metrics that ranks reported, collectives."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator

from ... import views
from ...model import codec, watch
from ...model.events import RankFinished
from ...model.frozen import dataclass
from ...model.run import Run
from ...views import probes, training


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric. ``better``: higher | lower. ``size``: bytes, for collectives; ``rep``: the iteration, from 0.

    ``ceiling``: the best value that physics or the data sheet allows, of a figure of hardware.
    """

    trial: str
    metric: str
    value: float
    unit: str
    better: str
    epoch: int | None = None
    node: str | None = None
    rank: int | None = None
    size: int | None = None
    rep: int = 0
    ceiling: float | None = None


def lines(run: Run) -> Iterator[str]:
    """The lines of metrics.jsonl, without their ends."""
    encode = json.JSONEncoder(separators=(",", ":")).encode
    return (encode(codec.plain(metric)) for metric in of(run))


def parse(line: str) -> Metric:
    """Return the metric of a line. Fields of later versions are left out. Raises ValueError, TypeError."""
    document = json.loads(line)
    known = {name: document[name] for name in Metric.__dataclass_fields__.keys() & document.keys()}
    return Metric(**{**known, "value": float(document["value"])})


def of(run: Run) -> Iterator[Metric]:
    """The times of failovers, the goodput, and the metrics that ranks reported when they finished."""
    run_view = training.view(run)
    name = run.trial.name
    yield Metric(trial=name, metric="duration", value=run_view.duration_s, unit="s", better="lower")
    if run_view.goodput is not None:
        yield Metric(trial=name, metric="goodput", value=run_view.goodput, unit="1", better="higher")
    for failover, known in zip(run_view.failovers, training.recovery_figures(run, run_view.failovers), strict=True):
        yield from _failover(name, failover, known, counted=run_view.step is not None)
    yield from _strength(run)
    yield from _checkpoints(run)
    yield from _reported(run)
    if (collectives := views.part_of_collectives(run.history, "exports")) is not None:
        yield from collectives.metrics(run)
    yield from _probed(run)
    for event in run.history.of(RankFinished):
        for metric, value in views.mapping(event.data.metrics).items():
            fields = views.mapping(value)
            figure = views.number(fields.get("value"))
            if figure is not None:
                unit, better = str(fields.get("unit", "")), str(fields.get("better", ""))
                yield Metric(
                    trial=name, metric=metric, value=figure, unit=unit, better=better, epoch=event.epoch, node=event.node,
                    rank=event.data.rank,
                )  # fmt: skip


def _probed(run: Run) -> Iterator[Metric]:
    """Every repeat of every figure that the probes of nodes measured."""
    for figure in probes.figures(run.history):
        for rep, value in enumerate(figure.repeats):
            yield Metric(
                trial=run.trial.name, metric=figure.name, value=value, unit=figure.unit, better=figure.better,
                node=figure.node.partition(":")[0], rank=figure.rank, rep=rep, ceiling=figure.ceiling,
            )  # fmt: skip


def _strength(run: Run) -> Iterator[Metric]:
    """The time on fewer nodes, and that of growing back."""
    name = run.trial.name
    for span in views.reduced(run.trial, run.history):
        yield Metric(
            trial=name, metric="reduced strength", value=span.end - span.begin, unit="s", better="lower", epoch=span.epoch
        )  # fmt: skip
    for rep, growth in enumerate(views.growths(run.history)):
        times = {"grow phase stop": growth.stop_s, "grow phase start": growth.start_s}
        for metric, seconds in times.items():
            if seconds is not None:
                yield Metric(
                    trial=name, metric=metric, value=seconds, unit="s", better="lower", epoch=growth.epoch, rep=rep
                )  # fmt: skip


def _checkpoints(run: Run) -> Iterator[Metric]:
    """Yield for a watched script the stall of a save, the interval between commits, the share of the time of all steps."""
    lines = training.watched(run)
    cost = training.checkpoint_cost.checkpoint_cost(lines) if lines is not None else None
    if cost is not None:
        figures = {"stall": (cost.stall_s, "s"), "interval": (cost.interval_s, "s"), "share": (cost.share, "1")}
        for what, (value, unit) in figures.items():
            yield Metric(trial=run.trial.name, metric=f"checkpoint {what}", value=value, unit=unit, better="lower")


def _reported(run: Run) -> Iterator[Metric]:
    """The figures that a script reports itself: each point, and the last value of each result, by process."""
    for file in run.files.watch():
        counts: Counter[str] = Counter()
        finals = {claim.name: claim for claim in file.of(watch.Claim) if claim.what == "final"}
        for claim in (*(claim for claim in file.of(watch.Claim) if claim.what == "point"), *finals.values()):
            value = views.number(claim.value)
            if value is not None and math.isfinite(value):
                yield Metric(
                    trial=run.trial.name, metric=claim.name, value=value, unit=claim.unit, better="", epoch=file.attempt,
                    node=file.node, rank=file.rank, rep=counts[claim.name],
                )  # fmt: skip
                counts[claim.name] += 1


def _failover(
    name: str, failover: views.Failover, known: training.RecoveryFigures, *, counted: bool
) -> Iterator[Metric]:
    times = {"detect": failover.detect_s, "ttr": failover.ttr_s, "caught-up": failover.caught_up_s}
    times |= {"commit-stall": known.stall_s, "reduced-strength": known.reduced_s, "full-strength": known.full_s}
    times |= {f"phase {phase}": seconds for phase, seconds in failover.phases}
    if known.state_bytes is not None:
        yield Metric(
            trial=name, metric="state", value=float(known.state_bytes), unit="B", better="lower", epoch=failover.epoch,
            rep=failover.index,
        )  # fmt: skip
    for metric, seconds in times.items():
        if seconds is not None:
            yield Metric(
                trial=name, metric=metric, value=seconds, unit="s", better="lower", epoch=failover.epoch, rep=failover.index
            )  # fmt: skip
    if counted:
        yield Metric(
            trial=name, metric="lost steps", value=float(len(failover.lost_steps)), unit="1", better="lower",
            epoch=failover.epoch, rep=failover.index,
        )  # fmt: skip
