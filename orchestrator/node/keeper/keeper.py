"""The keeper of a bed on one host: starts its nodes, reports their exits, outlives them, and holds the leases of faults.

Its nodes are process groups that it forks itself, with torch imported once, or containers of its host's engine.
"""

from __future__ import annotations

import functools
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...model.events.commands import (
    CommandFailed,
    FaultAct,
    FaultHeal,
    NodeApply,
    NodeApplyDone,
    NodeKill,
    NodeKillDone,
)
from ...model.payload import Payload
from ...system import host_facts, plain_files
from .. import warm_up
from ..files import label
from ..files.event_log import EventLog
from ..files.inbox import Inbox, Item
from ..files.performer import NO_RUN, Origin, Performer
from ..hostlink.fork_server import ForkServer
from ..oslayer import cgroups, gpus, processes
from ..oslayer.event_loop import Loop
from .container_lifecycle import ContainerLifecycle
from .fault_lifecycle import FaultLifecycle
from .lease_records import Lease, Leases
from .node_protocol import ExternalNodes, NodeLifecycle
from .process_lifecycle import ProcessLifecycle

POLL_S = 0.25
#: What a keeper's nodes are. OUTSIDE: it has none.
PROCESSES = "processes"
CONTAINERS = "containers"
KEY_BYTES = 32


class Keeper(Performer):
    """Performs node.apply, node.kill, fault.act and fault.heal for the nodes under ``workdir``."""

    def __init__(self, workdir: Path, bed: str, archive: str, backend: str = PROCESSES, engine: str = "") -> None:
        """``backend``: what its nodes are. ``engine``: the socket of the engine whose containers they are.

        The backend ``outside`` has no nodes but acts on hosts; its ``workdir`` lies in the bed's directory on the controller.
        """
        is_external = backend == label.OUTSIDE
        directory = workdir / label.KEEPER_DIR
        self._directory = workdir / "nodes"
        writer = label.OUTSIDE if is_external else label.KEEPER_DIR
        self._loop = Loop()
        self._log = EventLog(directory / "events.jsonl", writer=writer, key=_signing_key(directory / label.KEY))
        self._inbox = Inbox(directory)

        def is_driven(run: str) -> bool:
            return label.driven_run(workdir.parent if is_external else workdir) == run

        lifecycles: Mapping[str, Callable[..., NodeLifecycle[Any]]] = {
            PROCESSES: ProcessLifecycle,
            CONTAINERS: functools.partial(ContainerLifecycle, socket=engine),
            label.OUTSIDE: ExternalNodes,
        }
        self._nodes: NodeLifecycle[Any] = lifecycles[backend](self._loop, workdir, bed, archive, self._note_node)
        self._gpus = gpus.GpuLeases(bed)
        leases = Leases(directory / "leases")
        self._faults = FaultLifecycle(self._loop, leases, self._nodes.get, self._note_fault, is_driven, holder=writer)
        self._fork_server = ForkServer(self._loop, workdir, archive) if backend == CONTAINERS else None

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until killed. ``ready`` is called once the keeper takes commands."""
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        self._nodes.adopt()
        self._lease_adopted()
        self._faults.resume()
        if self._inbox.fd >= 0:  # else the kernel has no inotify instance left, and the poll takes the commands
            self._loop.add_reader(self._inbox.fd, self._take_commands)
        if self._fork_server:
            self._fork_server.open()
        ready()
        self._loop.call_every(POLL_S, self._poll)
        self._loop.run()

    def _lease_adopted(self) -> None:
        """The nodes of an earlier keeper still use their GPUs. What another bed took meanwhile stays with that bed.

        The reason is in the keeper's log; when the node is started again, it is an error.
        """
        for directory in sorted(self._directory.glob("*")):
            node = self._nodes.get(directory.name)
            if node.alive:
                try:
                    self._gpus.take(node.name, gpus.devices(node.wanted))
                except gpus.LeaseError as error:
                    print(f"{node.name}: {error}", file=sys.stderr, flush=True)

    def _poll(self) -> None:
        """Do what a lost inotify event or signal would have triggered."""
        self._reap()
        self._take_commands()

    def _reap(self) -> None:
        self._nodes.reap()
        if self._fork_server:
            self._fork_server.reap()

    def _handlers(self) -> Mapping[type[Payload], Callable[[Item, Any], None]]:
        return {
            NodeApply: self._apply_node,
            NodeKill: self._kill_node,
            FaultAct: lambda item, _: self._faults.act(item.run, item.command, self._responder(item)),
            FaultHeal: lambda item, _: self._faults.heal(item.run, item.command, self._responder(item)),
        }

    def _rejection(self, item: Item) -> str:
        """Return why a command is rejected; empty if it is performed. Only commands that end a node name an incarnation."""
        command = item.command
        if command.kind not in self._handlers():
            return f"a host agent does not perform {command.f}"
        try:
            node = self._nodes.get(str(command.node or ""))
        except ValueError as error:
            return str(error)
        if command.kind is FaultAct and item.age_s > command.deadline_s:
            return f"the command is {item.age_s:.0f} s old, and its deadline is {command.deadline_s:g} s"
        present = node.label.get("incarnation")
        if command.kind in (NodeKill, FaultAct) and present and command.incarnation not in (None, present):
            return f"for incarnation {command.incarnation} of {node.name}; the newest is {present}"
        return ""

    def _apply_node(self, item: Item, order: NodeApply) -> None:
        """Start a node from the NodeSpec of the command, or, if that has only a name, from the node's earlier NodeSpec."""
        node = self._nodes.get(str(item.command.node))
        if order.hash is None and not node.label:
            reason = f"{node.name} has never run here: the command needs a NodeSpec"
            self._respond(item, "fail", CommandFailed(reason=reason))
            return
        wanted = node.wanted if order.hash is None else item.command.value
        node.ready_s = max(node.ready_s, item.command.deadline_s)
        if not node.alive or node.starting:
            if self._faults.is_injecting(node.name):
                self._faults.after_injections(node.name, lambda: self._handle(item))
                return
            try:
                self._gpus.take(node.name, gpus.devices(wanted))
            except gpus.LeaseError as error:
                self._respond(item, "fail", CommandFailed(reason=str(error)))
                return
            self._nodes.start(node, wanted, self._responder(item))
        elif node.label["spec_hash"] != wanted["hash"]:
            reason = f"{node.name} runs with spec {node.label['spec_hash']}; end it first"
            self._respond(item, "fail", CommandFailed(reason=reason))
        else:
            self._respond(item, "ok", NodeApplyDone(**node.identity))

    def _kill_node(self, item: Item, order: NodeKill) -> None:
        name = str(item.command.node)

        def ended(killed: list[int], left: int) -> None:
            if not left:
                self._gpus.release(name)
            reason = f"{left} processes still live after SIGKILL" if left else None
            done = NodeKillDone(killed=tuple(killed), left=left, reason=reason)
            self._respond(item, "fail" if left else "ok", done)

        self._nodes.end(self._nodes.get(name), ended)

    def _log_of(self, run: str) -> EventLog:
        return self._log

    def _origin(self, item: Item) -> Origin:
        return {"node": item.command.node, "run": None if item.run in ("", NO_RUN) else item.run}

    def _incarnation_of(self, item: Item) -> str | None:
        incarnation: str | None = self._nodes.get(str(item.command.node)).label.get("incarnation")
        return incarnation

    def _note_node(self, node: Any, payload: Payload) -> None:
        self._log.note(payload, node=node.name, incarnation=node.label.get("incarnation"))

    def _note_fault(self, lease: Lease, payload: Payload) -> None:
        incarnation = self._nodes.get(lease.node).label.get("incarnation")
        self._log.note(payload, node=lease.node, incarnation=incarnation, epoch=lease.epoch, run=lease.run or None)


def _signing_key(path: Path) -> bytes:
    """The keeper's key. It is drawn if there is none, or if an earlier keeper was killed while it wrote the key."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = plain_files.read_file(path) if path.exists() else b""
    if len(key) != KEY_BYTES:
        key = secrets.token_bytes(KEY_BYTES)
        with open(plain_files.create_file(path), "wb") as file:
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
    python: str = "",
) -> int:
    """Become the keeper, in a process of its own: take the lock, import what ranks need, write the label, serve.

    ``backend`` and ``engine``: see ``Keeper``; only a keeper that forks ranks imports torch. ``owner``: the bed's owner, for
    display. ``python``: the interpreter of the nodes as their specs name it; this process runs in it.
    """
    directory = workdir / label.KEEPER_DIR
    label.take_lock(directory)
    incarnation = secrets.token_hex(4)
    bed_tag = processes.bed_tag(bed, str(workdir))
    processes.set_own_tag(processes.node_tag(bed_tag, label.KEEPER_DIR, incarnation))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if backend == PROCESSES:
        warm_up.import_modules()
    pid = os.getpid()
    own = {
        "bed": bed,
        "incarnation": incarnation,
        "agent": archive,
        "pid": pid,
        "start": processes.start_time(pid),
        "boot": host_facts.boot_id(),
        "owner": owner,
        "owner_id": owner_id,
        "backend": backend,
        "engine": engine,
        "python": python,
        "oom_kills": cgroups.oom_kills(),
    }
    keeper = Keeper(workdir, bed, archive, backend, engine)
    plain_files.write_json(directory / label.KEEPER_LABEL, own)
    keeper.run(ready)
    return 0
