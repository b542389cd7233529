"""Runs and verifies one collective on one rank: its buffer, the call of an algorithm, backend or MPI, and the expected result.

Test patterns are small integers that are exact in every dtype and order of sums.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from ...model import algorithm as model
from ...model.frozen import dataclass, replace
from ..checkpoint import tensor_digest
from ..runtime import recorder
from . import backend_calls, case_layout, cases, schedule_runner
from .case_layout import COMBINED, Segment
from .cases import REDUCING, Case, Item

#: Operations whose result must be the same on all ranks of a group.
EQUAL = ("all-reduce", "all-gather", "broadcast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """This rank in its group. ``ranks``: global ranks of the group; ``me``: the group rank; ``group``: None for all ranks."""

    ranks: tuple[int, ...]
    me: int
    group: dist.ProcessGroup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    offset: int
    expected: float
    got: float


class Memory:
    """A buffer with its inputs and expected result. ``layout``: without ``parts``, which depend on the algorithm."""

    def __init__(self, item: Item, layout: case_layout.Layout, ranks: Sequence[int], device: torch.device) -> None:
        self.flat = torch.zeros(layout.size, dtype=DTYPES[item.dtype], device=device)
        patterns = Patterns(ranks, item.operator if item.operation in REDUCING else "sum", item.dtype)
        self.inputs = [
            (self.flat[segment.at : segment.at + segment.size], patterns.tile(segment).to(device))
            for segment in layout.inputs
        ]
        self.expected = self._expected(patterns, layout)

    def _expected(self, patterns: Patterns, layout: case_layout.Layout) -> torch.Tensor:
        """The expected result, without a second copy at any time."""
        outputs = layout.outputs
        if len(outputs) == 1:
            return patterns.tile(outputs[0]).to(self.flat.device)
        expected = torch.empty(sum(segment.size for segment in outputs), dtype=self.flat.dtype, device=self.flat.device)
        at = 0
        for segment in outputs:
            expected[at : at + segment.size] = patterns.tile(segment)
            at += segment.size
        return expected


class Memories:
    """The buffers of cases of one group: cases with the same layout, type and operator share one."""

    def __init__(self, ranks: Sequence[int], device: torch.device) -> None:
        self._ranks, self._device = ranks, device
        self._made: dict[tuple[case_layout.Layout, str, str], Memory] = {}

    def of(self, item: Item, layout: case_layout.Layout) -> Memory:
        bare = replace(layout, parts=())
        key = (bare, item.dtype, item.operator if item.operation in REDUCING else "")
        if key not in self._made:
            self._made[key] = Memory(item, bare, self._ranks, self._device)
        return self._made[key]


class Peer(Protocol):
    """Another library that runs cases, such as Open MPI."""

    def work(self, item: Item, arguments: backend_calls.Call) -> Callable[[], None]: ...


class Work:
    """A case on this rank. Call fill(), begin(), then wrong() and hash(). ``peer``: Open MPI, if it runs the case."""

    def __init__(
        self,
        case: Case,
        member: Membership,
        algorithm: model.Chosen | None,
        memories: Memories,
        chunks: recorder.Chunks | None,
        peer: Peer | None = None,
    ) -> None:
        self._case, self._member, item = case, member, case.item
        count = algorithm.chunks(item.operation, case.ranks) if algorithm else 0
        self._layout = case_layout.layout(case, member.ranks, member.me, count)
        memory = memories.of(item, self._layout)
        self._flat, self._inputs, self._expected = memory.flat, memory.inputs, memory.expected
        self._result = self._view(*self._layout.checked)
        self._parts = [self._view(*part) for part in self._layout.parts]
        self._exchange = self._made(algorithm, chunks) if algorithm else None
        self._mpi_call = peer.work(item, self._call()) if peer else None

    @property
    def result(self) -> torch.Tensor:
        return self._result

    def fill(self) -> None:
        """Fill in the inputs, and 0, which is never a result, everywhere else."""
        self._flat.zero_()
        for view, content in self._inputs:
            view.copy_(content)

    def begin(self, step: int, first: Callable[[], None]) -> Callable[[], None]:
        """Run the case, or start it if asynchronous; return a function that waits. ``first``: called after the first exchange."""
        asynchronous = self._case.item.asynchronous
        if self._mpi_call is not None:
            first()
            self._mpi_call()
            self._divide()
            return lambda: None
        if self._exchange is None:
            first()  # a call of the backend has no point inside
            return backend_calls.start(self._case.item.operation, self._call(), asynchronous=asynchronous)
        if not asynchronous:
            self._exchange.run(self._parts, step=step, op=0, first=first)
            self._divide()
            return lambda: None
        first()
        handle = self._exchange.start(self._parts, step=step, op=0)

        def wait() -> None:
            handle.wait()
            self._divide()

        return wait

    def wrong(self) -> Wrong | None:
        """The first element that differs from the expected result; None if all are exact."""
        if torch.equal(self._result, self._expected):
            return None
        offset = int((self._result != self._expected).nonzero()[0].item())
        return Wrong(offset=offset, expected=self._expected[offset].item(), got=self._result[offset].item())

    def hash(self) -> int:
        """A checksum of the result if it must be equal on all ranks, else 0."""
        return zlib.crc32(tensor_digest.raw(self._result)) if self._case.item.operation in EQUAL else 0

    def _view(self, start: int, stop: int) -> torch.Tensor:
        return self._flat[start:stop]

    def _made(self, algorithm: model.Chosen, chunks: recorder.Chunks | None) -> schedule_runner.Exchange:
        item, member = self._case.item, self._member
        schedule = algorithm.schedule(item.operation, member.me, self._case.ranks, item.root)
        operator = "sum" if item.operator == "avg" else item.operator
        return schedule_runner.Exchange(
            schedule, ranks=member.ranks, group=member.group, operator=operator, chunks=chunks
        )

    def _divide(self) -> None:
        if self._case.item.operator == "avg" and self._case.item.operation in REDUCING:
            self._result.div_(self._case.ranks)

    def _call(self) -> backend_calls.Call:
        item, member = self._case.item, self._member
        return backend_calls.Call(
            flat=self._flat,
            layout=self._layout,
            ranks=member.ranks,
            me=member.me,
            root=item.root,
            operator=backend_calls.operator(item.operator),
            group=member.group,
        )


def join_groups(groups: Sequence[Sequence[int]], rank: int, world: int) -> Membership | None:
    """Create the groups, as a collective of all ranks; return this rank's membership, None if it is in no group."""
    if len(groups) == 1 and len(groups[0]) == world:
        return Membership(ranks=tuple(groups[0]), me=rank)
    member = None
    for ranks in groups:
        group = dist.new_group(list(ranks))
        if rank in ranks:
            member = Membership(ranks=tuple(ranks), me=list(ranks).index(rank), group=group)
    return member


#: Elements until a pattern repeats: a prime, so that a chunk at a wrong offset is detected.
PERIOD = 4093
#: Up to this value, sums of integers are exact in bfloat16 and fit int8.
_EXACT = 127

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in cases.DTYPES}


class Patterns:
    """The patterns of the ranks of one group for one operator and dtype."""

    def __init__(self, ranks: Sequence[int], operator: str, dtype: str) -> None:
        self._ranks, self._operator, self._dtype = tuple(ranks), operator, DTYPES[dtype]
        self._made: dict[int, torch.Tensor] = {}

    def tile(self, segment: Segment) -> torch.Tensor:
        if segment.of not in self._made:
            self._made[segment.of] = self._pattern(segment.of)
        pattern, start = self._made[segment.of], segment.index % PERIOD
        times = -(-(start + segment.size) // PERIOD)
        return pattern.repeat(times)[start : start + segment.size]

    def _pattern(self, of: int) -> torch.Tensor:
        if of != COMBINED:
            return source(of, len(self._ranks), self._operator).to(self._dtype)
        every = torch.stack([source(rank, len(self._ranks), self._operator) for rank in self._ranks])
        if self._operator == "avg":
            return every.sum(dim=0).to(self._dtype) / len(self._ranks)
        return combine(every, self._operator).to(self._dtype)


def source(rank: int, world: int, operator: str) -> torch.Tensor:
    """One period of the input of ``rank`` among ``world`` ranks, as int64."""
    index = torch.arange(PERIOD)
    if operator == "prod":
        return 1 + ((index + 5 * rank) % max(4, -(-world // 6)) == 0).to(torch.int64)
    if operator == "band":
        bit = torch.bitwise_left_shift(torch.ones_like(index), index % 7)
        return torch.where(index % max(world, 2) == rank % max(world, 2), _EXACT - bit, _EXACT)
    limit = _EXACT if operator in ("bor", "bxor") else min(16, max(1, _EXACT // world))
    return 1 + (index * 7 + index // 13 + rank * 11) % limit


def combine(every: torch.Tensor, operator: str) -> torch.Tensor:
    """The rows of ``every`` combined by ``operator``."""
    if operator in ("sum", "prod"):
        return every.sum(dim=0) if operator == "sum" else every.prod(dim=0)
    if operator in ("min", "max"):
        return every.amin(dim=0) if operator == "min" else every.amax(dim=0)
    function = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}[operator]
    result = every[0]
    for row in every[1:]:
        result = function(result, row)
    return result
