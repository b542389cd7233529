"""Discover plugins: every file in a plugin folder is a plugin, and every entry point of a group ``ccbed.KIND``; loaded on first use."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from . import products
from .model.errors import UsageError
from .model.frozen import dataclass
from .model.plugin import BUILT_IN, Catalogue, Plugin
from .store.shipped import summary

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KINDS = ("faults", "checkers", "reports", "algorithms", "workloads")
#: The names that a file of each kind must define (``model/plugin.py``).
OFFERS: Mapping[str, tuple[str, ...]] = {
    "faults": ("Params", "SAFETY", "plan"),
    "checkers": ("Params", "check"),
    "reports": ("render",),
    "algorithms": ("OPERATIONS", "chunks", "schedule", "cost"),
    "workloads": ("Params", "METRICS", "CHECKS", "last_step", "run"),
}
#: What a name of a kind is where a file does not define it.
DEFAULTS: Mapping[str, Mapping[str, bool]] = {"checkers": {"ALWAYS": False, "TWIN": False}}
_PACKAGE_DIRECTORY = Path(__file__).parent
_PACKAGE = __package__ or "orchestrator"


@dataclass(frozen=True, slots=True)
class _File:
    """The file of a plugin. ``distribution``: the installed one that names it, as ``NAME VERSION``; ``problem``: why there is none."""

    path: Path
    distribution: str = ""
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.path} (plugin of {self.distribution})" if self.distribution else str(self.path)


class Folder(Mapping[str, Plugin]):
    """The plugins of one kind by name. A file is imported on first use; a broken one is a UsageError that names it."""

    def __init__(self, kind: str, files: Mapping[str, _File]) -> None:
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
            for offer, value in DEFAULTS.get(self._kind, {}).items():
                vars(module).setdefault(offer, value)
            is_built_in = _is_built_in(self._kind, file.path)
            self._loaded[name] = Plugin(
                name=name, summary=summary(file.path), path=str(file.path), module=module, code=code,
                source=BUILT_IN if is_built_in else f"plugins/{self._kind}/{file.path.name}",
                distribution=file.distribution,
            )  # fmt: skip
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def built_in(self) -> Mapping[str, Path]:
        """Name -> file of the plugins that ccbed ships."""
        return {name: file.path for name, file in self._files.items() if _is_built_in(self._kind, file.path)}

    def paths(self) -> tuple[str, ...]:
        return tuple(str(file.path) for file in self._files.values() if not file.problem)


def discover(folders: Iterable[Path] = ()) -> Catalogue:
    """Built-in plugins, those of installed distributions, and those in the user's ``folders`` (with faults/, checkers/, … inside).

    A file in ``folders`` replaces the plugin of that name of a distribution. Raises UsageError for a missing folder and for a
    duplicate name.
    """
    roots = [*_own_roots(), *(_checked(folder) for folder in folders)]
    installed = _installed()
    plugins = {kind: Folder(kind, _merged(kind, roots, installed)) for kind in KINDS}
    trials = {name: str(path) for name, path in _files("trials", roots, "*.yml").items()}
    files = {kind: folder.paths() for kind, folder in plugins.items()}
    built_in = {kind: folder.built_in() for kind, folder in plugins.items()}
    always = [name for name, path in built_in["checkers"].items() if b"\nALWAYS = True" in path.read_bytes()]
    return Catalogue(**plugins, trials=trials, files=files, built_in=built_in, always=always)


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
    own = _own_roots()
    listed = [file for root in roots for file in (root / kind).glob(pattern) if not file.name.startswith(("_", "."))]
    for file in sorted(listed, key=lambda file: (file.parents[1] not in own, file.name)):
        name = file.stem.replace("_", "-")
        if name in files:
            raise UsageError(f"{file}: {kind[:-1]} {name} already exists: {files[name]}", hint="rename the file")
        files[name] = file
    return files


def _merged(kind: str, roots: Sequence[Path], installed: Sequence[EntryPoint]) -> dict[str, _File]:
    """Raises UsageError for an entry point with the name of a built-in plugin, or of one of another distribution."""
    files = {name: _File(path) for name, path in _files(kind, roots, "*.py").items()}
    named: dict[str, _File] = {}
    for entry in (entry for entry in installed if entry.group == f"ccbed.{kind}"):
        file = _entry_file(entry)
        taken = named.get(entry.name) or files.get(entry.name)
        if taken and (taken.distribution or _is_built_in(kind, taken.path)):
            raise UsageError(
                f"{file}: {kind[:-1]} {entry.name} already exists: {taken}",
                hint=f"uninstall one of them: pip uninstall {file.distribution.split()[0]}",
            )
        named[entry.name] = file
    return {**files, **{name: file for name, file in named.items() if name not in files}}


def _installed() -> Sequence[EntryPoint]:
    """The entry points of ccbed's groups. importlib.metadata loads slowly: only where a distribution has one."""
    texts = (file for place in dict.fromkeys(sys.path) for file in Path(place).glob("*-info/entry_points.txt"))
    if not any(b"[ccbed." in text.read_bytes() for text in texts):
        return ()
    from importlib import metadata

    return [entry for kind in KINDS for entry in metadata.entry_points(group=f"ccbed.{kind}")]


def _entry_file(entry: EntryPoint) -> _File:
    """The file of the module that an entry point names. It is found without importing its package."""
    distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
    spec, place = None, None
    parts = entry.module.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), place)
        if spec is None:
            break
        place = spec.submodule_search_locations
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return _File(Path(entry.value), distribution, f"no Python file has the module {entry.module}")
    path = Path(spec.origin)
    if path.stem.replace("_", "-") != entry.name or entry.attr:
        wanted = entry.name.replace("-", "_")
        problem = f"entry point {entry.name} must name a module {wanted} (got {entry.value})"
        if "_" in entry.name:
            problem = f"entry point {entry.name} must have dashes in its name: {entry.name.replace('_', '-')}"
        return _File(path, distribution, problem)
    return _File(path, distribution)


def _is_built_in(kind: str, file: Path) -> bool:
    return file.parent.name == kind and file.parent.parent in _own_roots()


def _own_roots() -> tuple[Path, ...]:
    """The folders that hold the folders of ccbed's own plugins."""
    return (_PACKAGE_DIRECTORY, *(folder / "plugins" for folder in products.folders().values()))


def _load(kind: str, file: _File) -> tuple[ModuleType, bytes]:
    path, name = file.path, f"{_PACKAGE}.{kind}.{file.path.stem}"
    if _is_built_in(kind, path):
        name = ".".join((_PACKAGE, *path.relative_to(_PACKAGE_DIRECTORY).with_suffix("").parts))
    hint = f"correct or uninstall {file.distribution}" if file.distribution else ""
    if file.problem:
        raise UsageError(f"{file}: {file.problem}", hint=hint)
    try:
        if _is_built_in(kind, path):
            return importlib.import_module(name), path.read_bytes()
        return _load_from(name, path)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        place = f"{path}{_line(error, path)}{f' (plugin of {file.distribution})' if file.distribution else ''}"
        raise UsageError(f"{place}: cannot be loaded: {type(error).__name__}: {error}", hint=hint) from error


class _SourceOnly(SourceFileLoader):
    """Compile the file itself. Cached bytecode is not read, because it may be from another source, and not written,
    because the file may be part of a sealed bundle."""

    code = b""

    def get_code(self, fullname: str) -> CodeType:
        self.code = self.get_data(self.path)
        return self.source_to_code(self.code, self.path)


def _load_from(name: str, file: Path) -> tuple[ModuleType, bytes]:
    """Load a user's file under the name of a built-in plugin, so that its relative imports work."""
    from .rank.runtime import former_names  # only where there are plugins of users

    former_names.install()
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
