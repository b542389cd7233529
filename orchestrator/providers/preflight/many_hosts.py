"""Preflight of several hosts, or of containers with a network of their own: all of them are probed at once."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from ...model.bed import BedSpec, BedStatus
from ...model.plan import HostClock
from ...model.provider import Prober
from ...system import host_facts
from . import rules
from .checked import LOOKUP_S, Checked
from .rules import Connection, NetworkNamespace, Observations

#: How long one probe may take, also on a busy host; a host that takes longer is treated as unreachable. Ports are held for two probes.
PROBE_S = 30.0
CONNECT_S = 1.0
HOLD_S = 2 * PROBE_S
#: A clock is read so often; the quickest reading is the most exact.
CLOCK_TIMES = 5
#: With more namespaces than this, only connections to the first and to the next one in the ring are tried.
ALL_PAIRS = 16
#: So many probes run at once.
AT_ONCE = 64

#: By (operation, name of the host or namespace).
Pending = Mapping[tuple[str, str], Future[Any]]


def examine(bed: BedSpec, status: BedStatus, prober: Prober) -> Checked:
    """Survey all network namespaces at once, then their connections to each other; probe the hosts meanwhile."""
    initial = Observations(namespaces=_namespaces(bed, status))
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        token = secrets.token_hex(8)
        surveys = _survey(bed, initial, prober, pool, token)
        pending = _probe_hosts(bed, status, initial, prober, pool)
        networks = _observe_namespaces(bed, initial, prober, pool, surveys, token)
        hosts = _hosts(initial, *_done(pending))
    problems = {**hosts.problems, **networks.problems}
    of_networks = {name: getattr(networks, name) for name in ("surveys", "connections", "tokens")}
    observed = replace(hosts, problems=problems, **of_networks)
    clocks = dict(observed.clocks.values())
    return Checked(
        requirements=rules.check(bed, status, observed),
        clocks=clocks,
        gaps=rules.gaps(observed),
        free_memory=rules.free_memory(bed, observed),
    )


def _observe_namespaces(
    bed: BedSpec, observed: Observations, prober: Prober, pool: Executor, surveys: Pending, token: str
) -> Observations:
    """Two rounds; the traces of both are removed."""
    done, problems = _by_namespace(surveys)
    observed = replace(observed, surveys=done, problems=problems)
    try:
        return _observe_each_other(bed, observed, prober, pool, token)
    finally:
        about = {"shared_dir": bed.shared_dir, "token": token}
        _by_namespace(
            _probe_all(bed, observed, prober, pool, "tidy", lambda at: {"holders": _holders(observed, at), **about})
        )


def _namespaces(bed: BedSpec, status: BedStatus) -> tuple[NetworkNamespace, ...]:
    """A host with the nodes that share its network, or each node with a network of its own."""
    addresses = {node.name: status.node(node.name).address or node.address for node in bed.all_nodes}
    if bed.network == "private":
        return tuple(
            NetworkNamespace(name=n.name, host=n.host, addresses={n.name: addresses[n.name]}) for n in bed.nodes
        )
    return tuple(
        NetworkNamespace(
            name=host.name,
            host=host.name,
            addresses={n.name: addresses[n.name] for n in bed.all_nodes if n.host == host.name},
        )
        for host in bed.hosts
    )


def _survey(bed: BedSpec, observed: Observations, prober: Prober, pool: Executor, token: str) -> Pending:
    addresses = sorted(
        {address for namespace in observed.namespaces for address in namespace.addresses.values() if address}
    )

    def about(namespace: NetworkNamespace) -> dict[str, Any]:
        return {
            "addresses": addresses, "spaces": [] if _has_own_file_systems(bed) else _directories(bed), "shared_dir": bed.shared_dir,
            "token": token, "name": namespace.name, "lookup_s": LOOKUP_S, "hold_s": HOLD_S,
            "listen": sorted({address for address in namespace.addresses.values() if address}),
        }  # fmt: skip

    return _probe_all(bed, observed, prober, pool, "survey", about)


def _has_own_file_systems(bed: BedSpec) -> bool:
    """Return whether containers are probed that see other file systems than those of the bed's directories."""
    return bed.network == "private" and not bed.fabric


def _directories(bed: BedSpec) -> list[str]:
    return [bed.hostdir, bed.shared_dir]


def _observe_each_other(
    bed: BedSpec, observed: Observations, prober: Prober, pool: Executor, token: str
) -> Observations:
    """Connect to every node of the other namespaces, and read the tokens of all."""
    wanted = {namespace.name: _targets(observed, namespace) for namespace in observed.namespaces}

    def about(namespace: NetworkNamespace) -> dict[str, Any]:
        targets = [[target.address, target.port] for target in wanted[namespace.name]]
        return {"targets": targets, "limit_s": CONNECT_S, "shared_dir": bed.shared_dir, "token": token}

    met, lost = _by_namespace(_probe_all(bed, observed, prober, pool, "meet", about))
    connections = [
        replace(connection, problem=problem)
        for name, result in met.items()
        for connection, problem in zip(wanted[name], result["problems"], strict=True)
    ]
    tokens = {name: tuple(result["tokens"]) for name, result in met.items()} | dict.fromkeys(lost, ())
    return replace(observed, connections=tuple(connections), tokens=tokens, problems={**observed.problems, **lost})


def _targets(observed: Observations, namespace: NetworkNamespace) -> list[Connection]:
    """The ports that ``survey`` holds in the other namespaces."""
    others = [other for other in observed.namespaces if other.name in observed.surveys and other.name != namespace.name]
    if len(observed.namespaces) > ALL_PAIRS:
        index = [other.name for other in observed.namespaces].index(namespace.name)
        following = observed.namespaces[(index + 1) % len(observed.namespaces)].name
        others = [other for other in others if other.name in (observed.namespaces[0].name, following)]
    return [
        Connection(namespace=namespace.name, node=node, address=address, port=int(held[0]))
        for other in others
        for node, address in other.addresses.items()
        if not isinstance(held := observed.surveys[other.name]["ports"].get(address, ""), str)
    ]


def _holders(observed: Observations, namespace: NetworkNamespace) -> list[Any]:
    ports = observed.surveys.get(namespace.name, {}).get("ports", {}).values()
    return [held[1:] for held in ports if not isinstance(held, str)]


def _probe_hosts(bed: BedSpec, status: BedStatus, observed: Observations, prober: Prober, pool: Executor) -> Pending:
    """Probe each host: clock, GPUs, images, and the processes of its containers; and the names of nodes in each of them."""
    hosts = [host for host in bed.hosts if host.name not in observed.problems]
    images = {
        h.name: sorted({n.container.image for n in bed.all_nodes if n.host == h.name and n.container}) for h in hosts
    }
    with_gpus = {node.host for node in bed.nodes if node.gpus}
    probes: dict[tuple[str, str], Callable[[], Any]] = {}
    for host in hosts:
        probes["clock", host.name] = partial(_clock, prober, host.name)
        probes["images", host.name] = partial(
            prober.probe_host, host.name, "images", PROBE_S, engine=host.engine, wanted=images[host.name]
        )
        pids = {node.name: status.node(node.name).pid for node in bed.nodes if node.host == host.name}
        living = {name: pid for name, pid in pids.items() if pid}
        about = {"pids": living, "shared_dir": bed.shared_dir}
        probes["inside", host.name] = partial(prober.probe_host, host.name, "inside", PROBE_S, **about)
        if _has_own_file_systems(bed):
            probes["space", host.name] = partial(
                prober.probe_host, host.name, "space", PROBE_S, paths=_directories(bed)
            )
        if host.name in with_gpus:
            probes["gpus", host.name] = partial(prober.probe_host, host.name, "gpus", PROBE_S)
    names = {"names": sorted(rules.named_addresses(bed, observed)), "limit_s": LOOKUP_S}
    for node in (node.name for node in bed.nodes if names["names"] and (node.container or bed.fabric)):
        if status.node(node).state in ("warm", "busy"):  # and has a hosts file of its own
            probes["resolve", node] = partial(prober.probe_node, node, "resolve", PROBE_S, **names)
    return _submit(pool, probes)


def _hosts(
    observed: Observations, done: Mapping[tuple[str, str], Any], failed: Mapping[tuple[str, str], str]
) -> Observations:
    own = (done or failed) and host_facts.boot_id()
    clocks = {host: (boot, clock) for (what, host), (boot, clock, _) in _of(done, "clock") if what and boot != own}
    return replace(
        observed,
        problems={**observed.problems, **{host: problem for (_, host), problem in failed.items()}},
        clocks=clocks,
        wall_offsets={host: wall for (_, host), (_, _, wall) in _of(done, "clock")},
        gpus={host: result for (_, host), result in _of(done, "gpus")},
        images={host: result for (_, host), result in _of(done, "images")},
        spaces={host: result for (_, host), result in _of(done, "space")},
        resolved={node: result for (_, node), result in _of(done, "resolve")},
        inside={node: result for _, nodes in _of(done, "inside") for node, result in nodes.items()},
    )


def _of(done: Mapping[tuple[str, str], Any], what: str) -> Iterable[tuple[tuple[str, str], Any]]:
    return [(key, value) for key, value in done.items() if key[0] == what]


def _clock(prober: Prober, host: str) -> tuple[str, HostClock, float]:
    """(boot id, its clock against this machine's, its wall clock minus this machine's in seconds).

    The host reads its clock at some time between request and response: the uncertainty is half of the round trip.
    """
    best: tuple[str, HostClock, float] | None = None
    for _ in range(CLOCK_TIMES):
        start, wall = time.monotonic(), time.time()
        reading = prober.probe_host(host, "clock", PROBE_S)
        half = (time.monotonic() - start) / 2
        if best is None or half < best[1].uncertainty_s:
            clock = HostClock(host=host, offset_s=start + half - float(reading["mono"]), uncertainty_s=half)
            best = (str(reading["boot"]), clock, float(reading["wall"]) - wall - half)
    assert best is not None
    return best


def _probe_all(
    bed: BedSpec,
    observed: Observations,
    prober: Prober,
    pool: Executor,
    op: str,
    about: Callable[[NetworkNamespace], Mapping[str, Any]],
) -> Pending:
    """Probe all namespaces without a problem so far."""
    probe = prober.probe_node if bed.network == "private" else prober.probe_host
    reachable = [namespace for namespace in observed.namespaces if namespace.name not in observed.problems]
    return _submit(
        pool,
        {
            (op, namespace.name): partial(probe, namespace.name, op, PROBE_S, **about(namespace))
            for namespace in reachable
        },
    )


def _by_namespace(pending: Pending) -> tuple[dict[str, Any], dict[str, str]]:
    done, failed = _done(pending)
    return {name: value for (_, name), value in done.items()}, {name: text for (_, name), text in failed.items()}


def _submit(pool: Executor, probes: Mapping[tuple[str, str], Callable[[], Any]]) -> Pending:
    return {key: pool.submit(probe) for key, probe in probes.items()}


def _done(pending: Pending) -> tuple[dict[tuple[str, str], Any], dict[tuple[str, str], str]]:
    """(results, problems), by probe."""
    done: dict[tuple[str, str], Any] = {}
    failed: dict[tuple[str, str], str] = {}
    for key, future in pending.items():
        try:
            done[key] = future.result()
        except (OSError, ValueError, RuntimeError) as error:
            failed[key] = str(error)
    return done, failed
