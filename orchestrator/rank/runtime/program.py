"""Runs a user's script in this process as ``python FILE.py`` does: as ``__main__``, with CPython's order of shutdown.

Only the teardown of imported modules is omitted, because torch can deadlock in it. The caller exits by ``os._exit`` instead.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import gc
import io
import logging
import os
import random
import runpy
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from multiprocessing import util
from pathlib import Path

MAIN = "__main__"
#: The most frames of an error that are reported.
FRAMES = 16
_OWN_FILES = str(Path(__file__).parents[1]) + os.sep
#: CPython's exit code where the standard streams cannot be flushed.
UNFLUSHED = 120
#: The base of all streams in C. A check against io.IOBase caches its result in each class, which copies its memory in a fork.
_STREAM: type = io.IOBase.__mro__[1]
#: If the interpreter's threads cannot run any more, a thread in C ends the process this much later.
BACKSTOP_S = 5.0


#: The process in which exit handlers and random states are those of the script.
_prepared: list[int] = []
#: The script's module, if a reserve has made it before its order: what it imported may keep it.
main_ahead: list[types.ModuleType] = []


class ScriptFailed(Exception):
    """An exception ended the script. ``kind``: its type; ``stack``: see RankError. The traceback is in the log."""

    printed = True

    def __init__(self, kind: str, message: str, stack: tuple[str, ...] | None = None) -> None:
        super().__init__(message)
        self.kind, self.stack = kind, stack


class _CannotStart(ScriptFailed):
    def __init__(self, message: str) -> None:
        super().__init__("script-missing", message)


def prepare() -> None:
    """Drop the exit handlers that were registered before the fork, except those of the standard library, and draw new random states.

    Only once in a process: what a reserve imported may have registered and seeded.
    """
    if os.getpid() in _prepared:
        return
    _prepared.append(os.getpid())
    _unseed()
    atexit._clear()
    omit_finalizers()
    for handler in (logging.shutdown, util._exit_function, weakref.finalize._exitfunc):  # type: ignore[attr-defined]
        atexit.register(handler)


def _unseed() -> None:
    """Seed Python, numpy and torch from the system's entropy, as in a new interpreter."""
    random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def omit_finalizers() -> None:
    """Run none of the present finalizers at exit. In a fork nothing is left to do: to read them all would copy their memory."""
    registry = weakref.finalize._registry  # type: ignore[attr-defined]
    newest = next(reversed(registry), None)
    if newest is not None and newest.atexit:
        for finalizer in list(registry):
            finalizer.atexit = False


def execute(script: str, module_name: str = "") -> SystemExit | ScriptFailed | None:
    """Run the file, or the module as ``python -m`` does, and return its failure, or None for success.

    ``__main__`` stays its module; the code of a SystemExit is an int.
    """
    module = main_ahead.pop() if main_ahead else types.ModuleType(MAIN)
    if sys.version_info < (3, 14):
        vars(module)["__annotations__"] = {}
    sys.modules[MAIN] = module
    try:
        code = _load_module(module, module_name) if module_name else _load_file(module, script)
        exec(code, vars(module))  # noqa: S102
    except SystemExit as request:
        return _requested(request)
    except _CannotStart as error:
        print(error, file=sys.stderr)
        return error
    except BaseException as error:  # noqa: BLE001
        _drop_own_frames(error)
        sys.excepthook(type(error), error, error.__traceback__)
        frames = reversed(traceback.extract_tb(error.__traceback__)[-FRAMES:])
        stack = tuple(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
        return ScriptFailed(type(error).__name__, str(error), stack)
    return None


def _drop_own_frames(error: BaseException) -> None:
    """Remove the frames of this runtime and of the watcher from the traceback, as if the interpreter had started the script."""
    frames = []
    entry = error.__traceback__
    while entry:
        if not entry.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
            frames.append(entry)
        entry = entry.tb_next
    for entry, following in zip(frames, (*frames[1:], None), strict=False):
        entry.tb_next = following
    error.__traceback__ = frames[0] if frames else None


def _load_file(module: types.ModuleType, script: str) -> types.CodeType:
    """Raises _CannotStart with CPython's sentence if the file cannot be read."""
    loader = SourceFileLoader(MAIN, script)
    vars(module).update(__file__=script, __builtins__=builtins, __cached__=None, __loader__=loader)
    try:
        source = Path(script).read_bytes()
    except OSError as error:
        raise _CannotStart(
            f"{sys.executable}: can't open file {script!r}: [Errno {error.errno}] {error.strerror}"
        ) from None
    return compile(source, script, "exec", dont_inherit=True)


def _load_module(module: types.ModuleType, name: str) -> types.CodeType:
    """Import the parent packages. Raises _CannotStart with the sentence of ``python -m`` if there is no such module."""
    try:
        _, spec, code = runpy._get_module_details(name, runpy._Error)  # type: ignore[attr-defined]
    except runpy._Error as error:  # type: ignore[attr-defined]
        raise _CannotStart(f"{sys.executable}: {error}") from None
    vars(module).update(
        __file__=spec.origin, __builtins__=builtins, __cached__=spec.cached, __loader__=spec.loader,
        __package__=spec.parent, __spec__=spec,
    )  # fmt: skip
    sys.argv[0] = spec.origin
    return code  # type: ignore[no-any-return]


def finish(timeout_s: float, report: Callable[[str], None]) -> int:
    """Join threads and executors, run exit handlers and finalizers, drop the globals, flush; return 0 or UNFLUSHED.

    After ``timeout_s`` the stacks of all threads are printed to stderr, ``report`` gets the reason, and the process exits with 1.
    """
    timer = threading.Timer(timeout_s, _expire, (timeout_s, report))
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(
        timeout_s + BACKSTOP_S, exit=True, file=2
    )  # the script may have replaced sys.stderr
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _drop_globals()
    code = _flush()
    timer.cancel()
    faulthandler.cancel_dump_traceback_later()
    return code


def _requested(request: SystemExit) -> SystemExit | None:
    code = request.code
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    return SystemExit(code & 0xFF) if code and code & 0xFF else None


def _expire(timeout_s: float, report: Callable[[str], None]) -> None:
    main = threading.main_thread()
    names = [thread.name for thread in threading.enumerate() if thread is not main and not thread.daemon]
    cause = f"threads {', '.join(names)}" if names else "an exit handler or a destructor"
    message = f"the script ended, but {cause} did not within {timeout_s:g} s (exit_timeout_s)"
    err = sys.__stderr__ or sys.stderr
    print(f"ccbed: {message}; stacks:", file=err, flush=True)
    faulthandler.dump_traceback(file=err)
    report(message)
    os._exit(1)


def _drop_globals() -> None:
    """Drop the script's globals, private names first, so that destructors run.

    CPython has stopped daemon threads by then. Here they still run, and their exceptions are ignored.
    """
    threading.excepthook = lambda _: None
    names = vars(sys.modules[MAIN])
    private = [name for name in names if name.startswith("_") and not name.startswith("__")]
    for name in (*private, *names):
        if name != "__builtins__":
            names[name] = None
    gc.collect()


def _flush() -> int:
    """Flush open files of imported modules, C's streams and the standard streams."""
    for item in gc.get_objects():
        if issubclass(type(item), _STREAM):
            with contextlib.suppress(Exception):
                item.flush()
    ctypes.CDLL(None).fflush(None)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return UNFLUSHED
    except ValueError:  # closed by the script
        pass
    return 0
