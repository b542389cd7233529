"""Discover plugins: every file in a plugin folder is a plugin, loaded on first use."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from .model.errors import UsageError
from .model.plugin import BUILT_IN, Catalogue, Plugin
from .store.shipped import summary

KINDS = ("faults", "checkers", "reports", "algorithms", "workloads")
#: The names that a file of each kind must define (``model/plugin.py``).
OFFERS: Mapping[str, tuple[str, ...]] = {
    "faults": ("Params", "SAFETY", "plan"),
    "checkers": ("Params", "ALWAYS", "TWIN", "check"),
    "reports": ("render",),
    "algorithms": ("OPERATIONS", "chunks", "schedule", "cost"),
    "workloads": ("Params", "METRICS", "CHECKS", "last_step", "run"),
}
_PACKAGE_DIRECTORY = Path(__file__).parent
_PACKAGE = __package__ or "orchestrator"


class Folder(Mapping[str, Plugin]):
    """The plugins of one kind by name. A file is imported on first use; a broken one is a UsageError that names it."""

    def __init__(self, kind: str, files: Mapping[str, Path]) -> None:
        self._kind = kind
        self._files = files
        self._loaded: dict[str, Plugin] = {}

    def __getitem__(self, name: str) -> Plugin:
        if name not in self._loaded:
            file = self._files[name]
            module, code = _load(self._kind, file)
            lacking = [offer for offer in OFFERS[self._kind] if not hasattr(module, offer)]
            if lacking:
                raise UsageError(
                    f"{file}: a file in {self._kind}/ must offer {', '.join(OFFERS[self._kind])}; {', '.join(lacking)} is missing",
                    hint="model/plugin.py says what each is; CONTRIBUTING.md has an example",
                )
            self._loaded[name] = Plugin(
                name=name, summary=summary(file), path=str(file), module=module,
                source=BUILT_IN if _is_built_in(self._kind, file) else f"plugins/{self._kind}/{file.name}", code=code,
            )  # fmt: skip
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def path(self, name: str) -> Path:
        return self._files[name]


def discover(folders: Iterable[Path] = ()) -> Catalogue:
    """Built-in plugins, and plugins in the user's ``folders`` (with faults/, checkers/, … inside).

    Raises UsageError for a missing folder and for a duplicate name.
    """
    roots = [_PACKAGE_DIRECTORY, *(_checked(folder) for folder in folders)]
    plugins = {kind: Folder(kind, _files(kind, roots, "*.py")) for kind in KINDS}
    trials = {name: str(path) for name, path in _files("trials", roots, "*.yml").items()}
    files = {kind: tuple(str(folder.path(name)) for name in folder) for kind, folder in plugins.items()}
    return Catalogue(**plugins, trials=trials, files=files)


def unloaded(folder: Path, catalogue: Catalogue) -> list[str]:
    """The plugins in ``folder`` that the catalogue lacks, as ``workload NAME``; they are not loaded."""
    named = ((kind, file.stem.replace("_", "-")) for kind in KINDS for file in sorted((folder / kind).glob("*.py")))
    return [f"{kind[:-1]} {name}" for kind, name in named if name not in getattr(catalogue, kind)]


def _checked(folder: Path) -> Path:
    if not folder.is_dir():
        raise UsageError(f"--plugins {folder}: no such directory")
    if not any((folder / kind).is_dir() for kind in (*KINDS, "trials")):
        raise UsageError(f"--plugins {folder}: has none of {', '.join((*KINDS, 'trials'))}")
    return folder.resolve()


def _files(kind: str, roots: Iterable[Path], pattern: str) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for root in roots:
        for file in sorted((root / kind).glob(pattern)):
            if file.name.startswith(("_", ".")):
                continue
            name = file.stem.replace("_", "-")
            if name in files:
                raise UsageError(f"{file}: {kind[:-1]} {name} already exists: {files[name]}", hint="rename the file")
            files[name] = file
    return files


def _is_built_in(kind: str, file: Path) -> bool:
    return file.parent == _PACKAGE_DIRECTORY / kind


def _load(kind: str, file: Path) -> tuple[ModuleType, bytes]:
    """The module and the bytes of its file."""
    name = f"{_PACKAGE}.{kind}.{file.stem}"
    try:
        if _is_built_in(kind, file):
            return importlib.import_module(name), file.read_bytes()
        return _load_from(name, file)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        line = _line(error, file)
        raise UsageError(f"{file}{line}: cannot be loaded: {type(error).__name__}: {error}") from error


class _SourceOnly(SourceFileLoader):
    """Compile the file itself. Cached bytecode is not read, because it may be from another source, and not written,
    because the file may be part of a sealed bundle."""

    code = b""

    def get_code(self, fullname: str) -> CodeType:
        self.code = self.get_data(self.path)
        return self.source_to_code(self.code, self.path)


def _load_from(name: str, file: Path) -> tuple[ModuleType, bytes]:
    """Load a user's file under the name of a built-in plugin, so that its relative imports work."""
    loader = _SourceOnly(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    if spec is None:
        raise UsageError(f"{file}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module, loader.code


def _line(error: BaseException, file: Path) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f":{error.lineno}"
    trace, line = error.__traceback__, ""
    while trace:
        if trace.tb_frame.f_code.co_filename == str(file):
            line = f":{trace.tb_lineno}"
        trace = trace.tb_next
    return line
