"""Show the output of ranks, or the log of an agent or a keeper."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ...app import beds
from ...app.places import short_path
from ...model.bed import BedSpec
from ...model.errors import UsageError
from ...model.frozen import dataclass
from ...store import bundle, index
from ..inputs import completions, options
from ..inputs.session import Session

_RANK = re.compile(r"i(?P<ordinal>\d+)-e(?P<epoch>\d+)/rank-(?P<rank>\d+)\.log")
_POLL_S = 0.1
_BLOCK = 1 << 16
#: Bytes at the end of a log that are searched for the last lines.
_TAIL = 16 << 20
#: Characters of a value in the line of an event.
_LONGEST = 100


@dataclass(frozen=True, kw_only=True)
class _Log:
    node: str
    path: Path
    rank: int = -1
    epoch: int = -1
    has_events: bool = False

    @property
    def title(self) -> str:
        return f"{self.node} rank {self.rank} attempt {self.epoch}" if self.rank >= 0 else self.node


@options.command()
@options.of_run("what", default="latest", metavar="[RUN|BED/NODE|BED/keeper]", shell_complete=completions.logs)
@click.option("--rank", type=click.IntRange(min=0), default=None, help="Only this rank.")
@click.option(
    "--epoch",
    type=click.IntRange(min=0),
    default=None,
    help="Only this attempt, the start of the gang: 0 is the first.",
)
@click.option("--node", default=None, help="Only this node.")
@click.option("-n", "--lines", type=click.IntRange(min=1), default=None, help="Only the last N lines of each log.")
@click.option("-f", "--follow", is_flag=True, help="Print new lines as they are written.")
@options.runs_dir
@options.as_json
@click.pass_obj
def command(
    session: Session,
    what: str,
    rank: int | None,
    epoch: int | None,
    node: str | None,
    lines: int | None,
    follow: bool,
    runs_dir: Path,
    as_json: bool,
) -> int:
    """Show the output of a run's ranks, or what a node's agent or the keeper did and printed."""
    handle = index.node(what)
    if handle and not (Path(what) / bundle.TRIAL).is_file() and handle[0] != "runs":
        logs = _of_bed(session, *handle)
    else:
        logs = _of_run(session, index.resolve(what, runs_dir))
    wanted = [
        log for log in logs if _matches(log.rank, rank) and _matches(log.epoch, epoch) and node in (None, log.node)
    ]
    if not wanted:
        raise UsageError(
            f"{what}: no such log", hint=f"logs of this run: {', '.join(log.title for log in logs) or 'none yet'}"
        )
    if as_json:
        _print_json(session, wanted, lines, follow)
        return 0
    if not any(log.path.exists() and log.path.stat().st_size for log in wanted):
        session.terminal.line(f"{what}: nothing written yet     {' '.join(short_path(log.path) for log in wanted)}")
    _print(session, wanted, lines, follow)
    return 0


def _matches(value: int, wanted: int | None) -> bool:
    return wanted is None or value == wanted


def _of_bed(session: Session, bed: str, name: str) -> list[_Log]:
    """The events of an agent or keeper, and the text that it printed."""
    spec = beds.choose(session, bed)
    is_keeper = beds.node_name(spec, name, *_keepers(spec)) in _keepers(spec)
    directory = Path(spec.workdir) / name if is_keeper else Path(spec.workdir) / "nodes" / name
    text = directory / ("keeper.log" if is_keeper else "agent.log")
    title = f"{bed}/{name}"
    events = _Log(node=f"{title} events", path=directory / "events.jsonl", has_events=True)
    return [events, _Log(node=f"{title} output", path=text)]


def _keepers(spec: BedSpec) -> list[str]:
    """Return the name of the bed's keeper, or of the keeper of each remote host."""
    remote = [f"keeper-{host.name}" for host in spec.hosts if host.connection != "local"]
    return remote or ["keeper"]


def _of_run(session: Session, directory: Path) -> list[_Log]:
    """List the logs in the bundle; before they are gathered, in the directories of the nodes."""
    gathered = list(_ranks(directory / "nodes", ""))
    if gathered:
        return gathered
    plan = bundle.load_plan(directory)
    spec = beds.read(session, plan.bed)
    return list(_ranks(Path(spec.workdir) / "nodes", f"runs/{plan.run}/")) if spec else []


def _ranks(nodes: Path, between: str) -> Iterator[_Log]:
    for path in sorted(nodes.glob(f"*/{between}*/rank-*.log")):
        node = path.relative_to(nodes).parts[0]
        match = _RANK.fullmatch("/".join(path.parts[-2:]))
        if match and path.is_file() and not path.is_symlink():
            yield _Log(node=node, path=path, rank=int(match["rank"]), epoch=int(match["epoch"]))


def _print_json(session: Session, logs: list[_Log], lines: int | None, follow: bool) -> None:
    """Print a JSON document per line of the logs; the events of a node are documents already."""
    offsets = {log: _start(log.path, lines) for log in logs}
    rest = dict.fromkeys(logs, "")
    while True:
        for log in logs:
            for text in _read(log, offsets, raw=True):
                *whole, rest[log] = (rest[log] + text).split("\n")
                for line in whole:
                    session.terminal.json(_document(log, line), indent=None)
            if rest[log] and not follow:
                session.terminal.json(_document(log, rest[log]), indent=None)
        if not follow:
            return
        time.sleep(_POLL_S)


def _document(log: _Log, line: str) -> dict[str, Any]:
    rank = {"rank": log.rank, "attempt": log.epoch} if log.rank >= 0 else {}
    try:
        if log.has_events:
            return {"node": log.node, **rank, "event": json.loads(line)}
        return {"node": log.node, **rank, "text": line}
    except ValueError:
        return {"node": log.node, **rank, "text": line}


def _print(session: Session, logs: list[_Log], lines: int | None, follow: bool) -> None:
    offsets = {log: _start(log.path, lines) for log in logs}
    last: _Log | None = None
    while True:
        for log in logs:
            for text in _read(log, offsets):
                if last != log and (len(logs) > 1 or last):
                    session.terminal.line(session.terminal.style(f"==> {log.title} <==", "head"))
                last = log
                if log.has_events:
                    session.terminal.lines(text.splitlines())
                else:
                    session.terminal.block(text)
        session.terminal.out.flush()
        if not follow:
            return
        time.sleep(_POLL_S)


def _read(log: _Log, offsets: dict[_Log, int], *, raw: bool = False) -> Iterator[str]:
    if not log.path.exists():
        return
    with log.path.open("rb") as source:
        source.seek(offsets[log])
        while block := source.read(_BLOCK):
            if log.has_events:
                block += source.readline()
                block = block[: block.rfind(b"\n") + 1]
            offsets[log] += len(block)
            yield _event_lines(block) if log.has_events and not raw else block.decode(errors="replace")


def _event_lines(block: bytes) -> str:
    """Events as lines ``2026-11-21 02:00:07.123Z  node.apply ok  n2  pid 4131``; a line that is no event stays as it is."""
    return "".join(f"{_event_line(line)}\n" for line in block.decode(errors="replace").splitlines())


def _event_line(line: str) -> str:
    try:
        event = json.loads(line)
        wall = datetime.fromtimestamp(event["at"]["wall"], UTC)
        values = event.get("value") or {}
        details = ", ".join(f"{name} {_short(value)}" for name, value in values.items())
        outcome = "" if event["type"] == "note" else f" {event['type']}"
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError):
        return line
    return f"{wall:%Y-%m-%d %H:%M:%S}.{wall.microsecond // 1000:03}Z  {event['f']}{outcome}  {event.get('node') or '-'}  {details}".rstrip()


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _start(path: Path, lines: int | None) -> int:
    if lines is None or not path.exists():
        return 0
    with path.open("rb") as source:
        size = source.seek(0, os.SEEK_END)
        start = source.seek(max(0, size - _TAIL))
        content = source.read(_TAIL)
    index = len(content) - 1 if content.endswith(b"\n") else len(content)
    for _ in range(lines):
        index = content.rfind(b"\n", 0, max(index, 0))
        if index < 0:
            return start
    return start + index + 1
