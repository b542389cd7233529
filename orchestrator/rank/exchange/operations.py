"""One collective on one rank: its buffer, the call of an algorithm or of the library, and the proof that the result is right."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ...model import algorithm as model
from ..checkpoint import tensor_digest
from ..collective.cases import REDUCING, Case, Item
from ..runtime import recorder
from . import backend_calls, case_layout, schedule_runner, test_pattern

if TYPE_CHECKING:
    from ..open_mpi import peer as mpi_peer

#: Operations whose result must be the same on all ranks of a group.
EQUAL = ("all-reduce", "all-gather", "broadcast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this rank stands: ``ranks`` of its group as global ranks, ``me`` its place among them. ``group`` None: everybody."""

    ranks: tuple[int, ...]
    me: int
    group: dist.ProcessGroup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """The first wrong element of a result."""

    offset: int
    expected: float
    got: float


class Memory:
    """A buffer, what is put into it, and what must come out. ``layout``: without its parts, which are an algorithm's own."""

    def __init__(self, item: Item, layout: case_layout.Layout, ranks: Sequence[int], device: torch.device) -> None:
        self.flat = torch.zeros(layout.size, dtype=test_pattern.DTYPES[item.dtype], device=device)
        patterns = test_pattern.Patterns(ranks, item.operator if item.operation in REDUCING else "sum", item.dtype)
        self.given = [(self.flat[one.at : one.at + one.size], patterns.tile(one).to(device)) for one in layout.inputs]
        self.expected = self._wanted(patterns, layout)

    def _wanted(self, patterns: test_pattern.Patterns, layout: case_layout.Layout) -> torch.Tensor:
        """The whole result, without a second copy of it at any time."""
        outputs = layout.outputs
        if len(outputs) == 1:
            return patterns.tile(outputs[0]).to(self.flat.device)
        made = torch.empty(sum(one.size for one in outputs), dtype=self.flat.dtype, device=self.flat.device)
        at = 0
        for one in outputs:
            made[at : at + one.size] = patterns.tile(one)
            at += one.size
        return made


class Memories:
    """One Memory for all cases that take turns, as far as they need the same; they have it one after the other."""

    def __init__(self, ranks: Sequence[int], device: torch.device) -> None:
        self._ranks, self._device = ranks, device
        self._made: dict[case_layout.Layout, Memory] = {}

    def of(self, item: Item, layout: case_layout.Layout) -> Memory:
        """``item`` is as that of the others but for the algorithm."""
        key = replace(layout, parts=())
        if key not in self._made:
            self._made[key] = Memory(item, key, self._ranks, self._device)
        return self._made[key]


class Work:
    """A case on this rank. fill(), then run() or begin(), then wrong() and hash(). ``peer``: who does it in our place."""

    def __init__(
        self,
        case: Case,
        place: Place,
        algorithm: model.Chosen | None,
        memories: Memories,
        chunks: recorder.Chunks | None,
        peer: mpi_peer.Peer | None = None,
    ) -> None:
        self._case, self._place, item = case, place, case.item
        count = algorithm.chunks(item.operation, case.ranks) if algorithm else 0
        self._layout = case_layout.layout(case, place.ranks, place.me, count)
        memory = memories.of(item, self._layout)
        self._flat, self._given, self._expected = memory.flat, memory.given, memory.expected
        self._result = self._view(*self._layout.checked)
        self._parts = [self._view(*part) for part in self._layout.parts]
        self._exchange = self._made(algorithm, chunks) if algorithm else None
        self._foreign = peer.work(item, self._call()) if peer else None

    @property
    def result(self) -> torch.Tensor:
        return self._result

    def fill(self) -> None:
        """The inputs in their places; 0, which is no result, everywhere else."""
        self._flat.zero_()
        for view, content in self._given:
            view.copy_(content)

    def begin(self, step: int, first: Callable[[], None]) -> Callable[[], None]:
        """Do it, or begin it where the case is asynchronous; what waits for its end. ``first``: after the first exchange."""
        later = self._case.item.asynchronous
        if self._foreign is not None:
            first()
            self._foreign()
            self._divide()
            return lambda: None
        if self._exchange is None:
            first()  # there is no point inside a call of the library
            return backend_calls.call(self._case.item.operation, self._call(), asynchronous=later)
        if not later:
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
        """The first element that is not what it must be, exactly."""
        if torch.equal(self._result, self._expected):
            return None
        offset = int((self._result != self._expected).nonzero()[0].item())
        return Wrong(offset=offset, expected=self._expected[offset].item(), got=self._result[offset].item())

    def hash(self) -> int:
        """A checksum of the result where it must be equal on all ranks, else 0."""
        return zlib.crc32(tensor_digest.raw(self._result)) if self._case.item.operation in EQUAL else 0

    def _view(self, start: int, stop: int) -> torch.Tensor:
        return self._flat[start:stop]

    def _made(self, algorithm: model.Chosen, chunks: recorder.Chunks | None) -> schedule_runner.Exchange:
        item, place = self._case.item, self._place
        schedule = algorithm.schedule(item.operation, place.me, self._case.ranks, item.root)
        operator = "sum" if item.operator == "avg" else item.operator
        return schedule_runner.Exchange(
            schedule, ranks=place.ranks, group=place.group, operator=operator, chunks=chunks
        )

    def _divide(self) -> None:
        if self._case.item.operator == "avg" and self._case.item.operation in REDUCING:
            self._result.div_(self._case.ranks)

    def _call(self) -> backend_calls.Call:
        item, place = self._case.item, self._place
        return backend_calls.Call(
            flat=self._flat,
            layout=self._layout,
            ranks=place.ranks,
            me=place.me,
            root=item.root,
            operator=backend_calls.operator(item.operator),
            group=place.group,
        )


def place(groups: Sequence[Sequence[int]], rank: int, world: int) -> Place | None:
    """Make the groups, which all ranks do together; this rank's, or None where it is in none of them."""
    if len(groups) == 1 and len(groups[0]) == world:
        return Place(ranks=tuple(groups[0]), me=rank)
    found = None
    for ranks in groups:
        group = dist.new_group(list(ranks))
        if rank in ranks:
            found = Place(ranks=tuple(ranks), me=list(ranks).index(rank), group=group)
    return found
