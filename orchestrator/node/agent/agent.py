"""The agent of a node: reads its inbox, forks ranks, beats, kills and reaps. One thread; torch imported, never used."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..files import inbox, label, plain_files
from ..files.event_log import EventLog
from ..files.inbox import Inbox, Item
from ..oslayer import forks, processes
from ..oslayer.event_loop import Loop
from . import checkpoints, execs, rendezvous_stores, system_facts
from .gang import Gangs

T = TypeVar("T")

BEAT_S = 0.25
#: So long a command tries again where the shared directory cannot be used.
SHARE_S = 5.0
#: Event files kept open: the run's, the node's, and a few of the runs before.
LOGS = 8
#: Commands that may act for an epoch that is over, as long as ranks of it live.
LATE = ("gang.stop", "rank.release")


class Agent:
    """One incarnation of a node. ``mine``: its label."""

    def __init__(self, directory: Path, mine: Mapping[str, Any]) -> None:
        self._directory = directory
        self._label = mine
        self._node = str(mine["node"])
        self._incarnation = str(mine["incarnation"])
        self._loop = Loop()
        self._logs: dict[str, EventLog] = {}
        self._epochs: dict[str, int] = {}
        self._beats = itertools.count(1)
        self._heart = plain_files.made(directory / "heartbeat")
        self._inbox = Inbox(directory)
        self._gangs = Gangs(self._loop, directory, (self._node, self._incarnation), self._log, self._reap)
        self._stores = rendezvous_stores.Stores(self._loop)
        self._execs = execs.Execs(self._loop)
        self._system = system_facts.System(directory, mine)

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until killed. ``ready`` is called once commands are taken."""
        forks.subreaper()
        gc.collect()
        gc.freeze()
        self._loop.on_child(self._reap)
        self._loop.watch(self._inbox.fd, self._work)
        value = {
            "pid": os.getpid(),
            "threads": processes.threads(),
            "torch": getattr(sys.modules.get("torch"), "__version__", None),
            "frozen": self._label.get("frozen", 0),
        }
        self._system.write()
        self._note("bed", "agent.ready", value)
        ready()
        self._system.ask(self._loop.later)
        self._loop.every(BEAT_S, self._turn)
        self._loop.run()

    def _turn(self) -> None:
        """The slow poll: the heart beats, and nothing that inotify or a signal lost stays unseen."""
        self._beat()
        self._reap()
        self._work()

    def _beat(self) -> None:
        os.pwrite(self._heart, f"{self._incarnation} {next(self._beats):>12}\n".encode(), 0)

    def _work(self) -> None:
        for item in self._inbox.take():
            self._consider(item)

    def _consider(self, item: Item) -> None:
        problem = item.problem or self._objection(item)
        if item.outcome is not None:
            self._append_outcome(item, inbox.again(item.outcome))
            self._inbox.finish(item)
        elif problem:
            self._refuse(item, problem)
        else:
            self._perform(item)

    def _perform(self, item: Item) -> None:
        epoch = item.command.epoch
        if epoch is not None:
            self._epochs[item.run] = max(epoch, self._epochs.get(item.run, epoch))
        self._answering_errors(item, lambda: self._performers()[item.command.f](item))

    def _answering_errors(self, item: Item, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001
            self._answer(item, "fail", {"reason": f"{type(error).__name__}: {error}"})

    def _with_share(self, item: Item, act: Callable[[bool], T], then: Callable[[T], None]) -> None:
        """Hand the result of ``act`` to ``then``. An OSError is tried again for ``SHARE_S``; meanwhile the loop goes on.

        ``act`` is told whether this is the last attempt.
        """
        until = time.monotonic() + SHARE_S

        def attempt(pause: float) -> None:
            if problem := self._objection(item):
                self._refuse(item, problem)
                return
            last = time.monotonic() >= until
            try:
                result = act(last)
            except OSError:
                if last:
                    raise
                self._loop.later(pause, lambda: self._answering_errors(item, lambda: attempt(min(2 * pause, 1.0))))
            else:
                then(result)

        attempt(0.05)

    def _performers(self) -> Mapping[str, Callable[[Item], None]]:
        return {
            "fence.write": self._fence_write,
            "checkpoint.scan": self._checkpoint_scan,
            "store.open": self._store_open,
            "gang.start": self._gang_start,
            "gang.stop": self._gang_stop,
            "rank.release": self._rank_release,
            "exec": self._exec,
            "exec.stop": self._exec_stop,
        }

    def _objection(self, item: Item) -> str:
        """Why a command may not be performed; empty where it may."""
        command = item.command
        if item.problem or item.outcome is not None:
            return ""
        if command.f not in self._performers():
            return f"an agent does not perform {command.f}"
        if command.incarnation not in (None, self._incarnation):
            return f"for incarnation {command.incarnation}; this one is {self._incarnation}"
        highest = self._epochs.get(item.run, 0)
        if command.epoch is None or command.epoch >= highest:
            return ""
        if command.f in LATE and self._gangs.running(item.run, command.epoch):
            return ""
        return f"epoch {command.epoch} is over; epoch {highest} has begun"

    def _fence_write(self, item: Item) -> None:
        value = item.command.value
        directory, epoch, fresh = Path(value["dir"]), int(value["epoch"]), bool(value.get("fresh", True))
        self._with_share(
            item,
            lambda _: checkpoints.write_fence(directory, epoch, fresh=fresh),
            lambda _: self._answer(item, "ok", {"epoch": epoch}),
        )

    def _checkpoint_scan(self, item: Item) -> None:
        value = item.command.value
        directory, lineage = Path(value["dir"]), value.get("lineage", ())
        self._with_share(
            item,
            lambda last: checkpoints.newest(directory, lineage, self._beat, unreadable_is_damaged=last),
            lambda result: self._answer(item, "ok", result),
        )

    def _store_open(self, item: Item) -> None:
        value = item.command.value
        address, port, epoch = str(value["address"]), int(value.get("port", 0)), int(value["epoch"])
        self._stores.open((item.run, epoch), address, port, self._answering(item))

    def _gang_start(self, item: Item) -> None:
        """A node that was stopped when it was told to start a gang must not do it when another epoch has begun without it."""
        epoch, directory = int(item.command.value["epoch"]), Path(item.command.value["checkpoints"])
        confirmed = {"begin": item.command.value.get("begin", ""), **self._system.stated()}
        answer = self._answering(item)

        def start(fence: int | None) -> None:
            if fence is not None and fence > epoch:
                self._refuse(item, f"epoch {epoch} is over; the fence is at epoch {fence}")
            else:
                self._gangs.start(
                    item.run, item.command.value, lambda kind, value: answer(kind, {**value, **confirmed})
                )

        self._with_share(item, lambda _: checkpoints.fence(directory), start)

    def _gang_stop(self, item: Item) -> None:
        epoch, dump = int(item.command.value["epoch"]), bool(item.command.value.get("dump"))

        def spare() -> set[int]:
            return {*self._execs.groups, *self._system.groups, *self._stores.later_than(item.run, epoch)}

        self._gangs.stop(item.run, epoch, dump=dump, spare=spare, answer=self._answering(item))

    def _rank_release(self, item: Item) -> None:
        value, epoch = item.command.value, item.command.epoch or 0
        problem = self._gangs.release(item.run, epoch, int(value["rank"]), str(value["hold"]))
        self._answer(item, "fail" if problem else "ok", {"reason": problem} if problem else {})

    def _exec(self, item: Item) -> None:
        self._execs.start(item.command.value, self._answering(item))

    def _exec_stop(self, item: Item) -> None:
        self._execs.stop(str(item.command.value["out"]))
        self._answer(item, "ok", {})

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            known = self._gangs.exited(pid, code) or self._stores.exited(pid) or self._execs.exited(pid, code)
            known or self._system.exited(pid, code)

    def _answering(self, item: Item) -> Callable[[str, Mapping[str, Any]], None]:
        return lambda kind, value: self._answer(item, kind, value)

    def _answer(self, item: Item, kind: str, value: Mapping[str, Any]) -> None:
        command = item.command
        outcome = {"type": kind, "f": command.f, "key": command.key, "epoch": command.epoch, "value": dict(value)}
        self._inbox.finish(item, outcome)
        self._append_outcome(item, outcome)

    def _append_outcome(self, item: Item, outcome: Mapping[str, Any]) -> None:
        self._log(item.run).append(
            outcome["type"],
            outcome["f"],
            outcome["value"],
            key=outcome["key"],
            epoch=outcome.get("epoch"),
            node=self._node,
            incarnation=self._incarnation,
        )

    def _refuse(self, item: Item, reason: str) -> None:
        """Say no, as an outcome where there is a command to answer, and as a note in any case."""
        run, command = item.run or "bed", item.command
        self._note(run, "command.refused", {"key": command.key or item.name, "reason": reason}, command.epoch)
        if command.key:
            self._answer(item, "fail", {"reason": reason})
        else:
            self._inbox.finish(item)

    def _note(self, run: str, f: str, value: Mapping[str, Any], epoch: int | None = None) -> None:
        self._log(run).append("note", f, value, node=self._node, incarnation=self._incarnation, epoch=epoch)

    def _log(self, run: str) -> EventLog:
        if run not in self._logs:
            path = self._directory / "runs" / run / f"agent.{self._incarnation}.jsonl"
            path = self._directory / "events.jsonl" if run == "bed" else path
            self._logs[run] = EventLog(path, writer="agent")
            if len(self._logs) > LOGS:
                self._logs.pop(next(iter(self._logs))).close()
        return self._logs[run]


def main(directory: Path, mine: Mapping[str, Any], env: Mapping[str, str], ready: Callable[[], None]) -> int:
    """Become a node: own session and mark are set already; take the lock, write the label, serve."""
    os.chdir(directory)
    os.environ.update(env)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    label.take(directory)
    own = {**mine, "pid": os.getpid(), "start": processes.start_of(os.getpid()), "boot": label.boot_id()}
    agent = Agent(directory, own)
    label.write(directory / label.NODE, own)
    agent.run(ready)
    return 0
