"""Every rank has the weights that rank 0 broadcast, by their hash."""

from __future__ import annotations

from collections.abc import Iterator

from .. import views
from ..model import events
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict


def check(run: Run, params: Params) -> Verdict:
    """By SHA-256 of the parameters of each rank after the broadcast; they differ before it."""
    gangs = [gang for gang in views.gangs(run.history) if gang.of(events.RankRestored)]
    failures = [finding for gang in gangs for finding in _different_weights(gang)]
    doubts = [*_missing_hashes(gangs), *views.not_ended(run.history), *views.not_started(run.history)]
    evidence = {"ranks": {f"attempt {gang.epoch}": f"{_equal(gang)}/{len(gang.ranks)}" for gang in gangs}}
    text = _text(gangs[-1], len(gangs)) if gangs else ""
    return views.conclude("weights-received", text, failures=failures, doubts=doubts, evidence=evidence)


def _hashes(gang: views.Gang) -> dict[int, str | None]:
    return {rank: event.data.weights for rank, event in gang.by_rank(events.RankRestored).items()}


def _equal(gang: views.Gang) -> int:
    hashes = _hashes(gang)
    return sum(sha256 is not None and sha256 == hashes.get(0) for sha256 in hashes.values())


def _text(gang: views.Gang, attempts: int) -> str:
    sha = (_hashes(gang).get(0) or "")[:4]
    suffix = f", in each of {attempts} attempts" if attempts > 1 else ""
    return f"{_equal(gang)} of {len(gang.ranks)} ranks have the weights that rank 0 broadcast (sha256 {sha}…){suffix}"


def _different_weights(gang: views.Gang) -> Iterator[views.Finding]:
    hashes, reports = _hashes(gang), gang.by_rank(events.RankRestored)
    for rank, sha256 in sorted(hashes.items()):
        if sha256 and hashes.get(0) and sha256 != hashes[0]:
            text = f"attempt {gang.epoch}: rank {rank} has other weights than rank 0"
            yield views.finding(text, reports[rank], reports[0])


def _missing_hashes(gangs: list[views.Gang]) -> Iterator[views.Finding]:
    """Ranks of the last gang without a hash; a gang that was stopped early may lack some."""
    if not gangs:
        yield views.finding("no rank reported a hash of its weights")
        return
    hashes = _hashes(gangs[-1])
    silent = [rank for rank in gangs[-1].ranks if not hashes.get(rank)]
    if silent:
        yield views.finding(f"rank {silent[0]} reported no hash of its weights", gangs[-1].began)
