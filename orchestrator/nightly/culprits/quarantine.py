"""Quarantine: nodes that two recorded nights accused. A file of the bed; ccbed mentions them, and never drains one by itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...model import codec
from ...model.errors import UsageError
from ...store import paths
from ..suite import Night

FILE = "quarantine.json"
#: Offences that lead to quarantine, and the recorded nights in which they count.
OFFENCES, RECENT = 2, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Offence:
    """A night that accused a node. ``number``: of the recorded night."""

    node: str
    host: str
    night: str
    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """``released``: node -> number of the last night before its release; offences up to it no longer count."""

    offences: tuple[Offence, ...] = ()
    released: dict[str, int] = field(default_factory=dict)

    def nodes(self, before: int | None = None) -> dict[str, Offence]:
        """Node -> its last offence, of the nodes in quarantine. ``before``: as it was when that night began."""
        result = {}
        for node in sorted({offence.node for offence in self.offences}):
            counted = [
                offence for offence in self.offences
                if offence.node == node and offence.number > self.released.get(node, 0) and (not before or offence.number < before)
            ]  # fmt: skip
            counted.sort(key=lambda offence: offence.number)
            if len(counted) >= OFFENCES and counted[-1].number - counted[-OFFENCES].number < RECENT:
                result[node] = counted[-1]
        return result


def read(workdir: Path) -> Quarantine:
    """That of a bed; empty without a file. Raises TornBundleError for a damaged one."""
    if not (workdir / FILE).exists():
        return Quarantine()
    quarantine: Quarantine = paths.built(Quarantine, workdir, FILE)
    return quarantine


def record(workdir: Path, night: Night, accused: Iterable[tuple[str, str]]) -> Quarantine:
    """Add the offences of a recorded night: nodes and reasons. A night that is judged again replaces its own."""
    quarantine = read(workdir)
    if not night.recorded:
        return quarantine
    kept = tuple(offence for offence in quarantine.offences if offence.night != night.name)
    new = tuple(
        Offence(node=node, host=night.hosts.get(node, ""), night=night.name, number=night.number, reason=reason)
        for node, reason in accused
    )
    changed = replace(quarantine, offences=(*kept, *new))
    if changed != quarantine:
        paths.write_json(workdir / FILE, codec.plain(changed))
    return changed


def release(workdir: Path, node: str) -> None:
    """Raises UsageError for a node that is not in quarantine."""
    quarantine = read(workdir)
    nodes = quarantine.nodes()
    if node not in nodes:
        raise UsageError(f"{node} is not in quarantine", hint=f"in quarantine: {', '.join(nodes) or 'no node'}")
    released = {**quarantine.released, node: nodes[node].number}
    paths.write_json(workdir / FILE, codec.plain(replace(quarantine, released=released)))


def lines(workdir: Path) -> tuple[str, ...]:
    """A sentence for each node in quarantine, or why the file cannot be read."""
    try:
        nodes = read(workdir).nodes()
    except paths.TornBundleError as error:
        return (f"the quarantine of the bed cannot be read: {'; '.join(error.problems)}",)
    return tuple(
        f"{node} is in quarantine since {offence.night}: {offence.reason}     release it: ccbed quarantine --release {node}"
        for node, offence in nodes.items()
    )
