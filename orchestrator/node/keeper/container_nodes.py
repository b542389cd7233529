"""The keeper's nodes as containers: created, started, watched and ended through the engine, which is never waited for."""

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
from ..oslayer import engine_api, inotify, processes
from ..oslayer import process_tag as marks
from ..oslayer.engine_api import EngineError
from ..oslayer.event_loop import Loop
from . import engine_calls
from .container_node import Node
from .process_nodes import Answer

END_S = 8.0
AGAIN_S = 0.005
#: How long the engine may take to see that a container has ended.
EXPLAIN_S, EXPLAIN_AGAIN_S = 3.0, 0.1
#: An engine that is not there when the keeper starts may come.
ADOPT_AGAIN_S = 1.0

Note = Callable[[str, Node, Mapping[str, Any]], None]


class Containers:
    """All nodes of a bed on one engine. ``note`` tells the world of their exits. Same surface as ``nodes.Nodes``."""

    def __init__(self, loop: Loop, workdir: Path, bed: str, archive: str, note: Note, socket: str) -> None:
        self._loop = loop
        self._directory = workdir / "nodes"
        self._records = workdir / marks.KEEPER / "nodes"
        self._records.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._bed = bed
        self._tag = marks.tag(bed, str(workdir))
        self._archive = archive
        self._note = note
        self._calls = engine_calls.Calls(loop, engine_api.Engine(socket))
        self._nodes: dict[str, Node] = {}
        self._arrivals = inotify.Watcher()

    def get(self, name: str) -> Node:
        """A node by name; made known if it was not. Raises ValueError for what cannot be a name."""
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is not the name of a node")
        if name not in self._nodes:
            record = self._records / f"{name}.json"
            container = names.container_name(self._bed, name)
            self._nodes[name] = Node(self, self._calls, name, self._directory / name, record, container)
        return self._nodes[name]

    def reap(self) -> None:
        """What inotify lost stays not unseen: a node that has said that it is ready is."""
        self._arrivals.drain()
        for node in self._nodes.values():
            if node.alive and not node.ready and node.has_reported():
                node.ready = True
                self._started(node, "ok", node.identity)

    def adopt(self) -> None:
        """Take over what a keeper before this one left: watch the living, report the dead that it did not report."""
        if self._arrivals.fd >= 0:
            self._loop.watch(self._arrivals.fd, self.reap)
        self._adopt()

    def start(self, node: Node, wanted: Mapping[str, Any], answer: Answer) -> None:
        """Start a new incarnation once nothing is left of the one before; answers with its identity when it is ready."""
        node.waiting.append(answer)
        if not node.starting:
            node.starting = True
            node.attempt, node.begun = node.attempt + 1, False
            self.end(node, lambda killed, left: self._clear(node, wanted, time.monotonic() + END_S))

    def end(self, node: Node, then: Callable[[list[int], int], None]) -> None:
        """End a node; calls with the pids that were killed and the number that is left. Its container is removed after."""
        killed = node.power_off()["killed"] if node.processes() else []
        until = time.monotonic() + END_S

        def look() -> None:
            living = node.processes()
            if living and time.monotonic() < until:
                if node.problem:  # the engine does not do it: the processes are ours, so we may
                    processes.kill(living)
                self._loop.later(AGAIN_S, look)
                return
            if node.alive and not living:
                self._ended(node)
            if node.id:  # never by name: the name may be somebody else's
                self._calls.ask("DELETE", _removal(node.id), lambda answer, error: None)
            then(killed, len(living))

        look()

    # --- start, step by step ------------------------------------------------------------------------------------------

    def _clear(self, node: Node, wanted: Mapping[str, Any], until: float) -> None:
        """Nothing of that name may be there; what is not this bed's is not touched."""

        def seen(found: Any, error: EngineError | None) -> None:
            if error and error.status == engine_api.GONE:
                self._create(node, wanted)
            elif error:
                self._failed(node, error)
            elif (found.get("Config", {}).get("Labels") or {}).get(names.BED) != self._tag:
                theirs = found["Config"]["Labels"] or {}
                self._started(node, "fail", {"reason": _taken(node, theirs.get(names.OWNER, ""))})
            elif time.monotonic() > until:
                self._started(node, "fail", {"reason": f"the engine does not remove container {node.container}"})
            else:
                self._calls.ask("DELETE", _removal(str(found["Id"])), removed)

        def removed(answer: Any, error: EngineError | None) -> None:
            if error and error.status not in (engine_api.GONE, engine_api.CONFLICT):
                self._failed(node, error)
            else:
                self._loop.later(AGAIN_S if error else 0.0, lambda: self._clear(node, wanted, until))

        self._calls.ask("GET", engine_api.container(node.container), seen)

    def _create(self, node: Node, wanted: Mapping[str, Any]) -> None:
        mine = self._draw(node, wanted)
        mark = marks.mark(self._tag, node.name, mine["incarnation"])
        body = names.filled(wanted["request"], mark=mark, label=mine)
        node.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._arrivals.watch(str(node.directory), inotify.MOVED_TO)
        node.begin(mine, wanted)

        def created(answer: Any, error: EngineError | None) -> None:
            if error:
                self._failed(node, error)
            else:
                path = engine_api.container(answer["Id"], "start")
                self._calls.ask("POST", path, partial(started, str(answer["Id"])), deadline_s=node.ready_s)

        def started(id: str, answer: Any, error: EngineError | None) -> None:
            if error:
                self._failed(node, error)
            else:
                self._calls.ask("GET", engine_api.container(id), partial(self._running, node, node.attempt))

        path = engine_api.query("/containers/create", name=node.container)
        self._calls.ask("POST", path, created, body, deadline_s=node.ready_s)

    def _draw(self, node: Node, wanted: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "bed": self._bed,
            "node": node.name,
            "spec_hash": wanted["hash"],
            "incarnation": secrets.token_hex(4),
            "ordinal": int(node.label.get("ordinal", 0)) + 1,
            "agent": self._archive,
        }

    def _running(self, node: Node, attempt: int, found: Any, error: EngineError | None) -> None:
        """The engine has started it: from now on its main process is watched."""
        if attempt != node.attempt:
            return
        if error:
            self._failed(node, error)
            return
        node.saw(found)
        if not self._watch(node):
            self._ended(node)
            return
        self._loop.later(node.ready_s, lambda: self._overdue(node, attempt))
        self.reap()

    def _started(self, node: Node, kind: str, value: Mapping[str, Any]) -> None:
        waiting, node.waiting, node.starting = node.waiting, [], False
        for answer in waiting:
            answer(kind, value)

    def _failed(self, node: Node, error: EngineError) -> None:
        self._started(node, "fail", {"reason": str(error)})

    def _overdue(self, node: Node, attempt: int) -> None:
        if node.starting and node.attempt == attempt:
            node.power_off()

    # --- exits --------------------------------------------------------------------------------------------------------

    def _watch(self, node: Node) -> bool:
        """Watch the main process; False where it has ended already."""
        try:
            node.pidfd = os.pidfd_open(node.pid)
        except OSError:
            return False
        node.alive = True
        self._loop.watch(node.pidfd, lambda: self._ended(node))
        return True

    def _ended(self, node: Node) -> None:
        """Say so at once, as far as it is known; then ask the engine how it ended.

        With the main process the kernel has ended all others of the container.
        """
        if node.pidfd >= 0:
            self._loop.forget(node.pidfd)
            os.close(node.pidfd)
        node.alive, node.ready, node.pidfd = False, False, -1
        code = -9 if node.killed == node.label.get("incarnation") else None
        self._note("node.exit", node, {"code": code, "pid": node.pid, "left": 0})
        node.keep_exit({"code": code})
        failed = node.starting and node.begun
        self._ask_how(node, node.label.get("incarnation"), failed, time.monotonic() + EXPLAIN_S)

    def _ask_how(self, node: Node, incarnation: str | None, failed: bool, until: float) -> None:
        """The kernel tells of an exit before the engine has seen it: then it is asked again."""

        def answered(found: Any, error: EngineError | None) -> None:
            mine = found is not None and (found["Config"]["Labels"] or {}).get(names.INCARNATION) == incarnation
            state = found["State"] if mine else {}
            if state.get("Running") and time.monotonic() < until:
                self._loop.later(EXPLAIN_AGAIN_S, lambda: self._ask_how(node, incarnation, failed, until))
            else:
                self._explain(node, incarnation, failed, state, error)

        self._calls.ask("GET", engine_api.container(node.container), answered)

    def _explain(
        self, node: Node, incarnation: str | None, failed: bool, state: Mapping[str, Any], error: EngineError | None
    ) -> None:
        if state and incarnation == node.label.get("incarnation") and not state.get("Running"):
            how = {"code": _code(state), "oom": bool(state.get("OOMKilled"))}
            node.keep_exit(how)
            self._note("node.ended", node, {**how, "pid": node.pid})
        if failed and node.starting and incarnation == node.label.get("incarnation"):
            self._tell_failure(node, state, error)

    def _tell_failure(self, node: Node, state: Mapping[str, Any], error: EngineError | None) -> None:
        """An agent ended while it started: what it said is the reason."""
        how = f"with code {state['ExitCode']}" if "ExitCode" in state else str(error or "and its container is gone")

        def read(said: Any, error: EngineError | None) -> None:
            log = node.log_tail() or _plain(said)
            last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "it said nothing")
            self._started(node, "fail", {"reason": f"its agent ended while it started, {how}: {last}", "log": log})

        self._calls.ask(
            "GET", engine_api.query(engine_api.container(node.container, "logs"), stderr=1, stdout=1, tail=20), read
        )

    # --- a keeper after another ---------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        filters = engine_api.labelled(bed=self._tag)
        self._calls.ask("GET", engine_api.query("/containers/json", all=1, filters=filters), self._listed)

    def _listed(self, found: Any, error: EngineError | None) -> None:
        if error:
            print(f"the engine's containers are not known: {error}", flush=True)
            self._loop.later(ADOPT_AGAIN_S, self._adopt)
            return
        running = {one["Labels"][names.NODE]: one["Id"] for one in found if one["State"] in ("running", "paused")}
        for name, id in running.items():
            node = self.get(name)
            if not node.alive and not node.starting and not node.reported():
                self._calls.ask("GET", engine_api.container(id), partial(self._adopted, node))
        for file in sorted(self._records.glob("*.json")):
            node = self.get(file.stem)
            if node.name not in running and not node.starting and not node.reported():
                self._ended(node)

    def _adopted(self, node: Node, found: Any, error: EngineError | None) -> None:
        if error or node.alive or node.starting:
            return
        if found["Config"]["Labels"].get(names.INCARNATION) != node.label.get("incarnation"):
            return
        node.saw(found)
        if self._watch(node):
            self.reap()
        elif not node.reported():
            self._ended(node)


def _removal(id: str) -> str:
    return engine_api.query(f"/containers/{quote(id)}", force=1, v=1)


def _taken(node: Node, owner: str) -> str:
    name = node.container
    if owner:
        return f"container {name} is of another bed, {owner}; end it there, or choose another ccbed_bed"
    return f"container {name} is not of this bed: docker rm -f {name} if nobody needs it, or choose another ccbed_bed"


def _code(state: Mapping[str, Any]) -> int:
    """Of the main process: negative for a signal, as an init tells it by 128 and the signal's number."""
    code = int(state.get("ExitCode", 0))
    return 128 - code if 128 < code < 128 + signal.NSIG else code


def _plain(said: Any) -> str:
    """The engine's framed log as text."""
    return "".join(one for one in str(said or "") if one.isprintable() or one == "\n")[-2000:]
