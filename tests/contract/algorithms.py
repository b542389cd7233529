"""Every algorithm that is there, with the parameters that tests try, and what its schedules are verified by."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.model import algorithm, schedule
from tests.contract import symbolic

from ..unit.catalogue import CATALOGUE

#: Beside the defaults.
VARIANTS = {
    "binomial-tree": ("binomial-tree:acknowledged=false",),
    "chain": ("chain:segments=1", "chain:segments=3"),
    "double-binary-tree": ("double-binary-tree:segments=1", "double-binary-tree:segments=3"),
}


def defaults() -> list[algorithm.Chosen]:
    return [algorithm.choose(name, plugin.module) for name, plugin in CATALOGUE.algorithms.items()]


def variants() -> list[algorithm.Chosen]:
    algorithms = CATALOGUE.algorithms
    return [algorithm.choose(text, algorithms[name].module) for name, texts in VARIANTS.items() for text in texts]


def cases(chosen: list[algorithm.Chosen]) -> list[tuple[algorithm.Chosen, str]]:
    return [(algorithm, operation) for algorithm in chosen for operation in algorithm.operations]


def named(value: Any) -> str | None:
    return value.label if isinstance(value, algorithm.Chosen) else None


def schedules(chosen: algorithm.Chosen, operation: str, world: int, root: int = 0) -> list[schedule.Schedule]:
    return [chosen.schedule(operation, rank, world, root) for rank in range(world)]


def roots(operation: str, world: int) -> list[int]:
    """The first and the last rank where the operation has a root."""
    return sorted({0, world - 1}) if operation in schedule.ROOTED else [0]


def worlds(chosen: algorithm.Chosen, operation: str, most: int, least: int = 1) -> Iterator[int]:
    """Those that it does not refuse."""
    return (world for world in range(least, most + 1) if not chosen.refuses(operation, world))


def prove(chosen: algorithm.Chosen, operation: str, world: int, root: int = 0, good: Any = None) -> symbolic.Outcome:
    """Verify its schedules (or those given instead of them), with the order of messages that it promises. Raises Broken."""
    ordered = ORDER.get((chosen.name, operation)) if getattr(chosen.params, "acknowledged", True) else None
    outcome = symbolic.verify(
        operation,
        schedules(chosen, operation, world, root) if good is None else good,
        chosen.chunks(operation, world),
        root,
        even=chosen.even(operation),
        causal=ordered is not None and world <= MOST,
    )
    if ordered is not None and world <= MOST:
        ordered(outcome.messages)
    return outcome


#: Up to which world the order of messages is looked at.
MOST = 9
#: What tokens are for.
ORDER: Mapping[tuple[str, str], Callable[[Sequence[symbolic.Message]], None]] = {
    ("binomial-tree", "broadcast"): symbolic.in_order,
    ("binomial-tree", "scatter"): symbolic.in_order,
    ("binomial-tree", "all-reduce"): symbolic.in_order,
    ("scatter-ring-all-gather", "broadcast"): functools.partial(symbolic.in_order, but_to_the_right=True),
    ("sequential", "broadcast"): symbolic.one_at_a_time,
    ("sequential", "scatter"): symbolic.one_at_a_time,
    ("sequential", "reduce"): symbolic.one_at_a_time,
    ("sequential", "gather"): symbolic.one_at_a_time,
    ("sequential", "send-recv"): symbolic.one_at_a_time,
}
