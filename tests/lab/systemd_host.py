"""A host with systemd as its first process, on this machine: systemd-nspawn boots it, and it can be rebooted.

Its root is this machine's, below a layer in memory: nothing that it writes reaches this machine, except its own disks. So its
directory for temporary files, its devices and its kernel settings are its own, unlike those of a process in a mere mount namespace.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..e2e import sshd
from . import images, layout, machines, processes, rising

#: Of the network of the default lab, which gives its hosts other ones (``layout.Lab``).
CONTROLLER, ADDRESS = "198.18.0.245", "198.18.0.246"
#: May use the engine, and is neither root nor may it become root.
USER, USER_ID = "ops", 4321
#: The disks of the host, which last over its reboots: directory there -> name of its folder.
DISKS = {
    "/etc": "etc",
    "/root": "root",
    "/home": "home",
    "/var/lib/ccbed": "ccbed",
    "/var/lib/systemd": "systemd",
    "/var/lib/docker": "docker",
}
_BOOT_S = 180.0
_SYSTEMD = Path("/lib/systemd/systemd")
_SSH = """\
[Service]
ExecStart=/usr/sbin/sshd -D -e -f /etc/ssh/lab_config
RuntimeDirectory=sshd
KillMode=process
"""
#: Its engine may write where systemd-nspawn mounts the control groups of version 1 read-only.
_ENGINE = """\
[Service]
Type=notify
ExecStartPre=/bin/sh -c 'for group in /sys/fs/cgroup/*; do mount -o remount,bind,rw $group || true; done'
ExecStart=/usr/sbin/dockerd --bridge=none --iptables=false --ip6tables=false --log-level=warn --host=unix:///run/docker.sock
KillMode=process
Delegate=yes
TimeoutStartSec=120
"""
_SSHD_CONFIG = """\
HostKey /etc/ssh/lab_host_key
AuthorizedKeysFile /etc/ssh/lab_key.pub
StrictModes no
UsePAM no
UseDNS no
PidFile none
PasswordAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
"""


def lacking() -> list[str]:
    """What this machine lacks for such a host; empty if nothing."""
    if os.geteuid() != 0:
        return ["not root"]
    programs = {
        "systemd-nspawn": "systemd-container",
        "dockerd": "docker.io",
        "sshd": "openssh-server",
        "ip": "iproute2",
    }
    missing = {package for program, package in programs.items() if not sshd.program(program)}
    missing |= set() if _SYSTEMD.exists() else {"systemd"}
    return [f"no {package}; next: sudo .ci/setup engine" for package in sorted(missing)]


@dataclass(kw_only=True)
class SystemdHost:
    """``folder``: of its disks and keys. ``pid``: of its first process, as this machine sees it."""

    folder: Path
    engine_data: Path
    name: str = field(default_factory=lambda: f"ccbed{os.getpid()}")
    pid: int = 0

    @property
    def key(self) -> Path:
        return self.folder / "key"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def inside(self, *argv: str, timeout: float = 60) -> str:
        """The output of a command on the host. Raises RuntimeError with its message."""
        spaces = ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup"]
        return processes.run(["nsenter", "-t", str(self.pid), *spaces, "--wd=/", "--", *argv], timeout=timeout)

    def holds(self, *argv: str) -> bool:
        """Whether a command on the host succeeds."""
        try:
            self.inside(*argv)
        except RuntimeError:
            return False
        return True

    def boot(self) -> None:
        """Raises TimeoutError if SSH server or engine do not respond."""
        view = self.folder / "view"
        view.mkdir(exist_ok=True)
        binds = [f"--bind={self._disk(name)}:{target}" for target, name in DISKS.items()]
        argv = [
            "systemd-nspawn", f"--directory={view}", "--volatile=overlay", "--boot", "--register=no", "--keep-unit",
            f"--machine={self.name}", "--network-veth", "--capability=all", "--system-call-filter=@keyring bpf",
            "--link-journal=no", "--resolv-conf=off", "--timezone=off", "--console=pipe", *binds,
        ]  # fmt: skip
        script = f"mount --bind / {view} && exec {' '.join(map(_quoted, argv))}"
        with open(self.folder / "boot.log", "wb") as log:
            self._outer = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "unshare", "--mount", "--propagation", "private", "sh", "-c", script],
                cwd="/", start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        _until(self._is_booting, f"no first process: {(self.folder / 'boot.log').read_text()[-500:]}")
        link = f"ve-{self.name}"
        _until((Path("/sys/class/net") / link).exists, "no link to the host")
        processes.run(["ip", "-batch", "-"], stdin=f"addr add {CONTROLLER}/30 dev {link}\nlink set {link} up\n")
        lines = f"addr add {ADDRESS}/30 dev host0\nlink set host0 up\nlink set lo up\n"
        processes.inside(self.pid, ["ip", "-batch", "-"], net_only=True, stdin=lines)
        _until(lambda: machines.ssh_answers(layout.Host(name="", address=ADDRESS, mac="")), "no SSH server responds")
        _until(lambda: machines.engine_answers(self.pid), "no engine responds")

    def _is_booting(self) -> bool:
        if self._outer.poll() is not None:
            raise RuntimeError(f"systemd-nspawn ended: {(self.folder / 'boot.log').read_text()[-500:]}")
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        inits = [int(pid) for pid in children if _is_systemd(int(pid))]
        self.pid = inits[0] if inits else 0
        return bool(self.pid)

    def reboot(self) -> None:
        """By `reboot` on the host: its services are stopped, everything else is ended, and it boots from its disks."""
        with contextlib.suppress(RuntimeError):
            self.inside("systemctl", "reboot")
        self._outer.wait(_BOOT_S)
        self.boot()

    def off(self) -> None:
        """Like the loss of its power."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._outer.wait(_BOOT_S)
            self.pid = 0

    def load(self, image: str) -> None:
        """An image of this machine's engine, unless the host has it."""
        engine = f"unix://{machines.socket_of(self.pid)}"
        if images.identity(image, engine) != images.identity(image, images.local_engine()):
            images.bring(self.folder, image, {"": engine})

    def install(self) -> None:
        """Its disks: this machine's /etc with the services of a host alone, keys, a user without any right."""
        for target, name in DISKS.items():
            if target == "/etc":
                shutil.copytree("/etc", self._disk(name), symlinks=True)
            else:
                self._disk(name).mkdir(parents=True, exist_ok=True)
        etc = self._disk("etc")
        units = etc / "systemd/system"
        for wants in (*units.glob("*.wants"), *units.glob("*.requires")):
            shutil.rmtree(wants)
        for name, text in (("lab-ssh.service", _SSH), ("docker.service", _ENGINE)):
            (units / name).unlink(missing_ok=True)
            (units / name).write_text(text)
            (units / "multi-user.target.wants").mkdir(exist_ok=True)
            (units / "multi-user.target.wants" / name).symlink_to(f"../{name}")
        (units / "default.target").unlink(missing_ok=True)
        (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
        (units / "polkit.service").unlink(missing_ok=True)
        (units / "polkit.service").symlink_to("/dev/null")  # it may let users linger by themselves
        self._add_user(etc)
        (etc / "fstab").write_text("")
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "machine-id").write_text(os.urandom(16).hex() + "\n")
        (etc / "ssh/lab_config").write_text(_SSHD_CONFIG)
        host_key = sshd.make_key(etc / "ssh/lab_host_key")
        sshd.make_key(self.key)
        shutil.copy(f"{self.key}.pub", etc / "ssh/lab_key.pub")
        self.known_hosts.write_text(f"{ADDRESS} {host_key.with_suffix('.pub').read_text()}")

    def _add_user(self, etc: Path) -> None:
        groups = (etc / "group").read_text().splitlines()
        with_docker = [
            f"{line}{'' if line.endswith(':') else ','}{USER}" if line.startswith("docker:") else line
            for line in groups
        ]
        (etc / "group").write_text("\n".join([*with_docker, f"{USER}:x:{USER_ID}:"]) + "\n")
        for name, line in (
            ("passwd", f"{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:/bin/sh\n"),
            ("shadow", f"{USER}:*:20000:0:99999:7:::\n"),
        ):
            with (etc / name).open("a") as file:
                file.write(line)
        home = self._disk("home") / USER
        home.mkdir()
        os.chown(home, USER_ID, USER_ID)

    def _disk(self, name: str) -> Path:
        return self.engine_data if name == "docker" else self.folder / "disks" / name


@contextlib.contextmanager
def running(folder: Path, engine_data: Path) -> Iterator[SystemdHost]:
    """One at a time, also of several checkouts: they share the addresses and the disk of the engine."""
    host = SystemdHost(folder=folder, engine_data=engine_data)
    with rising.locked(engine_data):
        host.install()
        try:
            host.boot()
            images.tidy(host.pid)
            yield host
        finally:
            host.off()
            shutil.rmtree(folder / "disks")


def _is_systemd(pid: int) -> bool:
    """Has the child of systemd-nspawn become systemd?"""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "systemd"
    return False


def _quoted(word: str) -> str:
    return f"'{word}'"


def _until(holds: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + _BOOT_S
    while True:
        with contextlib.suppress(OSError):
            if holds():
                return
        if time.monotonic() > end:
            raise TimeoutError(f"{otherwise} after {_BOOT_S:.0f} s")
        time.sleep(0.05)
