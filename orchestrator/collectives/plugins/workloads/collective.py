"""Measures and verifies collectives over sizes, algorithms, dtypes and operators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ....model.frozen import dataclass, replace
from ....model.requirements import RequiredMemory
from ....rank.exchange import cases, sizes
from ...rank import algorithm_choice, measuring, memory_demand, mpi_names

if TYPE_CHECKING:
    from ....rank.runtime import context

METRICS: Mapping[str, tuple[str, str]] = {}
CHECKS: tuple[str, ...] = ("results-exact", "times-possible", "no-step-lost", "no-hang")
PHASES: tuple[str, ...] = ("collective",)
lacking = mpi_names.lacking
#: Fields of an item -> the parameters of this workload that set them.
_NAMES = {"bytes": "sizes", "trials": "iterations"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(measuring.Measuring):
    """Measures every combination of size, dtype, operator and algorithm; algorithms alternate from iteration to iteration.

    operation      all-reduce | all-gather | reduce-scatter | broadcast | reduce | gather | scatter | all-to-all | send-recv | barrier
    algorithm      of `ccbed list algorithms`; library: the backend's own; auto: by the cost model; mpi: Open MPI on the same
                   nodes and links, with its own choice; mpi:ring and so on: Open MPI with that algorithm
    sizes          1K:64M (doubled), 1K:64M:4 (times 4), or single sizes; K, M, G are powers of 1024. As in nccl-tests: the buffer
                   of a rank, or the total of all ranks for all-gather, reduce-scatter, gather and scatter. Within a range, sizes
                   are rounded down to whole elements; such a total is rounded down to equal parts where the algorithm needs them
    iterations     timed iterations per combination
    dtype          float32 | float64 | float16 | bfloat16 | int32 | int64 | uint8 | int8
    operator       of reductions: sum | prod | min | max | avg | band | bor | bxor
    root           rank in its group that sends or receives everything, for operations with a root
    groups         2: two contiguous groups at once; 0,1/2,3: these groups; empty: one group of all ranks
    shares         all-to-all: the share of every rank in each input; empty: equal
    asynchronous   start the operation, then wait for it
    gap_ms         time in milliseconds from the end of an iteration to the next start, which stands for computation; then
                   iterations follow each other without barriers
    """

    operation: str = "all-reduce"
    algorithm: tuple[str, ...] = ("ring",)
    sizes: tuple[str, ...] = ("1M",)
    iterations: int = 20
    dtype: tuple[str, ...] = ("float32",)
    operator: tuple[str, ...] = ("sum",)
    root: int = 0
    groups: str = ""
    shares: tuple[float, ...] = ()
    asynchronous: bool = False
    gap_ms: float = 0.0


def check(params: Params) -> list[str]:
    """Problems with the values, each as ``name: what must be (got …)``."""
    problems = [*measuring.problems(params, auto="auto" in params.algorithm), *_lists(params)]
    if params.precision and params.gap_ms:
        problems.append("precision: not with gap_ms: a sequence runs all of its iterations")
    good = replace(params, sizes=("1M",)) if any(problem.startswith("sizes: ") for problem in problems) else params
    problems += [_named(problem) for item in items(good) for problem in cases.problems(item)]
    if params.operation in cases.OPERATIONS:
        unfit = ((text, algorithm_choice.problem(text, params.operation)) for text in params.algorithm)
        problems += [f"algorithm: {problem} (got {text!r})" for text, problem in unfit if problem]
    return list(dict.fromkeys(problems))


def fits(params: Params, world: int) -> list[str]:
    """Return why ``world`` ranks cannot run with these values, which are valid in themselves."""
    problems = [
        _named(problem) for item in items(params, world) for problem in algorithm_choice.infeasible(item, world)
    ]
    return list(dict.fromkeys(problems))


def memory(params: Params, world: int) -> RequiredMemory | None:
    """The memory that the largest combination needs on each rank."""
    return memory_demand.of(items(params, world), world, params, "--sizes", in_turn=True)


def programs(params: Params) -> Mapping[str, tuple[tuple[str, ...], str]]:
    """The programs that the algorithms of Open MPI need."""
    return mpi_names.needed(params.algorithm)


def last_step(params: Params, data: str | None = None) -> int | None:
    """The number of timed iterations: each is a step."""
    return sum(item.trials for item in items(params))


def items(params: Params, world: int | None = None) -> tuple[cases.Item, ...]:
    """Every combination, in the order of the table: by size first, by algorithm last. ``world`` None: before it is known."""
    return tuple(_items(params, _sizes(params, world)))


def run(ctx: context.RankContext) -> None:
    from ...rank import measure

    measure.run(ctx, items(ctx.params, ctx.world), in_turn=True)


def notes(params: Params) -> Iterator[str]:
    """Notes for the user on the effect of valid values."""
    if (needed := _needed(params)) and not params.gap_ms:
        is_enough = params.precision or params.iterations >= needed
        rest = "" if is_enough else f"; with {params.iterations} it is not judged: --iterations {needed}"
        yield f"the fastest algorithm of a size is judged from {needed} iterations on{rest}"
    requested, rounded = sizes.sizes(params.sizes), sizes.sizes(params.sizes, _width(params))
    odd = [size for size in requested if size % _width(params)] if params.operation != "barrier" else []
    if odd:
        first = f"{odd[0]:,} is {odd[0] // _width(params) * _width(params):,}"
        yield f"{len(odd)} of {len(rounded)} sizes are rounded down to whole elements of {_width(params)} bytes: {first}"


def _needed(params: Params) -> int:
    """Iterations from which on the fastest algorithm of each size can be judged; 0 for a single algorithm."""
    from ....views import statistics
    from ...views import fastest

    count = len(items(params)) // len(params.algorithm) * math.comb(len(params.algorithm), 2)
    return statistics.least_pairs(fastest.LEVEL / count) if count else 0


def _width(params: Params) -> int:
    """Bytes of the widest element; the widths of the others divide it."""
    return max((cases.DTYPES.get(dtype, 1) for dtype in params.dtype), default=1)


def _sizes(params: Params, world: int | None) -> tuple[int, ...]:
    """Bytes. If a size of a range does not divide among the ranks as an algorithm needs it, all sizes of the range are rounded
    down, as nccl-tests does. The number of sizes is the same in any world, because the steps of a run depend on it.
    """
    if params.operation == "barrier":
        return (0,)
    requested = sizes.sizes(params.sizes, _width(params))
    if world is None or params.operation not in cases.TOTAL or not any(":" in text for text in params.sizes):
        return requested
    try:
        if not any(
            problem.startswith("bytes: ")
            for item in _items(params, requested)
            for problem in algorithm_choice.infeasible(item, world)
        ):
            return requested
        unit = _width(params) * len(sizes.groups(params.groups, world)[0])
        rounded = sizes.sizes(params.sizes, _width(params), unit)
    except ValueError:
        return requested
    return rounded if len(rounded) == len(requested) else requested


def _items(params: Params, bytes_: tuple[int, ...]) -> Iterator[cases.Item]:
    trials = measuring.most_iterations(params.iterations, params.precision)
    operators = params.operator if params.operation in cases.REDUCING else ("sum",)
    for size in bytes_:
        for dtype in params.dtype if bytes_ != (0,) else params.dtype[:1]:
            for operator in operators:
                for algorithm in params.algorithm:
                    yield cases.Item(
                        operation=params.operation, bytes=size, trials=trials, gap_ms=params.gap_ms,
                        algorithm=algorithm, dtype=dtype, groups=params.groups, operator=operator, root=params.root,
                        shares=params.shares, asynchronous=params.asynchronous,
                    )  # fmt: skip


def _lists(params: Params) -> Iterator[str]:
    """Problems because of which there are no combinations."""
    try:
        sizes.sizes(params.sizes)
    except ValueError as error:
        yield f"sizes: {error}"
    for name in ("algorithm", "dtype", "operator"):
        if not getattr(params, name):
            yield f"{name}: needs at least one value"


def _named(problem: str) -> str:
    name, colon, text = problem.partition(": ")
    return f"{_NAMES.get(name, name)}{colon}{text}"
