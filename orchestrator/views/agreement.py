"""Compares the documents, the history and the event files of nodes and keepers of a bundle, in both directions."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ..model import codec, events, vaulted
from ..model.event import REPEATED, Event, History
from ..model.frozen import dataclass, field
from ..model.run import Run
from .findings import Finding, finding
from .gangs import gangs
from .json_values import mapping, whole

#: They serve runs and the bed alike; a line without a run is then about the bed, unless it is an observation.
_KEEPERS = ("keeper", "outside")
_WATCHER = re.compile(r"watch-(\d+)-\d+(\.e\d+)")
_AGENT = re.compile(r"nodes/([^/]+)/agent\.(?:.*\.)?jsonl")
#: The remark about every bundle of the first format.
NOT_COMPARED = "format 1: contents not compared"

_Identity = tuple[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    path: str
    content: Mapping[str, Any]


@dataclass(kw_only=True)
class Agreement:
    """Contradictions, and lines that cannot be compared because they were lost. ``signatures``: whether keepers signed the bundle."""

    failures: list[Finding] = field(default_factory=list)
    doubts: list[Finding] = field(default_factory=list)
    compared: int = 0
    signatures: str = "no host agent signed them"


# --- documents ----------------------------------------------------------------------------------------------------------


def identity(run: Run) -> Iterator[Finding]:
    """``run.begin`` states format, trial, twin and the SHA-256 of plan, documents and inputs; differences are findings.

    Another version of ccbed may compute another id from the same trial.json, whose SHA-256 is compared in any case.
    """
    begin = run.history.first(events.RunBegin)
    if begin is None:
        yield finding("the history has no run.begin")
        return
    about = mapping(run.extras.get("bundle.json"))
    stated, twin = begin.value, run.twin.key if run.twin and about.get("twin_after") is not True else None
    due = {"format": run.format, "twin": twin, "plan": run.files.sha256("plan.json")}
    if by_same_code(run):
        due["trial"] = run.trial.id
    for name, value in due.items():
        if name not in stated or stated[name] != value:
            yield finding(f"run.begin states {name} {stated.get(name)}, the bundle has {value}", begin)
    for name in ("run", "bed"):
        if stated.get(name) != about.get(name):
            yield finding(f"run.begin states {name} {stated.get(name)}, bundle.json has {about.get(name)}", begin)
    yield from _documents(run, begin)
    digest = codec.digest(stated)
    for event in run.history.of(events.GangStartDone):
        if event.data.begin != digest:
            yield finding(f"{event.node} received another run.begin", begin, event)


def by_same_code(run: Run) -> bool:
    """Return whether the code that judges the run is the code that drove it."""
    begin = run.history.first(events.RunBegin)
    return begin is not None and begin.data.code == run.code


def _documents(run: Run, begin: Event[events.RunBegin]) -> Iterator[Finding]:
    """Every document and input has the SHA-256 that run.begin states; inputs that it does not state are findings."""
    stated = {f"inputs/{path}": sha256 for path, sha256 in (begin.data.inputs or {}).items()}
    stated |= begin.data.documents or {}
    for path, sha256 in sorted(stated.items()):
        if run.files.sha256(path) != sha256:
            yield finding(f"{path} is not the file that the run began with (SHA-256)", begin)
    for path in run.files.paths():
        if path.startswith("inputs/") and path not in stated:
            yield finding(f"{path} was not among the inputs when the run began", begin)


# --- event files --------------------------------------------------------------------------------------------------------


def agreement(run: Run) -> Agreement:
    """Compare every event of a node or keeper with the line in its writer's own file."""
    result = Agreement()
    lines = _lines(run, result.failures)
    written = {event.source.identity: event for event in run.history.events if event.source.writer != "ctl"}
    for identity, line in lines.items():
        event = written.get(identity)
        if event is None:
            text = f"{line.path} has event {identity[3]} of {identity[2]}, which the history lacks"
            result.failures.append(finding(text))
        elif not _is_same(event, line.content):
            where = f"event {identity[3]} of {identity[2]}"
            result.failures.append(finding(f"{line.path}: {where} differs from the history", event))
        else:
            result.compared += 1
    _unwritten(run, lines, written, result)
    _agents(run, result)
    result.failures += [*_recorded(run), *_systems(run), *_sums(run)]
    unsigned = Counter(
        line.path for line in lines.values() if line.path.startswith("keepers/") and "mac" not in line.content
    )
    result.doubts += [
        finding(f"{path}: {count} lines without a host agent's signature") for path, count in unsigned.items()
    ]
    if signatures := len(run.files.read("manifest-sha256.txt.keepers").splitlines()):  # only ``bundle verify`` has keys
        checked = "they are those of the bed's key" if run.is_signed else "not checked here"
        result.signatures = f"host agents' signatures: {signatures}, {checked}"
    return result


def _lines(run: Run, failures: list[Finding]) -> dict[_Identity, _Line]:
    """The lines of this run by identity. Each writer numbers its lines by one; a line of another run is a failure."""
    begin = run.history.first(events.RunBegin)
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
            failures.append(finding(f"{path}: event {n} does not follow event {last.get(writer, 0)}"))
        last[writer] = n
        if not by_keeper and path != _expected_path(identity):
            failures.append(finding(f"{path} has an event of {source.get('writer')} on {source.get('node')}"))
        if _is_of_run(content, name):
            lines[identity] = _Line(path=path, content=content)
        elif not by_keeper:
            failures.append(finding(f"{path}: event {n} is of run {content.get('run')}"))
    return lines


def _is_of_run(content: Mapping[str, Any], name: str | None) -> bool:
    """A keeper's outcome without a run is about the bed."""
    about_bed = mapping(content.get("source")).get("writer") in _KEEPERS and content.get("type") != "note"
    return bool(content.get("run", "bed" if about_bed else name) == name)


def _expected_path(identity: _Identity) -> str:
    """The watcher of a process that a rank has started (``--cold``) writes into the rank's file, by a name of its own."""
    node, incarnation, writer, _ = identity
    if watcher := _WATCHER.fullmatch(str(writer)):
        writer = "rank-" + "".join(watcher.groups())
    return f"nodes/{node}/{writer}.{incarnation}.jsonl"


def _is_same(event: Event, content: Mapping[str, Any]) -> bool:
    """Equal in every field that the writer wrote; the history holds a repeated outcome as a note."""
    own = {name: item for name, item in content.items() if name not in ("run", "mac")}
    held = json.dumps(codec.plain(event), sort_keys=True)
    if json.dumps(own | {"seq": event.seq, "t": event.t}, sort_keys=True) == held:
        return True
    if event.kind is events.CommandRepeated and mapping(own.get("value")).get(REPEATED):
        own |= {"type": "note", "f": event.f, "value": {"f": own.get("f"), "key": own.pop("key", None)}}
    try:  # a field that neither side states has the same default on both, also a field of a later version
        written = codec.plain(codec.build(Event, own | {"seq": event.seq, "t": event.t}))
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return vaulted.same(json.loads(json.dumps(written)), json.loads(held))


def _unwritten(
    run: Run, lines: Mapping[_Identity, _Line], written: Mapping[_Identity, Event], result: Agreement
) -> None:
    """Events of the history that no file has. The end of a lost node's file may be lost with it."""
    reasons, present = missing_files(run.history), set(run.files.paths())
    lost = {event.node for event in run.history.events if event.kind in (events.NodeExit, events.NodeSilent)}
    last: dict[tuple[Any, ...], int] = {}
    for identity in lines:
        last[identity[:3]] = max(identity[3], last.get(identity[:3], 0))
    for identity, event in written.items():
        if identity in lines:
            continue
        keeper = identity[2] in _KEEPERS
        path = f"the file of {identity[2]}" if keeper else _expected_path(identity)
        what = f"{path} lacks event {identity[3]} ({event.f})"
        reason = "" if keeper else why_missing(path, reasons)
        if keeper and not any(path.startswith("keepers/") for path in present):
            reason = "the host agents' events were not gathered"
        if reason:
            result.doubts.append(finding(f"{what}: {reason}", event))
        elif not keeper and path in present and event.node in lost and identity[3] > last.get(identity[:3], 0):
            result.doubts.append(finding(f"{what}: the node was lost before the event was on its disk", event))
        else:
            result.failures.append(finding(what, event))


def _agents(run: Run, result: Agreement) -> None:
    """Every node of every gang has left an agent's file."""
    reasons = missing_files(run.history)
    agents = {match[1] for path in run.files.paths() if (match := _AGENT.fullmatch(path))}
    for node in sorted({node for gang in gangs(run.history) for node in gang.ranks.values()} - agents):
        reason = why_missing(f"nodes/{node}/agent", reasons)
        missing = finding(f"nodes/{node} has no agent file{f': {reason}' if reason else ''}")
        (result.doubts if reason else result.failures).append(missing)


def _recorded(run: Run) -> Iterator[Finding]:
    """A rank's own files have the SHA-256 that it stated when it started and when it finished."""
    present = set(run.files.paths())
    for gang in gangs(run.history):
        starts, ends = gang.by_rank(events.RankStart), gang.by_rank(events.RankFinished)
        stated = [
            *((event, event.data.files) for event in starts.values()),
            *((event, event.data.files) for event in ends.values()),
        ]
        for event, files in stated:
            directory = gang.directory(event.node) if event.node else None
            for name, sha256 in (files or {}).items():
                path = f"nodes/{event.node}/{directory}/{name}"
                if path in present and run.files.sha256(path) != sha256:
                    yield finding(f"{path} is not the file that its rank wrote (SHA-256)", event)
        for event in ends.values():
            directory = gang.directory(event.node) if event.node else None
            for name, prefix in (event.data.records or {}).items():
                path = f"nodes/{event.node}/{directory}/{name}"
                if path in present and not _has_prefix(run, path, prefix):
                    yield finding(
                        f"{path} does not begin with what the watcher had recorded when its rank finished (SHA-256)",
                        event,
                    )


def _systems(run: Run) -> Iterator[Finding]:
    """system.json of a node that ran to the end has the SHA-256 that its agent stated when it started the last gang."""
    changing = (
        events.NodeExit, events.NodeSilent, events.NodeApply, events.NodeKill, events.FaultHeal, events.HealVerified,
    )  # fmt: skip
    last = {event.node: event.seq for event in run.history.with_subject(*changing)}
    started = {event.node: event for event in run.history.of(events.GangStartDone)}
    for node, event in started.items():
        path = f"nodes/{node}/system.json"
        stated = event.data.system
        if stated and event.seq > last.get(node, 0) and run.files.sha256(path) != stated:
            yield finding(f"{path} is not the file that its agent stated (SHA-256)", event)


def _sums(run: Run) -> Iterator[Finding]:
    """Every file of a node has the SHA-256 with which it was gathered."""
    gathered = run.history.last(events.GatherDone)
    if gathered is None:
        return
    stated = gathered.data.sums or {}
    present = {path for path in run.files.paths() if path.startswith("nodes/")}
    for path in sorted(present | set(stated)):
        if run.files.sha256(path) != stated.get(path):
            yield finding(f"{path} is not the file that was gathered (SHA-256)", gathered)
    for path, prefix in (gathered.data.keepers or {}).items():
        if not _has_prefix(run, path, prefix):
            yield finding(f"{path} does not begin with the content that was gathered (SHA-256)", gathered)
    if gathered.data.files != len(present):
        yield finding(f"{gathered.data.files} files were gathered, the bundle has {len(present)}", gathered)


def _has_prefix(run: Run, path: str, prefix: events.FilePrefix) -> bool:
    content = run.files.read(path)[: prefix.bytes or 0]
    return len(content) == (prefix.bytes or 0) and hashlib.sha256(content).hexdigest() == prefix.sha256


# --- lost files ---------------------------------------------------------------------------------------------------------


def missing_files(history: History) -> Mapping[str, str]:
    """Path in the bundle, of a file or of a whole tree -> why gather could not fetch all of it."""
    reasons: dict[str, str] = {}
    for event in history.of(events.GatherDone):
        for missing in event.data.missing or ():
            reasons |= _reasons(missing.node, missing.path or "", missing.reason)
        for capped in (entry for entry in event.data.capped or () if not entry.are_logs):
            reasons |= _reasons(capped.node, capped.path or "", None)
    return reasons


def why_missing(path: str, reasons: Mapping[str, str]) -> str:
    """Return why a file is missing, if gather reported it or a tree that contains it; empty otherwise."""
    parts = path.split("/")
    return next((reasons[tree] for n in range(len(parts), 0, -1) if (tree := "/".join(parts[:n])) in reasons), "")


def _reasons(node: str | None, path: str, reason: str | None) -> dict[str, str]:
    tree = "" if path.startswith("runs/") else f"/{path}"  # the tree of a run lies in the node's own directory
    return dict.fromkeys((path, f"nodes/{node}{tree}"), reason or "not fetched whole")
