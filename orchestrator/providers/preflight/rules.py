"""Observations of the network namespaces of a bed -> requirements, met or not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...core.bed import container_requests
from ...model import requirements
from ...model.bed import BedSpec, BedStatus
from ...model.frozen import dataclass, field
from ...model.plan import Gap, HostClock
from ...model.requirements import FreeMemory, Requirement
from ...node import preflight_checks
from .checked import LOOKUP_S, agent, versions

#: Wall clocks that differ by more make logs of several hosts hard to compare, and certificates fail.
WALL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkNamespace:
    """A network that nodes share: a host's, or a node's own. ``addresses``: node -> its address."""

    name: str
    host: str
    addresses: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A connection that was tried, from a network namespace to a node."""

    namespace: str
    node: str
    address: str
    port: int
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """The observations of namespaces, by name: the result of a survey, or why there is none. ``tokens``: the tokens that it reads.

    ``clocks``: by host, with its boot id. ``wall_offsets``: its wall clock minus this machine's, in seconds. ``inside``: by
    node, the facts that its container sees (``node/preflight_checks.py``). ``spaces``: free bytes of a host whose containers
    were surveyed instead. ``resolved``: by node, name of a node -> its addresses there.
    """

    namespaces: tuple[NetworkNamespace, ...]
    surveys: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    connections: tuple[Connection, ...] = ()
    tokens: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    clocks: Mapping[str, tuple[str, HostClock]] = field(default_factory=dict)
    wall_offsets: Mapping[str, float] = field(default_factory=dict)
    gpus: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    inside: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    spaces: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    resolved: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)


def check(bed: BedSpec, status: BedStatus, observed: Observations) -> tuple[Requirement, ...]:
    """All requirements. Those of one kind that are met share one line."""
    return (
        *_unreachable(observed),
        *(_or_ok("address", _addresses(bed, observed), "ok")),
        *_ports(observed),
        *(_or_ok("reach", _failed_connections(bed, observed), f"{len(observed.connections)} connections ok")),
        *(_or_ok("names", (*_wrong_names(bed, observed), *_names(observed)), _lookup_summary(observed))),
        *_or_ok("clocks", _clocks(observed), _clock_summary(observed)),
        *_shm(bed, observed),
        *_spaces(bed, observed),
        *_shared(bed, observed),
        *_gpus(bed, observed),
        *(_or_ok("image", _images(bed, observed), "the same on all ok") if observed.images else ()),
        agent(bed, status),
        *versions(bed, status),
    )


def gaps(observed: Observations) -> tuple[Gap, ...]:
    """The nodes that do not share the directory of checkpoints, and why."""
    return (*_unwritable(observed), *_unread_tokens(observed), *_covered(observed))


def _unwritable(observed: Observations) -> Iterable[Gap]:
    for namespace in (namespace for namespace in observed.namespaces if namespace.name in observed.surveys):
        problem = observed.surveys[namespace.name]["unwritable"]
        if problem:
            reason = f"{namespace.name} cannot write there: {problem}"
            yield Gap(nodes=frozenset(namespace.addresses), other_nodes=None, reason=reason)


def free_memory(bed: BedSpec, observed: Observations) -> tuple[FreeMemory, ...]:
    """The memory of each host, and of each container that has a limit."""
    nodes = {host: tuple(node.name for node in bed.nodes if node.host == host) for host in {n.host for n in bed.nodes}}
    memory = {
        namespace.host: observed.surveys.get(namespace.name, {}).get("memory") for namespace in observed.namespaces
    }
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


def _unread_tokens(observed: Observations) -> Iterable[Gap]:
    """A token that one namespace wrote and another does not read."""
    nodes = {namespace.name: frozenset(namespace.addresses) for namespace in observed.namespaces}
    for writer in (namespace.name for namespace in observed.namespaces if namespace.name in observed.surveys):
        for reader in (name for name, read in observed.tokens.items() if writer not in read):
            reason = f"{reader} does not see what {writer} writes there"
            yield Gap(nodes=nodes[reader], other_nodes=nodes[writer], reason=reason)


def _covered(observed: Observations) -> Iterable[Gap]:
    """A container keeps the directory of its start, although its host has mounted another file system there since."""
    for node in (node for node, facts in observed.inside.items() if facts["same"] is False):
        reason = f"the container of {node} has another directory there than its host"
        yield Gap(nodes=frozenset({node}), other_nodes=None, reason=reason)


def _or_ok(name: str, problems: Iterable[Requirement], text: str) -> tuple[Requirement, ...]:
    return tuple(problems) or (Requirement.ok(name, text),)


def _unreachable(observed: Observations) -> Iterable[Requirement]:
    for name, problem in observed.problems.items():
        yield Requirement.fail(f"host {name}", problem, "ccbed doctor lists what each host lacks")


def _addresses(bed: BedSpec, observed: Observations) -> Iterable[Requirement]:
    for namespace in observed.namespaces:
        interfaces: Mapping[str, Sequence[str]] = observed.surveys.get(namespace.name, {}).get("interfaces", {})
        present = ", ".join(f"{name} {' '.join(own)}" for name, own in interfaces.items())
        fix = _recreate_fix(bed) if bed.fabric else "set ccbed_address or ccbed_interface of that host"
        for problem, nodes in _wrong_addresses(bed, namespace, interfaces).items() if interfaces else ():
            text = f"{' '.join(nodes)}: {problem}; present: {present}"
            yield Requirement.fail("address", text, fix)


def _wrong_addresses(
    bed: BedSpec, namespace: NetworkNamespace, interfaces: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Problem with the address of a node in this namespace -> the nodes that have the problem."""
    problems: dict[str, list[str]] = {}
    for node, address in namespace.addresses.items():
        wanted = bed.node(node).interface
        if wanted and wanted not in interfaces:
            problems.setdefault(f"{namespace.name} has no interface {wanted} with an address", []).append(node)
        elif not any(address in own for own in interfaces.values()):
            problems.setdefault(f"{address or 'no address'} is on no interface of {namespace.name}", []).append(node)
        elif wanted and address not in interfaces[wanted]:
            problems.setdefault(f"{address} is not on {wanted} of {namespace.name}", []).append(node)
    return problems


def _ports(observed: Observations) -> Iterable[Requirement]:
    """A store and the connections of ranks need free ports."""
    for namespace, survey in observed.surveys.items():
        for address, held in survey["ports"].items():
            if isinstance(held, str) and any(address in own for own in survey["interfaces"].values()):
                text = f"{namespace} cannot take connections at {address}: {held}"
                yield Requirement.fail("ports", text, f"see what holds them on {namespace}: ss -tlnp")


def _failed_connections(bed: BedSpec, observed: Observations) -> Iterable[Requirement]:
    fix = "allow every TCP port between the bed's hosts (ccbed_prepare does), or set ccbed_address to another network"
    if bed.network == "private" and len(bed.hosts) > 1:
        fix = "remove ccbed_network: private, in which containers reach those of their own host only"
    fix = _recreate_fix(bed) if bed.fabric else fix
    for connection in observed.connections:
        if connection.problem:
            text = f"{connection.namespace} cannot reach {connection.node} at {connection.address}:{connection.port}: {connection.problem}"
            yield Requirement.fail("reach", text, fix)


def _recreate_fix(bed: BedSpec) -> str:
    """The fix of an emulated fabric: ccbed configured it correctly, so it was changed since."""
    return f"ccbed down {bed.name}, then: ccbed up {bed.inventory}"


def named_addresses(bed: BedSpec, observed: Observations) -> dict[str, str]:
    """Node -> its address, of those whose names ccbed writes into the hosts files of nodes."""
    known = {name: address for namespace in observed.namespaces for name, address in namespace.addresses.items()}
    is_private = bed.network == "private"
    return {name: address for name, address in known.items() if address and (is_private or bed.node(name).address)}


def _wrong_names(bed: BedSpec, observed: Observations) -> Iterable[Requirement]:
    """A name without an address is a warning: ranks are told addresses. Another address is that of another node."""
    wanted = named_addresses(bed, observed)
    for node, addresses in observed.resolved.items():
        for name in (name for name in wanted if wanted[name] not in addresses[name]):
            text = f"{node} resolves {name} to {', '.join(addresses[name]) or 'no address'}, not to {wanted[name]}"
            fix = f"ccbed up {bed.inventory}; or correct /etc/hosts and the line hosts: of /etc/nsswitch.conf of {node}"
            yield Requirement(name="names", outcome="fail" if addresses[name] else "warn", text=text, fix=fix)


def _names(observed: Observations) -> Iterable[Requirement]:
    for namespace, survey in observed.surveys.items():
        for lookup in survey["names"]:
            address, name = lookup["address"], lookup["name"]
            slow = max(lookup["reverse_s"], lookup.get("forward_s", 0.0))
            if lookup.get("mapped_s", 0.0) >= preflight_checks.MAPPED_S:
                text = f"{namespace} takes over {preflight_checks.MAPPED_S:g} s to look up ::ffff:{address}, as connections of torch do"
                fix = f"add a line for ::ffff:{address} to /etc/hosts of {namespace}, or let its name server answer at once"
                yield Requirement.fail("names", text, fix)
            elif slow >= LOOKUP_S:
                text = f"{namespace} takes over {LOOKUP_S:g} s to look up {address}"
                fix = f"every start of a worker group may wait 10 s for it: add a line for {address} to /etc/hosts of {namespace}"
                yield Requirement.warn("names", text, fix)
            elif name and lookup.get("back") and address not in lookup["back"]:
                text = f"on {namespace} {address} is {name}, and {name} is {', '.join(lookup['back'])}"
                yield Requirement.warn("names", text, f"correct the line of {name} in /etc/hosts of {namespace}")


def _lookup_summary(observed: Observations) -> str:
    durations = [lookup["reverse_s"] for survey in observed.surveys.values() for lookup in survey["names"]]
    return f"{len(durations)} look-ups, slowest {max(durations, default=0.0) * 1000:.0f} ms ok"


def _clocks(observed: Observations) -> Iterable[Requirement]:
    for host, offset_s in observed.wall_offsets.items():
        if abs(offset_s) > WALL_S:
            text = f"{host} is {abs(offset_s):.1f} s {'ahead of' if offset_s > 0 else 'behind'} this machine"
            yield Requirement.warn("clocks", text, f"synchronise the time of {host} (chrony, systemd-timesyncd)")


def _clock_summary(observed: Observations) -> str:
    widest = max((clock.uncertainty_s for _, clock in observed.clocks.values()), default=0.0)
    return f"measured to {widest * 1000:.2g} ms ok" if observed.clocks else "one clock ok"


def _shm(bed: BedSpec, observed: Observations) -> Iterable[Requirement]:
    """The container with the least; one that cannot be inspected counts with the size that it was given."""
    free = {}
    for node, facts in observed.inside.items():
        shm, spec = facts["shm"], bed.node(node).container
        if not isinstance(shm, str) or spec:
            free[node] = container_requests.shm_bytes(spec) if isinstance(shm, str) and spec else int(shm)
    if free:
        node = min(free, key=lambda name: free[name])
        fix = f"set ccbed_shm_size of {bed.node(node).host} to more, or free what fills /dev/shm of {node}"
        yield requirements.space("shm", free[node], requirements.SHM_BYTES, fix)


def _spaces(bed: BedSpec, observed: Observations) -> Iterable[Requirement]:
    """The host or container with the least; a directory that cannot be inspected has a line of its own."""
    least: dict[str, tuple[int, str]] = {}
    surveyed = {namespace: survey["space"] for namespace, survey in observed.surveys.items()}
    for namespace, free_of in {**surveyed, **observed.spaces}.items():
        for path, free in free_of.items():
            if isinstance(free, str):
                yield Requirement.warn("disk", f"{namespace}: {free}", "make it readable for this user")
            elif path not in least or free < least[path][0]:
                least[path] = (free, namespace)
    if least:
        path, (free, namespace) = min(least.items(), key=lambda item: item[1][0])
        yield requirements.space(
            "disk",
            free,
            requirements.DISK_BYTES,
            f"free space below {path} on {namespace}, or set ccbed_workdir to another disk",
        )


def _shared(bed: BedSpec, observed: Observations) -> Iterable[Requirement]:
    if len(observed.namespaces) < 2:
        return
    first = next(iter(gaps(observed)), None)
    if first is None:
        yield Requirement.ok("shared", "directory seen by all ok")
        return
    fix = "mount one file system there on all hosts, or set ccbed_shared_dir"
    if first in _covered(observed):
        fix = f"start the containers again: ccbed down {bed.name}, then: ccbed up {bed.inventory}"
    fix += "; without it, trials on these nodes cannot recover"
    yield Requirement.warn("shared", f"{bed.shared_dir}: {first.reason}", fix)


def _gpus(bed: BedSpec, observed: Observations) -> Iterable[Requirement]:
    for host, gpus in observed.gpus.items():
        wanted = sum(max(node.gpus, 0) for node in bed.nodes if node.host == host)
        reason = gpus.get("reason", "")
        if reason:
            yield Requirement.fail(f"gpus {host}", str(reason), "ccbed doctor; or set ccbed_gpus: 0")
        elif gpus["count"] < wanted:
            text = f"{gpus['count']} found, {wanted} wanted"
            yield Requirement.fail(f"gpus {host}", text, f"set ccbed_gpus of {host} to what it has")
        for problem in gpus.get("problems", ()):
            fix = f"take it out of ccbed_gpus of {host}, and inspect it (nvidia-smi -q)"
            yield Requirement.fail(f"gpus {host}", str(problem), fix)
    if observed.gpus and not any(gpus.get("reason") or gpus.get("problems") for gpus in observed.gpus.values()):
        yield Requirement.ok("gpus", f"{sum(gpus['count'] for gpus in observed.gpus.values())} healthy ok")


def _images(bed: BedSpec, observed: Observations) -> Iterable[Requirement]:
    ids: dict[str, dict[str, str]] = {}
    for host, images in observed.images.items():
        for image, id in images.items():
            ids.setdefault(image, {})[host] = id
    for image, by_host in ids.items():
        if len(set(by_host.values())) > 1:
            listed = ", ".join(f"{host} {id.removeprefix('sha256:')[:12]}" for host, id in by_host.items())
            fix = f"get the same one to all hosts: ccbed up {bed.inventory}"
            yield Requirement.fail("image", f"{image} is not the same everywhere: {listed}", fix)
