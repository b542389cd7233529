"""Why the process group of a script is not complete: whom each rank takes itself for, and where it looks for the store."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

from ..model.events import RankJoining
from .standing import rank_names, verb

V = TypeVar("V")


def mismatches(joining: Mapping[int, RankJoining], world: int, port: int | None) -> Iterator[str]:
    """Yield what keeps the ranks apart. ``joining``: by rank; ``world``, ``port``: of the process group and store that the bed has."""
    for number, ranks in _grouped({rank: call.number for rank, call in joining.items()}).items():
        if len(ranks) > 1:
            yield f"{rank_names(ranks)} join as rank {number}: the script takes its rank from something else than RANK"
    for size, ranks in _grouped({rank: call.world for rank, call in joining.items()}).items():
        if size != world:
            yield f"{rank_names(ranks)} {verb(ranks, 'joins', 'join')} a group of {size}; there are {world} ranks (WORLD_SIZE)"
    for store, ranks in _grouped({rank: call.store for rank, call in joining.items()}).items():
        if port is not None and not store.endswith(f":{port}"):
            looks = f"{rank_names(ranks)} {verb(ranks, 'looks', 'look')} for the store at {store}"
            yield f"{looks}; that of the bed has port {port} (MASTER_ADDR, MASTER_PORT)"


def missing(joining: Collection[int], joined: Collection[int], world: int) -> Iterator[str]:
    """Yield which ranks wait in ``init_process_group``, and which have not called it."""
    waiting = sorted(set(joining) - set(joined))
    if waiting:
        yield f"{rank_names(waiting)} {verb(waiting, 'waits', 'wait')} in init_process_group"
    absent = [rank for rank in range(world) if rank not in joining and rank not in joined]
    if absent:
        yield f"{rank_names(absent)} {verb(absent, 'has', 'have')} not called it"


def _grouped(values: Mapping[int, V | None]) -> dict[V, list[int]]:
    """Value -> the ranks that have it, without those that have none."""
    ranks: dict[V, list[int]] = {}
    for rank, value in sorted(values.items()):
        if value is not None:
            ranks.setdefault(value, []).append(rank)
    return ranks
