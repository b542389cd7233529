"""A list of collectives replayed with its compute gaps: the traffic of a training, made by `ccbed size --emit` or from a trace."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..model.free_memory import RequiredMemory
from ..rank.collective import algorithm_choice, cases, known_algorithms, memory_demand, settings
from ..rank.open_mpi import installed

if TYPE_CHECKING:
    from ..rank.runtime import context

METRICS: Mapping[str, tuple[str, str]] = {}
CHECKS: tuple[str, ...] = ("results-exact", "times-possible", "no-step-lost", "no-hang")
PHASES: tuple[str, ...] = ("collective",)
_FIELDS = {field.name: field for field in dataclasses.fields(cases.Item)}
_KINDS: Mapping[str, tuple[type, ...]] = {
    "operation": (str,), "bytes": (int,), "trials": (int,), "gap_ms": (int, float), "algorithm": (str,), "dtype": (str,),
    "groups": (str, int, list, tuple), "operator": (str,), "root": (int,), "shares": (list, tuple), "asynchronous": (bool,),
}  # fmt: skip
_WORDS = {str: "a name", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}


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
        for problem in algorithm_choice.infeasible(item, world)
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
    return tuple(parse_item(one, params.gap_scale) for one in params.items)


def run(ctx: context.RankContext) -> None:
    """The whole life of one rank."""
    from ..rank.collective import measure

    measure.run(ctx, items(ctx.params))


def _problems(given: Mapping[str, Any]) -> Iterator[str]:
    wrong = list(_form_problems(given))
    yield from wrong
    if wrong:
        return
    item = parse_item(given)
    yield from cases.problems(item)
    if item.operation in cases.OPERATIONS and (problem := known_algorithms.problem(item.algorithm, item.operation)):
        yield f"algorithm: {problem} (got {item.algorithm!r})"


def _form_problems(given: Mapping[str, Any]) -> Iterator[str]:
    """What keeps ``given`` from being an item, each as ``name: what must be (got …)``."""
    if "operation" not in given:
        yield "operation: is missing"
    for name, value in given.items():
        if name not in _FIELDS:
            yield f"{name}: is no key of an item; known: {', '.join(_FIELDS)}"
        elif not isinstance(value, _KINDS[name]) or (isinstance(value, bool) and bool not in _KINDS[name]):
            yield f"{name}: must be {_WORDS[_KINDS[name][-1 if float in _KINDS[name] else 0]]} (got {value!r})"
    if isinstance(given.get("groups"), list | tuple) and not _lists_of_ranks(given["groups"]):
        yield f"groups: must be a list of lists of ranks such as [[0, 1], [2, 3]] (got {given['groups']!r})"
    shares = given.get("shares")
    if isinstance(shares, list | tuple) and not all(_is_number(one) for one in shares):
        yield f"shares: must be numbers (got {shares!r})"


def parse_item(given: Mapping[str, Any], gap_scale: float = 1.0) -> cases.Item:
    """The item. ``groups`` may be written as lists of ranks, or as for the workload ``collective``."""
    made = dict(given)
    if "groups" in made:
        made["groups"] = _groups(made["groups"])
    if "shares" in made:
        made["shares"] = tuple(float(one) for one in made["shares"])
    found = cases.Item(**made)
    return dataclasses.replace(found, gap_ms=float(found.gap_ms) * gap_scale)


def _groups(given: Any) -> str:
    if isinstance(given, list | tuple):
        return "/".join(",".join(str(rank) for rank in group) for group in given)
    return str(given)


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _lists_of_ranks(given: Any) -> bool:
    return all(
        isinstance(group, list | tuple)
        and group
        and all(isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 for rank in group)
        for group in given
    )
