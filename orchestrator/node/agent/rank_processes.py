"""The rank processes of a node: forks the ranks of a gang, reports their exits, stops them, enforces the hard deadline."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...model import codec
from ...model.events.commands import GangStopDone
from ...model.events.ranks import RankExit
from ...model.frozen import dataclass, field
from ...model.gang import GangSpec, temporary_directory
from ...model.trial import SCRIPT
from ...system import plain_files
from .. import warm_up
from ..files import inbox, label
from ..files.event_log import EventLog
from ..files.inbox import Respond
from ..oslayer import cgroups, forks, launched_workers, processes
from ..oslayer.event_loop import Loop, Timer
from ..oslayer.processes import Process
from . import inspection, script_reserves
from . import stacks as rank_stacks
from .reserve_ranks import ReserveRanks

EXIT_POLL_S = 0.02
#: The pause between two checks of a stop: a hundredth of the time that it has taken, from the first to EXIT_POLL_S.
STOP_POLL_S = 0.001
#: A gang that has recovered has made its first steps after this time, in seconds.
RECOVERED_S = 5.0
#: An error file is read up to this size, and its message up to this length.
ERROR_BYTES = 1 << 20
ERROR_LETTERS = 500
#: The end of a watcher's record that is read for a save that has not ended.
RECORD_BYTES = 1 << 16


@dataclass(slots=True, kw_only=True)
class Gang:
    """The ranks of one attempt on this node. ``alive``: pid -> rank; ``release``: rank -> descriptor that ends its hold."""

    spec: GangSpec
    alive: dict[int, int] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    release: dict[int, int] = field(default_factory=dict)
    deadline: Timer | None = None
    began: float = field(default_factory=time.monotonic)
    oom_kills: tuple[str, int] = field(default_factory=cgroups.oom_kills)


@dataclass(slots=True, kw_only=True)
class Stop:
    """A gang.stop in progress. ``until``: when it fails; ``terminated``: the pids that got SIGTERM; ``killed``: pid -> start time
    of what got SIGKILL.

    ``accepts_exiting``: a killed process that runs no more code is not waited for. ``grace_s``, ``save_grace_s``: as in GangStop.
    ``noticed``: when the ranks got their notice; ``had_s``: rank -> time from then to its end or SIGKILL. ``stacks``: by rank.
    """

    run: str
    epoch: int
    respond: Respond
    began: float
    until: float
    accepts_exiting: bool = False
    grace_s: float = 0.0
    save_grace_s: float = 0.0
    noticed: float = 0.0
    had_s: dict[int, float] = field(default_factory=dict)
    killed: dict[int, int] = field(default_factory=dict)
    terminated: frozenset[int] = frozenset()
    stacks: dict[str, tuple[str, ...]] | None = None


class RankProcesses:
    """The gangs that this agent has started, by (run, epoch)."""

    def __init__(
        self,
        loop: Loop,
        directory: Path,
        identity: tuple[str, str],
        log: Callable[[str], EventLog],
        reap: Callable[[], None],
        *,
        has_reserves: bool = True,
        shared: Path | None = None,
    ) -> None:
        """``shared``: the directory that the nodes of this host share, if it does."""
        self._loop = loop
        self._directory = directory
        self._node, self._incarnation = identity
        self._log = log
        self._reap = reap
        self._gangs: dict[tuple[str, int], Gang] = {}
        self._reserves = ReserveRanks(loop, directory, identity, run_order, shared or directory)
        #: Ranks that run no more code and are not reaped yet.
        self._exiting: set[int] = set()
        self._has_reserves = has_reserves
        self._count = 1

    def are_running(self, run: str | None = None, epoch: int | None = None) -> bool:
        """Do ranks of any gang live, or those of the named gang? One that runs no more code does not."""
        gangs = self._gangs.values() if run is None else [g for k, g in self._gangs.items() if k == (run, epoch)]
        return any(gang.alive.keys() - self._exiting for gang in gangs)

    def start(self, run: str, spec: GangSpec) -> Mapping[int, int]:
        """Fork the ranks of a gang, while no ranks live on this node; their pids."""
        gang = Gang(spec=spec)
        Path(spec.out).mkdir(parents=True, exist_ok=True)
        self._gangs[run, spec.epoch] = gang
        self._reserves.stop_imports(spec)
        self._count = len(spec.ranks)
        for rank in spec.ranks:
            self._begin_rank(run, gang, rank)
        gang.deadline = self._loop.call_later(spec.deadline_s, lambda: self._expire(gang))
        self._write_ranks(gang)
        return gang.pids

    def prepare_reserves(self) -> bool:
        """Keep as many reserves as the last gang had ranks on this node, if it is a node with reserves; whether they are there.

        They are forked while no rank runs, or ``RECOVERED_S`` after a recovery that took them: not while a first attempt measures.
        """
        if not self._has_reserves:
            return True
        running = [gang for gang in self._gangs.values() if gang.alive]
        has_recovered = all(gang.spec.epoch and time.monotonic() - gang.began > RECOVERED_S for gang in running)
        is_prepared = self._reserves.prepare(self._count, is_idle=has_recovered)
        return self._reserves.import_ahead(self._count) and is_prepared

    def release(self, run: str, epoch: int, rank: int, hold: str) -> str:
        """End the hold of a rank; the problem, or an empty string."""
        gang = self._gangs.get((run, epoch))
        rank = rank // workers if gang and (workers := workers_per_node(gang.spec)) else rank
        if gang is None or rank not in gang.release:
            return f"rank {rank} of epoch {epoch} is not on this node"
        try:
            os.write(gang.release[rank], f"{hold}\n".encode())
        except OSError as error:
            return f"rank {rank}: {error.strerror}"
        return self._order(gang, rank, {"release": hold}) if gang.spec.workload == SCRIPT else ""

    def order_all(self, run: str, epoch: int, order: Mapping[str, Any]) -> str:
        """Append an order for the watcher inside of each rank; the problem, or an empty string."""
        gang = self._gangs.get((run, epoch))
        if gang is None:
            return f"no rank of epoch {epoch} is on this node"
        return "; ".join(filter(None, (self._order(gang, rank, order) for rank in gang.spec.ranks)))

    def _order(self, gang: Gang, rank: int, order: Mapping[str, Any]) -> str:
        try:
            inbox.append_order(Path(gang.spec.out), rank, order)
        except OSError as error:
            return f"rank {rank}: {error.strerror}"
        return ""

    def stop(
        self,
        run: str,
        epoch: int,
        *,
        dump: bool,
        limit_s: float,
        grace_s: float = 0.0,
        save_grace_s: float = 0.0,
        accepts_exiting: bool = False,
        spare: Callable[[], Collection[int]],
        respond: Respond,
    ) -> None:
        """Kill every descendant of the agent outside the process groups of ``spare``; respond once none is left.

        ``limit_s``: after this time respond with what is left. ``dump``: the stacks of the ranks are first written into their logs.
        ``grace_s``: they get SIGTERM first, and this time. ``save_grace_s``: they get this time while one of them is inside a save.
        ``accepts_exiting``: respond once all of them run no more code, while the kernel still frees their memory.
        """
        began = time.monotonic()
        stop = Stop(
            run=run, epoch=epoch, respond=respond, began=began, until=began + limit_s, accepts_exiting=accepts_exiting,
            grace_s=grace_s, save_grace_s=save_grace_s,
        )  # fmt: skip
        gang = self._gangs.get((run, epoch))
        if dump and gang and gang.alive:

            def end(stacks: dict[int, str]) -> None:
                stop.stacks = {str(rank): inspection.main_thread(text) for rank, text in stacks.items()}
                self._end_until_stopped(stop, gang, spare)

            rank_stacks.dump(self._loop, _inspected(gang), end)
        else:
            self._end_until_stopped(stop, gang, spare)

    def inspect(self, run: str, epoch: int, *, stacks: bool, respond: Respond) -> None:
        gang = self._gangs.get((run, epoch))
        pids = {rank: pid for rank, (pid, _) in _inspected(gang).items()} if gang else {}
        inspection.inspect(self._loop, pids, stacks=stacks, respond=lambda done: respond("ok", done))

    def exited(self, pid: int, code: int) -> bool:
        """A child was reaped: report the exit if it was a rank; whether it was."""
        for (run, epoch), gang in self._gangs.items():
            if pid in gang.alive:
                rank = gang.alive.pop(pid)
                self._exiting.discard(pid)
                os.close(gang.release.pop(rank))
                if gang.spec.isolation:
                    shutil.rmtree(temporary_directory(pid), ignore_errors=True)
                error = (read_error(gang.spec.out, rank) or read_mismatch(gang.spec.out, rank)) if code else None
                if code == -signal.SIGKILL and (text := cgroups.explain_oom(gang.oom_kills)):
                    error, gang.oom_kills = text, cgroups.oom_kills()
                rank_exit = RankExit(
                    rank=rank, pid=pid, code=code, last_step=last_step(gang.spec.out, rank), error=error
                )
                self._log(run).note(rank_exit, node=self._node, incarnation=self._incarnation, epoch=epoch)
                if not gang.alive and gang.deadline:
                    gang.deadline.cancel()
                return True
        return self._reserves.exited(pid)

    def _begin_rank(self, run: str, gang: Gang, rank: int) -> None:
        spec = gang.spec
        events = self._directory / "runs" / run / f"rank-{rank}.e{spec.epoch}.{self._incarnation}.jsonl"
        who = {"rank": rank, "events_path": str(events), "node": self._node, "incarnation": self._incarnation}
        pid, reserve = None, None
        if _may_use_reserve(spec):
            if spec.workload == SCRIPT:
                pid, who["imports"] = self._reserves.choose(spec, rank)
            reserve = self._reserves.order({"spec": codec.plain(spec), **who}, pid)
        pid, release = reserve or self._fork(spec, who)
        gang.alive[pid] = rank
        gang.pids[rank] = pid
        gang.release[rank] = release

    def _fork(self, spec: GangSpec, who: Mapping[str, Any]) -> tuple[int, int]:
        """Fork a rank; its pid and the descriptor that releases its holds."""
        agent = os.getpid()
        read, write = os.pipe2(os.O_CLOEXEC)
        pid = forks.fork(self._loop, {read}, lambda: run_rank(spec, parent=agent, release_fd=read, **who))
        os.close(read)
        os.set_blocking(write, False)
        return pid, write

    def _write_ranks(self, gang: Gang) -> None:
        """Store the ranks by pid and start time, so that the keeper can signal one of them."""
        ranks = {str(rank): [pid, processes.start_time(pid)] for rank, pid in gang.pids.items()}
        out = os.path.relpath(gang.spec.out, self._directory)
        is_launched = workers_per_node(gang.spec) > 0
        content = {
            "run": gang.spec.run,
            "epoch": gang.spec.epoch,
            "ranks": ranks,
            "out": out,
            "is_launched": is_launched,
        }
        plain_files.write_json(self._directory / label.RANKS, content)

    def _end_until_stopped(self, stop: Stop, gang: Gang | None, spare: Callable[[], Collection[int]]) -> None:
        """Send SIGTERM to the ranks and wait until they have left or their time is over; then kill what is left."""
        stop.noticed = time.monotonic()
        if gang and gang.alive and stop.grace_s:
            stop.terminated = frozenset(gang.alive)
            _signal_ranks(gang, signal.SIGTERM)
        self._wait_for_exits(stop, gang, frozenset(gang.alive.values()) if gang else frozenset(), spare)

    def _wait_for_exits(
        self, stop: Stop, gang: Gang | None, ranks: frozenset[int], spare: Callable[[], Collection[int]]
    ) -> None:
        """``ranks``: those whose end is awaited."""
        self._reap()
        left = ranks.intersection(gang.alive.values()) if gang else frozenset()
        had_s = time.monotonic() - stop.noticed
        may_save = had_s < stop.save_grace_s
        may_go_on = gang and left and (had_s < stop.grace_s or (may_save and _is_saving(gang)))
        stop.had_s |= dict.fromkeys(ranks if not may_go_on else ranks - left, round(had_s, 3))
        if may_go_on:
            self._loop.call_later(EXIT_POLL_S, lambda: self._wait_for_exits(stop, gang, left, spare))
        else:
            self._kill_until_stopped(stop, spare)

    def _kill_until_stopped(self, stop: Stop, spare: Callable[[], Collection[int]]) -> None:
        """Kill the remaining processes and check again shortly; respond when none is left.

        A rank counts until it is reaped: its main thread may be a zombie while its other threads still run.
        """
        known = stop.killed.items() if stop.accepts_exiting else ()
        exiting = {pid for pid, start in known if processes.start_time(pid) == start and processes.is_exiting(pid)}
        living = {process.pid: process for process in self._descendants(exiting, spare)}
        self._reap()
        left = (living.keys() | self._unreaped()) - exiting
        now = time.monotonic()
        if left and now < stop.until:
            due = [process for process in living.values() if stop.killed.get(process.pid) != process.start]
            for gang in self._gangs.values() if due else ():  # what is killed here was not killed for memory
                gang.oom_kills = cgroups.oom_kills()
            stop.killed |= {pid: living[pid].start for pid in processes.kill(due)}
            pause_s = min(max(STOP_POLL_S, (now - stop.began) / 100), EXIT_POLL_S)
            self._loop.call_later(pause_s, lambda: self._kill_until_stopped(stop, spare))
            return
        self._respond_to_stop(stop, len(left), [pid for pid in exiting if processes.find(pid)])

    def _unreaped(self) -> set[int]:
        return {pid for gang in self._gangs.values() for pid in gang.alive}

    def _descendants(self, exiting: Collection[int], spare: Callable[[], Collection[int]]) -> Iterator[Process]:
        """The living processes that a stop ends. Those of exiting ones come first: they pass to the agent meanwhile."""
        groups, reserves = set(spare()), self._reserves.pids
        for parent in (*exiting, os.getpid()):
            for process in processes.descendants(parent):
                if process.pid not in reserves and _group(process.pid) not in groups:
                    yield process

    def _respond_to_stop(self, stop: Stop, left: int, exiting: Collection[int]) -> None:
        gang = self._gangs.get((stop.run, stop.epoch))
        self._exiting |= self._unreaped().intersection(exiting)
        steps = {str(rank): last_step(gang.spec.out, rank) for rank in gang.spec.ranks} if gang else {}
        done = GangStopDone(
            killed=tuple(sorted(stop.killed.keys() | stop.terminated)),
            left=left,
            exiting=tuple(sorted(exiting)) or None,
            last_step=steps,
            had_s={str(rank): had_s for rank, had_s in sorted(stop.had_s.items())} or None,
            stacks=stop.stacks,
            reason=f"{left} processes still live {stop.until - stop.began:g} s after the stop began" if left else None,
        )
        stop.respond("fail" if left else "ok", done)

    def _expire(self, gang: Gang) -> None:
        """The hard deadline is over: the stacks of the ranks are written into their logs, then they are killed."""
        print(f"deadline of {gang.spec.deadline_s:g} s is over: ranks {sorted(gang.alive.values())}", file=sys.stderr)
        rank_stacks.dump(self._loop, _inspected(gang), lambda _: _signal_ranks(gang, signal.SIGKILL))


def run_order(order: Mapping[str, Any], release_fd: int) -> int:
    """The body of a rank in a reserve: ``run_rank`` with what the order says."""
    who = {name: value for name, value in order.items() if name != "spec"}
    return run_rank(codec.build(GangSpec, order["spec"]), parent=os.getppid(), release_fd=release_fd, **who)


def _may_use_reserve(spec: GangSpec) -> bool:
    """A recovery with the code that the reserve has rehearsed."""
    return bool(spec.epoch and script_reserves.may_use_reserve(spec) and warm_up.is_same_code(spec.payload))


def run_rank(
    gang: GangSpec, rank: int, parent: int, *, events_path: str, release_fd: int, node: str, incarnation: str, imports: str = ""
) -> int:  # fmt: skip
    """The body of a forked rank: leave the agent's process group, log to a file, load the payload, run the rank.

    ``imports``: what a reserve has imported ahead, or why it has not.
    """
    os.setpgid(0, 0)
    forks.die_with_parent(parent)
    forks.redirect_output(Path(gang.out) / f"rank-{rank}.log")
    os.umask(gang.umask)
    _import_from(gang.payload)
    main = importlib.import_module("orchestrator.rank.runtime.rank_main")
    return int(
        main.main(
            gang,
            rank,
            events_path=events_path,
            release_fd=release_fd,
            node=node,
            incarnation=incarnation,
            imports=imports,
        )
        or 0
    )


def _import_from(payload: str) -> None:
    """Put the packages of the payload before those of the archive, and its ``user`` directory on sys.path."""
    package = sys.modules["orchestrator"]
    package.__path__.insert(0, os.path.join(payload, "orchestrator"))
    sys.path.insert(0, payload)
    warm_up.adopt_rank_code(payload)


def _inspected(gang: Gang) -> dict[int, tuple[int, Path]]:
    """Rank -> pid, and the file for its stacks."""
    name = "stacks-r{}-{}.txt" if workers_per_node(gang.spec) else "rank-{}.log"
    return {rank: (pid, Path(gang.spec.out) / name.format(rank, number)) for rank, pid, number in _living(gang)}


def _living(gang: Gang) -> Iterator[tuple[int, int, int]]:
    """Rank, pid, and the pid that the process knows; under a job's own launcher of its workers, as it numbers them."""
    if not workers_per_node(gang.spec):
        yield from ((rank, pid, pid) for pid, rank in gang.alive.items())
    else:
        for pid in gang.alive:
            for worker in launched_workers.find(Path(gang.spec.out), pid).values():
                yield worker.rank, worker.process.pid, worker.number


def _is_saving(gang: Gang) -> bool:
    """Is a rank of this node inside a save, by the tails of the watcher's records?"""
    return any(_has_open_save(f"{gang.spec.out}/watch-r{rank}-{number}.jsonl") for rank, _, number in _living(gang))


def _has_open_save(record: str) -> bool:
    begun: set[object] = set()
    with contextlib.suppress(OSError):
        for line in plain_files.read_tail(record, RECORD_BYTES).split(b"\n"):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                if entry["k"] in ("save", "saved", "failed"):
                    (begun.add if entry["k"] == "save" else begun.discard)(entry["id"])
    return bool(begun)


def workers_per_node(gang: GangSpec) -> int:
    """Return how many workers the job's own launcher starts on a node; 0 if ccbed starts the ranks."""
    return int(gang.params.get("nproc") or 1) if gang.params.get("launcher") else 0


def last_step(out: str, rank: int) -> int:
    """The number of the last whole line in a rank's step file; 0 if there is none."""
    try:
        tail = plain_files.read_tail(Path(out) / f"steps-r{rank}.jsonl", 4096)
    except OSError:
        return 0
    return next(_steps_backwards(tail), 0)


def read_error(out: str, rank: int) -> str | None:
    """The message in the error file of a rank, which torchrun's ``@record`` writes; None if there is none."""
    try:
        message = json.loads(plain_files.read_tail(Path(out) / f"error-r{rank}.json", ERROR_BYTES))["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    text = str(message.get("message") if isinstance(message, dict) else message)
    return text[:ERROR_LETTERS]


def read_mismatch(out: str, rank: int) -> str | None:
    """Return what gloo says of two ranks in collectives of different sizes, from the end of a rank's log; None if it says nothing."""
    try:
        text = plain_files.read_tail(Path(out) / f"rank-{rank}.log", ERROR_BYTES)
    except OSError:
        return None
    sizes = re.search(rb"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)", text)
    if sizes is None:
        return None
    sent, expected = (f"{int(size):,}" for size in sizes.groups())
    return f"a peer sent {sent} bytes where it expected {expected}"


def _steps_backwards(tail: bytes) -> Iterator[int]:
    whole = tail.rpartition(b"\n")[0]
    for line in itertools.islice(reversed(whole.split(b"\n")), 2):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            yield int(json.loads(line)["step"])


def _signal_ranks(gang: Gang, number: int) -> None:
    for pid in list(gang.alive):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
