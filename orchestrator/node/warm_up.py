"""Warming up a process that forks ranks: imports torch and the ranks' code once, with one thread, and freezes objects for cheap forks.

The ranks' code costs a rank 0.1 s of CPU time, and a node has fewer cores than ranks. The agent's archive holds the same code as
a payload. A rank adopts what the agent imported if the hashes are equal.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from ..model import codec, redaction, requirements
from ..model.gang import GangSpec
from ..model.requirements import HOST_TORCH, version_text
from .files import payloads
from .keeper import keeper_start
from .oslayer import host_names, processes

#: Imported once, so that no rank has to. The first optimizer step would import torch._dynamo.
MODULES = (
    "torch", "torch.distributed", "torch._dynamo", "orchestrator.model.gang", "orchestrator.model.event",
    "orchestrator.model.trial", "orchestrator.model.schedule", "orchestrator.model.run", "orchestrator.model.algorithm",
    "orchestrator.model.codec", "orchestrator.model.redaction", "random", "runpy", "socket", "uuid",
)  # fmt: skip
#: Set before the imports: otherwise the libraries of torch start threads, and a process with threads must not fork.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: With these torch sees no GPU and does not call the driver. An optimizer step would call it, and a process that
#: initialised CUDA cannot fork processes that use CUDA.
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


def import_modules() -> None:
    """Import ``MODULES``. Raises RuntimeError if an import started a thread or initialised CUDA."""
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    for name in (name for name, value in keeper_start.HUGE_PAGES.items() if os.environ.get(name) == value):
        del os.environ[name]
    with without_gpus():
        _import_torch()
        for name in MODULES:
            importlib.import_module(name)
        _exercise()
        host_names.connect_without_queries()
        preload_rank_code()
        _empty_caches()
    if sys.modules["torch"].cuda.is_initialized():
        raise RuntimeError("CUDA was initialised by the imports: no forked rank could use it")
    if processes.count_threads() != 1:
        raise RuntimeError(f"{processes.count_threads()} threads after the imports: this process cannot fork")


def _import_torch() -> None:
    """Raises RuntimeError where it is missing or too old; the message names the interpreter."""
    try:
        version = importlib.import_module("torch").__version__
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise RuntimeError(f"No module named 'torch' in {sys.executable}") from None
    if requirements.version(version) < HOST_TORCH:
        raise RuntimeError(
            f"torch {version} in {sys.executable} is too old: {version_text(HOST_TORCH)} or newer is needed"
        )


@contextlib.contextmanager
def without_gpus() -> Iterator[None]:
    """torch sees no GPU within the block."""
    before = {name: os.environ.get(name) for name in NO_GPU}
    os.environ.update(NO_GPU)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def _exercise() -> None:
    """Run what torch initialises at first use: a forward pass, an optimizer step, a checkpoint saved and loaded; redact the environment.

    Otherwise every rank would pay about 8 ms of CPU time for it. There is no backward pass, as autograd starts a thread.
    """
    import io

    import torch

    redaction.redacted(os.environ)
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


def _empty_caches() -> None:
    """Empty the caches that ``init_process_group`` empties: a rank that frees them copies 800 pages, a seventh of all it copies."""
    trace_rules = importlib.import_module("torch._dynamo.trace_rules")
    if clear := getattr(trace_rules, "clear_lru_cache", None):
        clear()


def freeze_objects() -> int:
    """Exclude all present objects from garbage collection, so that forks do not copy their pages; how many there are.

    Counting walks the whole list, so only the keeper does it, once.
    """
    gc.collect()
    gc.freeze()
    return gc.get_freeze_count()


PACKAGE = "orchestrator.rank"
WORKLOADS = "orchestrator.workloads"
#: The name under which a rank loads the watcher (``rank/runtime/interpreter.py``).
WATCHER = "_ccbed_watch"
#: What every rank imports, what a script needs, what the reference models need, and the workload of dp-ring.
RANK_MODULES = (
    f"{PACKAGE}.runtime.rank_main", f"{PACKAGE}.runtime.context", f"{PACKAGE}.runtime.program", f"{PACKAGE}.runtime.isolation",
    f"{PACKAGE}.reference_models.training_loop", f"{PACKAGE}.reference_models.module_facts",
    f"{PACKAGE}.runtime.imports_ahead", f"{PACKAGE}.runtime.former_names", f"{PACKAGE}.exchange.communicator",
    f"{WORKLOADS}.script", f"{WORKLOADS}.train_dp",
)  # fmt: skip
#: What was imported, each with its path in a payload, without ``.py``. A rank that walked through ``sys.modules`` would copy a
#: page for each of 2,500 modules.
_imported: dict[str, tuple[ModuleType, str]] = {}
_imported_hashes: list[bytes] = []


def preload_rank_code() -> None:
    """Import ``RANK_MODULES`` and the watcher from the archive; nothing where this process does not run from one."""
    try:
        code_hash = pkgutil.get_data("orchestrator", payloads.RANK_HASH.partition("/")[2])
    except OSError:
        return
    try:
        _import()
    except ImportError:  # the ranks that need it report it
        pass
    else:
        _imported_hashes.append(code_hash or b"")
    remember_rank_modules()


def remember_rank_modules() -> None:
    """Note which modules of the ranks' code are imported now."""
    _imported.update({name: (sys.modules[name], _path(name)) for name in sys.modules if _is_of_rank(name)})


def has_imported_rank_code() -> bool:
    return bool(_imported_hashes)


def is_same_code(payload: str) -> bool:
    """Is the code of a payload the code that is imported?"""
    try:
        return Path(payload, payloads.RANK_HASH).read_bytes() in _imported_hashes
    except OSError:
        return False


def _import() -> None:
    for name in RANK_MODULES:
        importlib.import_module(name)
    interpreter = importlib.import_module(f"{PACKAGE}.runtime.interpreter")
    interpreter.load_watcher(Path(sys.modules[PACKAGE].__path__[0]) / "watcher")
    digest = importlib.import_module(f"{WATCHER}.digest")
    digest.prepare([importlib.import_module("torch").device("cpu")])
    importlib.import_module(f"{PACKAGE}.runtime.program").omit_finalizers()
    for cls in (GangSpec, *(sys.modules[f"{WORKLOADS}.{name}"].Params for name in ("script", "train_dp"))):
        codec.hints(cls)
    interpreter.remember_modules()


def adopt_rank_code(payload: str) -> None:
    """Use the imported modules in a rank as those of the payload, or forget them if the payload's code differs."""
    is_equal = is_same_code(payload)
    for name, (module, path) in _imported.items():
        if is_equal:
            _relocate(module, f"{payload}/{path}")
        else:
            del sys.modules[name]
    if not is_equal:
        for package in (PACKAGE, WORKLOADS):
            vars(sys.modules["orchestrator"]).pop(package.partition(".")[2], None)


def _is_of_rank(name: str) -> bool:
    return name.partition(".")[0] == WATCHER or f"{name}.".startswith((f"{PACKAGE}.", f"{WORKLOADS}."))


def _path(name: str) -> str:
    return name.replace(WATCHER, f"{PACKAGE}.watcher").replace(".", "/")


def _relocate(module: ModuleType, path: str) -> None:
    """Modules that a package imports later come from the payload, and files beside a module are found there."""
    if hasattr(module, "__path__"):
        module.__path__ = [path]
        path = f"{path}/__init__"
    module.__file__ = f"{path}.py"
