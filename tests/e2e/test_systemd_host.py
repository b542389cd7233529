"""A host with systemd behind SSH: a reboot starts the keeper again, and no node of before counts as alive; down leaves no unit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from orchestrator.model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS

from ..lab import own_engine, systemd_host
from .conftest import ROOT, ccbed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(systemd_host.lacking()), reason="; ".join(systemd_host.lacking())),
]
REBOOTED = "its host was rebooted"
WAIT_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Where a user sits: a state directory, and the inventory of a bed on the host, as one of its users."""

    host: systemd_host.SystemdHost
    folder: Path
    image: str
    user: str = "root"

    @property
    def state(self) -> Path:
        """Of ccbed where XDG_STATE_HOME is the folder."""
        return self.folder / "ccbed"

    @property
    def hostdir(self) -> str:
        return "/var/lib/ccbed/units" if self.user == "root" else f"/home/{self.user}/bed"

    @property
    def inventory(self) -> Path:
        file = self.folder / "units.yml"
        variables = {
            "ansible_host": systemd_host.ADDRESS,
            "ansible_user": self.user,
            "ansible_ssh_private_key_file": str(self.host.key),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.host.known_hosts}",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ccbed_known_hosts": str(self.host.known_hosts),
            "ccbed_bed": "units",
            "ccbed_provider": "docker",
            "ccbed_image": self.image,
            "ccbed_nodes": 2,
            "ccbed_address": "127.0.0.1",
            "ccbed_interface": "lo",
            "ccbed_workdir": self.hostdir,
            "ccbed_start_timeout": "10m",
        }
        file.write_text(yaml.safe_dump({"all": {"hosts": {"h1": None}, "vars": variables}}))
        return file

    def ccbed(self, *args: str | Path, code: int = EXIT_PASS) -> str:
        result, text = ccbed(self.state, *map(str, args))
        assert result == code, text
        return text

    def status(self) -> dict[str, object]:
        document = json.loads(self.ccbed("status", "units", "--json"))
        assert isinstance(document[0], dict)
        return document[0]

    def keeper_pid(self) -> int:
        return int(str(self.status()["keeper_pid"]))

    def nodes(self) -> list[tuple[str, str, int]]:
        nodes = self.status()["nodes"]
        assert isinstance(nodes, list)
        return [(node["name"], node["state"], node["pid"]) for node in nodes]

    def systemctl(self, *words: str) -> tuple[str, ...]:
        """The command line of systemctl for the units of this user."""
        if self.user == "root":
            return ("systemctl", *words)
        runtime = f"XDG_RUNTIME_DIR=/run/user/{systemd_host.USER_ID}"
        return ("runuser", "-u", self.user, "--", "env", runtime, "systemctl", "--user", *words)

    def units(self) -> list[str]:
        """The files of keepers' units on the host, of any user, and the links that enable them."""
        # Files that vanish meanwhile make find fail.
        search = "find /etc/systemd/system /home /root -name 'ccbed-keeper-*' 2>/dev/null || true"
        return self.host.inside("sh", "-c", search).split()

    def unit(self) -> str:
        files = [path for path in self.units() if "wants" not in path]
        assert len(files) == 1, files
        return Path(files[0]).name

    def keepers(self) -> list[str]:
        listed = self.host.inside("ps", "-eo", "args").splitlines()
        return [line for line in listed if "agent-" in line and " keeper " in line]

    def assert_nothing_left(self) -> None:
        until(lambda: (self.units(), self.keepers()) == ([], []), "units or host agents are left")
        assert self.host.inside("docker", "ps", "--all", "--quiet") == ""
        loaded = self.host.inside(*self.systemctl("list-units", "--all", "--no-legend", "--plain", "ccbed-*"))
        # systemd forgets the name of a removed unit when it gets to it.
        assert [line for line in loaded.splitlines() if line.split()[1:3] != ["not-found", "inactive"]] == []


@pytest.fixture(scope="module")
def host(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[systemd_host.SystemdHost]:
    data = own_engine.ENGINE_DATA / "systemd-host"  # on a disk on which an engine can work, also in CI
    data.mkdir(parents=True, exist_ok=True)
    with systemd_host.running(tmp_path_factory.mktemp("systemd"), data) as host:
        host.load(image)
        yield host


@pytest.fixture
def desk(host: systemd_host.SystemdHost, image: str, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(host=host, folder=tmp_path, image=image)
    yield desk
    desk.ccbed("down", desk.inventory, "--force")


def until(holds: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, otherwise
        time.sleep(0.1)


def test_a_reboot_starts_the_keeper_but_no_node_counts_as_alive_and_up_starts_them(desk: Desk) -> None:
    assert "h1: systemd starts the host agent again (system unit)" in desk.ccbed("up", desk.inventory)
    acts = [json.loads(line) for line in (desk.state / "audit.jsonl").read_text().splitlines()]
    assert acts[-1]["act"] == "up: create n0 n1, system unit of the host agent"
    unit, before = desk.unit(), desk.keeper_pid()
    boot = desk.host.inside("cat", "/proc/sys/kernel/random/boot_id")
    desk.host.reboot()
    assert desk.host.inside("cat", "/proc/sys/kernel/random/boot_id") != boot
    until(lambda: desk.host.holds(*desk.systemctl("is-active", unit)), "the unit does not start after the reboot")
    assert desk.keepers()
    status = desk.ccbed("status", "units")
    assert status.count(f"dead ({REBOOTED})") == 2, status
    assert "differs from the last `up`: ccbed up" in status
    assert desk.keeper_pid() not in (0, before)
    refused = desk.ccbed("run", "dp-ring", "--bed", "units", "--nodes", "2", code=EXIT_INFRASTRUCTURE)
    assert f"node n0 of bed units is dead ({REBOOTED}), not ready" in refused
    assert "ccbed up" in refused
    desk.ccbed("up", desk.inventory)
    assert "nothing to change, 2 of 2 ready" in desk.ccbed("up", desk.inventory)
    runs = str(desk.folder / "runs")
    desk.ccbed("run", "dp-ring", "--bed", "units", "--nodes", "2", "--runs-dir", runs, "--recovery", "none")
    assert "none is left" in desk.ccbed("down", "units")
    desk.assert_nothing_left()


def test_the_nodes_outlive_a_restart_and_a_crash_of_their_keeper(desk: Desk) -> None:
    desk.ccbed("up", desk.inventory)
    unit, nodes = desk.unit(), desk.nodes()
    assert [state for _, state, _ in nodes] == ["warm", "warm"]
    pids = [desk.keeper_pid()]
    desk.host.inside(*desk.systemctl("restart", unit))
    until(lambda: desk.keeper_pid() not in (0, *pids), "systemd does not restart the host agent")
    pids.append(desk.keeper_pid())
    desk.host.inside("kill", "-KILL", str(pids[-1]))
    until(lambda: desk.keeper_pid() not in (0, *pids), "systemd does not start the host agent after its crash")
    assert desk.nodes() == nodes
    assert "nothing to change" in desk.ccbed("up", desk.inventory)


def test_every_user_may_read_the_unit_and_nobody_else_the_options_of_the_keeper(desk: Desk) -> None:
    desk.ccbed("up", desk.inventory)
    path = f"/etc/systemd/system/{desk.unit()}"
    owner = (desk.state / "owner").read_text().strip()
    text, options = desk.host.inside("cat", path), f"{desk.hostdir}/keeper/options"
    assert owner and owner not in text
    assert owner in desk.host.inside("cat", options)
    assert owner not in desk.host.inside("ps", "-eo", "args")
    assert desk.host.inside("stat", "-c", "%a", path, options).split() == ["644", "600"]
    verified = desk.host.inside("systemd-analyze", "verify", path)
    assert verified.strip() == ""


def test_down_removes_the_unit_of_a_limited_down_and_of_an_up_that_was_killed(desk: Desk) -> None:
    desk.ccbed("up", desk.inventory)
    desk.ccbed("down", "units", "--limit", "h1")
    desk.assert_nothing_left()
    argv = [sys.executable, "-m", "orchestrator.cli", "up", str(desk.inventory)]
    environment = {**os.environ, "XDG_STATE_HOME": str(desk.folder), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until(lambda: bool(desk.units()) or process.poll() is not None, "up installs no unit")
    assert process.poll() is None, process.communicate()[0]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    desk.ccbed("down", "units", "--force")
    desk.assert_nothing_left()


def test_reset_removes_the_unit_and_what_it_runs(desk: Desk) -> None:
    desk.ccbed("up", desk.inventory)
    (desk.state / "beds").rename(desk.folder / "lost")  # this machine has lost its record
    desk.ccbed("down", desk.inventory, "--reset", "--force")
    desk.assert_nothing_left()


def test_a_user_without_rights_gets_a_unit_of_its_own_where_it_lingers(
    host: systemd_host.SystemdHost, image: str, tmp_path: Path
) -> None:
    desk = Desk(host=host, folder=tmp_path, image=image, user=systemd_host.USER)
    fix = f"sudo loginctl enable-linger {systemd_host.USER}"
    assert fix in desk.ccbed("doctor", desk.inventory)
    up = desk.ccbed("up", desk.inventory)
    assert "h1: `ccbed up` starts the host agent again: ops may not become root and does not linger" in up
    # A program that the keeper starts has the keeper's command line for a moment.
    until(lambda: (desk.units(), len(desk.keepers())) == ([], 1), "there is not one host agent without a unit")
    desk.ccbed("down", "units")
    host.inside("loginctl", "enable-linger", systemd_host.USER)
    try:
        until(lambda: host.holds(*desk.systemctl("show-environment")), "the user's systemd does not start")
        assert "host agent unit of user ops" in desk.ccbed("doctor", desk.inventory)
        assert "h1: systemd starts the host agent again (user unit)" in desk.ccbed("up", desk.inventory)
        unit = desk.unit()
        host.reboot()
        until(lambda: host.holds(*desk.systemctl("is-active", unit)), "the unit does not start after the reboot")
        # Nothing orders the end of a user's keeper before that of the engine: it may still report how the nodes were ended.
        assert desk.ccbed("status", "units").count(f"{REBOOTED})") == 2
        desk.ccbed("up", desk.inventory)
        assert [state for _, state, _ in desk.nodes()] == ["warm", "warm"]
    finally:
        desk.ccbed("down", desk.inventory, "--force")
        host.inside("loginctl", "disable-linger", systemd_host.USER)
    until(lambda: (desk.units(), desk.keepers()) == ([], []), "a unit or a host agent is left")
