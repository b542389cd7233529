"""What a provider offers to the rest: observe, perform, poll, fetch. Effects live in ``providers/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .bed import BedSpec, BedStatus, HostSpec, NodeStatus
from .event import Command, Event

Cursors = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What came of a fetch: bytes written, whether the cap cut it, and why not all of it came (``reason``)."""

    path: str
    size: int
    capped: bool = False
    reason: str = ""


class Prober(Protocol):
    """How hosts, and nodes with a network of their own, are asked: the operations of ``agent/checks.py``.

    Used by several threads at once. Raises OSError, ValueError or RuntimeError with a sentence that says what is wrong.
    """

    def probe_host(self, host: str, op: str, deadline_s: float, **args: Any) -> Any: ...

    def probe_node(self, node: str, op: str, deadline_s: float, **args: Any) -> Any: ...


class Provider(Protocol):
    """One kind of bed. ``run`` binds the provider to a run: its commands are named by it and its events are polled."""

    def warm_up(self, bed: BedSpec) -> None:
        """It will soon be asked for: begin with what takes long to begin. Returns at once, raises nothing."""

    def capabilities(self, host: str) -> frozenset[str]: ...

    def observe(self, bed: BedSpec, *, memory: bool = True) -> BedStatus:
        """What exists of a bed. ``memory``: how much its nodes have is wanted too, which takes milliseconds for each process."""

    def observe_node(self, bed: BedSpec, node: str) -> NodeStatus:
        """What one node is seen to be, within a second; ``unreachable`` where its host does not answer. Raises nothing."""

    def prober(self, bed: BedSpec) -> Prober | None:
        """How its hosts are asked before a trial; None where all there is to ask is this machine."""

    def prepare(self, bed: BedSpec) -> None:
        """Make everything below the nodes ready (directories, archive, keeper). Idempotent."""

    def retire(self, bed: BedSpec) -> tuple[int, ...]:
        """End every process of the bed and remove its directories; returns the pids that were ended."""

    def retire_hosts(self, bed: BedSpec, hosts: Sequence[HostSpec]) -> tuple[int, ...]:
        """The same on some hosts alone, which left the bed; returns the pids that were ended."""

    def open(self, bed: BedSpec, run: str) -> Cursors:
        """Bind to a run; the cursors from which its events are to be polled."""

    def close(self) -> None:
        """Let go of what open() took; it may be opened again."""

    def put(self, files: Mapping[str, bytes]) -> str:
        """Place a payload, addressed by its content, where every node can read it; the path on the nodes."""

    def perform(self, command: Command) -> None:
        """Send a command; returns at once. The outcome is an event with ``command.key``."""

    def poll(self, cursors: Cursors, timeout_s: float) -> tuple[Sequence[Event], Cursors]:
        """Events since ``cursors``, waiting up to ``timeout_s`` for the first one. Delivers at least once."""

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        """Per node: (incarnation, count of its heart-beat); a count that stays the same is silence."""

    def fetch(self, node: str, path: str, to: Path, limit: int) -> Fetched: ...

    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]:
        """Several (path, where to) of a node, one after the other, ``limit`` bytes in all; its host is asked once."""

    def forget(self, bed: BedSpec, run: str) -> None:
        """Remove what a run has left on the nodes: its bundle is sealed and nobody will ask again."""

    def leftovers(self, bed: BedSpec) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """(host, ``{kind, name, size_bytes, age_s}``) of what runs have left on the bed's hosts. Raises InfrastructureError."""

    def remove_leftovers(self, bed: BedSpec, entries: Sequence[tuple[str, str, str]]) -> None:
        """Remove (host, kind, name) of what ``leftovers`` lists. Raises InfrastructureError."""
