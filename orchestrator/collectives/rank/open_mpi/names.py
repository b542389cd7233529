"""Names of Open MPI's algorithms: ``mpi`` (its own choice), ``mpi:ring`` (that algorithm, forced). Pure, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ....rank.exchange import cases

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
    """Why ``text`` is not an algorithm for ``operation``; empty if it is."""
    try:
        forced(text, operation)
    except ValueError as error:
        return str(error)
    return ""


def unfit(case: cases.Case) -> Iterator[str]:
    """Why Open MPI cannot do a case, each as ``name: why``."""
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
