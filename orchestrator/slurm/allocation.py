"""The allocation of a bed: one Slurm job that holds its hosts. Host ``hN`` of the bed is the N-th node of the job.

The job is made by ``salloc --no-shell --no-kill``: it has no process of its own, so it goes on when any of its nodes is lost,
the first one too, whereas the job of sbatch ends with the script on its first node. salloc reports a start at once.
"""

from __future__ import annotations

import functools
import getpass
import json
import os
import queue
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..model import codec
from ..model.bed import BedSpec
from ..model.errors import CcbedError, InfrastructureError, UsageError
from ..model.frozen import dataclass, field, replace
from ..node.oslayer import processes
from ..providers import owners
from ..system import host_facts, plain_files
from . import cluster, job_state, slurm_commands
from .job_state import Job, JobState
from .slurm_commands import SlurmError

FILE = "allocation.json"
#: The controller is asked for the job that waits after FIRST_S, then every POLL_S; salloc itself reports the start.
FIRST_S, POLL_S = 2.0, 30.0
#: So long the controller may be away when the job has started: the nodes for which it waited are not given back at once.
GRANTED_S = 30.0
#: How long a command waits for a state that it can do without.
MOMENT_S = 3.0
END_S = 60.0
#: Where slurmd listens by default.
SLURMD_PORT = 6818
#: After so long, a job that only completes waits for a node that does not respond. Slurm never runs it again.
COMPLETING_S = 10.0
_GRANTED = re.compile(r"Granted job allocation (\d+)")
_PENDING = re.compile(r"Pending job allocation (\d+)")
#: prctl(PR_SET_PDEATHSIG, SIGTERM), then exec: salloc cancels a job that waits when ccbed is killed.
_END_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The command that also releases the job of an ephemeral bed: a process, and the boot of the machine that runs it."""

    hostname: str
    boot: str
    pid: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A job that holds nodes. ``nodes``: their names in Slurm, in the job's order; lost nodes keep their position.

    ``addresses``: the address of each node, as Slurm reaches it (a name or a number); ``ports``: of its slurmd.
    ``ends_at``: wall-clock time of the
    time limit; None: no limit. ``is_owned``: ccbed submitted the job, so ``release`` cancels it. ``driver``: of an ephemeral
    bed; None for a kept bed.
    """

    job_id: int
    nodes: tuple[str, ...]
    addresses: tuple[str, ...]
    ports: tuple[int, ...] = ()
    is_owned: bool
    ends_at: float | None = None
    name: str = ""
    driver: Driver | None = None


def this_process() -> Driver:
    pid = os.getpid()
    return Driver(
        hostname=socket.gethostname(), boot=host_facts.boot_id(), pid=pid, start=processes.start_time(pid)
    )  # fmt: skip


def is_abandoned(allocation: Allocation) -> bool:
    """Return whether the command that should release the job was killed. One on another machine may live."""
    driver = allocation.driver
    if driver is None or driver.hostname != socket.gethostname():
        return False
    return driver.boot != host_facts.boot_id() or not processes.is_alive(driver.pid, driver.start)


def submit_command(bed: BedSpec) -> list[str]:
    """The command line that submits the bed's job. Raises OSError."""
    assert bed.slurm is not None
    return ["salloc", "--no-shell", "--no-kill", *cluster.job_options(bed.slurm, bed.name, _comment(bed))]


def _comment(bed: BedSpec) -> str:
    """The owner of the bed: two users, state directories or login machines may have beds of one name and one path."""
    return f"ccbed:{owners.identity(Path(bed.workdir).parents[1])}"


def current_job(environ: Mapping[str, str]) -> int | None:
    """The job in which ccbed itself runs (inside salloc or sbatch); None outside of a job."""
    text = environ.get("SLURM_JOB_ID", "")
    return int(text) if text.isdigit() else None


def jobs_of(bed: BedSpec) -> tuple[Job, ...]:
    """The jobs of the bed in the queue that this user submitted with ccbed, by any command. One RPC. Raises SlurmError."""
    jobs = job_state.read_jobs("--me", f"--name=ccbed-{bed.name}")
    return tuple(job for job in jobs if job.comment == _comment(bed))


def acquire(
    bed: BedSpec,
    *,
    wait_s: float | None = None,
    report: Callable[[str], None] = lambda line: None,
    clock: Callable[[], float] = time.monotonic,
) -> Allocation:
    """Submit the bed's job and wait until it runs, at most ``wait_s`` seconds.

    However this function ends without a result (an error, Ctrl-C, a signal that kills ccbed), no job stays in the queue. If ccbed
    is killed after the controller has accepted the job and before salloc knows that, it stays, and the next command names it.
    Raises UsageError for a request that Slurm rejects or never starts, InfrastructureError for a wait that is too long,
    SlurmError with the job where it cannot be cancelled.
    """
    refuse_second(bed)
    command = submit_command(bed)
    with _salloc(command) as request:
        try:
            _wait(request, bed, wait_s, report, clock)
            return _granted(request.job_id, bed, clock)
        except BaseException:
            request.withdraw()
            _cancel_after(bed, request.job_id)
            raise


def refuse_second(bed: BedSpec) -> None:
    """Raises InfrastructureError for jobs that an earlier command left, e.g. one that was killed; not for one that ends now."""
    if jobs := [job for job in jobs_of(bed) if job.kind not in ("completing", *job_state.FINAL)]:
        lines = (
            f"bed {bed.name}: job {job.job_id} is in the queue already ({job.kind}: {job_state.describe(job)})"
            for job in jobs
        )
        raise InfrastructureError(*lines, hint=f"cancel it: ccbed down {bed.inventory}")


def adopt(bed: BedSpec, job_id: int) -> Allocation:
    """The allocation of a running job of the user, which ``release`` never cancels. Raises UsageError where it does not fit."""
    job = job_state.read_job(job_id)
    if job is None or job.kind != "running":
        text = f"it is {job.kind}: {job_state.describe(job)}" if job else "the controller does not know it"
        raise UsageError(f"job {job_id} holds no nodes: {text}", hint="your jobs: squeue --me")
    if job.user != getpass.getuser() and os.geteuid() != 0:
        raise UsageError(f"job {job_id} belongs to {job.user}", hint="your jobs: squeue --me")
    return _allocation(job, bed, is_owned=False)


def _granted(job_id: int, bed: BedSpec, clock: Callable[[], float]) -> Allocation:
    """The allocation of the job that salloc has just obtained. Raises InfrastructureError."""
    until = clock() + GRANTED_S
    while True:
        try:
            job = job_state.read_job(job_id)
            if job is None or not job.node_list or job.kind in job_state.FINAL:
                break
            return _allocation(job, bed, is_owned=True)
        except SlurmError:
            if clock() >= until:
                raise
            time.sleep(1.0)
    text = job_state.describe(job) if job else "the controller does not know it"
    raise InfrastructureError(f"job {job_id} of bed {bed.name} ended as soon as it had started: {text}")


def _allocation(job: Job, bed: BedSpec, *, is_owned: bool) -> Allocation:
    nodes = job_state.expand(job.node_list)
    needed = len(bed.hosts)
    if len(nodes) < needed:
        raise UsageError(
            f"job {job.job_id} has {len(nodes)} nodes ({job.node_list}); bed {bed.name} needs {needed}, spares included",
            hint="use a larger job, or set ccbed_nodes and ccbed_spares to fewer",
        )
    known = job_state.read_nodes(nodes[:needed])
    return Allocation(
        job_id=job.job_id, nodes=nodes[:needed],
        addresses=tuple(known.get(name, {}).get("NodeAddr") or name for name in nodes[:needed]),
        ports=tuple(_port(known.get(name, {})) for name in nodes[:needed]),
        ends_at=job.ends_at, is_owned=is_owned, name=job.name,
    )  # fmt: skip


def _port(node: Mapping[str, str]) -> int:
    return int(port) if (port := node.get("Port", "")).isdigit() else SLURMD_PORT


def read_state(allocation: Allocation, deadline_s: float | None = None) -> JobState:
    """Two RPCs. Raises SlurmError while the controller does not respond: then the state is not known."""
    return job_state.read_state(allocation.job_id, allocation.nodes, deadline_s)


def release(bed: BedSpec, allocation: Allocation | None) -> tuple[int, ...]:
    """Cancel the bed's jobs that ccbed submitted, and wait until they are gone; their numbers. Raises SlurmError.

    Job ids are used again, so a recorded job is cancelled only if its user, name and comment are those of the bed.
    """
    own = {job.job_id for job in jobs_of(bed)}
    recorded = allocation.job_id if allocation else 0
    if allocation and not allocation.is_owned:
        own -= {recorded}
    elif recorded and recorded not in own:
        _refuse_altered(bed, recorded)
    return _cancel(bed, own)


def _refuse_altered(bed: BedSpec, job_id: int) -> None:
    """Raises SlurmError for a job of the user with the bed's name and another comment: `scontrol update` may have altered it."""
    job = job_state.read_job(job_id)
    if job and job.kind not in job_state.FINAL and (job.user, job.name) == (getpass.getuser(), f"ccbed-{bed.name}"):
        raise SlurmError(
            f"job {job_id} is not cancelled: its comment ({job.comment!r}) is not that of bed {bed.name}",
            hint=f"if it is the job of this bed: scancel {job_id}, then: ccbed down {bed.name}",
        )


def _cancel(bed: BedSpec, job_ids: Collection[int]) -> tuple[int, ...]:
    """Cancel these jobs, and wait until they are gone; ``--quiet``: one that has ended meanwhile is no error."""
    wanted = [str(job_id) for job_id in sorted(job_ids)]
    if not wanted:
        return ()
    slurm_commands.run(["scancel", "--quiet", *wanted])
    began = time.monotonic()
    pause_s = 0.1
    while left := [job for job in _read_queued(",".join(wanted)) if job.kind not in job_state.FINAL]:
        if time.monotonic() > began + COMPLETING_S and all(job.kind == "completing" for job in left):
            break
        if time.monotonic() > began + END_S:
            lines = (
                f"job {job.job_id} of bed {bed.name} is still {job.kind} {END_S:.0f} s after scancel" for job in left
            )
            raise SlurmError(*lines, hint=f"try again: ccbed down {bed.name}")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 5.0)
    return tuple(map(int, wanted))


def _cancel_after(bed: BedSpec, job_id: int) -> None:
    """Cancel the job of a request that failed. Raises SlurmError with the job that stays where that is not possible."""
    try:
        _cancel(bed, {job.job_id for job in jobs_of(bed)} | ({job_id} if job_id else set()))
    except CcbedError as error:
        which = f"job {job_id}" if job_id else "its job, if the controller accepted it,"
        hint = f"cancel it later: ccbed down {bed.inventory}"
        raise SlurmError(f"bed {bed.name}: {which} may still be in the queue: {error}", hint=hint) from error


def _read_queued(listed: str) -> tuple[Job, ...]:
    try:
        return job_state.read_jobs(f"--jobs={listed}")
    except slurm_commands.SlurmUsageError:  # none of them is known any more
        return ()


# --- the record of a kept bed -----------------------------------------------------------------------------------------


def write(allocation: Allocation, workdir: Path) -> None:
    workdir.mkdir(parents=True, exist_ok=True, mode=0o700)
    plain_files.write_json(workdir / FILE, codec.plain(allocation))


def read(workdir: Path) -> Allocation | None:
    """The allocation of a kept bed as it was recorded; None without a record. Raises InfrastructureError if it is damaged."""
    file = workdir / FILE
    try:
        return codec.build(Allocation, json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InfrastructureError(
            f"{file}: not a readable record of an allocation ({error})", hint="ccbed down"
        ) from None


def read_intact(workdir: Path) -> Allocation | None:
    """Do what ``read`` does; None also for a damaged record: the end of a bed finds its job by the job's name and comment."""
    try:
        return read(workdir)
    except InfrastructureError:
        return None


def refresh(workdir: Path) -> Allocation | None:
    """Read the record with the present end of the job, which `scontrol update` may change; the recorded one if that is not known."""
    present = read(workdir)
    with suppress(SlurmError):
        job = job_state.read_job(present.job_id, MOMENT_S) if present else None
        if present and job and job.kind == "running" and job.ends_at != present.ends_at:
            present = replace(present, ends_at=job.ends_at)
            write(present, workdir)
    return present


# --- waiting for salloc -----------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Request:
    """A salloc that waits. ``lines``: of its standard error; None at its end."""

    process: subprocess.Popen[str]
    lines: queue.Queue[str | None] = field(default_factory=queue.Queue)
    output: list[str] = field(default_factory=list)
    reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read, daemon=True)

    @property
    def job_id(self) -> int:
        """0 until the controller has accepted the job."""
        match = next((match for line in self.output if (match := _GRANTED.search(line) or _PENDING.search(line))), None)
        return int(match[1]) if match else 0

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def next_line(self, timeout_s: float) -> bool:
        """Return whether salloc still runs, after its next line or ``timeout_s`` seconds."""
        with suppress(queue.Empty):
            line = self.lines.get(timeout=max(timeout_s, 0.0))
            if line is None:
                return False
            self.output.append(line)
        return True

    def withdraw(self) -> None:
        """SIGTERM: salloc cancels a job that waits."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(5)
        while not self.lines.empty():
            self.next_line(0.0)


@contextmanager
def _salloc(command: list[str]) -> Iterator[_Request]:
    """It is not in the terminal's group, so Ctrl-C reaches ccbed only; SIGTERM ends it when ccbed is killed."""
    if shutil.which(command[0]) is None:
        raise slurm_commands.missing_client(command[0])
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _END_WITH_PARENT, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        env=slurm_commands.environment(), start_new_session=True,
    )  # fmt: skip
    request = _Request(process=process)
    request.reader.start()
    try:
        yield request
    finally:
        if process.poll() is None:
            request.withdraw()
        request.reader.join(5)


def _wait(
    request: _Request, bed: BedSpec, wait_s: float | None, report: Callable[[str], None], clock: Callable[[], float]
) -> None:
    """Wait until salloc has the allocation. The limits of partitions are read once at most. Raises CcbedError."""
    node_limits = functools.cache(job_state.read_node_limits)
    began = clock()
    next_poll = began + FIRST_S
    while request.next_line(min(next_poll, began + wait_s if wait_s is not None else next_poll) - clock()):
        now = clock()
        if wait_s is not None and now >= began + wait_s:
            raise _too_long(request, bed, wait_s)
        if now >= next_poll and request.job_id:
            next_poll = now + POLL_S
            with suppress(SlurmError):  # the job waits on while the controller is away
                _poll(request.job_id, bed, report, node_limits)
        elif now >= next_poll:
            next_poll = now + 1.0
    if request.process.wait():
        raise _failed(request, bed)


def _poll(
    job_id: int, bed: BedSpec, report: Callable[[str], None], node_limits: Callable[[], Mapping[str, float]]
) -> None:
    """Report why the job waits. Raises UsageError for one that never starts, SlurmError."""
    job = job_state.read_job(job_id)
    if job and job_state.never_starts(job, node_limits):
        raise UsageError(
            f"{bed.inventory}: bed {bed.name}: job {job.job_id} would never start: {job_state.describe(job)}; it is cancelled",
            hint=f"correct {bed.inventory}; the partitions: sinfo --summarize",
        )
    if job and job.kind == "pending":
        start = job_state.describe_start(job, time.time())
        report(f"job {job.job_id} waits in partition {job.partition}: {job_state.describe(job)}; {start}")


def _too_long(request: _Request, bed: BedSpec, wait_s: float) -> CcbedError:
    reason = "the controller has not accepted the job yet"
    if request.job_id:
        reason = "Slurm's controller does not respond"
        with suppress(SlurmError):
            job = job_state.read_job(request.job_id)
            reason = job_state.describe(job) if job else "the controller does not know it"
    return InfrastructureError(
        f"bed {bed.name}: its job has not started within {wait_s:g} s: {reason}; it is cancelled",
        hint="wait longer (--wait 1h), or ask for less: fewer nodes, a shorter ccbed_time, another ccbed_partition",
    )


def _failed(request: _Request, bed: BedSpec) -> CcbedError:
    output = "\n".join(request.output)
    if request.job_id and re.search(r"has been (cancelled|revoked)|already completing", output):
        return InfrastructureError(
            f"bed {bed.name}: job {request.job_id} was cancelled while it waited (scancel, or an administrator)",
            hint=f"submit it again: ccbed up {bed.inventory}",
        )
    error = slurm_commands.explain(["salloc"], output)
    return type(error)(*(f"{bed.inventory}: bed {bed.name}: {problem}" for problem in error.problems), hint=error.hint)


# --- for people -------------------------------------------------------------------------------------------------------


def batch_script(bed: BedSpec, command: str) -> str:
    """A script for sbatch that runs ``command`` in a job of the user with the nodes of the bed's job.

    It has no name and no comment of a bed: ccbed must not take the job in which it runs for one of its own.
    """
    assert bed.slurm is not None
    options = ["--no-kill", *cluster.limits(bed.slurm)]
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {_quoted(option)}" for option in options), command, ""])


def _quoted(option: str) -> str:
    """sbatch ends a line at ``#`` outside of quotes."""
    name, separator, value = option.partition("=")
    return f"{name}{separator}{shlex.quote(value) if value else ''}"
