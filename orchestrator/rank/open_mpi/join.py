"""Joins the forked ranks to one MPI job, without ssh and without further processes that compute.

Rank 0 runs mpirun. Where mpirun would start orted on another host by ssh, a rank on that host starts it: the command is sent
over the process group of the gang. mpirun and orted start launcher.py, which sends its environment to its rank. With that
environment, the rank is the process of the job, in its own network namespace or container.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...model.frozen import dataclass, field
from . import installed, launcher

#: The program that mpirun runs in place of ssh, and the directory for the commands it starts.
AGENT, _HOSTS = "ccbed-host", "hosts"
LIMIT_S = 60.0
_END_S = 10.0
_SLICE_S = 0.05
#: The ioctl that gives the IPv4 address of an interface, and how long the name of one may be.
_SIOCGIFADDR, _NAME = 0x8915, 15
#: Prefixes of the variables by which a process belongs to the job.
_TAKEN = ("OMPI_", "PMIX_", "ORTE_", "OPAL_")


class Failed(Exception):
    """mpirun did not start the job."""

    kind = "mpi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The location of a rank: its host for mpirun, the directory of its socket, the interface for MPI."""

    rank: int
    host: str
    directory: str
    interface: str


@dataclass(slots=True, kw_only=True)
class Job:
    """This rank's part of the job. ``connections``: while they are open, the programs that mpirun started run."""

    directory: Path
    connections: list[socket.socket] = field(default_factory=list)
    started: subprocess.Popen[bytes] | None = None

    def leave(self) -> None:
        """After MPI_Finalize: let the programs that mpirun started end, and wait for them."""
        for connection in self.connections:
            connection.close()
        if self.started:
            try:
                self.started.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.started.kill()
                self.started.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def join(rank: int, *, interface: str, master: tuple[str, int], out: str) -> Job:
    """Join the job, as a collective of all ranks. Afterwards the environment is that of a process of the job, for MPI_Init.

    ``out``: a directory for this rank's files. Raises Failed and installed.Missing.
    """
    programs = installed.find()
    directory = Path(out) / f"mpi-r{rank}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    host = _address(interface, master)
    own = Location(rank=rank, host=host, directory=str(directory.resolve()), interface=interface)
    job, listener = Job(directory=directory), _listen(directory)
    locations = _gather(own)
    commands = _share(lambda: _mpirun(job, programs, locations) if rank == 0 else {})
    first = min(location.rank for location in locations if location.host == host)
    if rank == first and host in commands:
        job.started = _spawn(orted(commands[host], programs), directory, programs, {})
    connection, environment = _receive(listener, _Watch(job))
    job.connections.append(connection)
    _apply_environment(environment, interface, programs)
    return job


def order(locations: Iterable[Location]) -> tuple[Location, ...]:
    """The ranks in mpirun's order: host by host."""
    hosts: dict[str, list[Location]] = {}
    for location in sorted(locations, key=lambda location: location.rank):
        hosts.setdefault(location.host, []).append(location)
    return tuple(location for members in hosts.values() for location in members)


def settings(locations: Sequence[Location], interface: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Open MPI's parameters: TCP over the node's interface only, and algorithms that can be forced.

    Settings of the user in ``environment`` stay. Ranks share cores, so that a waiting rank yields.
    """
    same = len({location.interface for location in locations}) == 1 and bool(interface)
    values = {
        "pml": "ob1", "btl": "tcp,self", "coll": "^han,hcoll,ucc", "coll_tuned_use_dynamic_rules": "1",
        "mpi_yield_when_idle": "1", **({"btl_tcp_if_include": interface} if interface else {}),
        **({"oob_tcp_if_include": interface} if same else {}),
    }  # fmt: skip
    return {f"OMPI_MCA_{name}": value for name, value in values.items() if f"OMPI_MCA_{name}" not in environment}


def arguments(locations: Sequence[Location], programs: installed.Programs, agent: str, script: str) -> list[str]:
    """mpirun's command line: on every host one process per rank, in the order of ``order``."""
    counts: dict[str, int] = {}
    for location in locations:
        counts[location.host] = counts.get(location.host, 0) + 1
    hosts = ",".join(f"{host}:{count}" for host, count in counts.items())
    own = ["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent, "--mca", "plm_rsh_no_tree_spawn", "1"]
    return [
        programs.mpirun, "--allow-run-as-root", "--leave-session-attached", *own, "--bind-to", "none", "--map-by", "slot",
        "--oversubscribe", "--host", hosts, "-np", str(len(locations)),
        sys.executable, "-S", "-E", script, "rank", *(location.directory for location in locations),
    ]  # fmt: skip


def _mpirun(job: Job, programs: installed.Programs, locations: Sequence[Location]) -> dict[str, list[str]]:
    """Start mpirun; return host -> the command that it starts there. Raises Failed."""
    inner = job.directory / _HOSTS
    inner.mkdir(mode=0o700)
    listener = _listen(inner)
    argv = arguments(order(locations), programs, AGENT, launcher.__file__)
    job.started = _spawn(argv, job.directory, programs, settings(locations, locations[0].interface, os.environ))
    hosts = {location.host for location in locations} - {locations[0].host}
    commands: dict[str, list[str]] = {}
    while hosts - set(commands):
        connection, message = _receive(listener, _Watch(job))
        job.connections.append(connection)
        commands[message["host"]] = message["command"]
    listener.close()
    return commands


def _spawn(
    argv: Sequence[str], directory: Path, programs: installed.Programs, more: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a program; its output goes to the rank's log, its files into ``directory``.

    orted also requires the remote shell, although it never calls it.
    """
    agent, path = directory / AGENT, f"{directory.resolve()}:{os.environ.get('PATH', os.defpath)}"
    words = [sys.executable, "-S", "-E", launcher.__file__, "host", str(directory.resolve() / _HOSTS)]
    agent.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    agent.chmod(0o700)
    own = {"TMPDIR": str(directory.resolve()), "PATH": path}
    env = {**os.environ, **more, **programs.environment(), **own}
    return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL)


def orted(command: Sequence[str], programs: installed.Programs) -> list[str]:
    """The orted command within a command for a remote shell. Raises Failed for any other program."""
    words = shlex.split(" ".join(command))
    position = next((index for index, word in enumerate(words) if Path(word).name == "orted"), None)
    if position is None:
        raise Failed(f"mpirun starts {shlex.join(words)!r}, which is not orted")
    return [programs.orted, *words[position + 1 :]]


def _apply_environment(environment: Mapping[str, str], interface: str, programs: installed.Programs) -> None:
    taken = {name: value for name, value in environment.items() if name.startswith(_TAKEN)}
    taken.pop("OPAL_PREFIX", None)
    if interface and "OMPI_MCA_btl_tcp_if_include" not in os.environ:
        taken["OMPI_MCA_btl_tcp_if_include"] = interface
    os.environ.update(taken | programs.environment())


@dataclass(frozen=True, slots=True)
class _Watch:
    """Detects that mpirun or orted has ended early, or takes too long."""

    job: Job
    until: float = field(default_factory=lambda: time.monotonic() + LIMIT_S)

    def check(self) -> None:
        """Raises Failed."""
        code = self.job.started.poll() if self.job.started else None
        if code is not None:
            raise Failed(f"mpirun or its orted ended with exit code {code}; see the log of the rank")
        if time.monotonic() > self.until:
            raise Failed(f"mpirun did not start its processes within {LIMIT_S:g} s")


def _listen(directory: Path) -> socket.socket:
    """Listen on a socket in ``directory``; bound by a short path for a directory with any name."""
    listener, folder = socket.socket(socket.AF_UNIX), os.open(directory, os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{launcher.SOCKET}")
    finally:
        os.close(folder)
    listener.listen(128)
    return listener


def _receive(listener: socket.socket, watch: _Watch) -> tuple[socket.socket, Any]:
    """The next connection and its message. Raises Failed."""
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        while not ready.select(_SLICE_S):
            watch.check()
    connection, _ = listener.accept()
    connection.settimeout(LIMIT_S)
    with connection.makefile("rb") as lines:
        return connection, json.loads(lines.readline())


def _gather(own: Location) -> list[Location]:
    locations: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(locations, own)
    return locations


def _share(act: Callable[[], dict[str, list[str]]]) -> dict[str, list[str]]:
    """The result of ``act`` on rank 0, on every rank. Raises Failed on every rank if it failed."""
    result: list[Any] = ["", {}]
    with contextlib.suppress(Failed, OSError):
        try:
            result = ["", act()]
        except (Failed, OSError) as error:
            result = [str(error) or type(error).__name__, {}]
            raise
    dist.broadcast_object_list(result, 0)
    if result[0]:
        raise Failed(result[0])
    return dict(result[1])


def _address(interface: str, master: tuple[str, int]) -> str:
    """The IPv4 address of ``interface``; if the interface is not known, the address from which ``master`` is reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if interface:
            try:
                request = struct.pack("256s", interface[:_NAME].encode())
                return socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
            except OSError:
                pass  # several interfaces are named, or it has only an IPv6 address
        probe.connect(master)
        return str(probe.getsockname()[0])
