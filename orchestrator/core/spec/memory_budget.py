"""Whether what the ranks of a trial will hold fits into the memory that is free where they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...model import codec
from ...model.plugin import Catalogue
from ...model.room import Demand, Room, amount
from ...model.trial import Trial


def problems(trial: Trial, slots: Sequence[str], rooms: Sequence[Room], catalogue: Catalogue) -> Iterator[str]:
    """One for each place that has too little. ``slots``: group rank -> node."""
    needed = _demand(trial, catalogue) if rooms else None
    for room in rooms if needed else ():
        assert needed is not None
        ranks = [rank for rank in range(trial.world.size) if slots[rank // trial.world.ranks_per_node] in room.nodes]
        wanted = sum(needed.ranks[rank] for rank in ranks)
        if wanted > room.free:
            who = f"rank {ranks[0]} needs" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]} need"
            lack = f"{who} {amount(wanted)} of memory on {room.place}, {amount(room.free)} are free"
            yield f"trial {trial.name}: {needed.what}: {lack}; {_way_out(needed, wanted, room)}"


def _way_out(needed: Demand, wanted: int, room: Room) -> str:
    """The largest power of two that would do, where a size is to blame."""
    fits = int(needed.size * room.free / wanted)
    power = 1 << max(fits.bit_length() - 1, 0)
    smaller = f"{needed.smaller} of at most {amount(power)} fit; or " if fits and needed.smaller else ""
    return f"{smaller}free memory there, or put fewer ranks on it"


def _demand(trial: Trial, catalogue: Catalogue) -> Demand | None:
    """The largest thing that the trial does; None: its workload does not say."""
    module: Any = catalogue.workloads[trial.workload].module
    asked = getattr(module, "memory", None)
    found: Demand | None = asked(codec.build(module.Params, trial.params), trial.world.size) if asked else None
    return found
