"""Preflight of this machine, where all nodes are its processes."""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ...model import requirements
from ...model.bed import BedSpec, BedStatus
from ...model.requirements import FreeMemory, Requirement, available_in_cgroup, available_on_host
from ...system.plain_files import read_text
from .checked import LOOKUP_S, agent, versions

_PORTS = 8


def check(bed: BedSpec, status: BedStatus) -> tuple[Requirement, ...]:
    """All requirements; takes about a millisecond, at most ``LOOKUP_S`` where names are looked up slowly."""
    return (
        *_addresses(bed),
        *_ports(bed),
        shm(),
        _space(
            "disk",
            _existing(Path(bed.workdir)),
            requirements.DISK_BYTES,
            "free space, or set ccbed_workdir to another disk",
        ),
        agent(bed, status),
        *versions(bed, status),
        *_lookups(bed),
    )


def free_memory(bed: BedSpec) -> tuple[FreeMemory, ...]:
    """The free memory of this machine that this process may use."""
    limits = (available_on_host(read_text), available_in_cgroup(read_text))
    free = min((limit for limit in limits if limit is not None), default=None)
    return (
        (FreeMemory(location="this machine", nodes=tuple(node.name for node in bed.nodes), size_bytes=free),)
        if free
        else ()
    )


def shm() -> Requirement:
    """The file system in which processes of this machine share memory."""
    return _space("shm", Path("/dev/shm"), requirements.SHM_BYTES, "free space in /dev/shm or enlarge it")


def _addresses(bed: BedSpec) -> Iterable[Requirement]:
    for address, interface in sorted({(node.address, node.interface) for node in bed.nodes}):
        reason = _bind(address, 0) or _no_interface(interface)
        fix = "set ccbed_address and ccbed_interface to those of this machine (ip addr)"
        name, ok = f"address {interface}", not reason
        yield Requirement(name=name, outcome="ok" if ok else "fail", text=reason or "ok", fix="" if ok else fix)


def _ports(bed: BedSpec) -> Iterable[Requirement]:
    """A store and a few connections per rank need free ports."""
    for address in sorted({node.address for node in bed.nodes}):
        held = [sock for sock in (_listen(address) for _ in range(_PORTS)) if sock]
        for sock in held:
            sock.close()
        if len(held) == _PORTS:
            yield Requirement.ok("ports", "ok")
        else:
            fix = "see what holds them: ss -tlnp; or widen net.ipv4.ip_local_port_range"
            yield Requirement.fail("ports", f"{len(held)} of {_PORTS} free on {address}", fix)


def _space(name: str, path: Path, needed: int, fix: str) -> Requirement:
    try:
        stats = os.statvfs(path)
    except OSError as error:
        return Requirement.warn(name, f"{path}: {error.strerror}", fix)
    return requirements.space(name, stats.f_bavail * stats.f_frsize, needed, fix)


def _lookups(bed: BedSpec) -> Iterable[Requirement]:
    for address in sorted({node.address for node in bed.nodes}):
        name: Any = address.encode()  # a text would load the codec of international names
        took = _timed(functools.partial(socket.gethostbyaddr, name), LOOKUP_S)
        if took >= LOOKUP_S:
            fix = f"add {address} with a name to /etc/hosts"
            yield Requirement.warn("names", f"{address} takes over {LOOKUP_S:g} s to look up", fix)


def _timed(work: Callable[[], object], limit: float) -> float:
    """Return how long ``work`` took; ``limit`` if it took longer, without waiting for its end."""
    start = time.monotonic()

    def quietly() -> None:
        try:
            work()
        except OSError:
            return

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(limit)
    return limit if thread.is_alive() else time.monotonic() - start


def _bind(address: str, port: int) -> str:
    try:
        _socket(address, port).close()
    except OSError as error:
        return f"{address}: {error.strerror or error}"
    return ""


def _listen(address: str) -> socket.socket | None:
    try:
        return _socket(address, 0)
    except OSError:
        return None


def _socket(address: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        sock.bind((address, port))
        sock.listen(1)
    except OSError:
        sock.close()
        raise
    return sock


def _no_interface(name: str) -> str:
    known = {interface for _, interface in socket.if_nameindex()}
    return "" if name in known else f"no interface {name}; present: {', '.join(sorted(known))}"


def _existing(path: Path) -> Path:
    """The nearest directory on the way to ``path`` that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())
