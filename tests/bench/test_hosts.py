"""Containers on the three hosts of a lab against the same by hand: ansible-playbook, docker run and docker ps over ssh."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from ..lab import layout
from . import table, torchrun
from .bed import Bed

ROUNDS = min(table.ROUNDS, 3)
PLAYBOOKS = Path(__file__).parents[2] / "playbooks"
NOOP = torchrun.PROGRAMS / "noop.py"
PORTS = itertools.count(29700)
#: What a container of a bed has when it is up: torch is imported, and what the first optimizer step would import.
WARM = "import torch, torch.distributed, torch._dynamo, time; print('warm', flush=True); time.sleep(600)"


class Hosts(Bed):
    """A node on each of three hosts, and a spare on the third; and the same hosts for whoever works by hand."""

    def __init__(self, folder: Path, lab: layout.Lab, image: str) -> None:
        super().__init__(folder)
        self.lab = lab
        self.image = image
        document = yaml.safe_load(layout.inventory(lab, image))
        for host in document["all"]["hosts"].values():
            host["ccbed_nodes"] = 1
        document["all"]["vars"]["ccbed_bed"] = "bench"
        self.inventory = folder / "hosts.yml"
        self.inventory.write_text(yaml.safe_dump(document))
        shutil.copy(NOOP, lab.root / "shared" / NOOP.name)

    def anew(self) -> None:
        """As it was before the first `up`; the hosts stay prepared."""
        self.call("down", "bench", expect=None)
        shutil.rmtree(self.folder / "state", ignore_errors=True)

    def ssh(self, host: str, *argv: str, until: str = "") -> str:
        """A command there by OpenSSH, to its end or until it has printed ``until``."""
        options = ["-F", "none", "-i", str(self.lab.key), "-o", f"UserKnownHostsFile={self.lab.known_hosts}"]
        command = ["ssh", *options, f"root@{self.lab.host(host).address}", *argv]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout
            if until:
                assert until in process.stdout.readline(), process.communicate(timeout=60)
                process.kill()
                return until
            output, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
            return output

    def run_all(self, works: Sequence[Callable[[], object]]) -> float:
        """Seconds until all are done, at once."""
        begin = time.monotonic()
        with ThreadPoolExecutor(max_workers=len(works)) as pool:
            list(pool.map(lambda work: work(), works))
        return time.monotonic() - begin

    def playbook(self) -> float:
        begin = time.monotonic()
        subprocess.run(
            [str(Path(sys.executable).with_name("ansible-playbook")), "-i", self.inventory, PLAYBOOKS / "hosts.yml"],
            env={**os.environ, "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg")},
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        return time.monotonic() - begin

    def remove(self, name: str) -> None:
        for host in self.lab.hosts[:3]:
            container_ids = self.ssh(host.name, "docker", "ps", "-aq", "--filter", f"name={name}").split()
            if container_ids:
                self.ssh(host.name, "docker", "rm", "--force", *container_ids)

    def gang(self) -> float:
        """docker run of the script on all three hosts at once, to its end."""
        master = {"MASTER_ADDR": self.lab.hosts[0].address, "MASTER_PORT": str(next(PORTS)), "WORLD_SIZE": "3"}
        ranks = ({**master, "RANK": str(rank)} for rank in range(3))
        return self.run_all([
            functools.partial(self.ssh, host.name, *self._run("hand", env), "python3", f"{layout.SHARED}/{NOOP.name}")
            for host, env in zip(self.lab.hosts[:3], ranks, strict=True)
        ])  # fmt: skip

    def warm(self) -> float:
        """docker run of what a bed has: four containers with torch imported, two of them on the third host."""
        places = [(host.name, number) for number, host in enumerate([*self.lab.hosts[:3], self.lab.hosts[2]])]
        return self.run_all([
            functools.partial(self.ssh, host, *self._run(f"hand{number}", {}), "python3", "-uc", f'"{WARM}"', until="warm")
            for host, number in places
        ])  # fmt: skip

    def _run(self, name: str, env: Mapping[str, str]) -> list[str]:
        given = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", **env}
        options = [f"--env={key}={value}" for key, value in given.items()]
        mount = f"--volume={layout.SHARED}:{layout.SHARED}"
        return ["docker", "run", "--rm", "--init", "--network=host", f"--name={name}", mount, *options, self.image]


@pytest.fixture(scope="module")
def hosts(lab: layout.Lab, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path_factory.mktemp("hosts"), lab, image)
    hosts.remove("hand")
    try:
        yield hosts
    finally:
        hosts.call("down", "bench", "--force", expect=None)
        hosts.remove("hand")


@pytest.fixture(scope="module")
def up(hosts: Hosts) -> Hosts:
    hosts.call("up", str(hosts.inventory))
    return hosts


def test_the_first_up_of_prepared_hosts_takes_little_more_than_the_playbook_and_docker_run(hosts: Hosts) -> None:
    hand, own = "ansible-playbook, docker run", "first ccbed up"
    hosts.call("up", str(hosts.inventory))

    def by_hand() -> float:
        took = hosts.playbook() + hosts.warm()
        hosts.remove("hand")
        return took

    def by_ccbed() -> float:
        hosts.anew()
        took = hosts.call("up", str(hosts.inventory))
        hosts.anew()
        return took

    hosts.anew()
    note = "Three prepared hosts, the image there, four containers with torch imported. ccbed: also preflight."
    results = table.Table(
        name="hosts-up", title="First up of three prepared hosts",
        samples=table.paired({hand: by_hand, own: by_ccbed}, ROUNDS), against=hand, notes=(note,),
    )  # fmt: skip
    results.write()
    assert results.ratio(own) >= 1 / 1.3


def test_the_second_up_is_no_slower_than_docker_ps_on_each_host(up: Hosts) -> None:
    hand, own = "ssh HOST docker ps, one after the other", "second ccbed up"

    def by_hand() -> float:
        begin = time.monotonic()
        for host in up.lab.hosts[:3]:
            up.ssh(host.name, "docker", "ps")
        return time.monotonic() - begin

    results = table.Table(
        name="hosts-unchanged", title="Nothing to change on three hosts",
        samples=table.paired({hand: by_hand, own: lambda: up.call("up", str(up.inventory))}), against=hand,
    )  # fmt: skip
    results.write()
    assert results.ratio(own) >= 1


def test_a_script_starts_at_least_five_times_as_fast_as_by_docker_run(up: Hosts) -> None:
    hand, own = "docker run noop.py on 3 hosts", "ccbed run noop.py"
    cases: dict[str, Callable[[], float]] = {hand: up.gang, own: lambda: up.call("run", str(NOOP), "--nodes", "3")}
    table.paired(cases, 1)  # both are warm
    samples = table.paired(cases)
    note = (
        "The same file: init_process_group and one all-reduce on 3 hosts. ccbed: verdicts and sealed bundle included."
    )
    results = table.Table(
        name="hosts-start", title="Start of a gang on hosts", samples=samples, against=hand, notes=(note,)
    )
    results.write()
    assert results.ratio(own) >= 5


def test_a_killed_container_is_made_good_ten_times_as_fast_as_by_docker_run(up: Hosts) -> None:
    hand, own = "docker run on all hosts, first all-reduce", "ccbed, warm spare"

    def by_ccbed() -> float:
        back = up.failover("--nodes", "3", "--recovery", "spare")
        assert back.ttr_s is not None
        return back.ttr_s

    note = "By hand: from docker run of a script on all hosts to the end of its first all-reduce; nobody had to notice."
    results = table.Table(
        name="hosts-failover", title="A killed container: to the first step of every rank",
        samples=table.paired({hand: up.gang, own: by_ccbed}, ROUNDS), against=hand, notes=(note,),
    )  # fmt: skip
    results.write()
    assert results.ratio(own) >= 10
    assert table.median(results.samples[own]) < 0.6
