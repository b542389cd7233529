"""Every rank has the weights that rank 0 broadcast, by their hash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.events import RankRestored
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = False
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """By SHA-256 of the parameters that each rank of a gang holds after the broadcast; they differ before it."""
    gangs = [gang for gang in views.gangs(run.history) if gang.of(RankRestored)]
    failures = [one for gang in gangs for one in _others(gang)]
    doubts = [*_untold(gangs), *views.unended(run.history), *views.unstarted(run.history)]
    evidence = {"ranks": {f"epoch {gang.epoch}": f"{_equal(gang)}/{len(gang.ranks)}" for gang in gangs}}
    text = _text(gangs[-1], len(gangs)) if gangs else ""
    return views.conclude("weights-received", text, failures=failures, doubts=doubts, evidence=evidence)


def _hashes(gang: views.Gang) -> dict[int, str | None]:
    return {rank: event.data.weights for rank, event in gang.by_rank(RankRestored).items()}


def _equal(gang: views.Gang) -> int:
    told = _hashes(gang)
    return sum(one is not None and one == told.get(0) for one in told.values())


def _text(gang: views.Gang, epochs: int) -> str:
    sha = (_hashes(gang).get(0) or "")[:4]
    each = f", in each of {epochs} epochs" if epochs > 1 else ""
    return f"{_equal(gang)} of {len(gang.ranks)} ranks have what rank 0 broadcast (sha256 {sha}…){each}"


def _others(gang: views.Gang) -> Iterator[views.Finding]:
    told, events = _hashes(gang), gang.by_rank(RankRestored)
    for rank, one in sorted(told.items()):
        if one and told.get(0) and one != told[0]:
            yield views.found(f"epoch {gang.epoch}: rank {rank} has other weights than rank 0", events[rank], events[0])


def _untold(gangs: list[views.Gang]) -> Iterator[views.Finding]:
    """Of a gang that was stopped early some ranks may have told nothing; of the last one all must have."""
    if not gangs:
        yield views.found("no rank told a hash of its weights")
        return
    told = _hashes(gangs[-1])
    silent = [rank for rank in gangs[-1].ranks if not told.get(rank)]
    if silent:
        yield views.found(f"rank {silent[0]} told no hash of its weights", gangs[-1].began)
