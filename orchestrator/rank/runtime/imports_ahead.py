"""Imports in a reserve rank what a script imports first, so that its recovery does not wait for that.

The process is as at the script's first line then: arguments, environment, sys.path, streams and the watcher's hooks come before the
imports, as in any attempt. What an import may only do in the rank itself makes the reserve useless, and the report says why.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import signal
import sys
import sysconfig
import tempfile
import time
import types
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from ...model import codec, redaction, vaulted
from ...model import gang as gang_model
from ...model.gang import ImportReport
from . import environment, interpreter, isolation, program

#: After each import of a module it rests for so many times the CPU time that it took: the job trains meanwhile.
REST = 1.0
#: The watcher would act on these at once, in a process that is no rank yet.
OF_WATCHER = ("CCBED_WATCH_HOLDS", "CCBED_CHECKPOINT_GLOBS")
#: Audit events of what others notice.
ACTS = (
    "subprocess.Popen", "os.system", "os.posix_spawn", "os.fork", "os.forkpty", "os.remove", "os.rename", "socket.bind",
    "socket.connect", "socket.sendto", "os.kill", "os.killpg", "signal.pthread_kill",
)  # fmt: skip
_LIBRARIES = ("site-packages", "dist-packages")


def find_obstacle(gang: gang_model.GangSpec) -> str:
    """Return why nothing is imported ahead for the script of ``gang``; empty if it begins with libraries that are not imported yet."""
    script = isolation.on_node(gang.work_dir, str(gang.params["file"]))
    entries = (gang.environment or os.environ).get("PYTHONPATH", "").split(os.pathsep)
    try:
        leading = Leading(script, _of_user((str(Path(script).parent), *filter(None, entries))))
    except Exception as error:  # noqa: BLE001 the script shows it by itself
        return f"{script}: {error}"
    names = {re.split(r"[ .]", statement)[1] for statement in leading.imports}
    new = names - sys.modules.keys() - sys.stdlib_module_names
    return "" if new else f"no library is imported before {leading.end or 'its end'}"


def prepare(gang: gang_model.GangSpec, rank: int, node: str, incarnation: str) -> ImportReport:
    """Become a process at the first line of the script of ``gang``, after the imports with which it begins. Never raises.

    What the imports write goes into a file that is gone: a rank has its log for it.
    """
    cwd, before, main = Path.cwd(), dict(os.environ), sys.modules["__main__"]
    wanted = environment.complete(gang, rank, node, incarnation, os.environ)
    output = os.memfd_create("output")
    for fd in (1, 2):
        os.dup2(output, fd)
    os.close(output)
    try:
        return _prepare(gang, wanted)
    except BaseException as error:  # noqa: BLE001 the script shows it by itself
        text = vaulted.hide(f"{error}", redaction.secret_values(wanted, gang.secret_names))
        return ImportReport(problem=text[:200] or type(error).__name__)
    finally:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(before)
        sys.modules["__main__"] = main


def _prepare(gang: gang_model.GangSpec, wanted: Mapping[str, str]) -> ImportReport:
    import torch

    params = codec.build(importlib.import_module(f"{interpreter.OWN}.workloads.script").Params, dict(gang.params))
    at_start = interpreter.environment_at_start()
    if names := environment.find_start_only(at_start, wanted):
        raise RuntimeError(f"it starts a new interpreter for {', '.join(names)}")
    os.umask(gang.umask)
    os.chdir(isolation.current_directory(gang.work_dir, params.cwd) or Path.cwd())
    os.environ.clear()
    os.environ.update({name: value for name, value in wanted.items() if name not in OF_WATCHER})
    torch.set_num_threads(environment.threads(gang, os.environ))
    torch.distributed.set_debug_level_from_env()  # type: ignore[attr-defined]
    script, user = isolation.on_node(gang.work_dir, params.file), Path(interpreter.__file__).parents[1] / "user"
    interpreter.imitate_start(script, params.args, gang.payload, user, at_start)
    program.prepare()
    watcher = interpreter.load_watcher(user.parent / "watcher")
    hidden = interpreter.hide_modules()
    try:
        watcher.install_ahead()
        return _import_leading(script)
    finally:
        sys.modules.update(hidden)


def _import_leading(script: str) -> ImportReport:
    """Raises RuntimeError if the imports have changed what the start of a rank sets anew, or have started something."""
    leading = Leading(script, _of_user(sys.path))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = script
    program.main_ahead.append(main)
    texts: Any = os.environ
    octets: Any = os.environb
    before, modules, pace, guard = _state(), set(sys.modules), _Pace(), _Guard()
    texts._data = octets._data = variables = _Variables(texts._data)
    sys.meta_path.insert(0, pace)
    sys.addaudithook(guard)
    exec(compile("\n".join(leading.imports), "<imports ahead>", "exec", dont_inherit=True), {})  # noqa: S102
    sys.meta_path.remove(pace)
    guard.is_on = False
    texts._data = octets._data = dict(variables.items())
    if guard.acts:
        raise RuntimeError(guard.acts[0])
    if changed := [name for name, value in _state().items() if value != before[name]]:
        raise RuntimeError(f"its imports change {', '.join(changed)}")
    imported = (getattr(sys.modules[name], "__dict__", {}).get("__file__") for name in sys.modules.keys() - modules)
    files = [file for file in imported if isinstance(file, str)]
    if own := next((file for file in files if not _is_library(file)), None):
        raise RuntimeError(f"a library imports {own}")
    statuses = {file: Path(file).stat() for file in (*leading.files, *files, *filter(os.path.isfile, guard.files))}
    stamps = {file: (status.st_mtime_ns, status.st_size) for file, status in statuses.items()}
    return ImportReport(modules=len(files), end=leading.end, read=tuple(sorted(variables.read)), files=stamps)


class _Pace:
    """Finds no module, and rests before each one."""

    def __init__(self) -> None:
        self._used_s = time.process_time()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        time.sleep(REST * (time.process_time() - self._used_s))
        self._used_s = time.process_time()


class _Guard:
    """An audit hook: imports may read files, ``files``, and not do what others notice: no rank does it. None can be removed."""

    def __init__(self) -> None:
        self.is_on, self.files, self.acts = True, list[str](), list[str]()

    def __call__(self, event: str, values: tuple[Any, ...]) -> None:
        if not self.is_on or (event != "open" and event not in ACTS):
            return
        path = str(Path(os.fsdecode(values[0])).absolute()) if values and isinstance(values[0], str | bytes) else ""
        if path.startswith(("/proc/", "/sys/", "/dev/")) or "__pycache__" in path or (event == "open" and not path):
            return
        if event in ACTS or values[2] & (os.O_WRONLY | os.O_RDWR):
            self.acts.append(f"its imports call {event}{' of ' + path if event == 'open' else ''}")
            raise RuntimeError(self.acts[0])
        if not _is_library(path):
            self.files.append(path)


def _state() -> dict[str, object]:
    import torch

    return {
        "os.environ": dict(os.environ), "sys.path": list(sys.path), "sys.argv": list(sys.argv), "the directory": Path.cwd(),
        "signal handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "children": Path("/proc/thread-self/children").read_text(),
        "umask": next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask")),
        "tempfile": tempfile.tempdir, "the writing of bytecode": sys.dont_write_bytecode,
        "streams": (sys.stdout, sys.stderr), "the output": os.fstat(1).st_size, "descriptors": os.listdir("/proc/self/fd"),
        "threads": len(os.listdir("/proc/self/task")), "threads of torch": torch.get_num_threads(),
        "CUDA": torch.cuda.is_initialized(), "process groups": torch.distributed.is_initialized(),  # type: ignore[no-untyped-call]
        "the debug level of torch.distributed": torch.distributed.get_debug_level(),  # type: ignore[attr-defined]
    }  # fmt: skip


class _Variables(dict[Any, Any]):
    """The variables of os.environ; ``read`` are the names of those that were read, also if they are not set."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def __getitem__(self, name: Any) -> Any:
        self.read.add(os.fsdecode(name))
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[Any]:
        self.read.update(map(os.fsdecode, super().keys()))
        return super().__iter__()


def _of_user(search_path: Iterable[str]) -> list[str]:
    """The entries where modules of the user may be."""
    return [path for path in search_path if not _is_library(path) and not path.endswith(".zip")]


def _is_library(path: str) -> bool:
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return path.startswith(standard) or any(part in Path(path).parts for part in _LIBRARIES)


#: Decorators that do nothing but make another function or class.
DECORATORS = ("staticmethod", "classmethod", "property", "dataclass", "contextmanager", "torch.no_grad")


class Leading:
    """``imports``: statements; ``files``: the user's files that were read; ``end``: what ends them, and where; empty: nothing does."""

    def __init__(self, script: str, search_path: list[str]) -> None:
        """``search_path``: directories of the user's modules. Raises OSError, SyntaxError and ValueError."""
        self._search_path = search_path
        self.imports: list[str] = []
        self.files: list[str] = []
        self.end = ""
        self._read(script)

    def _read(self, file: str) -> None:
        if file in self.files:
            return
        self.files.append(file)
        for node in ast.parse(Path(file).read_bytes(), file).body:
            is_harmless = self._import(node) if isinstance(node, ast.Import | ast.ImportFrom) else _is_harmless(node)
            if not is_harmless:
                self.end = self.end or f"{Path(file).name}:{node.lineno}: {_shown(node)}".partition("\n")[0][:80]
            if self.end:
                return

    def _import(self, node: ast.Import | ast.ImportFrom) -> bool:
        """Note the imports of a statement; False if it imports what cannot be read here."""
        is_plain = isinstance(node, ast.Import)
        for single in [ast.Import(names=[name]) for name in node.names] if is_plain else [node]:
            name = single.names[0].name if isinstance(single, ast.Import) else single.module
            if name is None or (isinstance(single, ast.ImportFrom) and single.level):
                return False
            spec = PathFinder.find_spec(name.partition(".")[0], self._search_path)
            if spec is None:
                self.imports += [ast.unparse(single)] if name != "__future__" else []
                continue
            if not (spec.origin or "").endswith(".py") or spec.submodule_search_locations is not None:
                return False
            self._read(str(spec.origin))
            if self.end:
                return True
        return True


def _shown(node: ast.AST) -> str:
    """The text of a statement; strings in it may be secret."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str | bytes):
            part.value = "…"
    return ast.unparse(node)


def _is_harmless(node: ast.AST) -> bool:
    """Does a statement only define something, without a call?"""
    match node:
        case ast.Expr():
            return isinstance(node.value, ast.Constant)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return _makes_no_call(node.args, node.returns) and _are_known(node.decorator_list)
        case ast.ClassDef():
            is_harmless = _makes_no_call(*node.bases, *node.keywords) and _are_known(node.decorator_list)
            return is_harmless and all(map(_is_harmless, node.body))
        case ast.Assign():
            return _makes_no_call(node.value) and all(isinstance(target, ast.Name) for target in node.targets)
        case ast.AnnAssign():
            return _makes_no_call(node.value, node.annotation) and isinstance(node.target, ast.Name)
    return isinstance(node, ast.Pass)


def _are_known(decorators: list[ast.expr]) -> bool:
    names = [node.func if isinstance(node, ast.Call) else node for node in decorators]
    arguments = [part for node in decorators if isinstance(node, ast.Call) for part in (*node.args, *node.keywords)]
    return all(ast.unparse(name) in DECORATORS for name in names) and _makes_no_call(*arguments)


def _makes_no_call(*nodes: ast.AST | None) -> bool:
    """Operators change something only for objects that a call has made."""
    return not any(isinstance(part, ast.Call) for node in nodes if node for part in ast.walk(node))
