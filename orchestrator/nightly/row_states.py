"""Computes what the rows of a night come to: states, and the exit code. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..model import errors
from .suite import Row, State

#: Before the name of a node in the cell of a row that is about the node.
NODE = "node "
_STATES: dict[int, State] = {errors.EXIT_PASS: "passed", errors.EXIT_FINDING: "failed", errors.EXIT_UNKNOWN: "unknown"}
_CODES: dict[State, int] = {
    **{known: code for code, known in _STATES.items()}, "unfinished": errors.EXIT_FINDING, "error": errors.EXIT_INFRASTRUCTURE,
}  # fmt: skip


def state(exit_code: int) -> State:
    """The state of a repeat whose run ended with this code."""
    return _STATES.get(exit_code, "error")


def of_node(name: str, reason: str) -> Row:
    """A node of the bed was lost outside of any trial, or cannot be brought back: nothing is known of it."""
    return Row(cell=f"{NODE}{name}", repeat=0, state="unknown", reason=reason)


def node(row: Row) -> str:
    """The node that a row of ``of_node`` is about; empty for a repeat, which has an exit code or a state of its own."""
    is_of_node = row.cell.startswith(NODE) and row.state == "unknown" and row.exit is None
    return row.cell.removeprefix(NODE) if is_of_node else ""


def exit_code(rows: Sequence[Row]) -> int:
    """That of a night, by the rows of its repeats: an unfinished one failed, and nothing but skipped ones is unknown.

    A node that was lost does not count: the trials that it broke have rows of their own.
    """
    codes = {_CODES[row.state] for row in rows if row.state != "skipped" and not node(row)}
    return worst(codes) if codes else errors.EXIT_UNKNOWN


def worst(codes: Iterable[int]) -> int:
    known = set(codes)
    return next(code for code in errors.PRECEDENCE if code in known)
