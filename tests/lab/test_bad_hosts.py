"""Hosts that cannot be used, as a new user meets them: a line for each, all at once, with the fix; nothing half done, in seconds."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS, EXIT_USAGE

from ..e2e.conftest import ccbed
from . import layout, machines, processes

pytestmark = pytest.mark.lab

HOSTS = ("h1", "h2", "h3")
#: Whatever is wrong is said within this; only a playbook that works on the other hosts may take longer.
SOON_S = 8.0
PLAYED_S = 30.0
KNOWN = "ccbed_known_hosts"


@dataclass(frozen=True, kw_only=True)
class Said:
    code: int
    text: str
    took_s: float

    @property
    def errors(self) -> list[str]:
        return [line.removeprefix("error: ") for line in self.text.splitlines() if line.startswith("error: ")]

    def each(self, words: str, hosts: tuple[str, ...] = HOSTS) -> None:
        """A line for each of these hosts and none besides, in this order, with these words; no defect."""
        assert [line.split(":")[0] for line in self.errors] == [f"host {host}" for host in hosts], self.text
        assert all(words in line for line in self.errors), self.text
        assert "defect" not in self.text


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Where a user sits: a state directory, and inventories of the lab with something wrong in them."""

    folder: Path
    lab: layout.Lab
    image: str

    def elsewhere(self) -> Desk:
        """Another user, who knows nothing of this one."""
        other = self.folder / "elsewhere"
        other.mkdir()
        return Desk(folder=other, lab=self.lab, image=self.image)

    def inventory(self, hosts: Mapping[str, Mapping[str, Any]] | None = None, **variables: Any) -> Path:
        document = yaml.safe_load(layout.inventory(self.lab, self.image))
        document["all"]["vars"] |= {"ccbed_bed": "bad", **variables}
        document["all"]["hosts"] = {name: document["all"]["hosts"][name] | {"ccbed_nodes": 1} for name in HOSTS}
        for name, more in (hosts or {}).items():
            document["all"]["hosts"][name] |= more
        file = self.folder / "inventory.yml"
        file.write_text(yaml.safe_dump(document))
        return file

    def known(self, file: Path) -> dict[str, Any]:
        """Variables that name another file of known hosts."""
        return {KNOWN: str(file), "ansible_ssh_common_args": f"-o UserKnownHostsFile={file}"}

    def ccbed(self, *args: str | Path, within_s: float = SOON_S) -> Said:
        begun = time.monotonic()
        code, text = ccbed(self.folder / "state", *map(str, args))
        took = time.monotonic() - begun
        assert took < within_s, f"{took:.1f} s: {text}"
        return Said(code=code, text=text, took_s=took)

    def up(self, inventory: Path) -> Said:
        said = self.ccbed("up", inventory, within_s=120)
        assert said.code == EXIT_PASS, said.text
        return said

    def inside(self, host: str, *argv: str) -> str:
        return processes.inside(processes.first(self.lab)[host], list(argv), timeout=60)

    def containers(self, host: str) -> list[str]:
        listed = self.inside(host, "docker", "ps", "--all", "--format", "{{.Names}}").split()
        return [name for name in listed if name.startswith("ccbed-bad-")]

    def nothing_there(self, hosts: tuple[str, ...] = HOSTS) -> None:
        """Nothing half done: no container, and no bed that is known here."""
        assert {host: self.containers(host) for host in hosts} == {host: [] for host in hosts}
        assert "no bed is up" in self.ccbed("status").text

    @contextmanager
    def off(self, host: str) -> Iterator[None]:
        assert machines.power_off(self.lab, self.lab.host(host))
        try:
            yield
        finally:
            self.on(host)

    def on(self, host: str) -> None:
        known = processes.first(self.lab)
        if host not in known:
            pid = machines.power_on(self.lab, self.lab.host(host), known[layout.SWITCH])
            machines.start(pid)
            machines.wait(self.lab.host(host), pid)


@pytest.fixture
def desk(lab: layout.Lab, image: str, tmp_path: Path) -> Iterator[Desk]:
    one = Desk(folder=tmp_path, lab=lab, image=image)
    yield one
    for host in HOSTS:
        one.on(host)
    one.ccbed("down", one.inventory(), "--force", within_s=60)


def key(folder: Path) -> Path:
    file = folder / "another_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True, timeout=20)
    return file


def both(desk: Desk, inventory: Path, words: str, hosts: tuple[str, ...] = HOSTS, within_s: float = SOON_S) -> None:
    """`doctor` and `up` say the same of the same hosts."""
    doctor = desk.ccbed("doctor", inventory)
    assert doctor.code == EXIT_INFRASTRUCTURE, doctor.text
    lacking = [line for line in doctor.text.splitlines() if line.startswith("  lacks")]
    assert all(words in line for line in lacking), doctor.text
    assert sorted(" ".join(line.split("lacks  ")[1].split(":")[0] for line in lacking).split()) == list(hosts)
    up = desk.ccbed("up", inventory, within_s=within_s)
    assert up.code == EXIT_INFRASTRUCTURE, up.text
    up.each(words, hosts)
    desk.nothing_there()


# --- not let in -------------------------------------------------------------------------------------------------------


def test_a_key_that_no_host_takes(desk: Desk, tmp_path: Path) -> None:
    inventory = desk.inventory(ansible_ssh_private_key_file=str(key(tmp_path)))
    both(desk, inventory, "add the public key to authorized_keys of root there")


def test_a_key_that_is_not_there(desk: Desk, tmp_path: Path) -> None:
    inventory = desk.inventory(ansible_ssh_private_key_file=str(tmp_path / "none"))
    both(desk, inventory, f"there is no key {tmp_path / 'none'}; set ansible_ssh_private_key_file")


def test_host_keys_that_are_not_known_are_accepted_as_the_message_says(desk: Desk, tmp_path: Path) -> None:
    inventory = desk.inventory(**desk.known(tmp_path / "known"))
    both(desk, inventory, "if it is the right one: ssh-keyscan -p 22 198.18.")
    said = desk.ccbed("doctor", inventory).text
    for line in said.splitlines():
        if "ssh-keyscan" in line:
            command = line.split("if it is the right one: ")[1].split(", or set")[0]
            subprocess.run(command, shell=True, check=True, timeout=20, stderr=subprocess.DEVNULL)
    assert desk.ccbed("doctor", inventory).code == EXIT_PASS


def test_a_host_key_that_has_changed(desk: Desk, tmp_path: Path) -> None:
    known = tmp_path / "known"
    shutil.copy(desk.lab.known_hosts, known)
    other = key(tmp_path).with_suffix(".pub").read_text().split()[1]
    address = desk.lab.host("h2").address
    kept = [line for line in known.read_text().splitlines() if address not in line.split()[0].split(",")]
    known.write_text("\n".join([*kept, f"{address} ssh-ed25519 {other}"]) + "\n")
    both(desk, desk.inventory(**desk.known(known)), f"ssh-keygen -R '{address}' -f {known}", ("h2",), PLAYED_S)


def test_a_user_who_is_not_there(desk: Desk) -> None:
    inventory = desk.inventory({"h3": {"ansible_user": "nobody-here"}})
    both(desk, inventory, "or set ansible_user", ("h3",), PLAYED_S)


# --- not there --------------------------------------------------------------------------------------------------------


def test_a_host_without_power_before_and_after_preparation(desk: Desk) -> None:
    inventory = desk.inventory()
    with desk.off("h2"):
        first = desk.ccbed("up", inventory, within_s=PLAYED_S)
        assert first.code == EXIT_INFRASTRUCTURE
        first.each("see the host's power", ("h2",))
        assert "h1 h3 are ready and kept; to go on: ccbed up" in first.text
        second = desk.ccbed("up", inventory)
        second.each("see the host's power", ("h2",))
        desk.nothing_there(("h1", "h3"))


def test_a_host_without_sshd(desk: Desk) -> None:
    inventory = desk.inventory()
    machines.service(processes.first(desk.lab)["h2"], "sshd", "stop")
    try:
        both(desk, inventory, "no sshd listens on port 22; start it, or set ansible_port", ("h2",), PLAYED_S)
    finally:
        machines.service(processes.first(desk.lab)["h2"], "sshd", "start")


def test_a_bed_of_which_one_host_is_away(desk: Desk) -> None:
    """Every verb says so in seconds; what can be ended is ended; the rest is ended once the host is back."""
    inventory = desk.inventory()
    desk.up(inventory)
    with desk.off("h2"):
        status = desk.ccbed("status")
        assert status.code == EXIT_INFRASTRUCTURE
        assert "n1    node   unreachable" in status.text
        assert status.text.count("see the host's power") == 1
        assert "n0    node   warm" in status.text
        for args in (("up", inventory), ("run", "dp-ring", "--nodes", "3", "--runs-dir", desk.folder / "runs")):
            refused = desk.ccbed(*args)
            assert refused.code == EXIT_INFRASTRUCTURE
            refused.each("see the host's power", ("h2",))
        down = desk.ccbed("down", "bad")
        assert down.code == EXIT_INFRASTRUCTURE
        down.each("see the host's power", ("h2",))
        assert "h1 h3 ended; once it is back: ccbed down bad" in down.text
        assert desk.containers("h1") == desk.containers("h3") == []
    assert desk.containers("h2") != []
    assert desk.ccbed("down", "bad").code == EXIT_PASS
    desk.nothing_there()


def test_a_host_that_never_comes_back_is_given_up(desk: Desk) -> None:
    desk.up(desk.inventory())
    with desk.off("h2"):
        down = desk.ccbed("down", "bad", "--abandon")
        assert down.code == EXIT_PASS, down.text
        assert "warning: h2: given up" in down.text
        desk.nothing_there(("h1", "h3"))
    again = desk.up(desk.inventory())
    assert "4 of 4 warm" in again.text, "what was left there is replaced"


# --- no engine, no image, no space, no GPU ----------------------------------------------------------------------------


def test_a_host_whose_engine_is_stopped(desk: Desk) -> None:
    inventory = desk.inventory()
    machines.service(processes.first(desk.lab)["h3"], "engine", "stop")
    try:
        doctor = desk.ccbed("doctor", inventory)
        assert "lacks  h3: engine: none answers at /var/run/docker.sock" in doctor.text
        assert "fix: start dockerd, or set ccbed_engine" in doctor.text
        up = desk.ccbed("up", inventory, within_s=PLAYED_S)
        up.each("no container engine answers", ("h3",))
        assert "next: h3: start it, or set ccbed_engine to its socket" in up.text
        prepared = desk.ccbed("up", inventory, "--no-prepare")
        prepared.each("/var/run/docker.sock", ("h3",))
    finally:
        pid = processes.first(desk.lab)["h3"]
        machines.service(pid, "engine", "start")
        machines.wait(desk.lab.host("h3"), pid)
    desk.nothing_there()


def test_a_user_who_may_not_use_the_engine(desk: Desk) -> None:
    """As a user of its own who may log in, but is not in the group of the socket."""
    with user(desk, "h2"):
        inventory = desk.inventory({"h2": {"ansible_user": "nobody"}}, ccbed_workdir="/tmp/ccbed-bad")
        doctor = desk.ccbed("doctor", inventory)
        assert "h2: engine:" in doctor.text
        assert "nobody" in doctor.text
        up = desk.ccbed("up", inventory, within_s=PLAYED_S)
        assert up.code in (EXIT_INFRASTRUCTURE, EXIT_USAGE)
        assert "defect" not in up.text
    desk.nothing_there()


@contextmanager
def user(desk: Desk, host: str) -> Iterator[None]:
    """``nobody`` may log in there for a while: the host has files of its own, mounted over this machine's."""
    desk.inside(host, "sh", "-c", "sed '/^nobody:/s,/nonexistent:.*,/tmp:/bin/sh,' /etc/passwd > /run/passwd")
    desk.inside(host, "mount", "--bind", "/run/passwd", "/etc/passwd")
    try:
        yield
    finally:
        desk.inside(host, "umount", "/etc/passwd")


def test_an_image_that_is_nowhere(desk: Desk) -> None:
    said = desk.ccbed("up", desk.inventory(ccbed_image="nowhere/none:1"), within_s=PLAYED_S)
    assert said.code == EXIT_INFRASTRUCTURE
    said.each("image nowhere/none:1 is neither here nor there")
    assert "docker load it here, or set ccbed_image" in said.text
    desk.nothing_there()


def test_an_image_that_was_deleted_by_hand_is_brought_again(desk: Desk) -> None:
    inventory = desk.inventory()
    desk.up(inventory)
    assert desk.ccbed("down", "bad").code == EXIT_PASS
    desk.inside("h2", "docker", "rmi", "--force", desk.image)
    lacking = desk.ccbed("up", inventory, "--no-prepare")
    lacking.each("is not there any more", ("h2",))
    assert "ccbed up --prepare" in lacking.text
    said = desk.up(inventory)
    assert f"host h2: image {desk.image} is not there any more: prepared again" in said.text
    assert "prepare     h2 ready" in said.text
    assert "4 of 4 warm" in said.text


def test_a_host_whose_disk_is_full(desk: Desk) -> None:
    inventory = desk.inventory()
    desk.inside("h3", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/var/lib/ccbed")
    try:
        doctor = desk.ccbed("doctor", inventory)
        assert "lacks  h3: disk: 0 MiB free for /var/lib/ccbed/bad, 256 MiB needed; fix: free space" in doctor.text
        up = desk.ccbed("up", inventory, within_s=PLAYED_S)
        assert up.code == EXIT_INFRASTRUCTURE
        up.each("No space left on device", ("h3",))
        unprepared = desk.ccbed("up", inventory, "--no-prepare")
        unprepared.each("No space left on device", ("h3",))
    finally:
        desk.inside("h3", "umount", "/var/lib/ccbed")
    desk.nothing_there()


def test_gpus_that_are_not_there(desk: Desk) -> None:
    inventory = desk.inventory(ccbed_gpus=1)
    doctor = desk.ccbed("doctor", inventory)
    assert "lacks  h1 h2 h3: gpus: none" in doctor.text
    up = desk.ccbed("up", inventory, within_s=PLAYED_S)
    up.each("ccbed_gpus asks for GPUs and there is none")
    assert "set ccbed_gpus: 0" in up.text
    desk.nothing_there()


def test_two_hosts_with_one_address(desk: Desk) -> None:
    inventory = desk.inventory({"h2": {"ansible_host": desk.lab.host("h1").address}})
    for verb in ("doctor", "up"):
        said = desk.ccbed(verb, inventory)
        assert said.code == EXIT_USAGE
        assert (
            f"hosts.h2.ansible_host: h2 and h1 are the same host ({desk.lab.host('h1').address} port 22)" in said.text
        )


# --- in the middle, and others ----------------------------------------------------------------------------------------


def test_a_host_that_is_lost_in_the_middle_of_up_leaves_the_others_and_up_goes_on_afterwards(desk: Desk) -> None:
    inventory = desk.inventory()
    desk.up(inventory)
    assert desk.ccbed("down", "bad").code == EXIT_PASS
    killer = threading.Thread(target=cut, args=(desk, "h2"))
    killer.start()
    said = desk.ccbed("up", inventory, within_s=40)
    killer.join()
    assert said.code == EXIT_INFRASTRUCTURE, said.text
    assert [line.split(":")[0] for line in said.errors] == ["node n1"], said.text
    assert "its host h2 was lost" in said.text
    assert "next: to go on: ccbed up" in said.text
    desk.on("h2")
    again = desk.up(inventory)
    assert "plan: 1 to create" in again.text, "the others were kept"
    assert "4 of 4 warm" in again.text


def cut(desk: Desk, host: str) -> None:
    """Without power as soon as a container is there."""
    until = time.monotonic() + 60
    while time.monotonic() < until and not desk.containers(host):
        time.sleep(0.05)
    machines.power_off(desk.lab, desk.lab.host(host))


def test_a_bed_of_another_state_directory_is_refused_by_its_owners_name(desk: Desk) -> None:
    inventory = desk.inventory()
    desk.up(inventory)
    other = desk.elsewhere()
    theirs = other.inventory()
    for verb in ("up", "down"):
        said = other.ccbed(verb, theirs, within_s=PLAYED_S)
        assert said.code == EXIT_USAGE, said.text
        said.each(f":{desk.folder / 'state' / 'beds' / 'bad'}'s")
        assert "or take it away from them: ccbed down" in said.text
    assert "nothing to change, 4 of 4 warm" in desk.ccbed("up", inventory).text
    assert other.ccbed("down", theirs, "--force").code == EXIT_PASS
    assert desk.containers("h1") == []


def test_reset_leaves_what_is_anothers_alone_though_its_keepers_are_dead(desk: Desk) -> None:
    inventory = desk.inventory()
    desk.up(inventory)
    for host in HOSTS:
        label = desk.inside(host, "cat", "/var/lib/ccbed/bad/keeper/keeper.json")
        desk.inside(host, "kill", "-9", str(yaml.safe_load(label)["pid"]))
    other = desk.elsewhere()
    said = other.ccbed("down", other.inventory(), "--reset", within_s=PLAYED_S)
    assert said.code == EXIT_USAGE, said.text
    said.each(f":{desk.folder / 'state' / 'beds' / 'bad'}'s")
    assert "--reset --force" in said.text
    assert "4 of 4 warm" in desk.up(inventory).text, "the containers went on"
    forced = other.ccbed("down", other.inventory(), "--reset", "--force", within_s=PLAYED_S)
    assert forced.code == EXIT_PASS, forced.text
    for host in HOSTS:
        assert desk.containers(host) == []
        assert "/var/lib/ccbed/bad" not in desk.inside(host, "ps", "-eo", "args"), "no keeper is left either"


def test_a_host_that_was_installed_anew_is_prepared_again(desk: Desk) -> None:
    inventory = desk.inventory()
    desk.up(inventory)
    assert desk.ccbed("down", "bad").code == EXIT_PASS
    desk.inside("h2", "rm", "-r", "/var/lib/ccbed/bad")
    said = desk.up(inventory)
    assert "warning: h2: what preparation left there is gone" in said.text
    assert "prepare     h2 ready" in said.text


def test_a_directory_that_is_not_shared_is_told_and_what_needs_it_is_refused(desk: Desk) -> None:
    desk.inside("h2", "mount", "-t", "tmpfs", "tmpfs", layout.SHARED)
    try:
        said = desk.up(desk.inventory())
        assert f"{layout.SHARED}: h2 does not see what h1 writes there" in said.text
        run = desk.ccbed("run", "dp-ring", "--nodes", "3", "--fail-node", "1", "--runs-dir", desk.folder / "runs")
        assert run.code == EXIT_USAGE, run.text
        assert "h2 does not see what h1 writes there: mount one file system there, set ccbed_shared_dir" in run.text
        assert not list((desk.folder / "runs").glob("*")), "nothing was run before it was refused, no twin either"
        assert desk.ccbed("down", "bad").code == EXIT_PASS
        desk.up(desk.inventory())
    finally:
        desk.inside("h2", "umount", layout.SHARED)
    late = desk.ccbed("run", "dp-ring", "--nodes", "3", "--fail-node", "1", "--runs-dir", desk.folder / "runs")
    assert late.code == EXIT_USAGE, late.text
    assert "the container of n1 has another there than its host" in late.text, "it was started before the mount"
    assert desk.ccbed("down", "bad").code == EXIT_PASS
