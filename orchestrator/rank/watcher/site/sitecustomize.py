"""Loads the watcher into a Python process of a watched job, then the next sitecustomize on sys.path, which is the user's."""

import os
import sys


def _watch() -> None:
    directory = os.environ.get("CCBED_WATCH")
    if not directory or not os.environ.get("RANK"):
        return
    if "--multiprocessing-fork" in getattr(sys, "orig_argv", getattr(sys, "argv", ())):
        return  # a helper that the rank spawned: a worker of a data loader, a process that uploads checkpoints
    import importlib.util

    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    init = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location("_ccbed_watch", init, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        return
    sys.modules["_ccbed_watch"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["_ccbed_watch"])
    importlib.import_module("_ccbed_watch.install").install(directory, via="site")


def _chain() -> None:
    """Execute the sitecustomize that this one hides, as its own module."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    own = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != own]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _watch()
except Exception:
    pass
_chain()
