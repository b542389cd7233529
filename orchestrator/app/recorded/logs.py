"""The output of ranks, and the logs of agents and keepers: found in a bundle or in the directories of a bed, and read as they grow."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ... import views
from ...model.bed import BedSpec
from ...model.errors import UsageError
from ...model.frozen import dataclass
from ...store import bundle, index
from .. import beds
from ..requests import argument, option, runs_directory
from ..session import Session

_RANK = re.compile(r"i(?P<ordinal>\d+)-e(?P<epoch>\d+)/rank-(?P<rank>\d+)\.log")
_POLL_S = 0.1
_BLOCK = 1 << 16
#: Bytes at the end of a log that are searched for the last lines.
_TAIL = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsRequest:
    """The request of `ccbed logs`."""

    what: str = argument("latest", metavar="[RUN|BED/NODE|BED/keeper]", completes="logs")
    rank: int | None = option(None, "Only this rank.", least=0)
    start: int | None = option(
        None, "Only this start of the worker group: 0 is the first, 1 the first restart.", least=0
    )
    node: str | None = option(None, "Only this node.")
    lines: int | None = option(None, "Only the last N lines of each log.", flags=("-n", "--lines"), least=1)
    follow: bool = option(False, "Print new lines as they are written.", flags=("-f", "--follow"))
    runs_dir: Path = runs_directory()

    def wants(self, log: Log) -> bool:
        return self.rank in (None, log.rank) and self.start in (None, log.epoch) and self.node in (None, log.node)


@dataclass(frozen=True, kw_only=True)
class Log:
    """A file of a rank of an attempt (``epoch``), an agent or a keeper; ``has_events``: JSON lines; ``run``: its directory."""

    node: str
    path: Path
    rank: int = -1
    epoch: int = -1
    has_events: bool = False
    run: Path | None = None

    @property
    def title(self) -> str:
        return f"{self.node} rank {self.rank} {views.start_name(self.epoch)}" if self.rank >= 0 else self.node

    def document(self, line: str) -> object:
        """A line, for programs; the events of a node are documents already."""
        rank = {"rank": self.rank, "attempt": self.epoch} if self.rank >= 0 else {}
        try:
            content = {"event": json.loads(line)} if self.has_events else {"text": line}
        except ValueError:
            content = {"text": line}
        return {"node": self.node, **rank, **content}


def find(session: Session, request: LogsRequest) -> tuple[Log, ...]:
    """Return the logs that are meant. Raises UsageError with the titles of the others where there is none."""
    handle = index.node(request.what)
    if handle and not (Path(request.what) / bundle.TRIAL).is_file() and handle[0] != "runs":
        logs = _of_bed(session, *handle)
    else:
        logs = _of_run(session, index.resolve(request.what, request.runs_dir))
    wanted = tuple(filter(request.wants, logs))
    if not wanted:
        known = ", ".join(log.title for log in logs) or "none yet"
        raise UsageError(f"{request.what}: no such log", hint=f"logs of this run: {known}")
    return wanted


def parts(logs: Sequence[Log], request: LogsRequest) -> Iterator[tuple[Log, str]]:
    """Yield the content of the logs, a part of one at a time; with ``follow`` until its run is closed. Events come as whole lines."""
    offsets = {log: _start(log.path, request.lines) for log in logs}
    while True:
        is_last = not request.follow or any(log.run and bundle.is_sealed(log.run) for log in logs)
        for log in logs:
            for text in _read(log, offsets):
                yield log, text
        if is_last:
            return
        time.sleep(_POLL_S)


def lines(logs: Sequence[Log], request: LogsRequest) -> Iterator[tuple[Log, str]]:
    """Yield the lines of the logs; the last one of a log that has no end yet once the logs are not followed."""
    rest, last = dict.fromkeys(logs, ""), logs[0]
    for log, text in parts(logs, request):
        if log != last and rest[last] and not request.follow:
            yield last, rest.pop(last)
        last = log
        *whole, rest[log] = (rest[log] + text).split("\n")
        for line in whole:
            yield log, line
    yield from ((log, line) for log, line in rest.items() if line)


def _of_bed(session: Session, bed: str, name: str) -> list[Log]:
    """The events of an agent or keeper, and the text that it printed."""
    spec = beds.choose(session, bed)
    is_keeper = beds.node_name(spec, name, *_keepers(spec)) in _keepers(spec)
    directory = Path(spec.workdir) / name if is_keeper else Path(spec.workdir) / "nodes" / name
    text = directory / ("keeper.log" if is_keeper else "agent.log")
    title = f"{bed}/{name}"
    events = Log(node=f"{title} events", path=directory / "events.jsonl", has_events=True)
    return [events, Log(node=f"{title} output", path=text)]


def _keepers(spec: BedSpec) -> list[str]:
    """Return the name of the bed's keeper, or of the keeper of each remote host."""
    remote = [f"keeper-{host.name}" for host in spec.hosts if host.connection != "local"]
    return remote or ["keeper"]


def _of_run(session: Session, directory: Path) -> list[Log]:
    """List the logs in the bundle; before they are gathered, in the directories of the nodes."""
    gathered = list(_ranks(directory / "nodes", "", directory))
    if gathered:
        return gathered
    plan = bundle.load_plan(directory)
    spec = beds.read(session, plan.bed)
    return list(_ranks(Path(spec.workdir) / "nodes", f"runs/{plan.run}/", directory)) if spec else []


def _ranks(nodes: Path, between: str, run: Path) -> Iterator[Log]:
    for path in sorted(nodes.glob(f"*/{between}*/rank-*.log")):
        node = path.relative_to(nodes).parts[0]
        match = _RANK.fullmatch("/".join(path.parts[-2:]))
        if match and path.is_file() and not path.is_symlink():
            yield Log(node=node, path=path, rank=int(match["rank"]), epoch=int(match["epoch"]), run=run)


def _read(log: Log, offsets: dict[Log, int]) -> Iterator[str]:
    if not log.path.exists():
        return
    with log.path.open("rb") as source:
        source.seek(offsets[log])
        while block := source.read(_BLOCK):
            if log.has_events:
                block += source.readline()
                block = block[: block.rfind(b"\n") + 1]
            offsets[log] += len(block)
            yield block.decode(errors="replace")


def _start(path: Path, count: int | None) -> int:
    """The offset of the last ``count`` lines; None: of all."""
    if count is None or not path.exists():
        return 0
    with path.open("rb") as source:
        size = source.seek(0, os.SEEK_END)
        start = source.seek(max(0, size - _TAIL))
        content = source.read(_TAIL)
    position = len(content) - 1 if content.endswith(b"\n") else len(content)
    for _ in range(count):
        position = content.rfind(b"\n", 0, max(position, 0))
        if position < 0:
            return start
    return start + position + 1
