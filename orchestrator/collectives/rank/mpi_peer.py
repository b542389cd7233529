"""Open MPI as a peer of this rank: joins the forked ranks to one MPI job, and runs a case by its own or by a forced algorithm.

Rank 0 runs mpirun, which starts one program per rank beside itself. Each program sends its environment to rank 0 and waits. With such
an environment, a rank on any host is a process of the job: it reaches mpirun's server over TCP, and is in its own network namespace or
container. So there is no ssh, and no further process that computes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ...model.frozen import dataclass, field
from ...rank.exchange import backend_calls
from ...rank.exchange.cases import REDUCING, Item
from . import mpi_names

if TYPE_CHECKING:
    from ...rank.runtime import context

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
        """Let the programs that mpirun started end, and wait for them. MPI_Finalize comes before."""
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
    programs = mpi_names.find()
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


def arguments(programs: mpi_names.Programs, directory: Path, world: int) -> list[str]:
    """mpirun's command line: one program per rank on its own host, without a remote shell."""
    return [
        programs.mpirun, "--allow-run-as-root", "--mca", "plm", "isolated", "--bind-to", "none", "--oversubscribe",
        "-np", str(world), sys.executable, "-S", "-E", "-c", _PROGRAM, str(directory),
    ]  # fmt: skip


def _scatter(job: Job, rank: int, programs: mpi_names.Programs, interface: str) -> Mapping[str, str]:
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


def _start(job: Job, programs: mpi_names.Programs, interface: str) -> list[dict[str, str]]:
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


_TYPES = {
    "float32": "FLOAT", "float64": "DOUBLE", "int32": "INT32_T", "int64": "INT64_T", "uint8": "UINT8_T", "int8": "INT8_T",
}  # fmt: skip
#: avg is a sum; the caller divides it.
_OPERATORS = {
    "sum": "SUM", "avg": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR",
}  # fmt: skip
_LIBRARY = "libmpi.so.40"
#: Runs a collective once.
Call = Callable[[], Any]


def is_needed(items: Iterable[Item], backend: str) -> bool:
    """Return whether an item needs Open MPI. Raises installed.Missing if it is not installed. Called before anything starts."""
    if not any(mpi_names.is_open_mpi(item.algorithm) for item in items):
        return False
    if backend != "gloo":
        raise mpi_names.Missing(f"{mpi_names.MPI} is measured on CPUs only, with backend gloo (got {backend})")
    mpi_names.find()
    mpi4py_module()
    return True


def connect(ctx: context.RankContext) -> Peer:
    """Make this rank a process of an MPI job. A collective of all ranks of a connected gang."""
    job = join(ctx.rank, interface=os.environ.get("GLOO_SOCKET_IFNAME", ""), out=ctx.gang.out)
    return Peer(job)


class Peer:
    """This rank as a process of an MPI job in which every rank keeps its number."""

    def __init__(self, job: Job) -> None:
        self._mpi, self._job = mpi4py_module(), job
        self._mpi.Init_thread(self._mpi.THREAD_FUNNELED)
        self._parameters = _Parameters()
        self._comms: dict[tuple[tuple[int, ...], str, int], Any] = {}

    def work(self, item: Item, arguments: backend_calls.Call) -> Call:
        """A function that runs the item once per call. Called by all ranks of the group."""
        parameter, value = mpi_names.forced(item.algorithm, item.operation)
        comm = self._comm(tuple(arguments.ranks), parameter, value)
        call = _Bound(self._mpi, comm, item, arguments)
        return _CALLS[item.operation](call)

    def leave(self) -> None:
        """Leave the MPI job, after all work of every rank."""
        self._mpi.Finalize()
        self._job.leave()

    def _comm(self, ranks: tuple[int, ...], parameter: str, value: int) -> Any:
        """A communicator with the forced algorithm: Open MPI reads the parameter when it creates one."""
        key = ranks, parameter, value
        if key not in self._comms:
            world = self._mpi.COMM_WORLD
            with self._parameters.forced(parameter, value):
                self._comms[key] = world.Create_group(world.Get_group().Incl(list(ranks)))
        return self._comms[key]


def mpi4py_module() -> Any:
    """mpi4py over Open MPI, not initialised. Raises installed.Missing."""
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise mpi_names.Missing(
            f"mpi4py cannot find an MPI library: {str(error).splitlines()[0]} ({mpi_names.ADVICE})"
        ) from None
    vendor, version = MPI.get_vendor()
    if vendor != "Open MPI" or version[0] != mpi_names.MAJOR:
        version_shown = ".".join(map(str, version))
        raise mpi_names.Missing(
            f"mpi4py uses {vendor} {version_shown}; required is Open MPI {mpi_names.MAJOR}.1 ({mpi_names.ADVICE})"
        )
    return MPI


class _Parameters:
    """Sets parameters of the running library by the tools interface of the MPI standard (chapter 15: MPI_T)."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_LIBRARY)
        self._do("MPI_T_init_thread", ctypes.c_int(0), ctypes.byref(ctypes.c_int()))

    @contextlib.contextmanager
    def forced(self, parameter: str, value: int) -> Iterator[None]:
        """Force the algorithm within this context, and leave the choice to Open MPI afterwards."""
        if value:
            self._write(parameter, value)
        yield
        if value:
            self._write(parameter, 0)

    def _write(self, parameter: str, value: int) -> None:
        index, handle, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        self._do("MPI_T_cvar_get_index", parameter.encode(), ctypes.byref(index))
        self._do("MPI_T_cvar_handle_alloc", index, None, ctypes.byref(handle), ctypes.byref(count))
        self._do("MPI_T_cvar_write", handle, ctypes.byref(ctypes.c_int(value)))
        self._do("MPI_T_cvar_handle_free", ctypes.byref(handle))

    def _do(self, name: str, *args: Any) -> None:
        code = getattr(self._library, name)(*args)
        if code:
            raise Failed(f"{name} of Open MPI failed: error {code}")


class _Bound:
    """The arguments of a call as MPI takes them: the memory of the tensors themselves."""

    def __init__(self, mpi: Any, comm: Any, item: Item, arguments: backend_calls.Call) -> None:
        self.mpi, self.comm, self.arguments, self.root = mpi, comm, arguments, arguments.root
        combining = item.operation in REDUCING
        self._type = getattr(mpi, _TYPES[item.dtype]) if combining else mpi.BYTE
        self.operator = getattr(mpi, _OPERATORS[item.operator]) if combining else None

    @property
    def own(self) -> list[Any]:
        return self.buffer(self.arguments.own)

    @property
    def whole(self) -> list[Any]:
        return self.buffer(self.arguments.whole)

    @property
    def at_root(self) -> list[Any] | None:
        """The whole buffer, which only the root has."""
        return self.whole if self.arguments.me == self.root else None

    def buffer(self, tensor: torch.Tensor) -> list[Any]:
        return [tensor.view(torch.uint8).numpy(), self._type]


def _reduce_scatter(call: _Bound) -> Call:
    counts = [stop - start for start, stop in call.arguments.layout.parts]
    return partial(call.comm.Reduce_scatter, call.whole, call.own, counts, call.operator)


def _reduce(call: _Bound) -> Call:
    source, target = (call.mpi.IN_PLACE, call.whole) if call.at_root else (call.whole, None)
    return partial(call.comm.Reduce, source, target, call.operator, call.root)


def _all_to_all(call: _Bound) -> Call:
    """Alltoallv for blocks of different sizes."""
    world, parts = len(call.arguments.ranks), call.arguments.layout.parts
    out, into = parts[:world], parts[world : 2 * world]
    source, target = (call.buffer(call.arguments.flat[side[0][0] : side[-1][1]]) for side in (out, into))
    if len({stop - start for start, stop in parts[: 2 * world]}) == 1:
        return partial(call.comm.Alltoall, source, target)
    width = call.arguments.flat.element_size()
    sent, got = ([(stop - start) * width for start, stop in side] for side in (out, into))
    return partial(call.comm.Alltoallv, [source[0], sent, source[1]], [target[0], got, target[1]])


def _neighbours(call: _Bound) -> Call:
    (start, middle), (_, stop) = call.arguments.layout.parts
    out, into = call.buffer(call.arguments.flat[start:middle]), call.buffer(call.arguments.flat[middle:stop])
    world = len(call.arguments.ranks)
    right, left = (call.arguments.me + 1) % world, (call.arguments.me - 1) % world
    return partial(call.comm.Sendrecv, out, right, 0, into, left, 0)


_CALLS: Mapping[str, Callable[[_Bound], Call]] = {
    "all-reduce": lambda call: partial(call.comm.Allreduce, call.mpi.IN_PLACE, call.whole, call.operator),
    "all-gather": lambda call: partial(call.comm.Allgather, call.own, call.whole),
    "reduce-scatter": _reduce_scatter,
    "broadcast": lambda call: partial(call.comm.Bcast, call.whole, call.root),
    "reduce": _reduce,
    "gather": lambda call: partial(call.comm.Gather, call.own, call.at_root, call.root),
    "scatter": lambda call: partial(call.comm.Scatter, call.at_root, call.own, call.root),
    "all-to-all": _all_to_all,
    "send-recv": _neighbours,
    "barrier": lambda call: partial(call.comm.Barrier),
}
