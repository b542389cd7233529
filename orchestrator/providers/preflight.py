"""What a trial will need of a bed, tried before it starts; each finding carries its fix."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..model.bed import BedSpec, BedStatus

MIB = 1024**2
SHM_NEEDED = 64 * MIB
DISK_NEEDED = 256 * MIB
#: A peer's name that takes longer to look up delays every start of a gang.
LOOKUP_S = 0.5
_PORTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was tried: what came of it in a word or two, and what to do if it is not ok."""

    name: str
    outcome: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""


def check(bed: BedSpec, status: BedStatus) -> tuple[Finding, ...]:
    """All findings; takes about a millisecond, at most ``LOOKUP_S`` where names are looked up slowly."""
    if bed.provider != "process":
        return (_agent(bed, status),)
    return (
        *_addresses(bed),
        *_ports(bed),
        _space("shm", Path("/dev/shm"), SHM_NEEDED, "free space in /dev/shm or enlarge it"),
        _space("disk", _there(Path(bed.workdir)), DISK_NEEDED, "free space, or set ccbed_workdir to another disk"),
        _agent(bed, status),
        *_lookups(bed),
    )


def _addresses(bed: BedSpec) -> Iterable[Finding]:
    for address, interface in sorted({(node.address, node.interface) for node in bed.nodes}):
        reason = _bind(address, 0) or _no_interface(interface)
        fix = "set ccbed_address and ccbed_interface to those of this machine (ip addr)"
        name, ok = f"address {interface}", not reason
        yield Finding(name=name, outcome="ok" if ok else "fail", text=reason or "ok", fix="" if ok else fix)


def _ports(bed: BedSpec) -> Iterable[Finding]:
    """A store and a few connections per rank need free ports."""
    for address in sorted({node.address for node in bed.nodes}):
        held = [sock for sock in (_listen(address) for _ in range(_PORTS)) if sock]
        for sock in held:
            sock.close()
        if len(held) == _PORTS:
            yield Finding(name="ports", outcome="ok", text="ok")
        else:
            fix = "see what holds them: ss -tlnp; or widen net.ipv4.ip_local_port_range"
            yield Finding(name="ports", outcome="fail", text=f"{len(held)} of {_PORTS} free on {address}", fix=fix)


def _space(name: str, path: Path, needed: int, fix: str) -> Finding:
    try:
        found = os.statvfs(path)
    except OSError as error:
        return Finding(name=name, outcome="warn", text=f"{path}: {error.strerror}", fix=fix)
    free = found.f_bavail * found.f_frsize
    text = f"{free / 1024**3:.0f} GiB" if free >= 1024**3 else f"{free / MIB:.0f} MiB"
    if free >= needed:
        return Finding(name=name, outcome="ok", text=f"{text} ok")
    return Finding(name=name, outcome="fail", text=f"{text} free, {needed // MIB} MiB needed", fix=fix)


def _agent(bed: BedSpec, status: BedStatus) -> Finding:
    name = f"agent {bed.agent[:6]}"
    wrong = [node.name for node in bed.nodes if status.node(node.name).spec_hash != node.hash]
    if status.keeper_hash == bed.agent and not wrong:
        return Finding(name=name, outcome="ok", text="on all ok")
    who = ", ".join(wrong) or "keeper"
    return Finding(name=name, outcome="fail", text=f"not on {who}", fix=f"ccbed up {bed.inventory}")


def _lookups(bed: BedSpec) -> Iterable[Finding]:
    for address in sorted({node.address for node in bed.nodes}):
        took = _timed(lambda address=address: socket.getnameinfo((address, 0), 0), LOOKUP_S)  # type: ignore[misc]
        if took >= LOOKUP_S:
            fix = f"add {address} with a name to /etc/hosts"
            yield Finding(name="names", outcome="warn", text=f"{address} takes over {LOOKUP_S:g} s to look up", fix=fix)


def _timed(work: Callable[[], object], limit: float) -> float:
    """How long ``work`` took, at most ``limit``; it is not waited for any longer."""
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
    return "" if name in known else f"no interface {name}; there are: {', '.join(sorted(known))}"


def _there(path: Path) -> Path:
    """The nearest directory on the way to ``path`` that exists."""
    return next(place for place in (path, *path.parents) if place.exists())
