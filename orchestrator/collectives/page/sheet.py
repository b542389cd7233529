"""Comma-separated values: a line per case with everything that is known of it, a line per outlier, a line per direction between ranks."""

from __future__ import annotations

from typing import Any

from ...reports.page.comma_separated import written
from ..views import Direction, Measured, ReplayGaps, Row, Slow, SlowChunk, phrases


def cases(measured: Measured) -> str:
    """Seconds, bytes and 10^9 bytes/s; empty: not known."""
    return written([_case(row) for row in measured.rows])


def links(measured: Measured) -> str:
    """A line per direction that the probe has measured."""
    return written([_direction(measured, direction) for direction in measured.setting.link.directions], _DIRECTION)


def outliers(measured: Measured) -> str:
    """Iterations and chunk transfers over 3 x p50, the worst of each case first; the cause, where it is known."""
    node = measured.setting.node
    slow: list[tuple[str, Slow | SlowChunk, int | None, str]] = [
        ("trial", outlier, None, phrases.where(outlier, measured.setting).removeprefix("; ")) for outlier in measured.slow
    ]  # fmt: skip
    slow += [("chunk", outlier, outlier.index, "") for outlier in measured.slow_chunks]
    return written([
        {
            "what": what, "operation": outlier.case.operation, "algorithm": outlier.case.algorithm, "bytes": outlier.case.bytes,
            "trial": outlier.trial, "rank": outlier.rank, "node": node(outlier.rank), "peer": outlier.peer, "step": step,
            "seconds": outlier.seconds, "p50_s": outlier.usual, "why": why,
        }
        for what, outlier, step, why in slow
    ], _OUTLIER)  # fmt: skip


def gaps(measured_gaps: ReplayGaps) -> str:
    """The gap that was wanted beside the gap that was reached, of every iteration, on the rank that is farthest from it."""
    return written([
        {
            "step": gap.step, "operation": gap.case.operation, "algorithm": gap.case.algorithm, "bytes": gap.case.bytes,
            "trial": gap.trial, "rank": gap.rank, "wanted_s": gap.wanted_s, "reached_s": gap.reached_s, "deviation_s": gap.late_s,
            "held": int(gap.is_held), "kept": int(gap.is_kept),
        }
        for gap in measured_gaps.measured
    ])  # fmt: skip


_DIRECTION = (
    "rank", "node", "peer", "peer_node", "alpha_s", "beta_s_per_byte", "bits_per_s", "least_bits_per_s", "greatest_bits_per_s",
    "reason", "sizes", "repetitions",
)  # fmt: skip
_OUTLIER = (
    "what", "operation", "algorithm", "bytes", "trial", "rank", "node", "peer", "step", "seconds", "p50_s", "why",
)  # fmt: skip


def _direction(measured: Measured, direction: Direction) -> dict[str, Any]:
    node, interval = measured.setting.node, direction.interval
    return {
        "rank": direction.sender, "node": node(direction.sender), "peer": direction.receiver, "peer_node": node(direction.receiver),
        "alpha_s": direction.alpha_s, "beta_s_per_byte": direction.beta,
        "bits_per_s": 8 / direction.beta if direction.beta else None,
        "least_bits_per_s": 8 / interval[1] if interval else None, "greatest_bits_per_s": 8 / interval[0] if interval else None,
        "reason": direction.reason, "sizes": len(direction.samples),
        "repetitions": sum(times for _, _, times in direction.samples),
    }  # fmt: skip


def _case(row: Row) -> dict[str, Any]:
    case = row.case
    cells: dict[str, Any] = {
        "operation": case.operation, "algorithm": case.algorithm, "asked": case.requested, "bytes": case.bytes,
        "bytes_per_rank": case.per_rank, "bytes_total": case.total, "count": case.count, "dtype": case.dtype,
        "operator": case.operator, "root": case.root, "ranks": case.world, "groups": len(case.groups),
        "asynchronous": int(case.asynchronous), "gap_ms": case.mean_gap_ms, "shares": phrases.shares(case),
        "over": row.over,
    }  # fmt: skip
    spreads = {
        "time": row.time, "trial": row.trial, "cct": row.cct, "chunk": row.chunks, "chunk_waiting": row.waiting,
        "chunk_transfer": row.transferring,
    }  # fmt: skip
    for name, spread in spreads.items():
        cells |= {f"{name}_count": spread.count if spread else 0}
        for part in ("min", "p50", "p95", "p99", "max", "mean"):
            cells[f"{name}_{part}_s"] = getattr(spread, part) if spread else None
    return cells | {
        "bandwidth_time_s": row.mean_s,
        "algbw_GBps": row.algbw, "busbw_GBps": row.busbw, "model_s": row.model_s, "measured_over_model": row.of_model,
        "of_line_rate": row.of_line, "wrong": row.wrong, "trials_over_3_p50": row.outliers,
        "chunks_over_3_p50": row.slow_chunks, "trials_missing": row.lost, "transfers": row.transfers, "transfers_due": row.transfers_due,
    }  # fmt: skip
