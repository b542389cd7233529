"""The emulated fabric of a bed: a switch in its own network namespace, connected to the namespace of each node.

The keeper and every agent hold the switch's namespace; the processes of a node hold the node's. When its last holder ends,
the kernel removes a namespace with its links and shapers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...model.bed import LinkSpec, NodeSpec, PortSpec
from ..oslayer import namespaces, traffic_control

#: The hosts file of all nodes, in the bed's directory.
HOSTS = "hosts"
PREFIX = 16
RUN_S = 10.0
#: Includes the directories of root's programs, which the PATH of a user may lack.
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class Fabric:
    """The switch of a bed. ``tag``: the prefix of interface aliases; ``hosts``: the hosts file of all nodes."""

    def __init__(self, tag: str, hosts: Path) -> None:
        self._tag = tag
        self._hosts = hosts
        self._fd = -1
        #: Groups and uplinks of the switch.
        self._switches: tuple[int, int, int] | None = None

    def switch(self, port: PortSpec) -> int:
        """The descriptor of the switch for ``port``. A switch with another layout is replaced. Raises OSError."""
        if self._switches != _switches(port.link):
            self._replace(self._create(port.link), port.link)
        return self._fd

    def adopt(self, pid: int, label: Mapping[str, Any], port: PortSpec) -> None:
        """Take over the switch from a node that an earlier keeper has connected to it."""
        if self._fd < 0 and (fd := namespaces.open_held(pid, str(label.get("switch")))) >= 0:
            self._replace(fd, port.link)

    def connect(self, spec: NodeSpec, alias: str) -> None:
        """Move this process, the first of its node, into new namespaces, and connect them to the switch. Raises OSError."""
        port, name = spec.port, spec.name
        assert port is not None
        namespaces.unshare(namespaces.CLONE_NEWNET | namespaces.CLONE_NEWNS | namespaces.CLONE_NEWUTS)
        namespaces.set_host_name_and_hosts(name, str(self._hosts))
        with namespaces.entered(self._fd):
            _remove_port(name)
        _batch("ip", traffic_control.cable_commands(name, spec.address, self._fd), self._fd)
        _batch("tc", traffic_control.node_rate_commands(port.link))
        with namespaces.entered(self._fd):
            _batch("tc", traffic_control.port_rate_commands(name, port.link))
            _batch("ip", traffic_control.port_commands(name, port.group, alias))
        _batch("ip", traffic_control.node_commands(spec.address, PREFIX, alias, port.link))
        _write_sysctls(traffic_control.tcp_settings(port.link))

    def set_port(self, node: str, *, on: bool) -> None:
        """Set the port of a node up or down, if it exists. Raises OSError."""
        if self._fd < 0:
            return
        with namespaces.entered(self._fd):
            if any(name == node for _, name in socket.if_nameindex()):
                _batch("ip", [f"link set dev {node} {'up' if on else 'down'}"])

    def set_rates(self, node: str, pid: int, link: LinkSpec, lowered: traffic_control.Lowered | None) -> dict[str, Any]:
        """Lower the rates of a node's link, or (None) restore those of ``link``. Raises OSError."""
        for direction, device, fd in self._ends(node, pid):
            with namespaces.entered(fd):
                shown = traffic_control.shown_rates(*_shown(device))
                _batch("tc", traffic_control.restore_commands(device, link, shown))
                if lowered and lowered.direction in (direction, "both"):
                    _batch("tc", traffic_control.lower_commands(device, direction, link, lowered))
        return {"link": "slow" if lowered else "full"}

    def has_rates(
        self, node: str, pid: int, link: LinkSpec, lowered: traffic_control.Lowered | None
    ) -> tuple[bool, dict[str, Any]]:
        """Return whether the kernel shows these rates, in both directions, and what it shows. Raises OSError."""
        holds, evidence = True, {}
        for direction, device, fd in self._ends(node, pid):
            with namespaces.entered(fd):
                shown = traffic_control.shown_rates(*_shown(device))
            wanted = traffic_control.wanted_rates(direction, link, lowered)
            evidence[direction] = traffic_control.rates_text(shown)
            holds = holds and traffic_control.is_same(shown, wanted)
        return holds, evidence

    def _ends(self, node: str, pid: int) -> Iterator[tuple[str, str, int]]:
        """(direction, device, descriptor of its namespace): the end at the node sends, the port of the switch receives for it."""
        fd = namespaces.open_of_process(pid)
        try:
            yield "out", "eth0", fd
            yield "in", node, self._fd
        finally:
            os.close(fd)

    def name(self) -> str:
        return namespaces.namespace_name(self._fd)

    def _create(self, link: LinkSpec) -> int:
        fd = namespaces.create()
        try:
            with namespaces.entered(fd):
                _batch("ip", traffic_control.switch_commands(link, f"{self._tag}/switch"))
                _batch("tc", traffic_control.uplink_commands(link))
        except OSError:
            os.close(fd)
            raise
        return fd

    def _replace(self, fd: int, link: LinkSpec) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._switches = fd, _switches(link)


def _switches(link: LinkSpec) -> tuple[int, int, int]:
    """The part of a link that belongs to the switch; the rest is each node's own."""
    return link.groups, link.uplink, link.uplink_burst


def has_link(pid: int) -> bool:
    """Is the link of this process's node up, seen from its own namespace? Raises OSError."""
    fd = namespaces.open_of_process(pid)
    try:
        with namespaces.entered(fd):
            return namespaces.has_carrier("eth0")
    finally:
        os.close(fd)


def find_program(name: str) -> str | None:
    """The path of a program, also if it is one of root's; None if it is not installed."""
    return shutil.which(name, path=_PATH)


def _remove_port(port: str) -> None:
    """Remove the port of an earlier incarnation, if the kernel has not done so yet."""
    with contextlib.suppress(OSError):  # the kernel may remove it meanwhile
        if any(name == port for _, name in socket.if_nameindex()):
            _batch("ip", [f"link del {port}"])


def _write_sysctls(values: Mapping[str, str]) -> None:
    """Set IPv4 sysctls of this network namespace. On a read-only /proc they stay; ``system.json`` records the values."""
    for name, value in values.items():
        with contextlib.suppress(OSError):
            Path("/proc/sys/net/ipv4", name).write_text(value)


def _shown(device: str) -> tuple[str, str]:
    """Return what tc shows of the shapers of a device in this namespace: qdiscs as JSON, classes as text. Raises OSError."""
    path = find_program("tc")
    if path is None:
        raise FileNotFoundError("tc is not installed (package iproute2)")
    commands = (["-j", "qdisc", "show", "dev", device], ["class", "show", "dev", device])
    outputs = [
        subprocess.run([path, *words], capture_output=True, text=True, timeout=RUN_S, check=False) for words in commands
    ]
    if problem := " ".join(" ".join(done.stderr.split()) for done in outputs if done.returncode):
        raise OSError(f"tc: {problem}")
    return outputs[0].stdout, outputs[1].stdout


def _batch(name: str, lines: Sequence[str], *fds: int) -> None:
    """Run ``ip`` or ``tc`` with these commands in this namespace. Raises OSError with its error output."""
    if not lines:
        return
    path = find_program(name)
    if path is None:
        raise FileNotFoundError(f"{name} is not installed (package iproute2)")
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
