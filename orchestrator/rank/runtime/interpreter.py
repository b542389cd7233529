"""Makes the warm interpreter of a rank equal to one that has just been started with ``python -u FILE.py ARGS``.

What stays different: modules of torch are imported, stdin is /dev/null, a real-time signal is set aside for stacks, all ranks of a
node share the hash seed of the process that forked them, and the directory of ``ccbed_events`` is the last on sys.path.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from importlib import util
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TextIO

#: The package of ccbed in a rank.
OWN = __name__.partition(".")[0]
#: The name under which the watcher is loaded, so that a user's package has any name of ccbed.
WATCHER = "_ccbed_watch"
#: The finders of modules that the process used before the script. To free them would copy their memory.
_finders: list[object] = []
#: The script's streams, by descriptor: a reserve may have made them before its order, and what it imported uses them.
_of_script: dict[int, io.TextIOWrapper] = {}


def environment_at_start() -> dict[str, str]:
    """The variables with which this interpreter was started, without those that ccbed has removed since then."""
    try:
        block = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (item.partition(b"=") for item in block.split(b"\0") if b"=" in item)
    values = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return {name: value for name, value in values.items() if name in os.environ}


def imitate_start(script: str, args: tuple[str, ...], payload: str, modules: Path, at_start: Mapping[str, str]) -> None:
    """Set arguments, sys.path, streams and signals, and hide ccbed's own modules from the script.

    ``payload``: the directory of the ranks' code; ``modules``: that of ``ccbed_events``; ``at_start``: the environment with
    which this process was started, whose PYTHONPATH does not count.
    """
    sys.argv = [script, *args]
    sys.orig_argv = [sys.executable, "-u", *sys.argv]
    own = {payload, _directory_of_main(), *_entries(at_start.get("PYTHONPATH", ""))}
    others = [entry for entry in sys.path if entry not in own]
    first = str(Path(script).resolve().parent if script else Path.cwd())
    users = _entries(os.environ.get("PYTHONPATH", ""))
    sys.path[:] = dict.fromkeys((first, *users, *others, str(modules)))
    _finders.append(sys.path_importer_cache)
    sys.path_importer_cache = {}
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    tempfile.tempdir = None
    time.tzset()
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(number, handler)
    for fd, name in ((1, "stdout"), (2, "stderr")):
        stream = _of_script.get(fd) or _unbuffered(fd, getattr(sys, name))
        stream.reconfigure(line_buffering=False)
        _of_script[fd] = stream
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def hide_modules() -> dict[str, ModuleType]:
    """Remove ccbed's modules from sys.modules, and return them: a user's module of the same name is theirs. Loaded code keeps working."""
    later = itertools.islice(reversed(sys.modules), len(sys.modules) - _before_fork.count)
    names = dict.fromkeys((*_before_fork.own, *_own(later)))
    return {name: sys.modules.pop(name) for name in names if name in sys.modules}


def remember_modules() -> None:
    """Note the modules of the process that forks ranks: a rank that looked at each name in ``sys.modules`` would copy their memory."""
    _before_fork.own, _before_fork.count = _own(sys.modules), len(sys.modules)


def newest_module() -> str:
    """The newest module in ``sys.modules`` that is not ccbed's."""
    return next(name for name in reversed(sys.modules) if name.partition(".")[0] not in (OWN, WATCHER))


class _BeforeFork:
    """ccbed's modules before the fork, and the number of all modules."""

    own: tuple[str, ...] = ()
    count = 0


_before_fork = _BeforeFork()


def _own(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name == OWN or name.startswith(f"{OWN}."))


def load_watcher(folder: Path) -> ModuleType:
    """Load the watcher under a name of its own, as in any other interpreter, and return the module that installs it."""
    if WATCHER not in sys.modules:  # else the agent loaded it before the fork
        spec = ModuleSpec(WATCHER, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[WATCHER] = util.module_from_spec(spec)
    return importlib.import_module(f"{WATCHER}.install")


def _directory_of_main() -> str:
    """The first entry of sys.path when this interpreter was started: the archive of ccbed."""
    return str(Path(getattr(sys.modules["__main__"], "__file__", None) or ".").absolute().parent)


def _entries(path: str) -> list[str]:
    return [os.path.normpath(Path.cwd() / entry) for entry in path.split(os.pathsep)] if path else []


def _unbuffered(fd: int, stream: TextIO) -> io.TextIOWrapper:
    """A text stream that writes at once, as with ``python -u``."""
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
    raw = open(fd, "wb", buffering=0, closefd=False)  # noqa: SIM115 it lives as long as the process
    return io.TextIOWrapper(raw, encoding=stream.encoding, errors=stream.errors, write_through=True)
