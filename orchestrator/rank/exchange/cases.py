"""The cases of a measurement in order, with their items, steps and problems. Pure, without torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...model import algorithm as model
from ...model import schedule as schedules
from ...model.frozen import dataclass, replace
from ..runtime import even_shares
from . import sizes

if TYPE_CHECKING:
    from ...model.events import CaseFacts

OPERATIONS = schedules.OPERATIONS
#: Bytes of an element.
DTYPES: Mapping[str, int] = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "uint8": 1, "int8": 1,
}  # fmt: skip
OPERATORS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
BITWISE = ("band", "bor", "bxor")
#: What a gap is counted from: of the collective before.
GAP_FROM = ("end", "start")
REDUCING, TOTAL, IN_BLOCKS = schedules.REDUCING, schedules.TOTAL, schedules.IN_BLOCKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A collective that is repeated. ``bytes``: S as nccl-tests define it; ``trials``: number of timed iterations.

    ``gap_ms``: computing before each iteration, since the ``end`` (``gap_from``: or the ``start``) of the collective before; a
    number for every iteration, or one for each. ``after`` replaces it: (places back, ms): so long after the end of that collective,
    or, for 0 places, after the start of the sequence.
    """

    operation: str
    bytes: int = 0
    trials: int = 1
    gap_ms: float | tuple[float, ...] = 0.0
    gap_from: str = "end"
    after: tuple[tuple[int, float], ...] = ()
    algorithm: str = "ring"
    dtype: str = "float32"
    groups: str = ""
    operator: str = "sum"
    root: int = 0
    shares: tuple[float, ...] = ()
    asynchronous: bool = False

    @property
    def gaps(self) -> tuple[float, ...]:
        """Milliseconds before each iteration."""
        return self.gap_ms if isinstance(self.gap_ms, tuple) else (self.gap_ms,) * self.trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An item with its groups and timed iterations: the steps from ``first_step`` to ``last_step``, every ``stride``-th.

    Algorithms that alternate (``turns``) have one step in ``stride`` each, so that steps are numbered in the order of execution.
    ``requested``: the algorithm as the user set it, if that was ``auto``.
    """

    number: int
    item: Item
    groups: sizes.Groups
    first_step: int
    stride: int = 1
    requested: str = ""

    @property
    def ranks(self) -> int:
        return len(self.groups[0])

    @property
    def last_step(self) -> int:
        return self.first_step + (self.item.trials - 1) * self.stride

    @property
    def count(self) -> int:
        """Elements of S."""
        return self.item.bytes // DTYPES[self.item.dtype]

    @property
    def blocks(self) -> tuple[int, ...]:
        """Elements of every rank's block, if the buffer consists of blocks."""
        if self.item.shares:
            return sizes.split(self.count, self.item.shares)
        return tuple(stop - start for start, stop in even_shares.bounds(self.count, self.ranks))

    @property
    def per_rank(self) -> int:
        """Bytes of one rank: its block of the total, or its whole buffer."""
        return self.item.bytes // self.ranks if self.item.operation in TOTAL else self.item.bytes

    @property
    def total(self) -> int:
        """Bytes of all ranks of a group together."""
        return self.item.bytes if self.item.operation in TOTAL else self.item.bytes * self.ranks

    def facts(self, cost: schedules.Cost | None, **traffic: int) -> CaseFacts:
        """The case in the event ``collective.plan``. ``traffic``: bytes on the busiest port and uplink, if known."""
        from ...model.events import CaseFacts

        item = self.item
        return CaseFacts(
            case=self.number, operation=item.operation, algorithm=item.algorithm, dtype=item.dtype,
            operator=item.operator, bytes=item.bytes, per_rank=self.per_rank, total=self.total, count=self.count,
            root=item.root, groups=self.groups, first_step=self.first_step, stride=self.stride, iterations=item.trials,
            cost={"rounds": cost.rounds, "volume": cost.volume} if cost else None,
            asynchronous=item.asynchronous, asked=self.requested or None, shares=item.shares or None,
            gap_ms=None if isinstance(item.gap_ms, tuple) else item.gap_ms,
            gaps_ms=item.gap_ms if isinstance(item.gap_ms, tuple) else None,
            gap_from=item.gap_from if item.gap_from != "end" else None, after=item.after or None, **traffic,
        )  # fmt: skip

    def label(self) -> str:
        item = self.item
        return " ".join([item.operation, item.algorithm, f"{item.bytes} B", item.dtype, *self._reduction()])

    def _reduction(self) -> tuple[str, ...]:
        return (self.item.operator,) if self.item.operation in REDUCING else ()


def cases(items: Iterable[Item], world: int, *, in_turn: bool = False) -> tuple[Case, ...]:
    """The cases of a run with their steps, counted from 1. Raises ValueError for groups that the world does not have.

    ``in_turn``: neighbours that differ only in the algorithm alternate from iteration to iteration.
    """
    planned: list[Case] = []
    step = 1
    for among in _races(tuple(items), in_turn=in_turn):
        for offset, item in enumerate(among):
            groups = sizes.groups(item.groups, world)
            planned.append(
                Case(number=len(planned), item=item, groups=groups, first_step=step + offset, stride=len(among))
            )
        step += sum(item.trials for item in among)
    return tuple(planned)


def turns(planned: Sequence[Case]) -> Iterator[tuple[Case, ...]]:
    """The cases in the order of the plan; those that alternate are together."""
    rest = tuple(planned)
    while rest:
        count = rest[0].stride
        yield rest[:count]
        rest = rest[count:]


def _races(items: Sequence[Item], *, in_turn: bool) -> Iterator[tuple[Item, ...]]:
    if not in_turn:
        yield from ((item,) for item in items)
        return
    for _, among in itertools.groupby(items, key=lambda item: replace(item, algorithm="")):
        yield tuple(among)


def chosen(case: Case, algorithm: str) -> Case:
    """The case with the algorithm that ``auto`` has chosen."""
    return replace(case, item=replace(case.item, algorithm=algorithm), requested=case.item.algorithm)


def once(case: Case) -> Case:
    """The collective alone, without its place in a sequence: equal for all iterations of equal collectives."""
    item = replace(case.item, trials=1, gap_ms=0.0, gap_from="end", after=())
    return replace(case, number=0, item=item, first_step=1, stride=1)


def problems(item: Item) -> Iterator[str]:
    """Problems with an item in any world, each as ``name: what must be (got …)``."""
    known = (("operation", OPERATIONS), ("dtype", tuple(DTYPES)), ("operator", OPERATORS))
    unknown = [(name, good) for name, good in known if getattr(item, name) not in good]
    for name, good in unknown:
        yield f"{name}: must be one of {', '.join(good)} (got {getattr(item, name)!r})"
    for name, least in (("trials", 1), ("root", 0)):
        if not getattr(item, name) >= least:
            yield f"{name}: must be >= {least} (got {getattr(item, name)})"
    yield from _of_gaps(item)
    yield from _of_groups(item)
    if not unknown:
        yield from _of_elements(item)


def _of_gaps(item: Item) -> Iterator[str]:
    gaps = item.gap_ms if isinstance(item.gap_ms, tuple) else (item.gap_ms,)
    for name, times in (("gap_ms", gaps), ("after", [ms for _, ms in item.after])):
        yield from (f"{name}: must be >= 0 (got {ms})" for ms in times if not ms >= 0)
        yield from (f"{name}: must be finite (got inf)" for ms in times if ms == math.inf)
    if isinstance(item.gap_ms, tuple) and len(gaps) != item.trials:
        yield f"gap_ms: needs a value for each of {item.trials} trials (got {len(gaps)})"
    if item.gap_from not in GAP_FROM:
        yield f"gap_from: must be one of {', '.join(GAP_FROM)} (got {item.gap_from!r})"
    yield from (f"after: must count >= 0 places back (got {back})" for back, _ in item.after if back < 0)
    if item.after and any(gaps):
        yield "after: replaces gap_ms; give one of them"


def _of_groups(item: Item) -> Iterator[str]:
    try:
        sizes.groups(item.groups)
    except ValueError as error:
        yield f"groups: {error}"


def _of_elements(item: Item) -> Iterator[str]:
    width = DTYPES[item.dtype]
    if item.operation != "barrier" and item.bytes < width:
        yield f"bytes: must hold an element of {item.dtype}, {width} bytes (got {item.bytes})"
    elif item.bytes % width:
        yield f"bytes: {item.bytes} is not a multiple of the {width} bytes of {item.dtype}"
    floating = item.dtype.startswith(("float", "bfloat"))
    if item.operation in REDUCING and (item.operator in BITWISE if floating else item.operator == "avg"):
        good = [name for name in OPERATORS if (name not in BITWISE if floating else name != "avg")]
        yield f"operator: {item.operator} of {item.dtype} is not defined; defined: {', '.join(good)}"
    if item.shares and item.operation != "all-to-all":
        yield f"shares: is for all-to-all only (got it for {item.operation})"
    elif problem := sizes.shares_problem(item.shares):
        yield f"shares: {problem} (got {', '.join(f'{share:g}' for share in item.shares)})"


def unfit(item: Item, world: int, algorithm: model.Chosen | None) -> Iterator[str]:
    """Yield why ``item``, good in itself, cannot be done among ``world`` ranks. ``algorithm`` None: it is no file."""
    try:
        case = cases([item], world)[0]
    except ValueError as error:
        yield f"groups: {error}"
        return
    if case.ranks < 2 and item.operation == "send-recv":
        yield f"groups: {item.operation} needs at least 2 ranks in a group (got {case.ranks})"
    if item.operation in schedules.ROOTED and item.root >= case.ranks:
        yield f"root: a group has ranks 0..{case.ranks - 1} (got {item.root})"
    yield from _unfit_shares(case)
    reason = algorithm.refuses(item.operation, case.ranks) if algorithm else ""
    if reason:
        yield f"algorithm: {reason}"
    elif parts := unequal(case, algorithm):
        yield _uneven(case, parts)


def _unfit_shares(case: Case) -> Iterator[str]:
    shares = case.item.shares
    if shares and len(shares) != case.ranks:
        yield f"shares: needs a value for each of {case.ranks} ranks (got {len(shares)})"
    elif shares:
        try:
            sizes.split(case.count, shares)
        except ValueError as error:
            yield f"shares: each must be at least one element: {error}"


def unequal(case: Case, algorithm: model.Chosen | None) -> int:
    """The number of equal parts that the algorithm, the backend or MPI needs, if the size does not divide by it; else 0."""
    operation = case.item.operation
    if algorithm is None:
        needed = case.item.algorithm != model.AUTO and operation in TOTAL
        parts = case.ranks
    else:
        needed = algorithm.even(operation)
        parts = case.ranks if operation in IN_BLOCKS else algorithm.chunks(operation, case.ranks)
    return parts if needed and (case.count % parts or len(set(case.item.shares)) > 1) else 0


def _uneven(case: Case, parts: int) -> str:
    item, width = case.item, DTYPES[case.item.dtype] * parts
    near = max(width, item.bytes // width * width)
    what = f"{item.algorithm} does {item.operation} in {parts} parts of one size"
    if item.shares:
        return f"shares: {what} (got {', '.join(f'{share:g}' for share in item.shares)})"
    return f"bytes: {what}; {item.bytes} bytes of {item.dtype} do not divide by {parts} ({near} bytes do)"
