"""Does what a rank does first, once before it is needed: a reserve rank has its code loaded and its memory copied when its order comes.

Nothing of it stays: no process group, port, file or thread; libuv keeps a pipe of its own. The random states that it
changes are set anew by every rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import gc
import importlib
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...model import codec
from ...model import gang as gang_model
from ..checkpoint import single_file, tensor_digest
from ..reference_models import classifier
from . import context, interpreter, rank_main, recorder

#: Its stubs export neither the store nor what a process group does.
dist: Any = torch.distributed
LOOPBACK = "127.0.0.1"
TIMEOUT = datetime.timedelta(seconds=10)
#: mallopt(3): parameter -> value. Freed memory up to so many bytes stays with the process, so that the rank need not get it again.
KEPT_MEMORY = {-3: 32 << 20, -1: 64 << 20}  # M_MMAP_THRESHOLD (glibc's own upper limit), M_TRIM_THRESHOLD


def rehearse() -> None:
    """Begin as a rank does, join a group, train the reference classifier and a small transformer for a step, load a checkpoint."""
    for parameter, value in KEPT_MEMORY.items():
        if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
            mallopt(parameter, value)
    with _own_environment(), _own_files() as directory:
        _begin(directory)
        _exchange()
    for _ in range(2):
        _train()
    gc.collect()  # the watcher of a script would take a model that is left for one of the script's
    gc.freeze()


@contextlib.contextmanager
def _own_environment() -> Iterator[None]:
    """Restore after the block the environment variables, and the handler of exceptions that torch replaces for a group."""
    before, hook = dict(os.environ), sys.excepthook
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        sys.excepthook = hook


@contextlib.contextmanager
def _own_files() -> Iterator[str]:
    """A directory whose files are closed and removed after the block: a rank closes them by its exit."""
    with tempfile.TemporaryDirectory() as directory:
        yield directory
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if descriptor.readlink().is_relative_to(directory):
                    os.close(int(descriptor.name))


def _begin(directory: str) -> None:
    """Read an order, set the environment, and join a gang of one rank, whose store closes its port at the end."""
    store = dist.TCPStore(LOOPBACK, 0, 1, True, wait_for_workers=False)
    order = json.dumps(codec.plain(_gang(directory, store.port)))
    gang = codec.build(gang_model.GangSpec, json.loads(order))
    rank_main.set_environment(gang, 0, "", "")
    notes = recorder.Notes(f"{directory}/events.jsonl", node="", incarnation="", rank=0, epoch=gang.epoch)
    rank_main.reseed(gang, 0)
    rank = context.RankContext(gang, 0, params=None, notes=notes, release_fd=-1)
    rank.connect()
    try:
        rank.begin_step(1)
        rank.end_step(0.0, torch.nn.Linear(8, 8))
        rank.broadcast(torch.zeros(8))
        dist.broadcast(torch.zeros(8), 0)
        _train_as_scripts_do()
    finally:
        dist.destroy_process_group()


def _gang(directory: str, port: int) -> gang_model.GangSpec:
    return gang_model.GangSpec(
        run="", epoch=0, world_size=1, nodes=1, group_rank=0, ranks=(0,), master_addr=LOOPBACK, master_port=port,
        backend="gloo", timeout_s=TIMEOUT.total_seconds(), max_restarts=0, workload="", params={}, seed=0, payload="",
        out=directory, checkpoints=directory, interface="lo", holds=(gang_model.Hold(id="", rank=0, step=1, phase=""),),
        resume=gang_model.Resume(name="", path="", step=0, sha256=""),
    )  # fmt: skip


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


def _train_as_scripts_do() -> None:
    """Train a transformer under DDP, save it, load it, and read its state as the watcher does."""
    embedding, layer, head = (
        nn.Embedding(8, 16),
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        nn.Linear(16, 8),
    )
    model = nn.Sequential(embedding, layer, nn.LayerNorm(16), head)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    content, tokens = io.BytesIO(), torch.zeros(2, 4, dtype=torch.int64)
    ddp: Any = DistributedDataParallel(model)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(tokens).flatten(0, 1), tokens.flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, content
    )
    state = torch.load(io.BytesIO(content.getvalue()), map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    _watch(optimizer, state)


def _watch(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Digest what the watcher digests at a load and at the first steps, if the watcher is loaded."""
    if interpreter.WATCHER in sys.modules:
        owner, contents, states = (
            importlib.import_module(f"{interpreter.WATCHER}.{name}")
            for name in ("owner", "checkpoints.saved_contents", "states")
        )
        known = owner.Owner(optimizer)
        known.weights(), known.sums(), known.optimizer_states(), known.settings()
        contents.read(state).describe(states.describe_owner(known, ()))
