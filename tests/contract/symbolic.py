"""Executes the schedules of all ranks on symbols, without torch: what every chunk holds, who waits for whom.

A chunk's content is a bag: how often each rank's contribution is in it. Messages travel in first-in, first-out order per pair
of ranks, as on gloo. A step's sends leave when the rank enters the step; the step ends when all its receives are in.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any


class Broken(Exception):
    """The schedules do not do what the operation promises."""


@dataclass
class Outcome:
    """What a run of all schedules came to. ``sent``: per rank the chunks that left it."""

    content: list[list[Counter[int]]]
    sent: list[list[int]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)


def execute(schedules: list[Any], chunks: int) -> Outcome:
    """Run all ranks until they have ended. Raises Broken on a deadlock, a message nobody takes, or a wrong pairing."""
    world = len(schedules)
    content = [[Counter({rank: 1}) for _ in range(chunks)] for rank in range(world)]
    mail: dict[tuple[int, int], deque[list[tuple[int, Counter[int]]]]] = {}
    position, entered = [0] * world, [False] * world
    sent: list[list[int]] = [[] for _ in range(world)]
    moved = True
    while moved:
        moved = False
        for rank, schedule in enumerate(schedules):
            if position[rank] == len(schedule):
                continue
            step = schedule[position[rank]]
            if not entered[rank]:
                _leave(rank, step, content, mail, sent, world, chunks)
                entered[rank] = moved = True
            if all(len(mail.get((recv.peer, rank), ())) >= _needed(step, recv.peer) for recv in step.recvs):
                _arrive(rank, step, content, mail)
                position[rank], entered[rank], moved = position[rank] + 1, False, True
    _closed(schedules, position, mail)
    return Outcome(content, sent, [len(schedule) for schedule in schedules])


def verify_all_reduce(schedules: list[Any], chunks: int) -> Outcome:
    """Every rank ends with every rank's contribution exactly once, in every chunk."""
    outcome = execute(schedules, chunks)
    wanted = Counter(dict.fromkeys(range(len(schedules)), 1))
    for rank, row in enumerate(outcome.content):
        for chunk, bag in enumerate(row):
            if bag != wanted:
                raise Broken(f"rank {rank}, chunk {chunk}: holds {dict(bag)}")
    return outcome


def _leave(rank: int, step: Any, content: Any, mail: Any, sent: Any, world: int, chunks: int) -> None:
    for send in step.sends:
        if not (0 <= send.peer < world and send.peer != rank and all(0 <= chunk < chunks for chunk in send.chunks)):
            raise Broken(f"rank {rank}: impossible {send}")
        message = [(chunk, content[rank][chunk].copy()) for chunk in send.chunks]
        mail.setdefault((rank, send.peer), deque()).append(message)
        sent[rank].extend(send.chunks)


def _needed(step: Any, peer: int) -> int:
    return sum(recv.peer == peer for recv in step.recvs)


def _arrive(rank: int, step: Any, content: Any, mail: Any) -> None:
    for recv in step.recvs:
        message = mail[recv.peer, rank].popleft()
        for wanted, (chunk, bag) in zip(recv.chunks, message, strict=True):
            if chunk != wanted:
                raise Broken(f"rank {rank}: wants chunk {wanted} of rank {recv.peer}, gets chunk {chunk}")
            content[rank][chunk] = content[rank][chunk] + bag if recv.reduce else bag


def _closed(schedules: list[Any], position: list[int], mail: Any) -> None:
    stuck = [rank for rank, schedule in enumerate(schedules) if position[rank] < len(schedule)]
    if stuck:
        raise Broken(f"deadlock: ranks {stuck} wait for ever")
    left = {pair: len(queue) for pair, queue in mail.items() if queue}
    if left:
        raise Broken(f"sent but never received: {left}")
