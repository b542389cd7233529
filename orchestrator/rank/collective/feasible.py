"""Whether collectives can be done among so many ranks: asked before anything is started. Without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...model import algorithm as model
from ..exchange import buffer
from ..open_mpi import names as mpi
from . import algorithm_choice, cases, known_algorithms, settings


def of_item(item: cases.Item, world: int) -> Iterator[str]:
    """Why ``item`` cannot be done, each as ``name: why``."""
    try:
        algorithm = known_algorithms.find(item.algorithm)
    except ValueError as error:
        yield f"algorithm: {error}"
        return
    found = list(cases.unfit(item, world, algorithm))
    if not found and mpi.meant(item.algorithm):
        found += mpi.unfit(cases.cases([item], world)[0])
    if not found and item.algorithm == model.AUTO and not algorithm_choice.candidates(cases.cases([item], world)[0]):
        found.append(f"algorithm: none does {item.operation} of {item.bytes} bytes among {world} ranks (got 'auto')")
    yield from found


def of_settings(params: settings.Measuring, world: int, items: Iterable[cases.Item] = ()) -> Iterator[str]:
    """The same for what goes for all ``items``, each of which can be done."""
    if not params.break_result:
        return
    rank, element = map(int, params.break_result.split(":"))
    found = [_result(case, rank) for case in cases.cases(items, world)]
    if rank >= world:
        yield f"break_result: the world has ranks 0..{world - 1} (got {params.break_result!r})"
    elif found and element >= max(found):
        holds = f"at most {max(found)} elements" if max(found) else "none"
        yield f"break_result: no result of rank {rank} has such an element: it has {holds} (got {params.break_result!r})"


def _result(case: cases.Case, rank: int) -> int:
    """Elements of the result of ``rank``."""
    ranks = next((group for group in case.groups if rank in group), None)
    if ranks is None:
        return 0
    start, stop = buffer.layout(case, ranks, ranks.index(rank)).checked
    return stop - start
