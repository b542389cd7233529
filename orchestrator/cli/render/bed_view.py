"""How a bed and the plan of a bed look on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...core.bed.diff import AS_WANTED
from ...model.bed import BedSpec, BedStatus, Change, Diff
from .terminal import Terminal

_MARKS = {"create": "+", "replace": "~", "remove": "-", "keep": "="}


def plan(terminal: Terminal, bed: BedSpec, diff: Diff) -> None:
    """The changes with their reasons; nodes with the same reason share a line."""
    departed = [change for change in diff.departed if change.action == "remove"]
    create, change, remove = (len(diff.of(action)) for action in ("create", "replace", "remove"))
    remove += len(departed)
    terminal.line(f"plan: {create} to create, {change} to change, {remove} to remove")
    changes = [change for change in diff.changes if change.action != "keep" or change.reason != AS_WANTED] + departed
    width = max([len(names) for names, *_ in _groups(bed, changes)] + [len("keeper") if diff.keeper else 0])
    if diff.keeper:
        terminal.line(f"  {_MARKS[diff.keeper.action]} {'keeper':<{width}}          {diff.keeper.reason}")
    for names, action, role, reason in _groups(bed, changes):
        terminal.line(f"  {_MARKS[action]} {names:<{width}}   {role:<5}  {reason}")


def away(terminal: Terminal, bed: BedSpec, diff: Diff) -> None:
    """The nodes on hosts that left the inventory and are not reached, which are kept on record."""
    reasons = {change.reason: change for change in diff.departed if change.action == "keep"}
    for reason in reasons:
        names = " ".join(change.node for change in diff.departed if change.reason == reason)
        terminal.warn(
            f"{names}: {reason}; once it is back: ccbed up; or give it up with the bed: ccbed down {bed.name} --abandon"
        )


def count(bed: BedSpec, status: BedStatus) -> str:
    """``5 of 5 warm``, or how many are in each state: ``4 busy, 1 warm``."""
    states = Counter(status.node(node.name).state for node in bed.nodes)
    if set(states) <= {"warm"}:
        return f"{len(bed.nodes)} of {len(bed.nodes)} warm"
    return ", ".join(f"{number} {state}" for state, number in states.most_common())


def keeper(bed: BedSpec, status: BedStatus) -> str:
    """On one host its pid; on several that it is on all, or not."""
    if len(bed.hosts) < 2:
        return f"keeper pid {status.keeper_pid}" if status.keeper_pid else "no keeper"
    return f"keepers on {len(bed.hosts)} hosts" if status.keeper_pid else "not a keeper on every host"


def table(terminal: Terminal, bed: BedSpec, status: BedStatus) -> None:
    """One line per node."""
    known = {node.name for node in bed.nodes}
    names = [node.name for node in bed.nodes] + [node.name for node in status.nodes if node.name not in known]
    terminal.table(
        ("NODE", "ROLE", "STATE", "SPEC", "PID", "OWN / SHARED MEMORY"),
        [_row(terminal, name, bed, status, name in known) for name in names],
    )


def _row(terminal: Terminal, name: str, bed: BedSpec, status: BedStatus, wanted: bool) -> tuple[str, ...]:
    found = status.node(name)
    role = bed.node(name).role if wanted else "-"
    said = found.reason and found.state != "unreachable"  # its host's reason is told once
    state = f"{found.state} ({found.reason})" if said else found.state
    memory = f"{found.own_mib:.0f} / {found.shared_mib:.0f} MiB" if found.pid else "-"
    return (name, role, state, found.spec_hash[:6] or "-", str(found.pid or "-"), memory)


def _groups(bed: BedSpec, changes: list[Change]) -> Iterator[tuple[str, str, str, str]]:
    roles = {node.name: node.role for node in bed.nodes}
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for change in changes:
        key = (change.action, roles.get(change.node, "node"), change.reason)
        grouped.setdefault(key, []).append(change.node)
    for (action, role, reason), names in grouped.items():
        yield _short(names), action, role, reason


def _short(names: list[str]) -> str:
    """``n0 n1 n2``; long rows keep their ends."""
    return " ".join(names) if len(names) <= 8 else f"{' '.join(names[:3])} … {names[-1]} ({len(names)})"
