"""Whether collectives can be done among so many ranks: asked before anything is started. Without torch."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import algorithm as model
from . import cases, choice, known, settings
from .mpi import names as mpi


def of_item(item: cases.Item, world: int) -> Iterator[str]:
    """Why ``item`` cannot be done, each as ``name: why``."""
    try:
        algorithm = known.find(item.algorithm)
    except ValueError as error:
        yield f"algorithm: {error}"
        return
    found = list(cases.unfit(item, world, algorithm))
    if not found and mpi.meant(item.algorithm):
        found += mpi.unfit(cases.cases([item], world)[0])
    if not found and item.algorithm == model.AUTO and not choice.candidates(cases.cases([item], world)[0]):
        found.append(f"algorithm: none does {item.operation} of {item.bytes} bytes among {world} ranks (got 'auto')")
    yield from found


def of_settings(params: settings.Measuring, world: int) -> Iterator[str]:
    """The same for what goes for all items."""
    if params.break_result and int(params.break_result.partition(":")[0]) >= world:
        yield f"break_result: the world has ranks 0..{world - 1} (got {params.break_result!r})"
