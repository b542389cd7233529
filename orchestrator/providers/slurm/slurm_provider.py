"""Nodes as processes on the nodes of a Slurm job: a job step on each connects back to this machine over TLS."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...model.bed import BedSpec, BedStatus, HostSpec, NodeStatus
from ...model.errors import InfrastructureError, KeeperGoneError
from ...model.event import Command
from ...node.keeper import launch, process_status
from .. import archive, bed_leftovers, external_keeper, files
from ..hosts_provider import KEEPER_COMMANDS, HostsProvider
from ..reverse_link import credentials, reverse_connection
from ..reverse_link.listener import Listener
from ..ssh.connection_errors import HostError
from ..ssh.remote_host import RemoteSite
from . import allocation as allocations
from . import job_state, job_steps
from .allocation import Allocation
from .job_state import LostNode
from .slurm_commands import SlurmError

#: A step that was just started: Python and the archive come from a network file system. One that runs connects at once.
START_S, CONNECT_S, PATIENT_S = 60.0, 5.0, 2.0
END_S = 20.0
#: What ccbed creates in the bed's shared directory besides the directories of its hosts.
SHARED = ("agent", "links", "payloads", "shared", "steps")


class SlurmProvider(HostsProvider):
    """See HostsProvider. The job is that of the bed's record; ``prepare`` allocates one, ``retire`` releases it."""

    #: Each keeper imports torch, perhaps from a network file system.
    keeper_s = launch.READY_S

    def __init__(self, state: Path) -> None:
        super().__init__(state, self._connect_back)
        self._listener: Listener | None = None
        self._listening = threading.Lock()
        self._connect_s = CONNECT_S
        self._job_end = ""

    def machines(self, bed: BedSpec) -> Mapping[str, str]:
        """Host -> the node of the job that it is; without a job they are not known."""
        allocation = allocations.read(Path(bed.workdir))
        return {host.name: job_steps.slurm_node(allocation, host.name) for host in bed.hosts} if allocation else {}

    def observe(self, bed: BedSpec, *, memory: bool = True) -> BedStatus:
        """A bed without a job, or whose job has ended, has no node; that is no error before a run."""
        allocation = allocations.read(Path(bed.workdir))
        if allocation is None:
            return BedStatus(name=bed.name, detached=True)
        is_whole = not any(job_steps.end_reason(bed, allocation, host.name) for host in bed.hosts)
        if reason := "" if is_whole else _end_of_job(allocation):
            ended = f"job {allocation.job_id} has ended"
            absent = (NodeStatus(name=node.name, state="absent", reason=ended) for node in bed.nodes)
            return BedStatus(name=bed.name, nodes=tuple(absent), detached=True, job=reason)
        return replace(super().observe(bed, memory=memory), job=_describe(allocation))

    def _host_status(self, bed: BedSpec, host: HostSpec, deadline_s: float = 10.0, *, memory: bool) -> Any:
        """A host whose step has ended has neither a keeper nor a living process: Slurm ends them with the step."""
        allocation = allocations.read(Path(bed.workdir))
        reason = job_steps.end_reason(bed, allocation, host.name) if allocation else "the bed has no job"
        if not reason:
            return super()._host_status(bed, host, deadline_s, memory=memory)
        nodes = [process_status.dead_node(node.name, reason) for node in bed.nodes if node.host == host.name]
        return {"keeper": {"alive": False}, "nodes": nodes, "leases": [], "interfaces": {}}

    def observe_node(self, bed: BedSpec, node: str) -> NodeStatus:
        """A node whose step has ended is dead; the reason is that of its job, if the job has ended. See HostsProvider."""
        host = bed.node(node).host
        allocation = allocations.read(Path(bed.workdir))
        reason = job_steps.end_reason(bed, allocation, host) if allocation else "the bed has no job"
        if not reason or allocation is None:
            return super().observe_node(bed, node)
        self._job_end = self._job_end or _end_of_job(allocation)
        return NodeStatus(name=node, state="dead", reason=self._job_end or reason)

    def _refuse_without_keeper(self, host: HostSpec, command: Command) -> None:
        """A keeper ends with its step. Raises KeeperGoneError, with the reason of the job once a probe has read it."""
        bed = self._bound
        allocation = allocations.read(Path(bed.workdir)) if command.f in KEEPER_COMMANDS else None
        if allocation and (reason := job_steps.end_reason(bed, allocation, host.name)):
            raise KeeperGoneError(self._job_end or reason)

    def prepare(self, bed: BedSpec) -> None:
        """Allocate a job unless there is one, start the steps that do not run, then prepare the hosts."""
        for directory in (bed.workdir, bed.hostdir, f"{bed.hostdir}/agent"):
            Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        credentials.ensure_certificate(job_steps.links(bed), Path(bed.workdir))
        path, _ = archive.write(Path(bed.hostdir) / "agent")
        allocation = self._allocated(bed)
        self._refuse_lost(bed, allocation)
        missing = [host.name for host in bed.hosts if job_steps.end_reason(bed, allocation, host.name)]
        for host in missing:
            credentials.new_token(job_steps.links(bed), host)
            job_steps.start(bed, allocation, host, str(path))
        self._connect_s = START_S if missing else CONNECT_S
        super().prepare(bed)

    def put(self, content: Mapping[str, bytes]) -> str:
        """The payload goes to the shared file system once."""
        return str(files.put_payload(Path(self._bound.hostdir) / "payloads", content))

    def retire(self, bed: BedSpec) -> tuple[int, ...]:
        """End what the bed has on each node, then its steps and its job; verified. Raises InfrastructureError."""
        allocation = allocations.read(Path(bed.workdir))
        ended = external_keeper.end(bed)
        if allocation is not None:
            # the end of its step ends a node that does not respond
            on_hosts, _ = self._try_on_all_hosts(bed, lambda host: self._end_on_host(bed, host))
            ended = (*ended, *(pid for pids in on_hosts.values() for pid in pids))
        self.close()
        left = job_steps.end(bed, END_S)
        allocations.release(bed, allocation)
        if left and not (allocation and allocation.is_owned):
            raise InfrastructureError(f"the job steps of {', '.join(left)} do not end", hint="squeue --me --steps")
        _remove_files(bed)
        return tuple(sorted(ended))

    def close(self) -> None:
        super().close()
        with self._listening:
            listener, self._listener = self._listener, None
        if listener:
            listener.close()

    def _allocated(self, bed: BedSpec) -> Allocation:
        """The job of the bed: that of its record if it still runs, else a new one."""
        present = allocations.read(Path(bed.workdir))
        if present and allocations.read_state(present).kind in ("running", "suspended"):
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
            lines = (f"host {host}: node {names[host]} is {_describe_lost(lost[names[host]])}" for host in waiting)
            raise InfrastructureError(
                *lines, hint=f"for a job with other nodes: ccbed down {bed.name}, then: ccbed up {bed.inventory}"
            )

    def _prepare_host(self, bed: BedSpec, host: HostSpec, archive_path: str) -> None:
        self._make_directories(bed, host)

    def _keeper(self, bed: BedSpec, host: HostSpec) -> dict[str, Any]:
        return {**super()._keeper(bed, host), "python": job_steps.python(bed), "named": bed.nodes[0].python}

    def _connect_back(self, bed: BedSpec, host: HostSpec, patient: bool) -> RemoteSite:
        """The site of a host whose step runs. Raises HostError."""
        allocation = allocations.read(Path(bed.workdir))
        if allocation is None:
            raise HostError(host.name, "the bed has no job", lasting=True)
        if reason := job_steps.end_reason(bed, allocation, host.name):
            raise HostError(host.name, reason, lasting=True)
        site = reverse_connection.make_site(
            bed, host, self._listen(bed),
            explain=lambda name: self._explain(bed, name),
            ended=lambda name: job_steps.end_reason(bed, allocation, name),
        )  # fmt: skip
        site.open(PATIENT_S if patient else self._connect_s, patient=patient)
        return site

    def _explain(self, bed: BedSpec, host: str) -> str:
        all_rejected = self._listener.rejected if self._listener else []
        rejected = [text for text in all_rejected if f"host {host}" in text][-1:]
        return "; ".join(part for part in (job_steps.explain(bed, host), *rejected) if part)

    def _listen(self, bed: BedSpec) -> Listener:
        """The listener for all hosts of the bed. Raises OSError."""
        with self._listening:
            if self._listener is None:
                hosts = [host.name for host in bed.hosts]
                self._listener = Listener(job_steps.links(bed), Path(bed.workdir), hosts)
            return self._listener


def _end_of_job(allocation: Allocation) -> str:
    """Why the job does not run any more; empty while it runs, or while the controller is away."""
    try:
        state = allocations.read_state(allocation)
    except SlurmError:
        return ""
    if state.kind not in job_state.FINAL:
        return ""
    return f"job {allocation.job_id}: {state.kind}" + (f" ({state.reason})" if state.reason else "")


def _describe(allocation: Allocation) -> str:
    """``7 on n1 n2, ends in 28 min``."""
    text = f"{allocation.job_id} on {' '.join(allocation.nodes)}"
    if allocation.ends_at is None:
        return text
    return f"{text}, ends in {max(0.0, allocation.ends_at - time.time()) / 60:.0f} min"


def _describe_lost(node: LostNode) -> str:
    return node.kind + (f" ({node.reason})" if node.reason else "")


def _remove_files(bed: BedSpec) -> None:
    """Remove the bed's files on this machine and on the shared file system, also those of hosts that were lost."""
    for name in (*SHARED, *(host.name for host in bed.hosts)):
        shutil.rmtree(Path(bed.hostdir) / name, ignore_errors=True)
    (Path(bed.workdir) / credentials.KEY).unlink(missing_ok=True)
    (Path(bed.workdir) / allocations.FILE).unlink(missing_ok=True)
    shutil.rmtree(Path(bed.workdir) / "steps", ignore_errors=True)
    bed_leftovers.remove_bed(bed)
    with suppress(OSError):
        Path(bed.hostdir).rmdir()
