"""The script for which reserves import ahead, and the rules by which a recovery may use what they imported.

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
import zlib
from pathlib import Path

from ...model import codec
from ...model.gang import GangSpec, ImportReport
from ...model.trial import SCRIPT
from ...system import plain_files
from .. import warm_up

#: The script that nodes of this host ran last, and the lock of the one reserve that imports, in the directory that they share.
LAST_SCRIPT, IMPORT_LOCK = "script.json", "imports.lock"
#: A script has run for so long, in seconds, before reserves import what it imports.
RUNS_S = 5.0
#: What differs between the ranks and the attempts of a job, and what a shell counts for itself.
MAY_DIFFER = re.compile(
    r"CCBED_\w+|(LOCAL_|GROUP_|NODE_|ROLE_)?RANK|(\w+_)?WORLD_SIZE|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|_|OLDPWD|SHLVL"
)
#: Files of GPU drivers. A rehearsal hides the GPUs, and autograd then knows the CPU alone, for good; a script on gloo may use a GPU.
GPU_FILES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")


def may_use_reserve(spec: GangSpec) -> bool:
    """Does a recovery of this gang run in the rank's own process, without a GPU? A reserve can use none any more."""
    is_elsewhere = spec.workload == SCRIPT and (
        any(spec.params.get(name) for name in ("launcher", "exec_", "cold")) or any(map(os.path.exists, GPU_FILES))
    )
    return not is_elsewhere and spec.backend == "gloo"


class LastScript:
    """The script that ran last. ``shared``: the directory that the nodes of this host share."""

    def __init__(self, shared: Path) -> None:
        self._path = shared / LAST_SCRIPT
        self._spec: GangSpec | None = None
        self._since, self._published_run = 0.0, ""
        self._memory: int | None = None
        #: Why no reserve imports for it; None: not known yet.
        self.why: str | None = None

    def note(self, spec: GangSpec) -> None:
        """The ranks of a gang start on this node; the first of its nodes tells the others: a spare among them may replace any.

        A module that runs as a program, a parsed output and a reference run begin in another way.
        """
        self._since = time.monotonic()
        begins_otherwise = spec.params.get("module") or spec.params.get("step_regex") or spec.isolation
        if spec.workload == SCRIPT and may_use_reserve(spec) and not begins_otherwise:
            self._spec, self.why = spec, None
            if spec.group_rank == 0 and spec.epoch == 0:
                with contextlib.suppress(OSError):
                    self._publish(spec)

    def find(self) -> GangSpec | None:
        """The script, once it has run for ``RUNS_S``, if reserves have something to import."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            self._read()
        if self._spec is None or time.monotonic() - self._since < RUNS_S:
            return None
        if self.why is None:
            self.why = importlib.import_module("orchestrator.rank.runtime.imports_ahead").find_obstacle(self._spec)
        return None if self.why else self._spec

    def _publish(self, spec: GangSpec) -> None:
        """The file names this process's memory with the script: its environment, which may be secret, is on no disk."""
        memory = os.memfd_create(LAST_SCRIPT)
        with open(memory, "wb", closefd=False) as file:
            file.write(json.dumps(codec.plain(spec)).encode())
        before, self._memory = self._memory, memory
        if before is not None:
            os.close(before)
        plain_files.write_json(self._path, {"memory": f"/proc/{os.getpid()}/fd/{memory}", "run": spec.run})

    def _read(self) -> None:
        published = plain_files.read_json(self._path)
        if published["run"] == self._published_run:
            return
        self._published_run = published["run"]
        # else its node has ended, and another process has its pid
        is_there = LAST_SCRIPT in os.readlink(published["memory"])
        if is_there and (self._spec is None or self._spec.run != self._published_run):
            spec = codec.build(GangSpec, json.loads(Path(published["memory"]).read_bytes()))
            self._spec, self.why, self._since = spec, None, time.monotonic()


def import_ahead(spec: GangSpec, node: str, incarnation: str, lock: Path) -> bytes:
    """Import for a script, one reserve of this host at a time, and return the report. Called in the reserve."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        warm_up.adopt_rank_code(spec.payload)
        module = importlib.import_module("orchestrator.rank.runtime.imports_ahead")
        report = codec.plain(module.prepare(spec, spec.ranks[0], node, incarnation))
    return zlib.compress(json.dumps(report).encode())


def read_report(text: bytes) -> ImportReport:
    return codec.build(ImportReport, json.loads(zlib.decompress(text)))


def refusal(report: ImportReport, before: GangSpec, spec: GangSpec, rank: int, node: str, incarnation: str) -> str:
    """Return why a reserve that has imported for ``before`` cannot run a rank of ``spec``; empty if it can."""
    for name in ("params", "payload", "work_dir", "isolation", "umask"):
        if getattr(spec, name) != getattr(before, name):
            return f"another {name}"
    complete = importlib.import_module("orchestrator.rank.runtime.environment").complete
    old = complete(before, before.ranks[0], node, incarnation, os.environ)
    new = complete(spec, rank, node, incarnation, os.environ)
    differing = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
    if counted := [name for name in differing if name in report.read or not MAY_DIFFER.fullmatch(name)]:
        return f"another value of {', '.join(counted)}"
    changed = (f"{file} has changed" for file, stamp in report.files.items() if _stamp(file) != tuple(stamp))
    return next(changed, "")


def _stamp(file: str) -> tuple[int, ...]:
    with contextlib.suppress(OSError):
        status = os.stat(file)
        return status.st_mtime_ns, status.st_size
    return ()


def begins_like(first: GangSpec, second: GangSpec) -> bool:
    """Do two scripts begin with the same imports, as far as their gangs tell?"""
    names = ("params", "payload", "environment", "env", "threads", "work_dir")
    return all(getattr(first, name) == getattr(second, name) for name in names)
