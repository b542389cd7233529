"""A node's share of the gangs: forks ranks, sees them exit, stops every process of an epoch, keeps the hard deadline."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...model import codec
from ...model.gang import GangSpec
from ..files import label, plain_files
from ..files.event_log import EventLog
from ..oslayer import forks, processes
from ..oslayer.event_loop import Loop, Timer

#: The node's ranks by pid and start time, for whoever must signal one (``Primitive`` signal).
RANKS = "ranks.json"
STOP_S = 5.0
DUMP_S = 0.2

Answer = Callable[[str, Mapping[str, Any]], None]


@dataclass(slots=True, kw_only=True)
class Gang:
    """The ranks of one epoch on this node. ``alive``: pid -> rank; ``release``: rank -> descriptor that ends its hold."""

    spec: GangSpec
    alive: dict[int, int] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    release: dict[int, int] = field(default_factory=dict)
    deadline: Timer | None = None


@dataclass(slots=True, kw_only=True)
class Stop:
    """A gang.stop that is under way. ``until``: when it gives up."""

    run: str
    epoch: int
    answer: Answer
    until: float
    killed: set[int] = field(default_factory=set)


class Gangs:
    """All gangs that this agent has started, by (run, epoch)."""

    def __init__(
        self,
        loop: Loop,
        directory: Path,
        identity: tuple[str, str],
        log: Callable[[str], EventLog],
        reap: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._node, self._incarnation = identity
        self._log = log
        self._reap = reap
        self._gangs: dict[tuple[str, int], Gang] = {}

    def running(self, run: str | None = None, epoch: int | None = None) -> bool:
        """Do ranks live: of any gang, or of the one named?"""
        gangs = self._gangs.values() if run is None else [g for k, g in self._gangs.items() if k == (run, epoch)]
        return any(gang.alive for gang in gangs)

    def start(self, run: str, value: Mapping[str, Any], answer: Answer) -> None:
        """Fork the ranks of a GangSpec. Refused while ranks of another gang live on this node."""
        gang = Gang(spec=codec.build(GangSpec, value))
        spec = gang.spec
        if self.running():
            answer("fail", {"reason": "ranks of another gang still run on this node"})
            return
        Path(spec.out).mkdir(parents=True, exist_ok=True)
        self._gangs[run, spec.epoch] = gang
        for rank in spec.ranks:
            self._fork(run, gang, rank)
        gang.deadline = self._loop.later(spec.deadline_s, lambda: self._expire(gang))
        self._write_ranks(gang)
        pids = {str(rank): pid for rank, pid in gang.pids.items()}
        answer("ok", {"pids": pids, "threads": processes.threads(), "agent": os.getpid()})

    def release(self, run: str, epoch: int, rank: int, hold: str) -> str:
        """Let a held rank go on; what went wrong, if anything did."""
        gang = self._gangs.get((run, epoch))
        if gang is None or rank not in gang.release:
            return f"rank {rank} of epoch {epoch} is not on this node"
        try:
            os.write(gang.release[rank], f"{hold}\n".encode())
        except OSError as error:
            return f"rank {rank}: {error.strerror}"
        return ""

    def stop(self, run: str, epoch: int, *, dump: bool, spare: Callable[[], Collection[int]], answer: Answer) -> None:
        """End every process below the agent but those in process groups of ``spare``; answers once none is left.

        ``dump``: the ranks write their stacks into their logs first.
        """
        stop = Stop(run=run, epoch=epoch, answer=answer, until=time.monotonic() + STOP_S)
        gang = self._gangs.get((run, epoch))
        if dump and gang and gang.alive:
            _signal_all(gang, signal.SIGUSR1)
            self._loop.later(DUMP_S, lambda: self._push(stop, spare))
        else:
            self._push(stop, spare)

    def exited(self, pid: int, code: int) -> bool:
        """A child was reaped: note it if it was a rank."""
        for (run, epoch), gang in self._gangs.items():
            if pid in gang.alive:
                rank = gang.alive.pop(pid)
                os.close(gang.release.pop(rank))
                value = {"rank": rank, "pid": pid, "code": code, "last_step": last_step(gang.spec.out, rank)}
                self._log(run).append(
                    "note", "rank.exit", value, node=self._node, incarnation=self._incarnation, epoch=epoch
                )
                if not gang.alive and gang.deadline:
                    gang.deadline.cancel()
                return True
        return False

    def _fork(self, run: str, gang: Gang, rank: int) -> None:
        spec, agent = gang.spec, os.getpid()
        read, write = os.pipe2(os.O_CLOEXEC)
        events = self._directory / "runs" / run / f"rank-{rank}.e{spec.epoch}.{self._incarnation}.jsonl"

        def body() -> int:
            return forks.rank_body(
                spec,
                rank,
                agent,
                events_path=str(events),
                release_fd=read,
                node=self._node,
                incarnation=self._incarnation,
            )

        pid = forks.fork(self._loop, {read}, body)
        os.close(read)
        os.set_blocking(write, False)
        gang.alive[pid] = rank
        gang.pids[rank] = pid
        gang.release[rank] = write

    def _write_ranks(self, gang: Gang) -> None:
        ranks = {str(rank): [pid, processes.start_of(pid)] for rank, pid in gang.pids.items()}
        label.write(self._directory / RANKS, {"run": gang.spec.run, "epoch": gang.spec.epoch, "ranks": ranks})

    def _push(self, stop: Stop, spare: Callable[[], Collection[int]]) -> None:
        """Kill what is left; look again shortly; answer when nothing is.

        A rank whose main thread is a zombie is not over before its other threads are: only its exit, reaped, counts.
        """
        groups = set(spare())
        left = [one for one in processes.descendants(os.getpid()) if _group(one.pid) not in groups]
        self._reap()
        unreaped = {pid for gang in self._gangs.values() for pid in gang.alive}
        if (left or unreaped) and time.monotonic() < stop.until:
            stop.killed.update(processes.kill(one for one in left if one.pid not in stop.killed))
            self._loop.later(0.001, lambda: self._push(stop, spare))
            return
        self._stopped(stop, len(unreaped | {one.pid for one in left}))

    def _stopped(self, stop: Stop, left: int) -> None:
        gang = self._gangs.get((stop.run, stop.epoch))
        steps = {str(rank): last_step(gang.spec.out, rank) for rank in gang.spec.ranks} if gang else {}
        value = {"killed": sorted(stop.killed), "left": left, "last_step": steps}
        if left:
            value["reason"] = f"{left} processes still live {STOP_S:g} s after SIGKILL"
        stop.answer("fail" if left else "ok", value)

    def _expire(self, gang: Gang) -> None:
        """The hard deadline: stacks into the ranks' logs, then the end."""
        print(f"deadline of {gang.spec.deadline_s:g} s is over: ranks {sorted(gang.alive.values())}", file=sys.stderr)
        for number, wait in ((signal.SIGUSR1, 0.0), (signal.SIGKILL, DUMP_S)):
            self._loop.later(wait, lambda number=number: _signal_all(gang, number))  # type: ignore[misc]


def last_step(out: str, rank: int) -> int:
    """The number of the last whole line in a rank's step file; 0 where there is none."""
    try:
        tail = plain_files.tail(Path(out) / f"steps-r{rank}.jsonl", 4096)
    except OSError:
        return 0
    return next(_steps_backwards(tail), 0)


def _steps_backwards(tail: bytes) -> Iterator[int]:
    whole = tail.rpartition(b"\n")[0]
    for line in itertools.islice(reversed(whole.split(b"\n")), 2):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            yield int(json.loads(line)["step"])


def _signal_all(gang: Gang, number: int) -> None:
    for pid in list(gang.alive):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
