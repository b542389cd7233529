"""Creates, starts, adopts, watches and kills the containers of a bed's nodes, through an engine that the loop never waits for."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...model import container as names
from ...model.events.commands import NodeApplyDone
from ...model.events.nodes import NodeEnded, NodeExit
from ...model.payload import Payload
from ..files import label
from ..files.inbox import Respond
from ..oslayer import container_engine, inotify, processes
from ..oslayer.container_engine import EngineClient, EngineError, LoopClient
from ..oslayer.event_loop import Loop
from .container_node import ContainerNode

#: How long killed processes, and the container of an earlier incarnation, may take to be gone. The commands that wait for it have 60 s.
END_S = 50.0
RETRY_S = 0.005
#: How long the engine may take to notice that a container has ended.
EXPLAIN_S, EXPLAIN_RETRY_S = 3.0, 0.1
#: Until an engine that does not answer when the keeper starts is tried again.
ADOPT_RETRY_S = 1.0

Note = Callable[[ContainerNode, Payload], None]


class ContainerLifecycle:
    """All nodes of a bed on one engine. ``note``: writes an event about a node. Same methods as ``ProcessLifecycle``."""

    def __init__(self, loop: Loop, workdir: Path, bed: str, archive: str, note: Note, socket: str) -> None:
        self._loop = loop
        self._directory = workdir / "nodes"
        self._records = workdir / label.KEEPER_DIR / "nodes"
        self._records.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._bed = bed
        self._tag = processes.bed_tag(bed, str(workdir))
        self._archive = archive
        self._note = note
        self._engine = LoopClient(loop, EngineClient(socket))
        self._nodes: dict[str, ContainerNode] = {}
        self._ready_watcher = inotify.Watcher()

    def get(self, name: str) -> ContainerNode:
        """A node by name; created if unknown. Raises ValueError for an invalid name."""
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is not the name of a node")
        if name not in self._nodes:
            self._nodes[name] = ContainerNode(
                name,
                self._directory / name,
                record=self._records / f"{name}.json",
                container=names.container_name(self._bed, name),
                engine=self._engine,
                start=self.start,
            )
        return self._nodes[name]

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
        self._list_containers()

    def start(self, node: ContainerNode, wanted: Mapping[str, Any], respond: Respond) -> None:
        """End what is left of the earlier incarnation, then start a new one; respond with its identity when it is ready."""
        node.waiting.append(respond)
        if not node.starting:
            node.starting = True
            node.attempt, node.begun = node.attempt + 1, False
            self._end(node, lambda killed, left: self._free_name(node, wanted, time.monotonic() + END_S))

    def end(self, node: ContainerNode, then: Callable[[list[int], int], None]) -> None:
        """Kill a node; then call with the killed pids and the number of processes that are left. Removes its container.

        A container that is being created would start after its end: it is ended once it runs, or its start has failed.
        """
        if node.starting and not (node.begun and node.alive):
            self._loop.call_later(RETRY_S, lambda: self.end(node, then))
        else:
            self._end(node, then)

    def _end(self, node: ContainerNode, then: Callable[[list[int], int], None]) -> None:
        killed = node.power_off()["killed"] if node.processes() else []
        until = time.monotonic() + END_S

        def check() -> None:
            living = node.processes()
            if living and time.monotonic() < until:
                if node.problem:  # the engine rejected the request
                    processes.kill(living)
                self._loop.call_later(RETRY_S, check)
                return
            if node.alive and not living:
                self._exited(node)
            if node.id:  # by id only: another bed may use the name
                self._engine.request("DELETE", _removal(node.id), lambda content, error: None)
            then(killed, len(living))

        check()

    # --- the steps of a start -------------------------------------------------------------------------------------------

    def _free_name(self, node: ContainerNode, wanted: Mapping[str, Any], until: float) -> None:
        """Remove this bed's container of that name, if it exists, then create the new one. Other containers are not touched."""

        def inspected(details: Any, error: EngineError | None) -> None:
            if error and error.status == container_engine.NOT_FOUND:
                self._create(node, wanted)
            elif error:
                node.fail_start(str(error))
            elif (details.get("Config", {}).get("Labels") or {}).get(names.BED) != self._tag:
                owner = (details["Config"]["Labels"] or {}).get(names.OWNER, "")
                node.fail_start(_name_is_taken(node, owner))
            elif time.monotonic() > until:
                node.fail_start(f"the engine does not remove container {node.container}")
            else:
                self._engine.request("DELETE", _removal(str(details["Id"])), removed)

        def removed(content: Any, error: EngineError | None) -> None:
            if error and error.status not in (container_engine.NOT_FOUND, container_engine.CONFLICT):
                node.fail_start(str(error))
            else:
                self._loop.call_later(RETRY_S if error else 0.0, lambda: self._free_name(node, wanted, until))

        self._engine.request("GET", container_engine.container_path(node.container), inspected)

    def _create(self, node: ContainerNode, wanted: Mapping[str, Any]) -> None:
        node_label = self._new_label(node, wanted)
        tag = processes.node_tag(self._tag, node.name, node_label["incarnation"])
        body = names.fill_incarnation(wanted["request"], process_tag=tag, label=node_label)
        node.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._ready_watcher.add_watch(str(node.directory), inotify.MOVED_TO)
        node.begin(node_label, wanted)

        def created(content: Any, error: EngineError | None) -> None:
            if error:
                node.fail_start(str(error))
            else:
                node.label["container"] = content["Id"]  # it is removed with the node, also if its start fails
                path = container_engine.container_path(content["Id"], "start")
                self._engine.request("POST", path, partial(started, str(content["Id"])), deadline_s=node.ready_s)

        def started(id: str, content: Any, error: EngineError | None) -> None:
            if error:
                node.fail_start(str(error))
            else:
                path = container_engine.container_path(id)
                self._engine.request("GET", path, partial(self._running, node, node.attempt))

        path = container_engine.with_query("/containers/create", name=node.container)
        self._engine.request("POST", path, created, body, deadline_s=node.ready_s)

    def _new_label(self, node: ContainerNode, wanted: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "bed": self._bed,
            "node": node.name,
            "spec_hash": wanted["hash"],
            "incarnation": secrets.token_hex(4),
            "ordinal": int(node.label.get("ordinal", 0)) + 1,
            "agent": self._archive,
        }

    def _running(self, node: ContainerNode, attempt: int, details: Any, error: EngineError | None) -> None:
        """The engine has started the container: watch its main process from now on."""
        if attempt != node.attempt:
            return
        if error:
            node.fail_start(str(error))
            return
        node.set_running(details)
        if not self._watch(node):
            self._exited(node)
            return
        self._loop.call_later(node.ready_s, lambda: self._kill_if_starting(node, attempt))
        self.reap()

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
        failed = node.starting and node.begun
        self._inspect_exit(node, node.label.get("incarnation"), failed, time.monotonic() + EXPLAIN_S)

    def _inspect_exit(self, node: ContainerNode, incarnation: str | None, failed: bool, until: float) -> None:
        """Inspect the container until the engine has noticed the exit: the kernel reports it first."""

        def inspected(details: Any, error: EngineError | None) -> None:
            is_same = details is not None and (details["Config"]["Labels"] or {}).get(names.INCARNATION) == incarnation
            state = details["State"] if is_same else {}
            if state.get("Running") and time.monotonic() < until:
                retry = partial(self._inspect_exit, node, incarnation, failed, until)
                self._loop.call_later(EXPLAIN_RETRY_S, retry)
            else:
                self._explain_exit(node, incarnation, failed, state, error)

        self._engine.request("GET", container_engine.container_path(node.container), inspected)

    def _explain_exit(
        self,
        node: ContainerNode,
        incarnation: str | None,
        failed: bool,
        state: Mapping[str, Any],
        error: EngineError | None,
    ) -> None:
        if state and incarnation == node.label.get("incarnation") and not state.get("Running"):
            cause = {"code": _exit_code(state), "oom": bool(state.get("OOMKilled"))}
            node.record_exit(cause)
            self._note(node, NodeEnded(code=cause["code"], oom=bool(cause["oom"]), pid=node.pid))
        if failed and node.starting and incarnation == node.label.get("incarnation"):
            self._respond_to_failed_start(node, state, error)

    def _respond_to_failed_start(
        self, node: ContainerNode, state: Mapping[str, Any], error: EngineError | None
    ) -> None:
        """The agent ended while it started: the last line of its log is the reason."""
        cause = f"with code {state['ExitCode']}" if "ExitCode" in state else str(error or "and its container is gone")

        def log_read(engine_log: Any, error: EngineError | None) -> None:
            log = node.log_tail() or _printable(engine_log)
            last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "its log is empty")
            node.fail_start(f"its agent ended while it started, {cause}: {last}", log)

        path = container_engine.container_path(node.container, "logs")
        self._engine.request("GET", container_engine.with_query(path, stderr=1, stdout=1, tail=20), log_read)

    # --- adoption by a new keeper ---------------------------------------------------------------------------------------

    def _list_containers(self) -> None:
        filters = container_engine.label_filter(bed=self._tag)
        path = container_engine.with_query("/containers/json", all=1, filters=filters)
        self._engine.request("GET", path, self._listed)

    def _listed(self, rows: Any, error: EngineError | None) -> None:
        if error:
            print(f"Cannot list the containers of the engine: {error}", flush=True)
            self._loop.call_later(ADOPT_RETRY_S, self._list_containers)
            return
        running = {row["Labels"][names.NODE]: row["Id"] for row in rows if row["State"] in ("running", "paused")}
        for name, id in running.items():
            node = self.get(name)
            if node.alive or node.starting or node.is_exit_reported():
                continue
            if node.is_of_earlier_boot:  # it was started again by hand
                self._exited(node)
            else:
                self._engine.request("GET", container_engine.container_path(id), partial(self._adopt, node))
        for file in sorted(self._records.glob("*.json")):
            node = self.get(file.stem)
            if node.name not in running and not node.starting and not node.is_exit_reported():
                self._exited(node)

    def _adopt(self, node: ContainerNode, details: Any, error: EngineError | None) -> None:
        if error or node.alive or node.starting:
            return
        if details["Config"]["Labels"].get(names.INCARNATION) != node.label.get("incarnation"):
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


def _exit_code(state: Mapping[str, Any]) -> int:
    """The exit code of the main process. An init reports a signal as 128 plus its number; here it is negative."""
    code = int(state.get("ExitCode", 0))
    return 128 - code if 128 < code < 128 + signal.NSIG else code


def _printable(engine_log: Any) -> str:
    return "".join(char for char in str(engine_log or "") if char.isprintable() or char == "\n")[-2000:]
