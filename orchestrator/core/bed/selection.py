"""Select hosts of a bed: those that a verb acts on, without those that are drained."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from ...model.bed import BedSpec, BedStatus, Change, Diff
from ...model.errors import UsageError
from ..spec import written_values

#: The states of a node that has its host's place in the bed; one that starts may still fail.
_USABLE = ("warm", "busy")


def host_names(bed: BedSpec) -> tuple[str, ...]:
    """The names of all hosts, in the order of the inventory; then those that left it and are not cleared."""
    listed = [host.name for host in bed.hosts] or [node.host for node in bed.all_nodes]
    return tuple(dict.fromkeys((*listed, *(departed.host.name for departed in bed.departed))))


def require_hosts(bed: BedSpec, texts: Iterable[str], *, others: Sequence[str] = ()) -> tuple[str, ...]:
    """The hosts that the texts name, in the order of the bed: names and patterns (``rack1-*``, ``all``) between commas.
    ``!h3`` leaves h3 out, of all hosts if no other is named. ``others``: names that count besides those of the bed.
    Raises UsageError with every name that matches no host.
    """
    known = tuple(dict.fromkeys((*host_names(bed), *others)))
    names = list(dict.fromkeys(name.strip() for text in texts for name in text.split(",")))
    unknown = [name for name in names if not _matching(name.removeprefix("!"), known)]
    if unknown:
        raise UsageError(
            *(f"bed {bed.name} has no host {_quoted(name)}; {_nearest(bed, name)}" for name in unknown),
            hint=f"its hosts: {', '.join(known)}",
        )
    excluded = {host for name in names if name.startswith("!") for host in _matching(name[1:], known)}
    named = [host for name in names if not name.startswith("!") for host in _matching(name, known)]
    has_names = any(not name.startswith("!") for name in names)
    chosen = tuple(host for host in known if host not in excluded and (host in named or not has_names))
    if not chosen:
        raise UsageError(f"{', '.join(names)} leaves no host of bed {bed.name}", hint=f"its hosts: {', '.join(known)}")
    return chosen


def _matching(name: str, known: Sequence[str]) -> tuple[str, ...]:
    """The host of this name, else those that match it as a pattern."""
    if name in known:
        return (name,)
    return tuple(known) if name == "all" else tuple(host for host in known if fnmatchcase(host, name))


def _quoted(name: str) -> str:
    """Shell quotes and spaces leave empty names."""
    return name or "'' (an empty name)"


def _nearest(bed: BedSpec, name: str) -> str:
    """The host that was meant: of another case or by its address, else by a close name."""
    wanted = name.removeprefix("!")
    for host in host_names(bed):
        if host.casefold() == wanted.casefold():
            return f"did you mean {host}?"
    for spec in (*bed.hosts, *(entry.host for entry in bed.departed)):
        if wanted and spec.address == wanted:
            return f"that is the address of {spec.name}: name the host"
    if ":" in wanted:
        return "put commas between names"
    return written_values.nearest(wanted, host_names(bed))


def on_hosts(bed: BedSpec, names: Collection[str]) -> BedSpec:
    nodes = tuple(node for node in bed.nodes if node.host in names)
    replacements = tuple(node for node in bed.replacements if node.host in names)
    return replace(reaching(bed, names), nodes=nodes, replacements=replacements)


def reaching(bed: BedSpec, names: Collection[str]) -> BedSpec:
    """The bed with all its nodes, where only these hosts are contacted."""
    hosts = tuple(host for host in bed.hosts if host.name in names)
    departed = tuple(entry for entry in bed.departed if entry.host.name in names)
    return replace(bed, hosts=hosts, departed=departed)


def hosts_of(bed: BedSpec, nodes: Collection[str]) -> set[str]:
    """The hosts of those ``nodes`` that the bed has: others left it since."""
    return {node.host for node in bed.nodes if node.name in nodes}


def limit(diff: Diff, bed: BedSpec, names: Collection[str]) -> Diff:
    hosts = {node.name: node.host for node in bed.nodes}
    changes = (change for change in diff.changes if (change.host or _host(change, hosts, names)) in names)
    return replace(diff, changes=tuple(changes))


def unavailable(bed: BedSpec, status: BedStatus, names: Iterable[str]) -> dict[str, str]:
    """Host of ``names`` -> its nodes that cannot be used, with their states: ``n1 is absent, n2 is dead``."""
    texts: dict[str, list[str]] = {}
    for node in bed.nodes:
        state = status.node(node.name).state
        if state not in _USABLE:
            texts.setdefault(node.host, []).append(f"{node.name} is {state}")
    return {name: ", ".join(texts[name]) for name in names if name in texts}


def states(
    bed: BedSpec, status: BedStatus, changes: Diff, names: Iterable[str], away: Collection[str]
) -> dict[str, str]:
    """Host of ``names`` -> whether its nodes are as wanted. ``away``: hosts that cannot be reached."""
    hosts = {node.name: node.host for node in bed.nodes}
    pending = {change.host or hosts.get(change.node, "") for change in changes.changes if change.action != "keep"}
    down = unavailable(bed, status, names := tuple(names))

    def state(name: str) -> str:
        if name in away:
            return "not reached"
        return "not up" if name in down else "not changed" if name in pending else "as wanted"

    return {name: state(name) for name in names}


def _host(change: Change, hosts: dict[str, str], names: Collection[str]) -> str:
    """The host of a change. A node that the bed does not list is on this machine, whose hosts share a keeper."""
    return hosts.get(change.node) or next(iter(names), "")
