"""What every file in algorithms/ must do; a new file joins by being there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.model import algorithm, schedule
from tests.contract import algorithms, symbolic

from ..unit.catalogue import CATALOGUE

ALL = algorithms.cases(algorithms.defaults() + algorithms.variants())
#: With few segments, so that there are not too many.
MUTATED = [case for case in ALL if "segments" not in case[0].label and not hasattr(case[0].params, "segments")] + [
    case for case in ALL if case[0].label.endswith("segments=3")
]
SYMMETRIC = {
    ("bidirectional-ring", "all-reduce"), ("bidirectional-ring", "all-gather"), ("bidirectional-ring", "reduce-scatter"),
    ("ring", "all-reduce"), ("ring", "all-gather"), ("ring", "reduce-scatter"),
    ("bruck", "all-gather"), ("bruck", "all-to-all"), ("pairwise", "all-to-all"), ("pairwise", "reduce-scatter"),
    ("direct", "all-to-all"), ("direct", "all-gather"), ("direct", "send-recv"), ("dissemination", "barrier"),
    ("star", "broadcast"), ("star", "reduce"), ("star", "gather"), ("star", "scatter"),
    ("binomial-tree", "reduce"), ("binomial-tree", "gather"),
}  # fmt: skip
POWERS = {("halving-doubling", "all-reduce"), ("halving-doubling", "reduce-scatter")} | {
    ("recursive-doubling", operation) for operation in ("all-reduce", "all-gather", "barrier")
}


@pytest.fixture(params=list(CATALOGUE.algorithms))
def plugin(request: pytest.FixtureRequest) -> Any:
    return CATALOGUE.algorithms[request.param]


def test_has_a_first_line_for_the_catalogue(plugin: Any) -> None:
    assert plugin.summary


def test_promises_known_operations(plugin: Any) -> None:
    assert plugin.module.OPERATIONS
    assert set(plugin.module.OPERATIONS) <= set(schedule.OPERATIONS)
    assert set(getattr(plugin.module, "EVEN", ())) <= set(plugin.module.OPERATIONS)


def test_every_operation_has_two_algorithms_at_least() -> None:
    operations = [operation for _, operation in algorithms.cases(algorithms.defaults())]
    assert [operation for operation in schedule.OPERATIONS if operations.count(operation) < 2] == []


@pytest.mark.parametrize(("chosen", "operation"), ALL, ids=algorithms.named)
def test_ends_as_the_operation_promises_for_every_world(chosen: algorithm.Chosen, operation: str) -> None:
    worlds = list(algorithms.worlds(chosen, operation, 32))
    assert {1, 2, 4, 8, 16, 32} <= set(worlds)
    for world in worlds:
        for root in algorithms.roots(operation, world):
            algorithms.prove(chosen, operation, world, root)


@pytest.mark.parametrize(("chosen", "operation"), ALL, ids=algorithms.named)
def test_alone_there_is_nobody_to_talk_to(chosen: algorithm.Chosen, operation: str) -> None:
    assert all(not step.sends and not step.recvs for step in chosen.schedule(operation, 0, 1))
    assert chosen.cost(operation, 1).seconds(1e6, 1.0, 1.0) == 0


@pytest.mark.parametrize(("chosen", "operation"), ALL, ids=algorithms.named)
def test_a_refusal_names_the_algorithm_and_the_world(chosen: algorithm.Chosen, operation: str) -> None:
    refused = [chosen.refuses(operation, world) for world in range(1, 33)]
    assert all(chosen.name in reason and str(world) in reason for world, reason in enumerate(refused, 1) if reason)


@pytest.mark.parametrize(("chosen", "operation"), ALL, ids=algorithms.named)
def test_the_busiest_port_carries_what_the_cost_says(chosen: algorithm.Chosen, operation: str) -> None:
    if (chosen.name, operation) not in SYMMETRIC | POWERS:
        return
    for world in algorithms.worlds(chosen, operation, 32, least=2):
        if (chosen.name, operation) in POWERS and world & (world - 1):
            continue
        outcome, cost = algorithms.prove(chosen, operation, world), chosen.cost(operation, world)
        messages, chunks = busiest(outcome.messages)
        assert messages == cost.rounds
        assert chunks == pytest.approx(cost.volume * units(chosen, operation, world))


def busiest(messages: list[symbolic.Message]) -> tuple[int, int]:
    """The most messages and the most chunks that one port carries in one direction."""
    counts: dict[tuple[int, str], tuple[int, int]] = {}
    for message in messages:
        for port in ((message.source, "out"), (message.target, "in")):
            count, chunks = counts.get(port, (0, 0))
            counts[port] = count + 1, chunks + len(message.chunks)
    return max(count for count, _ in counts.values()), max(chunks for _, chunks in counts.values())


def units(chosen: algorithm.Chosen, operation: str, world: int) -> int:
    """Chunks in the size n."""
    special = {"all-to-all": world, "send-recv": 1}
    return special.get(operation, chosen.chunks(operation, world))


@pytest.mark.parametrize(("chosen", "operation"), MUTATED, ids=algorithms.named)
def test_any_single_mutation_is_rejected(chosen: algorithm.Chosen, operation: str) -> None:
    for world in algorithms.worlds(chosen, operation, 5, least=2):
        good = algorithms.schedules(chosen, operation, world)
        tried = list(mutants(good, chosen.chunks(operation, world)))
        assert len(tried) >= 2 * world
        assert [name for name, bad in tried if accepts(chosen, operation, bad)] == []


def accepts(chosen: algorithm.Chosen, operation: str, schedules: list[Any]) -> bool:
    try:
        algorithms.prove(chosen, operation, len(schedules), good=schedules)
    except symbolic.Broken:
        return False
    return True


def mutants(good: list[Any], chunks: int) -> Iterator[tuple[str, list[Any]]]:
    """(what was done, schedules) with one thing wrong on one rank, or one token missing on two."""
    for rank, steps in enumerate(good):
        for index, step in enumerate(steps):
            where = f"rank {rank}, step {index}: "
            for name, other in _changed(step, rank, len(good), chunks):
                yield where + name, [*good[:rank], (*steps[:index], *other, *steps[index + 1 :]), *good[rank + 1 :]]
            for send in step.sends:
                if not send.chunks:
                    yield where + f"no token to {send.peer}", _without_token(good, rank, index, send.peer)


def _changed(step: Any, rank: int, world: int, chunks: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    yield "dropped", ()
    if step.sends or step.recvs:  # a copy made twice is the same
        yield "doubled", (step, step)
    for kind in ("sends", "recvs", "copies"):
        row = getattr(step, kind)
        for place, wanted_step in enumerate(row):
            yield f"{wanted_step} left out", (replace(step, **{kind: (*row[:place], *row[place + 1 :])}),)
            for name, other in _wrong(wanted_step, rank, world, chunks):
                yield name, (replace(step, **{kind: (*row[:place], other, *row[place + 1 :])}),)


def _wrong(step: Any, rank: int, world: int, chunks: int) -> Iterator[tuple[str, Any]]:
    if isinstance(step, schedule.Copy):
        yield "another source", replace(step, source=(step.source + 1) % chunks)
        yield "another target", replace(step, target=(step.target + 1) % chunks)
        return
    for peer in [peer for peer in range(world) if peer not in (rank, step.peer)][:1]:
        yield f"{step} with {peer}", replace(step, peer=peer)
    yield f"{step} with itself", replace(step, peer=rank)
    for place, chunk in enumerate(step.chunks if chunks > 1 else ()):
        other = (*step.chunks[:place], (chunk + 1) % chunks, *step.chunks[place + 1 :])
        yield f"{step}: {chunk} is another", replace(step, chunks=other)
    if len(step.chunks) > 1:
        yield f"{step}: one less", replace(step, chunks=step.chunks[1:])
    if step.chunks and isinstance(step, schedule.Recv):
        yield f"{step} turned over", replace(step, reduce=not step.reduce)


def _without_token(good: list[Any], rank: int, index: int, peer: int) -> list[Any]:
    """Neither sent nor awaited: the n-th token of one of them to the other."""
    number = sum(send == schedule.Send(peer) for step in good[rank][: index + 1] for send in step.sends)
    return [
        _less(steps, "sends", schedule.Send(peer), number) if other == rank
        else _less(steps, "recvs", schedule.Recv(rank), number) if other == peer
        else steps
        for other, steps in enumerate(good)
    ]  # fmt: skip


def _less(steps: Any, kind: str, message: Any, number: int) -> tuple[Any, ...]:
    made = []
    for step in steps:
        row = []
        for transfer in getattr(step, kind):
            number -= transfer == message
            if transfer != message or number != 0:
                row.append(transfer)
        made.append(replace(step, **{kind: tuple(row)}))
    return tuple(made)


def test_receives_that_wait_for_each_other_across_ranks_are_a_deadlock() -> None:
    """Rank 2 waits for its receiver 0, which waits for 1 first, which waits for 2. Posted together, the same receives are right."""
    assert stands((False, False)) and stands((True, False))
    assert not stands((False, True))


def stands(in_turn: tuple[bool, bool]) -> bool:
    recvs = tuple(schedule.Recv(peer, in_turn=waits) for peer, waits in zip((1, 2), in_turn, strict=True))
    schedules = (
        (schedule.Step(recvs=recvs),),
        (schedule.Step(recvs=(schedule.Recv(2),)), schedule.Step(sends=(schedule.Send(0),))),
        (schedule.Step(sends=(schedule.Send(0),)), schedule.Step(sends=(schedule.Send(1),))),
    )
    try:
        symbolic.Execution(schedules, [[], [], []], lambda rank, chunk: 1, causal=False).run()
    except symbolic.Broken as error:
        return str(error) != "deadlock: ranks [0, 1, 2] wait for ever"
    return True
