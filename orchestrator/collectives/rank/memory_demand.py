"""The memory that the buffers of a measurement need on each rank, and whether as much is free, before any rank allocates it."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...model import algorithm as model
from ...model import requirements
from ...model.requirements import RequiredMemory
from ...rank.exchange import case_layout, cases, receive_schedule
from . import algorithm_choice, measuring, replay_pacing

if TYPE_CHECKING:
    import torch

#: By rank: (checksum of the memory's owner, bytes that the rank needs, bytes that are free).
Reports = Sequence[Sequence[float]]

#: For these the backend copies everything into one buffer, or out of one.
_FLATTENED = ("all-gather", "reduce-scatter", "gather")
#: In larger groups the scratch of schedules is not computed: it would take seconds.
_MANY = 64


def of(
    items: Iterable[cases.Item], world: int, params: measuring.Measuring, smaller: str, *, in_turn: bool = False
) -> RequiredMemory | None:
    """The need of the largest cases that alternate; None if there are none. ``smaller``: the parameter to reduce."""
    drains = 2 * max(params.drain, 0)
    needs = [
        RequiredMemory(operation=label(among), ranks=tuple(need(among, rank) + drains for rank in range(world)),
                    size_bytes=among[0].item.bytes, setting=smaller)
        for among in replay_pacing.concurrent(cases.cases(_largest(tuple(items)), world, in_turn=in_turn))
    ]  # fmt: skip
    return max(needs, key=lambda required: (max(required.ranks), sum(required.ranks)), default=None)


def label(among: Sequence[cases.Case]) -> str:
    """The cases that are in memory at the same time, as text."""
    if len(among) > 1 and replay_pacing.is_paced(among) and among[0].stride == 1:
        return f"a sequence of {len(among)} cases, {among[0].label()} first"
    others = ", ".join(case.item.algorithm for case in among[1:])
    return among[0].label() + (f" in turn with {others}" if others else "")


def need(among: Sequence[cases.Case], rank: int) -> int:
    """Bytes that ``rank`` needs for cases at the same time: shared buffers once, and the scratch of every case."""
    common: dict[object, int] = {}
    own = 0
    for case in _with_candidates(among):
        ranks = next((group for group in case.groups if rank in group), None)
        if ranks is not None:
            layout, extra = _layout(case, ranks, ranks.index(rank))
            width = cases.DTYPES[case.item.dtype]
            reduced = case.item.operator if case.item.operation in cases.REDUCING else ""
            common[replace(layout, parts=()), ranks, case.item.dtype, reduced] = width * _elements(layout)
            own += width * extra
    return sum(common.values()) + own


def _with_candidates(among: Iterable[cases.Case]) -> Iterator[cases.Case]:
    """Replace auto by all of its candidates, because it measures them in turn."""
    for case in among:
        if case.item.algorithm == model.AUTO:
            yield from (cases.chosen(case, candidate.name) for candidate in algorithm_choice.candidates(case))
        else:
            yield case


def _elements(layout: case_layout.Layout) -> int:
    """Elements of the buffer, of its inputs, and of its expected outputs."""
    return layout.size + sum(part.size for part in (*layout.inputs, *layout.outputs))


def _layout(case: cases.Case, ranks: Sequence[int], me: int) -> tuple[case_layout.Layout, int]:
    """The layout of the buffer, and the further elements that the algorithm or the expected outputs need."""
    chunks, scratch = _scratch(case.item.algorithm, case.item.operation, case.ranks, me, case.item.root)
    layout = case_layout.layout(case, ranks, me, chunks)
    outputs = [segment.size for segment in layout.outputs]
    extra = max((stop - start for start, stop in layout.parts), default=0) * scratch
    made = max(outputs) if len(outputs) > 1 else 0
    if case.item.algorithm == model.LIBRARY and case.item.operation in _FLATTENED and outputs:
        extra = case.count
    return layout, max(made, extra)


def _largest(items: Sequence[cases.Item]) -> Sequence[cases.Item]:
    """Return the largest of the items that differ only in size; all items if they may be a sequence, whose buffers exist together."""
    if any(item.after or any(item.gaps) for item in items):
        return items
    largest: dict[object, cases.Item] = {}
    for item in items:
        key = (item.operation, item.algorithm, item.dtype, item.groups, item.root, item.shares)
        if key not in largest or item.bytes > largest[key].bytes:
            largest[key] = item
    return list(largest.values())


@functools.lru_cache(maxsize=4096)
def _scratch(text: str, operation: str, ranks: int, me: int, root: int) -> tuple[int, int]:
    """(chunks of the buffer, most chunks of scratch at a time); 0 where they are not known."""
    algorithm = algorithm_choice.find(text)
    if algorithm is None or ranks > _MANY:
        return 0, 0
    schedule = algorithm.schedule(operation, me, ranks, root)
    return algorithm.chunks(operation, ranks), receive_schedule.scratch(schedule)


class TooLarge(Exception):
    """A case needs more memory than is free."""

    kind = "memory"


def require(
    wanted: Iterable[Sequence[cases.Case]], rank: int, world: int, device: torch.device, spare: int = 0
) -> None:
    """Raises TooLarge on every rank if a rank lacks memory. ``wanted``: cases whose buffers exist at the same time.

    ``spare``: bytes in addition to the cases. A collective.
    """
    largest = max(wanted, key=lambda among: need(among, rank), default=None)
    needed = float(need(largest, rank) if largest else 0) + spare
    report = [part for owner, free in _free(rank, device) for part in (owner, needed, free)]
    reports = _gather(report, world, device)
    where = ("on one GPU",) if device.type == "cuda" else ("on one host", "in one container")
    problems = (
        shortage([line[3 * index : 3 * index + 3] for line in reports], text) for index, text in enumerate(where)
    )
    if largest and (problem := next(filter(None, problems), "")):
        raise TooLarge(f"{label(largest)}: {problem}")


def shortage(reports: Reports, where: str) -> str:
    """The first shortage of memory as a sentence; empty if there is none. Ranks with the same owner share its memory."""
    for owner, _, free in reports:
        needs = [needed for other, needed, _ in reports if other == owner]
        if sum(needs) > free:
            ranks = [rank for rank, (other, *_) in enumerate(reports) if other == owner]
            named = f"rank {ranks[0]} needs" if len(ranks) == 1 else f"{len(ranks)} ranks from rank {ranks[0]} on need"
            return f"{named} {requirements.size_text(sum(needs))} {where}, {requirements.size_text(free)} are free"
    return ""


def _gather(report: list[float], world: int, device: torch.device) -> Reports:
    import torch
    import torch.distributed as dist

    row = torch.tensor(report, dtype=torch.float64, device=device)
    if world == 1:
        return [report]
    rows = [torch.zeros_like(row) for _ in range(world)]
    dist.all_gather(rows, row)
    return [row.tolist() for row in rows]


def _free(rank: int, device: torch.device) -> list[tuple[float, float]]:
    """(owner, free bytes) of the rank's GPU; or of its host, the same in all containers, and of its container."""
    import torch

    from ...rank.runtime import recorder

    if device.type == "cuda":
        return [(float(rank), float(torch.cuda.mem_get_info(device)[0]))]
    boot, groups = recorder.boot_id(), recorder.read("/proc/self/cgroup")
    container = f"{boot}{groups}{Path('/proc/self/ns/cgroup').readlink()}"
    known = requirements.available_on_host(recorder.read), requirements.available_in_cgroup(recorder.read)
    free = [math.inf if size is None else float(size) for size in known]
    return [(float(zlib.crc32(owner.encode())), size) for owner, size in zip((boot, container), free, strict=True)]
