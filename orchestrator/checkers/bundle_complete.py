"""The bundle holds what every rank of every epoch left, in the place of the node that it came from; chunk files are whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.event import Event
from ..model.events import GatherDone, RankFinished, RankStart, RankStep, RunBegin
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import transfers

ALWAYS = True
TWIN = False

#: The documents without which a run cannot be read later.
DOCUMENTS = ("plan.json", "fingerprint.json", "bundle.json")
#: The first line of a rank's log says whose it is.
IDENTITY = re.compile(r"^ccbed: run (\S+) node (\S+) incarnation (\S+) epoch (\d+) rank (\d+)\s*$", re.MULTILINE)


#: (epoch, rank) -> step -> the node on which it is recorded, in the order of the file.
_Steps = dict[tuple[int, int], dict[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """One rank of one epoch, as its gang.start and its rank.start have it."""

    rank: int
    epoch: int
    node: str
    directory: str
    started: Event
    stepped: Event[RankStep] | None


def check(run: Run, params: Params) -> Verdict:
    """What is missing and was reported missing is lost data (unknown); what is missing without a word is a failure."""
    present = set(run.files.paths())
    ranks = list(_ranks(run))
    expected = {path: rank for rank in ranks for path in _expected(rank, present)}
    reported = views.unfetched(run.history)
    absent = {path: rank for path, rank in expected.items() if path not in present}
    excused = {path: reason for path in absent if (reason := views.excuse(path, reported))}
    doubts = [_lost(path, excused[path], rank) for path, rank in absent.items() if path in excused]
    failures = [views.found(f"{path} is missing", r.started) for path, r in absent.items() if path not in excused]
    failures += [views.found(f"{name} is missing") for name in DOCUMENTS if name not in run.extras]
    failures += [*_strays(ranks, present), *_inputs(run, present)]
    for rank in ranks:
        if f"{rank.directory}/rank-{rank.rank}.log" in present:
            wrong, unsure = _identity(run, rank)
            failures, doubts = [*failures, *wrong], [*doubts, *unsure]
    steps = _steps(run)
    failures += [*_records(steps, ranks), *_unheard(run)]
    doubts += transfers.damage(run.files, run.history, _left(run, ranks, steps))
    doubts += [*_ungathered(run), *views.unended(run.history), *views.unstarted(run.history)]
    text = f"{len(expected)} files of {len(ranks)} ranks, each from its own node"
    return views.conclude("bundle-complete", text, failures=failures, doubts=doubts)


def _inputs(run: Run, present: set[str]) -> Iterator[views.Finding]:
    """The files under ``inputs/`` are those that the plan lists, with the same content. Plans of format 1 list none."""
    listed = views.mapping(run.extras.get("plan.json")).get("inputs")
    if listed is None and run.format < 2:
        return
    sums = {f"inputs/{path}": str(value) for path, value in views.mapping(listed).items()}
    for path in sorted(sums.keys() - present):
        yield views.found(f"{path} is missing; plan.json lists it")
    for path in sorted(path for path in present if path.startswith("inputs/")):
        if path not in sums:
            yield views.found(f"{path} is not listed in plan.json")
        elif run.files.sha256(path) != sums[path]:
            yield views.found(f"{path} has not the content that plan.json lists")


def _unheard(run: Run) -> Iterator[views.Finding]:
    """The history holds every event that a node has written down itself."""
    heard = {event.source.identity for event in run.history.events}
    for path, source in run.files.said():
        if source.identity not in heard:
            yield views.found(f"{path} has event {source.n} of {source.writer}, which the history lacks")


def _ranks(run: Run) -> Iterator[_Rank]:
    for gang in views.gangs(run.history):
        stepped = gang.by_rank(RankStep)
        for rank, event in gang.by_rank(RankStart).items():
            node = gang.ranks.get(rank)
            directory = gang.directory(node) if node else None
            if node and directory:
                place = f"nodes/{node}/{directory}"
                yield _Rank(
                    rank=rank, epoch=gang.epoch, node=node, directory=place, started=event, stepped=stepped.get(rank)
                )  # fmt: skip


def _expected(rank: _Rank, present: set[str]) -> Iterator[str]:
    """A log and an environment of every rank; steps of one that did a step, chunks if its gang recorded any."""
    yield f"{rank.directory}/rank-{rank.rank}.log"
    yield f"{rank.directory}/env-r{rank.rank}.json"
    if rank.stepped is not None:
        yield f"{rank.directory}/steps-r{rank.rank}.jsonl"
        if any(f"-e{rank.epoch}/chunks-r" in path for path in present):
            yield f"{rank.directory}/chunks-r{rank.rank}.bin"


def _lost(path: str, reason: str, rank: _Rank) -> views.Finding:
    return views.found(f"{path} was lost: {reason}", rank.started)


def _ungathered(run: Run) -> Iterator[views.Finding]:
    """Nothing was gathered, or something was cut at its cap."""
    gathered = run.history.of(GatherDone)
    if not gathered:
        yield views.found("nothing was gathered")
    for event in gathered:
        for file in event.data.capped or ():
            yield views.found(f"{file.path} was cut at its cap", event)


def _strays(ranks: list[_Rank], present: set[str]) -> Iterator[views.Finding]:
    """A rank's file in a directory in which that rank did not run."""
    homes = {(rank.directory, rank.rank) for rank in ranks}
    known = {rank.directory for rank in ranks}
    for path in sorted(present):
        directory, _, name = path.rpartition("/")
        number = re.search(r"^(?:rank-|steps-r|chunks-r|env-r)(\d+)\.", name)
        if directory in known and number and (directory, int(number[1])) not in homes:
            yield views.found(f"{path} is of a rank that did not run there")


def _identity(run: Run, rank: _Rank) -> tuple[list[views.Finding], list[views.Finding]]:
    """(contradictions, doubts) of the line with which a rank begins its log."""
    begin = run.history.first(RunBegin)
    name = begin.data.run if begin else None
    text = run.files.log(rank.node, rank.rank, rank.epoch)
    line = IDENTITY.search(text[:4096])
    where = f"{rank.directory}/rank-{rank.rank}.log"
    if line is None:
        return [], [views.found(f"{where} does not say whose it is", rank.started)]
    due = (str(name), rank.node, str(rank.started.source.incarnation), str(rank.epoch), str(rank.rank))
    if line.groups() == due:
        return [], []
    said = f"rank {line[5]} of {line[2]}, epoch {line[4]}"
    return [views.found(f"{where} is the log of {said}, incarnation {line[3]} of run {line[1]}", rank.started)], []


def _steps(run: Run) -> _Steps:
    found: _Steps = {}
    for record in run.files.steps():
        found.setdefault((record.epoch, record.rank), {}).setdefault(record.step, record.node)
    return found


def _left(run: Run, ranks: list[_Rank], steps: _Steps) -> dict[transfers.Place, transfers.Left]:
    """What the chunk file of every rank is held against."""
    ends = {
        (gang.epoch, rank): end for gang in views.gangs(run.history) for rank, end in gang.by_rank(RankFinished).items()
    }
    return {
        (rank.epoch, rank.rank): transfers.Left(
            path=f"{rank.directory}/chunks-r{rank.rank}.bin",
            steps=steps.get((rank.epoch, rank.rank), {}).keys(),
            finished=(end := ends.get((rank.epoch, rank.rank))) is not None,
            written=end.data.transfers if end else None,
        )
        for rank in ranks
    }


def _records(steps: _Steps, ranks: list[_Rank]) -> Iterator[views.Finding]:
    """A rank's step records begin with the step that it reported as its first, and lie on its node."""
    for rank in ranks:
        if rank.stepped is None:
            continue
        done = steps.get((rank.epoch, rank.rank), {})
        step, node = next(iter(done.items()), (None, rank.node))
        told = rank.stepped.data.step
        if step != told or node != rank.node:
            where = f"{rank.directory}/steps-r{rank.rank}.jsonl"
            yield views.found(f"{where} begins with step {step}, the rank reported {told}", rank.stepped)
