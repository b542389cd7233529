"""Runs a job's own launcher once on a node, and reports what its workers recorded: the newest step and committed saves."""

from __future__ import annotations

import json
import os
import shlex
import signal
import string
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model import gang as gang_model
from ...model.events import Progress, SaveCommitted
from ..watcher.live_steps import LATER_S, Pauses, SaveReports

if TYPE_CHECKING:
    from . import context

_TORCHRUN = (
    "{python} -m torch.distributed.run --nnodes {nnodes} --nproc-per-node {nproc} --max-restarts {max_restarts}"
    " --rdzv-backend c10d --rdzv-endpoint {master_addr}:{master_port} --rdzv-id {run}"
)
#: Name -> its command. ``is_host``: what torchrun finds out by itself where every node has its own address.
KNOWN = {
    "torchrun": _TORCHRUN + " --rdzv-conf is_host={is_host}",
    "torchrun-best": "env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 "
    + _TORCHRUN
    + " --monitor-interval 0.1 --rdzv-conf is_host={is_host},last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2",
}
#: The values that a command may name.
NAMES = (
    "rank", "nnodes", "nproc", "master_addr", "master_port", "run", "max_restarts", "is_host", "python", "script", "args",
)  # fmt: skip
#: Set by a launcher for its workers; those of the node's own rank would mislead it.
_SET_BY_LAUNCHERS = (
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "NODE_RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "CCBED_EVENTS", "CCBED_RESUME",
)  # fmt: skip
#: Seconds between two readings of the workers' records, and between two reports of their newest step.
POLL_S, REPORT_S = 0.1, 0.5


def find_problems(text: str) -> Iterator[str]:
    """Yield what is wrong with a launcher as the user names it."""
    try:
        words = shlex.split(KNOWN.get(text, text))
        names = {name for word in words for _, name, _, _ in string.Formatter().parse(word) if name is not None}
    except ValueError as error:
        yield f"not a command: {error} (got {text!r})"
        return
    if unknown := sorted(names - set(NAMES)):
        yield f"unknown {{{unknown[0]}}}; a command may name {', '.join(NAMES)} (got {text!r})"


def build_command(text: str, values: Mapping[str, str | int], script: Sequence[str], args: Sequence[str]) -> list[str]:
    """The command line of a launcher. ``script``: the words of ``{script}``; appended with ``args`` unless it names them."""
    words = shlex.split(KNOWN.get(text, text))
    if not any("{script}" in word for word in words):
        words += ["{script}", "{args}"]
    lists = {"{script}": script, "{args}": args}
    texts = {"script": shlex.join(script), "args": shlex.join(args)}
    return [part for word in words for part in lists.get(word, (word.format(**values, **texts),))]


def run(ctx: context.RankContext, script: Sequence[str], search_path: Sequence[str]) -> None:
    """Run the launcher until it exits. ``search_path``: put before PYTHONPATH. Raises SystemExit unless its code is 0."""
    params = ctx.params
    line = build_command(params.launcher, _values(ctx.gang, params.nproc), script, params.args)
    print(f"ccbed: launcher: {shlex.join(line)}", flush=True)
    try:
        child = subprocess.Popen(line, env=_environment(ctx.gang, search_path, ctx.events_path, params.nproc))
    except OSError as error:
        ctx.report_error("launcher", f"{line[0]} cannot be started: {error.strerror}")
        raise SystemExit(127) from None
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = _wait(ctx, child)
    if code:
        raise SystemExit(code if code > 0 else 128 - code)


def _values(gang: gang_model.GangSpec, nproc: int) -> dict[str, str | int]:
    return {
        "rank": gang.group_rank, "nnodes": gang.nodes, "nproc": nproc, "master_addr": gang.master_addr,
        "master_port": gang.master_port, "run": gang.run, "max_restarts": gang.max_restarts,
        "is_host": str(gang.group_rank == 0).lower(), "python": sys.executable,
    }  # fmt: skip


def _environment(gang: gang_model.GangSpec, search_path: Sequence[str], events: str, nproc: int) -> dict[str, str]:
    """The environment of the launcher: with the watcher, without what a launcher sets itself for its workers.

    ``events``: the file of this rank's events, in which held workers report.
    """
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in _SET_BY_LAUNCHERS and not name.startswith("TORCHELASTIC_")
    }
    path = os.pathsep.join(filter(None, (*search_path, own.get("PYTHONPATH"))))
    watch = {
        "CCBED_WATCH": gang.out,
        "CCBED_WATCH_EVENTS": events,
        "CCBED_WATCH_LAUNCHER": f"{gang.group_rank}:{nproc}",
    }
    return {**own, **watch, "PYTHONPATH": path}


def _wait(ctx: context.RankContext, child: subprocess.Popen[bytes]) -> int:
    """The launcher's exit code; meanwhile the workers' progress is reported."""
    records, reported, pauses = Records(Path(ctx.gang.out)), (0, 0), Pauses(REPORT_S)
    saved_at = reported_at = -LATER_S
    while True:
        try:
            code: int | None = child.wait(POLL_S)
        except subprocess.TimeoutExpired:
            code = None
        for save in records.read():
            ctx.note(save)
            saved_at = time.monotonic()
        now = time.monotonic()
        pause_s, later = pauses.choose(now, saved_at)
        if records.newest != reported and (now - reported_at >= pause_s or code is not None):
            reported, reported_at = records.newest, now
            ctx.note(Progress(rank=ctx.rank, step=reported[1], steps=None, pid=reported[0], **later))
        if code is not None:
            return code


class Records:
    """The watcher's files of this node's workers, as far as they are read.

    ``newest``: pid and newest step of the first worker; of a restarted one again from 0.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: Which file had the name, and how much of it was read: a process writes its record anew when it sums up old steps.
        self._offsets: dict[Path, tuple[int, int]] = {}
        self._saves: dict[tuple[Path, object], dict[str, Any]] = {}
        self._committed: set[tuple[Path, object]] = set()
        self._first: dict[Path, int] = {}
        self._restarts: dict[Path, object] = {}
        self._reports = SaveReports()
        self.newest = (0, 0)

    def read(self) -> list[SaveCommitted]:
        """The saves that were committed since the last reading, one for all files and workers that saved after the same step.

        ``rank``: as the launcher numbers its workers.
        """
        committed = []
        for path in sorted(self._directory.glob("watch-r*.jsonl")):
            for record in self._lines(path):
                kind, n = record.get("k"), record.get("n")
                if kind == "begin":
                    self._restarts[path] = record.get("restart")
                    if not record.get("local_rank"):
                        self._first[path] = int(record.get("pid") or 0)
                elif kind in ("step", "state") and isinstance(n, int):
                    self._count(path, n)
                elif kind == "save" and (path, record.get("id")) not in self._committed:
                    self._saves[path, record.get("id")] = record
                elif kind == "committed" and (save := self._saves.pop((path, record.get("id")), None)):
                    self._committed.add((path, record.get("id")))
                    moment = (self._restarts.get(path), save.get("n"), save.get("step"))
                    if self._reports.is_new(moment):
                        committed.append(_committed(path, save, record))
        return committed

    def _count(self, path: Path, n: int) -> None:
        pid = self._first.get(path)
        if pid is not None and n and (pid != self.newest[0] or n > self.newest[1]):
            self.newest = (pid, n)

    def _lines(self, path: Path) -> Iterator[dict[str, Any]]:
        """The whole lines since the last reading; a file that cannot be read has none."""
        try:
            with path.open("rb") as source:
                number = os.fstat(source.fileno()).st_ino
                known, offset = self._offsets.get(path, (number, 0))
                offset = offset if known == number else 0
                source.seek(offset)
                whole = source.read().rpartition(b"\n")[0]
        except OSError:
            return
        self._offsets[path] = (number, offset + (len(whole) + 1 if whole else 0))
        for line in whole.split(b"\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


def _committed(path: Path, save: Mapping[str, Any], record: Mapping[str, Any]) -> SaveCommitted:
    rank = int(path.name.removeprefix("watch-r").partition("-")[0])
    name = record.get("path") or save.get("path")
    return SaveCommitted(rank=rank, path=name, n=save.get("n"), bytes=record.get("bytes"))
