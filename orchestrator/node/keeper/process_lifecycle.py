"""Starts, adopts, watches and kills nodes that are process groups: forks agents, reports exits, kills and counts orphans."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...model import codec
from ...model.bed import NodeSpec
from ...model.events.commands import NodeApplyDone
from ...model.events.nodes import NodeEnded, NodeExit
from ...model.frozen import dataclass
from ...model.gang import temporary_directory
from ...model.payload import Payload
from ...system import plain_files
from .. import warm_up
from ..agent import agent
from ..files import label
from ..files.inbox import Respond
from ..oslayer import forks, processes
from ..oslayer.event_loop import Loop, Steps
from . import fabric
from .node_protocol import NodeLifecycle, OnEnd
from .process_node import ProcessNode

#: How long the processes of a node may take to end after SIGKILL: less than the deadlines of the commands that wait for it (60 s).
END_S = 50.0
#: All processes are scanned again after this time at the latest: a scan takes 5 ms of a core that recovery needs.
SCAN_S = 0.1
#: A scan that finds no process of a node that never ran here is true for so long.
STARTED_TOGETHER_S = 2.0
#: The pause between two checks for exits doubles from the first to the second.
RETRY_S, LONGEST_RETRY_S = 0.002, 0.016
_READY = b"ready\n"

Note = Callable[[ProcessNode, Payload], None]


@dataclass(slots=True, kw_only=True)
class _Start:
    """An agent that is to be forked. ``body`` gets the descriptor for its report, whose other end is ``read``."""

    node: ProcessNode
    label: Mapping[str, Any]
    switch: int
    body: Callable[[int], int]
    pid: int = 0
    read: int = -1

    def fork(self, loop: Loop) -> None:
        """Raises OSError, RuntimeError."""
        self.read, write = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid = forks.fork(loop, {write, self.switch}, lambda: self.body(write))
        except (OSError, RuntimeError):
            os.close(self.read)
            raise
        finally:
            os.close(write)


class ProcessLifecycle(NodeLifecycle[ProcessNode]):
    """All nodes of a bed on this host. ``note``: writes an event about a node."""

    def __init__(self, loop: Loop, workdir: Path, bed: str, archive: str, note: Note) -> None:
        super().__init__()
        self._loop = loop
        self._directory = workdir / "nodes"
        self._bed = bed
        self._tag = processes.bed_tag(bed, str(workdir))
        self._archive = archive
        self._note = note
        (workdir / label.RUN_LOCK).touch(mode=0o600)  # agents know from it that no run is driven yet
        self._due: list[_Start] = []
        self._scanned_at, self._scanned_names = 0.0, frozenset[str]()
        self._fabric = fabric.Fabric(self._tag, workdir / fabric.HOSTS)
        #: How many objects the keeper has frozen; agents report it.
        self._frozen = warm_up.freeze_objects()

    def make(self, name: str) -> ProcessNode:
        return ProcessNode(
            self._loop,
            name,
            self._directory / name,
            prefix=f"{self._tag}/{name}/",
            switch=self._fabric,
            start=self.start,
            orphans=self._orphans,
        )

    def adopt(self) -> None:
        """Take over the nodes of an earlier keeper: watch the living, report the exits that it did not report."""
        forks.become_subreaper()
        for directory in sorted(self._directory.glob("*")):
            node = self.get(directory.name)
            if label.live_label(directory):
                node.ready = node.adopted = True
                self._watch(node)
                if "switch" in node.label and (port := codec.build(NodeSpec, node.wanted).port):
                    self._fabric.adopt(node.pid, node.label, port)
            elif node.label and _reported_exit(directory) != node.label.get("incarnation"):
                node.adopted = True
                self._exited(node, None)

    def start(self, node: ProcessNode, wanted: Mapping[str, Any], respond: Respond) -> None:
        """End what is left of the earlier incarnation, then start a new one; respond with its identity when it is ready."""
        spec = codec.build(NodeSpec, wanted)
        node.waiting.append(respond)
        if not node.starting:
            node.starting = True
            if not node.label and node.name not in self._names_of_processes():
                self._fork(node, spec, 0)
            else:
                self.end(node, lambda killed, left: self._fork(node, spec, left))

    def _names_of_processes(self) -> frozenset[str]:
        """The nodes whose tag a process has. A scan of all processes serves the nodes that are started together."""
        if time.monotonic() - self._scanned_at > STARTED_TOGETHER_S:
            tags = [process.tag for process in processes.scan()]
            prefix = f"{self._tag}/"
            self._scanned_names = frozenset(
                tag.removeprefix(prefix).partition("/")[0] for tag in tags if tag.startswith(prefix)
            )
            self._scanned_at = time.monotonic()
        return self._scanned_names

    def end(self, node: ProcessNode, then: OnEnd) -> None:
        """Kill every process of a node; then call with the killed pids and the number of processes that are left.

        Concurrent calls share one end: all callers are called in order, before a new incarnation starts.
        """
        self._fork_due()  # else an agent would start after its end
        self._end(node, [*node.ending, then])

    def _end(self, node: ProcessNode, ending: list[OnEnd]) -> None:
        is_ending, node.ending, node.end_by = bool(node.ending), ending, time.monotonic() + END_S
        if not is_ending:
            self._loop.start(self._kill_until_ended(node))

    def _kill_until_ended(self, node: ProcessNode) -> Steps[None]:
        """All processes are scanned again once those of the last scan have exited, or after ``SCAN_S``."""
        killed: dict[int, int] = {}  # pid -> start time
        pause_s = RETRY_S
        while ((living := node.processes()) or node.alive) and time.monotonic() <= node.end_by:
            due = {process.pid: process for process in living if killed.get(process.pid) != process.start}
            killed |= {pid: due[pid].start for pid in processes.kill(due.values())}
            scan_at = time.monotonic() + SCAN_S if living else 0.0
            yield pause_s
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)
            while time.monotonic() < scan_at and any(processes.is_alive(item.pid, item.start) for item in living):
                yield pause_s
                pause_s = min(2 * pause_s, LONGEST_RETRY_S)
        ending, node.ending = node.ending, []
        for then in ending:
            then(sorted(killed), len(living))

    def reap(self) -> None:
        """Reap children that exited: agents, orphans of nodes whose agent has ended, programs that act on the host."""
        while True:
            try:
                child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if child is None or child.si_pid == 0:
                return
            node = next((node for node in self._nodes.values() if node.alive and node.pid == child.si_pid), None)
            code = child.si_status if child.si_code == os.CLD_EXITED else -child.si_status
            if node:
                self._exited(node, code)
            elif notify := self._loop.programs.pop(child.si_pid, None):
                notify(code)
            os.waitpid(child.si_pid, 0)

    def _orphans(self) -> set[int]:
        """Pids of the keeper's children that it did not start: an agent that has ended left them."""
        keeper = os.getpid()
        own = {node.pid for node in self._nodes.values() if node.alive} | self._loop.programs.keys()
        return {process.pid for process in processes.descendants(keeper) if process.ppid == keeper} - own

    def _fork(self, node: ProcessNode, spec: NodeSpec, left: int) -> None:
        if left:
            reason = f"{left} processes of an earlier incarnation of {node.name} do not end"
            node.fail_start(reason)
            return
        node.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            switch = self._fabric.switch(spec.port) if spec.port else -1
        except OSError as error:
            node.fail_start(f"the switch of the fabric: {error}")
            return
        node_label = self._new_label(node, spec)
        tag = processes.node_tag(self._tag, node.name, node_label["incarnation"])

        def body(write: int) -> int:
            os.setsid()
            processes.set_own_tag(tag)
            forks.redirect_output(node.directory / "agent.log")
            if spec.port:
                _connect_to_fabric(self._fabric, spec, tag, write)
            return agent.main(node.directory, node_label, spec.env, lambda: _report_ready(write))

        if not self._due:
            self._loop.call_later(0.0, self._fork_due)
        self._due.append(_Start(node=node, label=node_label, switch=switch, body=body))

    def _fork_due(self) -> None:
        """Fork the agents one right after the other: of each page that the keeper writes between two forks, each child has a copy."""
        due, self._due = self._due, []
        for start in due:
            try:
                start.fork(self._loop)
            except (OSError, RuntimeError) as error:
                start.node.fail_start(f"cannot fork: {error}")
        for start in (start for start in due if start.pid):
            try:
                self._observe_start(start.node, start)
            except OSError as error:
                os.kill(start.pid, signal.SIGKILL)
                os.close(start.read)
                start.node.fail_start(f"cannot watch its agent: {error}")

    def _observe_start(self, node: ProcessNode, start: _Start) -> None:
        node.label = {**start.label, "pid": start.pid, "start": processes.start_time(start.pid)}
        node.forget_stops()
        self._watch(node)
        self._loop.add_reader(start.read, lambda: self._read_report(node, start.read))
        self._loop.call_later(node.ready_s, lambda: self._kill_if_starting(node, start.pid))

    def _new_label(self, node: ProcessNode, spec: NodeSpec) -> dict[str, Any]:
        """The label of a new incarnation, as far as it is known before the fork."""
        return {
            "bed": self._bed,
            "node": node.name,
            "spec_hash": spec.hash,
            "incarnation": secrets.token_hex(4),
            "ordinal": int(node.label.get("ordinal", 0)) + 1,
            "agent": self._archive,
            "frozen": self._frozen,
            "spec": codec.plain(spec),
            **({"switch": self._fabric.name()} if spec.port else {}),
        }

    def _read_report(self, node: ProcessNode, read: int) -> None:
        self._loop.remove_reader(read)
        report = os.read(read, 4096)
        node.ready = report == _READY
        os.close(read)
        if node.ready:
            node.respond_to_start("ok", NodeApplyDone(**node.identity))
        elif report:
            node.fail_start(report.decode(errors="replace"))
        else:
            node.fail_start("its agent ended while it started", node.log_tail())

    def _kill_if_starting(self, node: ProcessNode, pid: int) -> None:
        if node.starting and node.pid == pid:
            processes.kill(node.processes())

    def _watch(self, node: ProcessNode) -> None:
        node.alive = True
        node.pidfd = os.pidfd_open(node.pid)
        self._loop.add_reader(node.pidfd, lambda: self._agent_ended(node))

    def _agent_ended(self, node: ProcessNode) -> None:
        """The pidfd reports the end of an agent. Reaping yields the exit code of a child; that of an adopted agent is lost."""
        self.reap()
        if node.alive:
            self._exited(node, None)

    def _exited(self, node: ProcessNode, code: int | None) -> None:
        """Report the exit of an agent first; then kill what it left, as the end of a container would, and report the count."""
        if node.pidfd >= 0:
            self._loop.remove_reader(node.pidfd)
            os.close(node.pidfd)
        node.alive, node.ready, node.pidfd = False, False, -1
        was_adopted, node.adopted = node.adopted, False
        self._note(node, NodeExit(code=code, pid=node.pid))
        plain_files.write_json(node.directory / "exit.json", {**node.identity, "code": code})

        def report_end(killed: list[int], left: int) -> None:
            """The count 0 is not reported for an adopted node: a process without a tag may live on unnoticed."""
            count = None if was_adopted and not left else left
            _remove_temporary_directories(node.directory)
            self._note(node, NodeEnded(code=code, pid=node.pid, killed=tuple(killed), left=count))

        self._end(node, [report_end, *node.ending])


def _remove_temporary_directories(directory: Path) -> None:
    """Those of isolated ranks that ended with their agent, which removes them otherwise."""
    for pid in (int(pid) for pid, _ in plain_files.read_json(directory / label.RANKS).get("ranks", {}).values()):
        if not processes.start_time(pid):
            shutil.rmtree(temporary_directory(pid), ignore_errors=True)


def _reported_exit(directory: Path) -> Any:
    """The incarnation whose exit a keeper has reported."""
    return plain_files.read_json(directory / "exit.json").get("incarnation")


def _connect_to_fabric(switch: fabric.Fabric, spec: NodeSpec, tag: str, report: int) -> None:
    """Connect this process to the switch. Raises OSError, after it reported why the node does not start."""
    try:
        switch.connect(spec, tag)
    except OSError as error:
        os.write(report, f"its link to the fabric: {error}".encode())
        raise


def _report_ready(fd: int) -> None:
    os.write(fd, _READY)
    os.close(fd)
