"""The metrics of a run that measured collectives, as lines of ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.verdict.metrics import Metric
from ..model.run import Run
from . import views as collectives


def metrics(run: Run) -> Iterator[Metric]:
    """Per case the percentiles and bandwidths, and the time of every iteration with its number from 0."""
    measurements = collectives.measured(run)
    if measurements is None:
        return
    yield from _directions(run.trial.name, measurements.setting)
    for row in measurements.rows:
        case = row.case
        about = " ".join(
            part
            for part in (case.operation, case.algorithm, case.dtype, case.operator, collectives.shares(case))
            if part
        )
        figures: dict[str, tuple[float | None, str, str]] = {
            "algbw": (row.algbw, "GB/s", "higher"), "busbw": (row.busbw, "GB/s", "higher"),
            "model": (row.model_s, "s", "lower"), "measured over model": (row.of_model, "1", "lower"),
            "of line rate": (row.of_line, "1", "higher"), "wrong": (None if row.wrong is None else float(row.wrong), "1", "lower"),
        }  # fmt: skip
        recorded = measurements.setting.bandwidth == "mean"
        spreads = {"time": row.trial, "chunk": row.chunks} | ({"cct": row.cct} if recorded else {})
        for what, spread in spreads.items():
            for part in ("min", "p50", "p95", "p99", "max") if spread else ():
                figures[f"{what} {part}"] = (getattr(spread, part), "s", "lower")
        for metric, (value, unit, better) in figures.items():
            if value is not None:
                yield Metric(
                    trial=run.trial.name, metric=f"{about} {metric}", value=value, unit=unit, better=better, size=case.bytes
                )  # fmt: skip
        spans = measurements.data[case.number][0]
        for name, over in (("time", "max_rank"), *((("cct", "cct"),) if recorded else ())):
            for number, seconds in enumerate(spans.times(over).tolist()):
                yield Metric(
                    trial=run.trial.name, metric=f"{about} {name}", value=seconds, unit="s", better="lower",
                    size=case.bytes, rep=number,
                )  # fmt: skip


def _directions(trial: str, setting: collectives.Setting) -> Iterator[Metric]:
    """The probe's measurement of every direction between two ranks, with its interval."""
    for direction in setting.link.directions:
        least, greatest = direction.interval or (None, None)
        figures: dict[str, tuple[float | None, str, str]] = {
            "alpha": (direction.alpha_s, "s", "lower"), "beta": (direction.beta, "s/byte", "lower"),
            "least beta": (least, "s/byte", "lower"), "greatest beta": (greatest, "s/byte", "lower"),
        }  # fmt: skip
        for metric, (value, unit, better) in figures.items():
            if value is not None:
                name = f"link {direction.sender}-{direction.receiver} {metric}"
                yield Metric(
                    trial=trial, metric=name, value=value, unit=unit, better=better,
                    node=setting.nodes.get(direction.sender), rank=direction.sender,
                )  # fmt: skip
