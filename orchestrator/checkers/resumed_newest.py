"""Every failover resumed from the newest committed, undamaged checkpoint of the kept lineage."""

from __future__ import annotations

from collections.abc import Iterator

from .. import views
from ..model import events
from ..model.event import Event
from ..model.events import CheckpointCommit, CheckpointFacts, ResumeChosen
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import training


def check(run: Run, params: Params) -> Verdict:
    """Judge by the commits that the ranks had reported before the new gang was started; judge a script by its own saves."""
    if training.is_observed(run):
        return _script(run)
    gangs = views.gangs(run.history)
    later = [gang for gang in gangs if gang.epoch > 0]
    failures = [finding for gang in later for finding in _stale(run, gang)]
    doubts = [
        *(finding for gang in gangs for finding in _unchosen(run, gang)),
        *views.not_ended(run.history),
        *views.not_started(run.history),
    ]
    if not run.history.of(events.CheckpointCommit) and not run.history.of(events.RankRestored):
        doubts.append(views.finding("no rank reported a checkpoint, neither written nor restored"))
    return views.conclude("resumed-newest", _text(run, later), failures=failures, doubts=doubts)


@training.by_rank
def _script(run: Run) -> Verdict:
    """A checkpoint that was overwritten, or that could not be read, does not count."""
    lines = training.lineage_of(run)
    failures: list[views.Finding] = []
    excused: list[views.Finding] = []
    failures += (tried := [*training.doubts.failed_loads(run, lines)])
    for resumption in lines.resumptions:
        (excused if _lack(resumption) else failures).extend(_older(resumption))
        failures += _from_damaged(resumption)
    by_word = [item for resumption in lines.resumptions for item in _by_word(resumption)]
    failures += [finding for is_failure, finding in by_word if is_failure]
    doubts = [*training.job_doubts(run, lines), *training.unobserved(lines.attempts, "saves")]
    doubts += [*training.nothing_to_resume(run, lines), *training.lost_lines(lines)]
    doubts += [finding for resumption in lines.resumptions for finding in _undecided(resumption)]
    doubts += excused
    doubts += [finding for is_failure, finding in by_word if not is_failure]
    steps = [_newest(resumption) for resumption in lines.resumptions]
    text = f"resumed {', then '.join(steps)}, the newest" if steps else "no failover, no checkpoint was resumed"
    newest = {item.attempt.key: item.newest for item in lines.resumptions}
    evidence = {"newest": newest, "tried": [finding.text for finding in tried]}
    return views.conclude("resumed-newest", text, failures=failures, doubts=doubts, evidence=evidence)


def _newest(resumption: training.Resumption) -> str:
    """The step of the newest checkpoint; of those that only the script knows, the number that it states."""
    reported = _newest_reported(resumption)
    if reported is None or (resumption.newest is not None and resumption.newest >= reported[1]):
        return str(resumption.newest)
    checkpoint, step = reported
    return f"{step}" if checkpoint.number is None else f"{checkpoint.number}{training.stated_steps.OWN_WORD}"


def _newest_reported(resumption: training.Resumption) -> tuple[training.Checkpoint, int] | None:
    return max(resumption.reported, key=lambda item: (item[0].number or 0, item[1]), default=None)


def _by_word(resumption: training.Resumption) -> Iterator[tuple[bool, views.Finding]]:
    """(whether it is a failure, the finding) of ranks that are not known to have resumed from the newest reported checkpoint."""
    reported = _newest_reported(resumption)
    for rank in resumption.ranks if reported else ():
        checkpoint, step = reported or resumption.reported[0]
        claim = None if rank.contradiction else rank.claim
        stated = training.stated_steps
        older = bool(rank.steps) and stated.is_older(rank.steps, claim, checkpoint, step, resumption.counted)
        if older is not False:
            number = "" if checkpoint.number is None else f"the script says that it saved step {checkpoint.number}"
            paths = ", ".join(sorted({write.path for write in checkpoint.writes if write.path}))
            what = number or f"{paths} was complete after step {step}, and of which step its contents are is not known"
            text = f"{resumption.attempt.name}: {rank.name} resumed from step {max(rank.steps)}, and {what}"
            yield bool(older), views.finding(text)


def _older(resumption: training.Resumption) -> Iterator[views.Finding]:
    """Ranks that resumed from a step before the newest checkpoint; of equal states the newest counts.

    A script may itself have passed over a file that was lost or damaged since: the finding says so, and is then no failure.
    """
    lack = _lack(resumption)
    for rank in resumption.ranks:
        if rank.steps and resumption.newest is not None and max(rank.steps) < resumption.newest:
            is_loaded = resumption.newest in rank.loaded  # a load may leave out keys, such as those of adapters
            did = "has the weights of" if is_loaded else "resumed from"
            since = "began at step 0" if rank.how == "scratch" else f"{did} step {max(rank.steps)}"
            although = f"it loaded step {resumption.newest}" if is_loaded else f"step {resumption.newest} was committed"
            text = f"{resumption.attempt.name}: {rank.name} {since} although {although}"
            yield views.finding(f"{text}; {lack}" if lack else text)


def _lack(resumption: training.Resumption) -> str:
    return training.lack(resumption.checkpoint, resumption.attempt) if resumption.checkpoint else ""


def _from_damaged(resumption: training.Resumption) -> Iterator[views.Finding]:
    """Ranks that resumed from a damaged checkpoint.

    Its state is whole where it came from the memory of a peer: no rank read the file.
    """
    for rank in resumption.ranks:
        if rank.steps and rank.steps <= resumption.damaged and not rank.is_from_memory:
            text = f"{resumption.attempt.name}: {rank.name} resumed from step {max(rank.steps)}, whose checkpoint was damaged"
            yield views.finding(text)


def _undecided(resumption: training.Resumption) -> Iterator[views.Finding]:
    name = resumption.attempt.name
    for rank in resumption.ranks:
        if not rank.steps:
            yield views.finding(f"{name}: {rank.doubt or rank.failure}")
    if resumption.is_fresh and resumption.newest == 0:
        yield views.finding(f"{name}: began at step 0, nothing had been saved since")
    for checkpoint in resumption.undated:
        text = f"of which step {', '.join(sorted(checkpoint.paths))} is, which a thread saved, is not known"
        yield views.finding(f"{name}: {text}")
    if resumption.newest is None and not resumption.reported and not resumption.undated:
        yield views.finding(f"{name}: no complete checkpoint had been recorded before it")


def _text(run: Run, later: list[views.Gang]) -> str:
    if not later:
        return "no failover, no checkpoint was resumed"
    steps = [str(views.resume_steps(run.history).get(gang.epoch, 0)) for gang in later]
    if len(steps) > 1:
        return f"resumed from {', '.join(steps)}, the newest each time"
    return f"resumed {steps[0]}, the newest"


def _unchosen(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    if gang.epoch not in views.chosen_checkpoints(run.history):
        yield views.finding(f"{views.start_name(gang.epoch)} was started without a choice of a checkpoint", gang.began)


def _stale(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    chosen = views.chosen_checkpoints(run.history).get(gang.epoch)
    if chosen is None:
        return
    skipped = {e.data.name or "" for e in run.history.of(events.CheckpointSkipped) if e.seq < gang.began.seq}
    committed = views.committed_checkpoints(run.history, gang, skipped)
    newest = committed[-1] if committed else None
    step = _step(chosen)
    if newest is not None and _step(newest) > step:
        text = f"{views.start_name(gang.epoch)} resumed from {step} although {_step(newest)} was committed"
        yield views.finding(text, chosen, newest)
    if chosen.data.name in skipped:
        yield views.finding(f"{views.start_name(gang.epoch)} resumed from {chosen.data.name}, which is damaged", chosen)
    yield from _unknown_checkpoint(run, gang, chosen, committed)


def _unknown_checkpoint(
    run: Run, gang: views.Gang, chosen: Event[ResumeChosen], committed: tuple[Event[CheckpointCommit], ...]
) -> Iterator[views.Finding]:
    """The chosen checkpoint must be committed, or in the scan, because its rank may have died before it reported it."""
    if _step(chosen) == 0:
        return
    name, sha256 = chosen.data.name, chosen.data.sha256
    commits = [event for event in committed if event.data.name == name]
    scans = [event for event in run.history.of(events.CheckpointScanDone) if event.seq < gang.began.seq]
    scanned = [event.data.newest for event in scans if event.data.newest and event.data.newest.name == name]
    if not commits and not scanned:
        yield views.finding(
            f"{views.start_name(gang.epoch)} resumed from {name}, which no rank committed and no scan found", chosen
        )
    for event in commits:
        if event.data.sha256 != sha256:
            yield views.finding(
                f"{name} differs from the checkpoint that was committed under that name (SHA-256)", event, chosen
            )
    if not commits and any(_is_lost(run, gang, newest) for newest in scanned):
        yield views.finding(f"{name} belongs to a lineage that was abandoned", chosen)


def _is_lost(run: Run, gang: views.Gang, newest: CheckpointFacts) -> bool:
    """Return whether the scanned checkpoint descends from steps that no longer count."""
    resumes = {epoch: step for epoch, step in views.resume_steps(run.history).items() if epoch < gang.epoch}
    return not views.is_kept(newest.epoch or 0, newest.step or 0, resumes)


def _step(event: Event[ResumeChosen] | Event[CheckpointCommit]) -> int:
    return event.data.step or 0
