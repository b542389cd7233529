"""All ranks have the same weights after every restore and step, and the same optimizer state at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .. import views
from ..model import events
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import training

SKIPS = True

#: Prefix of random states, which differ from rank to rank on purpose.
OWN = "rng."


def check(run: Run, params: Params) -> Verdict:
    """By SHA-256 of the parameters; of a script by the watcher's digests, within the groups of ranks that are replicas."""
    if training.is_observed(run):
        return _script(run)
    gangs = views.gangs(run.history)
    compared, failures = _steps(run)
    failures += [finding for gang in gangs for finding in (*_restored(gang), *_finished(gang))]
    doubts = [*_missing_digests(gangs), *views.not_ended(run.history), *views.not_started(run.history)]
    ranks = len(gangs[-1].ranks) if gangs else 0
    text = f"replicas identical {ranks}/{ranks}, {_compared(compared, ranks)}"
    return views.conclude("replicas-identical", text, failures=failures, doubts=doubts)


def _script(run: Run) -> Verdict:
    if training.uneven_ranks(run):
        return Verdict(check="replicas-identical", outcome="skipped", text="not applicable: ranks do not step together")
    lines = training.lineage_of(run)
    is_corrupted = any(fault.fault == "flip-bit" for fault in run.trial.faults)
    result = training.replicas.compare(lines.attempts, is_corrupted=is_corrupted)
    doubts = [*training.job_doubts(run, lines), *map(views.finding, result.undecided)]
    doubts += [
        views.finding(f"{name} recorded no digest of the weights that it began with") for name in result.undigested
    ]
    ranks = sum(map(len, result.groups))
    if ranks and not result.compared:
        doubts.append(views.finding("no state has digests of two ranks"))
    text = (
        f"{ranks} replicas identical at {result.compared} states"
        if ranks
        else "no two ranks are replicas of each other"
    )
    failures = [views.finding(difference) for difference in result.differences]
    if result.independent and not (ranks or failures or doubts):
        return Verdict(check="replicas-identical", outcome="skipped", text=f"not applicable: {result.independent[0]}")
    return views.conclude("replicas-identical", text, failures=failures, doubts=doubts)


def _compared(steps: int, ranks: int) -> str:
    """The scope of the comparison; of steps only where ranks recorded a hash."""
    if ranks < 2:
        return "a single rank is not compared"
    return f"{steps} steps compared" if steps else "compared at the beginning and at the end; steps have no hash"


def _restored(gang: views.Gang) -> Iterator[views.Finding]:
    restored = gang.by_rank(events.RankRestored)
    if len({event.data.weights for event in restored.values()}) > 1:
        yield views.finding(f"attempt {gang.epoch}: the ranks restored different weights", *restored.values())


def _finished(gang: views.Gang) -> Iterator[views.Finding]:
    """Model and optimizer, by the set of names: a missing tensor is a difference."""
    ends = gang.by_rank(events.RankFinished)
    states = {rank: _shared(event.data.digest or {}) for rank, event in ends.items()}
    if not states:
        return
    first = min(states)
    for rank, state in sorted(states.items()):
        names = sorted(name for name in {*state, *states[first]} if state.get(name) != states[first].get(name))
        if names:
            yield views.finding(
                f"rank {rank} and rank {first} finished with different {names[0]}", ends[rank], ends[first]
            )


def _shared(digest: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in digest.items() if not name.startswith(OWN)}


def _steps(run: Run) -> tuple[int, list[views.Finding]]:
    """(steps of which two ranks were compared, differences)"""
    digests_of: dict[tuple[int, int], dict[int, str]] = {}
    for record in run.files.steps():
        if record.digest is not None:
            digests_of.setdefault((record.epoch, record.step), {})[record.rank] = record.digest
    apart = [step for step, digests in sorted(digests_of.items()) if len(set(digests.values())) > 1]
    failures = [views.finding(f"attempt {epoch}: the ranks differ after step {step}") for epoch, step in apart[:1]]
    return sum(len(digests) > 1 for digests in digests_of.values()), failures


def _missing_digests(gangs: tuple[views.Gang, ...]) -> Iterator[views.Finding]:
    """Ranks without a digest, which cannot be compared."""
    if not gangs:
        return
    ends = gangs[-1].by_rank(events.RankFinished)
    silent = [rank for rank in gangs[-1].ranks if not (rank in ends and ends[rank].data.digest)]
    if silent:
        yield views.finding(f"rank {silent[0]} reported no digest of its weights at the end", ends.get(silent[0]))
    for gang in gangs:
        missing = [rank for rank, event in gang.by_rank(events.RankRestored).items() if not event.data.weights]
        if missing:
            yield views.finding(
                f"attempt {gang.epoch}: rank {missing[0]} reported no digest of the weights that it restored"
            )
