"""Nodes as detached process groups on this machine: no root, no Docker; a keeper forks warm agents."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...model.bed import BedSpec, BedStatus, HostSpec, NodeStatus
from ...model.errors import InfrastructureError, KeeperGoneError
from ...model.event import Command
from ...model.events import KEEPER_COMMANDS
from ...model.provider import Cursors, Fetched, Prober
from ...node.files import inbox, label
from ...node.hostlink import bed_files
from ...node.keeper import keeper_start, lease_records, process_status
from ...node.keeper import process_status as keeper_status
from ...system import plain_files
from .. import archive, node_files
from ..bed_commands import BED
from ..event_reader import BoundProvider


class ProcessProvider(BoundProvider):
    """See model.provider.Provider. ``python``: the interpreter of nodes whose spec names none; it has torch."""

    def __init__(self, state: Path, python: str = sys.executable) -> None:
        super().__init__()
        self._state = state
        self._python = python

    def warm_up(self, bed: BedSpec) -> None:
        """Nothing to do: this machine needs no connection."""

    def observe(self, bed: BedSpec, *, memory: bool = True) -> BedStatus:
        """Memory is not measured while a run is open: it takes the kernel milliseconds per process."""
        return bed_status(bed, memory=memory and self._run == BED)

    def observe_node(self, bed: BedSpec, node: str) -> NodeStatus:
        return self.observe(bed).node(node)

    def prober(self, bed: BedSpec) -> Prober | None:
        """Only nodes with a network of their own are probed."""
        if not bed.fabric:
            return None
        from .. import sites

        return sites.SiteProber(bed, lambda host: sites.LocalSite(bed, HostSpec(name=host)))

    def prepare(self, bed: BedSpec) -> None:
        """Create directories and archive, and start a keeper of this archive. Raises InfrastructureError if it does not start."""
        workdir = Path(bed.workdir)
        bed_files.prepare_directories(bed.workdir, [node.name for node in bed.all_nodes], bed.shared_dir)
        if bed.fabric:
            from . import fabric_checks  # with 5 modules that other beds do not load

            fabric_checks.write_hosts(bed)
        path, digest = archive.write(workdir / "agent")
        named = bed.nodes[0].python
        try:
            keeper_start.ensure_keeper(
                workdir, bed.name, path, digest, named or self._python, env=keeper_start.HUGE_PAGES, named=named
            )
        except RuntimeError as error:
            first, *rest = str(error).splitlines()
            raise InfrastructureError(f"bed {bed.name}: {first}", *rest) from None

    def retire(self, bed: BedSpec) -> tuple[int, ...]:
        """End the keeper first, so that it restarts nothing; then all other processes, until none is left."""
        try:
            ended = keeper_status.end_bed(Path(bed.workdir), bed.name)
        except RuntimeError as error:
            raise InfrastructureError(f"bed {bed.name}: {error}", hint="ps shows what they wait for") from None
        self.close()
        bed_files.remove_bed_files(bed.workdir)
        return tuple(ended)

    def retire_hosts(self, bed: BedSpec, hosts: Sequence[HostSpec]) -> tuple[int, ...]:
        """Nothing to do: all nodes are on this machine."""
        return ()

    def record_acts(self, bed: BedSpec, lines: Mapping[str, str]) -> None:
        """Nothing to do: the record is on this machine."""

    def sign(self, bed: BedSpec, digest: str) -> Mapping[str, str]:
        with suppress(OSError):
            return {label.KEEPER_DIR: bed_files.sign_manifest(bed.workdir, digest)}
        return {}

    def open(self, bed: BedSpec, run: str) -> Cursors:
        return self._bind(bed, run, [label.KEEPER_DIR])

    def put(self, content: Mapping[str, bytes]) -> str:
        return str(node_files.put_payload(self._workdir / "payloads", content))

    def perform(self, command: Command) -> None:
        self.require_performer(command)
        directory = self._workdir / ("keeper" if command.kind in KEEPER_COMMANDS else f"nodes/{command.node}")
        inbox.post_command(directory, self._run, command)

    def require_performer(self, command: Command) -> None:
        if command.kind in KEEPER_COMMANDS and not label.lock_holder(self._workdir / "keeper"):
            raise KeeperGoneError(keeper_start.describe_loss(self._workdir / "keeper"))

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        nodes = self._bed.all_nodes if self._bed else ()
        beats = {node.name: label.read_heartbeat(self._workdir / "nodes" / node.name / "heartbeat") for node in nodes}
        return {name: beat for name, beat in beats.items() if beat}

    def fetch(self, node: str, path: str, to: Path, limit: int) -> Fetched:
        """A file or a tree of the node's directory (relative to it), or of the bed's shared directory (absolute)."""
        roots = [self._workdir / "nodes" / node]
        if self._bed:
            roots.append(Path(self._bed.shared_dir))
        return node_files.fetch(roots, path, to, limit)

    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]:
        return node_files.fetch_each(self.fetch, node, wanted, limit)

    def forget(self, bed: BedSpec, run: str, *, is_gathered: bool = False) -> None:
        """Remove node files, checkpoints and outcomes of the run."""
        bed_files.remove_run(bed.workdir, bed.shared_dir, run, is_gathered)

    def leftovers(self, bed: BedSpec) -> Sequence[tuple[str, Mapping[str, Any]]]:
        return [("", entry) for entry in bed_files.list_prunable(bed.workdir, bed.shared_dir)]

    def remove_leftovers(self, bed: BedSpec, entries: Sequence[tuple[str, str, str]]) -> None:
        bed_files.remove_prunable(bed.workdir, bed.shared_dir, [(kind, name) for _, kind, name in entries])

    @property
    def _workdir(self) -> Path:
        return Path(self._bound.workdir)

    def close(self) -> None:
        self._unbind()


# --- the status of a bed of local processes, from labels, locks and /proc alone ---------------------------------------


def bed_status(bed: BedSpec, *, memory: bool = True) -> BedStatus:
    """The bed as it is now. ``memory``: measure it as well, which takes the kernel milliseconds per process."""
    workdir = Path(bed.workdir)
    keeper = label.live_label(workdir / label.KEEPER_DIR, label.KEEPER_LABEL)
    wanted = [node.name for node in bed.nodes]
    observed = {row["name"]: NodeStatus(**row) for row in process_status.list_nodes(workdir, bed.name, memory=memory)}
    names = dict.fromkeys([*wanted, *observed])
    statuses = [observed.get(name) or NodeStatus(name=name, state="absent") for name in names]
    return BedStatus(
        name=bed.name,
        nodes=tuple(status for status in statuses if _is_listed(status, wanted)),
        keeper_pid=int(keeper.get("pid", 0)),
        keeper_hash=str(keeper.get("agent", "")),
        keeper_python=str(keeper.get("python", "")),
        keeper_loss=keeper_start.explain_loss(workdir / label.KEEPER_DIR),
        leases=lease_records.describe_leases(workdir / label.KEEPER_DIR / "leases"),
        open_run=str(plain_files.read_json(workdir / "open-run.json").get("run", "")),
    )


def _is_listed(node: NodeStatus, wanted: list[str]) -> bool:
    """Return whether to list a node: the spec has it, or a process of it is left."""
    return node.name in wanted or node.state not in ("dead", "absent") or bool(node.reason)
