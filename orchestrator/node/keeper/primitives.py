"""The primitives of faults on nodes: power, pause, link, signal. Each is done, and each is looked at."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ...model.act import Primitive
from ..agent.gang import RANKS
from ..files import label
from ..oslayer import processes
from ..oslayer.processes import Process

T = TypeVar("T")
Arguments = Mapping[str, Any]

#: After one of these a process is expected to be gone.
ENDING = ("KILL", "TERM", "INT", "QUIT", "ABRT", "SEGV")


class Unsupported(Exception):
    """A primitive that this provider does not have."""


class Node(Protocol):
    """What primitives need to know of a node."""

    @property
    def name(self) -> str: ...

    def processes(self) -> list[Process]:
        """All that live, the agent included; looked up anew each time."""

    def is_up(self) -> bool:
        """Is its agent ready?"""

    def power_on(self) -> None:
        """Start it unless it runs or is being started."""

    def power_off(self) -> dict[str, Any]:
        """End every process of it at once; what was done."""

    def pause(self, on: bool) -> dict[str, Any]:
        """Stop all of it, or let it go on; what was done."""

    def is_paused(self, on: bool) -> tuple[bool | None, dict[str, Any]]:
        """Is all of it stopped (not ``on``: does none of it stand still; None: not known yet), with the evidence."""

    def has_link(self) -> bool:
        """Has it a link of its own, that is no other node's?"""

    def link(self, on: bool) -> dict[str, Any]:
        """Its own link up, or down; what was done. Raises Unsupported where it has none."""

    def is_linked(self, on: bool) -> tuple[bool, dict[str, Any]]:
        """Has it a link (not ``on``: has it none), with what was seen."""

    def rank(self, number: int) -> Process | None: ...


def check(wanted: Iterable[Primitive], node: Node) -> None:
    """Raises Unsupported for a primitive that is not from here, or not for this node, before anything is done."""
    for one in wanted:
        _chosen(one, _APPLY)
        if one.kind == "link" and not node.has_link():
            raise Unsupported(f"there is no primitive link for {node.name}: it has no link of its own")


def apply(primitive: Primitive, node: Node) -> dict[str, Any]:
    """Do it; what was done. May be called again while the state is not reached, so it must be harmless to repeat."""
    return _chosen(primitive, _APPLY)(primitive.args, node)


def holds(primitive: Primitive, node: Node) -> tuple[bool | None, dict[str, Any]]:
    """Is the state that the primitive names what the processes themselves show (None: not known yet)? With the evidence."""
    return _chosen(primitive, _HOLDS)(primitive.args, node)


def _power(args: Arguments, node: Node) -> dict[str, Any]:
    if args["state"] == "on":
        node.power_on()
        return {}
    return node.power_off()


def _pause(args: Arguments, node: Node) -> dict[str, Any]:
    return node.pause(args["state"] == "on")


def _link(args: Arguments, node: Node) -> dict[str, Any]:
    return node.link(args["state"] == "up")


def stop(present: list[Process], on: bool) -> dict[str, Any]:
    """SIGSTOP to each of these processes, or SIGCONT."""
    stopped = [one for one in present if one.state == processes.STOPPED]
    if not on:
        return {"signalled": processes.send(stopped, signal.SIGCONT)}
    processes.send(_starting(present, stopped), signal.SIGCONT)
    return {"signalled": processes.send([one for one in present if one not in stopped], signal.SIGSTOP)}


def _starting(present: list[Process], stopped: list[Process]) -> list[Process]:
    """Children that were stopped between vfork and exec: their parents cannot stop before they have gone on."""
    waiting = {one.pid for one in present if one.state == processes.WAITING}
    return [one for one in stopped if one.ppid in waiting]


def _signal(args: Arguments, node: Node) -> dict[str, Any]:
    target = node.rank(int(args["rank"]))
    number = signal.Signals[f"SIG{args['signal']}"]
    return {"signalled": processes.send([target] if target else [], number)}


def _power_holds(args: Arguments, node: Node) -> tuple[bool, dict[str, Any]]:
    if args["state"] == "on":
        return node.is_up(), {"up": node.is_up()}
    left = [one.pid for one in node.processes()]
    return not left, {"left": left}


def _pause_holds(args: Arguments, node: Node) -> tuple[bool | None, dict[str, Any]]:
    return node.is_paused(args["state"] == "on")


def _link_holds(args: Arguments, node: Node) -> tuple[bool, dict[str, Any]]:
    return node.is_linked(args["state"] == "up")


def stopped(present: list[Process], on: bool) -> tuple[bool, dict[str, Any]]:
    """Do all of these processes stand still (not ``on``: none of them), with their states."""
    states = {str(one.pid): one.state for one in present}
    still = [state == processes.STOPPED for state in states.values()]
    return bool(still) and all(still) if on else not any(still), {"states": states}


def _signal_holds(args: Arguments, node: Node) -> tuple[bool, dict[str, Any]]:
    found = node.rank(int(args["rank"]))
    state = found.state if found else "gone"
    reached = {"STOP": state == processes.STOPPED, "CONT": state not in (processes.STOPPED, "gone")}
    return reached.get(args["signal"], args["signal"] in ENDING and found is None), {
        "rank": args["rank"],
        "state": state,
    }


def _chosen(
    primitive: Primitive, table: Mapping[str, Callable[[Arguments, Node], T]]
) -> Callable[[Arguments, Node], T]:
    if primitive.kind not in table:
        raise Unsupported(f"there is no primitive {primitive.kind} here; it has {', '.join(sorted(table))}")
    return table[primitive.kind]


_APPLY: Mapping[str, Callable[[Arguments, Node], dict[str, Any]]] = {
    "power": _power,
    "pause": _pause,
    "link": _link,
    "signal": _signal,
}
_HOLDS: Mapping[str, Callable[[Arguments, Node], tuple[bool | None, dict[str, Any]]]] = {
    "power": _power_holds,
    "pause": _pause_holds,
    "link": _link_holds,
    "signal": _signal_holds,
}


def rank_process(directory: Path, number: int) -> Process | None:
    """The living process of a rank, by what its agent wrote when it forked it."""
    pid, start = rank_identity(directory, number)
    found = processes.find(pid) if pid else None
    return found if found and found.start == start and found.state not in processes.GONE else None


def rank_identity(directory: Path, number: int) -> tuple[int, int]:
    """(pid, start time) of a rank, as its agent wrote them when it forked it; (0, 0) where it never did."""
    pid, start = label.read(directory / RANKS).get("ranks", {}).get(str(number), (0, 0))
    return int(pid), int(start)
