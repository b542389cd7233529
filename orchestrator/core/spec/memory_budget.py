"""Memory budget: whether a trial's largest buffers fit into the free memory of its hosts and containers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...model import codec
from ...model.free_memory import FreeMemory, RequiredMemory, format_bytes
from ...model.plugin import Catalogue
from ...model.trial import Trial


def find_problems(
    trial: Trial, slots: Sequence[str], free_memory: Sequence[FreeMemory], catalogue: Catalogue
) -> Iterator[str]:
    """A problem for each host or container that has too little. ``slots``: group rank -> node."""
    required = _required(trial, catalogue) if free_memory else None
    for free in free_memory if required else ():
        assert required is not None
        ranks = [rank for rank in range(trial.world.size) if slots[rank // trial.world.ranks_per_node] in free.nodes]
        total = sum(required.ranks[rank] for rank in ranks)
        if total > free.size_bytes:
            subject = f"rank {ranks[0]} needs" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]} need"
            lack = f"{subject} {format_bytes(total)} of memory on {free.location}, {format_bytes(free.size_bytes)} are free"
            yield f"trial {trial.name}: {required.operation}: {lack}; {_hint(required, total, free)}"


def _hint(required: RequiredMemory, total: int, free: FreeMemory) -> str:
    """The largest power of two that fits, if the user can reduce a size."""
    fitting = int(required.size_bytes * free.size_bytes / total)
    power = 1 << max(fitting.bit_length() - 1, 0)
    smaller = f"{required.setting} of at most {format_bytes(power)} fit; or " if fitting and required.setting else ""
    return f"{smaller}free memory there, or run fewer ranks there"


def _required(trial: Trial, catalogue: Catalogue) -> RequiredMemory | None:
    """The memory for the largest operation of the trial; None if its workload does not declare it."""
    module: Any = catalogue.workloads[trial.workload].module
    memory = getattr(module, "memory", None)
    required: RequiredMemory | None = (
        memory(codec.build(module.Params, trial.params), trial.world.size) if memory else None
    )
    return required
