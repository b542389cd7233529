"""Up and down: everything that a lab consists of is made here, and taken away again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import images, layout, machines, processes
from .layout import Host, Lab

_MARKER = ".ccbed-lab"
_FOLDER = Path(__file__).parent


def lack() -> list[str]:
    """What this machine lacks for a lab, each with its fix; empty where nothing."""
    programs = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
    programs |= {"sshd": "openssh-server", "ssh-keygen": "openssh-client", "dockerd": "docker.io iptables"}
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    problems = [] if os.geteuid() == 0 else ["not root; next: sudo make lab-up"]
    missing = {package for name, package in programs.items() if shutil.which(name, path=path) is None}
    if missing:
        problems.append(
            f"programs of {', '.join(sorted(missing))}; next: sudo apt-get install {' '.join(sorted(missing))}"
        )
    if not Path(machines.PYTHON).exists():
        problems.append(f"{machines.PYTHON}; next: sudo apt-get install python3")
    return problems


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """One command at a time. The lock goes with the process."""
    root.mkdir(parents=True, exist_ok=True, mode=0o755)
    held = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def known(root: Path) -> Lab | None:
    """The lab as ``up`` wrote it down."""
    try:
        document = json.loads((root / "lab.json").read_text())
    except (OSError, ValueError):
        return None
    return Lab(root=root, count=document["count"], rate=document["rate"], form=document.get("form", ""))


def up(lab: Lab) -> dict[str, int]:
    """Idempotent: what runs stays, what lacks is started. The pid of each host's first process."""
    before = known(lab.root)
    running = processes.first(lab)
    if running and before not in (None, lab):
        raise ValueError(f"another lab of this root is up: {before}; next: make lab-down")
    if running and layout.SWITCH not in running:
        down(lab)
        running = {}
    if not running:
        _write(lab)
    switch = running.get(layout.SWITCH) or machines.switch_on(lab)
    missing = [host for host in lab.hosts if host.name not in running]
    pids = {host.name: running.get(host.name) or machines.power_on(lab, host, switch) for host in lab.hosts}
    serve(lab, pids, fresh=missing)
    return pids


def serve(lab: Lab, pids: dict[str, int], fresh: list[Host]) -> None:
    """Services of all hosts at once. Those just booted have nothing to remember of containers of before."""

    def raise_host(host: Host) -> None:
        machines.start(pids[host.name])
        machines.wait(host, pids[host.name])
        if host in fresh:
            images.tidy(pids[host.name])

    with ThreadPoolExecutor(min(len(lab.hosts), 16)) as pool:
        list(pool.map(raise_host, lab.hosts))


def _write(lab: Lab) -> None:
    marker = lab.root / _MARKER
    if not marker.exists() and any(lab.root.iterdir()):
        raise ValueError(f"{lab.root} is neither empty nor a lab's; next: another --root")
    marker.touch()
    _points(lab)
    (lab.root / "shared").mkdir(exist_ok=True)
    (lab.root / "shared").chmod(0o1777)
    _key(lab.key)
    known_hosts = [_host(lab, host) for host in lab.hosts]
    lab.known_hosts.write_text("".join(known_hosts))
    lab.tool.parent.mkdir(exist_ok=True)
    lab.tool.write_text(layout.tool(lab, sys.executable, _FOLDER / "lab.py"))
    lab.tool.chmod(0o755)
    (lab.root / "inventory.yml").write_text(layout.inventory(lab))
    (lab.root / "lab.json").write_text(json.dumps({"count": lab.count, "rate": lab.rate, "form": lab.form}) + "\n")


def _points(lab: Lab) -> None:
    """Mount points that this machine lacks; ``down`` removes them."""
    noted = lab.root / "points"
    made = set(noted.read_text().split()) if noted.exists() else set()
    made |= {folder for folder in layout.OWN if not Path(folder).exists()}
    noted.write_text("\n".join(sorted(made)))
    for folder in made:
        Path(folder).mkdir(parents=True, exist_ok=True)


def _key(path: Path) -> str:
    if not path.exists():
        processes.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ccbed-lab", "-f", str(path)])
    return path.with_name(path.name + ".pub").read_text().strip()


def _host(lab: Lab, host: Host) -> str:
    """Writes what the host finds on its /run; its line of known_hosts."""
    given = lab.given(host.name)
    given.mkdir(parents=True, exist_ok=True)
    for folder in layout.OWN:
        lab.own(host.name, folder).mkdir(parents=True, exist_ok=True)
        if folder in layout.COPIED:
            shutil.rmtree(lab.own(host.name, folder))
            shutil.copytree(folder, lab.own(host.name, folder), symlinks=True)
            shutil.rmtree(lab.own(host.name, folder) / "docker", ignore_errors=True)
        mode = 0o1777 if folder.endswith("tmp") else 0o700 if folder == "/root" else 0o755
        lab.own(host.name, folder).chmod(mode)
    public = _key(given / "host_key")
    texts = {
        "authorized_keys": _key(lab.key) + "\n",
        "sshd_config": layout.sshd_config(host),
        "hosts": layout.hosts_file(lab),
        "hostname": host.name + "\n",
        "resolv.conf": "# no name server in the lab: all names are in /etc/hosts\n",
        "machine-id": layout.machine_id(lab, host),
        "cgroup": f"/{lab.cgroup}/{host.name}\n",
        "service": (_FOLDER / "service.sh").read_text(),
    }
    for name, text in texts.items():
        (given / name).write_text(text)
    (given / "service").chmod(0o755)
    (lab.home(host.name) / "boot.json").write_text(layout.boot(lab, host, machine_id=Path("/etc/machine-id").exists()))
    kind, key = public.split()[:2]
    return f"{host.address},{host.name} {kind} {key}\n"


def down(lab: Lab, *, purge: bool = False) -> None:
    """Everything of this root goes, also what an interrupted ``up`` left; the engines' data stays unless ``purge``."""
    with contextlib.suppress(RuntimeError):
        processes.run(["ip", "link", "del", lab.uplink])
    inits = [pid for what, pid in processes.first(lab).items() if what != layout.SWITCH]
    processes.end(lab, inits)
    processes.end(lab, [pid for pid, _ in processes.marked(lab)])
    _leave_cgroups(lab)
    if (lab.root / _MARKER).exists():
        _leave_points(lab)
        _clean(lab, purge=purge)
    elif lab.root.is_dir() and not any(lab.root.iterdir()):
        lab.root.rmdir()


def _leave_points(lab: Lab) -> None:
    noted = lab.root / "points"
    for pid in noted.read_text().split() if noted.exists() else ():
        with contextlib.suppress(OSError):
            Path(pid).rmdir()
    noted.unlink(missing_ok=True)


def _clean(lab: Lab, *, purge: bool) -> None:
    """With the engines' data stay the keys, so that known hosts stay known."""
    if purge:
        shutil.rmtree(lab.root)
        return
    keep = layout.ENGINE_DATA.strip("/").replace("/", "-")
    for disk in lab.root.glob("hosts/*/disk/*"):
        if disk.name != keep:
            shutil.rmtree(disk)
    for name in ("shared", "bin"):
        shutil.rmtree(lab.root / name, ignore_errors=True)
    for file in [lab.root / "lab.json", lab.root / "inventory.yml", *lab.root.glob("image-*.tar")]:
        file.unlink(missing_ok=True)


def _leave_cgroups(lab: Lab) -> None:
    """Innermost first; the kernel may need a moment for those whose last process has just died."""
    end = time.monotonic() + 5.0
    while tops := [top for top in _cgroups(lab) if top.is_dir()]:
        for top in tops:
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        if time.monotonic() > end:
            raise TimeoutError(f"control group {tops[0]} cannot be removed: something still runs in it")
        time.sleep(0.01)


def _cgroups(lab: Lab) -> Iterator[Path]:
    base = Path("/sys/fs/cgroup")
    yield base / lab.cgroup
    yield from base.glob(f"*/{lab.cgroup}")
