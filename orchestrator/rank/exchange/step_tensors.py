"""The tensors of every step of a schedule: copied, received, packed, sent, unpacked and combined."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...model import schedule as model
from ...model.frozen import dataclass, field
from . import receive_schedule


@dataclass(slots=True)
class Arrival:
    """A receive: sender, first chunk, bytes, and the tensor that is received into (None: the message is empty)."""

    receive_id: receive_schedule.ReceiveId
    peer: int
    chunk: int
    size: int
    into: torch.Tensor | None
    token: bool


@dataclass(slots=True)
class Row:
    """The tensors of one step. Pairs are (target, source); ``packs`` are (message, its pieces).

    ``in_turn``: each message is sent when the one before it has been sent.
    """

    copies: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    posts: list[Arrival] = field(default_factory=list)
    packs: list[tuple[torch.Tensor, list[torch.Tensor]]] = field(default_factory=list)
    sends: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    in_turn: bool = False
    arrivals: list[Arrival] = field(default_factory=list)
    unpacks: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    reductions: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


def rows(
    schedule: model.Schedule, parts: Sequence[torch.Tensor], ranks: Sequence[int], device: torch.device
) -> list[Row]:
    """The steps of ``schedule`` over ``parts``; peers are global ranks. Empty messages are left out on both sides."""
    made = [Row() for _ in schedule]
    sizes = [part.numel() * part.element_size() for part in parts]
    plan = receive_schedule.plan(schedule, sizes)
    arrivals: dict[receive_schedule.ReceiveId, Arrival] = {}
    pool = _Pool(parts, device)
    for index, step in enumerate(schedule):
        row = made[index]
        row.copies = [(parts[copy.target], parts[copy.source]) for copy in step.copies]
        for receive_id in plan[index]:
            arrivals[receive_id] = _arrival(receive_id, schedule[receive_id[0]], parts, ranks, pool)
        row.posts = [arrivals[receive_id] for receive_id in plan[index]]
        _sends(row, step, parts, ranks, pool)
        row.in_turn = receive_schedule.sends_in_turn(step, sizes)
        row.arrivals = [arrivals[index, number] for number in range(len(step.recvs))]
        for recv, arrival in zip(step.recvs, row.arrivals, strict=True):
            _effects(row, recv, arrival, parts)
        pool.release(index)
    return made


def joined(parts: Sequence[torch.Tensor], chunks: Sequence[int]) -> torch.Tensor | None:
    """The chunks as one view; None if they are not contiguous in memory."""
    pieces = [parts[chunk] for chunk in chunks if parts[chunk].numel()]
    if not pieces:
        return parts[chunks[0]] if chunks else None
    first, total = pieces[0], 0
    for piece in pieces:
        if piece.data_ptr() != first.data_ptr() + total * first.element_size():
            return None
        total += piece.numel()
    if len(pieces) == 1:
        return first
    if any(piece.untyped_storage().data_ptr() != first.untyped_storage().data_ptr() for piece in pieces):
        return None
    return first.as_strided((total,), (1,))


def _arrival(
    receive_id: receive_schedule.ReceiveId,
    step: model.Step,
    parts: Sequence[torch.Tensor],
    ranks: Sequence[int],
    pool: _Pool,
) -> Arrival:
    recv = step.recvs[receive_id[1]]
    into = None if receive_schedule.staged(step, recv) else joined(parts, recv.chunks)
    if into is None:
        into = pool.message(parts, recv.chunks, receive_id[0])
    chunk = recv.chunks[0] if recv.chunks else 0
    size = into.numel() * into.element_size()
    return Arrival(receive_id, ranks[recv.peer], chunk, size, into if size else None, token=not recv.chunks)


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
    """Add what happens to the chunks at the end of the step; nothing if they were received in place."""
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
    """Scratch memory, reused as soon as the step that needed it has ended."""

    def __init__(self, parts: Sequence[torch.Tensor], device: torch.device) -> None:
        self._dtype = parts[0].dtype if parts else torch.int32
        self._device = device
        self._free: dict[int, list[torch.Tensor]] = {}
        self._until: dict[int, list[torch.Tensor]] = {}
        self._token = torch.zeros(1, dtype=torch.int32, device=device)
        self.at = 0

    def message(self, parts: Sequence[torch.Tensor], chunks: Sequence[int], until: int) -> torch.Tensor:
        """A tensor for the chunks until the end of step ``until``; all tokens share one."""
        if not chunks:
            return self._token
        size = sum(parts[chunk].numel() for chunk in chunks)
        free = self._free.get(size)
        tensor = free.pop() if free else torch.empty(size, dtype=self._dtype, device=self._device)
        self._until.setdefault(until, []).append(tensor)
        return tensor

    def release(self, index: int) -> None:
        for tensor in self._until.pop(index, ()):
            self._free.setdefault(tensor.numel(), []).append(tensor)
        self.at = index + 1
