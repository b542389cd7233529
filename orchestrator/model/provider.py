"""The protocol of providers: observe, perform, poll, fetch. The contract of each method is tests/contract/provider_contract.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from .bed import BedSpec, BedStatus, HostSpec, Machine, NodeStatus
from .event import Command, Event
from .frozen import dataclass

Cursors = Mapping[str, int]

#: So many hosts are contacted, or files of so many nodes are fetched, at once.
AT_ONCE = 64
#: How long the files of ``AT_ONCE`` nodes may take, in seconds; a node that takes longer is recorded as missing.
FETCH_S = 45.0
#: The same until the event of the gather: the files are redacted and their sums computed as well.
GATHER_S = 60.0


def count_waves(nodes: int) -> int:
    """Return how many times ``AT_ONCE`` nodes are fetched from, one after the other; 1 at least."""
    return max(1, -(-nodes // AT_ONCE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The result of a fetch: bytes written, the files that the limit cut, and why bytes are missing (``reason``)."""

    path: str
    size: int
    capped: tuple[str, ...] = ()
    reason: str = ""


class Prober(Protocol):
    """Probes hosts, and nodes with a network of their own: the operations of ``node/preflight_checks.py``.

    Several threads may use it at once. Raises OSError, ValueError or RuntimeError.
    """

    def probe_host(self, host: str, op: str, deadline_s: float, **args: Any) -> Any: ...

    def probe_node(self, node: str, op: str, deadline_s: float, **args: Any) -> Any: ...


class Provider(Protocol):
    """One kind of bed. ``run`` binds the provider to a run: its commands are named by it and its events are polled."""

    def warm_up(self, bed: BedSpec) -> None:
        """The bed will soon be used: start what takes long, e.g. connections. Returns at once, raises nothing."""

    def capabilities(self, host: str) -> frozenset[str]: ...

    def machines(self, bed: BedSpec) -> Mapping[str, Machine]:
        """Host -> what it is outside of the bed, of hosts that have another name there: a Slurm node. Raises InfrastructureError."""

    def observe(self, bed: BedSpec, *, memory: bool = True) -> BedStatus:
        """The status of a bed and its nodes. ``memory``: measure it too, which takes milliseconds per process."""

    def observe_node(self, bed: BedSpec, node: str) -> NodeStatus:
        """The status of one node, within a second; ``unreachable`` if its host does not respond. Raises nothing."""

    def prober(self, bed: BedSpec) -> Prober | None:
        """Probes the bed's hosts before a trial; None if all nodes are processes of this machine."""

    def prepare(self, bed: BedSpec) -> None:
        """Prepare all that nodes need (directories, archive, keeper). Idempotent."""

    def retire(self, bed: BedSpec) -> tuple[int, ...]:
        """End every process of the bed and remove its directories; returns the pids that were ended."""

    def retire_hosts(self, bed: BedSpec, hosts: Sequence[HostSpec]) -> tuple[int, ...]:
        """The same on some hosts, which left the bed; returns the pids that were ended."""

    def record_acts(self, bed: BedSpec, lines: Mapping[str, str]) -> None:
        """Append the line of each remote host to the record of acts there, as far as it can be reached."""

    def sign(self, bed: BedSpec, digest: str) -> Mapping[str, str]:
        """Sign the digest of a bundle's manifest with the key of each keeper that can be reached: by the keeper's directory."""

    def open(self, bed: BedSpec, run: str) -> Cursors:
        """Bind to a run; the cursors to poll its events from."""

    def close(self) -> None:
        """Release what open() acquired; it may be opened again."""

    def put(self, files: Mapping[str, bytes]) -> str:
        """Store a payload, addressed by its content, where every node can read it; the path on the nodes."""

    def perform(self, command: Command) -> None:
        """Send a command; returns at once. The outcome is an event with ``command.key``.

        Raises KeeperGoneError, as ``require_performer``, and OSError without a connection to its host.
        """

    def require_performer(self, command: Command) -> None:
        """Raises KeeperGoneError if it is known that nothing is left that could perform the command, OSError if its host refused it.

        Called while a command waits.
        """

    def poll(self, cursors: Cursors, timeout_s: float) -> tuple[Sequence[Event], Cursors]:
        """Events since ``cursors``, waiting up to ``timeout_s`` for the first. Delivers at least once."""

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        """Return per node: (incarnation, count of its heart-beat); a count that stays the same is silence."""

    def fetch(self, node: str, path: str, to: Path, limit: int) -> Fetched: ...

    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]:
        """Fetch several (path, target) of a node in order, ``limit`` bytes in all, with one request to its host."""

    def forget(self, bed: BedSpec, run: str, *, is_gathered: bool = False) -> None:
        """Remove the files of a run from the nodes, once its bundle is sealed. ``is_gathered``: only those that it has as well."""

    def leftovers(self, bed: BedSpec) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """(host, ``{kind, name, size_bytes, age_s}``) of the leftovers of runs on the bed's hosts. Raises InfrastructureError."""

    def remove_leftovers(self, bed: BedSpec, entries: Sequence[tuple[str, str, str]]) -> None:
        """Remove (host, kind, name) of what ``leftovers`` lists. Raises InfrastructureError."""
