"""A private Slurm on this machine: munge, a controller and four nodes, in a directory and on ports of its own.

    python -m tests.lab.slurm COMMAND …        run COMMAND with one (SLURM_CONF points to it), e.g. bash

All nodes are this machine (127.0.0.1), each with its own slurmd; one may have a network namespace of its own, so that its
power can be cut. The daemons run as root, so they run the jobs of every user; nothing is written outside of the directory,
and all daemons end with the process that started them, but for the slurmd of a node whose power was cut and is on again.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.oslayer import processes

from .. import undo

PROGRAMS = ("munged", "slurmctld", "slurmd", "squeue", "srun", "salloc", "sbatch", "scancel", "scontrol", "sinfo")
NODES = ("n1", "n2", "n3", "n4")
#: Its processes have it in their environment, with the node's name; so do those that Slurm starts for a step.
MARK = "CCBED_LAB_SLURM"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Limits of hangs: of a cluster that gets into a state, and of one client of Slurm.
_START_S, _CLIENT_S = 300.0, 120.0
#: How long a daemon may take to save its state, which it syncs to the disk.
_STOP_S = {"controller": 180.0}
_CONFIG = """\
ClusterName=ccbed
SlurmctldHost={hostname}({address})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
GresTypes=gpu
MpiDefault=none
ReturnToService=2
MailProg=/bin/true
KillWait=5
MinJobAge=7200
MessageTimeout=60
Epilog={folder}/epilog
{settings}
NodeName=DEFAULT CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=1000 Gres=gpu:2
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 PriorityTier=10 State=UP
PartitionName=short Nodes=ALL MaxTime=5 PriorityTier=10 State=UP
PartitionName=scavenge Nodes=ALL MaxTime=60 PriorityTier=1 State=UP
PartitionName=grace Nodes=ALL MaxTime=60 PriorityTier=1 GraceTime=10 State=UP
PartitionName=requeue Nodes=ALL MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=closed Nodes=ALL MaxTime=60 AllowGroups=nogroup State=UP
PartitionName=paid Nodes=ALL MaxTime=60 AllowAccounts=paying State=UP
PartitionName=stopped Nodes=ALL MaxTime=60 State=DOWN
"""
#: A job completes as long as there is the file ``completing``.
_EPILOG = """\
#!/bin/sh
while [ -e {folder}/completing ]; do sleep 0.1; done
"""


class LackingError(RuntimeError):
    """No Slurm can be started on this machine."""


@dataclass(kw_only=True)
class Slurm:
    """``environment``: with it, Slurm's clients use this Slurm. Methods return when the cluster is in the new state."""

    folder: Path
    port: int
    address: str = "127.0.0.1"
    environment: dict[str, str] = field(default_factory=dict)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    #: Node -> the command that runs a program in its network namespace.
    namespaces: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def run(self, *argv: str, user: str = "", timeout_s: float = _CLIENT_S) -> str:
        """Output of a client of Slurm, as another user if so named. Raises RuntimeError with its errors."""
        done = self.attempt(*argv, user=user, timeout_s=timeout_s)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def attempt(self, *argv: str, user: str = "", timeout_s: float = _CLIENT_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*as_user(user), *argv],
            capture_output=True, text=True, env=self.environment, timeout=timeout_s, check=False, cwd="/",
        )  # fmt: skip

    def node_states(self) -> dict[str, str]:
        """Node -> state as sinfo has it, in lower case; ``*`` at its end: the node does not respond."""
        lines = self.run("sinfo", "--noheader", "--Node", "--Format=NodeList:20,StateLong:40").splitlines()
        return dict(line.split() for line in lines)

    def jobs(self) -> dict[int, str]:
        """Job -> state of all that are in the queue."""
        lines = self.run("squeue", "--noheader", "--Format=JobID:20,State:20").splitlines()
        return {int(job): state for job, state in (line.split() for line in lines)}

    def start_munge(self) -> None:
        munge = self.folder / "munge"
        names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={munge / name}" for option, name in names.items()]
        self._start("munge", "munged", "--foreground", "--force", *options)
        self._wait(lambda: _accepts(munge / "socket"), "munge")

    def start_controller(self) -> None:
        self._start("controller", "slurmctld", "-D")
        self._wait(self._controller_responds, "controller")

    def start_node(self, name: str) -> None:
        self._start(name, *self.namespaces.get(name, ()), "slurmd", "-D", "-N", name)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a daemon: ``munge``, ``controller``, or the slurmd of a node; the steps of a node continue."""
        daemon = self.daemons.pop(name)
        daemon.send_signal(number)
        try:
            daemon.wait(_STOP_S.get(name, 20.0))
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def restart_controller(self) -> None:
        """It saves its state and reads it again. A controller that is killed loses the changes of the last seconds."""
        self.stop("controller")
        self.start_controller()

    def power_off(self, name: str) -> None:
        """SIGKILL for the slurmd of a node and for everything that it started there. Slurm notices after SlurmdTimeout.

        All are stopped first: one that saw the end of another would report it.
        """
        tasks = self.tasks_of(name)
        stopped = [*self._own(name), *tasks]
        processes.send_signal(stopped, signal.SIGSTOP)
        if name in self.daemons:
            self.stop(name, signal.SIGKILL)
        processes.kill(stopped)
        self._kill(name)

    def tasks_of(self, name: str) -> list[processes.Process]:
        """What the daemons of a node started: descendants of slurmstepd, also those without Slurm's variables."""
        mark = f"{MARK}={self.folder}:{name}".encode()
        daemons = [process for process in processes.scan() if mark in _variables(process.pid)]
        below = {process.pid: process for daemon in daemons for process in processes.descendants(daemon.pid)}
        return [process for process in below.values() if mark not in _variables(process.pid)]

    def set_node(self, name: str, state: str, reason: str = "a test") -> None:
        """``drain``, ``down``, ``resume``; a node that is set down loses its jobs as if it had failed."""
        self.run("scontrol", "update", f"NodeName={name}", f"State={state}", f"Reason={reason}")

    def wait_until_idle(self) -> None:
        """Cancel all jobs, put back the nodes that were set down, drained or killed, and wait until all are idle.

        A node without slurmd is set down first: a job that should end there waits for it, longer than a test does.
        """
        for name in NODES:
            if name not in self.daemons:
                self.set_node(name, "down")
                self.start_node(name)
        self.cancel_all()
        self._wait(self._all_idle, "nodes")

    def cancel(self, job: int) -> None:
        """Idempotent."""
        self.attempt("scancel", "--quiet", str(job))

    @contextlib.contextmanager
    def jobs_completing(self) -> Iterator[None]:
        """Jobs that end in the body complete until its end."""
        file = self.folder / "completing"
        file.touch()
        try:
            yield
        finally:
            file.unlink()

    def cancel_all(self) -> None:
        for job in self.jobs():
            self.attempt("scancel", str(job))
        self._wait(lambda: not self.jobs(), "end of jobs")

    def close(self) -> None:
        """End what runs in jobs, then all daemons, by pid and without Slurm, which may wait a minute for an answer."""
        for name in NODES:
            self.power_off(name)
        for name in list(self.daemons):
            self.stop(name, signal.SIGKILL)
        self._kill()

    def _start(self, name: str, *argv: str) -> None:
        """It ends with this process, also when that is killed."""
        environment = {**self.environment, **undo.variables(), MARK: f"{self.folder}:{name}"}
        with (self.folder / f"{name}.out").open("ab") as file:
            self.daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *argv],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, cwd="/", start_new_session=True,
            )  # fmt: skip

    def _wait(self, is_reached: Callable[[], bool], what: str, limit_s: float = _START_S) -> None:
        end = time.monotonic() + limit_s
        while not is_reached():
            ended = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            ended = [
                name for name in ended if name not in self.namespaces
            ]  # its power was cut, and another slurmd runs
            if ended or time.monotonic() > end:
                logs = [self.folder / f"{name}.out" for name in ended or ("controller",)]
                raise RuntimeError(f"Slurm: {what}: not within {limit_s:.0f} s: {' / '.join(map(_tail, logs))}")
            time.sleep(0.05)

    def _controller_responds(self) -> bool:
        """A client that finds the port closed tries again for 9 s, so the port is tried first."""
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 1.0):
            return not self.attempt("sinfo").returncode
        return False

    def _all_idle(self) -> bool:
        states = self.node_states()
        for name, state in states.items():
            if state.startswith(("drain", "down")):
                self.attempt("scontrol", "update", f"NodeName={name}", "State=resume")
        return set(states) == set(NODES) and set(states.values()) == {"idle"}

    def _kill(self, name: str = "") -> None:
        """SIGKILL for processes of this Slurm, of one node if so named, until none is left. See ``power_off`` for SIGSTOP."""
        end = time.monotonic() + _START_S
        while left := self._own(name):
            if time.monotonic() > end:
                raise RuntimeError(f"Slurm: not ended within {_START_S:.0f} s: {left}")
            for number in (signal.SIGSTOP, signal.SIGKILL):
                processes.send_signal(left, number)
            time.sleep(0.01)

    def _own(self, name: str) -> list[processes.Process]:
        """The processes of this Slurm, of one node if so named: daemons by their mark, steps by their environment."""
        names = (name,) if name else NODES
        marks = {f"{MARK}={self.folder}:{node}".encode() for node in names}
        steps = {f"SLURMD_NODENAME={node}".encode() for node in names}
        config = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()

        def is_own(pid: int) -> bool:
            variables = _variables(pid)
            return bool(variables & marks or (variables & steps and config in variables))

        return [process for process in processes.scan() if is_own(process.pid)]


def _variables(pid: int) -> set[bytes]:
    with contextlib.suppress(OSError):
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    return set()


def _accepts(socket_file: Path) -> bool:
    """Whether a server listens at the file: it is there before, and stays if the server is killed."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(socket_file))
        return True
    return False


def as_user(user: str) -> list[str]:
    if not user:
        return []
    entry = pwd.getpwnam(user)
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups", "--"]


def lack() -> str:
    """Why no Slurm can be started on this machine; empty where it can."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=_PATH) is None]
    if missing:
        return f"no {', '.join(missing)} on this machine; next: .ci/setup engine (as root)"
    return "" if os.geteuid() == 0 else "only root can start slurmd for the jobs of several users"


@contextlib.contextmanager
def running(settings: str = "", isolated: str = "") -> Iterator[Slurm]:
    """A Slurm with these further lines in slurm.conf, ended by pid at the end. Raises LackingError.

    ``isolated``: the node with a network namespace of its own; ``power_command`` cuts its power.
    """
    if reason := lack():
        raise LackingError(reason)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(undo.temporary_directory("ccbed-slurm-"))
        address, addresses = "127.0.0.1", dict.fromkeys(NODES, "127.0.0.1")
        namespaces: dict[str, tuple[str, ...]] = {}
        if isolated:
            holder, address, inside = stack.enter_context(_namespace(folder))
            addresses = {node: inside if node == isolated else address for node in NODES}
            namespaces = {isolated: ("nsenter", f"--target={holder}", "--net", "--mount")}
            (folder / f"{isolated}.namespace").write_text(f"{holder} {address}")
        environment = {"PATH": _PATH, "LC_ALL": "C", "SLURM_CONF": f"{folder}/slurm.conf"}
        port = _write(folder, settings, address, addresses)
        slurm = Slurm(folder=folder, port=port, address=address, environment=environment, namespaces=namespaces)
        try:
            slurm.start_munge()
            slurm.start_controller()
            for node in NODES:
                slurm.start_node(node)
            slurm.wait_until_idle()
            yield slurm
        finally:
            slurm.close()


def power_command(slurm: Slurm, state: str) -> list[str]:
    """A program that an administrator might give: ``{node}`` stands for the node's name in Slurm."""
    return [sys.executable, str(Path(__file__).with_name("slurm_power.py")), state, str(slurm.folder), "{node}"]


@contextlib.contextmanager
def _namespace(folder: Path) -> Iterator[tuple[int, str, str]]:
    """A network namespace: the process that holds it, this machine's address for it, and its own. It ends with this process.

    The machine's name server may not be reached from there: names are looked up at a closed port, which refuses at once.
    """
    names = folder / "resolv.conf"
    names.write_text("nameserver 127.0.0.1\n")
    script = f"mount --bind {names} /etc/resolv.conf && exec sleep infinity"
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "sh", "-c", script]
    ) as holder:
        try:
            own = Path("/proc/self/ns/net").readlink()
            while Path(f"/proc/{holder.pid}/ns/net").readlink() == own:
                time.sleep(0.005)
            number = holder.pid
            outside, inside = (f"198.19.{number // 64 % 256}.{number % 64 * 4 + last}" for last in (1, 2))
            enter = ("nsenter", f"--net=/proc/{number}/ns/net")
            for argv in (
                ("ip", "link", "add", f"slurm{number}", "type", "veth", "peer", "name", "power", "netns", f"{number}"),
                ("ip", "address", "add", f"{outside}/30", "dev", f"slurm{number}"),
                ("ip", "link", "set", f"slurm{number}", "up"),
                (*enter, "ip", "address", "add", f"{inside}/30", "dev", "power"),
                (*enter, "ip", "link", "set", "lo", "up"),
                (*enter, "ip", "link", "set", "power", "up"),
                (*enter, "ip", "route", "add", "default", "via", outside),
            ):
                subprocess.run(argv, check=True)
            yield number, outside, inside
        finally:
            holder.kill()


def _write(folder: Path, settings: str, address: str, addresses: dict[str, str]) -> int:
    """The configuration, which every user may read, and the port of the controller."""
    folder.chmod(0o755)
    (folder / "munge").mkdir(mode=0o755)
    key = folder / "munge/key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    hostname = socket.gethostname().partition(".")[0]
    port, *ports = _free_ports(1 + len(NODES))
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={hostname} NodeAddr={addresses[node]} Port={node_port} State=UNKNOWN"
        for node, node_port in zip(NODES, ports, strict=True)
    )
    text = _CONFIG.format(
        folder=folder, hostname=hostname, address=address, port=port, nodes=nodes, settings=settings
    )  # fmt: skip
    (folder / "slurm.conf").write_text(text)
    epilog = folder / "epilog"
    epilog.write_text(_EPILOG.format(folder=folder))
    epilog.chmod(0o755)
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
    return port


def _free_ports(count: int) -> list[int]:
    """Below the ports that Linux gives to connections: one of those could be taken before its daemon listens."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(10_000, 30_000), 1000):
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("", port))
            ports.append(port)
        if len(ports) == count:
            break
    return ports


def _tail(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:]) if log.exists() else "no output"


@pytest.fixture(scope="session")
def slurm_daemons() -> Iterator[Slurm]:
    try:
        with running() as slurm:
            yield slurm
    except LackingError as error:
        pytest.skip(str(error))


@pytest.fixture
def slurm(slurm_daemons: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """A private Slurm with four idle nodes; clients of the test use it. Jobs of the test are cancelled at its end."""
    monkeypatch.setenv("SLURM_CONF", slurm_daemons.environment["SLURM_CONF"])
    yield slurm_daemons
    slurm_daemons.wait_until_idle()


def main(command: list[str]) -> int:
    """Its exit code; 3 where no Slurm can be started."""
    if not command or shutil.which(command[0]) is None:
        missing = f"{command[0]}: no such program; " if command else ""
        print(f"{missing}usage: python -m tests.lab.slurm COMMAND …", file=sys.stderr)
        return 3
    try:
        with running() as slurm:
            environment: dict[str, Any] = {**os.environ, "SLURM_CONF": slurm.environment["SLURM_CONF"]}
            return subprocess.run(command, env=environment, check=False).returncode
    except LackingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
