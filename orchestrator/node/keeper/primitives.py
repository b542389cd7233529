"""The primitives of faults on nodes: power, pause, link, signal, limit, file. Each is applied, and each is observed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ...model.act import ENDING_SIGNALS, Primitive
from ..agent.gang import RANKS
from ..files import label
from ..oslayer import cgroups, processes
from ..oslayer.processes import Process

T = TypeVar("T")
Arguments = Mapping[str, Any]
#: Whether a state holds (None: not known yet), and the evidence.
Observed = tuple[bool | None, dict[str, Any]]

AGENT = "agent"
#: What a file that a fault moves out of the way is called meanwhile.
_SET_ASIDE = ".set-aside-by-a-fault"
_MIB = 1 << 20


class Unsupported(Exception):
    """A primitive that cannot be applied to this node."""


class Node(Protocol):
    """What primitives need to know of a node."""

    @property
    def name(self) -> str: ...

    @property
    def directory(self) -> Path: ...

    @property
    def pid(self) -> int:
        """Of its first process, as the host sees it; 0 where there was none."""

    def processes(self) -> list[Process]:
        """All that live, the agent included; listed anew each time."""

    def is_up(self) -> bool:
        """Is its agent ready?"""

    def power_on(self) -> None:
        """Start it unless it runs or is being started."""

    def power_off(self) -> dict[str, Any]:
        """End every process of it at once; what was done."""

    def pause(self, on: bool) -> dict[str, Any]:
        """Stop all of it, or let it go on; what was done."""

    def is_paused(self, on: bool) -> Observed:
        """Is all of it stopped (not ``on``: is no process of it stopped)?"""

    def limit(self, amounts: Mapping[str, int], on: bool) -> dict[str, Any]:
        """Limit all of it (``cpu_percent``, ``memory_mib``, ``pids``), or lift these limits; what was done."""

    def is_limited(self, amounts: Mapping[str, int], on: bool) -> Observed:
        """Do these limits hold for all of it (not ``on``: for no process of it)?"""

    def has_link(self) -> bool:
        """Has it a link of its own, that is no other node's?"""

    def link(self, on: bool) -> dict[str, Any]:
        """Its own link up, or down; what was done. Raises Unsupported where it has none."""

    def is_linked(self, on: bool) -> Observed:
        """Has it a link (not ``on``: has it none)?"""

    def agent(self) -> Process | None:
        """The living process of its agent."""

    def rank(self, number: int) -> Process | None:
        """The living process of a rank."""


def check(wanted: Iterable[Primitive], node: Node) -> None:
    """Raises Unsupported for what cannot be applied to this node, before anything is applied."""
    for primitive in wanted:
        _chosen(primitive, _APPLY)
        if primitive.kind == "link" and not node.has_link():
            raise Unsupported(f"there is no primitive link for {node.name}: it has no link of its own")
        if primitive.kind == "limit" and (unknown := sorted(_amounts(primitive.args).keys() - cgroups.CONTROLLERS)):
            raise Unsupported(f"limit: unknown {', '.join(unknown)}; it has {', '.join(cgroups.CONTROLLERS)}")
        if primitive.kind == "file":
            _path(primitive.args, node)


def apply(primitive: Primitive, node: Node) -> dict[str, Any]:
    """Apply it; what was done. Callers repeat it until the state is reached, so it is harmless to repeat."""
    return _chosen(primitive, _APPLY)(primitive.args, node)


def holds(primitive: Primitive, node: Node) -> Observed:
    """Do the processes and files themselves show the state that the primitive names?"""
    return _chosen(primitive, _HOLDS)(primitive.args, node)


def _chosen(
    primitive: Primitive, table: Mapping[str, Callable[[Arguments, Node], T]]
) -> Callable[[Arguments, Node], T]:
    if primitive.kind not in table:
        raise Unsupported(f"there is no primitive {primitive.kind} for nodes; there are {', '.join(sorted(table))}")
    return table[primitive.kind]


# --- power, pause, link, limit ------------------------------------------------------------------------------------------


def _power(args: Arguments, node: Node) -> dict[str, Any]:
    if args["state"] == "on":
        node.power_on()
        return {}
    return node.power_off()


def _power_holds(args: Arguments, node: Node) -> Observed:
    if args["state"] == "on":
        return node.is_up(), {"up": node.is_up()}
    left = [process.pid for process in node.processes()]
    return not left, {"left": left}


def _pause(args: Arguments, node: Node) -> dict[str, Any]:
    return node.pause(args["state"] == "on")


def _pause_holds(args: Arguments, node: Node) -> Observed:
    return node.is_paused(args["state"] == "on")


def _link(args: Arguments, node: Node) -> dict[str, Any]:
    return node.link(args["state"] == "up")


def _link_holds(args: Arguments, node: Node) -> Observed:
    return node.is_linked(args["state"] == "up")


def _limit(args: Arguments, node: Node) -> dict[str, Any]:
    return node.limit(_amounts(args), args["state"] == "on")


def _limit_holds(args: Arguments, node: Node) -> Observed:
    return node.is_limited(_amounts(args), args["state"] == "on")


def _amounts(args: Arguments) -> dict[str, int]:
    return {str(name): int(amount) for name, amount in args.items() if name != "state"}


# --- signal -------------------------------------------------------------------------------------------------------------


def _target(args: Arguments, node: Node) -> Process | None:
    """The rank, or the agent, that the signal is for."""
    return node.agent() if args.get("process") == AGENT else node.rank(int(args["rank"]))


def _signal(args: Arguments, node: Node) -> dict[str, Any]:
    target = _target(args, node)
    number = signal.Signals[f"SIG{args['signal']}"]
    return {"signalled": processes.send([target] if target else [], number)}


def _signal_holds(args: Arguments, node: Node) -> Observed:
    target = _target(args, node)
    state = target.state if target else "gone"
    reached = {"STOP": state == processes.STOPPED, "CONT": state not in (processes.STOPPED, "gone")}
    named = {name: args[name] for name in ("rank", "process") if name in args}
    is_ended = args["signal"] in ENDING_SIGNALS and target is None
    return reached.get(args["signal"], is_ended), {**named, "state": state}


# --- file ---------------------------------------------------------------------------------------------------------------


def _path(args: Arguments, node: Node) -> Path:
    """The file's path. Raises Unsupported for what is not below the node's directory, links included."""
    path = node.directory / str(args["path"])
    if (
        not path.parent.resolve().is_relative_to(node.directory.resolve())
        or path.name in ("", "..")
        or path.is_symlink()
    ):
        raise Unsupported(f"file: {args['path']} is not in the directory of {node.name}")
    return path


def _file(args: Arguments, node: Node) -> dict[str, Any]:
    """With ``text`` or ``size_mib`` the file is the fault's own; else it is the node's, and is moved out of the way."""
    path = _path(args, node)
    aside = path.with_name(path.name + _SET_ASIDE)
    is_own = "text" in args or "size_mib" in args
    if args["state"] == "present":
        if is_own:
            _create(path, args)
        elif aside.exists():
            aside.replace(path)
    elif is_own:
        path.unlink(missing_ok=True)
    elif path.exists():
        path.replace(aside)
    return {"path": str(path)}


def _create(path: Path, args: Arguments) -> None:
    """Never over a file that exists."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    try:
        os.write(fd, str(args.get("text", "")).encode())
        if size_mib := int(args.get("size_mib", 0)):
            os.posix_fallocate(fd, 0, size_mib * _MIB)
    finally:
        os.close(fd)


def _file_holds(args: Arguments, node: Node) -> Observed:
    path = _path(args, node)
    size = path.stat().st_size if path.exists() else None
    return (size is not None) is (args["state"] == "present"), {"path": str(path), "size_bytes": size}


_APPLY: Mapping[str, Callable[[Arguments, Node], dict[str, Any]]] = {
    "power": _power,
    "pause": _pause,
    "link": _link,
    "limit": _limit,
    "signal": _signal,
    "file": _file,
}
_HOLDS: Mapping[str, Callable[[Arguments, Node], Observed]] = {
    "power": _power_holds,
    "pause": _pause_holds,
    "link": _link_holds,
    "limit": _limit_holds,
    "signal": _signal_holds,
    "file": _file_holds,
}


# --- what nodes of processes and of containers share ----------------------------------------------------------------------


def stop(present: list[Process], on: bool) -> dict[str, Any]:
    """SIGSTOP to each of these processes, or SIGCONT."""
    stopped = [process for process in present if process.state == processes.STOPPED]
    if not on:
        return {"signalled": processes.send(stopped, signal.SIGCONT)}
    processes.send(_starting(present, stopped), signal.SIGCONT)
    return {"signalled": processes.send([one for one in present if one not in stopped], signal.SIGSTOP)}


def _starting(present: list[Process], stopped: list[Process]) -> list[Process]:
    """Children that were stopped between vfork and exec: their parents cannot stop before they have gone on."""
    waiting = {process.pid for process in present if process.state == processes.WAITING}
    return [process for process in stopped if process.ppid in waiting]


def stopped(present: list[Process], on: bool) -> tuple[bool, dict[str, Any]]:
    """Are all of these processes stopped (not ``on``: none of them), with their states."""
    states = {str(process.pid): process.state for process in present}
    is_stopped = [state == processes.STOPPED for state in states.values()]
    return bool(is_stopped) and all(is_stopped) if on else not any(is_stopped), {"states": states}


def rank_process(directory: Path, number: int) -> Process | None:
    """The living process of a rank, by what its agent wrote when it forked it."""
    pid, start = rank_identity(directory, number)
    process = processes.find(pid) if pid else None
    return process if process and process.start == start and process.state not in processes.GONE else None


def rank_identity(directory: Path, number: int) -> tuple[int, int]:
    """(pid, start time) of a rank, as its agent wrote them when it forked it; (0, 0) where it never did."""
    pid, start = label.read(directory / RANKS).get("ranks", {}).get(str(number), (0, 0))
    return int(pid), int(start)
