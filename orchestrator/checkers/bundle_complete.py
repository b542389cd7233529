"""The bundle has the files of every rank of every start below the node that wrote them; chunk files are whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from .. import views
from ..model import events
from ..model.event import Event
from ..model.frozen import dataclass
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import transfers

ALWAYS = True

#: Documents that every bundle has.
DOCUMENTS = ("plan.json", "fingerprint.json", "bundle.json")
#: The first line of a rank's log names its run, node, attempt and rank.
IDENTITY = re.compile(r"^ccbed: run (\S+) node (\S+) incarnation (\S+) epoch (\d+) rank (\d+)\s*$", re.MULTILINE)
#: States of a silent node whose host lives on.
LIVING = ("paused", "warm", "busy", "starting")
#: (attempt, rank) -> step -> the node on which it is recorded, in the order of the file.
_Steps = dict[tuple[int, int], dict[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """One rank of one attempt by its gang.start and its rank.start."""

    rank: int
    epoch: int
    node: str
    directory: str
    started: Event[events.RankStart]
    first_step: Event[events.RankStep] | None
    restarted: bool

    @property
    def watched_pid(self) -> int | None:
        """The process of a script whose watcher reported the first step; None for a workload of ccbed."""
        return self.first_step.data.pid if self.first_step else None


def check(run: Run, params: Params) -> Verdict:
    """Judge what is missing of a rank's files: lost data (unknown) if gather reported it, or if the host may have lost it
    together with the rank; else a failure.
    """
    present = set(run.files.paths())
    ranks = list(_ranks(run))
    expected = {path: rank for rank in ranks for path in _expected(rank, present)}
    reported = views.missing_files(run.history)
    absent = {path: rank for path, rank in expected.items() if path not in present}
    lost = {path: reason for path, rank in absent.items() if (reason := _why_lost(run, path, rank, reported))}
    doubts = [views.finding(f"{path} was lost: {lost[path]}", absent[path].started) for path in lost]
    failures = [views.finding(f"{path} is missing", r.started) for path, r in absent.items() if path not in lost]
    failures += [views.finding(f"{name} is missing") for name in DOCUMENTS if name not in run.extras]
    failures += [*_strays(ranks, present), *_inputs(run, present)]
    for rank in ranks:
        if f"{rank.directory}/rank-{rank.rank}.log" in present:
            wrong, unsure = _identity(run, rank)
            failures, doubts = [*failures, *wrong], [*doubts, *unsure]
    steps = _steps(run)
    for rank, path, wrong_step in _records(steps, ranks):
        reason = _why_lost(run, path, rank, reported) if (rank.epoch, rank.rank) not in steps else ""
        if not reason:
            failures.append(wrong_step)
        elif path not in lost:
            doubts.append(views.finding(f"{path} was lost: {reason}", rank.started))
    failures += _missing_events(run)
    doubts += transfers.damage(run.files, run.history, _reports(run, ranks, steps))
    doubts += [*_ungathered(run, present), *views.not_ended(run.history), *views.not_started(run.history)]
    text = f"{len(expected)} files of {len(ranks)} ranks, each from its own node{_cut_logs(run)}"
    return views.conclude("bundle-complete", text, failures=failures, doubts=doubts)


def _inputs(run: Run, present: set[str]) -> Iterator[views.Finding]:
    """The files under ``inputs/`` are those that the plan lists, with the same content. Plans of format 1 list none."""
    listed = views.mapping(run.extras.get("plan.json")).get("inputs")
    if listed is None and run.format < 2:
        return
    sums = {f"inputs/{path}": str(value) for path, value in views.mapping(listed).items()}
    for path in sorted(sums.keys() - present):
        yield views.finding(f"{path} is missing; plan.json lists it")
    for path in sorted(path for path in present if path.startswith("inputs/")):
        if path not in sums:
            yield views.finding(f"{path} is not listed in plan.json")
        elif run.files.sha256(path) != sums[path]:
            yield views.finding(f"{path} differs from the content that plan.json lists")


def _missing_events(run: Run) -> Iterator[views.Finding]:
    """The history has every event in the files of the nodes."""
    known = {event.source.identity for event in run.history.events}
    for path, source in run.files.event_sources():
        if source.identity not in known:
            yield views.finding(f"{path} has event {source.n} of {source.writer}, which the history lacks")


def _ranks(run: Run) -> Iterator[_Rank]:
    for gang in views.gangs(run.history):
        first_steps = gang.by_rank(events.RankStep)
        started = {
            (event.data.rank, event.node, event.source.incarnation): event
            for event in reversed(gang.of(events.RankStart))
        }
        for (rank, name, incarnation), event in reversed(started.items()):
            node = name if name in gang.nodes_of(rank) else gang.ranks.get(rank)
            directory = gang.directory(node, incarnation) if node else None
            if node and directory:
                yield _Rank(
                    rank=rank, epoch=gang.epoch, node=node, directory=f"nodes/{node}/{directory}", started=event,
                    first_step=first_steps.get(rank), restarted=gang.nodes_of(rank).count(node) > 1,
                )  # fmt: skip


def _expected(rank: _Rank, present: set[str]) -> Iterator[str]:
    """A log and an environment of every rank; steps if it did a step, chunks if its gang recorded any."""
    yield f"{rank.directory}/rank-{rank.rank}.log"
    yield f"{rank.directory}/env-r{rank.rank}.json"
    if rank.watched_pid is not None:
        yield f"{rank.directory}/watch-r{rank.rank}-{rank.watched_pid}.jsonl"
    elif rank.first_step is not None:
        yield f"{rank.directory}/steps-r{rank.rank}.jsonl"
        if any(f"-e{rank.epoch}/chunks-r" in path for path in present):
            yield f"{rank.directory}/chunks-r{rank.rank}.bin"


def _ungathered(run: Run, present: set[str]) -> Iterator[views.Finding]:
    """Nothing was gathered, a file was cut at the limit of the node's share, or files of an earlier gather are still there."""
    gathered = run.history.of(events.GatherDone)
    if not gathered:
        yield views.finding("nothing was gathered")
    for event in gathered:
        for file in (entry for entry in event.data.capped or () if not entry.are_logs):
            yield views.finding(f"{file.path} was cut at its limit", event)
        for tree in event.data.missing or ():
            files = f"nodes/{tree.node}/"
            is_of_run = (tree.path or "").startswith("runs/")
            if is_of_run and any(path.startswith(files) and path.endswith(".jsonl") for path in present):
                yield views.finding(
                    f"{files} is not all that the node has: {tree.reason or 'not fetched whole'}", event
                )


def _cut_logs(run: Run) -> str:
    """The logs that the bundle has in part, the limit, and how to raise it."""
    capped = (entry for event in run.history.of(events.GatherDone) for entry in event.data.capped or ())
    logs = {f"{log.node}/{file}": log.limit or 0 for log in capped if log.are_logs for file in log.files or ()}
    limit = f"{max(logs.values(), default=0) >> 20} MiB of a node"
    return f"; cut at {limit}: {', '.join(logs)} (CCBED_NODE_FILES_MIB raises the limit)" if logs else ""


def _strays(ranks: list[_Rank], present: set[str]) -> Iterator[views.Finding]:
    """A rank's file in a directory in which that rank did not run."""
    pairs = {(rank.directory, rank.rank) for rank in ranks}
    known = {rank.directory for rank in ranks}
    for path in sorted(present):
        directory, _, name = path.rpartition("/")
        number = re.search(r"^(?:rank-|steps-r|chunks-r|env-r)(\d+)\.", name)
        if directory in known and number and (directory, int(number[1])) not in pairs:
            yield views.finding(f"{path} belongs to a rank that did not run there")


def _identity(run: Run, rank: _Rank) -> tuple[list[views.Finding], list[views.Finding]]:
    """(failures, doubts) about the first line of a rank's log."""
    begin = run.history.first(events.RunBegin)
    name = begin.data.run if begin else None
    text = run.files.log(rank.node, rank.rank, rank.epoch)
    line = IDENTITY.search(text[:4096])
    if line and line[3] != rank.started.source.incarnation:  # the node was restarted in this attempt: two logs
        lines = [other for other in IDENTITY.finditer(text) if other[3] == rank.started.source.incarnation]
        line = lines[0] if lines and rank.restarted else line
    where = f"{rank.directory}/rank-{rank.rank}.log"
    if line is None:
        return [], [views.finding(f"{where} does not name its rank", rank.started)]
    due = (str(name), rank.node, str(rank.started.source.incarnation), str(rank.epoch), str(rank.rank))
    if line.groups() == due:
        return [], []
    identity = f"rank {line[5]} of {line[2]}, {views.start_name(int(line[4]))}"
    return [
        views.finding(f"{where} is the log of {identity}, incarnation {line[3]} of run {line[1]}", rank.started)
    ], []


def _steps(run: Run) -> _Steps:
    steps: _Steps = {}
    for record in run.files.steps():
        steps.setdefault((record.epoch, record.rank), {}).setdefault(record.step, record.node)
    return steps


def _reports(run: Run, ranks: list[_Rank], steps: _Steps) -> dict[transfers.RankOfAttempt, transfers.RankReport]:
    """The reports with which the chunk file of every rank is compared."""
    ends = {
        (gang.epoch, rank): end
        for gang in views.gangs(run.history)
        for rank, end in gang.by_rank(events.RankFinished).items()
    }
    return {
        (rank.epoch, rank.rank): transfers.RankReport(
            path=f"{rank.directory}/chunks-r{rank.rank}.bin",
            steps=steps.get((rank.epoch, rank.rank), {}).keys(),
            finished=(end := ends.get((rank.epoch, rank.rank))) is not None,
            written=end.data.transfers if end else None,
        )
        for rank in ranks
    }


def _records(steps: _Steps, ranks: list[_Rank]) -> Iterator[tuple[_Rank, str, views.Finding]]:
    """(rank, path, finding) of step records that do not begin with the step that the rank reported as its first, on its node."""
    for rank in ranks:
        if rank.first_step is None or rank.watched_pid is not None:
            continue
        done = steps.get((rank.epoch, rank.rank), {})
        step, node = next(iter(done.items()), (None, rank.node))
        reported = rank.first_step.data.step
        if step != reported or node != rank.node:
            path = f"{rank.directory}/steps-r{rank.rank}.jsonl"
            begin = "is empty" if step is None else f"begins with step {step}"
            yield rank, path, views.finding(f"{path} {begin}, the rank reported {reported}", rank.first_step)


def _why_lost(run: Run, path: str, rank: _Rank, reported: Mapping[str, str]) -> str:
    """Return why a rank's file has not what the rank wrote: by gather, or by the silent end of its host. Empty if nothing explains it.

    Where a keeper saw the node exit, the host lived on, and with it every byte that was written.
    """
    if reason := views.why_missing(path, reported):
        return reason
    incarnation = rank.started.source.incarnation
    for event in run.history.with_subject(events.NodeSilent, events.NodeExit, events.RankExit):
        if event.type != "note" or event.seq < rank.started.seq or event.node != rank.node:
            continue
        if event.kind is events.NodeSilent:
            return "" if event.data.seen in LIVING else f"{rank.node} fell silent, and its host may not have stored it"
        is_own = event.kind is events.NodeExit or (event.data.rank, event.epoch) == (rank.rank, rank.epoch)
        if is_own and event.source.incarnation == incarnation:
            return ""
    return ""
