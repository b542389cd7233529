"""What an engine says of itself: Docker or podman, its version, and what it lacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.bed import container_requests, engine_kind, gpu_devices, nodes_from_inventory
from orchestrator.core.bed.engine_kind import Engine
from orchestrator.core.inventory import parse_inventory
from orchestrator.model import container
from orchestrator.model.bed import BedSpec, ContainerSpec

PODMAN = {"Version": "4.3.1", "Components": [{"Name": "Podman Engine"}, {"Name": "Conmon"}]}
DOCKER = {"Version": "20.10.24+dfsg1", "Components": [{"Name": "Engine"}, {"Name": "containerd"}]}
ROOTLESS = Engine(version="4.3.1", is_podman=True, is_rootless=True, controllers=(), can_freeze=False, can_update=False)


def host(rootless: bool, cgroups: str, *controllers: str) -> dict[str, Any]:
    return {
        "host": {"security": {"rootless": rootless}, "cgroupVersion": cgroups, "cgroupControllers": list(controllers)}
    }


def test_podman_is_known_by_its_component() -> None:
    assert container.is_podman(PODMAN) and not container.is_podman(DOCKER) and not container.is_podman({})


@pytest.mark.parametrize(
    ("podman", "can_update", "lacks"),
    [
        (host(True, "v1"), False, ("limit", "pause")),
        (host(True, "v1"), True, ("limit", "pause")),
        (host(True, "v2"), True, ("limit", "pause")),
        (host(True, "v2", "memory", "pids"), True, ("limit",)),
        (host(True, "v2", "cpu", "memory", "pids"), True, ()),
        (host(True, "v2", "cpu", "memory", "pids"), False, ("limit",)),
        (host(False, "v1", "cpu", "memory", "freezer", "pids"), True, ()),
        (host(False, "v1", "cpu", "memory", "freezer", "pids"), False, ("limit",)),
    ],
)
def test_podman_lacks_what_its_cgroups_and_its_api_do_not_give(
    podman: dict[str, Any], can_update: bool, lacks: tuple[str, ...]
) -> None:
    assert engine_kind.read(PODMAN, podman, options="", can_update=can_update).lacks == lacks


def test_docker_lacks_nothing_and_may_run_without_root() -> None:
    docker = engine_kind.read(DOCKER, None, options="[]", can_update=True)
    assert (docker.text, docker.lacks, docker.is_rootless) == ("20.10.24+dfsg1", (), False)
    assert engine_kind.read(DOCKER, None, options='["name=rootless"]', can_update=True).is_rootless


@pytest.mark.parametrize(
    ("known", "is_too_old"),
    [
        (Engine(version="19.03.15"), True), (Engine(version="20.10.24+dfsg1"), False),
        (Engine(version="4.2.9", is_podman=True), True), (Engine(version="4.3.1", is_podman=True), False),
        (Engine(version="5.4.0-dev", is_podman=True), False),
    ],
)  # fmt: skip
def test_each_engine_has_an_oldest_version(known: Engine, is_too_old: bool) -> None:
    assert known.is_too_old is is_too_old


def test_only_an_engine_that_misses_the_container_knows_the_request() -> None:
    assert engine_kind.knows_update(404, "No such container: ccbed-no-such-container")
    assert not engine_kind.knows_update(404, "Not Found")
    assert not engine_kind.knows_update(501, "no such container")


def test_the_text_names_podman_and_its_rights() -> None:
    assert ROOTLESS.text == "podman 4.3.1 without root"
    assert replace(ROOTLESS, is_rootless=False).text == "podman 4.3.1"


# --- requests ----------------------------------------------------------------------------------------------------------


def spec(engine: str = "", more: str = "", earlier: BedSpec | None = None) -> BedSpec:
    text = "all: {hosts: {localhost: {ansible_connection: local}}, vars: {ccbed_provider: docker, ccbed_nodes: 1%s}}\n"
    return nodes_from_inventory.assemble_bed(
        parse_inventory.parse(text % more, "pod.yml"), agent="a" * 12, state="/state", home="/h", engine=engine,
        recorded=lambda name: earlier,
    )  # fmt: skip


def request(engine: Engine, more: str = "") -> dict[str, Any]:
    bed = spec(more=more)
    node = bed.node("n0")
    return container_requests.request(
        bed, node, archive="/state/agent.pyz", owner=(1000, 1000), addresses={}, tag="pod-1", engine=engine
    )


def test_root_of_a_container_without_root_is_its_user_and_the_container_names_what_is_lacking() -> None:
    body, usual = request(ROOTLESS), request(Engine(version="28.2.2"))
    assert (body["User"], usual["User"]) == ("0:0", "1000:1000")
    assert (body["Labels"][container.LACKS], container.LACKS in usual["Labels"]) == ("limit,pause", False)
    assert f"{container.ENGINE_VARIABLE}=podman 4.3.1 without root" in body["Env"]
    assert body["HostConfig"]["CapDrop"] == ["ALL"]


def test_a_user_of_the_inventory_is_rejected_without_root() -> None:
    with pytest.raises(
        ValueError, match=r"ccbed_user 1000: podman 4\.3\.1 without root runs its containers as its own"
    ):
        request(ROOTLESS, ', ccbed_user: "1000"')


def test_limits_without_their_cgroup_are_rejected() -> None:
    limited = ContainerSpec(image="x", cpus="2", memory="2g")
    assert "ccbed_cpus: podman 4.3.1 without root cannot" in container_requests.limit_problem(limited, ROOTLESS)
    only_cpu = replace(ROOTLESS, controllers=("cpu",))
    assert "ccbed_memory: podman" in container_requests.limit_problem(limited, only_cpu)
    assert container_requests.limit_problem(limited, replace(ROOTLESS, controllers=("cpu", "memory"))) == ""
    assert container_requests.limit_problem(ContainerSpec(image="x"), ROOTLESS) == ""


def test_gpus_of_podman_are_rejected() -> None:
    gpus = ContainerSpec(image="x", gpu_devices=("0",))
    assert "unsupported in this version" in gpu_devices.version_problem(gpus, ROOTLESS)
    assert gpu_devices.version_problem(ContainerSpec(image="x"), ROOTLESS) == ""


# --- the engine of this machine ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("unix:///run/user/1/podman.sock", "/run/user/1/podman.sock"),
        ("ssh://h1", ""),
        ("tcp://1.2.3.4:1", ""),
        ("", ""),
    ],
)
def test_docker_host_names_the_engine_of_this_machine(host: str, path: str) -> None:
    assert engine_kind.local_socket({"DOCKER_HOST": host}) == path


def test_the_inventory_wins_then_the_bed_that_is_up_then_docker_host() -> None:
    assert spec().hosts[0].engine == "/var/run/docker.sock"
    first = spec("/run/a.sock")
    assert first.hosts[0].engine == "/run/a.sock"
    assert spec("/run/b.sock", earlier=first).hosts[0].engine == "/run/a.sock"
    assert spec("/run/b.sock", ", ccbed_engine: /run/c.sock", first).hosts[0].engine == "/run/c.sock"
