"""A node that is a container: its state, its record on disk, and the requests to its engine: kill, pause, inspect."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ...system import host_facts, plain_files
from ..files import label
from ..files.inbox import Respond
from ..oslayer import cgroups, container_engine, processes
from ..oslayer.container_engine import EngineError, LoopClient
from ..oslayer.processes import Process
from . import node_primitives
from .node_protocol import Observed, StartedNode, Unsupported

#: A request to the engine is not repeated for this long, unless the engine rejected it.
REPEAT_S = 1.0
READY_S = 60.0
#: How long the engine's answer about a container is used.
FRESH_S = 0.5


class ContainerNode(StartedNode):
    """One node of the bed. ``label``: of its newest incarnation, also when that has ended.

    ``record``: the file with the label and what is needed to start the node. It lies in the keeper's directory, as the
    container may write to the node's. ``start``: starts a new incarnation.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        record: Path,
        container: str,
        engine: LoopClient,
        start: Callable[[ContainerNode, Mapping[str, Any], Respond], None],
    ) -> None:
        stored = plain_files.read_json(record)
        super().__init__(name, directory, stored.get("label", {}), READY_S, start)
        self.container = container
        self._wanted: dict[str, Any] = stored.get("wanted", {})
        #: Counts starts, so that a late response to an earlier start is ignored.
        self.attempt = 0
        #: Has the present start drawn its incarnation?
        self.begun = False
        #: The incarnation that the keeper itself has killed.
        self.killed: str | None = None
        #: Why the engine rejected the last request; empty if it did not.
        self.problem = ""
        self._engine = engine
        self._record = record
        self._boot = host_facts.boot_id()
        self._requests: dict[str, float] = {}
        self._is_inspecting = False
        self._paused: bool | None = None
        #: When the engine reported ``_paused``, CLOCK_MONOTONIC.
        self._paused_at = 0.0

    @property
    def wanted(self) -> dict[str, Any]:
        return self._wanted

    @property
    def is_of_earlier_boot(self) -> bool:
        """Was the newest incarnation started before a reboot? Then it has ended, whatever its pid and its container are now."""
        return bool(self.label.get("boot", self._boot) != self._boot)

    @property
    def id(self) -> str:
        """The id of the newest incarnation's container; empty before its first start."""
        return str(self.label.get("container", ""))

    def processes(self) -> list[Process]:
        """The main process and its descendants. The kernel ends all of them with the main process."""
        main = processes.find(self.pid) if self.pid and not self.is_of_earlier_boot else None
        if main and main.start == self.label.get("start") and main.state not in processes.EXITED:
            return [main, *processes.descendants(self.pid)]
        return []

    def power_off(self) -> dict[str, Any]:
        """Request the engine to kill the container; the pids of its processes."""
        self._paused, living = None, [process.pid for process in self.processes()]
        if living and self._request("kill"):
            self.killed = self.label.get("incarnation")
            return {"killed": living, "by": "engine"}
        return {"killed": []}

    def pause(self, on: bool) -> dict[str, Any]:
        """Request the engine to freeze the container, or to continue it."""
        self._paused = None
        return {"engine": "pause" if on else "unpause"} if self._request("pause" if on else "unpause") else {}

    def is_paused(self, on: bool) -> Observed:
        """Is the container frozen, or (not ``on``) running? None until the engine has given a fresh answer."""
        if not on and not self.processes():
            return True, {"container": self.container, "left": []}  # it has ended, so nothing is frozen
        if not self._is_inspecting:
            self._is_inspecting = True
            path = container_engine.container_path(self.id or self.container)
            self._engine.request("GET", path, self._inspected, deadline_s=2.0)
        paused = self._paused if time.monotonic() - self._paused_at < FRESH_S else None
        evidence = {"container": self.container, "paused": paused}
        return None if paused is None else paused is on, (
            {**evidence, "problem": self.problem} if self.problem else evidence
        )

    def send_signal(self, targets: Sequence[Process], number: int) -> list[int]:
        """The engine freezes a container without signals: neither act undoes the other."""
        return processes.send_signal(targets, number)

    def is_stopped(self, process: Process) -> bool:
        return process.state == processes.STOPPED

    def limit(self, amounts: Mapping[str, int], on: bool) -> dict[str, Any]:
        """Request the engine to change the container's limits, or to restore those it was created with."""
        body = _limits(amounts, self.wanted["request"]["HostConfig"], on)
        return {"update": body, "by": "engine"} if self._request("update", body) else {}

    def is_limited(self, amounts: Mapping[str, int], on: bool) -> Observed:
        """Read the cgroup of its main process; None if this host does not show it."""
        are_limited, evidence = cgroups.are_limited(self.processes()[:1], amounts, on)
        return are_limited, {**evidence, "problem": self.problem} if self.problem else evidence

    def has_link(self) -> bool:
        return False

    def _refuse_link(self, *unused: object) -> NoReturn:
        raise Unsupported("the link of a container can be neither cut nor slowed")

    link = is_linked = slow_link = is_link_slow = _refuse_link

    def agent(self) -> Process | None:
        """The agent is a child of the main process, which is the engine's init."""
        inner_pid = int(plain_files.read_json(self.directory / label.READY).get("pid", 0))
        return next((process for process in self.processes() if processes.inner_pid(process.pid) == inner_pid), None)

    def rank(self, number: int) -> Process | None:
        """The living process of a rank, in the host's pid namespace."""
        inner_pid, start = node_primitives.rank_identity(self.directory, number)
        return next(
            (
                process
                for process in self.processes()
                if process.start == start and processes.inner_pid(process.pid) == inner_pid
            ),
            None,
        )

    # --- changes of state, by ContainerLifecycle ------------------------------------------------------------------------

    def begin(self, node_label: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        """Record a new incarnation, before its container is created."""
        self.label, self._wanted = dict(node_label), dict(wanted)
        self.begun, self.ready, self.problem, self._paused = True, False, "", None
        self._requests.clear()
        self._write_record()

    def set_running(self, details: Mapping[str, Any]) -> None:
        """Record pid and id of the running container, from the engine's details."""
        pid = int(details["State"]["Pid"])
        own = {"pid": pid, "start": processes.start_time(pid), "container": details["Id"], "boot": self._boot}
        self.label = {**self.label, **own}
        self._write_record()

    def has_reported_ready(self) -> bool:
        """Has the agent of this incarnation reported that it takes commands?"""
        ready = plain_files.read_json(self.directory / label.READY)
        return ready.get("incarnation") == self.label.get("incarnation")

    def is_exit_reported(self) -> bool:
        """Has a keeper reported the exit of the newest incarnation?"""
        return plain_files.read_json(self._exit_record).get("incarnation") == self.label.get("incarnation")

    def record_exit(self, cause: Mapping[str, Any]) -> None:
        plain_files.write_json(self._exit_record, {**self.identity, **cause, "boot": self._boot})

    # --- requests to the engine -----------------------------------------------------------------------------------------

    def _request(self, verb: str, body: Any = None) -> bool:
        """Send a request to the engine unless the same one was just sent; whether it was sent."""
        now = time.monotonic()
        if now - self._requests.get(verb, -REPEAT_S) < REPEAT_S:
            return False
        self._requests = {verb: now}
        path = container_engine.container_path(self.id or self.container, verb)
        self._engine.request("POST", path, self._requested, body)
        return True

    def _requested(self, content: Any, error: EngineError | None) -> None:
        self.problem = str(error) if error and error.status != container_engine.CONFLICT else ""

    def _inspected(self, details: Any, error: EngineError | None) -> None:
        self._is_inspecting = False
        if details:
            self._paused, self._paused_at = bool(details["State"]["Paused"]), time.monotonic()

    @property
    def _exit_record(self) -> Path:
        return self._record.with_suffix(".exit")

    def _write_record(self) -> None:
        plain_files.write_json(self._record, {"label": self.label, "wanted": self.wanted})


def _limits(amounts: Mapping[str, int], created: Mapping[str, Any], on: bool) -> dict[str, int]:
    """The engine's request for a change of limits. Not ``on``: those of the container's creation; -1 is no limit.

    The engine rejects a change between NanoCpus and a quota. The memory limit includes swap.
    """
    body: dict[str, int] = {}
    if (percent := amounts.get("cpu_percent")) and "NanoCpus" in created:
        body["NanoCpus"] = percent * 10_000_000 if on else int(created["NanoCpus"])
    elif percent:
        body |= {"CpuPeriod": cgroups.PERIOD_US, "CpuQuota": percent * cgroups.PERIOD_US // 100 if on else -1}
    if size_mib := amounts.get("memory_mib"):
        size_bytes = size_mib << 20 if on else int(created.get("Memory", -1))
        body |= {"Memory": size_bytes, "MemorySwap": size_bytes}
    if count := amounts.get("pids"):
        body["PidsLimit"] = count if on else int(created.get("PidsLimit", -1))
    return body
