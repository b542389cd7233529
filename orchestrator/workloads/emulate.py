"""A list of collectives replayed with its compute gaps: the traffic of a training, made by `ccbed size --emit` or from a trace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..model.free_memory import RequiredMemory
from ..rank.collective import cases, feasible, item_parser, known_algorithms, memory_demand, settings
from ..rank.open_mpi import installed

if TYPE_CHECKING:
    from ..rank.runtime import context

METRICS: Mapping[str, tuple[str, str]] = {}
CHECKS: tuple[str, ...] = ("results-exact", "times-possible", "no-step-lost", "no-hang")
PHASES: tuple[str, ...] = ("collective",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(settings.Measuring):
    """What is replayed, in order.

    items       each {operation, bytes, trials, gap_ms, algorithm, dtype, groups}; operation is a must, and bytes for all but a
                barrier; the others are 1, 0, ring, float32 and all ranks; also operator, root, shares, asynchronous
    gap_scale   every gap times this; 0: one collective right after the other
    """

    items: tuple[Mapping[str, Any], ...] = ()
    gap_scale: float = 1.0


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    found = [f"items: item {place}: {problem}" for place, one in enumerate(params.items) for problem in _problems(one)]
    if not params.items:
        found.append("items: must be a list such as [{operation: all-reduce, bytes: 971048, trials: 8}]")
    if not 0 <= params.gap_scale < math.inf:
        found.append(f"gap_scale: must be >= 0 and finite (got {params.gap_scale:g})")
    auto = any(one.get("algorithm") == "auto" for one in params.items)
    return [*settings.problems(params, auto=auto), *found]


def fits(params: Params, world: int) -> list[str]:
    """Why these values, good in themselves, cannot be done among ``world`` ranks."""
    return [
        f"items: item {index}: {problem}"
        for index, item in enumerate(items(params))
        for problem in feasible.of_item(item, world)
    ]


def memory(params: Params, world: int) -> RequiredMemory | None:
    """What the largest item takes on each rank."""
    return memory_demand.of(items(params), world, params, "items")


def programs(params: Params) -> Mapping[str, tuple[tuple[str, ...], str]]:
    """Of the algorithms that are Open MPI's."""
    return installed.needed(item.algorithm for item in items(params))


def last_step(params: Params, data: str | None = None) -> int | None:
    """Every trial of an item is a step."""
    return sum(item.trials for item in items(params))


def items(params: Params) -> tuple[cases.Item, ...]:
    """The items, their gaps scaled."""
    return tuple(item_parser.item(one, params.gap_scale) for one in params.items)


def run(ctx: context.RankContext) -> None:
    """The whole life of one rank."""
    from ..rank.collective import measure

    measure.run(ctx, items(ctx.params))


def _problems(given: Mapping[str, Any]) -> Iterator[str]:
    wrong = list(item_parser.problems(given))
    yield from wrong
    if wrong:
        return
    item = item_parser.item(given)
    yield from cases.problems(item)
    if item.operation in cases.OPERATIONS and (problem := known_algorithms.problem(item.algorithm, item.operation)):
        yield f"algorithm: {problem} (got {item.algorithm!r})"
