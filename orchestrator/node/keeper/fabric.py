"""The emulated fabric of a bed: a switch in a network namespace of its own, and each node in another, plugged into it.

The keeper and every agent hold the switch's namespace, a node's is held by its processes: when the last of them is gone
the kernel takes all of it away, links and shapers as well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...model.bed import LinkSpec, NodeSpec, PortSpec
from ..oslayer import namespaces, traffic_control

#: The hosts file of all nodes, in the bed's directory.
HOSTS = "hosts"
PREFIX = 16
RUN_S = 10.0
#: How a node's TCP behaves where nothing is lost: as steadily as the link. BBR, which some machines have, sends next to
#: nothing for 0.2 s in every 10 s, to see how long an empty link takes; that would be measured in place of the link.
TCP = {"tcp_congestion_control": "reno", "tcp_slow_start_after_idle": "0"}
#: Where root's programs are, also for a user whose PATH does not say so.
_PLACES = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class Fabric:
    """The switch of a bed, as its keeper has it. ``tag``: what labels begin with; ``hosts``: the nodes' hosts file."""

    def __init__(self, tag: str, hosts: Path) -> None:
        self._tag = tag
        self._hosts = hosts
        self._fd = -1
        self._link: LinkSpec | None = None

    def switch(self, port: PortSpec) -> int:
        """The descriptor of the switch that ``port`` is on; one that is laid out otherwise is replaced. Raises OSError."""
        if self._link != port.link:
            self._replace(self._made(port.link), port.link)
        return self._fd

    def adopt(self, pid: int, label: Mapping[str, Any], port: PortSpec) -> None:
        """Take the switch over from a node that a keeper before this one has plugged into it."""
        if self._fd < 0 and (fd := namespaces.held(pid, str(label.get("switch")))) >= 0:
            self._replace(fd, port.link)

    def plug(self, spec: NodeSpec, alias: str) -> None:
        """Make this process, which was forked for it, the first of a node on the switch. Raises OSError."""
        port, name = spec.port, spec.name
        assert port is not None
        namespaces.unshare(namespaces.CLONE_NEWNET | namespaces.CLONE_NEWNS | namespaces.CLONE_NEWUTS)
        namespaces.settle(name, str(self._hosts))
        with namespaces.inside(self._fd):
            _remove(name)
        _batch("ip", traffic_control.cable(name, spec.address, self._fd), self._fd)
        _batch("tc", traffic_control.node_rate(port.link))
        with namespaces.inside(self._fd):
            _batch("tc", traffic_control.port_rate(name, port.link))
            _batch("ip", traffic_control.port(name, port.group, alias))
        _batch("ip", traffic_control.node(spec.address, PREFIX, alias, port.link))
        if not port.link.loss:
            _set(TCP)

    def turn(self, node: str, *, on: bool) -> None:
        """The port of a node up, or down; nothing where it has none any more. Raises OSError."""
        if self._fd < 0:
            return
        with namespaces.inside(self._fd):
            if any(name == node for _, name in socket.if_nameindex()):
                _batch("ip", [f"link set dev {node} {'up' if on else 'down'}"])

    def name(self) -> str:
        return namespaces.name(self._fd)

    def _made(self, link: LinkSpec) -> int:
        fd = namespaces.create()
        try:
            with namespaces.inside(fd):
                _batch("ip", traffic_control.switch(link, f"{self._tag}/switch"))
                _batch("tc", traffic_control.uplinks(link))
        except OSError:
            os.close(fd)
            raise
        return fd

    def _replace(self, fd: int, link: LinkSpec) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._link = fd, link


def linked(pid: int) -> bool:
    """Has the node of this process a link, as it sees it itself? Raises OSError."""
    fd = namespaces.of(pid)
    try:
        with namespaces.inside(fd):
            return namespaces.has_carrier("eth0")
    finally:
        os.close(fd)


def program(name: str) -> str | None:
    """The path of one of root's programs."""
    return shutil.which(name, path=_PLACES)


def _remove(port: str) -> None:
    """The port of an incarnation before this one, where the kernel has not taken it away yet."""
    with contextlib.suppress(OSError):  # it may do so meanwhile
        if any(name == port for _, name in socket.if_nameindex()):
            _batch("ip", [f"link del {port}"])


def _set(wanted: Mapping[str, str]) -> None:
    """In this network namespace. Where /proc is read-only it stays as it is; a node's ``system.json`` says how that is."""
    for name, value in wanted.items():
        with contextlib.suppress(OSError):
            Path("/proc/sys/net/ipv4", name).write_text(value)


def _batch(name: str, lines: Sequence[str], *fds: int) -> None:
    """Let ``ip`` or ``tc`` do it here. Raises OSError with what it says."""
    if not lines:
        return
    path = program(name)
    if path is None:
        raise FileNotFoundError(f"there is no program {name} (iproute2)")
    done = subprocess.run(
        [path, "-batch", "-"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        pass_fds=fds,
        timeout=RUN_S,
        check=False,
    )
    if done.returncode:
        raise OSError(f"{name}: {' '.join(done.stderr.split())}")
