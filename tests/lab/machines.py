"""Power, switch ports and services of a lab's hosts."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from . import layout, processes
from .layout import Host, Lab

PORT = {"down": "nomaster", "up": "master br0"}

_BOOT_S = 60.0
_ENGINE_S = 60.0
#: Not the project's environment, which a host may not see: what every Debian has.
PYTHON = "/usr/bin/python3"


def switch_on(lab: Lab) -> int:
    """A bridge in a network namespace of its own, and this machine's link into it; the pid that holds them."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sleep", "infinity"],
        env=processes.environment(lab, layout.SWITCH), cwd="/", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    own = Path("/proc/self/ns/net").readlink()
    _until(lambda: Path(f"/proc/{holder.pid}/ns/net").readlink() != own, _BOOT_S, "the switch has no namespace")
    lines = "link add br0 type bridge stp_state 0 forward_delay 0\nlink set br0 up\nlink set lo up\n"
    lines += f"link add p-up type veth peer name {lab.uplink} netns {os.getpid()}\n"
    _ip(holder.pid, lines + "link set p-up master br0 up\n")
    processes.run(
        ["ip", "-batch", "-"],
        stdin=f"addr add {lab.controller}/{lab.prefix} dev {lab.uplink} {_nodad(lab)}\nlink set {lab.uplink} up\n",
    )
    return holder.pid


def power_on(lab: Lab, host: Host, switch: int) -> int:
    """Boots the host and plugs it in; services are started by ``start``. The pid of its first process."""
    spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--propagation", "private"]
    script = str(Path(__file__).with_name("boot.py"))
    with open(lab.home(host.name) / "boot.log", "wb") as log:
        outer = subprocess.Popen(
            ["unshare", *spaces, PYTHON, "-I", "-S", script, str(lab.home(host.name) / "boot.json")],
            env=processes.environment(lab, host.name), cwd="/", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
    assert outer.stdout
    line = outer.stdout.readline().strip()
    outer.stdout.close()
    if not line.isdigit():
        output = (lab.home(host.name) / "boot.log").read_text().strip().splitlines()
        raise RuntimeError(f"{host.name} does not boot: {output[-1] if output else 'no reason given'}")
    _plug(lab, host, switch, int(line))
    return int(line)


def _plug(lab: Lab, host: Host, switch: int, pid: int) -> None:
    name = layout.port(host)
    with contextlib.suppress(RuntimeError):  # of a host that lost its power a moment ago
        _ip(switch, f"link del {name}\n")
    _ip(
        switch,
        f"link add {name} type veth peer name eth0 address {host.mac} netns {pid}\nlink set {name} master br0 up\n",
    )
    _ip(pid, f"link set lo up\naddr add {host.address}/{lab.prefix} dev eth0 {_nodad(lab)}\nlink set eth0 up\n")
    if lab.form == "two-nics":
        with contextlib.suppress(RuntimeError):
            _ip(switch, f"link del q-{host.name}\n")
        _ip(
            switch,
            f"link add q-{host.name} type veth peer name eth1 netns {pid}\nlink set q-{host.name} master br0 up\n",
        )
        _ip(pid, f"addr add {layout.second_address(host)}/24 dev eth1\nlink set eth1 up\n")
    if lab.rate:
        processes.inside(switch, ["tc", "-batch", "-"], net_only=True, stdin=layout.shaping(lab.rate, name))
        processes.inside(pid, ["tc", "-batch", "-"], net_only=True, stdin=layout.shaping(lab.rate, "eth0"))


def _nodad(lab: Lab) -> str:
    """No other host has the address: an IPv6 address is usable at once."""
    return "nodad" if lab.form == "ipv6" else ""


def _ip(pid: int, lines: str) -> None:
    processes.inside(pid, ["ip", "-batch", "-"], net_only=True, stdin=lines)


def power_off(lab: Lab, host: Host) -> bool:
    """The link first: nothing that dies may say so. False where there was no power."""
    first_pids = processes.first(lab)
    if host.name not in first_pids:
        return False
    if layout.SWITCH in first_pids:
        port(first_pids[layout.SWITCH], host, "down")
    processes.end(lab, [first_pids[host.name]])
    return True


def port(switch: int, host: Host, state: str) -> None:
    """In the bridge or out of it. Its carrier stays: the kernel takes up to a second to notice one that is back."""
    _ip(switch, f"link set {layout.port(host)} {PORT[state]}\n")


def service(pid: int, name: str, action: str) -> str:
    return processes.inside(pid, [f"{layout.INSIDE}/service", name, action]).strip()


def start(pid: int) -> None:
    """SSH server and engine, as at the end of a boot; ``wait`` says when they answer."""
    service(pid, "sshd", "start")
    service(pid, "engine", "start")


def socket_of(pid: int) -> str:
    """The engine's socket of a host, as this machine reaches it."""
    return f"/proc/{pid}/root/run/docker.sock"


def wait(host: Host, pid: int) -> None:
    """Until SSH server and engine answer. Raises TimeoutError with the end of their logs."""
    wait_for("sshd", host, pid)
    wait_for("engine", host, pid)


def wait_for(name: str, host: Host, pid: int) -> None:
    if name == "sshd":
        _until(lambda: ssh_answers(host), _BOOT_S, f"{host.name}: no SSH server answers at {host.address}")
        return
    try:
        _until(lambda: engine_answers(pid), _ENGINE_S, f"{host.name}: no container engine answers")
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {_last_words(pid)}") from error


def _last_words(pid: int) -> str:
    try:
        return " / ".join(Path(f"/proc/{pid}/root/run/dockerd.log").read_text().strip().splitlines()[-3:])
    except OSError as error:
        return str(error)


def ssh_answers(host: Host) -> bool:
    with socket.create_connection((host.address, 22), timeout=1.0) as connection:
        return connection.recv(4) == b"SSH-"


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=5.0)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def engine_answers(pid: int) -> bool:
    connection = _Unix(socket_of(pid))
    try:
        connection.request("GET", "/_ping")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def _until(holds: Callable[[], bool], limit: float, otherwise: str) -> None:
    end = time.monotonic() + limit
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if holds():
                return
        if time.monotonic() > end:
            raise TimeoutError(f"{otherwise} after {limit:.0f} s")
        time.sleep(0.02)
