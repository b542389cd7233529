"""Sums a vector over all ranks in every step, and nothing else: the smallest workload that a fault can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..rank.runtime import context

METRICS: Mapping[str, tuple[str, str]] = {"sum": ("1", "higher")}
CHECKS = ("no-step-lost", "no-hang")
PHASES = ("allreduce",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """What may be set.

    steps     how many
    elements  float32 numbers in the vector
    record    every chunk transfer is recorded
    """

    steps: int = 20
    elements: int = 1024
    record: bool = True


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    values = {"steps": params.steps, "elements": params.elements}
    return [f"{name}: must be >= 1 (got {value})" for name, value in values.items() if value < 1]


def last_step(params: Params, data: str | None = None) -> int:
    """The number of steps: faults may be planned at each of them."""
    return params.steps


def run(ctx: context.RankContext) -> None:
    """The whole life of one rank. torch is imported here, so that the orchestrator can read ``Params`` without it."""
    import torch

    ctx.connect()
    ctx.steps = ctx.params.steps
    ctx.report_fresh_start()
    for step in range(1, ctx.steps + 1):
        ctx.begin_step(step)
        vector = torch.ones(ctx.params.elements)
        ctx.all_reduce(vector)
        ctx.end_step(None)
    ctx.result = {"steps": ctx.steps, "loss": None, "digest": {}, "metrics": {"sum": float(vector[0])}}
