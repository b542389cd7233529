"""Holds what the providers of beds on hosts share: on each host, behind its site, a keeper starts nodes and sees them exit."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ..core.bed import observed_status
from ..model.bed import BedSpec, BedStatus, HostSpec, NodeState, NodeStatus
from ..model.errors import KeeperGoneError
from ..model.event import Command
from ..model.events import KEEPER_COMMANDS, NodeKill
from ..model.provider import Cursors, Fetched
from ..node.files import inbox, label
from ..node.keeper import keeper_start
from ..system import plain_files
from . import archive, bed_leftovers, external_keeper, host_problems, owners, sites
from .bed_commands import BED
from .bounded_threads import BoundedThreads
from .event_reader import BoundProvider
from .sites import Site

#: Valid however late they arrive. A command that starts something must not arrive after its deadline.
ENDS = ("node.kill", "gang.stop", "fault.heal")
KEEPER_S, END_S, PAUSES_S = 30.0, 30.0, (0.5, 1.0, 2.0, 4.0, 8.0)
#: While a run is open, a host that takes longer for its status is unreachable.
STATUS_S = 0.7
#: A host that takes longer does not sign the bundle.
SIGN_S = 2.0

T = TypeVar("T")


class HostsProvider(BoundProvider):
    """See model.provider.Provider. ``connect``: makes the site of a host; during a run, an unreachable host may come later.

    A kind of bed says what its nodes are by ``_host_status``, ``_prepare_host``, ``_end_host`` and ``_keeper``.
    """

    #: How long a keeper may take until it is ready.
    keeper_s = KEEPER_S

    def __init__(self, state: Path, connect: Callable[[BedSpec, HostSpec, bool], Site]) -> None:
        super().__init__()
        self._state = state
        self._connect = connect
        self._cursors: Cursors = {}
        self._links = sites.Sites()
        self._restarts = BoundedThreads("ccbed-restart")
        self._connections: dict[str, int] = {}
        self._unreachable: host_problems.Problems = {}
        self._threads = BoundedThreads("ccbed-hosts")

    def _prepare_host(self, bed: BedSpec, host: HostSpec, archive_path: str) -> None:
        """Provide what the nodes of a host need besides directories, archive and keeper."""

    def _end_host(self, bed: BedSpec, host: HostSpec) -> None:
        """Remove what else the bed has on a host, after its processes ended and before its directories are removed."""

    def _engine_socket(self, host: HostSpec) -> str:
        """The socket of the engine whose containers are the nodes; empty if they are processes."""
        return ""

    def observe(self, bed: BedSpec, *, memory: bool = True) -> BedStatus:
        """Memory is not measured while a run is open: it takes the kernel milliseconds per process.

        A run continues without an unreachable host; before a run, that is an error. Raises UnreachedError, OwnedError.
        """
        free = self._run == BED
        statuses, self._unreachable = self._try_on_all_hosts(
            bed, lambda host: self._host_status(bed, host, memory=free and memory)
        )
        host_problems.refuse_foreign(bed, owners.identity(self._state), statuses)
        open_run = plain_files.read_json(Path(bed.workdir) / "open-run.json").get("run", "")
        status = observed_status.bed_status(bed, statuses, host_problems.texts(self._unreachable))
        status = replace(status, leases=(*status.leases, *external_keeper.leases(bed)), open_run=str(open_run))
        if free and self._unreachable:
            raise host_problems.unreached(bed, self._unreachable, status)
        return status

    def observe_node(self, bed: BedSpec, node: str) -> NodeStatus:
        host = bed.host(bed.node(node).host)
        try:
            return observed_status.bed_status(
                bed, {host.name: self._host_status(bed, host, STATUS_S, memory=False)}
            ).node(node)
        except (OSError, ValueError, RuntimeError) as error:
            state: NodeState = "starting" if self._is_responding(bed, host) else "unreachable"
            return NodeStatus(name=node, state=state, reason=str(error))

    def _is_responding(self, bed: BedSpec, host: HostSpec) -> bool:
        """Return whether the host accepts new connections: then it will soon be connected again."""
        with suppress(OSError):
            return self._site(bed, host).is_responding
        return False

    def _host_status(self, bed: BedSpec, host: HostSpec, deadline_s: float = 10.0, *, memory: bool) -> Any:
        about = {"hostdir": bed.directory_on(host.name), "bed": bed.name, "engine": self._engine_socket(host)}
        return self._site(bed, host).call("look", deadline_s, **about, memory=memory)

    def prober(self, bed: BedSpec) -> sites.SiteProber:
        return sites.SiteProber(bed, lambda host: self._site(bed, bed.host(host)))

    def prepare(self, bed: BedSpec) -> None:
        """Prepare directories, archive, nodes and keeper on each host. Raises InfrastructureError with a line per host."""
        Path(bed.workdir).mkdir(mode=0o700, parents=True, exist_ok=True)
        content = archive.build()

        def ready(host: HostSpec) -> None:
            path = self._archive_path(bed, host, archive.agent_hash())
            self._prepare_host(bed, host, path)
            self._place_archive(bed, host, path, content)
            self._site(bed, host).call("keeper", self.keeper_s, **self._keeper(bed, host), archive=path)

        self._on_all_hosts(bed, ready)

    def _archive_path(self, bed: BedSpec, host: HostSpec, digest: str) -> str:
        return f"{bed.directory_on(host.name)}/agent/agent-{digest}.pyz"

    def _place_archive(self, bed: BedSpec, host: HostSpec, path: str, content: bytes) -> None:
        self._site(bed, host).call("place", path=path, data=content)

    def _make_directories(self, bed: BedSpec, host: HostSpec) -> Mapping[str, Any]:
        """The directories of the bed on a host; ``{uid, gid}`` of their owner."""
        nodes = [node.name for node in bed.all_nodes if node.host == host.name]
        about: dict[str, Any] = {"hostdir": bed.directory_on(host.name), "nodes": nodes, "shared_dir": bed.shared_dir}
        owner: Mapping[str, Any] = self._site(bed, host).call("prepare", **about)
        return owner

    def retire(self, bed: BedSpec) -> tuple[int, ...]:
        """End keepers and nodes, then remove directories. Hosts that were just unreachable are not retried."""
        first = external_keeper.end(bed)
        ended = self._end(bed)
        self.close()
        bed_leftovers.remove_bed(bed)
        return tuple(sorted((*first, *ended)))

    def retire_hosts(self, bed: BedSpec, hosts: Sequence[HostSpec]) -> tuple[int, ...]:
        """End the keepers and nodes on some hosts, and remove their directories and mirrors."""
        ended = self._end(replace(bed, hosts=tuple(hosts)))
        bed_leftovers.remove_mirrors(bed, hosts)
        return ended

    def record_acts(self, bed: BedSpec, lines: Mapping[str, str]) -> None:
        """Record the acts on hosts behind SSH. Another machine's record must not fail what was done."""
        reached = (host for host in bed.hosts if host.name in lines and host.name not in self._unreachable)
        remote = tuple(host for host in reached if host.connection == "ssh")

        def record(host: HostSpec) -> None:
            self._site(bed, host).call("record_act", hostdir=bed.directory_on(host.name), line=lines[host.name])

        if remote:
            self._try_on_all_hosts(replace(bed, hosts=remote), record)

    def sign(self, bed: BedSpec, digest: str) -> Mapping[str, str]:
        def sign(host: HostSpec) -> str:
            return str(self._site(bed, host).call("sign", SIGN_S, hostdir=bed.directory_on(host.name), digest=digest))

        signed, _ = self._try_on_all_hosts(bed, sign)
        return {sites.keeper_directory(bed.host(name)): mac for name, mac in signed.items()}

    def _end(self, bed: BedSpec) -> tuple[int, ...]:
        ended = self._on_all_hosts(bed, lambda host: self._end_on_host(bed, host))
        return tuple(pid for pids in ended.values() for pid in pids)

    def _end_on_host(self, bed: BedSpec, host: HostSpec) -> list[int]:
        if host.name in self._unreachable:
            raise self._unreachable[host.name]
        site, hostdir = self._site(bed, host), bed.directory_on(host.name)
        about = {"hostdir": hostdir, "bed": bed.name, "engine": self._engine_socket(host)}
        ended: list[int] = site.call("end", END_S, **about)["pids"]
        self._end_host(bed, host)
        site.call("remove", END_S, hostdir=hostdir)
        return ended

    def open(self, bed: BedSpec, run: str) -> Cursors:
        if self._follower and run != BED and (bed, run) == (self._bed, self._run):
            return self._cursors
        keepers = [*map(sites.keeper_directory, bed.hosts), external_keeper.DIRECTORY]
        self._cursors = self._bind(bed, run, keepers)
        return self._cursors

    def _watch(self, bed: BedSpec, run: str) -> None:
        names = {host.name: [node.name for node in bed.all_nodes if node.host == host.name] for host in bed.hosts}
        self._on_all_hosts(bed, lambda host: self._site(bed, host).watch(run, names[host.name]))

    def warm_up(self, bed: BedSpec) -> None:
        """Start to connect to the hosts in the background; the first use of a host waits for its connection.

        The SSH modules are imported first, so that the connections do not wait for them.
        """
        elsewhere = any(host.connection != "local" for host in bed.hosts)
        if elsewhere:
            from .ssh import remote_host  # noqa: F401
        for host in bed.hosts:
            self._links.begin(host, lambda host=host: self._connect(bed, host, self._run != BED))  # type: ignore[misc]
        if elsewhere:
            archive.build()

    def close(self) -> None:
        self._unbind()
        self._links.close()
        self._connections = {}

    def put(self, content: Mapping[str, bytes]) -> str:
        bed = self._bound
        return next(iter(self._on_all_hosts(bed, lambda host: self._site(bed, host).put(content)).values()))

    def perform(self, command: Command) -> None:
        """Write the command into the inbox of the node, or of its host's keeper."""
        bed = self._bound
        if external_keeper.is_for_external_keeper(command):
            external_keeper.perform(bed, self._run, command)
            return
        host = self._host_of(command)
        if command.kind in KEEPER_COMMANDS:
            self._require_keeper_on(host)
        within_s = math.inf if command.f in ENDS else command.deadline_s
        self._site(bed, host).write(self._inbox_file(command), inbox.encode_command(self._run, command), within_s)

    def require_performer(self, command: Command) -> None:
        if external_keeper.is_for_external_keeper(command):
            return
        host = self._host_of(command)
        if command.kind in KEEPER_COMMANDS:
            self._require_keeper_on(host)
        if reason := self._site(self._bound, host).refusal(self._inbox_file(command)):
            raise OSError(f"host {host.name} did not take the command: {reason}")

    def _inbox_file(self, command: Command) -> str:
        place = "keeper" if command.kind in KEEPER_COMMANDS else f"nodes/{command.node}"
        directory = self._bound.directory_on(self._host_of(command).name)
        return f"{directory}/{place}/inbox/{inbox.command_file_name(self._run, command.key)}"

    def _require_keeper_on(self, host: HostSpec) -> None:
        """A dead keeper on this machine is noticed at once. Raises KeeperGoneError."""
        keeper = Path(self._bound.directory_on(host.name)) / label.KEEPER_DIR
        if host.connection == "local" and not label.lock_holder(keeper):
            raise KeeperGoneError(keeper_start.describe_loss(keeper))

    def _host_of(self, command: Command) -> HostSpec:
        bed = self._bound
        listed = command.data.host if command.kind is NodeKill else None
        return bed.host(listed or bed.node(str(command.node)).host)

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        self._restart_keepers(self._bound)
        heartbeats = [self._site(self._bound, host).heartbeats() for host in self._bound.hosts]
        return {name: beat for beats in heartbeats for name, beat in beats.items()}

    def fetch(self, node: str, path: str, to: Path, limit: int) -> Fetched:
        """A file or a tree of the node's directory (relative to it), or of the bed's shared directory (absolute)."""
        return self._site_of(node).fetch(node, path, to, limit)

    def fetch_all(self, node: str, wanted: Sequence[tuple[str, Path]], limit: int) -> list[Fetched]:
        return self._site_of(node).fetch_all(node, wanted, limit)

    def forget(self, bed: BedSpec, run: str, *, is_gathered: bool = False) -> None:
        """Remove the run's files. On an unreachable host they stay until the bed goes down; that is no error."""

        def forget(host: HostSpec) -> None:
            hostdir = bed.directory_on(host.name)
            only = {"is_gathered": True} if is_gathered else {}
            self._site(bed, host).call("forget", hostdir=hostdir, shared_dir=bed.shared_dir, run=run, **only)

        self._try_on_all_hosts(bed, forget)

    def leftovers(self, bed: BedSpec) -> Sequence[tuple[str, Mapping[str, Any]]]:
        leftovers = self._on_all_hosts(
            bed, lambda host: bed_leftovers.listed(bed, self._site(bed, host), bed.directory_on(host.name))
        )
        return [(host, entry) for host, entries in leftovers.items() for entry in entries]

    def remove_leftovers(self, bed: BedSpec, entries: Sequence[tuple[str, str, str]]) -> None:
        self._on_all_hosts(bed, lambda host: bed_leftovers.remove(bed, host, self._site(bed, host), entries))
        bed_leftovers.remove_mirrored(bed, entries)

    def _restart_keepers(self, bed: BedSpec) -> None:
        """A reconnected host may have been rebooted: start its keeper in the background unless it lives."""
        for host in bed.hosts:
            connections = self._site(bed, host).connection_count
            if connections > self._connections.get(host.name, connections):
                self._restarts.start(functools.partial(self._start_keeper, bed, host))
            self._connections[host.name] = connections

    def _start_keeper(self, bed: BedSpec, host: HostSpec) -> None:
        """Retry on a host that has just booted. If all attempts fail, commands to the host stay without outcomes.

        The archive is that of the bed: another version of ccbed may have resumed the run, and the host lacks its archive.
        """
        path = self._archive_path(bed, host, bed.agent)
        for pause_s in PAUSES_S:
            with suppress(OSError, ValueError, RuntimeError):
                self._site(bed, host).call("keeper", self.keeper_s, **self._keeper(bed, host), archive=path)
                return
            time.sleep(pause_s)

    def _site_of(self, node: str) -> Site:
        bed = self._bound
        return self._site(bed, bed.host(bed.node(node).host))

    def _site(self, bed: BedSpec, host: HostSpec) -> Site:
        return self._links.get(host, lambda: self._connect(bed, host, self._run != BED))

    def _on_all_hosts(self, bed: BedSpec, work: Callable[[HostSpec], T]) -> dict[str, T]:
        """Do the work on all hosts, many at once. Raises InfrastructureError with a line per host that failed."""
        done, errors = self._try_on_all_hosts(bed, work)
        host_problems.refuse(bed, errors)
        return done

    def _try_on_all_hosts(
        self, bed: BedSpec, work: Callable[[HostSpec], T]
    ) -> tuple[dict[str, T], host_problems.Problems]:
        """Do the work on all hosts, many at once: results and errors, by host."""
        done: dict[str, T] = {}
        errors: dict[str, Exception] = {}

        def try_on(host: HostSpec) -> None:
            try:
                done[host.name] = work(host)
            except (OSError, ValueError, RuntimeError) as error:
                errors[host.name] = error

        if len(bed.hosts) == 1:
            try_on(bed.hosts[0])
        else:
            for future in [self._threads.start(functools.partial(try_on, host)) for host in bed.hosts]:
                future.result()
        return {host.name: done[host.name] for host in bed.hosts if host.name in done}, errors

    def _keeper(self, bed: BedSpec, host: HostSpec) -> dict[str, Any]:
        """The arguments of the operation that starts the keeper, besides its archive."""
        return {
            "hostdir": bed.directory_on(host.name),
            "bed": bed.name,
            "engine": self._engine_socket(host),
            "owner": owners.text(bed),
            "owner_id": owners.identity(self._state),
            "unit": host.connection == "ssh",
        }
