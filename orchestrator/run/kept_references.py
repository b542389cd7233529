"""Reference runs that are used again: what one depended on, and whether all of that is as it was when it was made.

A script's reference run and its restarted reference are kept by the trial, in the state directory. They serve a run only if each
file that they opened, each directory that they listed and the whole project is equal, as well as the nodes, their software, the
placement and the environment. One that started a program, connected to a host or has a library that reads files by itself is made
anew each time. Only a run that passes rests on one that was used again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any

from ..core.verdict import twin as twins
from ..model import codec
from ..model.frozen import replace
from ..model.launch import Request
from ..model.run import Twin
from ..store import bundle, durable, paths, secrets
from . import work_dirs

#: A larger file is known by its size, time and inode.
LARGE = 64 * 1024**2
ABSENT = "absent"
#: Variables of a terminal and of a login, and how often the watcher looks.
VOLATILE = (
    "_",
    "SHLVL",
    "OLDPWD",
    "COLUMNS",
    "LINES",
    "WINDOWID",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "CCBED_WATCH_EVERY",
)
#: Libraries whose files are all opened where Python shows it. Others may read by themselves: h5py, tokenizers, pyarrow.
_OBSERVED = re.compile(
    r".*/(lib-dynload/(?!_g?dbm)[^/]*|(site|dist)-packages/(torch|numpy|scipy|yaml|regex|markupsafe|psutil|PIL|pillow|msgspec"
    r"|charset_normalizer|triton|nvidia|mkl)(\.libs)?/.*)"
    r"|(.*/)?(ld-linux[^/]*|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+|gomp|iomp5|z|numa|python3[^/]*|cuda[^/]*|nv[^/]*|nccl))[.\d-]*\.so[.\d]*"
)
_SYSTEM = ("/dev/", "/proc/", "/sys/")
#: Programs that only describe the machine.
_HARMLESS = ("ldconfig", "uname", "nproc")


def reuse(request: Request, directory: Path) -> None:
    """Give a run that has not begun the reference runs that are kept for its trial, or say why they are made anew."""
    record = _read(request)
    if record is None or (directory / bundle.CHOSEN_TWIN).exists() or not (directory / paths.WORK).is_dir():
        return
    if reason := record["reason"] or _changed(record["marks"], request, directory):
        request.on_note(f"an earlier reference run is not used again: {reason}")
        return
    twin = codec.build(Twin, record["twin"])
    durable.perform(
        durable.file(directory / bundle.CHOSEN_TWIN, paths.as_json(codec.plain(replace(twin, reused=True))))
    )
    request.on_cached_twin(twin.run)


def is_restarted_alike(request: Request, restart: object) -> bool:
    """``restart``: how the run restarted, and what its restarted reference would be told."""
    record = _read(request)
    return record is not None and record["restart"] == restart


def keep(request: Request, origin: Path, twin: Twin | None, restart: object, hidden: Sequence[str]) -> None:
    """Keep the reference runs that followed ``origin`` with what they depended on. ``hidden``: paths that they did not see."""
    if twin is None or not (origin / paths.WORK).is_dir() or not request.bed.shares_file_system:
        return
    names = [Path(name).name for name in (twin.run, twin.control.run if twin.control else "") if name]
    directories = [origin.parent / name for name in names]
    lines = [line for directory in directories for line in read_lines(directory)]
    began = (directories[0] / bundle.TRIAL).stat().st_mtime
    own = (request.bed.workdir, str(Path(__file__).parents[1]), *_own_directories(directories))
    marks = {name: mark(name, hidden) for name in _opened(lines, origin, directories, own)}
    obstacles = [*_obstacles(lines, len(twin.digests)), *_moved(marks, began, hidden)]
    record = {
        "twin": codec.plain(twin), "marks": {**_start(request, origin), **marks}, "restart": restart,
        "reason": next(iter(obstacles), ""),
    }  # fmt: skip
    paths.write_json(_file(request), {"sha256": codec.digest(record), "record": record})


def keep_if_possible(request: Request, origin: Path, twin: Twin | None, restart: object, hidden: Sequence[str]) -> None:
    """Keep reference runs. Where the records are damaged or there is no room, the next drill makes its own reference runs."""
    try:
        keep(request, origin, twin, restart, hidden)
    except (OSError, ValueError) as error:
        _file(request).unlink(missing_ok=True)
        request.on_note(f"the reference runs are not kept for the next drill: {error}")


def read_lines(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield what the ranks of a reference run recorded: see ``rank/runtime/opened_files.py``."""
    for file in sorted(directory.glob("nodes/*/*/opened-r*.jsonl")):
        for line in file.read_text().splitlines():
            kind, text = json.loads(line)
            yield kind, text


def mark(name: str, hidden: Iterable[str] = ()) -> str:
    """Return what identifies the content of a file, the names in a directory, or for ``write`` that it exists."""
    kind, _, path = name.partition(" ")
    try:
        status = Path(path).stat()
        if _is_below(path, hidden):
            return ABSENT
        if kind == "write":
            return "present"
        if stat.S_ISDIR(status.st_mode):
            entries = [
                entry for entry in os.listdir(path) if entry != "__pycache__" and f"{path}/{entry}" not in hidden
            ]
            return codec.digest(sorted(entries))
        if not stat.S_ISREG(status.st_mode) or status.st_size >= LARGE:
            inode = "" if kind == "file" else status.st_ino  # a copy has another one
            return f"{status.st_size} {status.st_mtime_ns} {inode}"
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ABSENT


def _changed(before: Mapping[str, str], request: Request, directory: Path) -> str:
    """The first thing that is not as it was; empty if all is."""
    now = _start(request, directory)
    for name in sorted({*before, *now}):
        is_opened = name.startswith(("open ", "write ", "list "))
        old, new = before.get(name, ABSENT), mark(name) if is_opened else now.get(name, ABSENT)
        if old != new:
            what = name.partition(" ")[2] if is_opened or name.startswith("file ") else name
            return f"{what} {'is new' if old == ABSENT else 'is gone' if new == ABSENT else 'has changed'}"
    return ""


def _start(request: Request, directory: Path) -> dict[str, str]:
    """Return what a run begins with: its project, environment, nodes and placement. Values of variables are known by keyed digests only."""
    plan, salt = bundle.load_plan(directory), secrets.salt(Path(request.state))
    variables = {**(request.environment or {}), **request.exports}
    facts = paths.document(directory, bundle.FINGERPRINT)
    return {
        **_project(directory / paths.WORK),
        **{
            f"variable {name}": hashlib.sha256(salt + value.encode(errors="surrogateescape")).hexdigest()
            for name, value in variables.items()
            if name not in VOLATILE
        },
        **{f"{name} of the nodes": codec.digest(value) for name, value in facts.items()},
        "the placement": codec.digest([plan.slots, plan.bed, request.umask, str(request.data_dir)]),
        "the bed": hashlib.sha256(salt + repr(request.bed.nodes).encode()).hexdigest(),
    }


def _project(top: Path) -> dict[str, str]:
    """Relative path -> mark, for each file and directory of the copy of a project, without what is linked there."""
    marks = dict[str, str]()
    for folder, directories, files in os.walk(top):
        linked = [name for name in directories if _is_linked(Path(folder, name))]
        directories[:] = [name for name in directories if name not in linked and name not in work_dirs.SKIPPED]
        for name in (*directories, *(name for name in files if name not in work_dirs.LINKED)):
            path = f"{folder}/{name}"
            marks[f"file {os.path.relpath(path, top)}"] = "directory" if name in directories else mark(f"file {path}")
    return marks


def _is_linked(path: Path) -> bool:
    return path.name in work_dirs.LINKED or (path / "pyvenv.cfg").exists()


def _obstacles(lines: Iterable[tuple[str, str]], ranks: int) -> Iterator[str]:
    """Yield why what a reference run depended on is not known, or may change unseen."""
    lines = list(lines)
    if sum(kind == "end" for kind, _ in lines) < ranks:
        yield "what it opened is recorded only for a script that is run as a file in a pre-loaded interpreter, and ends by itself"
    for kind, text in lines:
        if kind == "connect":
            yield f"it connected to {text}"
        elif kind == "start" and Path(text).name not in _HARMLESS:
            yield f"it started {text}"
        elif kind == "native" and not _OBSERVED.fullmatch(text):
            yield f"{Path(text).name} may open files by itself"
        elif kind == "unknown":
            yield text


def _moved(marks: Mapping[str, str], began: float, hidden: Sequence[str]) -> Iterator[str]:
    """Yield what changed after the reference run had begun."""
    for name, value in marks.items():
        path = name.partition(" ")[2]
        if value not in (ABSENT, "present") and not _is_below(path, hidden) and Path(path).stat().st_ctime >= began:
            yield f"{path} changed while it ran"


def _own_directories(directories: Iterable[Path]) -> Iterator[str]:
    """Directories that each reference run has for itself."""
    for directory in directories:
        plan = bundle.load_plan(directory)
        yield from (str(directory.resolve()), plan.payload, *(plan.isolation.writable if plan.isolation else ()))


def _opened(
    lines: Iterable[tuple[str, str]], origin: Path, directories: Sequence[Path], own: Sequence[str]
) -> set[str]:
    """Return what was opened, written or listed outside of the copied project, by its path on this machine."""
    work_dir, names = bundle.load_plan(origin).work_dir, set[str]()
    root = str(Path(work_dir.root).resolve()) if work_dir else "/nowhere"
    copies = [f"{directory.resolve()}/{paths.WORK}" for directory in directories]
    for kind, path in lines:
        copy = next((copy for copy in copies if _is_below(path, (copy,))), None)
        path = path if copy is None else f"{root}{path.removeprefix(copy)}"  # noqa: PLW2901
        is_private = path.startswith(_SYSTEM) or _is_below(path, own) or _is_copied(path, root, origin.parent)
        if kind in ("open", "write", "list") and not is_private:
            names.add(f"{kind} {_source(path)}")
    return names


def _is_copied(path: str, root: str, runs: Path) -> bool:
    """Return whether the copy of the project has the path, so that its marks tell whether it has changed."""
    folders = [Path(path), *Path(path).parents]
    inside = folders[: folders.index(Path(root))] if Path(root) in folders else None
    is_outside = inside is None or _is_below(path, (str(runs.resolve()),))
    return not is_outside and not any(_is_linked(folder) or folder.is_symlink() for folder in inside or ())


def _source(path: str) -> str:
    """The source of a compiled module, else the path."""
    try:
        return util.source_from_cache(path) if path.endswith(".pyc") else path
    except ValueError:
        return path


def _is_below(path: str, directories: Iterable[str]) -> bool:
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories if directory)


def _file(request: Request) -> Path:
    key = codec.digest([twins.twin_key(request.trial, {}), codec.plain(request.trial.faults), request.bed.workdir])[:16]
    return Path(request.state) / "twins" / f"script-{key}.json"


def _read(request: Request) -> Any:
    """The record that is kept for the trial; None if there is none, or it is damaged."""
    try:
        document = json.loads(_file(request).read_bytes())
        is_whole = document["sha256"] == codec.digest(document["record"])
        return document["record"] if is_whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
