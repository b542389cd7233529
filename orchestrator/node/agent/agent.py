"""The agent of a node: reads its inbox, forks ranks, sends heartbeats, kills and reaps. It has one thread and never uses torch."""

from __future__ import annotations

import gc
import itertools
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ...model import codec
from ...model.events.commands import (
    CheckpointScan,
    CheckpointScanDone,
    CommandFailed,
    Exec,
    ExecStop,
    ExecStopDone,
    FenceWrite,
    FenceWriteDone,
    GangInspect,
    GangStart,
    GangStartDone,
    GangStop,
    RankHold,
    RankHoldDone,
    RankRelease,
    RankReleaseDone,
    StoreOpen,
)  # fmt: skip
from ...model.events.nodes import AgentReady
from ...model.gang import GangSpec, within_step
from ...model.payload import Payload
from ...system import host_facts, inotify, plain_files
from ..files import label
from ..files.event_log import EventLog
from ..files.inbox import Inbox, Item, required
from ..files.label import RunDriver
from ..files.performer import NO_RUN, Origin, Performer
from ..oslayer import forks, processes
from ..oslayer.event_loop import Loop, Timer
from . import checkpoint_scan
from .exec_programs import ExecPrograms
from .rank_processes import RankProcesses
from .rendezvous_stores import RendezvousStores
from .system_facts import SystemFacts

T = TypeVar("T")

BEAT_S = 0.25
#: The same while no run is driven on the bed, if the kernel reports when a run begins.
IDLE_BEAT_S = 5.0
#: A stop that is not complete responds this long before its deadline, so that the orchestrator learns what is left.
REPLY_S = 1.0
#: A command retries for this long while the shared directory cannot be used.
SHARE_S = 5.0
#: How many event files are kept open: those of the run and of the node, and of some earlier runs.
LOGS = 8
#: Commands that are allowed for an old epoch while ranks of it live.
LATE = (GangStop, RankRelease)


class Agent(Performer):
    """One incarnation of a node. ``node_label``: its label."""

    def __init__(self, directory: Path, node_label: Mapping[str, Any]) -> None:
        self._directory = directory
        self._label = node_label
        self._node = str(node_label["node"])
        self._incarnation = str(node_label["incarnation"])
        self._loop = Loop()
        self._logs: dict[str, EventLog] = {}
        self._epochs: dict[str, int] = {}
        #: Run -> the newest epoch whose gang was stopped; and how often the gang of any run was stopped, as `ccbed heal` does.
        self._stopped: dict[str, int] = {}
        self._stops_of_bed = 0
        self._beats = itertools.count(1)
        self._heartbeat = plain_files.create_file(directory / "heartbeat")
        self._inbox = Inbox(directory, is_watched=False)
        self._workdir = directory.parent.parent
        self._driver = RunDriver(self._workdir)
        self._idle_beat_s = BEAT_S
        self._next_poll = Timer(self._poll)
        self._ranks = RankProcesses(
            self._loop, directory, (self._node, self._incarnation), self._log_of, self._reap,
            has_reserves=node_label.get("spec", {}).get("has_reserves", True),
            shared=self._workdir if "spec" in node_label else None,
        )  # fmt: skip
        self._stores = RendezvousStores(self._loop)
        self._programs = ExecPrograms(self._loop)
        self._facts = SystemFacts(directory, node_label)

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until killed. ``ready`` is called once the agent takes commands."""
        forks.become_subreaper()
        gc.freeze()  # not collected before: its keeper has collected; collecting here would copy pages
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        self._watch()
        self._facts.write()
        agent_ready = AgentReady(
            pid=os.getpid(),
            threads=processes.count_threads(),
            torch=getattr(sys.modules.get("torch"), "__version__", None),
            frozen=self._label.get("frozen", 0),
        )
        self._note(NO_RUN, agent_ready)
        ready()
        self._facts.start_gpu_query(self._loop.call_later)
        self._poll()
        self._loop.run()

    def _watch(self) -> None:
        """Poll when a command arrives, and when a run begins on the bed. What the kernel does not report waits for a heartbeat.

        The agent of a container, whose label has no spec, never rests: the driver's pid is not of its pid namespace.
        """
        self._loop.on_signal(inotify.SIGNAL, self._poll)
        if not inotify.send_signal(self._directory / "inbox", inotify.ARRIVAL):
            self._inbox.watch()
            if self._inbox.fd >= 0:
                self._loop.add_reader(self._inbox.fd, self._poll)
        elif "spec" in self._label and inotify.send_signal(self._workdir, inotify.WRITE):
            self._idle_beat_s = IDLE_BEAT_S

    def _poll(self) -> None:
        """Send a heartbeat, and do what a lost inotify event or signal would have triggered; take commands, which may fail, last."""
        self._poll_after(BEAT_S)
        self._beat()
        self._reap()
        self._take_commands()
        has_reserves = self._ranks.prepare_reserves()
        if has_reserves and not self._ranks.are_running() and not self._driver.may_drive():
            self._poll_after(self._idle_beat_s)

    def _poll_after(self, after_s: float) -> None:
        self._next_poll.cancel()
        self._next_poll = self._loop.call_later(after_s, self._poll)

    def _beat(self) -> None:
        os.pwrite(self._heartbeat, f"{self._incarnation} {next(self._beats):>12}\n".encode(), 0)

    def _perform(self, item: Item) -> None:
        epoch = item.command.epoch
        if epoch is not None:
            self._epochs[item.run] = max(epoch, self._epochs.get(item.run, epoch))
        super()._perform(item)

    def _retry_on_share(
        self, item: Item, act: Callable[[bool], T], then: Callable[[T], None], *, times: int = 1
    ) -> None:
        """Pass the result of ``act`` to ``then``. After an OSError retry for ``times`` x ``SHARE_S``, while the loop continues.

        The argument of ``act``: whether this is the last attempt.
        """
        until = time.monotonic() + times * SHARE_S

        def attempt(pause: float) -> None:
            if problem := self._rejection(item):
                self._reject(item, problem)
                return
            is_last = time.monotonic() >= until
            try:
                result = act(is_last)
            except OSError:
                if is_last:
                    raise
                self._loop.call_later(pause, lambda: self._fail_on_error(item, lambda: attempt(min(2 * pause, 1.0))))
            else:
                then(result)

        attempt(0.05)

    def _handlers(self) -> Mapping[type[Payload], Callable[[Item, Any], None]]:
        return {
            FenceWrite: self._write_fence,
            CheckpointScan: self._scan_checkpoints,
            StoreOpen: self._open_store,
            GangStart: self._start_gang,
            GangStop: self._stop_gang,
            RankHold: self._hold_rank,
            GangInspect: self._inspect_gang,
            RankRelease: self._release_rank,
            Exec: self._start_program,
            ExecStop: self._stop_program,
        }

    def _rejection(self, item: Item) -> str:
        """Return why a command is rejected; empty if it is performed."""
        command = item.command
        if item.problem or item.outcome is not None:
            return ""
        if command.kind not in self._handlers():
            return f"an agent does not perform {command.f}"
        if command.incarnation not in (None, self._incarnation):
            return f"for incarnation {command.incarnation}; this one is {self._incarnation}"
        if command.kind in (GangStart, StoreOpen) and (command.epoch or 0) <= self._stopped.get(item.run, -1):
            return f"the worker group of start {command.epoch} was stopped"
        highest = self._epochs.get(item.run, 0)
        if command.epoch is None or command.epoch >= highest:
            return ""
        if command.kind in LATE and self._ranks.are_running(item.run, command.epoch):
            return ""
        return f"epoch {command.epoch} is over; epoch {highest} has begun"

    def _write_fence(self, item: Item, order: FenceWrite) -> None:
        directory, epoch = Path(required(order.dir, "dir")), required(order.epoch, "epoch")
        self._retry_on_share(
            item,
            lambda _: checkpoint_scan.write_fence(directory, epoch, fresh=order.fresh is not False),
            lambda _: self._respond(item, "ok", FenceWriteDone(epoch=epoch)),
        )

    def _scan_checkpoints(self, item: Item, order: CheckpointScan) -> None:
        """Search behind the fence. The time in which a file may be unreadable begins at the fence, whose last attempt may be late."""
        directory, lineage = Path(required(order.dir, "dir")), order.lineage or ()

        def find_newest(is_last: bool) -> CheckpointScanDone:
            return checkpoint_scan.find_newest(directory, lineage, self._beat, unreadable_is_damaged=is_last)

        self._retry_on_share(
            item,
            lambda _: checkpoint_scan.require_fence(directory, item.command.epoch or 0),
            lambda _: self._retry_on_share(item, find_newest, lambda scan: self._respond(item, "ok", scan)),
            times=2,
        )

    def _open_store(self, item: Item, order: StoreOpen) -> None:
        address, epoch = required(order.address, "address"), required(order.epoch, "epoch")
        if order.reserve:
            self._stores.reserve(address, order.port or 0, self._responder(item))
            return
        self._stores.open((item.run, epoch), address, order.port or 0, self._responder(item))

    def _start_gang(self, item: Item, order: GangStart) -> None:
        """Start a gang unless the fence is at a later epoch, as after this node was stopped and another attempt began.

        A start that waits for the shared directory is void once the gang is stopped: no orchestrator would stop its ranks.
        """
        spec = codec.build(GangSpec, item.command.value)
        system, stops = self._facts.digest(), self._stops_of_bed

        def read_fence(is_last: bool) -> int | None:
            if stops != self._stops_of_bed:
                raise RuntimeError(f"the worker group of start {spec.epoch} was stopped before it started")
            return checkpoint_scan.read_fence(Path(spec.checkpoints))

        def start(fence: int | None) -> None:
            if fence is not None and fence > spec.epoch:
                self._reject(item, f"epoch {spec.epoch} is over; the fence is at epoch {fence}")
            elif self._ranks.are_running():
                self._respond(
                    item, "fail", CommandFailed(reason="ranks of another worker group still run on this node")
                )
            else:
                self._respond(item, "ok", self._start_ranks(item.run, spec, system))

        self._retry_on_share(item, read_fence, start)

    def _start_ranks(self, run: str, spec: GangSpec, system: str | None) -> GangStartDone:
        pids = self._ranks.start(run, spec)
        return GangStartDone(
            pids={str(rank): pid for rank, pid in pids.items()},
            threads=processes.count_threads(),
            agent=os.getpid(),
            begin=spec.begin,
            system=system,
        )

    def _stop_gang(self, item: Item, order: GangStop) -> None:
        epoch = required(order.epoch, "epoch")
        if item.run == NO_RUN:
            self._stops_of_bed += 1
        else:
            self._stopped[item.run] = max(epoch, self._stopped.get(item.run, epoch))

        def spare() -> set[int]:
            return {*self._programs.groups, *self._facts.groups, *self._stores.later_than(item.run, epoch)}

        self._ranks.stop(
            item.run, epoch, dump=bool(order.dump), limit_s=item.command.deadline_s - REPLY_S, grace_s=order.grace_s or 0.0,
            save_grace_s=order.save_grace_s or 0.0, accepts_exiting=bool(order.accepts_exiting), spare=spare, respond=self._responder(item),
        )  # fmt: skip

    def _hold_rank(self, item: Item, order: RankHold) -> None:
        hold = {
            "id": order.hold,
            "rank": order.rank,
            "step": order.step,
            "phase": order.phase,
            "limit_s": order.limit_s,
            "saved_at": order.saved_at,
            "saves_every": order.saves_every,
        }
        problem = self._ranks.order_all(item.run, item.command.epoch or 0, {"hold": hold})
        self._respond(item, *(("fail", CommandFailed(reason=problem)) if problem else ("ok", RankHoldDone())))

    def _inspect_gang(self, item: Item, order: GangInspect) -> None:
        epoch = required(order.epoch, "epoch")
        self._ranks.inspect(item.run, epoch, stacks=bool(order.stacks), respond=self._responder(item))

    def _release_rank(self, item: Item, order: RankRelease) -> None:
        rank, hold = required(order.rank, "rank"), required(order.hold, "hold")
        problem = self._ranks.release(item.run, item.command.epoch or 0, rank, hold)
        self._respond(item, *(("fail", CommandFailed(reason=problem)) if problem else ("ok", RankReleaseDone())))

    def _start_program(self, item: Item, order: Exec) -> None:
        self._programs.start(order, self._responder(item))

    def _stop_program(self, item: Item, order: ExecStop) -> None:
        self._programs.stop(order.out)
        self._respond(item, "ok", ExecStopDone())

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            is_known = self._ranks.exited(pid, code) or self._stores.exited(pid) or self._programs.exited(pid, code)
            is_known or self._facts.exited(pid, code)

    def _origin(self, item: Item) -> Origin:
        return {"node": self._node, "incarnation": self._incarnation}

    def _incarnation_of(self, item: Item) -> str | None:
        return self._incarnation

    def _note(self, run: str, payload: Payload, epoch: int | None = None) -> None:
        self._log_of(run).note(payload, node=self._node, incarnation=self._incarnation, epoch=epoch)

    def _log_of(self, run: str) -> EventLog:
        if run not in self._logs:
            path = self._directory / "runs" / run / f"agent.{self._incarnation}.jsonl"
            path = self._directory / "events.jsonl" if run == NO_RUN else path
            self._logs[run] = EventLog(path, writer="agent")
            if len(self._logs) > LOGS:
                self._logs.pop(next(iter(self._logs))).close()
        return self._logs[run]


def main(directory: Path, node_label: Mapping[str, Any], env: Mapping[str, str], ready: Callable[[], None]) -> int:
    """Become the agent of a node, in a process with its own session and process tag: take the lock, write the label, serve."""
    os.chdir(directory)
    os.environ.update(within_step(env, os.environ))
    _restore_signals()
    label.take_lock(directory)
    pid = os.getpid()
    own = {
        **node_label,
        "pid": pid,
        "start": processes.start_time(pid),
        "boot": host_facts.boot_id(),
        "python": platform.python_version(),
        "torch": str(getattr(sys.modules.get("torch"), "__version__", "")),
    }
    agent = Agent(directory, own)
    plain_files.write_json(directory / label.NODE_LABEL, own)
    agent.run(ready)
    return 0


def _restore_signals() -> None:
    """Ranks begin with what torchrun's begin with, whatever a shell, the keeper or a step manager ignored for this process."""
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # these two every Python process ignores
        if number == signal.SIGINT or signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
