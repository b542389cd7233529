"""For which script reserves import ahead, and whether what they imported is what the script of an order would import.

It is the script that the nodes of this host ran last. An order must have its parameters, its files and its environment: of that
only what differs between ranks and attempts may differ, and only if no import has read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...model import codec
from ...model.frozen import dataclass, replace
from ...model.gang import GangSpec
from ...model.trial import SCRIPT
from .. import rank_imports
from ..files import plain_files

#: The script that nodes of this host ran last, and the lock of the one reserve that imports, in the directory that they share.
LAST_SCRIPT, IMPORT_LOCK = "script.json", "imports.lock"
#: A script has run for so long, in seconds, before reserves import what it imports.
RUNS_S = 5.0
#: The nodes of a host, which look four times a second, can read it for so long.
SHOWN_S = 2.0
#: What differs between the ranks and the attempts of a job.
OF_RANK = re.compile(
    r"CCBED_\w+|(LOCAL_|GROUP_|NODE_|ROLE_)?RANK|(\w+_)?WORLD_SIZE|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+"
)
#: Files of GPU drivers. A rehearsal hides the GPUs, and autograd then knows the CPU alone, for good; a script on gloo may use a GPU.
GPU_FILES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a reserve says of its imports (``rank/runtime/imports_ahead.py``)."""

    modules: int
    end: str
    problem: str
    read: tuple[str, ...]
    files: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A rank of a gang, with the names of its node."""

    spec: GangSpec
    rank: int
    node: str
    incarnation: str


def may_use_reserve(spec: GangSpec) -> bool:
    """Does a recovery of this gang run in the rank's own process, without a GPU? A reserve can use none any more."""
    params = spec.params
    is_elsewhere = spec.workload == SCRIPT and (
        any(params.get(name) for name in ("launcher", "exec_", "cold")) or any(map(os.path.exists, GPU_FILES))
    )
    return not is_elsewhere and spec.backend == "gloo"


def has_imports(spec: GangSpec) -> bool:
    """May a reserve import what this script imports? A module that runs as a program, and a parsed output, begin in another way."""
    begins_otherwise = spec.params.get("module") or spec.params.get("step_regex") or spec.isolation
    return spec.workload == SCRIPT and may_use_reserve(spec) and not begins_otherwise


class LastScript:
    """The script that ran last. ``shared``: the directory that the nodes of this host share."""

    def __init__(self, shared: Path) -> None:
        self._path = shared / LAST_SCRIPT
        self._spec: GangSpec | None = None
        self._own: GangSpec | None = None
        self._since, self._seen = 0.0, 0
        #: Why no reserve imports for it.
        self.why = ""

    def note(self, spec: GangSpec) -> None:
        """The ranks of a gang start on this node; the first of its nodes tells the others, of which a spare may have to import.

        The file has the user's environment, so it is removed as soon as they have read it.
        """
        self._own = spec
        if spec.group_rank == 0 and spec.epoch == 0 and has_imports(spec):
            with contextlib.suppress(OSError):
                plain_files.write_json(self._path, codec.plain(spec))
        self._read()

    def find(self) -> GangSpec | None:
        """The script, once it has run for ``RUNS_S``, if reserves have something to import; as the rank of this node in it."""
        self._read()
        spec, own = self._spec, self._own
        if spec is None or self.why or time.monotonic() - self._since < RUNS_S:
            return None
        return replace(spec, group_rank=own.group_rank, ranks=own.ranks) if own and own.run == spec.run else spec

    def _read(self) -> None:
        try:
            status = self._path.stat()
            if status.st_mtime_ns != self._seen:
                self._seen, self._since = status.st_mtime_ns, time.monotonic()
                self._spec = codec.build(GangSpec, plain_files.read_json(self._path))
                ahead = importlib.import_module("orchestrator.rank.runtime.imports_ahead")
                self.why = ahead.find_obstacle(self._spec)
            elif time.time() - status.st_mtime > SHOWN_S:
                self._path.unlink()
        except (OSError, ValueError, KeyError, TypeError):
            return


def import_ahead(spec: GangSpec, node: str, incarnation: str, lock: Path, report: int) -> None:
    """In a reserve: import, one reserve of this host at a time, and write the report into the descriptor."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    rank_imports.adopt(spec.payload)
    ahead = importlib.import_module("orchestrator.rank.runtime.imports_ahead")
    text = json.dumps(codec.plain(ahead.prepare(spec, spec.ranks[0], node, incarnation)))
    os.close(fd)
    with os.fdopen(report, "w") as file:
        file.write(text)


def read_report(fd: int) -> Report:
    with os.fdopen(fd) as file:
        file.seek(0)
        return codec.build(Report, json.load(file))


def refusal(report: Report, ahead: GangSpec, order: Rank) -> str:
    """Why a reserve that imported for ``ahead`` cannot run the script of an order; empty if it can."""
    spec = order.spec
    for name in ("params", "payload", "work_dir", "isolation", "umask"):
        if getattr(spec, name) != getattr(ahead, name):
            return f"another {name}"
    environment = importlib.import_module("orchestrator.rank.runtime.environment")
    before = environment.complete(ahead, ahead.ranks[0], order.node, order.incarnation, os.environ)
    now = environment.complete(spec, order.rank, order.node, order.incarnation, os.environ)
    differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if counted := sorted(name for name in differing if name in report.read or not OF_RANK.fullmatch(name)):
        return f"another value of {', '.join(counted)}"
    changed = (file for file, stamp in report.files.items() if _stamp(file) != tuple(stamp))
    return "".join(f"{file} has changed" for file in [next(changed, "")] if file)


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def begins_like(first: Any, second: GangSpec) -> bool:
    """Do two scripts begin with the same imports, as far as their gangs tell?"""
    names = ("params", "payload", "environment", "env", "threads", "work_dir")
    return first is not None and all(getattr(first, name) == getattr(second, name) for name in names)
