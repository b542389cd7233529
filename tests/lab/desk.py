"""Where a user of the lab's tests sits: a state directory, and inventories of the lab with something wrong in them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS

from ..e2e.conftest import ccbed
from . import layout, machines, processes

HOSTS = ("h1", "h2", "h3")
#: Whatever is wrong is said within this; only a playbook that works on the other hosts may take longer.
SOON_S = 20.0
PLAYED_S = 60.0
KNOWN = "ccbed_known_hosts"


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    code: int
    text: str
    took_s: float

    @property
    def errors(self) -> list[str]:
        return [line.removeprefix("error: ") for line in self.text.splitlines() if line.startswith("error: ")]

    def assert_every_host(self, words: str, hosts: tuple[str, ...] = HOSTS) -> None:
        """A line for each of these hosts and none besides, in this order, with these words; no defect."""
        assert [line.split(":")[0] for line in self.errors] == [f"host {host}" for host in hosts], self.text
        assert all(words in line for line in self.errors), self.text
        assert "internal error" not in self.text


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

    def ccbed(self, *args: str | Path, within_s: float = SOON_S) -> CommandResult:
        begun = time.monotonic()
        code, text = ccbed(self.folder / "state", *map(str, args))
        took = time.monotonic() - begun
        assert took < within_s, f"{took:.1f} s: {text}"
        return CommandResult(code=code, text=text, took_s=took)

    def up(self, inventory: Path) -> CommandResult:
        output = self.ccbed("up", inventory, within_s=120)
        assert output.code == EXIT_PASS, output.text
        return output

    def inside(self, host: str, *argv: str) -> str:
        return processes.inside(processes.first(self.lab)[host], list(argv), timeout=900)

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
    desk = Desk(folder=tmp_path, lab=lab, image=image)
    yield desk
    for host in HOSTS:
        desk.on(host)
    desk.ccbed("down", desk.inventory(), "--force", within_s=60)


def key(folder: Path) -> Path:
    file = folder / "another_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True, timeout=900)
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
    up.assert_every_host(words, hosts)
    desk.nothing_there()
