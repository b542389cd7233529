"""Podman as a user of its own, who is in no file of this machine: passwd and subuid are those of a mount namespace."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.node.oslayer import processes
from orchestrator.node.oslayer.processes import Process

from .. import undo
from ..lab import rising
from .conftest import ROOT

#: Images loaded there are there again the next time. Not in /var/lib: rootless podman 4 covers that in its network namespace
#: where there is no /var/lib/cni, and its own files would be covered with it.
DATA = Path(os.environ.get("CCBED_PODMAN_DATA", "/var/cache/ccbed-podman"))
UID = 4242
_SUB = (200000, 65536)
_UIDS = {UID, *range(_SUB[0], sum(_SUB))}
_PROGRAMS = ("podman", "newuidmap", "slirp4netns", "catatonit", "unshare", "setpriv")
_START_S = 180.0
#: $1: the folder of passwd and the like; then directories that the user must reach, `--`, and the command. A directory that
#: only root can enter is covered by an empty one, in which only the part that the user needs is mounted again.
_ENTER = """
etc=$1; shift
for file in passwd group subuid subgid; do mount --bind "$etc/$file" "/etc/$file"; done
mount -t tmpfs -o mode=755 tmpfs /dev/net
mknod -m 666 /dev/net/tun c 10 200
while [ "$1" != -- ]; do
    closed=$1 needed=$2; shift 2
    mkdir -p "$etc/aside"; mount --bind "$needed" "$etc/aside"
    mount -t tmpfs -o mode=755 tmpfs "$closed"
    mkdir -p "$needed"; mount --move "$etc/aside" "$needed"
done
shift
cd "$HOME"
exec setpriv --reuid UID --regid UID --clear-groups --pdeathsig TERM "$@"
""".replace("UID", str(UID))


def lacking() -> str:
    """Why no podman can be started for another user; empty if it can."""
    if os.geteuid() != 0:
        return "only root can start podman as a user of its own"
    with contextlib.suppress(KeyError):
        return f"user id {UID} is that of {pwd.getpwuid(UID).pw_name} here, whose processes tests would end"
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    return f"no {', '.join(missing)}; next: .ci/setup engine (as root)" if missing else ""


@dataclass(frozen=True, kw_only=True)
class Podman:
    """``folder``: of this service alone; its user's home is in it."""

    folder: Path

    @property
    def socket(self) -> Path:
        return self.run / "podman.sock"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def ccbed(self, *args: str, **env: str) -> tuple[int, str]:
        """A command line of ccbed as the user of podman: exit code, and everything that it printed."""
        variables = {"DOCKER_HOST": f"unix://{self.socket}", "PYTHONPATH": str(ROOT), "COLUMNS": "200", **env}
        argv = [
            "env",
            *(f"{name}={value}" for name, value in variables.items()),
            sys.executable,
            "-m",
            "orchestrator.cli",
        ]
        done = subprocess.run(
            self.argv([*argv, *args]), env=self.env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def argv(self, command: Sequence[str]) -> list[str]:
        closed = [part for pair in _closed((Path(sys.base_prefix), Path(sys.prefix), ROOT)) for part in pair]
        enter = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _ENTER, "enter"]
        return [*enter, str(self.folder / "etc"), *closed, "--", *command]

    def env(self) -> dict[str, str]:
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.home), "USER": "ccbed-test",
            "XDG_RUNTIME_DIR": str(self.run), "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8",
        }  # fmt: skip


def _closed(needed: Sequence[Path]) -> list[tuple[str, str]]:
    """(directory that other users cannot enter, the needed directory in it), as far as such a one is in the way."""
    pairs: dict[str, str] = {}
    for path in needed:
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & 0o001:
                pairs.setdefault(str(parent), str(path))
                break
    return list(pairs.items())


@contextlib.contextmanager
def running(data: Path = DATA) -> Iterator[tuple[Podman, Any]]:
    """A service and a docker SDK client of it; what was started is stopped by its pid.

    One at a time, also of several checkouts: they share user, files and names, and each would end what the other has made.
    """
    with rising.locked(data):
        yield from _running(Podman(folder=data))


def _running(podman: Podman) -> Iterator[tuple[Podman, Any]]:
    # Of tests that were aborted: a `ccbed down` of theirs would remove the network of this bed.
    _await_end(lambda process: True, {UID})
    _make(podman)
    with undo.by_command(sys.executable, "-m", __name__):
        yield from _served(podman)


def _served(podman: Podman) -> Iterator[tuple[Podman, Any]]:
    import docker

    log = podman.folder / "service.log"
    argv = podman.argv(["podman", "system", "service", "--time=0", f"unix://{podman.socket}"])
    with log.open("wb") as file:
        service = subprocess.Popen(
            argv, env=podman.env(), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    client = docker.DockerClient(base_url=f"unix://{podman.socket}", version="1.41", timeout=900)
    try:
        _await(service, client, log)
        for leftover in client.containers.list(all=True):
            leftover.remove(force=True, v=True)
        for network in client.networks.list():
            if network.name.startswith("ccbed"):
                network.remove()
        yield podman, client
    finally:
        client.close()
        _stop(service)


def _make(podman: Podman) -> None:
    for path in (podman.folder / "etc", podman.home / ".local/state", podman.run):  # of tests that were aborted
        shutil.rmtree(path, ignore_errors=True)
    for path in (podman.folder, podman.folder / "etc", podman.home, podman.run):
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    podman.run.chmod(0o700)
    etc = podman.folder / "etc"
    user = f"ccbed-test:x:{UID}:{UID}::{podman.home}:/bin/sh\n"
    (etc / "passwd").write_text(Path("/etc/passwd").read_text() + user)
    (etc / "group").write_text(Path("/etc/group").read_text() + f"ccbed-test:x:{UID}:\n")
    for name in ("subuid", "subgid"):
        (etc / name).write_text(f"ccbed-test:{_SUB[0]}:{_SUB[1]}\n")
    for name in ("subuid", "subgid"):
        Path("/etc", name).touch()
    config = podman.home / ".config" / "containers"
    config.mkdir(parents=True, exist_ok=True)
    (config / "storage.conf").write_text('[storage]\ndriver = "overlay"\n')
    # crun starts no container on a host with cgroups of both versions; runc does.
    runtime = '[engine]\nruntime = "runc"\n' if _has_both_cgroups() else ""
    backend = '[network]\nnetwork_backend = "netavark"\n' if Path("/usr/lib/podman/netavark").exists() else ""
    (config / "containers.conf").write_text(runtime + backend)
    for path in (podman.home, podman.home / ".config", config, *config.iterdir(), podman.run):
        os.chown(path, UID, UID)


def _has_both_cgroups() -> bool:
    kinds = {line.split(" - ")[1].split()[0] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return {"cgroup", "cgroup2"} <= kinds


def _await(service: subprocess.Popen[bytes], client: Any, log: Path) -> None:
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    end = time.monotonic() + _START_S
    while True:
        try:
            client.ping()
            return
        except (DockerException, RequestException) as error:
            if service.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"podman does not start: {log.read_text()[-500:]}") from error
        time.sleep(0.1)


def _stop(service: subprocess.Popen[bytes]) -> None:
    """The service is a group of two processes, one of them in a user namespace that a third keeps. All of them end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(service.pid, signal.SIGTERM)
    service.wait(_START_S)
    _await_end(lambda process: _name(process.pid) in ("catatonit", "slirp4netns", "aardvark-dns"))


def _await_end(kills: Callable[[Process], bool], uids: Collection[int] = _UIDS) -> None:
    """Wait until these users have no process. Those of which ``kills`` holds are killed."""
    end = time.monotonic() + _START_S
    while processes_left := living(uids):
        if time.monotonic() > end:
            raise RuntimeError(f"processes of podman do not end: {processes_left}")
        for process in filter(kills, processes_left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.05)


def living(uids: Collection[int] = _UIDS) -> list[Process]:
    """The processes of the user of podman, and of the other users of its namespace."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal() and _owner(entry) in uids)
    known = (processes.find(pid) for pid in pids)
    return [process for process in known if process is not None and process.state not in processes.EXITED]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _owner(entry: Path) -> int:
    try:
        return entry.stat().st_uid
    except OSError:
        return -1


if __name__ == "__main__":
    with rising.locked(DATA):
        _await_end(lambda process: True)
