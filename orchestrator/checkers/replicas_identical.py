"""All ranks hold the same weights: after every restore, after every step, and with the optimizer's state at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .. import views
from ..model.events import RankFinished, RankRestored
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = False
TWIN = False

#: Random states differ from rank to rank on purpose.
OWN = "rng."


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """By SHA-256 of the parameters."""
    gangs = views.gangs(run.history)
    compared, failures = _steps(run)
    failures += [one for gang in gangs for one in (*_restored(gang), *_finished(gang))]
    doubts = [*_unproved(gangs), *views.unended(run.history), *views.unstarted(run.history)]
    ranks = len(gangs[-1].ranks) if gangs else 0
    text = f"replicas identical {ranks}/{ranks}, {_compared(compared, ranks)}"
    return views.conclude("replicas-identical", text, failures=failures, doubts=doubts)


def _compared(steps: int, ranks: int) -> str:
    """What was; of steps only where they told a hash."""
    if ranks < 2:
        return "one rank has nothing to be compared with"
    return (
        f"{steps} steps compared"
        if steps
        else "compared where they began and when they had finished; steps tell no hash"
    )


def _restored(gang: views.Gang) -> Iterator[views.Finding]:
    told = gang.by_rank(RankRestored)
    if len({event.data.weights for event in told.values()}) > 1:
        yield views.found(f"epoch {gang.epoch}: the ranks restored different weights", *told.values())


def _finished(gang: views.Gang) -> Iterator[views.Finding]:
    """Model and optimizer, by the set of names: a missing tensor is a difference."""
    told = gang.by_rank(RankFinished)
    states = {rank: _shared(event.data.digest or {}) for rank, event in told.items()}
    if not states:
        return
    first = min(states)
    for rank, state in sorted(states.items()):
        names = sorted(name for name in {*state, *states[first]} if state.get(name) != states[first].get(name))
        if names:
            yield views.found(
                f"rank {rank} and rank {first} finished with different {names[0]}", told[rank], told[first]
            )


def _shared(digest: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in digest.items() if not name.startswith(OWN)}


def _steps(run: Run) -> tuple[int, list[views.Finding]]:
    """(steps of which two ranks were compared, differences)"""
    seen: dict[tuple[int, int], dict[int, str]] = {}
    for record in run.files.steps():
        if record.digest is not None:
            seen.setdefault((record.epoch, record.step), {})[record.rank] = record.digest
    apart = [place for place, digests in sorted(seen.items()) if len(set(digests.values())) > 1]
    failures = [views.found(f"epoch {epoch}: the ranks differ after step {step}") for epoch, step in apart[:1]]
    return sum(len(digests) > 1 for digests in seen.values()), failures


def _unproved(gangs: tuple[views.Gang, ...]) -> Iterator[views.Finding]:
    """Without the digests of every rank at the end nothing is shown."""
    if not gangs:
        return
    told = gangs[-1].by_rank(RankFinished)
    silent = [rank for rank in gangs[-1].ranks if not (rank in told and told[rank].data.digest)]
    if silent:
        yield views.found(f"rank {silent[0]} gave no digest of its weights at the end", told.get(silent[0]))
    for gang in gangs:
        missing = [rank for rank, event in gang.by_rank(RankRestored).items() if not event.data.weights]
        if missing:
            yield views.found(f"epoch {gang.epoch}: rank {missing[0]} gave no digest of what it restored")
