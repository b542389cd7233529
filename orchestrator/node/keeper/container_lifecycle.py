"""Creates, starts, adopts, watches and kills the containers of a bed's nodes, through an engine that the loop never waits for."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...model import container as names
from ...model.events.commands import NodeApplyDone
from ...model.events.nodes import NodeEnded, NodeExit
from ...model.payload import Payload
from ...system import inotify
from ..files import label
from ..files.inbox import Respond
from ..oslayer import container_engine, processes
from ..oslayer.container_engine import EngineClient, EngineError, LoopClient
from ..oslayer.event_loop import Loop, Steps
from .container_node import ContainerNode
from .node_protocol import NodeLifecycle, OnEnd

#: How long killed processes, and the container of an earlier incarnation, may take to be gone. The commands that wait for it have 60 s.
END_S = 50.0
RETRY_S = 0.005
#: How long the engine may take to notice that a container has ended.
EXPLAIN_S, EXPLAIN_RETRY_S = 3.0, 0.1
#: Until an engine that does not answer when the keeper starts is tried again.
ADOPT_RETRY_S = 1.0

#: What an engine says of a container, or what a node is started with.
Details = Mapping[str, Any]
Note = Callable[[ContainerNode, Payload], None]


class ContainerLifecycle(NodeLifecycle[ContainerNode]):
    """All nodes of a bed on one engine. ``note``: writes an event about a node."""

    def __init__(self, loop: Loop, workdir: Path, bed: str, archive: str, note: Note, socket: str) -> None:
        super().__init__()
        self._loop = loop
        self._directory = workdir / "nodes"
        self._records = workdir / label.KEEPER_DIR / "nodes"
        self._records.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._bed = bed
        self._tag = processes.bed_tag(bed, str(workdir))
        self._archive = archive
        self._note = note
        self._engine = LoopClient(loop, EngineClient(socket))
        self._ready_watcher = inotify.Watcher()

    def make(self, name: str) -> ContainerNode:
        return ContainerNode(
            name,
            self._directory / name,
            record=self._records / f"{name}.json",
            container=names.container_name(self._bed, name),
            engine=self._engine,
            start=self.start,
        )

    def reap(self) -> None:
        """Respond the start of each node that has reported that it is ready, also if inotify lost the event."""
        self._ready_watcher.read_names()
        for node in self._nodes.values():
            if node.alive and not node.ready and node.has_reported_ready():
                node.ready = True
                node.respond_to_start("ok", NodeApplyDone(**node.identity))

    def adopt(self) -> None:
        """Take over the nodes of an earlier keeper: watch the living, report the exits that it did not report."""
        if self._ready_watcher.fd >= 0:
            self._loop.add_reader(self._ready_watcher.fd, self.reap)
        self._loop.start(self._list_containers())

    def start(self, node: ContainerNode, wanted: Details, respond: Respond) -> None:
        """End what is left of the earlier incarnation, then start a new one; respond with its identity when it is ready."""
        node.waiting.append(respond)
        if not node.starting:
            node.starting = True
            node.attempt, node.begun = node.attempt + 1, False
            self._loop.start(self._start(node, wanted, node.attempt))

    def end(self, node: ContainerNode, then: OnEnd) -> None:
        """Kill a node; then call with the killed pids and the number of processes that are left. Removes its container.

        A container that is being created would start after its end: it is ended once it runs, or its start has failed.
        """

        def end() -> Steps[None]:
            while node.starting and not (node.begun and node.alive):
                yield RETRY_S
            then(*(yield from self._end(node)))

        self._loop.start(end())

    def _end(self, node: ContainerNode) -> Steps[tuple[list[int], int]]:
        killed: list[int] = node.power_off()["killed"] if node.processes() else []
        until = time.monotonic() + END_S
        while (living := node.processes()) and time.monotonic() < until:
            if node.problem:  # the engine rejected the request
                processes.kill(living)
            yield RETRY_S
        if node.alive and not living:
            self._exited(node)
        if node.id:  # by id only: another bed may use the name
            self._engine.request("DELETE", _removal(node.id), lambda content, error: None)
        return killed, len(living)

    # --- the steps of a start -------------------------------------------------------------------------------------------

    def _start(self, node: ContainerNode, wanted: Details, attempt: int) -> Steps[None]:
        """End the earlier incarnation, create and start the container; from then on its main process is watched."""
        yield from self._end(node)
        try:
            yield from self._free_name(node)
            details = yield from self._create(node, wanted)
        except (OSError, ValueError) as error:  # of the engine, of this host's disk, or of a name
            if attempt == node.attempt:
                node.fail_start(str(error))
            return
        if attempt != node.attempt:
            return
        node.set_running(details)
        if not self._watch(node):
            self._exited(node)
            return
        self._loop.call_later(node.ready_s, lambda: self._kill_if_starting(node, attempt))
        self.reap()

    def _free_name(self, node: ContainerNode) -> Steps[None]:
        """Remove this bed's container of that name, if it exists. Other containers are not touched. Raises EngineError."""
        until = time.monotonic() + END_S
        while True:
            try:
                details = yield from self._engine.ask("GET", container_engine.container_path(node.container))
            except EngineError as error:
                if error.status == container_engine.NOT_FOUND:
                    return
                raise
            labels = details.get("Config", {}).get("Labels") or {}
            if labels.get(names.BED) != self._tag:
                raise EngineError(_name_is_taken(node, labels.get(names.OWNER, "")))
            if time.monotonic() > until:
                raise EngineError(f"the engine does not remove container {node.container}")
            try:
                yield from self._engine.ask("DELETE", _removal(str(details["Id"])))
            except EngineError as error:
                if error.status not in (container_engine.NOT_FOUND, container_engine.CONFLICT):
                    raise
                yield RETRY_S

    def _create(self, node: ContainerNode, wanted: Details) -> Steps[Details]:
        """Create and start the container; its details. Raises EngineError."""
        node_label = self._new_label(node, wanted)
        tag = processes.node_tag(self._tag, node.name, node_label["incarnation"])
        body = names.fill_incarnation(wanted["request"], process_tag=tag, label=node_label)
        node.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._ready_watcher.add_watch(str(node.directory), inotify.MOVED_TO)
        node.begin(node_label, wanted)
        path = container_engine.with_query("/containers/create", name=node.container)
        created = yield from self._engine.ask("POST", path, body, deadline_s=node.ready_s)
        id = str(created["Id"])
        node.label["container"] = id  # it is removed with the node, also if its start fails
        yield from self._engine.ask("POST", container_engine.container_path(id, "start"), deadline_s=node.ready_s)
        details: Details = yield from self._engine.ask("GET", container_engine.container_path(id))
        return details

    def _new_label(self, node: ContainerNode, wanted: Details) -> dict[str, Any]:
        return {
            "bed": self._bed,
            "node": node.name,
            "spec_hash": wanted["hash"],
            "incarnation": secrets.token_hex(4),
            "ordinal": int(node.label.get("ordinal", 0)) + 1,
            "agent": self._archive,
        }

    def _kill_if_starting(self, node: ContainerNode, attempt: int) -> None:
        if node.starting and node.attempt == attempt:
            node.power_off()

    # --- exits ----------------------------------------------------------------------------------------------------------

    def _watch(self, node: ContainerNode) -> bool:
        """Watch the main process; False if it has ended already."""
        try:
            node.pidfd = os.pidfd_open(node.pid)
        except OSError:
            return False
        node.alive = True
        self._loop.add_reader(node.pidfd, lambda: self._exited(node))
        return True

    def _exited(self, node: ContainerNode) -> None:
        """Report the exit at once, as far as it is known; then inspect the container for its cause.

        The kernel has ended all processes of the container with its main process.
        """
        if node.pidfd >= 0:
            self._loop.remove_reader(node.pidfd)
            os.close(node.pidfd)
        node.alive, node.ready, node.pidfd = False, False, -1
        code = -9 if node.killed == node.label.get("incarnation") else None
        self._note(node, NodeExit(code=code, pid=node.pid, left=0))
        node.record_exit({"code": code})
        has_failed = node.starting and node.begun
        self._loop.start(self._explain_exit(node, node.label.get("incarnation"), has_failed=has_failed))

    def _explain_exit(self, node: ContainerNode, incarnation: str | None, *, has_failed: bool) -> Steps[None]:
        """Report the cause of an exit. If the agent ended while it started, the last line of its log is the reason."""
        state, problem = yield from self._state_at_exit(node, incarnation)
        if incarnation != node.label.get("incarnation"):
            return
        if state and not state.get("Running"):
            code, is_oom = _exit_code(state), bool(state.get("OOMKilled"))
            node.record_exit({"code": code, "oom": is_oom})
            self._note(node, NodeEnded(code=code, oom=is_oom, pid=node.pid))
        if not (has_failed and node.starting):
            return
        cause = f"with code {state['ExitCode']}" if "ExitCode" in state else problem or "and its container is gone"
        path = container_engine.container_path(node.container, "logs")
        engine_log = None
        with contextlib.suppress(EngineError):
            engine_log = yield from self._engine.ask(
                "GET", container_engine.with_query(path, stderr=1, stdout=1, tail=20)
            )
        log = node.log_tail() or _printable(engine_log)
        last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "its log is empty")
        node.fail_start(f"its agent ended while it started, {cause}: {last}", log)

    def _state_at_exit(self, node: ContainerNode, incarnation: str | None) -> Steps[tuple[Details, str]]:
        """(state of the container, or empty; error of the engine), once the engine has noticed the exit: the kernel reports it first."""
        until = time.monotonic() + EXPLAIN_S
        while True:
            try:
                details = yield from self._engine.ask("GET", container_engine.container_path(node.container))
            except EngineError as error:
                return {}, str(error)
            is_same = (details["Config"]["Labels"] or {}).get(names.INCARNATION) == incarnation
            state: Details = details["State"] if is_same else {}
            if not state.get("Running") or time.monotonic() >= until:
                return state, ""
            yield EXPLAIN_RETRY_S

    # --- adoption by a new keeper ---------------------------------------------------------------------------------------

    def _list_containers(self) -> Steps[None]:
        filters = container_engine.label_filter(bed=self._tag)
        path = container_engine.with_query("/containers/json", all=1, filters=filters)
        while True:
            try:
                self.take_over((yield from self._engine.ask("GET", path)))
                return
            except EngineError as error:
                print(f"Cannot list the containers of the engine: {error}", flush=True)
                yield ADOPT_RETRY_S

    def take_over(self, rows: Sequence[Details]) -> None:
        """Watch the nodes that run, and report the exits of the others. ``rows``: the containers of the bed."""
        running = {row["Labels"][names.NODE]: row["Id"] for row in rows if row["State"] in ("running", "paused")}
        for name, id in running.items():
            node = self.get(name)
            if node.alive or node.starting or node.is_exit_reported():
                continue
            if node.is_of_earlier_boot:  # it was started again by hand
                self._exited(node)
            else:
                self._loop.start(self._adopt(node, id))
        for file in sorted(self._records.glob("*.json")):
            node = self.get(file.stem)
            if node.name not in running and not node.starting and not node.is_exit_reported():
                self._exited(node)

    def _adopt(self, node: ContainerNode, id: str) -> Steps[None]:
        with contextlib.suppress(EngineError):
            details = yield from self._engine.ask("GET", container_engine.container_path(id))
            is_same = details["Config"]["Labels"].get(names.INCARNATION) == node.label.get("incarnation")
            if node.alive or node.starting or not is_same:
                return
            node.set_running(details)
            if self._watch(node):
                self.reap()
            elif not node.is_exit_reported():
                self._exited(node)


def _removal(id: str) -> str:
    return container_engine.with_query(f"/containers/{quote(id)}", force=1, v=1)


def _name_is_taken(node: ContainerNode, owner: str) -> str:
    name = node.container
    if owner:
        return f"container {name} is of another bed, {owner}; end it there, or choose another ccbed_bed"
    return f"container {name} is not of this bed: remove it with docker rm -f {name}, or choose another ccbed_bed"


def _exit_code(state: Details) -> int:
    """The exit code of the main process. An init reports a signal as 128 plus its number; here it is negative."""
    code = int(state.get("ExitCode", 0))
    return 128 - code if 128 < code < 128 + signal.NSIG else code


def _printable(engine_log: Any) -> str:
    return "".join(char for char in str(engine_log or "") if char.isprintable() or char == "\n")[-2000:]
