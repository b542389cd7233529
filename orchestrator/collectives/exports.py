"""The figures of a run that measured collectives: as lines of ``metrics.jsonl``, and as gauges for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..core.verdict.run_metrics import Metric
from ..model.run import Run
from ..reports.metrics import Gauge, known_gauge
from . import views as collectives


def metrics(run: Run) -> Iterator[Metric]:
    """Yield per case the percentiles and bandwidths, and the time of every iteration with its number from 0."""
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


def gauges(run: Run) -> Iterator[Gauge]:
    measured = collectives.measured(run)
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
    """Yield the figures of each direction; a rate that is not known has only its bounds."""
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
