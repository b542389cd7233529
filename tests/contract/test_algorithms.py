"""What every file in algorithms/ must do; a new file joins by being there."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import orchestrator.algorithms
from orchestrator.model import schedule as model
from tests.contract import symbolic

FOLDER = Path(str(orchestrator.algorithms.__file__)).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


@pytest.fixture(params=NAMES)
def algorithm(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"orchestrator.algorithms.{request.param}")


def schedules(algorithm: Any, world: int) -> list[Any]:
    return [algorithm.schedule("all-reduce", rank, world) for rank in range(world)]


def test_has_a_first_line_for_the_catalogue(algorithm: ModuleType) -> None:
    assert (algorithm.__doc__ or "").splitlines()[0].strip()


def test_promises_a_known_operation(algorithm: ModuleType) -> None:
    assert set(algorithm.OPERATIONS) <= set(model.OPERATIONS)


@pytest.mark.parametrize("world", range(1, 33))
def test_every_rank_ends_with_every_contribution_exactly_once(algorithm: ModuleType, world: int) -> None:
    symbolic.verify_all_reduce(schedules(algorithm, world), algorithm.chunks("all-reduce", world))


@pytest.mark.parametrize("world", [2, 3, 4, 7])
def test_any_single_mutation_is_rejected(algorithm: ModuleType, world: int) -> None:
    good = schedules(algorithm, world)
    tried = list(mutants(good, algorithm.chunks("all-reduce", world)))
    assert len(tried) >= 5 * world
    assert [name for name, bad in tried if accepts(algorithm, bad)] == []


def accepts(algorithm: Any, schedules: list[Any]) -> bool:
    try:
        symbolic.verify_all_reduce(schedules, algorithm.chunks("all-reduce", len(schedules)))
    except symbolic.Broken:
        return False
    return True


def mutants(good: list[Any], chunks: int) -> Any:
    """(what was done, schedules) with one thing wrong on one rank."""
    world = len(good)
    for rank, schedule in enumerate(good):
        for index, step in enumerate(schedule):
            where = f"rank {rank}, step {index}: "

            def changed(*steps: Any, rank: int = rank, index: int = index, schedule: Any = schedule) -> list[Any]:
                return [*good[:rank], (*schedule[:index], *steps, *schedule[index + 1 :]), *good[rank + 1 :]]

            yield where + "dropped", changed()
            yield where + "doubled", changed(step, step)
            for kind in ("sends", "recvs"):
                for number, one in enumerate(getattr(step, kind)):
                    for name, other in _wrong(one, rank, world, chunks):
                        row = list(getattr(step, kind))
                        row[number] = other
                        yield where + name, changed(replace(step, **{kind: tuple(row)}))
                    yield where + f"no {kind}", changed(replace(step, **{kind: ()}))


def _wrong(one: Any, rank: int, world: int, chunks: int) -> Any:
    yield "wrong chunk", replace(one, chunks=((one.chunks[0] + 1) % chunks,))
    if world > 2:
        peers = [peer for peer in range(world) if peer not in (rank, one.peer)]
        yield "wrong peer", replace(one, peer=peers[0])
    yield "itself as peer" if hasattr(one, "reduce") else "self-send", replace(one, peer=rank)
    if hasattr(one, "reduce"):
        yield "reduce turned over", replace(one, reduce=not one.reduce)
