"""What a lab is, as values: names, addresses, and the text of every file that its hosts need. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

DEFAULT_ROOT = Path("/var/lib/ccbed-lab")
#: Where a host of the lab sees what the lab gave it: on its own /run, so that no root directory hides it.
INSIDE = "/run/ccbed-lab"
SHARED = "/mnt/ccbed-shared"
#: Directories that every host has of its own. All but the engine's are emptied by ``down``.
OWN = ("/var/lib/ccbed", "/tmp", "/root", "/home", "/var/tmp", "/etc", "/var/lib/docker")
#: Of these a host begins with this machine's content.
COPIED = ("/etc",)
ENGINE_DATA = "/var/lib/docker"
MARK = "CCBED_LAB"
SWITCH = "switch"
IMAGE = "ccbed/cpu:2.13.0"
FORMS = ("", "ipv6", "two-nics")
_MOST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    name: str
    address: str
    mac: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """``rate``: of every link, both ways, as tc writes it (``1gbit``); empty: as fast as this machine is.

    ``form``: ``ipv6``: the hosts have no IPv4 address; ``two-nics``: nodes use eth1, and SSH eth0; empty: one of IPv4.
    """

    root: Path = DEFAULT_ROOT
    count: int = 3
    rate: str = ""
    form: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= _MOST:
            raise ValueError(f"hosts: must be 1 to {_MOST} (got {self.count})")
        if self.form not in FORMS:
            raise ValueError(f"form: must be one of {', '.join(FORMS[1:])} (got {self.form})")
        if self.rate:
            bits(self.rate)

    @property
    def tag(self) -> str:
        """Tells labs of different roots apart, in names of at most 15 characters."""
        return "lab" if self.root == DEFAULT_ROOT else hashlib.sha256(str(self.root).encode()).hexdigest()[:6]

    @property
    def network(self) -> str:
        """A /24 of 198.18.0.0/15, which RFC 2544 keeps for benchmarks: .0 is the default lab's, others hash to one."""
        if self.root == DEFAULT_ROOT:
            return "198.18.0"
        number = int(hashlib.sha256(str(self.root).encode()).hexdigest()[:6], 16) % 511 + 1
        return f"198.{18 + number // 256}.{number % 256}"

    def address(self, number: int) -> str:
        """With ``ipv6`` of a network of unique local addresses (RFC 4193)."""
        if self.form != "ipv6":
            return f"{self.network}.{number}"
        return f"fd00:{':'.join(self.network.split('.'))}::{number:x}"

    @property
    def prefix(self) -> str:
        """Length of the network's prefix, as ip takes it behind an address."""
        return "64" if self.form == "ipv6" else "24"

    @property
    def controller(self) -> str:
        return self.address(254)

    @property
    def uplink(self) -> str:
        """This machine's own link into the lab."""
        return f"ccbed-{self.tag}"

    @property
    def cgroup(self) -> str:
        return f"ccbed-lab-{self.tag}"

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(self._host(number) for number in range(1, self.count + 1))

    def _host(self, number: int) -> Host:
        return Host(name=f"h{number}", address=self.address(number), mac=f"02:cc:bd:00:00:{number:02x}")

    def host(self, name: str) -> Host:
        for host in self.hosts:
            if host.name == name:
                return host
        raise ValueError(f"no host {name} in this lab; it has {', '.join(host.name for host in self.hosts)}")

    def home(self, host: str) -> Path:
        """What the host keeps on this machine's disk."""
        return self.root / "hosts" / host

    def given(self, host: str) -> Path:
        """What the host finds in ``INSIDE``."""
        return self.home(host) / "given"

    def own(self, host: str, directory: str) -> Path:
        return self.home(host) / "disk" / directory.strip("/").replace("/", "-")

    @property
    def key(self) -> Path:
        return self.root / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.root / "known_hosts"

    @property
    def tool(self) -> Path:
        return self.root / "bin" / "lab"

    def mark(self, what: str) -> str:
        return f"{self.root}:{what}"


def bits(rate: str) -> int:
    """``1gbit`` -> 1000000000. Raises ValueError."""
    for unit, factor in (("gbit", 10**9), ("mbit", 10**6), ("kbit", 10**3)):
        if rate.endswith(unit):
            try:
                number = float(rate.removesuffix(unit))
            except ValueError:
                break
            if number > 0:
                return int(number * factor)
    raise ValueError(f"rate: must be such as 1gbit, 100mbit or 500kbit (got {rate})")


def shaping(rate: str, device: str) -> str:
    """A line for ``tc -batch``. The bucket holds two of the largest packets (64 KiB before segmentation): with one, every
    late timer costs rate (measured at 1gbit: an all-reduce of 1 MB took twice its time); what it holds is free after a
    pause, 1 ms at 1gbit."""
    burst = max(2 * 65_536, bits(rate) // 8 // 5000)
    return f"qdisc replace dev {device} root tbf rate {rate} burst {burst} latency 50ms\n"


def second_address(host: Host) -> str:
    """Of eth1, on a network of its own (RFC 5737)."""
    return f"203.0.113.{host.name[1:]}"


def port(host: Host) -> str:
    return f"p-{host.name}"


def hosts_file(lab: Lab) -> str:
    lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in lab.hosts)]
    return "\n".join([*lines, f"{lab.controller} controller"]) + "\n"


def machine_id(lab: Lab, host: Host) -> str:
    return hashlib.sha256(lab.mark(host.name).encode()).hexdigest()[:32] + "\n"


def sshd_config(host: Host) -> str:
    return f"""\
Port 22
ListenAddress {host.address}
HostKey {INSIDE}/host_key
PidFile /run/sshd.pid
AuthorizedKeysFile {INSIDE}/authorized_keys
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
UseDNS no
PrintMotd no
SetEnv PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DOCKER_HOST=unix:///run/docker.sock
Subsystem sftp internal-sftp
"""


def boot(lab: Lab, host: Host, *, machine_id: bool) -> str:
    """What ``boot.py`` is told: folders to make, and bind mounts from the lab's root in order."""
    given = lab.given(host.name)
    files = (("hosts", "/etc/hosts"), ("hostname", "/etc/hostname"), ("resolv.conf", "/etc/resolv.conf"))
    sources = [(lab.own(host.name, folder), folder) for folder in OWN]
    sources += [(given / name, target) for name, target in files]
    sources += [(given / "machine-id", "/etc/machine-id")] if machine_id else []
    sources += [(given, INSIDE), (lab.root / "shared", SHARED)]
    binds = [[str(source.relative_to(lab.root)), target] for source, target in sources]
    settings = {"hostname": host.name, "root": str(lab.root), "folders": [INSIDE, SHARED], "binds": binds}
    return json.dumps(settings, indent=1) + "\n"


def tool(lab: Lab, python: str, script: Path) -> str:
    """The lab's own command, which knows its root: what inventories name as power switch and switch port."""
    return f'#!/bin/sh\nexec "{python}" -I "{script}" --root "{lab.root}" "$@"\n'


def inventory(lab: Lab, image: str = IMAGE) -> str:
    """Standard Ansible; host keys are checked against the lab's own file."""
    hosts = "".join(_inventory_host(lab, host) for host in lab.hosts)
    last = lab.hosts[-1].name
    return f"""\
# {lab.count} hosts on one Linux machine: `make lab-up` brings them up, `make lab-down` takes them down (tests/lab/README.md).
# Each has its own SSH server, container engine, disk and link; {SHARED} is the directory that all of them share.
# {"Four nodes" if lab.count == 3 else "A node on each"}, and a ready spare on {last} for when another one is lost.
all:
  hosts:
{hosts}  vars:
    ansible_user: root
    ansible_ssh_private_key_file: {lab.key}
    ansible_ssh_common_args: -o UserKnownHostsFile={lab.known_hosts}
    ansible_python_interpreter: /usr/bin/python3
    ccbed_bed: {"lab" if lab.root == DEFAULT_ROOT else f"lab-{lab.tag}"}
    ccbed_provider: docker
    ccbed_image: {image}
    ccbed_nodes: 1
    ccbed_interface: {"eth1" if lab.form == "two-nics" else "eth0"}
    ccbed_shared_dir: {SHARED}
    ccbed_known_hosts: {lab.known_hosts}
    ccbed_allow_faults: node
    ccbed_engine_control:
      stop: [{INSIDE}/service, engine, stop]
      start: [{INSIDE}/service, engine, start]
"""


def _inventory_host(lab: Lab, host: Host) -> str:
    """``"off"`` and ``"on"`` in quotes: without them YAML reads them as false and true."""
    nodes = "      ccbed_nodes: 2\n" if host == lab.hosts[0] and lab.count == 3 else ""
    spare = nodes + ("      ccbed_spares: 1\n" if host == lab.hosts[-1] else "")
    return f"""\
    {host.name}:
      ansible_host: {host.address}
{spare}      ccbed_power: {{"off": [{lab.tool}, power, "off", {host.name}], "on": [{lab.tool}, power, "on", {host.name}]}}
      ccbed_switch_port: {{down: [{lab.tool}, port, down, {host.name}], up: [{lab.tool}, port, up, {host.name}]}}
      ccbed_ssh_control: {{stop: [{lab.tool}, sshd, kill, {host.name}], start: [{lab.tool}, sshd, start, {host.name}]}}
"""
