"""What was seen of the places of a bed -> findings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core.bed import container_requests
from ...model import requirements
from ...model.bed import BedSpec, BedStatus
from ...model.free_memory import FreeMemory
from ...model.plan import Gap, HostClock
from ...model.requirements import Requirement
from ...node import preflight_checks
from .results import agent, ok, space

#: A peer's name that takes longer to look up delays every start of a gang.
LOOKUP_S = 0.5
#: Wall clocks that differ by more make logs of several hosts hard to read, and certificates fail.
WALL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where nodes share one network: a host, or a node that has one of its own. ``addresses``: node -> its address."""

    name: str
    host: str
    addresses: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A connection that was tried: from a place to a node."""

    place: str
    node: str
    address: str
    port: int
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """By name of the place: what its survey gave, or why there is none. ``tokens``: whose token each place reads.

    ``clocks``: by host, with its boot id; ``walls``: seconds by which its wall clock is ahead of ours. ``inside``: by node,
    what its container sees (``agent/checks.py``). ``spaces``: what is free on a host whose containers were surveyed instead.
    """

    places: tuple[Place, ...]
    surveys: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    reaches: tuple[Reach, ...] = ()
    tokens: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    clocks: Mapping[str, tuple[str, HostClock]] = field(default_factory=dict)
    walls: Mapping[str, float] = field(default_factory=dict)
    gpus: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    inside: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    spaces: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def check(bed: BedSpec, status: BedStatus, observed: Seen) -> tuple[Requirement, ...]:
    """All of them; what is well is said in one line for each kind."""
    return (
        *_silent(observed),
        *(_or_ok("address", _addresses(bed, observed), "ok")),
        *_ports(observed),
        *(_or_ok("reach", _unreached(bed, observed), f"{len(observed.reaches)} connections ok")),
        *(_or_ok("names", (*_unnamed(bed, observed), *_names(observed)), _slowest(observed))),
        *_or_ok("clocks", _clocks(observed), _spread(observed)),
        *_shm(bed, observed),
        *_spaces(bed, observed),
        *_shared(bed, observed),
        *_gpus(bed, observed),
        *(_or_ok("image", _images(bed, observed), "the same on all ok") if observed.images else ()),
        agent(bed, status),
    )


def gaps(observed: Seen) -> tuple[Gap, ...]:
    """Between whom the directory for checkpoints is not shared, and why."""
    return (*_unwritable(observed), *_unseen(observed), *_covered(observed))


def _unwritable(observed: Seen) -> Iterable[Gap]:
    for place in (place for place in observed.places if place.name in observed.surveys):
        problem = observed.surveys[place.name]["unwritable"]
        if problem:
            reason = f"{place.name} cannot write there: {problem}"
            yield Gap(nodes=frozenset(place.addresses), other_nodes=None, reason=reason)


def free_memory(bed: BedSpec, observed: Seen) -> tuple[FreeMemory, ...]:
    """The memory of each host, and of each container that has a limit."""
    nodes = {host: tuple(node.name for node in bed.nodes if node.host == host) for host in {n.host for n in bed.nodes}}
    memory = {place.host: observed.surveys.get(place.name, {}).get("memory") for place in observed.places}
    free = {host: int(size) for host, size in memory.items() if size is not None and host in nodes}
    inside = {name: facts["memory"] for name, facts in observed.inside.items() if facts.get("memory") is not None}
    return (
        *(
            FreeMemory(location=f"host {host}", nodes=nodes[host], size_bytes=left)
            for host, left in sorted(free.items())
        ),
        *(
            FreeMemory(location=f"the container of {name}", nodes=(name,), size_bytes=left)
            for name, left in sorted(inside.items())
        ),
    )


def _unseen(observed: Seen) -> Iterable[Gap]:
    """A token that was written in one place and is not read in another."""
    nodes = {place.name: frozenset(place.addresses) for place in observed.places}
    for writer in (place.name for place in observed.places if place.name in observed.surveys):
        for reader in (name for name, read in observed.tokens.items() if writer not in read):
            reason = f"{reader} does not see what {writer} writes there"
            yield Gap(nodes=nodes[reader], other_nodes=nodes[writer], reason=reason)


def _covered(observed: Seen) -> Iterable[Gap]:
    """A container has the directory that was there when it was started, whatever its host has mounted over it since."""
    for node in (node for node, facts in observed.inside.items() if facts["same"] is False):
        reason = f"the container of {node} has another there than its host"
        yield Gap(nodes=frozenset({node}), other_nodes=None, reason=reason)


def _or_ok(name: str, problems: Iterable[Requirement], text: str) -> tuple[Requirement, ...]:
    return tuple(problems) or (ok(name, text),)


def _silent(observed: Seen) -> Iterable[Requirement]:
    for name, problem in observed.problems.items():
        yield Requirement(
            name=f"host {name}", outcome="fail", text=problem, fix="ccbed doctor tells what each host lacks"
        )


def _addresses(bed: BedSpec, observed: Seen) -> Iterable[Requirement]:
    for place in observed.places:
        interfaces: Mapping[str, str] = observed.surveys.get(place.name, {}).get("interfaces", {})
        present = ", ".join(f"{name} {own}" for name, own in interfaces.items())
        fix = _anew(bed) if bed.fabric else "set ccbed_address or ccbed_interface of that host"
        for problem, nodes in _misplaced(bed, place, interfaces).items() if interfaces else ():
            text = f"{' '.join(nodes)}: {problem}; there are: {present}"
            yield Requirement(name="address", outcome="fail", text=text, fix=fix)


def _misplaced(bed: BedSpec, place: Place, interfaces: Mapping[str, str]) -> dict[str, list[str]]:
    """What is wrong with addresses of a place -> the nodes that have it."""
    problems: dict[str, list[str]] = {}
    for node, address in place.addresses.items():
        wanted = bed.node(node).interface
        if wanted and wanted not in interfaces:
            problems.setdefault(f"{place.name} has no interface {wanted} with an address", []).append(node)
        elif address not in interfaces.values():
            problems.setdefault(f"{address or 'no address'} is on no interface of {place.name}", []).append(node)
        elif wanted and interfaces[wanted] != address:
            problems.setdefault(f"{address} is not on {wanted} of {place.name}", []).append(node)
    return problems


def _ports(observed: Seen) -> Iterable[Requirement]:
    """A store and the connections of ranks need free ports."""
    for place, survey in observed.surveys.items():
        for address, held in survey["ports"].items():
            if isinstance(held, str) and address in survey["interfaces"].values():
                text = f"{place} cannot take connections at {address}: {held}"
                yield Requirement(
                    name="ports", outcome="fail", text=text, fix=f"see what holds them on {place}: ss -tlnp"
                )


def _unreached(bed: BedSpec, observed: Seen) -> Iterable[Requirement]:
    fix = "let every TCP port through between the bed's hosts (ccbed_prepare does), or set ccbed_address to another network"
    fix = _anew(bed) if bed.fabric else fix
    for connection in observed.reaches:
        if connection.problem:
            text = f"{connection.place} cannot reach {connection.node} at {connection.address}:{connection.port}: {connection.problem}"
            yield Requirement(name="reach", outcome="fail", text=text, fix=fix)


def _anew(bed: BedSpec) -> str:
    """What mends a fabric: it was made right, so somebody has changed it since."""
    return f"ccbed down {bed.name}, then: ccbed up {bed.inventory}"


def _unnamed(bed: BedSpec, observed: Seen) -> Iterable[Requirement]:
    """On a fabric each node knows every other by its name: it has its own hosts file."""
    wanted = {node.address: node.name for node in bed.nodes} if bed.fabric else {}
    for place, survey in observed.surveys.items():
        for lookup in survey["names"] if wanted else ():
            if lookup["name"] != wanted[lookup["address"]] and lookup["reverse_s"] < LOOKUP_S:
                text = f"{place} knows {lookup['address']} as {lookup['name'] or 'nobody'}, not as {wanted[lookup['address']]}"
                fix = "let hosts: in /etc/nsswitch.conf begin with files"
                yield Requirement(name="names", outcome="fail", text=text, fix=fix)


def _names(observed: Seen) -> Iterable[Requirement]:
    for place, survey in observed.surveys.items():
        for lookup in survey["names"]:
            address, name = lookup["address"], lookup["name"]
            slow = max(lookup["reverse_s"], lookup.get("forward_s", 0.0))
            if lookup.get("mapped_s", 0.0) >= preflight_checks.MAPPED_S:
                text = f"{place} takes over {preflight_checks.MAPPED_S:g} s to look up ::ffff:{address}, as connections of torch do"
                fix = f"add a line for ::ffff:{address} to /etc/hosts of {place}, or let its name server answer at once"
                yield Requirement(name="names", outcome="fail", text=text, fix=fix)
            elif slow >= LOOKUP_S:
                text = f"{place} takes over {LOOKUP_S:g} s to look up {address}"
                fix = f"every start of a gang may wait 10 s for it: add a line for {address} to /etc/hosts of {place}"
                yield Requirement(name="names", outcome="warn", text=text, fix=fix)
            elif name and lookup.get("back") and address not in lookup["back"]:
                text = f"on {place} {address} is {name}, and {name} is {', '.join(lookup['back'])}"
                yield Requirement(
                    name="names", outcome="warn", text=text, fix=f"mend the line of {name} in /etc/hosts of {place}"
                )


def _slowest(observed: Seen) -> str:
    durations = [lookup["reverse_s"] for survey in observed.surveys.values() for lookup in survey["names"]]
    return f"{len(durations)} look-ups, slowest {max(durations, default=0.0) * 1000:.0f} ms ok"


def _clocks(observed: Seen) -> Iterable[Requirement]:
    for host, offset_s in observed.walls.items():
        if abs(offset_s) > WALL_S:
            text = f"{host} is {abs(offset_s):.1f} s {'ahead of' if offset_s > 0 else 'behind'} this machine"
            yield Requirement(
                name="clocks",
                outcome="warn",
                text=text,
                fix=f"synchronise the time of {host} (chrony, systemd-timesyncd)",
            )


def _spread(observed: Seen) -> str:
    widest = max((clock.uncertainty_s for _, clock in observed.clocks.values()), default=0.0)
    return f"measured to {widest * 1000:.2g} ms ok" if observed.clocks else "one clock ok"


def _shm(bed: BedSpec, observed: Seen) -> Iterable[Requirement]:
    """The container with the least; of one that cannot be looked at, what it was given."""
    free = {}
    for node, facts in observed.inside.items():
        shm, spec = facts["shm"], bed.node(node).container
        if not isinstance(shm, str) or spec:
            free[node] = container_requests.shm(spec) if isinstance(shm, str) and spec else int(shm)
    if free:
        node = min(free, key=lambda name: free[name])
        fix = f"set ccbed_shm_size of {bed.node(node).host} to more, or free what fills /dev/shm of {node}"
        yield space("shm", free[node], requirements.SHM_BYTES, fix)


def _spaces(bed: BedSpec, observed: Seen) -> Iterable[Requirement]:
    """The place with the least; what cannot be looked at is told apart."""
    least: dict[str, tuple[int, str]] = {}
    surveyed = {place: survey["space"] for place, survey in observed.surveys.items()}
    for place, free_of in {**surveyed, **observed.spaces}.items():
        for path, free in free_of.items():
            if isinstance(free, str):
                yield Requirement(name="disk", outcome="warn", text=f"{place}: {free}", fix="give access to it")
            elif path not in least or free < least[path][0]:
                least[path] = (free, place)
    if least:
        path, (free, place) = min(least.items(), key=lambda item: item[1][0])
        yield space(
            "disk",
            free,
            requirements.DISK_BYTES,
            f"free space below {path} on {place}, or set ccbed_workdir to another disk",
        )


def _shared(bed: BedSpec, observed: Seen) -> Iterable[Requirement]:
    if len(observed.places) < 2:
        return
    first = next(iter(gaps(observed)), None)
    if first is None:
        yield ok("shared", "directory seen by all ok")
        return
    fix = "mount one file system there on all hosts, or set ccbed_shared_dir"
    if first in _covered(observed):
        fix = f"start the containers anew: ccbed down {bed.name}, then: ccbed up {bed.inventory}"
    fix += "; without it a trial on these nodes recovers from nothing"
    yield Requirement(name="shared", outcome="warn", text=f"{bed.shared_dir}: {first.reason}", fix=fix)


def _gpus(bed: BedSpec, observed: Seen) -> Iterable[Requirement]:
    for host, gpus in observed.gpus.items():
        wanted = sum(max(node.gpus, 0) for node in bed.nodes if node.host == host)
        reason = gpus.get("reason", "")
        if reason:
            yield Requirement(
                name=f"gpus {host}", outcome="fail", text=str(reason), fix="ccbed doctor; or set ccbed_gpus: 0"
            )
        elif gpus["count"] < wanted:
            text = f"{gpus['count']} found, {wanted} wanted"
            yield Requirement(
                name=f"gpus {host}", outcome="fail", text=text, fix=f"set ccbed_gpus of {host} to what it has"
            )
        for problem in gpus.get("problems", ()):
            fix = f"take it out of ccbed_gpus of {host}, and have it looked at (nvidia-smi -q)"
            yield Requirement(name=f"gpus {host}", outcome="fail", text=str(problem), fix=fix)
    if observed.gpus and not any(gpus.get("reason") or gpus.get("problems") for gpus in observed.gpus.values()):
        yield ok("gpus", f"{sum(gpus['count'] for gpus in observed.gpus.values())} healthy ok")


def _images(bed: BedSpec, observed: Seen) -> Iterable[Requirement]:
    ids: dict[str, dict[str, str]] = {}
    for host, images in observed.images.items():
        for image, id in images.items():
            ids.setdefault(image, {})[host] = id
    for image, by_host in ids.items():
        if len(set(by_host.values())) > 1:
            listed = ", ".join(f"{host} {id.removeprefix('sha256:')[:12]}" for host, id in by_host.items())
            fix = f"get the same one to all hosts: ccbed up {bed.inventory}"
            yield Requirement(
                name="image", outcome="fail", text=f"{image} is not the same everywhere: {listed}", fix=fix
            )
