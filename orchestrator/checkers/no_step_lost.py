"""Every rank did every step of the kept lineage exactly once, from 1 to the last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

from .. import views
from ..model.plugin import NoParams as Params
from ..model.run import Run, StepRecord
from ..model.verdict import Verdict
from ..views import training


def check(run: Run, params: Params) -> Verdict:
    """Judge by the step records of the nodes; the step determines its data, so no data is lost either.

    A script's steps count from the step that its attempt resumed from; its data is a part of ``resume-complete``.
    """
    if training.is_observed(run):
        return _script(run)
    records = tuple(run.files.steps())
    gangs = views.gangs(run.history)
    doubts = list(views.not_ended(run.history))
    last = views.whole(views.mapping(run.extras.get("plan.json")).get("last_step"))
    if not records:
        return views.conclude("no-step-lost", "", doubts=[views.finding("no step was recorded"), *doubts])
    if last is None:
        last = max(record.step for record in records)
    ranks = sorted({rank for gang in gangs for rank in gang.ranks} | {record.rank for record in records})
    kept_records = views.kept_steps(records, run.history)
    omitted = views.omitted_steps(run.history)
    failures = [*_doubled(records), *_jumps(run, records, omitted), *_after_stop(records, omitted)]
    exempt = _exempt(run, gangs, last)
    for rank in ranks:
        due = set(range(1, last + 1)) - exempt.get(rank, set()) - omitted
        failures += _holes(rank, kept_records, due, last, ended=not doubts)
    checked, wrong = _samples(gangs, kept_records)
    counts = sorted({len(gang.ranks) for gang in gangs} or {len(ranks)}, reverse=True)
    text = f"steps 1 to {last} once on {' and '.join(map(str, counts))} rank{'s' * (counts != [1])}"
    text += f", each sample of {checked} batches once" if checked else ""
    text += f", without {len(omitted)} that the precision made unnecessary" if omitted else ""
    return views.conclude("no-step-lost", text, failures=[*failures, *wrong], doubts=doubts)


def _exempt(run: Run, gangs: tuple[views.Gang, ...], last: int) -> dict[int, set[int]]:
    """Rank -> the steps that count in an attempt without this rank: the gang was smaller."""
    resumes = views.resume_steps(run.history)
    exempt: dict[int, set[int]] = {}
    for gang in gangs:
        end = min((step for epoch, step in resumes.items() if epoch > gang.epoch), default=last)
        for rank in {rank for other in gangs for rank in other.ranks} - set(gang.ranks):
            exempt.setdefault(rank, set()).update(range(resumes.get(gang.epoch, 0) + 1, end + 1))
    return exempt


def _samples(gangs: tuple[views.Gang, ...], kept_records: tuple[StepRecord, ...]) -> tuple[int, list[views.Finding]]:
    """(batches whose shares were added up; those that lack a sample or have one twice, the first of each attempt)"""
    shares: dict[tuple[int, int], list[StepRecord]] = {}
    for record in kept_records:
        if record.samples is not None:
            shares.setdefault((record.epoch, record.step), []).append(record)
    sizes = {gang.epoch: len(gang.ranks) for gang in gangs}
    complete = {place: records for place, records in shares.items() if len(records) == sizes.get(place[0])}
    wrong: dict[int, views.Finding] = {}
    for (epoch, step), records in sorted(complete.items()):
        where, batches = f"{views.start_name(epoch)}, step {step}", {record.batch for record in records}
        total = sum(int(record.samples or "0", 16) for record in records) % 2**64
        if len(batches) > 1:
            wrong.setdefault(epoch, views.finding(f"{where}: the ranks took their shares from different batches"))
        elif f"{total:016x}" not in batches:
            text = f"{where}: the shares of its {len(records)} ranks are not the batch: a sample was left out or used twice"
            wrong.setdefault(epoch, views.finding(text))
    return len(complete), list(wrong.values())


@training.by_rank
def _script(run: Run) -> Verdict:
    lines = training.lineage_of(run)
    failures = [finding for attempt in lines.attempts for finding in _gaps(lines, attempt)]
    doubts = [*training.job_doubts(run, lines), *training.unobserved(lines.attempts, "steps")]
    doubts += [finding for attempt in lines.attempts for finding in _unreported(attempt)]
    doubts += training.unknown_starts(lines)
    doubts += _endings(run, lines)
    failures += _done_twice(run, lines)
    count = len(training.redone(lines))
    ranks = lines.attempts[-1].ranks.values() if lines.attempts else ()
    last = max((process.last for process in ranks), default=0) + lines.bases.get(len(lines.attempts) - 1, 0)
    word = training.stated_steps.OWN_WORD if any(process.is_claimed for process in ranks) else ""
    text = f"steps 1 to {last} once on {len(ranks)} rank{'s' * (len(ranks) != 1)}, {count} redone{word}"
    return views.conclude("no-step-lost", text, failures=failures, doubts=doubts, evidence={"redone": count})


def _done_twice(run: Run, lines: training.Lineage) -> Iterator[views.Finding]:
    """More steps than the reference made, as after a restart by itself: work that the job does again without counting it."""
    steps, twin = training.kept_facts(lines).steps, run.twin
    if twin is not None and twin.control is not None and steps == twin.control.steps and steps > twin.steps:
        more = steps - twin.steps
        text = f"{more} step{'s' * (more != 1)} more than undisturbed ({twin.steps}), after a restart by itself as well"
        yield views.finding(f"the job made {steps} steps, {text}: work was done twice that is not counted as redone")


def _endings(run: Run, lines: training.Lineage) -> Iterator[views.Finding]:
    """Ranks of the last attempt that did not leave normally, without a bed that would know, or that left after other steps."""
    ranks = tuple(lines.attempts[-1].ranks.values()) if lines.attempts else ()
    open_ended = [process for process in ranks if process.end is None]
    for process in open_ended if not run.history.events else ():
        yield views.finding(f"{process.name} has no end in its record: it was killed, or still runs")
    first, last = (pick(ranks, key=lambda process: process.last, default=None) for pick in (min, max))
    if first and last and not open_ended and first.last != last.last:
        yield views.finding(f"{first.name} ended after {first.last} steps of its start, {last.name} after {last.last}")


def _is_partly_reported(process: training.Process) -> bool:
    return process.is_claimed and len(process.steps) < max(process.last, 1)


def _unreported(attempt: training.Attempt) -> Iterator[views.Finding]:
    """A script may report every tenth step only, so a step that it leaves out need not be lost."""
    for process in attempt.ranks.values():
        if _is_partly_reported(process):
            count = f"{len(process.steps)} of {process.last} steps" if process.last else "no step"
            text = f"the script reports {count} of {process.name}"
            yield views.finding(f"{attempt.name}: {text}")


def _gaps(lines: training.Lineage, attempt: training.Attempt) -> Iterator[views.Finding]:
    """Steps that a rank did not do in order, or that lie between its last step and the one that the next attempt resumed from.

    A rank that was killed may have completed one step more than it recorded.
    """
    base = lines.bases.get(attempt.index)
    later = [item.step for item in lines.resumptions if item.attempt.index > attempt.index and item.step is not None]
    for process in attempt.ranks.values():
        if process.unobserved("steps") or _is_partly_reported(process):
            continue
        done = process.steps.intervals()
        jump = next((first for first, due in zip([n for n, _ in done], [1], strict=False) if first != due), None)
        jump = done[1][0] if jump is None and len(done) > 1 else jump
        if jump is not None:
            yield views.finding(f"{attempt.name}: {process.name} did step {jump} out of order")
        reached = process.last + (process.end is None)
        if later and base is not None and base + reached < min(later) and not _is_bridged(lines, attempt, min(later)):
            yield views.finding(
                f"{attempt.name}: {process.name} did {process.last} steps from {base}, but step {min(later)} was resumed"
            )


def _is_bridged(lines: training.Lineage, attempt: training.Attempt, step: int) -> bool:
    """Return whether a later attempt executed the steps up to ``step`` before that was resumed."""
    following = [a for a in lines.attempts if a.index > attempt.index and a.index in lines.bases]
    return any(
        lines.bases[a.index] < step <= lines.bases[a.index] + max((p.last for p in a.ranks.values()), default=0)
        for a in following
    )


def _doubled(records: tuple[StepRecord, ...]) -> Iterator[views.Finding]:
    for (epoch, rank, step), times in Counter((r.epoch, r.rank, r.step) for r in records).items():
        if times > 1:
            yield views.finding(f"rank {rank} did step {step} {times} times in {views.start_name(epoch)}")


def _after_stop(records: tuple[StepRecord, ...], omitted: Set[int]) -> Iterator[views.Finding]:
    """Steps of a case after the stop that rank 0 reported."""
    for record in records:
        if record.step in omitted:
            yield views.finding(f"rank {record.rank} did step {record.step}, after its case was stopped")


def _jumps(run: Run, records: tuple[StepRecord, ...], omitted: Set[int]) -> Iterator[views.Finding]:
    """Steps of an attempt that do not follow from the step before, or from the step that it resumed from."""
    resumes = views.resume_steps(run.history)
    last: dict[tuple[int, int], int] = {}
    for record in records:
        rank = (record.epoch, record.rank)
        due = last.get(rank, resumes.get(record.epoch, 0)) + 1
        while due in omitted:
            due += 1
        if record.step != due:
            text = f"rank {record.rank} did step {record.step} of {views.start_name(record.epoch)} instead of {due}"
            yield views.finding(text)
        last[rank] = record.step


def _holes(
    rank: int, kept_records: tuple[StepRecord, ...], due: set[int], last: int, *, ended: bool
) -> Iterator[views.Finding]:
    """``due``: the steps that this rank must have done."""
    done = Counter(record.step for record in kept_records if record.rank == rank)
    repeated = [step for step, times in done.items() if times > 1]
    beyond = [step for step in done if step > last]
    if repeated:
        yield views.finding(f"rank {rank} did step {min(repeated)} {done[min(repeated)]} times on the kept lineage")
    if beyond:
        yield views.finding(f"rank {rank} did step {max(beyond)} beyond the last, {last}")
    missing = sorted(due - set(done))
    if ended and missing:
        yield views.finding(f"rank {rank} never did step {missing[0]} ({len(missing)} of {last} are missing)")
