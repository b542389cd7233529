"""Where everything of a schedule lies in memory: what is copied, posted, sent, unpacked and combined, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ...model import schedule as model
from . import receive_schedule


@dataclass(slots=True)
class Arrival:
    """One receive: who sends, its first chunk, its bytes; the memory that it is received into (None: it is empty)."""

    place: receive_schedule.Place
    peer: int
    chunk: int
    size: int
    into: torch.Tensor | None
    token: bool


@dataclass(slots=True)
class Row:
    """One step. Pairs are (target, source); ``packs`` are (message, its pieces)."""

    copies: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    posts: list[Arrival] = field(default_factory=list)
    packs: list[tuple[torch.Tensor, list[torch.Tensor]]] = field(default_factory=list)
    sends: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    unpacks: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    reductions: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


def rows(
    schedule: model.Schedule,
    plan: Sequence[Sequence[receive_schedule.Place]],
    parts: Sequence[torch.Tensor],
    ranks: Sequence[int],
    device: torch.device,
) -> list[Row]:
    """The steps of ``schedule`` over ``parts``; peers are global ranks. Empty messages are left out on both sides."""
    made = [Row() for _ in schedule]
    arrivals: dict[receive_schedule.Place, Arrival] = {}
    pool = _Pool(parts, device)
    for index, step in enumerate(schedule):
        row = made[index]
        row.copies = [(parts[copy.target], parts[copy.source]) for copy in step.copies]
        for place in plan[index]:
            arrivals[place] = _arrival(place, schedule[place[0]], parts, ranks, pool)
        row.posts = [arrivals[place] for place in plan[index]]
        _sends(row, step, parts, ranks, pool)
        row.arrivals = [arrivals[index, number] for number in range(len(step.recvs))]
        for recv, arrival in zip(step.recvs, row.arrivals, strict=True):
            _effects(row, recv, arrival, parts)
        pool.release(index)
    return made


def joined(parts: Sequence[torch.Tensor], chunks: Sequence[int]) -> torch.Tensor | None:
    """The chunks as one view; None where they are no neighbours in memory."""
    found = [parts[chunk] for chunk in chunks if parts[chunk].numel()]
    if not found:
        return parts[chunks[0]] if chunks else None
    first, total = found[0], 0
    for one in found:
        if one.data_ptr() != first.data_ptr() + total * first.element_size():
            return None
        total += one.numel()
    if len(found) == 1:
        return first
    if any(one.untyped_storage().data_ptr() != first.untyped_storage().data_ptr() for one in found):
        return None
    return first.as_strided((total,), (1,))


def _arrival(
    place: receive_schedule.Place, step: model.Step, parts: Sequence[torch.Tensor], ranks: Sequence[int], pool: _Pool
) -> Arrival:
    recv = step.recvs[place[1]]
    into = None if receive_schedule.staged(step, recv) else joined(parts, recv.chunks)
    if into is None:
        into = pool.message(parts, recv.chunks, place[0])
    chunk = recv.chunks[0] if recv.chunks else 0
    size = into.numel() * into.element_size()
    return Arrival(place, ranks[recv.peer], chunk, size, into if size else None, token=not recv.chunks)


def _sends(row: Row, step: model.Step, parts: Sequence[torch.Tensor], ranks: Sequence[int], pool: _Pool) -> None:
    for send in step.sends:
        message = joined(parts, send.chunks)
        if message is None:
            message = pool.message(parts, send.chunks, pool.at)
            if send.chunks:
                row.packs.append((message, [parts[chunk] for chunk in send.chunks]))
        if message.numel():
            row.sends.append((message, ranks[send.peer]))


def _effects(row: Row, recv: model.Recv, arrival: Arrival, parts: Sequence[torch.Tensor]) -> None:
    """What happens to the chunks at the end of the step; nothing where they were received in place."""
    if arrival.into is None or not recv.chunks:
        return
    whole = joined(parts, recv.chunks)
    if whole is not None and whole.data_ptr() == arrival.into.data_ptr():
        return
    effects = row.reductions if recv.reduce else row.unpacks
    if whole is not None:
        effects.append((whole, arrival.into))
        return
    pieces = torch.split(arrival.into, [parts[chunk].numel() for chunk in recv.chunks])
    effects.extend((parts[chunk], piece) for chunk, piece in zip(recv.chunks, pieces, strict=True) if piece.numel())


class _Pool:
    """Scratch memory, used again as soon as the step that needed it is over."""

    def __init__(self, parts: Sequence[torch.Tensor], device: torch.device) -> None:
        self._dtype = parts[0].dtype if parts else torch.int32
        self._device = device
        self._free: dict[int, list[torch.Tensor]] = {}
        self._until: dict[int, list[torch.Tensor]] = {}
        self._token = torch.zeros(1, dtype=torch.int32, device=device)
        self.at = 0

    def message(self, parts: Sequence[torch.Tensor], chunks: Sequence[int], until: int) -> torch.Tensor:
        """Room for the chunks until the end of step ``until``; for a token there is one place for all."""
        if not chunks:
            return self._token
        size = sum(parts[chunk].numel() for chunk in chunks)
        free = self._free.get(size)
        found = free.pop() if free else torch.empty(size, dtype=self._dtype, device=self._device)
        self._until.setdefault(until, []).append(found)
        return found

    def release(self, index: int) -> None:
        for one in self._until.pop(index, ()):
            self._free.setdefault(one.numel(), []).append(one)
        self.at = index + 1
