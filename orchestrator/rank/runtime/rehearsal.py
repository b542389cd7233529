"""What a rank does first, done once before it is needed: a reserve rank has its code loaded and its memory copied when its order comes.

Nothing of it stays: no process group, port, file or thread. The random states that it changes are set anew by every rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import io
import os
import threading
from collections.abc import Iterator
from typing import Any

import torch

from ..checkpoint import single_file, tensor_digest
from ..exchange import communicator  # noqa: F401 a step needs it
from ..reference_models import classifier

#: Its stubs export neither the store nor what a process group does.
dist: Any = torch.distributed
TIMEOUT = datetime.timedelta(seconds=10)
#: mallopt(3): parameter -> value. Freed memory up to so many bytes stays with the process, so that the rank need not get it again.
KEPT_MEMORY = {-3: 32 << 20, -1: 64 << 20}  # M_MMAP_THRESHOLD (glibc's own upper limit), M_TRIM_THRESHOLD


def rehearse() -> None:
    """Join a group, train the reference classifier for a step, save and load a checkpoint."""
    for parameter, value in KEPT_MEMORY.items():
        if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
            mallopt(parameter, value)
    with _loopback():
        _join_alone()
        _exchange()
    for _ in range(2):
        _train()


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """gloo on the loopback interface: without it gloo looks up the name of this host."""
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        yield
    finally:
        os.environ.pop("GLOO_SOCKET_IFNAME")
        os.environ.update({} if before is None else {"GLOO_SOCKET_IFNAME": before})


def _join_alone() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=TIMEOUT)
    try:
        dist.broadcast(torch.zeros(8), 0)
    finally:
        dist.destroy_process_group()


def _exchange() -> None:
    """Two ends of a group in two threads: connect, send and receive."""
    store = dist.HashStore()
    ends = [threading.Thread(target=_be_end, args=(store, rank)) for rank in range(2)]
    for end in ends:
        end.start()
    for end in ends:
        end.join()


def _be_end(store: Any, rank: int) -> None:
    group = dist.ProcessGroupGloo(store, rank, 2, TIMEOUT)
    own, other = torch.zeros(250_000), torch.zeros(250_000)
    receiving = group.recv([other], 1 - rank, 0)
    group.send([own], 1 - rank, 0).wait()
    receiving.wait()


def _train() -> None:
    model = classifier.build()
    optimizer = torch.optim.Adam(model.parameters())
    parameters = list(model.parameters())
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
    for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    images = torch.randn(16, classifier.LAYERS[0])
    loss = classifier.loss_sum(model, images, torch.zeros(16, dtype=torch.int64))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    content = io.BytesIO()
    torch.save(single_file.state(model, optimizer), content)
    state = torch.load(io.BytesIO(content.getvalue()), map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    tensor_digest.model(model)
