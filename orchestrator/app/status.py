"""The status of beds: nodes, leases, leftover faults, open runs, and what differs from their inventories."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.bed import diff, selection
from ..model import codec
from ..model.bed import BedSpec, BedStatus, Diff
from ..model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS, CcbedError, UnreachedError, UsageError
from ..model.frozen import dataclass, field
from ..store import bed_files as store
from ..store import bundle
from . import beds, leftovers
from .hosts.quarantine import Drain
from .places import short_path
from .requests import OneBedRequest
from .session import Session


@dataclass(frozen=True, kw_only=True)
class Status:
    """A bed. ``unreached``: host -> why it cannot be reached. ``leftovers``: of ended runs; None: not known.

    ``outdated``: what has changed since `up`, but for its nodes.
    """

    spec: BedSpec
    status: BedStatus
    run: store.OpenRun | None
    unreached: Mapping[str, str] = field(default_factory=dict)
    leftovers: Mapping[str, int] | None = None
    drained: Mapping[str, Drain] = field(default_factory=dict)
    outdated: tuple[str, ...] = ()

    @property
    def changes(self) -> Diff:
        """Return what `up` would change: nothing on a drained host."""
        hosts = [host for host in selection.host_names(self.spec) if host not in self.drained]
        return selection.limit(diff.diff(self.spec, self.status), self.spec, hosts)

    @property
    def code(self) -> int:
        """A drained host may be switched off."""
        return EXIT_INFRASTRUCTURE if self.unreached.keys() - self.drained.keys() else EXIT_PASS

    @property
    def document(self) -> dict[str, Any]:
        """All of it, for programs."""
        spec, status, run = self.spec, self.status, self.run
        return {
            "bed": spec.name,
            "provider": spec.provider,
            "inventory": spec.inventory,
            "as_wanted": self.changes.empty,
            "keeper_pid": status.keeper_pid,
            "link": codec.plain(spec.link) if spec.link else None,
            "keepers": [
                {"host": host.name, "pid": host.keeper_pid, "unit": host.unit, "unit_problem": host.unit_problem}
                for host in status.hosts
            ],
            "nodes": codec.plain(status.nodes),
            "job": status.job or None,
            "leases": list(status.leases),
            "open_run": {**codec.plain(run), "stage": _stage(run)} if run else None,
            "away": dict(self.unreached),
            "leftovers": self.leftovers,
            "departed": [departed.host.name for departed in spec.departed],
            "drained": {host: codec.plain(drain) for host, drain in self.drained.items()},
        }


def run(session: Session, request: OneBedRequest) -> tuple[Status, ...]:
    """Return the status of the bed, or of every bed that is up. A bed whose hosts are not known any more is a warning."""
    names = (*store.names(session.state), *store.names_without_file(session.state))
    listed = (request.bed,) if request.bed else names
    return tuple(of(session, name) for name in listed if not _is_unknown(session, name))


def _is_unknown(session: Session, name: str) -> bool:
    try:
        if name in store.names_without_file(session.state):
            store.minimal_spec(session.state, name)
    except UsageError as error:
        session.terminal.warn(f"{error}; {error.hint}")
        return True
    return False


def of(session: Session, name: str) -> Status:
    """Return the status of a bed. Raises UsageError, InfrastructureError."""
    strays = store.names_without_file(session.state)
    spec = store.minimal_spec(session.state, name) if name in strays else beds.choose(session, name)
    open_run = store.open_run(Path(spec.workdir), time.time())
    provider, drained = session.provider(spec), beds.drains(spec)
    unreached: Mapping[str, str] = {}
    try:
        status = provider.observe(spec)
    except UnreachedError as error:
        status, unreached = error.status, error.hosts
    left = None if unreached else leftovers.count_leftovers(spec, provider)
    outdated = tuple(_outdated(session, spec))
    return Status(
        spec=spec, status=status, run=open_run, unreached=unreached, leftovers=left, drained=drained, outdated=outdated
    )


def _outdated(session: Session, spec: BedSpec) -> Iterator[str]:
    """Yield what has changed since `up`: the inventory, of which only the time is compared, and the version of ccbed."""
    inventory, file = Path(spec.inventory), session.state / "beds" / f"{spec.name}.json"
    if not spec.nodes or not inventory.is_absolute():
        return
    if not inventory.exists():
        yield f"its inventory is gone; `ccbed down {spec.name}` needs none, and with the file back"
    elif inventory.is_file() and inventory.stat().st_mtime > file.stat().st_mtime:
        yield "its inventory was written after the last `up`"
    if spec.agent != session.agent():
        yield f"its agents are of another version of ccbed ({spec.agent[:6]}, not {session.agent()[:6]})"


def describe_run(spec: BedSpec, run: store.OpenRun) -> tuple[str, str]:
    """Return who drives the run, and which command continues it."""
    directory = short_path(run.directory)
    if run.driver:
        return f"driven by pid {run.driver}", f"watch it: ccbed watch {directory}"
    match _stage(run):
        case "none" if not run.begun:
            return "its orchestrator died before it began", f"run it again: {run.command}"
        case "ended" | "closed":
            return "it has ended, and its orchestrator died before it was judged", f"judge it: ccbed resume {directory}"
    state = "its orchestrator is gone" + (" while it made its reference run" if run.twin else "")
    return state, f"resume it: ccbed resume {directory}     end it: ccbed resume --close {directory}"


def _stage(run: store.OpenRun) -> bundle.Stage:
    """Return the stage of the run; ``open`` where its history cannot be read."""
    try:
        return bundle.stage(Path(run.directory))
    except CcbedError:
        return "open"
