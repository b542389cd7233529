"""The ranks' code, imported once before the fork: it costs a rank 0.1 s of CPU time, and a node has fewer cores than ranks.

The agent's archive holds the same code as a payload. A rank adopts what the agent imported if the hashes are equal.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

from ..model import codec
from ..model.gang import GangSpec
from .files import payloads

PACKAGE = "orchestrator.rank"
WORKLOADS = "orchestrator.workloads"
#: The name under which a rank loads the watcher (``rank/runtime/interpreter.py``).
WATCHER = "_ccbed_watch"
#: What every rank imports, what a script needs, and what the reference models need.
MODULES = (
    f"{PACKAGE}.runtime.main", f"{PACKAGE}.runtime.context", f"{PACKAGE}.runtime.program", f"{PACKAGE}.runtime.work_dir",
    f"{PACKAGE}.reference_models.training_loop", f"{PACKAGE}.reference_models.module_facts",
    f"{PACKAGE}.runtime.imports_ahead", f"{PACKAGE}.exchange.communicator", f"{WORKLOADS}.script",
)  # fmt: skip
#: What was imported, each with its path in a payload, without ``.py``. A rank that walked through ``sys.modules`` would copy a
#: page for each of 2,500 modules.
_imported: dict[str, tuple[ModuleType, str]] = {}
_imported_hashes: list[bytes] = []


def preload() -> None:
    """Import ``MODULES`` and the watcher from the archive; nothing where this process does not run from one."""
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
    remember()


def remember() -> None:
    """Note which modules of the ranks' code are imported now."""
    _imported.update({name: (sys.modules[name], _path(name)) for name in sys.modules if _is_of_rank(name)})


def has_imported() -> bool:
    return bool(_imported_hashes)


def is_same_code(payload: str) -> bool:
    """Is the code of a payload the code that is imported?"""
    try:
        return Path(payload, payloads.RANK_HASH).read_bytes() in _imported_hashes
    except OSError:
        return False


def _import() -> None:
    for name in MODULES:
        importlib.import_module(name)
    interpreter = importlib.import_module(f"{PACKAGE}.runtime.interpreter")
    interpreter.load_watcher(Path(sys.modules[PACKAGE].__path__[0]) / "watcher")
    digest = importlib.import_module(f"{WATCHER}.digest")
    digest.prepare([importlib.import_module("torch").device("cpu")])
    importlib.import_module(f"{PACKAGE}.runtime.program").omit_finalizers()
    for cls in (GangSpec, sys.modules[f"{WORKLOADS}.script"].Params):
        codec.hints(cls)
    interpreter.remember_modules()


def adopt(payload: str) -> None:
    """In a rank: use the imported modules as those of the payload, or forget them if the payload's code differs."""
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
