"""Replays a list of collectives with compute gaps: the traffic of a training, from `ccbed size --emit` or a trace."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ....model.frozen import dataclass, replace
from ....model.requirements import RequiredMemory
from ....rank.exchange import cases
from ...rank import algorithm_choice, measuring, memory_demand, mpi_names

if TYPE_CHECKING:
    from ....rank.runtime import context

METRICS: Mapping[str, tuple[str, str]] = {}
CHECKS: tuple[str, ...] = ("results-exact", "times-possible", "gaps-kept", "no-step-lost", "no-hang")
PHASES: tuple[str, ...] = ("collective",)
lacking = mpi_names.lacking
_FIELDS = {field.name: field for field in dataclasses.fields(cases.Item)}
_KINDS: Mapping[str, tuple[type, ...]] = {
    "operation": (str,), "bytes": (int,), "trials": (int,), "gap_ms": (int, float, list, tuple), "algorithm": (str,), "dtype": (str,),
    "gap_from": (str,), "after": (list, tuple),
    "groups": (str, int, list, tuple), "operator": (str,), "root": (int,), "shares": (list, tuple), "asynchronous": (bool,),
}  # fmt: skip
_WORDS = {
    (str,): "a name", (int,): "a whole number", (bool,): "true or false", (list, tuple): "a list",
    (int, float, list, tuple): "a number, or a list of numbers", (str, int, list, tuple): "a list",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(measuring.Measuring):
    """Collectives that are replayed in order.

    items       list of {operation, bytes, trials, gap_ms, gap_from, after, algorithm, dtype, groups, operator, root, shares,
                asynchronous}; operation is required. gap_ms: before each trial, a number or a list; gap_from: since end or start
                of the collective before; after: or [places back, ms since its end]. With gaps there are no barriers
    gap_scale   factor for every gap; 0: no gaps
    """

    items: tuple[Mapping[str, Any], ...] = ()
    gap_scale: float = 1.0


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    problems = [
        f"items: item {index}: {problem}" for index, fields in enumerate(params.items) for problem in _problems(fields)
    ]
    if not params.items:
        problems.append("items: must be a list such as [{operation: all-reduce, bytes: 971048, trials: 8}]")
    if params.precision and not problems and any(item.after or any(item.gaps) for item in items(params)):
        problems.append("precision: not with gaps: a sequence runs all of its iterations")
    if not 0 <= params.gap_scale < math.inf:
        problems.append(f"gap_scale: must be >= 0 and finite (got {params.gap_scale:g})")
    auto = any(fields.get("algorithm") == "auto" for fields in params.items)
    return [*measuring.problems(params, auto=auto), *problems]


def fits(params: Params, world: int) -> list[str]:
    """Return why ``world`` ranks cannot run with these values, which are valid in themselves."""
    return [
        f"items: item {index}: {problem}"
        for index, item in enumerate(items(params))
        for problem in algorithm_choice.infeasible(item, world)
    ]


def memory(params: Params, world: int) -> RequiredMemory | None:
    """The memory that the largest item needs on each rank."""
    return memory_demand.of(items(params), world, params, "items")


def programs(params: Params) -> Mapping[str, tuple[tuple[str, ...], str]]:
    """The programs that the algorithms of Open MPI need."""
    return mpi_names.needed(item.algorithm for item in items(params))


def last_step(params: Params, data: str | None = None) -> int | None:
    """The number of timed iterations: each is a step."""
    return sum(item.trials for item in items(params))


def items(params: Params) -> tuple[cases.Item, ...]:
    listed = (parse_item(fields, params.gap_scale) for fields in params.items)
    return tuple(replace(item, trials=measuring.most_iterations(item.trials, params.precision)) for item in listed)


def run(ctx: context.RankContext) -> None:
    from ...rank import measure

    measure.run(ctx, items(ctx.params))


def _problems(fields: Mapping[str, Any]) -> Iterator[str]:
    malformed = list(_form_problems(fields))
    yield from malformed
    if malformed:
        return
    item = parse_item(fields)
    yield from cases.problems(item)
    if item.operation in cases.OPERATIONS and (problem := algorithm_choice.problem(item.algorithm, item.operation)):
        yield f"algorithm: {problem} (got {item.algorithm!r})"


def _form_problems(fields: Mapping[str, Any]) -> Iterator[str]:
    """Problems with names and types of fields, each as ``name: what must be (got …)``."""
    if "operation" not in fields:
        yield "operation: is missing"
    for name, value in fields.items():
        if name not in _FIELDS:
            yield f"{name}: is not a key of an item; known: {', '.join(_FIELDS)}"
        elif not isinstance(value, _KINDS[name]) or (isinstance(value, bool) and bool not in _KINDS[name]):
            yield f"{name}: must be {_WORDS[_KINDS[name]]} (got {value!r})"
    if isinstance(fields.get("groups"), list | tuple) and not _are_lists_of_ranks(fields["groups"]):
        yield f"groups: must be a list of lists of ranks such as [[0, 1], [2, 3]] (got {fields['groups']!r})"
    gaps = fields.get("gap_ms")
    if isinstance(gaps, list | tuple) and not all(_is_number(gap) for gap in gaps):
        yield f"gap_ms: must be numbers (got {gaps!r})"
    after = fields.get("after")
    if isinstance(after, list | tuple) and not all(_is_dependency(pair) for pair in after):
        yield f"after: must be a list of [places back, ms] such as [[1, 2.5]] (got {after!r})"
    shares = fields.get("shares")
    if isinstance(shares, list | tuple) and not all(_is_number(share) for share in shares):
        yield f"shares: must be numbers (got {shares!r})"


def parse_item(fields: Mapping[str, Any], gap_scale: float = 1.0) -> cases.Item:
    """The item of valid ``fields``. ``groups`` are lists of ranks, or a text as for the workload ``collective``."""
    values = dict(fields)
    if "groups" in values:
        values["groups"] = _groups(values["groups"])
    if "shares" in values:
        values["shares"] = tuple(float(share) for share in values["shares"])
    gaps = values.get("gap_ms", 0.0)
    scaled = (
        tuple(float(gap) * gap_scale for gap in gaps) if isinstance(gaps, list | tuple) else float(gaps) * gap_scale
    )
    after = tuple((back, float(ms) * gap_scale) for back, ms in values.get("after", ()) if gap_scale)
    return cases.Item(**{**values, "gap_ms": scaled, "after": after})


def _groups(groups: Any) -> str:
    if isinstance(groups, list | tuple):
        return "/".join(",".join(str(rank) for rank in group) for group in groups)
    return str(groups)


def _is_dependency(pair: Any) -> bool:
    """Return whether it is [places back, ms]."""
    is_pair = isinstance(pair, list | tuple) and len(pair) == 2 and all(map(_is_number, pair))
    return is_pair and isinstance(pair[0], int)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_lists_of_ranks(groups: Any) -> bool:
    return all(
        isinstance(group, list | tuple)
        and group
        and all(isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 for rank in group)
        for group in groups
    )
