"""Makes the ranks, which were forked here, the processes of one MPI job: no ssh, and nothing of MPI's beside them.

Rank 0 runs mpirun. What mpirun would have ssh start on another host (orted), a rank that is on that host starts instead: the
command comes over the gang's own group. What mpirun and orted start is no program that computes but one that hands its
environment to its rank (door.py), which thereby is that process for the job, in its own network namespace or container.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from . import installed, launcher

#: What mpirun takes for ssh, and where it leaves what it wants run.
AGENT, _HOSTS = "ccbed-host", "hosts"
LIMIT_S = 60.0
_END_S = 10.0
_SLICE_S = 0.05
#: The ioctl that gives the IPv4 address of an interface, and how long the name of one may be.
_SIOCGIFADDR, _NAME = 0x8915, 15
#: Of the environment that mpirun gives a process, what makes it that process.
_TAKEN = ("OMPI_", "PMIX_", "ORTE_", "OPAL_")


class Failed(Exception):
    """mpirun did not bring the job up."""

    kind = "mpi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank is: its host as mpirun shall call it, the directory of its door, the interface that MPI shall use."""

    rank: int
    host: str
    directory: str
    interface: str


@dataclass(slots=True, kw_only=True)
class Job:
    """This rank's share of the job. ``held``: connections that keep what mpirun started alive."""

    home: Path
    held: list[socket.socket] = field(default_factory=list)
    started: subprocess.Popen[bytes] | None = None

    def leave(self) -> None:
        """After MPI_Finalize: let go what mpirun started, and see it end."""
        for one in self.held:
            one.close()
        if self.started:
            try:
                self.started.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.started.kill()
                self.started.wait()
        shutil.rmtree(self.home, ignore_errors=True)


def join(rank: int, *, interface: str, master: tuple[str, int], out: str) -> Job:
    """To be called by all ranks; afterwards the environment is that of a process of the job, and MPI may be initialised.

    ``out``: where this rank may write. Raises Failed, and installed.Missing.
    """
    programs = installed.find()
    home = Path(out) / f"mpi-r{rank}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700)
    here = _address(interface, master)
    mine = Place(rank=rank, host=here, directory=str(home.resolve()), interface=interface)
    job, listening = Job(home=home), _listen(home)
    places = _gathered(mine)
    commands = _shared(lambda: _mpirun(job, programs, places) if rank == 0 else {})
    first = min(one.rank for one in places if one.host == mine.host)
    if rank == first and mine.host in commands:
        job.started = _spawn(orted(commands[mine.host], programs), home, programs, {})
    given = _heard(listening, _Watch(job))
    job.held.append(given[0])
    _become(given[1], interface, programs)
    return job


def order(places: Iterable[Place]) -> tuple[Place, ...]:
    """The ranks as mpirun counts them: host by host."""
    hosts: dict[str, list[Place]] = {}
    for one in sorted(places, key=lambda one: one.rank):
        hosts.setdefault(one.host, []).append(one)
    return tuple(one for members in hosts.values() for one in members)


def settings(places: Sequence[Place], interface: str, given: Mapping[str, str]) -> dict[str, str]:
    """Open MPI's parameters: TCP over the node's interface and nothing else, and algorithms that can be chosen.

    What the user has set (``given``) stays. Ranks share cores: one that waits lets the others work.
    """
    same = len({one.interface for one in places}) == 1 and bool(interface)
    values = {
        "pml": "ob1", "btl": "tcp,self", "coll": "^han,hcoll,ucc", "coll_tuned_use_dynamic_rules": "1",
        "mpi_yield_when_idle": "1", **({"btl_tcp_if_include": interface} if interface else {}),
        **({"oob_tcp_if_include": interface} if same else {}),
    }  # fmt: skip
    return {f"OMPI_MCA_{name}": value for name, value in values.items() if f"OMPI_MCA_{name}" not in given}


def arguments(places: Sequence[Place], programs: installed.Programs, agent: str, script: str) -> list[str]:
    """mpirun's command line: every host with as many processes as it has ranks, in the order of ``order``."""
    counts: dict[str, int] = {}
    for one in places:
        counts[one.host] = counts.get(one.host, 0) + 1
    hosts = ",".join(f"{host}:{count}" for host, count in counts.items())
    own = ["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent, "--mca", "plm_rsh_no_tree_spawn", "1"]
    return [
        programs.mpirun, "--allow-run-as-root", "--leave-session-attached", *own, "--bind-to", "none", "--map-by", "slot",
        "--oversubscribe", "--host", hosts, "-np", str(len(places)),
        sys.executable, "-S", "-E", script, "rank", *(one.directory for one in places),
    ]  # fmt: skip


def _mpirun(job: Job, programs: installed.Programs, places: Sequence[Place]) -> dict[str, list[str]]:
    """Run it; host -> the command that it wants run there. Raises Failed."""
    inner = job.home / _HOSTS
    inner.mkdir(mode=0o700)
    listening = _listen(inner)
    argv = arguments(order(places), programs, AGENT, launcher.__file__)
    job.started = _spawn(argv, job.home, programs, settings(places, places[0].interface, os.environ))
    wanted = {one.host for one in places} - {places[0].host}
    found: dict[str, list[str]] = {}
    while wanted - set(found):
        connection, message = _heard(listening, _Watch(job))
        job.held.append(connection)
        found[message["host"]] = message["command"]
    listening.close()
    return found


def _spawn(
    argv: Sequence[str], home: Path, programs: installed.Programs, more: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """What it says is in the rank's log; its own files are below ``home``.

    orted looks for the remote shell as well, though it never calls it.
    """
    agent, path = home / AGENT, f"{home.resolve()}:{os.environ.get('PATH', os.defpath)}"
    words = [sys.executable, "-S", "-E", launcher.__file__, "host", str(home.resolve() / _HOSTS)]
    agent.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    agent.chmod(0o700)
    own = {"TMPDIR": str(home.resolve()), "PATH": path}
    env = {**os.environ, **more, **programs.environment(), **own}
    return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL)


def orted(command: Sequence[str], programs: installed.Programs) -> list[str]:
    """The words of a command for a remote shell, which may begin with settings of that shell; nothing but orted is run."""
    words = shlex.split(" ".join(command))
    place = next((at for at, word in enumerate(words) if Path(word).name == "orted"), None)
    if place is None:
        raise Failed(f"mpirun wants {shlex.join(words)!r} run, which is no orted")
    return [programs.orted, *words[place + 1 :]]


def _become(environment: Mapping[str, str], interface: str, programs: installed.Programs) -> None:
    taken = {name: value for name, value in environment.items() if name.startswith(_TAKEN)}
    taken.pop("OPAL_PREFIX", None)
    if interface and "OMPI_MCA_btl_tcp_if_include" not in os.environ:
        taken["OMPI_MCA_btl_tcp_if_include"] = interface
    os.environ.update(taken | programs.environment())


@dataclass(frozen=True, slots=True)
class _Watch:
    """Says so where what was started has ended instead of doing its work, or has taken too long."""

    job: Job
    until: float = field(default_factory=lambda: time.monotonic() + LIMIT_S)

    def look(self) -> None:
        code = self.job.started.poll() if self.job.started else None
        if code is not None:
            raise Failed(f"mpirun or its orted ended with exit code {code}; the log of the rank says more")
        if time.monotonic() > self.until:
            raise Failed(f"mpirun did not start its processes within {LIMIT_S:g} s")


def _listen(directory: Path) -> socket.socket:
    """A socket in ``directory``; bound by a path that is short whatever the directory is called."""
    listening, folder = socket.socket(socket.AF_UNIX), os.open(directory, os.O_DIRECTORY)
    try:
        listening.bind(f"/proc/self/fd/{folder}/{launcher.DOOR}")
    finally:
        os.close(folder)
    listening.listen(128)
    return listening


def _heard(listening: socket.socket, watch: _Watch) -> tuple[socket.socket, Any]:
    """Who came through the door, and what it said."""
    with selectors.DefaultSelector() as ready:
        ready.register(listening, selectors.EVENT_READ)
        while not ready.select(_SLICE_S):
            watch.look()
    connection, _ = listening.accept()
    connection.settimeout(LIMIT_S)
    with connection.makefile("rb") as lines:
        return connection, json.loads(lines.readline())


def _gathered(mine: Place) -> list[Place]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def _shared(act: Callable[[], dict[str, list[str]]]) -> dict[str, list[str]]:
    """What rank 0 found, or its failure: on every rank."""
    told: list[Any] = ["", {}]
    with contextlib.suppress(Failed, OSError):
        try:
            told = ["", act()]
        except (Failed, OSError) as error:
            told = [str(error) or type(error).__name__, {}]
            raise
    dist.broadcast_object_list(told, 0)
    if told[0]:
        raise Failed(told[0])
    return dict(told[1])


def _address(interface: str, master: tuple[str, int]) -> str:
    """The IPv4 address of ``interface``; where it is not known, the one from which ``master`` is reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        if interface:
            try:
                asked = struct.pack("256s", interface[:_NAME].encode())
                return socket.inet_ntoa(fcntl.ioctl(one, _SIOCGIFADDR, asked)[20:24])
            except OSError:
                pass  # several may be named, or it has an IPv6 address only
        one.connect(master)
        return str(one.getsockname()[0])
