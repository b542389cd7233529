"""Show the output of ranks, or the log of an agent or a keeper."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from ...model.bed import BedSpec
from ...model.errors import UsageError
from ...store import bundle, index
from ..inputs import beds, options
from ..inputs.session import Session

_RANK = re.compile(r"i(?P<ordinal>\d+)-e(?P<epoch>\d+)/rank-(?P<rank>\d+)\.log")
_POLL_S = 0.1
_BLOCK = 1 << 16
#: Bytes at the end of a log that are searched for the last lines.
_TAIL = 16 << 20


@dataclass(frozen=True, kw_only=True)
class _Log:
    node: str
    path: Path
    rank: int = -1
    epoch: int = -1

    @property
    def title(self) -> str:
        return f"{self.node} rank {self.rank} attempt {self.epoch}" if self.rank >= 0 else self.node


@options.command()
@click.argument("what", default="latest", metavar="[RUN|BED/NODE|BED/keeper]")
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
) -> int:
    """Show the output of a run's ranks, or the log of a node's agent or of the keeper."""
    handle = index.node(what)
    if handle and not (Path(what) / bundle.TRIAL).is_file() and handle[0] != "runs":
        logs = [_of_bed(session, *handle)]
    else:
        logs = _of_run(session, index.resolve(what, runs_dir))
    wanted = [
        log for log in logs if _matches(log.rank, rank) and _matches(log.epoch, epoch) and node in (None, log.node)
    ]
    if not wanted:
        raise UsageError(
            f"{what}: no such log", hint=f"logs of this run: {', '.join(log.title for log in logs) or 'none yet'}"
        )
    _print(session, wanted, lines, follow)
    return 0


def _matches(value: int, wanted: int | None) -> bool:
    return wanted is None or value == wanted


def _of_bed(session: Session, bed: str, name: str) -> _Log:
    spec = beds.choose(session, bed)
    known = [*(node.name for node in spec.nodes), *_keepers(spec)]
    if name not in known:
        raise UsageError(f"bed {bed} has no node {name}; it has {', '.join(known)}")
    workdir = Path(spec.workdir)
    path = workdir / name / "keeper.log" if name in _keepers(spec) else workdir / "nodes" / name / "agent.log"
    return _Log(node=f"{bed}/{name}", path=path)


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


def _print(session: Session, logs: list[_Log], lines: int | None, follow: bool) -> None:
    offsets = {log: _start(log.path, lines) for log in logs}
    last: _Log | None = None
    while True:
        for log in logs:
            for text in _read(log, offsets):
                if last != log and (len(logs) > 1 or last):
                    session.terminal.line(session.terminal.style(f"==> {log.title} <==", "head"))
                last = log
                session.terminal.block(text)
        session.terminal.out.flush()
        if not follow:
            return
        time.sleep(_POLL_S)


def _read(log: _Log, offsets: dict[_Log, int]) -> Iterator[str]:
    if not log.path.exists():
        return
    with log.path.open("rb") as source:
        source.seek(offsets[log])
        while block := source.read(_BLOCK):
            offsets[log] += len(block)
            yield block.decode(errors="replace")


def _start(path: Path, lines: int | None) -> int:
    """Return the offset of the last ``lines`` lines."""
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
