"""Nodes as processes on the nodes of a Slurm job: a job step on each connects back to this machine over TLS."""

from __future__ import annotations

import functools
import math
import shutil
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..model.bed import BedSpec, BedStatus, HostSpec, Machine, NodeStatus
from ..model.errors import CcbedError, InfrastructureError, KeeperGoneError, UnreachedError
from ..model.event import Command
from ..model.events import FaultAct, FaultHeal
from ..model.provider import Cursors
from ..node.keeper import keeper_start, process_status
from ..providers import archive, bed_leftovers, external_keeper, node_files
from ..providers.bed_commands import BED
from ..providers.hosts_provider import HostsProvider
from ..providers.ssh.connection_errors import HostError
from ..providers.ssh.remote_host import RemoteSite
from . import allocation as allocations
from . import job_state, job_steps
from .allocation import Allocation
from .job_state import JobState, LostNode
from .reverse_link import credentials, reverse_connection
from .reverse_link.listener import Listener
from .slurm_commands import SlurmError

#: A step that was just started: Python and the archive come from a network file system. One that runs connects at once.
START_S, CONNECT_S, PATIENT_S = 60.0, 5.0, 2.0
END_S = 20.0
#: How long the srun of a step that ended with its host may take to end as well.
ABANDON_S = 2.0
#: How long the step of a host may take to start after the time in which its power must be on again.
RESTART_S = 180.0
#: A step that lives connects again within this time.
ABSENT_S = 5.0
#: How often the state of a job is read after a loss, and for how long it is followed until it is final.
READ_S, FOLLOW_S = 0.5, 10.0
#: What ccbed creates in the bed's shared directory besides the directories of its hosts.
SHARED = ("agent", "links", "payloads", "shared", "steps")


class SlurmProvider(HostsProvider):
    """See HostsProvider. The job is that of the bed's record; ``prepare`` allocates one, ``retire`` releases it."""

    #: Each keeper imports torch, perhaps from a network file system.
    keeper_s = keeper_start.READY_S

    def __init__(self, state: Path) -> None:
        super().__init__(state, self._connect_back)
        self._listener: Listener | None = None
        self._listening = threading.Lock()
        self._connect_s = CONNECT_S
        self._job: JobState | None = None
        self._job_read_at = -math.inf
        self._job_reader: threading.Thread | None = None
        self._reading = threading.Lock()
        self._closed = threading.Event()
        #: The hosts that a fault has switched off, until their steps start anew.
        self._without_power: set[str] = set()

    def machines(self, bed: BedSpec) -> Mapping[str, Machine]:
        """Host -> the node of the job that it is; without a job they are not known."""
        allocation = allocations.read(Path(bed.workdir))
        return {host.name: job_steps.machine(allocation, host.name) for host in bed.hosts} if allocation else {}

    def observe(self, bed: BedSpec, *, memory: bool = True) -> BedStatus:
        """A bed without a job, or whose job has ended, has no node; that is no error before a run. Raises UnreachedError."""
        allocation = allocations.read_intact(Path(bed.workdir))
        if allocation is None:
            return BedStatus(name=bed.name, detached=True, job=_describe_queued(bed))
        is_whole = not any(job_steps.end_reason(bed, allocation, host.name) for host in bed.hosts)
        state = _read_state(allocation) if not is_whole or (memory and self._run == BED) else None
        if state and state.kind in job_state.FINAL and not is_whole:
            ended = f"job {allocation.job_id} has ended"
            absent = (NodeStatus(name=node.name, state="absent", reason=ended) for node in bed.nodes)
            job = _describe_end(allocation, state)
            return BedStatus(name=bed.name, nodes=tuple(absent), detached=True, job=job)
        job = _describe(allocation, state)
        try:
            return replace(super().observe(bed, memory=memory), job=job)
        except UnreachedError as error:
            error.status = replace(error.status, job=job)
            raise

    def _host_status(self, bed: BedSpec, host: HostSpec, deadline_s: float = 10.0, *, memory: bool) -> Any:
        """A host whose step has ended has neither a keeper nor a living process: Slurm ends them with the step."""
        allocation = allocations.read(Path(bed.workdir))
        reason = job_steps.end_reason(bed, allocation, host.name) if allocation else "the bed has no job"
        if not reason:
            return super()._host_status(bed, host, deadline_s, memory=memory)
        nodes = [process_status.dead_node(node.name, reason) for node in bed.nodes if node.host == host.name]
        return {"keeper": {"alive": False}, "nodes": nodes, "leases": [], "interfaces": {}}

    def observe_node(self, bed: BedSpec, node: str) -> NodeStatus:
        """A node whose step has ended is dead; the reason is that of its job or of its host, as Slurm knows it. See HostsProvider."""
        host = bed.node(node).host
        allocation = allocations.read(Path(bed.workdir))
        reason = job_steps.end_reason(bed, allocation, host) if allocation else "the bed has no job"
        if not reason or allocation is None:
            return super().observe_node(bed, node)
        self._read_job(allocation)
        return NodeStatus(name=node, state="dead", reason=self._explain_loss(bed, allocation, host, reason))

    def _require_keeper_on(self, host: HostSpec) -> None:
        """A keeper ends with its step. Raises KeeperGoneError, with the reason that Slurm has for it.

        A host without power gets a new step, and with it a keeper, once its power is on: until then commands wait, as long
        as the job lives.
        """
        bed = self._bound
        allocation = allocations.read(Path(bed.workdir))
        if not allocation or not (reason := job_steps.end_reason(bed, allocation, host.name)):
            return
        self._read_job(allocation)
        if host.name not in self._without_power or self._has_job_ended:
            raise KeeperGoneError(self._explain_loss(bed, allocation, host.name, reason), with_bed=self._has_job_ended)

    def open(self, bed: BedSpec, run: str) -> Cursors:
        self._closed.set()
        self._closed = threading.Event()
        return super().open(bed, run)

    def perform(self, command: Command) -> None:
        """See Provider. The end of a fault that switched a host off also starts the host's step anew: it ended with the power.

        Raises OSError for a fault of a host that may belong to somebody else by now.
        """
        if not external_keeper.is_for_external_keeper(command):
            super().perform(command)
            return
        bed, host = self._bound, self._host_of(command)
        if command.kind is FaultAct:
            _require_member(bed, host.name)
        self._without_power.add(host.name)
        try:
            super().perform(command)
        except Exception:
            self._without_power.discard(host.name)
            raise
        if command.kind is FaultHeal:
            limit_s = command.deadline_s + RESTART_S
            self._restarts.start(functools.partial(self._restart_step, bed, host, limit_s, self._closed))

    def _restart_step(self, bed: BedSpec, host: HostSpec, deadline_s: float, closed: threading.Event) -> None:
        """Start the step of a host once it can start, within ``deadline_s`` or until the run ends, which names a node without one.

        The connection of a host that lost its power counts as one until its silence is noticed: so it is looked at again.
        A step whose connection breaks for a moment is left alone.
        """
        now = time.monotonic()
        until, connected_at = now + deadline_s, now
        try:
            while time.monotonic() < until and not closed.wait(READ_S):
                with suppress(OSError, CcbedError):
                    if self._is_connected(bed, host):
                        connected_at = time.monotonic()
                    elif time.monotonic() >= connected_at + ABSENT_S and self._try_restart(bed, host):
                        return
        finally:
            self._without_power.discard(host.name)

    def _try_restart(self, bed: BedSpec, host: HostSpec) -> bool:
        """Start the step of a host that is not connected, if its slurmd accepts connections and Slurm trusts the node."""
        allocation = allocations.read(Path(bed.workdir))
        if allocation is None or not _is_ready(allocation, job_steps.machine(allocation, host.name)):
            return False
        job_steps.abandon(bed, host.name, ABANDON_S)
        _start_step(bed, allocation, host.name, self._archive_path(bed, host, bed.agent))
        return True

    def _is_connected(self, bed: BedSpec, host: HostSpec) -> bool:
        try:
            return self._site(bed, host).is_connected
        except HostError:
            return False

    def _read_job(self, allocation: Allocation) -> None:
        """Read the state of the job, at most once in READ_S for all nodes; while it changes, a thread reads it again."""
        with self._reading:
            if time.monotonic() < self._job_read_at + READ_S:
                return
            self._job = _read_state(allocation)
            self._job_read_at = time.monotonic()
            if self._job_reader is None or not self._job_reader.is_alive():
                self._job_reader = threading.Thread(target=self._follow_job, args=(allocation,), daemon=True)
                self._job_reader.start()

    def _follow_job(self, allocation: Allocation) -> None:
        """All steps of a job end before Slurm shows why: read its state until that is final, for FOLLOW_S at most."""
        until, closed = time.monotonic() + FOLLOW_S, self._closed
        while time.monotonic() < until and not closed.wait(READ_S):
            state = _read_state(allocation)
            self._job = state or self._job
            if state and state.kind in job_state.FINAL:
                return

    @property
    def _has_job_ended(self) -> bool:
        state = self._job
        return state is not None and state.kind != "unknown" and state.kind not in job_state.RUNNING

    def _explain_loss(self, bed: BedSpec, allocation: Allocation, host: str, ended: str) -> str:
        """Return why the step of a host has ended. ``ended``: what its srun wrote."""
        state = self._job
        if state is None or state.kind == "unknown":
            return ended
        if self._has_job_ended:
            return _describe_end(allocation, state)
        name = dict(zip((spec.name for spec in bed.hosts), allocation.nodes, strict=False))[host]
        lost = next((node for node in state.lost if node.name == name), None)
        return f"{_describe_lost(lost)}; {ended}" if lost else ended

    def prepare(self, bed: BedSpec) -> None:
        """Allocate a job unless there is one, start the steps that do not run, then prepare the hosts."""
        for directory in (bed.workdir, bed.hostdir, f"{bed.hostdir}/agent"):
            Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        credentials.ensure_certificate(job_steps.links(bed), Path(bed.workdir))
        path, _ = archive.write(Path(bed.hostdir) / "agent")
        allocation = self._allocated(bed)
        self._refuse_lost(bed, allocation)
        missing = [host.name for host in bed.hosts if job_steps.end_reason(bed, allocation, host.name)]
        job_steps.end(bed, missing, END_S)  # those that run with other settings
        for host in missing:
            _start_step(bed, allocation, host, str(path))
        self._connect_s = START_S if missing else CONNECT_S
        super().prepare(bed)

    def put(self, content: Mapping[str, bytes]) -> str:
        """The payload goes to the shared file system once."""
        return str(node_files.put_payload(Path(self._bound.hostdir) / "payloads", content))

    def retire(self, bed: BedSpec) -> tuple[int, ...]:
        """End what the bed has on each node, then its steps and its job; verified. Raises InfrastructureError."""
        allocation = allocations.read_intact(Path(bed.workdir))
        ended = external_keeper.end(bed)
        if allocation is not None:
            # the end of its step ends a node that does not respond
            on_hosts, _ = self._try_on_all_hosts(bed, lambda host: self._end_on_host(bed, host))
            ended = (*ended, *(pid for pids in on_hosts.values() for pid in pids))
        self.close()
        left = job_steps.end(bed, [host.name for host in bed.hosts], END_S)
        allocations.release(bed, allocation)
        if left and not (allocation and allocation.is_owned):
            raise InfrastructureError(f"the job steps of {', '.join(left)} do not end", hint="squeue --me --steps")
        _remove_files(bed)
        return tuple(sorted(ended))

    def close(self) -> None:
        self._closed.set()
        super().close()
        with self._listening:
            listener, self._listener = self._listener, None
        if listener:
            listener.close()

    def _allocated(self, bed: BedSpec) -> Allocation:
        """The job of the bed: that of its record if it still runs, else a new one."""
        present = allocations.read(Path(bed.workdir))
        if present and allocations.read_state(present).kind in job_state.RUNNING:
            return present
        allocation = allocations.acquire(bed)
        allocations.write(allocation, Path(bed.workdir))
        return allocation

    def _refuse_lost(self, bed: BedSpec, allocation: Allocation) -> None:
        """A new step on a node that Slurm does not trust would wait for ever. Raises InfrastructureError with a line per node."""
        lost = {node.name: node for node in allocations.read_state(allocation).lost}
        names = dict(zip((host.name for host in bed.hosts), allocation.nodes, strict=False))
        waiting = [host for host, node in names.items() if node in lost and job_steps.end_reason(bed, allocation, host)]
        if waiting:
            lines = (f"host {host}: {_describe_lost(lost[names[host]])}" for host in waiting)
            raise InfrastructureError(
                *lines, hint=f"for a job with other nodes: ccbed down {bed.name}, then: ccbed up {bed.inventory}"
            )

    def _prepare_host(self, bed: BedSpec, host: HostSpec, archive_path: str) -> None:
        self._make_directories(bed, host)

    def _archive_path(self, bed: BedSpec, host: HostSpec, digest: str) -> str:
        """Return a path on the shared file system, where ``prepare`` writes the archive before the steps start."""
        return f"{bed.hostdir}/agent/agent-{digest}.pyz"

    def _place_archive(self, bed: BedSpec, host: HostSpec, path: str, content: bytes) -> None:
        """It is there."""

    def _keeper(self, bed: BedSpec, host: HostSpec) -> dict[str, Any]:
        return {**super()._keeper(bed, host), "python": job_steps.python(bed), "named": bed.nodes[0].python}

    def _connect_back(self, bed: BedSpec, host: HostSpec, patient: bool) -> RemoteSite:
        """The site of a host whose step runs. Raises HostError."""
        allocation = allocations.read(Path(bed.workdir))
        if allocation is None:
            raise HostError("the bed has no job")
        if reason := job_steps.end_reason(bed, allocation, host.name):
            raise HostError(reason)
        site = reverse_connection.make_site(
            bed, host, self._listen(bed),
            explain=lambda name: job_steps.explain(bed, name),
            ended=lambda name: job_steps.end_reason(bed, allocation, name),
        )  # fmt: skip
        site.open(PATIENT_S if patient else self._connect_s, patient=patient)
        return site

    def _listen(self, bed: BedSpec) -> Listener:
        """The listener for all hosts of the bed. Raises OSError."""
        with self._listening:
            if self._listener is None:
                hosts = [host.name for host in bed.hosts]
                ports = bed.slurm.ports if bed.slurm else ()
                self._listener = Listener(job_steps.links(bed), Path(bed.workdir), hosts, ports=ports)
            return self._listener


def _read_state(allocation: Allocation) -> JobState | None:
    """None while the controller is away: then the state is not known."""
    try:
        return allocations.read_state(allocation, allocations.MOMENT_S)
    except SlurmError:
        return None


def _require_member(bed: BedSpec, host: str) -> None:
    """Raises OSError unless the host is known to be a node of the bed's job: Slurm gives other nodes to other users."""
    allocation = allocations.read(Path(bed.workdir))
    state = _read_state(allocation) if allocation else None
    if allocation is None or state is None or state.kind == "unknown":
        raise OSError(f"it is not known whether the job still has the node of host {host}")
    if state.kind not in job_state.RUNNING:
        raise KeeperGoneError(_describe_end(allocation, state), with_bed=True)
    name = job_steps.slurm_node(allocation, host)
    if removed := [node for node in state.lost if node.name == name and node.kind == "removed"]:
        raise OSError(_describe_lost(removed[0]))


def _start_step(bed: BedSpec, allocation: Allocation, host: str, archive_path: str) -> None:
    """Start the step of a host, with a token of its own. Raises OSError."""
    credentials.new_token(job_steps.links(bed), host)
    job_steps.start(bed, allocation, host, archive_path)


def _is_ready(allocation: Allocation, machine: Machine) -> bool:
    """Return whether the node's slurmd accepts connections, and Slurm starts steps there."""
    if not _accepts_connections(machine):
        return False
    state = _read_state(allocation)
    return bool(state and state.kind in job_state.RUNNING and machine.name not in {node.name for node in state.lost})


def _accepts_connections(machine: Machine) -> bool:
    try:
        socket.create_connection((machine.address, machine.port), CONNECT_S).close()
    except OSError:
        return False
    return True


def _describe_queued(bed: BedSpec) -> str:
    """The jobs of a bed that has no record of one; empty without any."""
    try:
        jobs = allocations.jobs_of(bed)
    except CcbedError as error:
        return f"not known: {error}"
    return ", ".join(f"{job.job_id} ({job.kind}: {job_state.describe(job)})" for job in jobs)


def _describe_end(allocation: Allocation, state: JobState) -> str:
    """``job 7: timed out (it reached its time limit)``."""
    return f"job {allocation.job_id}: {state.kind}" + (f" ({state.reason})" if state.reason else "")


def _describe(allocation: Allocation, state: JobState | None) -> str:
    """``7 on n1 n2, ends in 28 min; node n2 is draining (bad dimm)``."""
    text = f"{allocation.job_id} on {' '.join(allocation.nodes)}"
    is_running = state is not None and state.kind in job_state.RUNNING
    ends_at = state.ends_at if state and is_running else allocation.ends_at
    if ends_at is not None:
        text += f", ends in {max(0.0, ends_at - time.time()) / 60:.0f} min"
    parts = [text]
    if state and state.kind != "running":
        parts.append(f"{state.kind} ({state.reason})")
    return "; ".join([*parts, *(_describe_lost(node) for node in (state.lost if state else ()))])


def _describe_lost(node: LostNode) -> str:
    what = "failed, and Slurm removed it from the job" if node.kind == "removed" else f"is {node.kind}"
    return f"node {node.name} {what}" + (f" ({node.reason})" if node.reason else "")


def _remove_files(bed: BedSpec) -> None:
    """Remove the bed's files on this machine and on the shared file system, also those of hosts that were lost."""
    for name in (*SHARED, *(host.name for host in bed.hosts)):
        shutil.rmtree(Path(bed.hostdir) / name, ignore_errors=True)
    (Path(bed.workdir) / credentials.KEY).unlink(missing_ok=True)
    (Path(bed.workdir) / allocations.FILE).unlink(missing_ok=True)
    job_steps.forget(bed)
    bed_leftovers.remove_bed(bed)
    with suppress(OSError):
        Path(bed.hostdir).rmdir()
