"""The reserve ranks of a bed of processes, and the processes of a node beside them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestrator.node.files import label
from orchestrator.node.oslayer import processes
from orchestrator.system import plain_files


def reserves(workdir: str | Path, *nodes: str) -> set[int]:
    """The pids of the reserve ranks of these nodes, which their agents fork while no rank runs."""
    return {pid for node in nodes for pid in _content(workdir, node).get("pids", ())}


def ready(workdir: str | Path, node: str, incarnation: str) -> set[int]:
    """The pids of its reserve ranks if all of them wait for an order."""
    content = _content(workdir, node)
    is_ready = content.get("incarnation") == incarnation and content["ready"] == content["count"]
    return set(content["pids"]) if is_ready else set()


def working(bed: Any, node: str) -> list[processes.Process]:
    """The processes of a node without its agent and its reserve ranks."""
    children = processes.descendants(bed.status(node).pid)
    return [process for process in children if process.pid not in reserves(bed.workdir, node)]


def _content(workdir: str | Path, node: str) -> dict[str, Any]:
    return plain_files.read_json(Path(workdir) / "nodes" / node / label.RESERVES)


def have_exited(pids: Iterable[int]) -> bool:
    """A killed process runs no more code, and has exited once it was on a CPU again."""
    listed = [process for pid in pids if (process := processes.find(pid))]
    return all(process.state in processes.EXITED for process in listed)
