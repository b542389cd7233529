"""What makes a fork quick and a rank warm: the imports done once, one thread, few and frozen pages."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterator

from .oslayer import processes

#: Imported once, so that no rank has to. torch._dynamo is what the first optimizer step would import.
MODULES = (
    "torch", "torch.distributed", "torch._dynamo", "orchestrator.model.gang", "orchestrator.model.event",
    "orchestrator.model.trial", "orchestrator.model.schedule", "orchestrator.model.run", "orchestrator.model.algorithm",
    "orchestrator.model.codec", "orchestrator.model.redaction", "random", "runpy", "socket", "uuid",
)  # fmt: skip
#: Set before the imports: the libraries behind torch start threads otherwise, and a process with threads must not fork.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: With these in the keeper's environment at its start its memory lies in huge pages where the kernel has them, and with
#: fewer pages a fork, and the end of one, take a quarter of the time. Nothing that is exec'd from it shall inherit them.
HUGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
#: While these hold, torch sees no GPU and asks no driver for one. An optimizer's step would ask, and CUDA that was touched
#: here could not be used in anything forked from here.
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def load() -> None:
    """Import everything. Raises RuntimeError where an import has started a thread, or touched CUDA."""
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    for name in (name for name, value in HUGE_PAGES.items() if os.environ.get(name) == value):
        del os.environ[name]
    with _without_gpus():
        for name in MODULES:
            importlib.import_module(name)
        _exercise()
    if sys.modules["torch"].cuda.is_initialized():
        raise RuntimeError("CUDA was initialised by the imports: no rank forked from here could use it")
    if processes.threads() != 1:
        raise RuntimeError(f"{processes.threads()} threads after the imports: nothing can be forked from here")


@contextlib.contextmanager
def _without_gpus() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in NO_GPU}
    os.environ.update(NO_GPU)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def _exercise() -> None:
    """What torch sets up at its first use, used once: a forward pass, an optimizer step, a checkpoint there and back.

    No backward pass: autograd starts a thread for it. Every rank would pay about 6 ms of CPU time for this otherwise.
    """
    import io

    import torch

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.LogSoftmax(dim=1))
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.nn.functional.nll_loss(model(torch.zeros(2, 8)), torch.zeros(2, dtype=torch.long))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    state = torch.load(io.BytesIO(file.getvalue()), map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def freeze() -> int:
    """Keep the collector off all that is here now, so that it does not touch (and copy) pages after a fork; the count.

    Counting walks the whole list, so it is done once, by the keeper.
    """
    gc.collect()
    gc.freeze()
    return gc.get_freeze_count()
