"""The lab itself: hosts that are machines of their own, and nothing of them left when they are down."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .. import undo
from . import layout, processes, rising

TOOL = Path(__file__).with_name("lab.py")
RATE = 200_000_000


class Ran:
    """A small lab, its tool, and its hosts over SSH with host keys checked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lab = layout.Lab(root=root, count=2, rate="200mbit")

    def tool(self, *arguments: str, code: int = 0) -> str:
        argv = [sys.executable, str(TOOL), "--root", str(self.root), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def ssh(self, host: str, command: str, known_hosts: Path | None = None) -> subprocess.CompletedProcess[str]:
        checked = f"UserKnownHostsFile={known_hosts or self.lab.known_hosts}"
        argv = ["ssh", "-F", "none", "-i", str(self.lab.key), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
        argv += ["-o", checked, "-o", "ConnectTimeout=2", f"root@{self.lab.host(host).address}", command]
        return subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)

    def output(self, host: str, command: str) -> str:
        done = self.ssh(host, command)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def status(self, host: str) -> dict[str, str]:
        rows = json.loads(self.tool("status"))["hosts"]
        return next(row for row in rows if row["name"] == host)


@contextlib.contextmanager
def fresh_lab() -> Iterator[Ran]:
    """Not under pytest's own directory: it is removed with the lab, engines' layers and all."""
    lab_run = Ran(Path(tempfile.mkdtemp(prefix="ccbed-lab-")))
    with undo.by_command(sys.executable, TOOL, "--root", lab_run.root, "down", "--purge"):
        try:
            yield lab_run
        finally:
            lab_run.tool("down", "--purge")


def traces(lab: layout.Lab) -> list[str]:
    """Whatever of a lab this machine still has: links, processes, mounts, control groups."""
    links = [
        link["ifname"] for link in json.loads(processes.run(["ip", "-json", "link"])) if lab.uplink in link["ifname"]
    ]
    alive = [f"process {pid} of {what}" for pid, what in processes.marked(lab)]
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(lab.root) in line]
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{lab.cgroup}*")]
    return links + alive + mounts + groups


def spaces(lab: layout.Lab) -> set[Path]:
    return {Path(f"/proc/{pid}/ns/net").readlink() for pid in processes.first(lab).values()}


def living_in(wanted: set[Path]) -> list[str]:
    rates = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "ns/net").readlink() in wanted:
                rates.append(f"{entry.name} {(entry / 'cmdline').read_bytes()!r}")
    return rates


@pytest.fixture(scope="module")
def able() -> None:
    lacking = rising.lack()
    if lacking:
        pytest.skip(f"no lab on this machine: {'; '.join(lacking)}")


@pytest.fixture(scope="module")
def ran(able: None) -> Iterator[Ran]:
    with fresh_lab() as lab_run:
        lab_run.tool("up", "--hosts", "2", "--rate", "200mbit")
        yield lab_run
    assert traces(lab_run.lab) == []
    assert not lab_run.root.exists()


def test_every_host_is_reached_with_its_host_key_checked(ran: Ran) -> None:
    assert [ran.output(host.name, "hostname") for host in ran.lab.hosts] == ["h1", "h2"]


def test_a_host_key_that_is_not_known_is_refused(ran: Ran, tmp_path: Path) -> None:
    done = ran.ssh("h1", "true", known_hosts=tmp_path / "none")
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_every_host_has_an_engine_of_its_own(ran: Ran) -> None:
    engines = [ran.output(host.name, "docker info --format '{{.Name}} {{.ID}}'").split() for host in ran.lab.hosts]
    assert [name for name, _ in engines] == ["h1", "h2"]
    assert engines[0][1] != engines[1][1]


def test_names_resolve_both_ways(ran: Ran) -> None:
    for host in ran.lab.hosts:
        for other in ran.lab.hosts:
            assert ran.output(host.name, f"getent ahostsv4 {other.name} | head -1").split()[0] == other.address
            assert ran.output(host.name, f"getent hosts {other.address}").split()[1] == other.name


def test_the_same_path_is_another_directory_on_each_host_and_one_is_shared(ran: Ran) -> None:
    for folder in ("/var/lib/ccbed", "/tmp", "/root", "/run"):
        ran.output("h1", f"echo h1 >{folder}/whose")
        assert ran.ssh("h2", f"cat {folder}/whose").returncode != 0
    ran.output("h1", f"echo both >{layout.SHARED}/whose")
    assert ran.output("h2", f"cat {layout.SHARED}/whose") == "both"


def test_a_host_sees_its_own_processes_its_own_link_and_no_other_disk(ran: Ran) -> None:
    assert ran.output("h1", "cat /proc/1/comm").startswith("python3")
    assert ran.output("h1", "ls /sys/class/net").split() == ["eth0", "lo"]
    assert ran.output("h1", f"ls {ran.root} 2>/dev/null | wc -l") == "0"


def test_links_have_the_rate_that_was_asked_for(ran: Ran) -> None:
    """A machine that is busy only delays bytes: no measurement is faster than the link, and one is about as fast."""
    rates: list[float] = []
    while not rates or (rates[-1] <= 0.6 * RATE and len(rates) < 10):
        rates.append(_rate(ran))
    assert rates[-1] > 0.6 * RATE and max(rates) < 1.02 * RATE, rates


def _rate(ran: Ran) -> float:
    """From before the first byte is sent until the last one has come, without the 2 MB that buckets let through at once."""
    listen = "import socket,time; s=socket.create_server(('',5001)); c=s.accept()[0]; n=0"
    receive = f"{listen}\nwhile b:=c.recv(1<<20): n+=len(b)\nprint(n, time.monotonic())"
    connect = f"import socket,time; c=socket.create_connection(('{ran.lab.host('h1').address}',5001))"
    send = f"{connect}; print(time.monotonic()); c.sendall(bytes(30_000_000))"
    with subprocess.Popen(
        ["nsenter", "-t", str(processes.first(ran.lab)["h1"]), "--net", sys.executable, "-c", receive],
        stdout=subprocess.PIPE, text=True,
    ) as receiver:  # fmt: skip
        pid = processes.first(ran.lab)["h2"]
        begin = float(_retried([sys.executable, "-c", send], pid))
        count, end = receiver.communicate(timeout=900)[0].split()
    return (int(count) - 2_000_000) * 8 / (float(end) - begin)


def _retried(argv: list[str], pid: int) -> str:
    """Until the other side listens; its output."""
    end = time.monotonic() + 600
    while True:
        try:
            return processes.inside(pid, argv, net_only=True)
        except RuntimeError:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_power_off_ends_everything_at_once_and_power_on_boots_again(ran: Ran) -> None:
    ran.output("h2", "setsid sleep 1000 >/dev/null 2>&1 & echo kept >/var/lib/ccbed/kept; echo lost >/run/lost")
    network = {Path(f"/proc/{processes.first(ran.lab)['h2']}/ns/net").readlink()}
    assert any("sleep" in command for command in living_in(network))
    ran.tool("power", "off", "h2")
    assert living_in(network) == []
    assert ran.status("h2")["power"] == "off"
    assert ran.ssh("h2", "true").returncode == 255
    ran.tool("power", "on", "h2")
    assert ran.output("h2", "cat /var/lib/ccbed/kept; test -e /run/lost || echo fresh").split() == ["kept", "fresh"]
    assert ran.output("h2", "docker info --format '{{.Name}}'") == "h2"


def test_a_port_that_is_down_cuts_the_host_off_and_heals(ran: Ran) -> None:
    ran.tool("port", "down", "h1")
    assert ran.status("h1")["port"] == "down"
    assert ran.ssh("h1", "true").returncode == 255
    ran.tool("port", "up", "h1")
    assert ran.output("h1", "hostname") == "h1"


@pytest.mark.parametrize("service", ["engine", "sshd"])
def test_a_service_stops_and_starts_alone(ran: Ran, service: str) -> None:
    other = "sshd" if service == "engine" else "engine"
    ran.tool(service, "stop", "h1")
    row = ran.status("h1")
    assert (row[service], row[other]) == ("down", "up")
    ran.tool(service, "start", "h1")
    assert ran.output("h1", "docker info --format '{{.Name}}'") == "h1"


def test_up_again_changes_nothing(ran: Ran) -> None:
    before = processes.first(ran.lab)
    ran.tool("up", "--hosts", "2", "--rate", "200mbit")
    assert processes.first(ran.lab) == before


def test_another_lab_of_the_same_root_is_refused(ran: Ran) -> None:
    assert "another lab of this root is up" in ran.tool("up", "--hosts", "3", code=3)


def test_a_host_that_is_not_there_is_named_with_those_that_are(ran: Ran) -> None:
    assert "no host h9 in this lab; it has h1, h2" in ran.tool("power", "off", "h9", code=3)


def test_a_directory_of_somebody_else_is_left_alone(able: None, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert "neither empty nor a lab's" in Ran(tmp_path).tool("up", code=3)
    Ran(tmp_path).tool("down", "--purge")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_down_takes_namespaces_away_and_keeps_the_keys(able: None) -> None:
    with fresh_lab() as lab_run:
        lab_run.tool("up", "--hosts", "2", "--rate", "200mbit")
        wanted = spaces(lab_run.lab)
        assert len(wanted) == 3
        key = lab_run.lab.known_hosts.read_text()
        lab_run.tool("down")
        assert traces(lab_run.lab) == []
        assert living_in(wanted) == []
        lab_run.tool("up", "--hosts", "2", "--rate", "200mbit")
        assert lab_run.lab.known_hosts.read_text() == key
    assert not lab_run.root.exists()


@pytest.mark.parametrize("after_s", [0.1, 0.25, 0.4, 0.6])
def test_down_takes_away_what_a_killed_up_left(able: None, after_s: float) -> None:
    """Also where the lab's own notes are gone."""
    with fresh_lab() as lab_run:
        argv = [sys.executable, str(TOOL), "up", "--hosts", "2", "--root", str(lab_run.root)]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
            time.sleep(after_s)
            up.send_signal(signal.SIGKILL)
        wanted = spaces(lab_run.lab)
        (lab_run.root / "lab.json").unlink(missing_ok=True)
        lab_run.tool("down")
        assert traces(lab_run.lab) == []
        assert living_in(wanted) == []
    shutil.rmtree(lab_run.root, ignore_errors=True)
