"""Quarantine: nodes that two recorded nights accused. A file of the bed; its runs give such a node no rank until it is released."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...model import codec
from ...model.bed import BedSpec
from ...model.errors import InfrastructureError, UsageError
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
class Entry:
    """A node in quarantine. ``since``: the offence that put it there; ``last``: its last one."""

    since: Offence
    last: Offence

    @property
    def reason(self) -> str:
        return f"is in quarantine since {self.since.night}: {self.last.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """``released``: node -> number of the last night before its release; offences up to it no longer count."""

    offences: tuple[Offence, ...] = ()
    released: dict[str, int] = field(default_factory=dict)

    def nodes(self, before: int | None = None) -> dict[str, Entry]:
        """Node -> its entry, of the nodes in quarantine. ``before``: as it was when that night began."""
        entries = {node: self._entry(node, before) for node in sorted({offence.node for offence in self.offences})}
        return {node: entry for node, entry in entries.items() if entry is not None}

    def _entry(self, node: str, before: int | None) -> Entry | None:
        """A later offence never ends a quarantine: only a release does."""
        counted = sorted(
            (
                offence for offence in self.offences
                if offence.node == node and offence.number > self.released.get(node, 0) and (not before or offence.number < before)
            ),
            key=lambda offence: offence.number,
        )  # fmt: skip
        decisive = (
            later for first, later in zip(counted, counted[OFFENCES - 1 :], strict=False)
            if later.number - first.number < RECENT
        )  # fmt: skip
        since = next(decisive, None)
        return Entry(since=since, last=counted[-1]) if since else None


def read(workdir: Path) -> Quarantine:
    """That of a bed; empty without a file. Raises InfrastructureError for a damaged one: which nodes are healthy is then not known."""
    file = workdir / FILE
    try:
        if not file.exists():
            return Quarantine()
        quarantine: Quarantine = paths.built(Quarantine, workdir, FILE)
        return quarantine
    except (paths.TornBundleError, OSError) as error:
        problems = error.problems if isinstance(error, paths.TornBundleError) else (f"{file}: {error.strerror}",)
        raise InfrastructureError(
            *(f"which nodes are in quarantine is not known: {problem}" for problem in problems),
            hint=f"restore {file}, or remove it: then no node of the bed is in quarantine",
        ) from None


def record(workdir: Path, night: Night, accused: Iterable[tuple[str, str]]) -> Quarantine:
    """Add the offences of a recorded night: nodes and reasons. A night that is judged again replaces its own."""
    quarantine = read(workdir)
    if not night.recorded:
        return quarantine
    kept = tuple(offence for offence in quarantine.offences if offence.night != night.name)
    new = tuple(
        Offence(node=node, host=night.all_hosts.get(node, ""), night=night.name, number=night.number, reason=reason)
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
    released = {**quarantine.released, node: nodes[node].last.number}
    paths.write_json(workdir / FILE, codec.plain(replace(quarantine, released=released)))


def reasons(bed: BedSpec) -> dict[str, str]:
    """Node of the bed -> why it is in quarantine. Raises InfrastructureError."""
    names = {node.name for node in bed.nodes}
    return {node: entry.reason for node, entry in read(Path(bed.workdir)).nodes().items() if node in names}


def describe(night: Night) -> tuple[str, ...]:
    """A sentence for each node that was in quarantine when the night began."""
    use = (
        "it gets ranks all the same"
        if night.includes_quarantined
        else "only probes measure it, and it gets no other rank"
    )
    return tuple(f"{node} {reason}; {use}" for node, reason in sorted(night.quarantined.items()))


def lines(workdir: Path, known: Container[str] = ()) -> tuple[str, ...]:
    """A sentence for each node in quarantine but those that are ``known``, or why the file cannot be read."""
    try:
        nodes = read(workdir).nodes()
    except InfrastructureError as error:
        return tuple(error.problems)
    return tuple(
        f"{node} {entry.reason}     release it: ccbed quarantine --bed {workdir.name} --release {node}"
        for node, entry in nodes.items()
        if node not in known
    )
