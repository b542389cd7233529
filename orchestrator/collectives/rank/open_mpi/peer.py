"""Open MPI as a peer of this rank: runs a case by its own choice of algorithm or by a forced one."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ....rank.exchange import backend_calls
from ....rank.exchange.cases import REDUCING, Item
from . import installed, join, names

if TYPE_CHECKING:
    from ....rank.runtime import context

_TYPES = {
    "float32": "FLOAT", "float64": "DOUBLE", "int32": "INT32_T", "int64": "INT64_T", "uint8": "UINT8_T", "int8": "INT8_T",
}  # fmt: skip
#: avg is a sum; the caller divides it.
_OPERATORS = {
    "sum": "SUM", "avg": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR",
}  # fmt: skip
_LIBRARY = "libmpi.so.40"


def is_needed(items: Iterable[Item], backend: str) -> bool:
    """Whether an item needs Open MPI. Raises installed.Missing if it is not installed. Called before anything starts."""
    if not any(names.is_open_mpi(item.algorithm) for item in items):
        return False
    if backend != "gloo":
        raise installed.Missing(f"{names.MPI} is measured on CPUs only, with backend gloo (got {backend})")
    installed.find()
    mpi4py_module()
    return True


def connect(ctx: context.RankContext) -> Peer:
    """Make this rank a process of an MPI job. A collective of all ranks of a connected gang."""
    job = join.join(ctx.rank, interface=os.environ.get("GLOO_SOCKET_IFNAME", ""), out=ctx.gang.out)
    return Peer(job)


class Peer:
    """This rank as a process of an MPI job in which every rank keeps its number."""

    def __init__(self, job: join.Job) -> None:
        self._mpi, self._job = mpi4py_module(), job
        self._mpi.Init_thread(self._mpi.THREAD_FUNNELED)
        self._parameters = _Parameters()
        self._comms: dict[tuple[tuple[int, ...], str, int], Any] = {}

    def work(self, item: Item, arguments: backend_calls.Call) -> Callable[[], None]:
        """A function that runs the item once per call. Called by all ranks of the group."""
        parameter, value = names.forced(item.algorithm, item.operation)
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
        raise installed.Missing(
            f"mpi4py cannot find an MPI library: {str(error).splitlines()[0]} ({installed.ADVICE})"
        ) from None
    vendor, version = MPI.get_vendor()
    if vendor != "Open MPI" or version[0] != installed.MAJOR:
        version_shown = ".".join(map(str, version))
        raise installed.Missing(
            f"mpi4py uses {vendor} {version_shown}; required is Open MPI {installed.MAJOR}.1 ({installed.ADVICE})"
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
            raise join.Failed(f"{name} of Open MPI failed: error {code}")


class _Bound:
    """The arguments of a call as MPI takes them: the memory of the tensors themselves."""

    def __init__(self, mpi: Any, comm: Any, item: Item, arguments: backend_calls.Call) -> None:
        self.mpi, self.comm, self.arguments, self.root = mpi, comm, arguments, arguments.root
        combining = item.operation in REDUCING
        self._type = getattr(mpi, _TYPES[item.dtype]) if combining else mpi.BYTE
        self.operator = getattr(mpi, _OPERATORS[item.operator]) if combining else None

    @property
    def is_root(self) -> bool:
        return self.arguments.me == self.root

    def buffer(self, tensor: torch.Tensor) -> list[Any]:
        return [tensor.view(torch.uint8).numpy(), self._type]


def _all_reduce(call: _Bound) -> Callable[[], None]:
    whole = call.buffer(call.arguments.whole)
    return lambda: call.comm.Allreduce(call.mpi.IN_PLACE, whole, call.operator)


def _all_gather(call: _Bound) -> Callable[[], None]:
    own, whole = call.buffer(call.arguments.own), call.buffer(call.arguments.whole)
    return lambda: call.comm.Allgather(own, whole)


def _reduce_scatter(call: _Bound) -> Callable[[], None]:
    own, whole = call.buffer(call.arguments.own), call.buffer(call.arguments.whole)
    counts = [stop - start for start, stop in call.arguments.layout.parts]
    return lambda: call.comm.Reduce_scatter(whole, own, counts, call.operator)


def _broadcast(call: _Bound) -> Callable[[], None]:
    whole = call.buffer(call.arguments.whole)
    return lambda: call.comm.Bcast(whole, call.root)


def _reduce(call: _Bound) -> Callable[[], None]:
    whole = call.buffer(call.arguments.whole)
    source, target = (call.mpi.IN_PLACE, whole) if call.is_root else (whole, None)
    return lambda: call.comm.Reduce(source, target, call.operator, call.root)


def _gather(call: _Bound) -> Callable[[], None]:
    own, whole = call.buffer(call.arguments.own), call.buffer(call.arguments.whole) if call.is_root else None
    return lambda: call.comm.Gather(own, whole, call.root)


def _scatter(call: _Bound) -> Callable[[], None]:
    own, whole = call.buffer(call.arguments.own), call.buffer(call.arguments.whole) if call.is_root else None
    return lambda: call.comm.Scatter(whole, own, call.root)


def _all_to_all(call: _Bound) -> Callable[[], None]:
    """Alltoallv for blocks of different sizes."""
    world, parts = len(call.arguments.ranks), call.arguments.layout.parts
    out, into = parts[:world], parts[world : 2 * world]
    source, target = (call.buffer(call.arguments.flat[side[0][0] : side[-1][1]]) for side in (out, into))
    if len({stop - start for start, stop in parts[: 2 * world]}) == 1:
        return lambda: call.comm.Alltoall(source, target)
    width = call.arguments.flat.element_size()
    sent, got = ([(stop - start) * width for start, stop in side] for side in (out, into))
    (data, kind), (into_data, _) = source, target
    return lambda: call.comm.Alltoallv([data, sent, kind], [into_data, got, kind])


def _neighbours(call: _Bound) -> Callable[[], None]:
    (start, middle), (_, stop) = call.arguments.layout.parts
    out, into = call.buffer(call.arguments.flat[start:middle]), call.buffer(call.arguments.flat[middle:stop])
    world = len(call.arguments.ranks)
    right, left = (call.arguments.me + 1) % world, (call.arguments.me - 1) % world
    return lambda: _discard(call.comm.Sendrecv(out, right, 0, into, left, 0))


def _discard(_: object) -> None:
    """Discard the return value of MPI."""


def _barrier(call: _Bound) -> Callable[[], None]:
    barrier: Callable[[], None] = call.comm.Barrier
    return barrier


_CALLS: Mapping[str, Callable[[_Bound], Callable[[], None]]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "all-to-all": _all_to_all,
    "send-recv": _neighbours,
    "barrier": _barrier,
}
