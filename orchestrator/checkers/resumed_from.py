"""Every rank resumed from the same recorded step, the one that was chosen if ccbed chose it, and trains with what it loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from .. import views
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import training


@training.by_rank
def check(run: Run, params: Params) -> Verdict:
    """Judge by the digest of the weights before the first step of each attempt, or by the SHA-256 of the file that was loaded.

    Ranks of own workloads report what they restored, also in the first attempt.
    """
    lines = training.lineage_of(run)
    failures = [finding for resumption in lines.starts for finding in _wrong(resumption)]
    doubts = [*training.job_doubts(run, lines), *training.nothing_to_resume(run, lines)]
    doubts += [finding for resumption in lines.starts for finding in _unknown(resumption)]
    if lines.first and not any(start.ranks for start in lines.starts):
        doubts.append(views.finding("no rank reported the checkpoint that it restored"))
    steps = {item.attempt.key: item.step for item in lines.resumptions}
    sources = {
        item.attempt.key: {rank.name: rank.source for rank in item.ranks if rank.source}
        for item in lines.resumptions
        if any(rank.is_from_memory for rank in item.ranks)
    }
    evidence = {"steps": steps, **({"sources": sources} if sources else {})}
    return views.conclude("resumed-from", _text(lines), failures=failures, doubts=doubts, evidence=evidence)


def _text(lines: training.Lineage) -> str:
    if not lines.resumptions:
        return "no failover, nothing was resumed"
    steps = [_steps(resumption) for resumption in lines.resumptions]
    count = len(lines.resumptions[-1].ranks)
    is_claimed = any(rank.how == "claim" for resumption in lines.resumptions for rank in resumption.ranks)
    word = training.stated_steps.OWN_WORD if is_claimed else ""
    return f"step {', then '.join(steps)} on {count} rank{'s' * (count != 1)}{word}"


def _steps(resumption: training.Resumption) -> str:
    """The step, or those whose state it cannot be told from."""
    sets = [rank.steps for rank in resumption.ranks]
    steps = sorted(frozenset.intersection(*sets)) if sets else []
    return (
        (" or ".join(map(str, steps[-3:])) or "not known")
        + (" (file)" if any(r.how == "file" for r in resumption.ranks) else "")
        + (" from peer memory" if any(r.source == "memory" for r in resumption.ranks) else "")
    )


def _wrong(resumption: training.Resumption) -> Iterator[views.Finding]:
    name = resumption.attempt.name
    yield from resumption.commands
    for rank in resumption.ranks:
        if rank.failure:
            yield views.Finding(text=f"{name}: {rank.failure}", seqs=rank.seqs)
        if rank.contradiction:
            yield views.finding(f"{name}: {rank.contradiction}")
    known = [rank for rank in resumption.ranks if rank.steps]
    if known and not frozenset.intersection(*(rank.steps for rank in known)):
        first = known[0]
        other = next(rank for rank in known if not rank.steps & first.steps)
        yield views.finding(
            f"{name}: {first.name} resumed from step {max(first.steps)}, {other.name} from step {max(other.steps)}"
        )
    if resumption.is_fresh and resumption.newest:
        yield views.finding(f"{name}: began at step 0 although the checkpoint of step {resumption.newest} was complete")
    stated = max((item.number for item, _ in resumption.reported if item.number), default=None)
    if resumption.is_fresh and not resumption.newest and stated:
        yield views.finding(f"{name}: began at step 0 although the script says that it saved step {stated}")


def _unknown(resumption: training.Resumption) -> Iterator[views.Finding]:
    for rank in resumption.ranks:
        if rank.doubt:
            yield views.Finding(text=f"{resumption.attempt.name}: {rank.doubt}", seqs=rank.seqs)
    if resumption.is_fresh and not resumption.newest and not resumption.reported:
        yield views.finding(f"{resumption.attempt.name}: began at step 0, {_nothing_to_load(resumption)}")


def _nothing_to_load(resumption: training.Resumption) -> str:
    """Return why there was no checkpoint: two models in files of their own, for example, are no checkpoint of the job."""
    if not resumption.writes:
        loads = [load.path for rank in resumption.attempt.ranks.values() for load in rank.loads if not load.error]
        return f"nothing had been saved in this run; it loaded {loads[0]}" if loads else "nothing had been saved"
    parts = [(write.path, write.saved.matched) for write in resumption.writes if write.saved and write.saved.matched]
    if not parts or any(write.holds_weights for write in resumption.writes):
        return "no complete checkpoint of its weights was left to load"
    path, share = max(parts, key=lambda part: part[1] or 0)
    return f"no file that was saved holds all weights ({PurePath(path).name}: {share:.0%} of the tensors)"
