"""The keeper of a bed on one host: starts its nodes, sees them exit, outlives them, and holds the leases of faults.

Its nodes are process groups that it forks itself, with torch imported once, or containers of its host's engine.
"""

from __future__ import annotations

import functools
import os
import secrets
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import warm_up
from ..files import inbox, label, plain_files
from ..files.event_log import EventLog
from ..files.inbox import Inbox, Item
from ..hostlink.fork_server import Door
from ..oslayer import process_tag as marks
from ..oslayer import processes
from ..oslayer.event_loop import Loop
from .acts import Acts
from .container_nodes import Containers
from .external_holder import OUTSIDE, Places
from .lease import Lease, Leases
from .process_nodes import Nodes

POLL_S = 0.25
#: What a keeper's nodes may be, beside OUTSIDE: none.
PROCESSES = "processes"
CONTAINERS = "containers"
#: With it the keeper signs its events; it lasts as long as the bed.
KEY = "events.key"
KEY_BYTES = 32


class Keeper:
    """Performs node.apply, node.kill, fault.act and fault.heal for the nodes under ``workdir``."""

    def __init__(self, workdir: Path, bed: str, archive: str, backend: str = PROCESSES, engine: str = "") -> None:
        """``backend``: what its nodes are; ``engine``: socket of the engine whose containers they are.

        ``outside``: it has none, but acts on hosts; ``workdir`` then lies in the bed's directory on the orchestrator's machine.
        """
        outside = backend == OUTSIDE
        directory = workdir / marks.KEEPER
        writer = OUTSIDE if outside else marks.KEEPER
        self._loop = Loop()
        self._log = EventLog(directory / "events.jsonl", writer=writer, key=_key(directory / KEY))
        self._inbox = Inbox(directory)

        def driven(run: str) -> bool:
            return label.driven(workdir.parent if outside else workdir) == run

        make: Mapping[str, Callable[..., Any]] = {
            PROCESSES: Nodes,
            CONTAINERS: functools.partial(Containers, socket=engine),
            OUTSIDE: Places,
        }
        self._nodes: Any = make[backend](self._loop, workdir, bed, archive, self._note_node)
        leases = Leases(directory / "leases")
        self._acts = Acts(self._loop, leases, self._nodes.get, self._note_fault, driven, holder=writer)

        self._door = Door(self._loop, workdir, archive) if backend == CONTAINERS else None

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until killed."""
        self._loop.on_child(self._reap)
        self._nodes.adopt()
        self._acts.resume()
        self._loop.watch(self._inbox.fd, self._work)
        if self._door:
            self._door.open()
        ready()
        self._loop.every(POLL_S, self._turn)
        self._loop.run()

    def _turn(self) -> None:
        self._reap()
        self._work()

    def _reap(self) -> None:
        self._nodes.reap()
        if self._door:
            self._door.reap()

    def _work(self) -> None:
        for item in self._inbox.take():
            self._consider(item)

    def _consider(self, item: Item) -> None:
        if item.outcome is not None:
            self._append_outcome(item, inbox.again(item.outcome))
            self._inbox.finish(item)
            return
        problem = item.problem or self._objection(item)
        if problem:
            self._refuse(item, problem)
            return
        try:
            self._performers()[item.command.f](item)
        except Exception as error:  # noqa: BLE001
            self._answer(item, "fail", {"reason": f"{type(error).__name__}: {error}"})

    def _performers(self) -> Mapping[str, Callable[[Item], None]]:
        return {
            "node.apply": self._apply,
            "node.kill": self._kill,
            "fault.act": lambda item: self._acts.act(item.run, item.command, self._answering(item)),
            "fault.heal": lambda item: self._acts.heal(item.run, item.command, self._answering(item)),
        }

    def _objection(self, item: Item) -> str:
        """Why a command may not be performed; empty where it may. Only what ends a node is bound to an incarnation."""
        command = item.command
        if command.f not in self._performers():
            return f"a keeper does not perform {command.f}"
        try:
            node = self._nodes.get(str(command.node or ""))
        except ValueError as error:
            return str(error)
        if command.f == "fault.act" and item.age_s > command.deadline_s:
            return f"{item.age_s:.0f} s old when it was taken, and of use for {command.deadline_s:g} s"
        present = node.label.get("incarnation")
        if command.f in ("node.kill", "fault.act") and present and command.incarnation not in (None, present):
            return f"for incarnation {command.incarnation} of {node.name}; the newest is {present}"
        return ""

    def _apply(self, item: Item) -> None:
        """Start a node from the NodeSpec given, or, where only its name is given, from the one that it had."""
        node, value = self._nodes.get(str(item.command.node)), item.command.value
        if "hash" not in value and not node.label:
            self._answer(item, "fail", {"reason": f"{node.name} was never here: a NodeSpec is needed"})
            return
        wanted = value if "hash" in value else node.wanted
        node.ready_s = max(node.ready_s, item.command.deadline_s)
        if not node.alive or node.starting:
            self._nodes.start(node, wanted, self._answering(item))
        elif node.label["spec_hash"] != wanted["hash"]:
            self._answer(item, "fail", {"reason": f"{node.name} runs by spec {node.label['spec_hash']}; end it first"})
        else:
            self._answer(item, "ok", node.identity)

    def _kill(self, item: Item) -> None:
        def ended(killed: list[int], left: int) -> None:
            value: dict[str, Any] = {"killed": killed, "left": left}
            if left:
                value["reason"] = f"{left} processes still live after SIGKILL"
            self._answer(item, "fail" if left else "ok", value)

        self._nodes.end(self._nodes.get(str(item.command.node)), ended)

    def _answering(self, item: Item) -> Callable[[str, Mapping[str, Any]], None]:
        return lambda kind, value: self._answer(item, kind, value)

    def _answer(self, item: Item, kind: str, value: Mapping[str, Any]) -> None:
        incarnation = self._nodes.get(str(item.command.node)).label.get("incarnation")
        self._keep(item, {"type": kind, "value": dict(value), "incarnation": incarnation})

    def _keep(self, item: Item, outcome: Mapping[str, Any]) -> None:
        """Kept before it is told: what was done and not told is told when it is asked for again."""
        self._inbox.finish(item, {**outcome, "f": item.command.f, "key": item.command.key})
        self._append_outcome(item, outcome)

    def _append_outcome(self, item: Item, outcome: Mapping[str, Any]) -> None:
        command = item.command
        self._log.append(
            outcome["type"],
            command.f,
            outcome["value"],
            key=command.key,
            node=command.node,
            incarnation=outcome.get("incarnation"),
            epoch=command.epoch,
            run=None if item.run == "bed" else item.run,
        )

    def _refuse(self, item: Item, reason: str) -> None:
        command, run = item.command, None if item.run in ("", "bed") else item.run
        value = {"key": command.key or item.name, "reason": reason}
        self._log.append("note", "command.refused", value, node=command.node, epoch=command.epoch, run=run)
        if command.key:
            self._keep(item, {"type": "fail", "value": {"reason": reason}})
        else:
            self._inbox.finish(item)

    def _note_node(self, f: str, node: Any, value: Mapping[str, Any]) -> None:
        self._log.append("note", f, value, node=node.name, incarnation=node.label.get("incarnation"))

    def _note_fault(self, f: str, lease: Lease, value: Mapping[str, Any]) -> None:
        incarnation = self._nodes.get(lease.node).label.get("incarnation")
        self._log.append(
            "note", f, value, node=lease.node, incarnation=incarnation, epoch=lease.epoch, run=lease.run or None
        )


def _key(path: Path) -> bytes:
    """The keeper's own key; drawn where there is none, or where its first keeper was killed while it wrote it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = plain_files.read(path) if path.exists() else b""
    if len(key) != KEY_BYTES:
        key = secrets.token_bytes(KEY_BYTES)
        with open(plain_files.made(path), "wb") as file:
            file.write(key)
    return key


def main(
    workdir: Path,
    bed: str,
    archive: str,
    ready: Callable[[], None],
    *,
    backend: str = PROCESSES,
    engine: str = "",
    owner: str = "",
    owner_id: str = "",
) -> int:
    """Become the keeper: take the lock, import what ranks need, write the label, serve. Runs detached already.

    ``backend`` and ``engine``: see ``Keeper``; only what forks ranks itself imports torch. ``owner``: whose bed it is, for people.
    """
    directory = workdir / marks.KEEPER
    label.take(directory)
    incarnation = secrets.token_hex(4)
    marks.overwrite(marks.mark(marks.tag(bed, str(workdir)), marks.KEEPER, incarnation))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if backend == PROCESSES:
        warm_up.load()
    pid = os.getpid()
    own = {
        "bed": bed,
        "incarnation": incarnation,
        "agent": archive,
        "pid": pid,
        "start": processes.start_of(pid),
        "boot": label.boot_id(),
        "owner": owner,
        "owner_id": owner_id,
        "backend": backend,
        "engine": engine,
    }
    keeper = Keeper(workdir, bed, archive, backend, engine)
    label.write(directory / label.KEEPER, own)
    keeper.run(ready)
    return 0
