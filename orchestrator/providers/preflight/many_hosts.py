"""Several hosts, or containers with a network of their own: each is asked at once what a trial needs of it."""

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
from . import rules
from .results import Checked
from .rules import Place, Reach, Seen

#: How long one question may take; a host that takes longer is as good as gone.
ASK_S = 5.0
CONNECT_S = 1.0
HOLD_S = 10.0
#: The quickest of so many answers tells the most about a clock.
CLOCK_TIMES = 5
#: With more places than this only the leader and the next one in the ring are tried.
ALL_PAIRS = 16
#: So many questions are under way at once: threads that have had their answer ask the next.
AT_ONCE = 64

#: By (what is asked, of whom).
Pending = Mapping[tuple[str, str], Future[Any]]


def examine(bed: BedSpec, status: BedStatus, prober: Prober) -> Checked:
    """At all places at once: what each sees by itself, then what it sees of the others; meanwhile what is one for a host."""
    blank = Seen(places=_places(bed, status))
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        token = secrets.token_hex(8)
        surveying = _survey(bed, blank, prober, pool, token)
        pending = _ask_hosts(bed, status, blank, prober, pool)
        observed, hosts = _together(bed, blank, prober, pool, surveying, token), _hosts(blank, *_done(pending))
    observed = replace(
        observed,
        problems={**hosts.problems, **observed.problems},
        clocks=hosts.clocks,
        walls=hosts.walls,
        gpus=hosts.gpus,
        images=hosts.images,
        spaces=hosts.spaces,
        inside=hosts.inside,
    )
    clocks = dict(observed.clocks.values())
    return Checked(
        requirements=rules.check(bed, status, observed),
        clocks=clocks,
        gaps=rules.gaps(observed),
        free_memory=rules.free_memory(bed, observed),
    )


def _together(bed: BedSpec, observed: Seen, prober: Prober, pool: Executor, surveying: Pending, token: str) -> Seen:
    """Two rounds; nothing is left of them."""
    done, problems = _by_place(surveying)
    observed = replace(observed, surveys=done, problems=problems)
    try:
        return _met(bed, observed, prober, pool, token)
    finally:
        about = {"shared_dir": bed.shared_dir, "token": token}
        _by_place(
            _ask_all(bed, observed, prober, pool, "tidy", lambda at: {"holders": _holders(observed, at), **about})
        )


def _places(bed: BedSpec, status: BedStatus) -> tuple[Place, ...]:
    """Containers in their host's network are one place; each of the others is one."""
    addresses = {node.name: status.node(node.name).address or node.address for node in bed.nodes}
    if bed.network == "private":
        return tuple(Place(name=n.name, host=n.host, addresses={n.name: addresses[n.name]}) for n in bed.nodes)
    return tuple(
        Place(
            name=host.name,
            host=host.name,
            addresses={n.name: addresses[n.name] for n in bed.nodes if n.host == host.name},
        )
        for host in bed.hosts
    )


def _survey(bed: BedSpec, observed: Seen, prober: Prober, pool: Executor, token: str) -> Pending:
    addresses = sorted({address for place in observed.places for address in place.addresses.values() if address})

    def about(place: Place) -> dict[str, Any]:
        return {
            "addresses": addresses, "spaces": [] if _apart(bed) else _kept(bed), "shared_dir": bed.shared_dir, "token": token,
            "name": place.name, "lookup_s": rules.LOOKUP_S, "hold_s": HOLD_S,
            "listen": sorted({address for address in place.addresses.values() if address}),
        }  # fmt: skip

    return _ask_all(bed, observed, prober, pool, "survey", about)


def _apart(bed: BedSpec) -> bool:
    """Containers that are asked each for itself see other file systems than those that their directories are on."""
    return bed.network == "private" and not bed.fabric


def _kept(bed: BedSpec) -> list[str]:
    """What the bed writes to on its hosts."""
    return [bed.hostdir, bed.shared_dir]


def _met(bed: BedSpec, observed: Seen, prober: Prober, pool: Executor, token: str) -> Seen:
    """Real connections to every node of another place, and the tokens of all."""
    wanted = {place.name: _targets(observed, place) for place in observed.places}

    def about(place: Place) -> dict[str, Any]:
        targets = [[target.address, target.port] for target in wanted[place.name]]
        return {"targets": targets, "limit_s": CONNECT_S, "shared_dir": bed.shared_dir, "token": token}

    met, lost = _by_place(_ask_all(bed, observed, prober, pool, "meet", about))
    reaches = [
        replace(connection, problem=problem)
        for name, result in met.items()
        for connection, problem in zip(wanted[name], result["problems"], strict=True)
    ]
    tokens = {name: tuple(result["tokens"]) for name, result in met.items()} | dict.fromkeys(lost, ())
    return replace(observed, reaches=tuple(reaches), tokens=tokens, problems={**observed.problems, **lost})


def _targets(observed: Seen, place: Place) -> list[Reach]:
    """The ports that are held at the other places; ``survey`` says which."""
    others = [
        namespace
        for namespace in observed.places
        if namespace.name in observed.surveys and namespace.name != place.name
    ]
    if len(observed.places) > ALL_PAIRS:
        index = [namespace.name for namespace in observed.places].index(place.name)
        following = observed.places[(index + 1) % len(observed.places)].name
        others = [other for other in others if other.name in (observed.places[0].name, following)]
    return [
        Reach(place=place.name, node=node, address=address, port=int(held[0]))
        for other in others
        for node, address in other.addresses.items()
        if not isinstance(held := observed.surveys[other.name]["ports"].get(address, ""), str)
    ]


def _holders(observed: Seen, place: Place) -> list[Any]:
    ports = observed.surveys.get(place.name, {}).get("ports", {}).values()
    return [held[1:] for held in ports if not isinstance(held, str)]


def _ask_hosts(bed: BedSpec, status: BedStatus, observed: Seen, prober: Prober, pool: Executor) -> Pending:
    """What is one for all nodes of a host: its clock, its GPUs, its images; and what it sees of each of its containers."""
    hosts = [host for host in bed.hosts if host.name not in observed.problems]
    images = {h.name: sorted({n.container.image for n in bed.nodes if n.host == h.name and n.container}) for h in hosts}
    with_gpus = {node.host for node in bed.nodes if node.gpus}
    asks: dict[tuple[str, str], Callable[[], Any]] = {}
    for host in hosts:
        asks["clock", host.name] = partial(_clock, prober, host.name)
        asks["images", host.name] = partial(
            prober.probe_host, host.name, "images", ASK_S, engine=host.engine, wanted=images[host.name]
        )
        pids = {node.name: status.node(node.name).pid for node in bed.nodes if node.host == host.name}
        living = {name: pid for name, pid in pids.items() if pid}
        about = {"pids": living, "shared_dir": bed.shared_dir}
        asks["inside", host.name] = partial(prober.probe_host, host.name, "inside", ASK_S, **about)
        if _apart(bed):
            asks["space", host.name] = partial(prober.probe_host, host.name, "space", ASK_S, paths=_kept(bed))
        if host.name in with_gpus:
            asks["gpus", host.name] = partial(prober.probe_host, host.name, "gpus", ASK_S)
    return _at_once(pool, asks)


def _hosts(observed: Seen, done: Mapping[tuple[str, str], Any], wrong: Mapping[tuple[str, str], str]) -> Seen:
    """What has come of that."""
    own = (done or wrong) and _own_boot()
    clocks = {host: (boot, clock) for (what, host), (boot, clock, _) in _of(done, "clock") if what and boot != own}
    return replace(
        observed,
        problems={**observed.problems, **{host: problem for (_, host), problem in wrong.items()}},
        clocks=clocks,
        walls={host: wall for (_, host), (_, _, wall) in _of(done, "clock")},
        gpus={host: result for (_, host), result in _of(done, "gpus")},
        images={host: result for (_, host), result in _of(done, "images")},
        spaces={host: result for (_, host), result in _of(done, "space")},
        inside={node: result for _, nodes in _of(done, "inside") for node, result in nodes.items()},
    )


def _of(done: Mapping[tuple[str, str], Any], what: str) -> Iterable[tuple[tuple[str, str], Any]]:
    return [(key, value) for key, value in done.items() if key[0] == what]


def _clock(prober: Prober, host: str) -> tuple[str, HostClock, float]:
    """(boot id, its clock against ours, seconds by which its wall clock is ahead): it read it somewhere between asking and
    hearing, so half of the round trip is what nobody knows."""
    best: tuple[str, HostClock, float] | None = None
    for _ in range(CLOCK_TIMES):
        start, wall = time.monotonic(), time.time()
        reading = prober.probe_host(host, "clock", ASK_S)
        half = (time.monotonic() - start) / 2
        if best is None or half < best[1].uncertainty_s:
            clock = HostClock(host=host, offset_s=start + half - float(reading["mono"]), uncertainty_s=half)
            best = (str(reading["boot"]), clock, float(reading["wall"]) - wall - half)
    assert best is not None
    return best


def _own_boot() -> str:
    from ...node.files import label

    return label.boot_id()


def _ask_all(
    bed: BedSpec, observed: Seen, prober: Prober, pool: Executor, op: str, about: Callable[[Place], Mapping[str, Any]]
) -> Pending:
    """Ask all places that are still there at once."""
    ask = prober.probe_node if bed.network == "private" else prober.probe_host
    reachable = [place for place in observed.places if place.name not in observed.problems]
    return _at_once(
        pool, {(op, place.name): partial(ask, place.name, op, ASK_S, **about(place)) for place in reachable}
    )


def _by_place(pending: Pending) -> tuple[dict[str, Any], dict[str, str]]:
    done, wrong = _done(pending)
    return {name: value for (_, name), value in done.items()}, {name: text for (_, name), text in wrong.items()}


def _at_once(pool: Executor, asks: Mapping[tuple[str, str], Callable[[], Any]]) -> Pending:
    """Ask all of it now."""
    return {key: pool.submit(ask) for key, ask in asks.items()}


def _done(pending: Pending) -> tuple[dict[tuple[str, str], Any], dict[tuple[str, str], str]]:
    """(what came of each, what went wrong)."""
    done: dict[tuple[str, str], Any] = {}
    wrong: dict[tuple[str, str], str] = {}
    for key, future in pending.items():
        try:
            done[key] = future.result()
        except (OSError, ValueError, RuntimeError) as error:
            wrong[key] = str(error)
    return done, wrong
