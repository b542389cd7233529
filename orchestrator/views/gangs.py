"""The gangs of a run: for each attempt the node of every rank, what its ranks and agents reported, and why it failed."""

from __future__ import annotations

import posixpath
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from ..model import events
from ..model.event import Event, History
from ..model.events import NodeFacts
from ..model.frozen import dataclass, field
from ..model.payload import Payload
from ..model.run import Run
from . import standing
from .command_outcomes import Operation, operations
from .event_order import clock

P = TypeVar("P", bound=Payload)

#: Ranks that fail within this time of the first may fail because of it, in seconds.
WINDOW_S = 1.0
#: Libraries end a process by these after its peer is lost, so they are no cause by themselves.
_CONSEQUENCES = (-signal.SIGABRT, -signal.SIGTERM)
#: Errors of a rank whose peer closed its connections.
_LOST_PEER = re.compile(
    r"closed by (?:remote )?(?:peer|host)|Connection (?:reset|closed|refused)|Broken pipe|remote process exited",
    re.IGNORECASE,
)
#: The log of a rank in a bundle.
_LOG = re.compile(r"nodes/(?P<node>[^/]+)/i(?P<ordinal>\d+)-e(?P<epoch>\d+)/rank-(?P<rank>\d+)\.log")
#: Of a line that torch prints.
_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_TRACEBACK = "Traceback (most recent call last):"
#: The first line of a log, written by ccbed.
_HEAD = "ccbed: run "
#: The place in its own source with which torch begins an error.
_SOURCE = re.compile(r"\[/\S+\.(?:cc|cpp|h|hpp|cu):\d+\] ")
#: Lines of a traceback: those at its end, which name the error.
_FRAMES = 60
#: Characters of a line of a log, and of an error in the text of a finding.
_LINE, _WHY = 2000, 300
#: The most ranks whose place is named.
_NAMED = 3
#: What colours text on a terminal, and characters that show nothing or turn the order of text around.
_COLOUR = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """One attempt. ``slots``: group rank -> node; ``ranks``: rank -> node; ``starts``: the gang.start of each node.

    ``starts_on``: node -> its starts; ``rank_nodes``: rank -> the nodes on which it was started, in order.

    Where the job's own launcher recovers, a lost node is replaced within the attempt: ``slots`` and ``ranks`` name the
    newest node, ``starts`` all of them.
    """

    epoch: int
    starts: tuple[Operation, ...]
    slots: Mapping[int, str]
    ranks: Mapping[int, str]
    world: int | None
    starts_on: Mapping[str, tuple[Operation, ...]]
    rank_nodes: Mapping[int, tuple[str, ...]]
    notes: Mapping[str, tuple[Event, ...]] = field(default_factory=dict)

    @property
    def began(self) -> Event[events.GangStart]:
        """The first gang.start of this attempt."""
        return self.starts[0].invoke

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.slots[slot] for slot in sorted(self.slots))

    def nodes_of(self, rank: int) -> tuple[str, ...]:
        """The nodes on which this rank was started, in order."""
        return self.rank_nodes.get(rank, ())

    def of(self, kind: type[P]) -> tuple[Event[P], ...]:
        """The notes of this kind that ranks, agents and the controller wrote in this attempt."""
        return self.notes.get(kind.NAME, ())

    def by_rank(self, kind: type[P]) -> dict[int, Event[P]]:
        """rank -> its first note of this kind."""
        notes: dict[int, Event[P]] = {}
        for event in self.of(kind):
            data: Any = event.data
            if data.rank is not None:
                notes.setdefault(data.rank, event)
        return notes

    def is_complete(self, kind: type[Payload]) -> bool:
        """Return whether every rank of the world has a note of this kind."""
        return bool(self.ranks) and set(self.ranks) <= set(self.by_rank(kind))

    def directory(self, node: str, incarnation: str | None = None) -> str | None:
        """The name of the node's directory of this attempt in the bundle, ``i<ordinal>-e<epoch>``.

        ``incarnation``: of the node, where it was restarted within the attempt.
        """
        starts = self.starts_on.get(node, ())
        own = [start for start in starts if start.outcome and start.outcome.source.incarnation == incarnation]
        out = next((start.invoke.data.out for start in own or starts), None)
        return posixpath.basename(out.rstrip("/")) if out is not None else None


def culprit_of(gang: Gang, rank: int) -> tuple[int, Event[events.RankError] | None]:
    """The rank that caused the end of ``rank``, with its last error: the rank itself, or the rank that its error names."""
    errors = gang.by_rank(events.RankError)
    error = errors.get(rank)
    culprit = error.data.culprit if error else None
    if culprit is None or culprit not in gang.ranks:
        return rank, error
    return culprit, errors.get(culprit, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The rank that failed first. ``error``: what it reported; ``followers``: the ranks that failed after it.

    ``peers``: why it had waited in vain for its peers: where they were, or what kept the ranks apart.
    """

    rank: int
    exit: Event[events.RankExit]
    error: Event[events.RankError] | None = None
    followers: tuple[int, ...] = ()
    peers: str = ""

    @property
    def node(self) -> str:
        return self.exit.node or ""

    @property
    def how(self) -> str:
        """Say how it exited, for example: was ended by SIGKILL; left with exit code 3; left with exit code 1: ValueError: no luck."""
        code = self.exit.data.code or 0
        if code == 0:
            return "left with exit code 0 while other ranks still needed it"
        ended = f"was ended by {signal_name(-code)}" if code < 0 else f"left with exit code {code}"
        reported = self.error and self.error.data.kind != "exit"
        why = self.exit.data.error
        if self.error and reported:
            why = ": ".join(filter(None, (self.error.data.kind, self.error.data.message)))
        reason = _cut(" ".join(_SOURCE.sub("", why or "").split()), _WHY)
        parts = filter(None, (self.peers, reason))  # where the peers were says more than that they did not come
        return f"{ended}: {'; '.join(parts)}" if why else ended


def root_cause(history: History, gang: Gang) -> Cause | None:
    """The cause of the failure of an attempt; None where no rank failed by itself.

    Of the ranks that failed within ``WINDOW_S`` of the first, a death by signal is the cause, else the earliest error that is no
    lost peer, else the earliest. If that error is a lost peer and a rank had left with code 0 before, that rank is the cause.
    """
    killed = _killed(history, gang)
    failed = [
        event for event in gang.by_rank(events.RankExit).values()
        if event.data.code not in (0, None) and (event.node, event.data.pid) not in killed
    ]  # fmt: skip
    if not failed:
        return None
    errors, at = gang.by_rank(events.RankError), clock(history)
    times = {event.data.rank: min(at(event), at(errors.get(event.data.rank, event))) for event in failed}
    begin = min(times.values())
    near = [event for event in failed if times[event.data.rank] <= begin + WINDOW_S]
    lost = {rank for rank, error in errors.items() if _LOST_PEER.search(error.data.message or "")}
    order = {event.data.rank: (event.data.rank in lost, times[event.data.rank], event.data.rank) for event in near}
    first = min(near, key=lambda event: (not _is_killed(event), order[event.data.rank]))
    if leaver := _early_leaver(gang, first, lambda event: at(event) <= begin):
        return Cause(rank=leaver.data.rank, exit=leaver, followers=tuple(sorted(times)))
    rank, error = culprit_of(gang, first.data.rank)
    # A culprit that the stop of the gang ended did not leave by itself: the error that names it is the evidence.
    cause = next((event for event in failed if event.data.rank == rank), first) if error else first
    followers = tuple(sorted(set(times) - {cause.data.rank}))
    is_of_peers = cause.data.code == -signal.SIGABRT or (
        error is not None and standing.is_of_peers(error.data.kind, error.data.message)
    )
    peers = "; ".join(_peers(history, gang)) if is_of_peers else ""
    return Cause(rank=cause.data.rank, exit=cause, error=error, followers=followers, peers=peers)


def _peers(history: History, gang: Gang) -> Iterator[str]:
    """Yield what kept the ranks apart while they joined, and where those without an error were when the attempt was stopped."""
    if not gang.is_complete(events.RankJoined):
        calls = {rank: event.data for rank, event in gang.by_rank(events.RankJoining).items()}
        port = next((e.data.port for e in history.of(events.StoreOpenDone) if e.epoch == gang.epoch), None)
        yield from standing.mismatches(calls, len(gang.ranks), port)
    stops = [event for event in history.of(events.GangStopDone) if event.epoch == gang.epoch]
    stacks = {int(rank): frames for event in stops for rank, frames in (event.data.stacks or {}).items()}
    stacks = {rank: frames for rank, frames in stacks.items() if rank not in gang.by_rank(events.RankError)}
    for rank in [rank for rank in standing.absent(stacks) if standing.is_in_script(stacks[rank])][:_NAMED]:
        yield f"rank {rank} was at {standing.position(stacks[rank])}, in no collective"
    failed = {rank: event.data.stack or () for rank, event in gang.by_rank(events.RankError).items()}
    waiting = tuple(group for group in standing.groups({**failed, **stacks}) if group.call not in standing.PAIRED)
    if len(waiting) > 1:  # one call may stand at two lines that match, such as a broadcast of rank 0 and of the others
        what = "collectives" if len({group.call for group in waiting}) > 1 else "lines"
        yield f"different {what}: {standing.places(waiting)}"


def _early_leaver(
    gang: Gang, failed: Event[events.RankExit], is_before: Callable[[Event], bool]
) -> Event[events.RankExit] | None:
    """The exit of the first rank that left with code 0 before the others lost a peer; None where they failed otherwise."""
    error = gang.by_rank(events.RankError).get(failed.data.rank)
    if error is None or not _LOST_PEER.search(error.data.message or ""):
        return None
    ends = gang.by_rank(events.RankFinished)
    left = [event for event in gang.by_rank(events.RankExit).values() if event.data.code == 0]
    return next((event for event in left if is_before(ends.get(event.data.rank, event))), None)


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 99`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def gangs(history: History) -> tuple[Gang, ...]:
    """The gangs that the orchestrator started, by attempt."""
    starts: dict[int, list[Operation]] = {}
    for operation in operations(history, events.GangStart):
        epoch = epoch_of(operation.invoke)
        if epoch is not None:
            starts.setdefault(epoch, []).append(operation)
    notes = _notes(history)
    return tuple(_gang(epoch, starts[epoch], notes.get(epoch, {})) for epoch in sorted(starts))


def start_name(epoch: int | None) -> str:
    """The name of a start of the ranks, for people: "epoch" is a pass over the data to them."""
    return f"restart {epoch}" if epoch else "first start"


def epoch_of(event: Event) -> int | None:
    """The attempt that an event names, in its own field or in its value."""
    return event.epoch if event.epoch is not None else event.data.epoch


def epoch_at(known: tuple[Gang, ...], seq: int) -> int | None:
    """The attempt whose gang was the newest when event ``seq`` was written; None before the first."""
    return max((gang.epoch for gang in known if gang.began.seq <= seq), default=None)


def slots_at(history: History, seq: int) -> tuple[str, ...]:
    """Group rank -> node by the newest decision or gang before event ``seq``; empty before the first gang."""
    newest, slots = 0, tuple[str, ...]()
    for gang in gangs(history):
        if newest < gang.began.seq <= seq:
            first = first_slots(gang)
            newest, slots = gang.began.seq, tuple(first[slot] for slot in sorted(first))
    for event in history.of(events.RecoveryDecided, events.RecoveryGrown, events.RecoveryReplaced):
        if newest < event.seq <= seq:
            newest, slots = event.seq, event.data.slots or ()
    return slots


def first_slots(gang: Gang) -> Mapping[int, str]:
    """Group rank -> the node on which it was first started in this attempt."""
    slots: dict[int, str] = {}
    for start in gang.starts:
        slots.setdefault(start.invoke.data.group_rank or 0, start.node or "")
    return slots


def replacements(history: History, gang: Gang) -> tuple[tuple[int, str], ...]:
    """(group rank, its new node) for each node that was replaced within this attempt, in order."""
    slots, moves = dict(first_slots(gang)), []
    for event in history.of(events.RecoveryReplaced):
        if event.epoch != gang.epoch:
            continue
        new = dict(enumerate(event.data.slots or ()))
        lost = event.data.lost or ()
        moves += [(slot, new[slot]) for slot, node in slots.items() if node in lost and slot in new]
        slots |= new
    return tuple(moves)


def is_abnormal(event: Event) -> bool:
    """Return whether the event is a detector's; a rank that exits with code 0 is not abnormal."""
    return event.kind in events.DETECTORS and not (event.kind is events.RankExit and event.data.code == 0)


def begin_nodes(history: History) -> Mapping[str, NodeFacts]:
    """Name -> the node as the run found it."""
    begin = history.first(events.RunBegin)
    return (begin.data.nodes or {}) if begin else {}


def hosts_of(history: History) -> Mapping[str, str]:
    """node -> its host as the run began; an empty name for all where the history names no hosts."""
    return {node: facts.host or "" for node, facts in begin_nodes(history).items()}


def _gang(epoch: int, starts: list[Operation], notes: Mapping[str, list[Event]]) -> Gang:
    slots: dict[int, str] = {}
    ranks: dict[int, str] = {}
    starts_on: dict[str, tuple[Operation, ...]] = {}
    rank_nodes: dict[int, tuple[str, ...]] = {}
    for start in starts:
        data, node = start.invoke.data, start.node or ""
        slots[data.group_rank or 0] = node
        ranks |= dict.fromkeys(data.ranks or (), node)
        starts_on[node] = (*starts_on.get(node, ()), start)
        for rank in dict.fromkeys(data.ranks or ()):
            rank_nodes[rank] = (*rank_nodes.get(rank, ()), node)
    return Gang(
        epoch=epoch,
        starts=tuple(starts),
        slots=slots,
        ranks=ranks,
        world=starts[0].invoke.data.world_size,
        starts_on=starts_on,
        rank_nodes=rank_nodes,
        notes={name: tuple(reports) for name, reports in notes.items()},
    )


def _notes(history: History) -> dict[int, dict[str, list[Event]]]:
    notes: dict[int, dict[str, list[Event]]] = {}
    for event in history.events:
        if event.type == "note" and event.epoch is not None:
            notes.setdefault(event.epoch, {}).setdefault(event.f, []).append(event)
    return notes


def _is_killed(event: Event[events.RankExit]) -> bool:
    code = event.data.code or 0
    return code < 0 and code not in _CONSEQUENCES


def _killed(history: History, gang: Gang) -> set[tuple[str | None, int | None]]:
    """(node, pid) of the processes that ccbed itself ended."""
    stops = (stop for stop in operations(history, events.GangStop) if stop.epoch == gang.epoch)
    ends = (stop.outcome for stop in stops if stop.outcome is not None)
    return {
        (end.node, pid) for end in ends if isinstance(end.data, events.GangStopDone) for pid in end.data.killed or ()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRank:
    """``path``: of its log in the bundle, empty if there is none; ``tail``: the last lines.

    ``traceback``: the last one in the log; empty if the log is nothing else, and ``tail`` shows it.
    """

    rank: int
    node: str
    epoch: int
    path: str = ""
    tail: tuple[str, ...] = ()
    traceback: tuple[str, ...] = ()

    @property
    def start(self) -> str:
        return start_name(self.epoch)


def failed_rank(run: Run, lines: int) -> FailedRank | None:
    """The rank to look at, with at most so many lines of its log; None where no rank failed.

    A culprit that the stop of the gang ended before it wrote a line is not the rank to look at: the one that names it is.
    """
    ranks = [_with_log(run, where, lines) for where in _failed_last(run.history)]
    return next((rank for rank in ranks if rank.tail), ranks[0] if ranks else None)


def _with_log(run: Run, where: tuple[int, str, int], lines: int) -> FailedRank:
    rank, node, epoch = where
    text = run.files.log(node, rank, epoch).removesuffix("\n")
    log = [_shown(line) for line in (text.split("\n") if text else ()) if not line.startswith(_HEAD)]
    path = log_paths(run).get((node, rank, epoch), "")
    tail, traceback = tuple(log[-lines:]), _traceback(log)
    if len(traceback) == len(tail) == len(log):
        traceback = ()
    return FailedRank(rank=rank, node=node, epoch=epoch, path=path, tail=tail, traceback=traceback)


def _shown(line: str) -> str:
    """A line of a log as a terminal leaves it: what follows the last return of a progress bar, without colours."""
    plain = _COLOUR.sub("", line.rstrip("\r").rpartition("\r")[2])
    return _cut(_UNSEEN.sub("\ufffd", plain), _LINE)


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    half = length // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"


def log_paths(run: Run) -> Mapping[tuple[str, int, int], str]:
    """(node, rank, attempt) -> the path of its log in the bundle; of several incarnations of a node the last."""
    matches = [(int(match["ordinal"]), match) for path in run.files.paths() if (match := _LOG.fullmatch(path))]
    ranked = sorted(matches, key=lambda pair: pair[0])
    return {(match["node"], int(match["rank"]), int(match["epoch"])): match[0] for _, match in ranked}


def _failed_last(history: History) -> list[tuple[int, str, int]]:
    """(rank, node, attempt) of the culprit, and of the rank that names it, in the last attempt in which a rank failed."""
    failures = [
        event for event in history.of(events.RankError, events.RankExit) if _is_failure(event.data) and event.node
    ]
    epoch = max((event.epoch or 0 for event in failures), default=None)
    known = gangs(history)
    gang = next((gang for gang in known if gang.epoch == epoch), known[-1] if known and epoch is None else None)
    cause = root_cause(history, gang) if gang else None
    if gang and cause:
        rank, _ = culprit_of(gang, cause.rank)
        return [(number, gang.ranks[number], gang.epoch) for number in dict.fromkeys((rank, cause.rank))]
    failed = next((event for event in failures if (event.epoch or 0) == epoch), None)
    if failed is None or failed.node is None or epoch is None:
        return []
    rank = failed.data.rank
    known_ranks = gang.ranks if gang else {}
    named = culprit_of(gang, rank)[0] if gang and rank in known_ranks else rank
    return [(number, known_ranks.get(number, failed.node), epoch) for number in dict.fromkeys((named, rank))]


def _is_failure(payload: events.RankError | events.RankExit) -> bool:
    return (payload.code or 0) > 0 if isinstance(payload, events.RankExit) else payload.kind is not None


def _traceback(log: list[str]) -> tuple[str, ...]:
    """The last traceback of the log without the prefix of its rank: its indented lines, and the error with its indented lines."""
    lines = [_PREFIX.sub("", line) for line in log]
    first = max((number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)), default=None)
    if first is None:
        return ()
    error = _unindented(lines, first + 1)
    kept = lines[first : _unindented(lines, error + 1)]
    return tuple(kept if len(kept) <= _FRAMES else [kept[0], "  …", *kept[2 - _FRAMES :]])


def _unindented(lines: list[str], first: int) -> int:
    """The number of the first line from ``first`` on that is not indented; behind the last one if there is none."""
    numbers = range(first, len(lines))
    return next((number for number in numbers if not lines[number].startswith((" ", "\t"))), len(lines))
