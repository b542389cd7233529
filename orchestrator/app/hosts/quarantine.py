"""Quarantine: nodes that two recorded nights accused, and hosts that a person drained. A file of the bed; its runs use neither.

A node is known by its host, as in ``nightly/identity.py``: the bed may give its name to another one.
"""

from __future__ import annotations

import datetime
import fcntl
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...model import codec
from ...model.errors import InfrastructureError, UsageError
from ...model.frozen import dataclass, field, replace
from ...store import bed_files, paths

if TYPE_CHECKING:
    from .node_names import Nodes

FILE = bed_files.QUARANTINE
#: Offences that lead to quarantine, and the recorded nights in which they count.
OFFENCES, RECENT = 2, 10


class Night(Protocol):
    """The record of a night that accuses nodes."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def recorded(self) -> bool: ...
    @property
    def all_hosts(self) -> Mapping[str, str]: ...
    @property
    def includes_quarantined(self) -> bool: ...
    @property
    def quarantined(self) -> Mapping[str, str]: ...
    def host_of(self, node: str) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Offence:
    """A night that accused a node. ``number``: of the recorded night. ``is_alone``: it was the only node of its host."""

    node: str
    host: str
    night: str
    number: int
    reason: str
    is_alone: bool = False

    @property
    def machine(self) -> str:
        """Return what a release names: ``@h1``, or ``n1@h1`` where h1 had other nodes."""
        return f"@{self.host}" if self.is_alone else f"{self.node}@{self.host}"

    def present_node(self, nodes: Nodes) -> str:
        return nodes.name(self.node, self.host, is_alone=self.is_alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A node in quarantine. ``since``: the offence that put it there; ``last``: its last one."""

    since: Offence
    last: Offence

    @property
    def reason(self) -> str:
        return f"is set aside since {self.since.night}: {self.last.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A host on which no node is placed. ``by``: user@machine; ``since``, ``until``: UTC, in ISO 8601; ``until``: empty without an end."""

    by: str
    since: str
    reason: str
    until: str = ""

    @property
    def text(self) -> str:
        until = f" until {self.until}" if self.until else ""
        return f"is set aside since {self.since}{until} by {self.by}: {self.reason}"

    def is_over(self, now: datetime.datetime) -> bool:
        return bool(self.until) and datetime.datetime.fromisoformat(self.until) <= now


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """``released``: ``Offence.machine`` -> number of the last night before its release; offences up to it no longer count.
    ``last_number``: of the bed's recorded nights, whatever directories they are in. ``drained``: host -> its drain.
    """

    offences: tuple[Offence, ...] = ()
    released: dict[str, int] = field(default_factory=dict)
    last_number: int = 0
    drained: dict[str, Drain] = field(default_factory=dict)

    def nodes(self, present: Nodes, before: int | None = None) -> dict[str, Entry]:
        """Node -> its entry, of the nodes in quarantine, also of those that left the bed. ``before``: as it was when that night began."""
        offences: dict[str, list[Offence]] = {}
        for offence in sorted(self.offences, key=lambda offence: offence.number):
            if offence.number > self._released(offence) and (not before or offence.number < before):
                offences.setdefault(offence.present_node(present), []).append(offence)
        entries = {node: _entry(counted) for node, counted in sorted(offences.items())}
        return {node: entry for node, entry in entries.items() if entry is not None}

    def _released(self, offence: Offence) -> int:
        """Files of earlier versions name nodes only."""
        return max(self.released.get(name, 0) for name in (offence.machine, offence.node))

    @property
    def next_number(self) -> int:
        """Return the number of the bed's next recorded night. Files of earlier versions have no last number."""
        return max(self.last_number, *(offence.number for offence in self.offences), *self.released.values(), 0) + 1


def _entry(counted: Sequence[Offence]) -> Entry | None:
    """``counted``: in the order of nights. A later offence never ends a quarantine: only a release does."""
    decisive = (
        later
        for first, later in zip(counted, counted[OFFENCES - 1 :], strict=False)
        if later.number - first.number < RECENT
    )
    since = next(decisive, None)
    return Entry(since=since, last=counted[-1]) if since else None


def read(workdir: Path) -> Quarantine:
    """That of a bed, without drains whose time is over; empty without a file. Raises InfrastructureError for a damaged one: which nodes are
    healthy is then not known.
    """
    file = workdir / FILE
    try:
        if not file.exists():
            return Quarantine()
        quarantine: Quarantine = paths.built(Quarantine, workdir, FILE)
        now = datetime.datetime.now(datetime.UTC)
        in_force = {host: drain for host, drain in quarantine.drained.items() if not drain.is_over(now)}
        return replace(quarantine, drained=in_force)
    except (paths.TornBundleError, OSError, ValueError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        problems = error.problems if isinstance(error, paths.TornBundleError) else (f"{file}: {reason}",)
        raise InfrastructureError(
            *(f"what is set aside is not known: {problem}" for problem in problems),
            hint=f"restore {file}, or remove it: then nothing of the bed is set aside",
        ) from None


def record(workdir: Path, night: Night, accused: Iterable[tuple[str, str]]) -> Quarantine:
    """Add the offences of a recorded night: nodes and reasons. A night that is judged again replaces its own."""
    if not night.recorded:
        return read(workdir)
    with _changing(workdir) as quarantine:
        return _recorded(workdir, quarantine, night, accused)


def _recorded(workdir: Path, quarantine: Quarantine, night: Night, accused: Iterable[tuple[str, str]]) -> Quarantine:
    kept = tuple(offence for offence in quarantine.offences if offence.night != night.name)
    hosts = list(night.all_hosts.values())
    new = tuple(
        Offence(
            node=node.partition("@")[0], host=night.host_of(node), night=night.name, number=night.number, reason=reason,
            is_alone=hosts.count(night.host_of(node)) <= 1,
        )
        for node, reason in accused
    )  # fmt: skip
    changed = replace(quarantine, offences=(*kept, *new))
    if changed != quarantine:
        _write(workdir, changed)
    return changed


def assign_number(workdir: Path, least: int = 1) -> int:
    """The number of a new recorded night of the bed, at least ``least``. It is never given again. Raises InfrastructureError."""
    try:
        with _changing(workdir) as quarantine:
            number = max(quarantine.next_number, least)
            _write(workdir, replace(quarantine, last_number=number))
    except OSError as error:
        raise InfrastructureError(
            f"{workdir / FILE}: the number of the night cannot be recorded: {error.strerror}",
            hint="free space or restore the directory, or run the night without --record",
        ) from error
    return number


def drain(workdir: Path, hosts: Iterable[str], new: Drain) -> tuple[str, ...]:
    """Record the drains; the hosts that were not drained before. Raises InfrastructureError."""
    with _changing(workdir) as quarantine:
        added = tuple(host for host in hosts if host not in quarantine.drained)
        _write(workdir, replace(quarantine, drained={**quarantine.drained, **dict.fromkeys(added, new)}))
    return added


def end(workdir: Path, hosts: Sequence[str], names: Sequence[str], present: Nodes) -> None:
    """Remove the drains of hosts, and take nodes out of quarantine. Raises UsageError for what is not set aside, and changes nothing."""
    with _changing(workdir) as quarantine:
        nodes = quarantine.nodes(present)
        others = [name for name in hosts if name not in quarantine.drained] + [
            name for name in names if name not in nodes
        ]
        if others:
            listed = ", ".join((*quarantine.drained, *nodes)) or "nothing"
            raise UsageError(*(f"{name} is not set aside" for name in others), hint=f"set aside: {listed}")
        drained = {host: drain for host, drain in quarantine.drained.items() if host not in hosts}
        offences = ((offence, offence.present_node(present)) for offence in quarantine.offences)
        released = {offence.machine: nodes[node].last.number for offence, node in offences if node in names}
        _write(workdir, replace(quarantine, drained=drained, released={**quarantine.released, **released}))


@contextmanager
def _changing(workdir: Path) -> Iterator[Quarantine]:
    """The quarantine, which no other process changes meanwhile: a drain must not be lost to another one, or to a night."""
    workdir.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield read(workdir)
    finally:
        os.close(directory)


def _write(workdir: Path, quarantine: Quarantine) -> None:
    paths.write_json(workdir / FILE, codec.plain(quarantine))


def reasons(workdir: Path, present: Nodes) -> dict[str, str]:
    """Node of the bed -> why it is in quarantine. Raises InfrastructureError."""
    nodes = read(workdir).nodes(present)
    return {node: entry.reason for node, entry in nodes.items() if node in present.hosts}


def describe(night: Night) -> tuple[str, ...]:
    """A sentence for each node that was in quarantine when the night began."""
    use = (
        "it gets ranks all the same"
        if night.includes_quarantined
        else "only probes measure it, and it gets no other rank"
    )
    return tuple(f"{node} {reason}; {use}" for node, reason in sorted(night.quarantined.items()))


def lines(workdir: Path, present: Nodes, known: Container[str] = ()) -> tuple[str, ...]:
    """A sentence for each node of the bed in quarantine but those that are ``known``, or why the file cannot be read."""
    try:
        nodes = read(workdir).nodes(present)
    except InfrastructureError as error:
        return tuple(error.problems)
    return tuple(
        f"{node} {entry.reason}     end it: ccbed set-aside {node} --end --bed {workdir.name}"
        for node, entry in nodes.items()
        if node in present.hosts and node not in known
    )
