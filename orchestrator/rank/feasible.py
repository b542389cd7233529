"""Whether collectives can be done among so many ranks: asked before anything is started. Without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..model import algorithm as model
from . import cases, choice, known, settings


def problems(
    items: Iterable[cases.Item], world: int, params: settings.Measuring, names: Mapping[str, str]
) -> list[str]:
    """Each once, as ``name: why``. ``names``: how the user calls what an item has."""
    found = [problem for item in items for problem in _item(item, world)]
    if params.break_result and int(params.break_result.partition(":")[0]) >= world:
        found.append(f"break_result: the world has ranks 0..{world - 1} (got {params.break_result!r})")
    parts = (problem.partition(": ") for problem in found)
    return list(dict.fromkeys(f"{names.get(name, name)}: {text}" for name, _, text in parts))


def _item(item: cases.Item, world: int) -> Iterator[str]:
    try:
        algorithm = known.find(item.algorithm)
    except ValueError as error:
        yield f"algorithm: {error}"
        return
    found = list(cases.unfit(item, world, algorithm))
    if not found and item.algorithm == model.AUTO and not choice.candidates(cases.cases([item], world)[0]):
        found.append(f"algorithm: none does {item.operation} of {item.bytes} bytes among {world} ranks (got 'auto')")
    yield from found
