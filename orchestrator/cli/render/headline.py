"""What `up` says first: what the bed is made of, and who keeps its nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from ...core.bed import links
from ...model.bed import BedSpec, BedStatus

_CONTAINERS = "docker"


def of(bed: BedSpec, status: BedStatus) -> str:
    """One line: provider, machine or hosts, versions."""
    parts = _containers(bed, status) if bed.provider == _CONTAINERS else _processes(bed)
    return " · ".join((f"bed {bed.name}", f"{bed.provider} provider", *parts))


def preparing(bed: BedSpec) -> str:
    """What is waited for until the keepers are there."""
    return "  keeper      " + ("starts …" if bed.provider == _CONTAINERS else "imports torch …")


def keepers(bed: BedSpec, status: BedStatus, seconds: float) -> Iterator[str]:
    """A line for each keeper. Those of containers import nothing: each container does so itself."""
    if bed.provider != _CONTAINERS:
        yield f"  keeper      torch imported once              {seconds:.2f} s   pid {status.keeper_pid}"
        return
    for index, host in enumerate(status.hosts):
        took = f"{seconds:.2f} s" if index == 0 else ""
        yield f"  keeper      {host.name:<28} {took:>9}   pid {host.keeper_pid}"


def _containers(bed: BedSpec, status: BedStatus) -> Iterator[str]:
    images = dict.fromkeys(node.container.image for node in bed.nodes if node.container)
    found = dict.fromkeys(host.engine for host in status.hosts if host.engine)
    yield f"{_few(host.name for host in bed.hosts)}" + (f" (engine {', '.join(found)})" if found else "")
    yield f"image {', '.join(images)}"
    yield "a private network" if bed.network == "private" else "the network of the hosts"
    if gpus := sum(node.gpus for node in bed.nodes if node.gpus > 0):
        yield f"{gpus} GPUs"


def _processes(bed: BedSpec) -> Iterator[str]:
    from ...store import fingerprint

    gpus = sum(node.gpus for node in bed.nodes)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    cores = len(os.sched_getaffinity(0))
    yield f"this machine: {cores} cores, {memory:.0f} GiB, {f'{gpus} GPUs' if gpus else 'no GPU'}"
    yield f"torch {fingerprint.version('torch').partition('+')[0]}"
    if bed.fabric:
        yield f"a fabric of namespaces, {links.text(bed.link)}"


def _few(names: Iterable[str]) -> str:
    found = list(names)
    return " ".join(found) if len(found) <= 4 else f"{found[0]} … {found[-1]} ({len(found)} hosts)"
