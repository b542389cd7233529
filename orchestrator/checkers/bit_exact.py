"""The result is that of an uninterrupted twin: every loss, weight, optimizer state and random state, bit by bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .. import views
from ..model.events import CheckpointCommit, CheckpointSkipped, RankFinished, RecoveryDecided, ResumeChosen
from ..model.run import Run, Twin
from ..model.verdict import Verdict

ALWAYS = False
TWIN = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """Losses of kept steps as ``float.hex``, SHA-256 by set of names; a missing tensor is a failure."""
    doubts = [*_unproved(run), *views.unended(run.history)]
    if run.twin is None:
        return views.conclude("bit-exact", "", doubts=[views.found("no twin to compare with"), *doubts])
    if any(views.unended(run.history)):
        return views.conclude("bit-exact", "", doubts=doubts)
    losses, digests = _losses(run), _digests(run)
    doubts += _incomplete(run.twin, {*losses, *digests})
    failures = [*_apart(losses, run.twin), *_state(digests, run.twin)]
    if failures and (moved := [*_moved(run)]):
        failures, doubts = [], [*moved, *failures, *doubts]
    failures += _in_vain(run)
    evidence = {"twin": run.twin.run, "final_loss": run.twin.final_loss}
    return views.conclude("bit-exact", _text(run, digests), failures=failures, doubts=doubts, evidence=evidence)


def _text(run: Run, digests: Mapping[str, Mapping[str, object]]) -> str:
    names = {name for one in digests.values() for name in one}
    tensors = len([name for name in names if not name.startswith("rng.")])
    rng = " + RNG" if any(name.startswith("rng.") for name in names) else ""
    clean = "" if run.history.first(RecoveryDecided) else " (no failover)"
    return f"{tensors} tensors{rng} x {len(digests)} ranks equal to the twin{clean}"


def _unproved(run: Run) -> Iterator[views.Finding]:
    """A comparison shows something of recovery only if a checkpoint was loaded, and if the twin was left alone."""
    if run.twin is not None and (run.twin.faults or run.twin.restarts):
        yield views.found("the twin was interrupted itself")
    resumes = {epoch: step for epoch, step in views.resume_steps(run.history).items() if epoch > 0}
    if resumes and not any(resumes.values()):
        yield views.found("resumed from step 0: nothing of a checkpoint was shown", run.history.last(ResumeChosen))
    if run.trial.faults and not resumes and not _harmless(run):
        yield views.found("a fault was planned but nothing was recovered from")


def _incomplete(twin: Twin, ranks: Iterable[str]) -> Iterator[views.Finding]:
    """A twin that recorded nothing of a rank says nothing about that rank of the run."""
    for name, by_rank in (("losses", twin.losses), ("digests", twin.digests)):
        missing = sorted(rank for rank in ranks if not by_rank.get(rank))
        if missing or not by_rank:
            yield views.found(f"the twin has no {name}" + (f" of rank {', '.join(missing)}" if missing else ""))


def _in_vain(run: Run) -> Iterator[views.Finding]:
    """Checkpoints were committed and skipped, every one of them: equal or not, nothing was saved by them."""
    for chosen in run.history.of(ResumeChosen):
        before = [event for event in run.history.of(CheckpointCommit) if event.seq < chosen.seq]
        skipped = [event for event in run.history.of(CheckpointSkipped) if event.epoch == chosen.epoch]
        if chosen.epoch and not chosen.data.step and before and skipped:
            text = f"epoch {chosen.epoch} began at step 0: none of {len(before)} committed checkpoints could be used"
            yield views.found(text, chosen, *skipped)


def _moved(run: Run) -> Iterator[views.Finding]:
    """Ranks that went on where the CPU, the GPU or the library is another one: then bits may differ though nothing is lost."""
    mixed = views.mapping(views.mapping(run.extras.get("fingerprint.json")).get("mixed"))
    homes: dict[int, str] = {}
    for gang in views.gangs(run.history):
        for rank, node in sorted(gang.ranks.items()):
            first = homes.setdefault(rank, node)
            for fact, values in sorted(mixed.items()):
                before, after = (views.mapping(values).get(name) for name in (first, node))
                if before != after:
                    yield views.found(f"rank {rank} went from {first} to {node}, whose {fact} is {after}, not {before}")


def _harmless(run: Run) -> bool:
    """Every planned fault was shown to have changed something and passed without a loss, as a short pause does."""
    return all(trace.changed for trace in views.traces(run.trial, run.history))


def _losses(run: Run) -> dict[str, dict[str, str]]:
    losses: dict[str, dict[str, str]] = {}
    for record in views.kept_steps(run.files.steps(), run.history):
        losses.setdefault(str(record.rank), {})[str(record.step)] = record.loss
    return losses


def _digests(run: Run) -> dict[str, Mapping[str, object]]:
    gangs = views.gangs(run.history)
    told = gangs[-1].by_rank(RankFinished) if gangs else {}
    return {str(rank): event.data.digest or {} for rank, event in sorted(told.items())}


def _apart(losses: dict[str, dict[str, str]], twin: Twin) -> Iterator[views.Finding]:
    """Per rank the first step whose loss is not that of the twin; a step that one of both lacks is a difference."""
    for rank in sorted(rank for rank in {*losses, *twin.losses} if twin.losses.get(rank)):
        mine, other = losses.get(rank, {}), twin.losses.get(rank, {})
        steps = sorted((s for s in {*mine, *other} if mine.get(s) != other.get(s)), key=int)
        if steps:
            pair = f"{_shown(mine.get(steps[0]))}, the twin {_shown(other.get(steps[0]))}"
            yield views.found(f"rank {rank}: loss of step {steps[0]} is {pair} ({len(steps)} steps differ)")


def _shown(loss: str | None) -> str:
    return "missing" if loss is None else loss


def _state(digests: Mapping[str, Mapping[str, object]], twin: Twin) -> Iterator[views.Finding]:
    for rank in sorted(rank for rank in {*digests, *twin.digests} if twin.digests.get(rank)):
        mine, other = digests.get(rank, {}), twin.digests.get(rank, {})
        names = sorted(name for name in {*mine, *other} if mine.get(name) != other.get(name))
        if names:
            how = "is missing" if names[0] not in mine else "is not in the twin" if names[0] not in other else "differs"
            yield views.found(f"rank {rank}: {names[0]} {how} ({len(names)} of {len({*mine, *other})} differ)")
