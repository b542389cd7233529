"""The primitives of faults on nodes: power, pause, link, signal, limit, file, inside. Each is applied, and each is observed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ...model.act import ENDING_SIGNALS, Primitive
from ...system import plain_files
from ..files import inbox, label
from ..oslayer import cgroups, launched_workers, processes
from ..oslayer.processes import Process
from .node_protocol import Node, Observed, Unsupported

T = TypeVar("T")
Arguments = Mapping[str, Any]

AGENT = "agent"
#: The suffix of a file while a fault has moved it.
_SET_ASIDE = ".set-aside-by-a-fault"
_MIB = 1 << 20


def check_supported(primitives: Iterable[Primitive], node: Node) -> None:
    """Raises Unsupported for a primitive that cannot be applied to this node, before any is applied."""
    for primitive in primitives:
        _choose(primitive, _APPLY)
        if primitive.kind == "link" and not node.has_link():
            raise Unsupported(f"link of {node.name}, which has no link of its own")
        if primitive.kind == "limit" and (unknown := sorted(_amounts(primitive.args).keys() - cgroups.CONTROLLERS)):
            raise Unsupported(f"limit: unknown {', '.join(unknown)}; known are {', '.join(cgroups.CONTROLLERS)}")
        if primitive.kind == "file":
            _path(primitive.args, node)


def perform(primitive: Primitive, node: Node) -> dict[str, Any]:
    """Perform it; what was done. Idempotent: callers repeat it until the state is reached."""
    return _choose(primitive, _APPLY)(primitive.args, node)


def why_ineffective(primitive: Primitive, evidence: Arguments) -> str:
    """Return why a primitive that ends processes has ended none: the evidence names no process. Empty for any other primitive."""
    is_off = primitive.kind == "power" and primitive.args["state"] == "off"
    is_ending = is_off or (primitive.kind == "signal" and primitive.args["signal"] in ENDING_SIGNALS)
    reached = evidence.get("signalled", evidence.get("killed"))
    return f"{primitive.kind}: no process was left to end" if is_ending and reached == [] else ""


def observe(primitive: Primitive, node: Node) -> Observed:
    """Do the processes and files show the state that the primitive names?"""
    return _choose(primitive, _OBSERVE)(primitive.args, node)


def _choose(
    primitive: Primitive, table: Mapping[str, Callable[[Arguments, Node], T]]
) -> Callable[[Arguments, Node], T]:
    if primitive.kind not in table:
        raise Unsupported(f"primitive {primitive.kind} of a node; supported are {', '.join(sorted(table))}")
    return table[primitive.kind]


# --- power, pause, link, limit ------------------------------------------------------------------------------------------


def _power(args: Arguments, node: Node) -> dict[str, Any]:
    if args["state"] == "on":
        node.power_on()
        return {}
    return node.power_off()


def _observe_power(args: Arguments, node: Node) -> Observed:
    if args["state"] == "on":
        return node.is_up(), {"up": node.is_up()}
    left = [process.pid for process in node.processes()]
    return not left, {"left": left}


def _link(args: Arguments, node: Node) -> dict[str, Any]:
    if args["state"] in ("slow", "full"):
        return node.slow_link(_slowdown(args))
    return node.link(args["state"] == "up")


def _observe_link(args: Arguments, node: Node) -> Observed:
    if args["state"] in ("slow", "full"):
        return node.is_link_slow(_slowdown(args))
    return node.is_linked(args["state"] == "up")


def _slowdown(args: Arguments) -> Arguments | None:
    """None: the link has its own rate."""
    return args if args["state"] == "slow" else None


def _amounts(args: Arguments) -> dict[str, int]:
    return {str(name): int(amount) for name, amount in args.items() if name != "state"}


# --- signal -------------------------------------------------------------------------------------------------------------


def find_targets(primitive: Primitive, node: Node) -> list[Process]:
    return _targets(primitive.args, node)


def _targets(args: Arguments, node: Node) -> list[Process]:
    """The living processes that the signal is for: the agent, one rank by its number or by its place on the node, or all.

    Under a job's own launcher the ranks are its workers; all of them: with the launcher, as where a cluster ends a job.
    """
    if args.get("process") == AGENT:
        targets = [node.agent()]
    elif is_launched(node.directory) and "local_rank" in args:
        workers, place = _workers(node), args["local_rank"]
        targets = [*workers.values(), *_launchers(node)] if place == "all" else [workers.get(int(place))]
    elif "rank" in args:
        targets = [node.rank(int(args["rank"]))]
    else:
        targets = [node.rank(number) for number in _ranks_at(args, node)]
    return [process for process in targets if process]


def _ranks_at(args: Arguments, node: Node) -> list[int]:
    """The numbers of the ranks at ``local_rank`` of a node; those of all its ranks for "all"."""
    numbers = rank_numbers(node.directory)
    place = args["local_rank"]
    return numbers if place == "all" else numbers[int(place) : int(place) + 1]


def _launchers(node: Node) -> list[Process]:
    return [process for number in rank_numbers(node.directory) if (process := node.rank(number))]


def _workers(node: Node) -> dict[int, Process]:
    """Local rank -> worker of the job's own launcher."""
    out = rank_directory(node.directory)
    return {
        place: worker.process
        for launcher in _launchers(node)
        for place, worker in launched_workers.find(out, launcher.pid).items()
    }


def _signal(args: Arguments, node: Node) -> dict[str, Any]:
    number = signal.Signals[f"SIG{args['signal']}"]
    return {"signalled": node.send_signal(_targets(args, node), number)}


def _observe_signal(args: Arguments, node: Node) -> Observed:
    """A rank that has ended is not stopped any more: the next gang has its own.

    Nor is one that is stopped only together with its whole node: it continues with the node.
    """
    targets = _targets(args, node)
    states = [process.state for process in targets]
    stopped = [process for process in targets if node.is_stopped(process)]
    named = {name: args[name] for name in ("rank", "process", "local_rank") if name in args}
    is_agent = args.get("process") == AGENT
    is_continued = not stopped and (bool(states) or not is_agent)
    reached = {"STOP": bool(stopped) and stopped == targets, "CONT": is_continued}
    is_ended = args["signal"] in ENDING_SIGNALS and not states
    return reached.get(args["signal"], is_ended), {**named, "state": ", ".join(states) or "gone"}


# --- inside -------------------------------------------------------------------------------------------------------------


def _inside(args: Arguments, node: Node) -> dict[str, Any]:
    """Order the watcher inside of a rank to act. Raises OSError."""
    out, numbers = rank_directory(node.directory), _ranks_with_orders(args, node)
    if not numbers or (is_launched(node.directory) and int(args["local_rank"]) not in _workers(node)):
        raise Unsupported(f"inside: {node.name} has no rank at place {args['local_rank']}")
    inbox.append_order(out, numbers[0], {"act": dict(args)})
    return {"ordered": args["do"], "rank": numbers[0]}


def _observe_inside(args: Arguments, node: Node) -> Observed:
    """Has the rank answered that it has done it? A rank that cannot do it names the problem, and one that has ended never will."""
    numbers, out = _ranks_with_orders(args, node), rank_directory(node.directory)
    if not numbers:
        return False, {"state": "gone"}
    is_gone = node.rank(numbers[0]) is None
    answers = [item for item in inbox.read_answers(out, numbers[0]) if item.get("act") == dict(args)]
    evidence = {name: value for item in answers for name, value in item.items() if name != "act"}
    if is_gone and not answers:
        evidence = {
            "problem": f"rank {numbers[0]} ended first; it does so in a step of an optimizer of torch, or in a save"
        }
    return bool(answers) and "problem" not in evidence, {"rank": numbers[0], **evidence}


def _ranks_with_orders(args: Arguments, node: Node) -> list[int]:
    """The rank whose files have the orders and answers; the workers of a launcher share those of the launcher."""
    return rank_numbers(node.directory) if is_launched(node.directory) else _ranks_at(args, node)


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
    """Create or move a file. One with ``text`` or ``size_mib`` belongs to the fault; any other to the node: it is moved and restored."""
    path = _path(args, node)
    moved = path.with_name(path.name + _SET_ASIDE)
    is_own = "text" in args or "size_mib" in args
    if args["state"] == "present":
        if is_own:
            _create(path, args)
        elif moved.exists():
            moved.replace(path)
    elif is_own:
        path.unlink(missing_ok=True)
    elif path.exists():
        path.replace(moved)
    return {"path": str(path)}


def _create(path: Path, args: Arguments) -> None:
    """Create a file unless it exists."""
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


def _observe_file(args: Arguments, node: Node) -> Observed:
    path = _path(args, node)
    size = path.stat().st_size if path.exists() else None
    return (size is not None) is (args["state"] == "present"), {"path": str(path), "size_bytes": size}


_APPLY: Mapping[str, Callable[[Arguments, Node], dict[str, Any]]] = {
    "power": _power,
    "pause": lambda args, node: node.pause(args["state"] == "on"),
    "link": _link,
    "limit": lambda args, node: node.limit(_amounts(args), args["state"] == "on"),
    "signal": _signal,
    "file": _file,
    "inside": _inside,
}
_OBSERVE: Mapping[str, Callable[[Arguments, Node], Observed]] = {
    "power": _observe_power,
    "pause": lambda args, node: node.is_paused(args["state"] == "on"),
    "link": _observe_link,
    "limit": lambda args, node: node.is_limited(_amounts(args), args["state"] == "on"),
    "signal": _observe_signal,
    "file": _observe_file,
    "inside": _observe_inside,
}


# --- shared by process nodes and container nodes ----------------------------------------------------------------------


def rank_process(directory: Path, number: int) -> Process | None:
    """The living process of a rank, from the record of its agent."""
    pid, start = rank_identity(directory, number)
    process = processes.find(pid) if pid else None
    return process if process and process.start == start and process.state not in processes.EXITED else None


def rank_numbers(directory: Path) -> list[int]:
    """The ranks that the agent started last, in the order of their places on the node."""
    return sorted(map(int, plain_files.read_json(directory / label.RANKS).get("ranks", {})))


def is_launched(directory: Path) -> bool:
    """Does the job's own launcher start the ranks?"""
    return bool(plain_files.read_json(directory / label.RANKS).get("is_launched"))


def rank_directory(directory: Path) -> Path:
    """Return where the ranks that the agent started last write their files."""
    return directory / str(plain_files.read_json(directory / label.RANKS).get("out", ""))


def rank_identity(directory: Path, number: int) -> tuple[int, int]:
    """(pid, start time) of a rank from the record of its agent; (0, 0) if there is none."""
    pid, start = plain_files.read_json(directory / label.RANKS).get("ranks", {}).get(str(number), (0, 0))
    return int(pid), int(start)
