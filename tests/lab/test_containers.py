"""Containers on the lab's hosts: they reach each other, and die as they would on real ones."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from . import layout, machines, processes

pytestmark = pytest.mark.lab

NAME = "ccbed-lab-test"


def docker(lab: layout.Lab, host: str, *arguments: str) -> str:
    return processes.inside(processes.first(lab)[host], ["docker", *arguments], timeout=900)


def start(lab: layout.Lab, host: str, image: str, code: str) -> None:
    options = ["--detach", "--init", "--network", "host", "--name", NAME, "--user", "1000:1000", "--read-only"]
    docker(lab, host, "run", *options, image, "python3", "-c", code)


def state(lab: layout.Lab, host: str) -> str:
    return docker(lab, host, "ps", "--all", "--filter", f"name={NAME}", "--format", "{{.State}}").strip()


@pytest.fixture(autouse=True)
def _no_containers(lab: layout.Lab) -> Iterator[None]:
    yield
    for host in lab.hosts:
        if state(lab, host.name):
            docker(lab, host.name, "rm", "--force", NAME)


def test_three_ranks_on_three_hosts_reduce_over_the_lab(lab: layout.Lab, image: str) -> None:
    hosts = lab.hosts[:3]
    for rank, host in enumerate(hosts):
        meet = f"tcp://{hosts[0].address}:29511"
        code = (
            "import os; os.environ['GLOO_SOCKET_IFNAME'] = 'eth0'; import torch, torch.distributed as d; "
            f"d.init_process_group('gloo', init_method='{meet}', rank={rank}, world_size={len(hosts)}); "
            "x = torch.ones(1000); d.all_reduce(x); print('sum', x[0].item())"
        )
        start(lab, host.name, image, code)
    for host in hosts:
        assert docker(lab, host.name, "wait", NAME).strip() == "0"
        assert f"sum {len(hosts)}.0" in docker(lab, host.name, "logs", NAME)


def test_a_host_without_power_takes_its_containers_along_and_they_stay_ended(lab: layout.Lab, image: str) -> None:
    victim = lab.hosts[1]
    start(lab, victim.name, image, "import time; time.sleep(600)")
    assert state(lab, victim.name) == "running"
    assert machines.power_off(lab, victim)
    pid = machines.power_on(lab, victim, processes.first(lab)[layout.SWITCH])
    machines.start(pid)
    machines.wait(victim, pid)
    assert state(lab, victim.name) == "exited"
    docker(lab, victim.name, "start", NAME)
    assert state(lab, victim.name) == "running"


@pytest.mark.parametrize(("how", "goes_on"), [("stop", False), ("kill", True)])
def test_what_an_engine_takes_along(lab: layout.Lab, image: str, how: str, goes_on: bool) -> None:
    victim = lab.hosts[1]
    start(lab, victim.name, image, "import time; time.sleep(600)")
    main = docker(lab, victim.name, "inspect", "--format", "{{.State.Pid}}", NAME).strip()
    pid = processes.first(lab)[victim.name]
    try:
        machines.service(pid, "engine", how)
        assert machines.service(pid, "engine", "status") == "down"
        assert _lives(pid, main) == goes_on
    finally:
        machines.service(pid, "engine", "start")
        machines.wait(victim, pid)


def _lives(host: int, pid: str) -> bool:
    """Whether a process of a host is there, by the host's own numbers."""
    time.sleep(0.2)
    return processes.inside(host, ["sh", "-c", f"test -d /proc/{pid} && echo yes || echo no"]).strip() == "yes"
