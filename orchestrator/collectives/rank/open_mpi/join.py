"""Joins the forked ranks to one MPI job, without ssh and without further processes that compute.

Rank 0 runs mpirun, which starts one program per rank beside itself. Each program sends its environment to rank 0 and waits.
With such an environment, a rank on any host is a process of the job: it reaches mpirun's server over TCP, and is in its own
network namespace or container.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ....model.frozen import dataclass, field
from . import installed

LIMIT_S = 60.0
_END_S = 10.0
_SLICE_S = 0.05
#: Prefixes of the variables by which a process belongs to the job.
_TAKEN = ("OMPI_", "PMIX_", "ORTE_")
#: What mpirun starts: it sends its environment, and waits until rank 0 closes the connection. A path may be too long for a socket.
_PROGRAM = (
    "import json, os, socket, sys; os.chdir(sys.argv[1]); door = socket.socket(socket.AF_UNIX); door.connect('socket'); "
    "door.sendall(json.dumps(dict(os.environ)).encode() + b'\\n'); door.recv(1)"
)


class Failed(Exception):
    """mpirun did not start the job."""

    kind = "mpi"


@dataclass(slots=True, kw_only=True)
class Job:
    """This rank's part of the job. ``connections``: while they are open, the programs that mpirun started run."""

    directory: Path
    connections: list[socket.socket] = field(default_factory=list)
    mpirun: subprocess.Popen[bytes] | None = None

    def leave(self) -> None:
        """After MPI_Finalize: let the programs that mpirun started end, and wait for them."""
        for connection in self.connections:
            connection.close()
        if self.mpirun:
            try:
                self.mpirun.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.mpirun.kill()
                self.mpirun.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def join(rank: int, *, interface: str, out: str) -> Job:
    """Join the job, as a collective of all ranks. Afterwards the environment is that of a process of the job, for MPI_Init.

    ``out``: a directory for this rank's files. Raises Failed and installed.Missing.
    """
    programs = installed.find()
    job = Job(directory=(Path(out) / f"mpi-r{rank}").resolve())
    shutil.rmtree(job.directory, ignore_errors=True)
    job.directory.mkdir(mode=0o700)
    environment = {
        **_scatter(job, rank, programs, interface),
        "OMPI_MCA_orte_create_session_dirs": "0",
    }  # it is rank 0's
    if interface and "OMPI_MCA_btl_tcp_if_include" not in os.environ:
        environment["OMPI_MCA_btl_tcp_if_include"] = interface
    os.environ.update(environment | programs.environment())
    return job


def settings(interface: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Open MPI's parameters: TCP over the node's interface only, and algorithms that can be forced.

    Settings of the user in ``environment`` stay. Ranks share cores, so that a waiting rank yields. Ranks on other hosts share
    no memory with mpirun, and may have another user id.
    """
    remote = interface and interface != "lo"
    values = {
        "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_coll": "^han,hcoll,ucc",
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
        "PMIX_MCA_gds": "hash", "PMIX_MCA_psec": "none", **({"OMPI_MCA_btl_tcp_if_include": interface} if interface else {}),
        **({"PMIX_MCA_ptl_tcp_remote_connections": "1", "PMIX_MCA_ptl_tcp_if_include": interface} if remote else {}),
    }  # fmt: skip
    return {name: value for name, value in values.items() if name not in environment}


def arguments(programs: installed.Programs, directory: Path, world: int) -> list[str]:
    """mpirun's command line: one program per rank on its own host, without a remote shell."""
    return [
        programs.mpirun, "--allow-run-as-root", "--mca", "plm", "isolated", "--bind-to", "none", "--oversubscribe",
        "-np", str(world), sys.executable, "-S", "-E", "-c", _PROGRAM, str(directory),
    ]  # fmt: skip


def _scatter(job: Job, rank: int, programs: installed.Programs, interface: str) -> Mapping[str, str]:
    """The environment for this rank; rank 0 starts mpirun. Raises Failed on every rank if it failed."""
    result: list[Any] = ["", []]
    if rank == 0:
        try:
            result = ["", _start(job, programs, interface)]
        except (Failed, OSError) as error:
            result = [str(error) or type(error).__name__, []]
    dist.broadcast_object_list(result, 0)
    if result[0]:
        raise Failed(result[0])
    environment: Mapping[str, str] = result[1][rank]
    return environment


def _start(job: Job, programs: installed.Programs, interface: str) -> list[dict[str, str]]:
    """Start mpirun; the environments of its programs, by rank. Its output goes to the log of rank 0. Raises Failed, OSError."""
    world = dist.get_world_size()
    own = {**settings(interface, os.environ), **programs.environment(), "TMPDIR": str(job.directory)}
    environments: dict[int, dict[str, str]] = {}
    with _listen(job.directory) as listener:
        argv = arguments(programs, job.directory, world)
        job.mpirun = subprocess.Popen(argv, env={**os.environ, **own}, stdin=subprocess.DEVNULL)
        until = time.monotonic() + LIMIT_S
        while len(environments) < world:
            environment = _receive(job, listener, until)
            taken = {name: value for name, value in environment.items() if name.startswith(_TAKEN)}
            taken.pop("PMIX_INSTALL_PREFIX", None)  # of rank 0's host
            environments[int(taken["OMPI_COMM_WORLD_RANK"])] = taken
    return [environments[rank] for rank in range(world)]


def _listen(directory: Path) -> socket.socket:
    """Listen on a socket in ``directory``; bound by a short path for a directory with any name."""
    listener, folder = socket.socket(socket.AF_UNIX), os.open(directory, os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{folder}/socket")
    finally:
        os.close(folder)
    listener.listen(128)
    listener.settimeout(_SLICE_S)
    return listener


def _receive(job: Job, listener: socket.socket, until: float) -> dict[str, str]:
    """The environment of the program that connects next. Raises Failed if mpirun has ended early, or takes too long."""
    while True:
        try:
            connection, _ = listener.accept()
            break
        except TimeoutError:
            code = job.mpirun.poll() if job.mpirun else None
            if code is not None:
                raise Failed(f"mpirun ended with exit code {code}; see the log of rank 0") from None
            if time.monotonic() > until:
                raise Failed(f"mpirun did not start its programs within {LIMIT_S:g} s") from None
    connection.settimeout(LIMIT_S)
    job.connections.append(connection)
    with connection.makefile("rb") as lines:
        environment: dict[str, str] = json.loads(lines.readline())
    return environment
