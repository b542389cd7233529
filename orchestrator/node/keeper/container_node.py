"""One node that is a container: what the keeper knows of it, keeps of it, and asks the engine to do with it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import label, plain_files
from ..oslayer import cgroups, engine_api, processes
from ..oslayer.engine_api import EngineError
from ..oslayer.processes import Process
from . import primitives
from .engine_calls import Calls

if TYPE_CHECKING:
    from .container_nodes import Containers
    from .process_nodes import Answer

#: Written by the agent of a container into the node's directory once it takes commands.
READY = "ready.json"
#: An order to the engine is not repeated before this time is over, unless it was refused.
PATIENCE_S = 1.0
READY_S = 60.0
#: What the engine said of a container is used for so long.
FRESH_S = 0.5


class Node:
    """One node of the bed, whether it lives or not. ``label``: of its newest incarnation, also when that has ended.

    What is needed to start it anew lies with the keeper, and not in the node's directory, which its container may write.
    """

    def __init__(
        self, nodes: Containers, calls: Calls, name: str, directory: Path, record: Path, container: str
    ) -> None:
        stored = label.read(record)
        self.name = name
        self.directory = directory
        self.container = container
        self.label: dict[str, Any] = stored.get("label", {})
        self.wanted: dict[str, Any] = stored.get("wanted", {})
        self.alive = False
        self.ready = False
        self.starting = False
        self.waiting: list[Answer] = []
        #: How long a start may take, in seconds.
        self.ready_s = READY_S
        self.pidfd = -1
        #: Counts starts, so that what the engine answers to an earlier one is told apart.
        self.attempt = 0
        #: Has the present attempt come so far that the incarnation is a new one?
        self.begun = False
        #: The incarnation that the keeper itself has killed.
        self.killed: str | None = None
        #: Why the engine did not do what it was last told; empty where it did.
        self.problem = ""
        self._nodes = nodes
        self._calls = calls
        self._record = record
        self._orders: dict[str, float] = {}
        self._looking = False
        self._paused: bool | None = None
        #: When the engine said so, CLOCK_MONOTONIC.
        self._paused_at = 0.0

    @property
    def identity(self) -> dict[str, Any]:
        return {field: self.label.get(field) for field in ("incarnation", "ordinal", "pid")}

    @property
    def id(self) -> str:
        """Of the newest incarnation's container; empty until it was started."""
        return str(self.label.get("container", ""))

    @property
    def pid(self) -> int:
        """Of the container's main process, as its host sees it."""
        return int(self.label.get("pid", 0))

    def processes(self) -> list[Process]:
        """All that live: with its main process the kernel ends every process of a container."""
        found = processes.find(self.pid) if self.pid else None
        if found and found.start == self.label.get("start") and found.state not in processes.GONE:
            return [found, *processes.descendants(self.pid)]
        return []

    def is_up(self) -> bool:
        return self.alive and self.ready

    def power_on(self) -> None:
        if not self.alive and not self.starting:
            self._nodes.start(self, self.wanted, lambda kind, value: None)

    def power_off(self) -> dict[str, Any]:
        """Let the engine kill the container; the pids that are meant. What comes of it the processes show."""
        living = [one.pid for one in self.processes()]
        if living and self._order("kill"):
            self.killed = self.label.get("incarnation")
            return {"killed": living, "by": "engine"}
        return {"killed": []}

    def pause(self, on: bool) -> dict[str, Any]:
        """Let the engine freeze the container, or let it go on."""
        self._paused = None
        return {"engine": "pause" if on else "unpause"} if self._order("pause" if on else "unpause") else {}

    def is_paused(self, on: bool) -> tuple[bool | None, dict[str, Any]]:
        """Is it frozen (not ``on``: does it go on), by a fresh answer of the engine; None until there is one."""
        if not on and not self.processes():
            return True, {"container": self.container, "left": []}  # it has ended meanwhile: nothing stands still
        if not self._looking:
            self._looking = True
            self._calls.ask("GET", engine_api.container(self.id or self.container), self._looked, deadline_s=2.0)
        paused = self._paused if time.monotonic() - self._paused_at < FRESH_S else None
        seen = {"container": self.container, "paused": paused}
        return None if paused is None else paused is on, {**seen, "problem": self.problem} if self.problem else seen

    def limit(self, amounts: Mapping[str, int], on: bool) -> dict[str, Any]:
        """Let the engine change the container's limits, or set them back to what it was created with."""
        body = _limits(amounts, self.wanted["request"]["HostConfig"], on)
        return {"update": body, "by": "engine"} if self._order("update", body) else {}

    def is_limited(self, amounts: Mapping[str, int], on: bool) -> tuple[bool | None, dict[str, Any]]:
        """By the cgroup of its main process; None where this host does not show it."""
        are_limited, evidence = cgroups.are_limited(self.processes()[:1], amounts, on)
        return are_limited, {**evidence, "problem": self.problem} if self.problem else evidence

    def has_link(self) -> bool:
        return False

    def link(self, on: bool) -> dict[str, Any]:
        """The engine has no such order."""
        raise primitives.Unsupported("a container's link is not cut in this version")

    def is_linked(self, on: bool) -> tuple[bool, dict[str, Any]]:
        raise primitives.Unsupported("a container's link is not looked at in this version")

    def agent(self) -> Process | None:
        """Not the main process, which is the engine's init, but its child."""
        inner = int(label.read(self.directory / READY).get("pid", 0))
        return next((process for process in self.processes() if processes.inner(process.pid) == inner), None)

    def rank(self, number: int) -> Process | None:
        """The living process of a rank, as the host sees it."""
        inner, start = primitives.rank_identity(self.directory, number)
        return next((one for one in self.processes() if one.start == start and processes.inner(one.pid) == inner), None)

    # --- what the keeper's Containers tell it ---------------------------------------------------------------------------

    def begin(self, mine: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        """A new incarnation is about to be created."""
        self.label, self.wanted = dict(mine), dict(wanted)
        self.begun, self.ready, self.problem, self._paused = True, False, "", None
        self._orders.clear()
        self._keep()

    def saw(self, found: Mapping[str, Any]) -> None:
        """What the engine says of the running container."""
        pid = int(found["State"]["Pid"])
        self.label = {**self.label, "pid": pid, "start": processes.start_of(pid), "container": found["Id"]}
        self._keep()

    def has_reported(self) -> bool:
        """Has this incarnation said that it takes commands?"""
        return label.read(self.directory / READY).get("incarnation") == self.label.get("incarnation")

    def reported(self) -> bool:
        """Was the end of the newest incarnation reported by a keeper?"""
        return label.read(self._exit).get("incarnation") == self.label.get("incarnation")

    def keep_exit(self, how: Mapping[str, Any]) -> None:
        label.write(self._exit, {**self.identity, **how})

    def log_tail(self) -> str:
        try:
            return plain_files.tail(self.directory / "agent.log", 2000).decode(errors="replace")
        except OSError:
            return ""

    # --- orders to the engine -----------------------------------------------------------------------------------------

    def _order(self, verb: str, body: Any = None) -> bool:
        """Tell the engine, unless it was told a moment ago; whether it was told."""
        now = time.monotonic()
        if now - self._orders.get(verb, -PATIENCE_S) < PATIENCE_S:
            return False
        self._orders = {verb: now}
        self._calls.ask("POST", engine_api.container(self.id or self.container, verb), self._ordered, body)
        return True

    def _ordered(self, answer: Any, error: EngineError | None) -> None:
        self.problem = str(error) if error and error.status != engine_api.CONFLICT else ""

    def _looked(self, found: Any, error: EngineError | None) -> None:
        self._looking = False
        if found:
            self._paused, self._paused_at = bool(found["State"]["Paused"]), time.monotonic()

    @property
    def _exit(self) -> Path:
        return self._record.with_suffix(".exit")

    def _keep(self) -> None:
        label.write(self._record, {"label": self.label, "wanted": self.wanted})


def _limits(amounts: Mapping[str, int], created: Mapping[str, Any], on: bool) -> dict[str, int]:
    """A change of limits for the engine. Not ``on``: what the container was created with; -1 is no limit.

    The engine keeps to the way in which its CPUs were limited: NanoCpus, else a quota. Memory is that with swap.
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
