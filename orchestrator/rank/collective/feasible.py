"""Whether collectives can be done among so many ranks: asked before anything is started. Without torch."""

from __future__ import annotations

from collections.abc import Iterator

from ...model import algorithm as model
from ..open_mpi import names as mpi
from . import algorithm_choice, cases, known_algorithms


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
