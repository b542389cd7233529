"""Whether the history and the event files of nodes and keepers say the same, line by line, in both directions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..model import codec, vaulted
from ..model.event import REPEATED, Event
from ..model.events import (
    CommandRepeated,
    FaultHeal,
    GangStartDone,
    GatherDone,
    HealVerified,
    NodeApply,
    NodeExit,
    NodeKill,
    NodeSilent,
    RankFinished,
    RankStart,
    RunBegin,
)
from ..model.run import Run
from .clock import mapping, whole
from .findings import Finding, found
from .gangs import gangs
from .gathered import excuse, unfetched

#: They serve runs and the bed alike; a line without a run is then about the bed, unless it is an observation.
_KEEPERS = ("keeper", "outside")

_Identity = tuple[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    path: str
    content: Mapping[str, Any]


@dataclass(kw_only=True)
class Agreement:
    """Contradictions, and what cannot be compared because it was lost."""

    failures: list[Finding] = field(default_factory=list)
    doubts: list[Finding] = field(default_factory=list)
    compared: int = 0


def agreement(run: Run) -> Agreement:
    """Compare every event of a node or keeper with the line that its writer wrote itself."""
    result = Agreement()
    lines = _lines(run, result.failures)
    events = {event.source.identity: event for event in run.history.events if event.source.writer != "ctl"}
    for identity, line in lines.items():
        event = events.get(identity)
        if event is None:
            result.failures.append(
                found(f"{line.path} has event {identity[3]} of {identity[2]}, which the history lacks")
            )
        elif not _same(event, line.content):
            where = f"event {identity[3]} of {identity[2]}"
            result.failures.append(found(f"{line.path}: {where} differs from the history", event))
        else:
            result.compared += 1
    _unwritten(run, lines, events, result)
    _agents(run, result)
    result.failures += [*_recorded(run), *_systems(run), *_sums(run)]
    return result


def _lines(run: Run, failures: list[Finding]) -> dict[_Identity, _Line]:
    """The lines of this run by identity. Each writer numbers its lines by one; a line of another run is a failure."""
    begin = run.history.first(RunBegin)
    name = begin.data.run if begin else None
    lines: dict[_Identity, _Line] = {}
    last: dict[tuple[Any, ...], int] = {}
    for path, content in run.files.event_lines():
        source = mapping(content.get("source"))
        n = whole(source.get("n")) or 0
        identity = (source.get("node"), source.get("incarnation"), source.get("writer"), n)
        by_keeper = source.get("writer") in _KEEPERS
        writer = (path,) if by_keeper else (path, *identity[:3])
        if n != last.get(writer, n - 1 if by_keeper else 0) + 1:
            failures.append(found(f"{path}: event {n} does not follow event {last.get(writer, 0)}"))
        last[writer] = n
        if not by_keeper and path != _expected_path(identity):
            failures.append(found(f"{path} has an event of {source.get('writer')} on {source.get('node')}"))
        if _of_run(content, name):
            lines[identity] = _Line(path=path, content=content)
        elif not by_keeper:
            failures.append(found(f"{path}: event {n} is of run {content.get('run')}"))
    return lines


def _of_run(content: Mapping[str, Any], name: Any) -> bool:
    """A keeper's answer without a run was asked for the bed."""
    answers_bed = mapping(content.get("source")).get("writer") in _KEEPERS and content.get("type") != "note"
    return bool(content.get("run", "bed" if answers_bed else name) == name)


def _expected_path(identity: _Identity) -> str:
    node, incarnation, writer, _ = identity
    return f"nodes/{node}/{writer}.{incarnation}.jsonl"


def _same(event: Event, content: Mapping[str, Any]) -> bool:
    """Equal in all that the writer wrote; a repeated answer stands in the history as a note."""
    own = {name: item for name, item in content.items() if name not in ("run", "mac")}
    if event.kind is CommandRepeated and mapping(own.get("value")).get(REPEATED):
        own |= {"type": "note", "f": event.f, "value": {"f": own.get("f"), "key": own.pop("key", None)}}
    try:  # what neither states has the same default on both sides, also one of a later version
        written = codec.plain(codec.build(Event, own | {"seq": event.seq, "t": event.t}))
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return vaulted.same(json.loads(json.dumps(written)), json.loads(json.dumps(codec.plain(event))))


def _unwritten(
    run: Run, lines: Mapping[_Identity, _Line], events: Mapping[_Identity, Event], result: Agreement
) -> None:
    """Events of the history that no file has. The end of a lost node's file may be lost with it."""
    reasons, present = unfetched(run.history), set(run.files.paths())
    lost = {event.node for event in run.history.of(NodeExit, NodeSilent)}
    last: dict[tuple[Any, ...], int] = {}
    for identity in lines:
        last[identity[:3]] = max(identity[3], last.get(identity[:3], 0))
    for identity, event in events.items():
        if identity in lines:
            continue
        keeper = identity[2] in _KEEPERS
        path = f"the file of {identity[2]}" if keeper else _expected_path(identity)
        what = f"{path} lacks event {identity[3]} ({event.f})"
        reason = "" if keeper else excuse(path, reasons)
        if keeper and not any(path.startswith("keepers/") for path in present):
            reason = "the keepers' events were not gathered"
        if reason:
            result.doubts.append(found(f"{what}: {reason}", event))
        elif not keeper and path in present and event.node in lost and identity[3] > last.get(identity[:3], 0):
            result.doubts.append(found(f"{what}: the node was lost before it was on its disk", event))
        else:
            result.failures.append(found(what, event))


def _agents(run: Run, result: Agreement) -> None:
    """Every node of every gang has left an agent's file."""
    reasons, present = unfetched(run.history), run.files.paths()
    for node in sorted({node for gang in gangs(run.history) for node in gang.ranks.values()}):
        if any(path.startswith(f"nodes/{node}/agent.") and path.endswith(".jsonl") for path in present):
            continue
        reason = excuse(f"nodes/{node}/agent", reasons)
        finding = found(f"nodes/{node} has no agent file{f': {reason}' if reason else ''}")
        (result.doubts if reason else result.failures).append(finding)


def _recorded(run: Run) -> Iterator[Finding]:
    """A rank's own files have the SHA-256 that it stated when it started and when it finished."""
    present = set(run.files.paths())
    for gang in gangs(run.history):
        events: list[Event[RankStart | RankFinished]] = [*gang.by_rank(RankStart).values()]
        events += gang.by_rank(RankFinished).values()
        for event in events:
            directory = gang.directory(event.node) if event.node else None
            for name, stated in (event.data.files or {}).items():
                path = f"nodes/{event.node}/{directory}/{name}"
                if path in present and run.files.sha256(path) != stated:
                    yield found(f"{path} is not the file that its rank wrote (SHA-256)", event)


def _systems(run: Run) -> Iterator[Finding]:
    """system.json of a node that ran to the end has the SHA-256 that its agent stated when it started the last gang."""
    changing = (NodeExit, NodeSilent, NodeApply, NodeKill, FaultHeal, HealVerified)
    last = {event.node: event.seq for event in run.history.with_subject(*changing)}
    started = {event.node: event for event in run.history.of(GangStartDone)}
    for node, event in started.items():
        path = f"nodes/{node}/system.json"
        stated = event.data.system
        if stated and event.seq > last.get(node, 0) and run.files.sha256(path) != stated:
            yield found(f"{path} is not the file that its agent stated (SHA-256)", event)


def _sums(run: Run) -> Iterator[Finding]:
    """Every file of a node has the SHA-256 with which it was gathered."""
    gathered = run.history.of(GatherDone)
    if not gathered:
        return
    data = gathered[-1].data
    stated = data.sums or {}
    present = {path for path in run.files.paths() if path.startswith("nodes/")}
    for path in sorted(present | set(stated)):
        if run.files.sha256(path) != stated.get(path):
            yield found(f"{path} is not the file that was gathered (SHA-256)", gathered[-1])
    for path, prefix in (data.keepers or {}).items():
        content = run.files.read(path)[: prefix.bytes or 0]
        if hashlib.sha256(content).hexdigest() != prefix.sha256:
            yield found(f"{path} does not begin with what was gathered (SHA-256)", gathered[-1])
    if data.files != len(present):
        yield found(f"{data.files} files were gathered, {len(present)} are there", gathered[-1])
