"""Collects what ranks need (code, workloads, algorithms, digits, the project of the user's script), and the fingerprint of a run.

The fingerprint has what the result depends on: versions, CPU, GPUs, threads, and hashes of code and data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .. import products
from ..model.bed import BedSpec
from ..model.errors import UsageError
from ..model.frozen import dataclass
from ..model.plugin import Catalogue
from ..model.trial import Trial
from ..node.files import payloads
from . import inputs

SALT = "salt"
MIB = 1024 * 1024
#: A larger file does not travel: it is data, or a checkpoint.
LARGEST = 16 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``entries``: files and directories; ``total`` and ``largest``: bytes of all files, and of a file."""

    entries: int
    total: int
    largest: int


#: Of what travels. A larger project is a mistake.
TRAVELS = Limits(entries=20_000, total=64 * MIB, largest=LARGEST)
#: Of what the bundle of a script reads that runs in place. The script itself finds every file.
IN_PLACE = Limits(entries=2_000, total=8 * MIB, largest=inputs.LARGEST)
#: Files with these endings are left out first where a project is too large: an earlier run wrote them.
CHECKPOINTS = frozenset((".pt", ".pth", ".ckpt", ".safetensors", ".distcp"))
#: Folders that are never sent.
LEFT_OUT = ("__pycache__", "runs", "node_modules", "venv")
#: Files with rules of git's ignore format; a later file overrides an earlier one.
IGNORE_FILES = (".gitignore", ".ccbedignore")


def collect(
    package: Path, catalogue: Catalogue, project: inputs.Project | None = None, salt: bytes = b""
) -> dict[str, bytes]:
    """Path in the payload -> content. ``package``: the directory of this package.

    ``salt`` goes with a project that holds secrets: the payload's digest, which a bundle shows, then depends
    on it, and no secret can be found by trying what gives that digest.
    """
    digits = (package / "data" / "digits").glob("*ubyte*")
    files = {f"orchestrator/{path.relative_to(package)}": path.read_bytes() for path in digits}
    files.update(payloads.rank_code(package))
    for folder in ("workloads", "algorithms"):
        own = payloads.read_code(package, folder)
        users = (path for path in map(Path, catalogue.files.get(folder, ())) if not path.is_relative_to(package))
        files.update({**own, **{f"orchestrator/{folder}/{path.name}": path.read_bytes() for path in users}})
    for product in products.folders():
        code = [payloads.read_code(package, f"{product}/{folder}") for folder in ("rank", "plugins/workloads")]
        packages = (product, f"{product}/plugins") if any(code) else ()
        files.update({f"orchestrator/{name}/__init__.py": b"" for name in packages})
        files.update({name: content for folder in code for name, content in folder.items()})
    if project is not None:
        files.update({f"{inputs.USER}{name}": content for name, content in project.files.items()})
        if any(inputs.holds_secret(name, content) for name, content in project.files.items()):
            files[SALT] = salt
    return files


def without_project(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The payload of a script that runs in place."""
    return {name: content for name, content in files.items() if not name.startswith(inputs.USER)}


def large_files(project: inputs.Project) -> str:
    """The large files of a project that a script on another host does not find, with their sizes; empty if there are none."""
    names = [path for path, why in project.left_out.items() if why.startswith(_LARGE)]
    sized = [f"{name} ({(project.root / name).stat().st_size / MIB:.0f} MiB)" for name in names[:5]]
    return ", ".join([*sized, *([f"and {len(names) - 5} more"] if names[5:] else [])])


@cache
def controller_digest() -> str:
    """SHA-256 of the code that makes decisions and computes figures: another version may decide otherwise."""
    folders = (payloads.read_code(Path(__file__).parents[1], folder) for folder in ("core", "views", "model"))
    return payloads.content_hash({name: content for files in folders for name, content in files.items()})


# --- the project ------------------------------------------------------------------------------------------------------


def project_root(trial: Trial, *, in_place: bool) -> Path | None:
    """``params.root``, else the directory of the script or module; a project that is copied reaches up to its git top level.

    None: the trial runs no file of the user. Raises UsageError if the script is not below its root.
    """
    file, root = inputs.script(trial), trial.params.get("root")
    start = file.parent if file else Path(trial.params["cwd"]) if trial.params.get("module") else None
    if root is None or start is None:
        return start if in_place or start is None else _git_top(start) or start
    if not start.is_relative_to(root):
        raise UsageError(f"--root {root}: does not contain {file or start}", hint=f"--root {start}")
    return Path(root)


def read_project(trial: Trial, bed: BedSpec, *, is_copied: bool = False) -> inputs.Project | None:
    """The files of the trial's script for its bed. ``is_copied``: it runs in a copy on this machine.

    Raises UsageError if they are too many or too large to send.
    """
    in_place = bed.shares_file_system
    root = project_root(trial, in_place=in_place and not is_copied)
    return read_directory(root, inputs.script(trial), in_place=in_place) if root else None


def read_directory(root: Path, script: Path | None = None, *, in_place: bool) -> inputs.Project:
    """Read each file once. ``script``: is read whatever the ignore rules say. Raises UsageError."""
    sizes: dict[str, int] = {}
    left_out: dict[str, str] = {}
    limits = IN_PLACE if in_place else TRAVELS
    for count, (name, size, skipped) in enumerate(entries(root)):
        if count >= limits.entries:
            if in_place:
                break
            raise UsageError(f"{root}: more than {limits.entries:,} files would travel with the run", hint=_HINT)
        reason = skipped or (f"larger than {limits.largest // MIB} MiB" if size > limits.largest else "")
        if reason:
            left_out[name] = reason
        else:
            sizes[name] = size
    if script:
        _include(script, root, sizes, left_out)
    _fit(root, sizes, left_out, in_place=in_place)
    files: dict[str, bytes] = {}
    for name in sizes:
        try:
            files[name] = (root / name).read_bytes()
        except OSError as error:
            left_out[name] = f"cannot be read: {error.strerror}"
    return inputs.Project(root=root, files=files, left_out=left_out, in_place=in_place)


_LARGE = ("larger than", "a checkpoint")
_HINT = "name what the script does not need in .ccbedignore, give --root DIR, or keep data elsewhere (--data-dir)"


def _include(script: Path, root: Path, sizes: dict[str, int], left_out: dict[str, str]) -> None:
    """The script itself always travels, though a rule may ignore it or it may be a link."""
    name = str(script.relative_to(root))
    if script.is_file():
        sizes[name] = script.stat().st_size
        left_out.pop(name, None)


def _fit(root: Path, sizes: dict[str, int], left_out: dict[str, str], *, in_place: bool) -> None:
    """Leave files out until the rest fits: checkpoints, the largest first; in place any file, which the script finds anyway."""
    by_size = sorted(sizes, key=lambda name: -sizes[name])
    total, limit = sum(sizes.values()), (IN_PLACE if in_place else TRAVELS).total
    for name in by_size:
        if total > limit and (in_place or Path(name).suffix in CHECKPOINTS):
            total -= sizes.pop(name)
            left_out[name] = f"more than {limit // MIB} MiB in total" if in_place else "a checkpoint beside the script"
    if total > limit:
        named = ", ".join(f"{name} ({sizes[name] / MIB:.0f} MiB)" for name in by_size[:3] if name in sizes)
        raise UsageError(
            f"{root}: {total / MIB:.0f} MiB would travel; the limit is {limit // MIB} MiB: {named}", hint=_HINT
        )


def entries(root: Path) -> Iterator[tuple[str, int, str]]:
    """(path below ``root``, size in bytes, why it does not travel) of every file and of every directory that is left out."""
    top = _git_top(root) or root
    rules = [rule for parent in _between(top, root) for rule in _rules(parent)]
    yield from _entries(root, "", rules)


#: A directory, and the rules (a ``pathspec.GitIgnoreSpec``) that its ignore file states for what is below it.
_Rule = tuple[Path, Any]


def _entries(directory: Path, prefix: str, rules: list[_Rule]) -> Iterator[tuple[str, int, str]]:
    rules = [*rules, *_rules(directory)]
    try:
        paths = sorted(directory.iterdir(), key=lambda path: (path.is_dir(), path))
    except OSError as error:
        yield prefix.rstrip("/"), 0, f"cannot be read: {error.strerror}"
        return
    for path in paths:
        name = f"{prefix}{path.name}".encode(errors="surrogateescape").decode(errors="backslashreplace")
        reason = _reason_left_out(path, rules) if name.endswith(path.name) else "its name is not UTF-8"
        if reason:
            yield name, 0, reason
        elif path.is_dir():
            yield from _entries(path, f"{name}/", rules)
        else:
            yield name, path.stat().st_size, ""


def _reason_left_out(path: Path, rules: list[_Rule]) -> str:
    """Return why a file or directory does not travel, whatever its size. Of hidden files ``.env`` does: scripts read it."""
    if path.is_symlink():
        return "a link"
    is_directory = path.is_dir()
    if path.name.startswith(".") and (is_directory or not path.name.startswith(".env")):
        return "hidden"
    if path.name in LEFT_OUT or (is_directory and (path / "pyvenv.cfg").exists()):
        return "not a part of a project"
    if not (is_directory or path.is_file()):
        return "not a plain file"
    return "ignored by a rule of .gitignore or .ccbedignore" if _is_ignored(path, rules, is_directory) else ""


def _is_ignored(path: Path, rules: list[_Rule], is_directory: bool) -> bool:
    ignored = False
    for base, spec in rules:
        matched = spec.check_file(f"{path.relative_to(base)}{'/' * is_directory}").include
        ignored = ignored if matched is None else matched
    return ignored


def _rules(directory: Path) -> list[_Rule]:
    rules = []
    for name in IGNORE_FILES:
        try:
            text = (directory / name).read_text(errors="replace")
        except OSError:
            continue
        import pathspec

        rules.append((directory, pathspec.GitIgnoreSpec.from_lines(text.splitlines())))
    return rules


def _between(top: Path, root: Path) -> list[Path]:
    """The directories from ``top`` down to the parent of ``root``."""
    return [parent for parent in reversed(root.parents) if parent.is_relative_to(top)]


def _git_top(directory: Path) -> Path | None:
    """The top level of the git work tree that holds a directory; a home directory under git is no project."""
    for path in (directory, *directory.parents):
        if (path / ".git").exists():
            return None if path == Path.home() else path
    return None


#: The facts from every node's system.json.
FACTS = ("torch", "python", "kernel", "cpu", "cores", "image", "cuda", "nccl", "driver", "gpus")
#: The facts that determine the exact result: a rank that resumes with another value may compute another result.
BITS = ("torch", "cpu", "cuda", "nccl", "driver", "gpus")


def node_fingerprint(
    systems: Mapping[str, Mapping[str, Any]],
    slots: Sequence[str],
    *,
    code: str,
    threads: int,
    backend: str,
    data: str | None = None,
) -> dict[str, Any]:
    """The fingerprint of nodes. ``systems``: node or spare -> its system.json; empty if it is not known.

    A fact is a single value if all slots agree, else a list in the order of group ranks. ``mixed``: fact -> node -> value,
    for facts that determine the exact result and differ between nodes. ``untold``: nodes without a system.json.
    """
    facts = {fact: _common([systems.get(name, {}).get(fact) for name in slots]) for fact in FACTS}
    mixed = {fact: {name: facts.get(fact) for name, facts in systems.items() if facts} for fact in BITS}
    differing = {fact: values for fact, values in mixed.items() if len({repr(value) for value in values.values()}) > 1}
    untold = sorted(name for name, facts in systems.items() if not facts)
    return {
        **{fact: value for fact, value in facts.items() if value is not None},
        **({"mixed": differing} if differing else {}),
        **({"untold": untold} if untold else {}),
        "threads": threads,
        "backend": backend,
        "code": code,
        "data": _data(Path(data)) if data else "",
    }


def _common(values: Sequence[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else list(values)


def _data(folder: Path) -> str:
    """SHA-256 over names, sizes (bytes) and modification times (ns) in ``folder``: another data set has another twin."""
    try:
        entries = sorted((entry.name, entry.stat()) for entry in folder.iterdir())
    except OSError as error:
        return f"{folder}: not readable here: {error.strerror}"
    lines = (f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n" for name, status in entries)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
