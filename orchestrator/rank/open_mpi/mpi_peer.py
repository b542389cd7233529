"""From a rank that measures to its peer in Open MPI: whether one is wanted, whether it can be had, and how to get it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..collective.cases import Item
from . import installed, names

if TYPE_CHECKING:
    from ..runtime import context
    from . import calls


def wanted(items: Iterable[Item], backend: str) -> bool:
    """Does any item want Open MPI? Raises installed.Missing where it is not here; to be asked while nothing has begun."""
    if not any(names.meant(item.algorithm) for item in items):
        return False
    if backend != "gloo":
        raise installed.Missing(f"{names.MPI} is measured on CPUs, with backend gloo (got {backend})")
    installed.find()
    from . import calls

    calls.mpi4py_module()
    return True


def peer(ctx: context.RankContext) -> calls.Peer:
    """To be called by all ranks of a gang that is connected."""
    from . import calls, join

    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    job = join.join(
        ctx.rank, interface=interface, master=(ctx.gang.master_addr, ctx.gang.master_port), out=ctx.gang.out
    )
    return calls.Peer(ctx.rank, job)
