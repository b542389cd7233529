"""The keeper's nodes: forks their agents, adopts those of a keeper before it, sees them exit, ends what they leave."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...model import codec
from ...model.bed import NodeSpec
from .. import warm_up
from ..agent import agent
from ..files import label, plain_files
from ..oslayer import cgroups, forks, processes
from ..oslayer import process_tag as marks
from ..oslayer.duty_cycle import DutyCycle
from ..oslayer.event_loop import Loop
from ..oslayer.processes import Process
from . import fabric, primitives

READY_S = 20.0
END_S = 5.0
AGAIN_S = 0.002
_READY = b"ready\n"

Answer = Callable[[str, Mapping[str, Any]], None]
Note = Callable[[str, "Node", Mapping[str, Any]], None]


class Node:
    """One node of the bed, whether it lives or not. ``label``: of its newest incarnation, also when that has ended."""

    def __init__(self, nodes: Nodes, name: str, directory: Path, prefix: str) -> None:
        self.name = name
        self.directory = directory
        self.label: dict[str, Any] = label.read(directory / label.NODE)
        self.alive = False
        self.ready = False
        self.starting = False
        self.waiting: list[Answer] = []
        #: How long a start may take, in seconds.
        self.ready_s = READY_S
        self.pidfd = -1
        #: A keeper before this one forked it: this one is not told its exit code, nor are orphans of it our children.
        self.adopted = False
        #: Called with (killed, left) once nothing of it lives, in this order; not empty while it is being ended.
        self.ending: list[Callable[[list[int], int], None]] = []
        self.end_by = 0.0
        self._nodes = nodes
        self._prefix = prefix
        self._duty_cycle = DutyCycle(nodes.loop, self.processes)

    @property
    def identity(self) -> dict[str, Any]:
        return {field: self.label.get(field) for field in ("incarnation", "ordinal", "pid")}

    @property
    def pid(self) -> int:
        return int(self.label.get("pid", 0))

    def processes(self) -> list[Process]:
        """All that live, the agent included. Below a living agent by descent; else by mark, session and orphans."""
        found = processes.find(self.pid) if self.pid else None
        if found and found.start == self.label["start"] and found.state not in processes.GONE:
            return [found, *processes.descendants(self.pid)]
        sessions = processes.sessions([(self.pid, self.label["start"])]) if self.pid else set()
        return processes.select(processes.scan(), self._prefix, sessions | self._nodes.orphans())

    def is_up(self) -> bool:
        return self.alive and self.ready

    def power_on(self) -> None:
        if not self.alive and not self.starting:
            self._nodes.start(self, self.wanted, lambda kind, value: None)

    def power_off(self) -> dict[str, Any]:
        return {"killed": processes.kill(self.processes())}

    def pause(self, on: bool) -> dict[str, Any]:
        if self._duty_cycle.is_active:
            raise primitives.Unsupported(f"{self.name} is slowed by SIGSTOP and SIGCONT; it cannot be paused as well")
        return primitives.stop(self.processes(), on)

    def is_paused(self, on: bool) -> tuple[bool, dict[str, Any]]:
        return primitives.stopped(self.processes(), on)

    def limit(self, amounts: Mapping[str, int], on: bool) -> dict[str, Any]:
        """By a cgroup; where none can be made, ``cpu_percent`` by SIGSTOP and SIGCONT in turn."""
        if cgroups.is_available(amounts):
            cgroup = f"ccbed-{self._prefix.strip('/').replace('/', '-')}"
            did = cgroups.limit(self.processes(), cgroup, amounts) if on else cgroups.release(cgroup, amounts)
            return {**did, "by": "cgroup"}
        if on and (amounts.keys() != {"cpu_percent"} or amounts["cpu_percent"] >= 100):
            raise primitives.Unsupported(
                f"no cgroup can be made for {self.name}: only cpu_percent below 100 is possible"
            )
        if on:
            self._duty_cycle.start(amounts["cpu_percent"])
        return {"by": "duty cycle", **({} if on else {"continued": self._duty_cycle.stop()})}

    def is_limited(self, amounts: Mapping[str, int], on: bool) -> tuple[bool | None, dict[str, Any]]:
        if cgroups.is_available(amounts):
            return cgroups.are_limited(self.processes(), amounts, on)
        if on and self._duty_cycle.is_active:
            return self._duty_cycle.is_observed(amounts["cpu_percent"])
        are_free, evidence = primitives.stopped(self.processes(), on=False)
        return are_free is not on, evidence

    def has_link(self) -> bool:
        return "switch" in self.label

    def link(self, on: bool) -> dict[str, Any]:
        self._nodes.fabric.turn(self.name, on=on)
        return {"link": "up" if on else "down"}

    def is_linked(self, on: bool) -> tuple[bool, dict[str, Any]]:
        if not self.alive:
            return not on, {"eth0": "gone"}
        found = fabric.linked(self.pid)
        return found is on, {"eth0": "has a link" if found else "has no link"}

    def agent(self) -> Process | None:
        return next((process for process in self.processes() if process.pid == self.pid), None)

    def rank(self, number: int) -> Process | None:
        return primitives.rank_process(self.directory, number)

    @property
    def wanted(self) -> dict[str, Any]:
        """The NodeSpec of its newest incarnation, as JSON."""
        return dict(self.label.get("spec", {}))


class Nodes:
    """All nodes of a bed. ``note`` tells the world of their exits."""

    def __init__(self, loop: Loop, workdir: Path, bed: str, archive: str, note: Note) -> None:
        self.loop = self._loop = loop
        self._directory = workdir / "nodes"
        self._bed = bed
        self._tag = marks.tag(bed, str(workdir))
        self._archive = archive
        self._note = note
        self._nodes: dict[str, Node] = {}
        self.fabric = fabric.Fabric(self._tag, workdir / fabric.HOSTS)
        #: How many objects the keeper has frozen; agents report it.
        self._frozen = warm_up.freeze()

    def get(self, name: str) -> Node:
        """A node by name; made known if it was not. Raises ValueError for what cannot be a name."""
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is not the name of a node")
        if name not in self._nodes:
            self._nodes[name] = Node(self, name, self._directory / name, f"{self._tag}/{name}/")
        return self._nodes[name]

    def adopt(self) -> None:
        """Take over what a keeper before this one left: watch the living, report the dead that it did not report."""
        forks.subreaper()
        for directory in sorted(self._directory.glob("*")):
            node = self.get(directory.name)
            if label.living(directory):
                node.ready = node.adopted = True
                self._watch(node)
                if "switch" in node.label and (port := codec.build(NodeSpec, node.wanted).port):
                    self.fabric.adopt(node.pid, node.label, port)
            elif node.label and label.read(directory / "exit.json").get("incarnation") != node.label.get("incarnation"):
                node.adopted = True
                self._ended(node, None)

    def start(self, node: Node, wanted: Mapping[str, Any], answer: Answer) -> None:
        """Start a new incarnation once nothing is left of the one before; answers with its identity when it is ready."""
        spec = codec.build(NodeSpec, wanted)
        node.waiting.append(answer)
        if not node.starting:
            node.starting = True
            self.end(node, lambda killed, left: self._fork(node, spec, left))

    def end(self, node: Node, then: Callable[[list[int], int], None]) -> None:
        """End every process of a node; then call with the pids that were killed and the number that is left.

        A node that is being ended already is ended once: all who wait are called in order, before anything of it is started.
        """
        self._end(node, [*node.ending, then])

    def _end(self, node: Node, ending: list[Callable[[list[int], int], None]]) -> None:
        running, node.ending, node.end_by = bool(node.ending), ending, time.monotonic() + END_S
        if not running:
            self._push(node, set())

    def _push(self, node: Node, killed: set[int]) -> None:
        living = node.processes()
        if (living or node.alive) and time.monotonic() <= node.end_by:
            killed.update(processes.kill(one for one in living if one.pid not in killed))
            self._loop.later(AGAIN_S, lambda: self._push(node, killed))
            return
        ended, node.ending = node.ending, []
        for then in ended:
            then(sorted(killed), len(living))

    def reap(self) -> None:
        """Children have ended: agents, or orphans of nodes whose agent is gone."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid == 0:
                return
            node = next((one for one in self._nodes.values() if one.alive and one.pid == found.si_pid), None)
            if node:
                code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                self._ended(node, code)
            os.waitpid(found.si_pid, 0)

    def orphans(self) -> set[int]:
        """Children of the keeper that it did not fork: they were left by an agent that is gone."""
        agents = {node.pid for node in self._nodes.values() if node.alive}
        return {one.pid for one in processes.descendants(os.getpid()) if one.ppid == os.getpid()} - agents

    def _fork(self, node: Node, spec: NodeSpec, left: int) -> None:
        if left:
            self._started(node, "fail", {"reason": f"{left} processes of {node.name} before it do not end"})
            return
        node.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            switch = self.fabric.switch(spec.port) if spec.port else -1
        except OSError as error:
            self._started(node, "fail", {"reason": f"the switch of the fabric: {error}"})
            return
        mine = self._draw(node, spec)
        mark = marks.mark(self._tag, node.name, mine["incarnation"])
        read, write = os.pipe2(os.O_CLOEXEC)

        def body() -> int:
            os.setsid()
            marks.overwrite(mark)
            forks.redirect(node.directory / "agent.log")
            if spec.port:
                _plugged(self.fabric, spec, mark, write)
            return agent.main(node.directory, mine, spec.env, lambda: _say_ready(write))

        pid = forks.fork(self._loop, {write, switch}, body)
        os.close(write)
        node.label = {**mine, "pid": pid, "start": processes.start_of(pid)}
        self._watch(node)
        self._loop.watch(read, lambda: self._reported(node, read))
        self._loop.later(node.ready_s, lambda: self._overdue(node, pid))

    def _draw(self, node: Node, spec: NodeSpec) -> dict[str, Any]:
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
            **({"switch": self.fabric.name()} if spec.port else {}),
        }

    def _reported(self, node: Node, read: int) -> None:
        self._loop.forget(read)
        said = os.read(read, 4096)
        node.ready = said == _READY
        os.close(read)
        if node.ready:
            self._started(node, "ok", node.identity)
        elif said:
            self._started(node, "fail", {"reason": said.decode(errors="replace")})
        else:
            self._started(node, "fail", {"reason": "its agent ended while it started", "log": self._log_tail(node)})

    def _started(self, node: Node, kind: str, value: Mapping[str, Any]) -> None:
        waiting, node.waiting, node.starting = node.waiting, [], False
        for answer in waiting:
            answer(kind, value)

    def _overdue(self, node: Node, pid: int) -> None:
        if node.starting and node.pid == pid:
            processes.kill(node.processes())

    def _watch(self, node: Node) -> None:
        node.alive = True
        node.pidfd = os.pidfd_open(node.pid)
        self._loop.watch(node.pidfd, lambda: self._exited(node))

    def _exited(self, node: Node) -> None:
        """The pidfd says that an agent ended. If it is a child its code is at hand, if it was adopted nobody knows it."""
        self.reap()
        if node.alive:
            self._ended(node, None)

    def _ended(self, node: Node, code: int | None) -> None:
        """Say so first, then end whatever the agent left behind, as the end of a container would, and count it."""
        if node.pidfd >= 0:
            self._loop.forget(node.pidfd)
            os.close(node.pidfd)
        node.alive, node.ready, node.pidfd = False, False, -1
        adopted, node.adopted = node.adopted, False
        self._note("node.exit", node, {"code": code, "pid": node.pid})
        label.write(node.directory / "exit.json", {**node.identity, "code": code})

        def counted(killed: list[int], left: int) -> None:
            """Of an adopted node a process without its mark may live on unseen: its count is a count only above 0."""
            count = {} if adopted and not left else {"left": left}
            self._note("node.ended", node, {"code": code, "pid": node.pid, "killed": killed, **count})

        self._end(node, [counted, *node.ending])

    def _log_tail(self, node: Node) -> str:
        try:
            return plain_files.tail(node.directory / "agent.log", 2000).decode(errors="replace")
        except OSError:
            return ""


def _plugged(switch: fabric.Fabric, spec: NodeSpec, mark: str, report: int) -> None:
    """Raises OSError, which is then the reason that the node does not start."""
    try:
        switch.plug(spec, mark)
    except OSError as error:
        os.write(report, f"its link to the fabric: {error}".encode())
        raise


def _say_ready(fd: int) -> None:
    os.write(fd, _READY)
    os.close(fd)
