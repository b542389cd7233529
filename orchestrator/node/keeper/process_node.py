"""A node that is a group of processes on this host, forked by the keeper: its state, processes, link and ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...model.bed import LinkSpec
from ...system import plain_files
from ..files import label
from ..files.inbox import Respond
from ..oslayer import cgroups, processes, traffic_control
from ..oslayer.event_loop import Loop
from ..oslayer.processes import Process
from ..oslayer.stops import DutyCycle, Stops
from . import fabric, node_primitives
from .fabric import Fabric
from .node_protocol import Observed, OnEnd, StartedNode, Unsupported

READY_S = 20.0


class ProcessNode(StartedNode):
    """One node of the bed. ``label``: of its newest incarnation, also when that has ended.

    ``prefix``: of the tags of its processes. ``start``: starts a new incarnation. ``orphans``: pids of the children that the
    keeper did not fork.
    """

    def __init__(
        self,
        loop: Loop,
        name: str,
        directory: Path,
        *,
        prefix: str,
        switch: Fabric,
        start: Callable[[ProcessNode, Mapping[str, Any], Respond], None],
        orphans: Callable[[], set[int]],
    ) -> None:
        super().__init__(name, directory, plain_files.read_json(directory / label.NODE_LABEL), READY_S, start)
        #: Was it forked by an earlier keeper? Then this keeper cannot know its exit code, nor adopt its orphans.
        self.adopted = False
        #: Called in order once none of its processes lives; not empty while it is being ended.
        self.ending: list[OnEnd] = []
        self.end_by = 0.0
        self._prefix = prefix
        self._switch = switch
        self._orphans = orphans
        self._stops = Stops()
        self._duty_cycle = DutyCycle(loop, lambda: self._stops.others(self.processes()))

    @property
    def wanted(self) -> dict[str, Any]:
        """The NodeSpec of its newest incarnation, as JSON."""
        return dict(self.label.get("spec", {}))

    def processes(self) -> list[Process]:
        """The agent and its descendants. After the death of the agent: by process tag and session, and the orphans."""
        agent = processes.find(self.pid) if self.pid else None
        if agent and agent.start == self.label["start"] and agent.state not in processes.EXITED:
            return [agent, *processes.descendants(self.pid)]
        sessions = processes.live_sessions([(self.pid, self.label["start"])]) if self.pid else set()
        return processes.select(processes.scan(), self._prefix, sessions | self._orphans())

    def power_off(self) -> dict[str, Any]:
        return {"killed": processes.kill(self.processes())}

    def pause(self, on: bool) -> dict[str, Any]:
        if self._duty_cycle.is_active:
            raise Unsupported(f"{self.name} is slowed by SIGSTOP and SIGCONT; it cannot be paused as well")
        return self._stops.hold_all(self.processes(), on)

    def is_paused(self, on: bool) -> Observed:
        return self._stops.are_held(self.processes(), on)

    def send_signal(self, targets: Sequence[Process], number: int) -> list[int]:
        return self._stops.send(targets, number)

    def forget_stops(self) -> None:
        """Those of an earlier incarnation, whose processes have ended; a duty cycle goes on with the new one."""
        self._stops = Stops()
        self._stops.holds_all = self._duty_cycle.is_active

    def is_stopped(self, process: Process) -> bool:
        return self._stops.is_stopped(process)

    def limit(self, amounts: Mapping[str, int], on: bool) -> dict[str, Any]:
        """Limit it by a cgroup. If none can be made, ``cpu_percent`` works by alternating SIGSTOP and SIGCONT."""
        if cgroups.is_available(amounts):
            cgroup = f"ccbed-{self._prefix.strip('/').replace('/', '-')}"
            did = cgroups.limit(self.processes(), cgroup, amounts) if on else cgroups.release(cgroup, amounts)
            return {**did, "by": "cgroup"}
        if on and (amounts.keys() != {"cpu_percent"} or amounts["cpu_percent"] >= 100):
            raise Unsupported(f"no cgroup can be made for {self.name}: only cpu_percent below 100 is possible")
        self._stops.holds_all = on
        if on:
            self._duty_cycle.start(amounts["cpu_percent"])
        return {"by": "duty cycle", **({} if on else {"continued": self._duty_cycle.stop()})}

    def is_limited(self, amounts: Mapping[str, int], on: bool) -> Observed:
        if cgroups.is_available(amounts):
            return cgroups.are_limited(self.processes(), amounts, on)
        if on and self._duty_cycle.is_active:
            return self._duty_cycle.is_observed(amounts["cpu_percent"])
        are_free, evidence = self._stops.are_held(self.processes(), on=False)
        return are_free is not on, evidence

    def has_link(self) -> bool:
        return "switch" in self.label

    def link(self, on: bool) -> dict[str, Any]:
        self._switch.set_port(self.name, on=on)
        return {"link": "up" if on else "down"}

    def is_linked(self, on: bool) -> Observed:
        if not self.alive:
            return not on, {"eth0": "gone"}
        is_up = fabric.has_link(self.pid)
        return is_up is on, {"eth0": "has a link" if is_up else "has no link"}

    def slow_link(self, slowdown: Mapping[str, Any] | None) -> dict[str, Any]:
        """A node that has ended has lost its link: there is nothing to restore."""
        if not self.alive:
            return {"eth0": "gone"}
        return self._switch.set_rates(self.name, self.pid, self._shaping(), self._lowered(slowdown))

    def is_link_slow(self, slowdown: Mapping[str, Any] | None) -> Observed:
        if not self.alive:
            return slowdown is None, {"eth0": "gone"}
        return self._switch.has_rates(self.name, self.pid, self._shaping(), self._lowered(slowdown))

    def _shaping(self) -> LinkSpec:
        return LinkSpec(**self.wanted["port"]["link"])

    def _lowered(self, slowdown: Mapping[str, Any] | None) -> traffic_control.Lowered | None:
        """Raises Unsupported for a rate or a peer that the link does not have."""
        if slowdown is None:
            return None
        link, peer = self._shaping(), slowdown.get("peer")
        if not link.rate and (link.delay_s or link.loss or "percent" in slowdown):
            raise Unsupported(f"{self.name} has a link without a rate; give it one by ccbed_link (rate: 1gbit)")
        if peer and (link.delay_s or link.loss):
            raise Unsupported(f"{self.name} has a link with delay or loss, whose rate to one peer cannot be lowered")
        address = (
            plain_files.read_json(self.directory.parent / peer / label.NODE_LABEL).get("spec", {}).get("address")
            if peer
            else ""
        )
        if peer and (not address or peer == self.name):
            raise Unsupported(f"{self.name} has no peer {peer}")
        rate = int(slowdown.get("rate_bit") or link.rate * int(slowdown["percent"]) // 100)
        return traffic_control.Lowered(direction=slowdown["direction"], rate=rate, peer=address)

    def agent(self) -> Process | None:
        return next((process for process in self.processes() if process.pid == self.pid), None)

    def rank(self, number: int) -> Process | None:
        return node_primitives.rank_process(self.directory, number)
