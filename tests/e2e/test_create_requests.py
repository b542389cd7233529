"""Needs a Docker engine on this machine: what the engine makes of every create request, and what it says where it cannot start one."""

from __future__ import annotations

import io
import secrets
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.bed import container_requests, error_explanations
from orchestrator.model import container
from orchestrator.model.bed import BedSpec, ContainerSpec, NodeSpec

docker = pytest.importorskip("docker", reason="needs the docker SDK")

pytestmark = pytest.mark.e2e
SUBNET, ADDRESS = "198.18.251.0/29", "198.18.251.3"
NO_GPU_RUNTIME = 'could not select device driver "" with capabilities: [[gpu]]'


@pytest.fixture(scope="module")
def engine(engine: Any) -> Iterator[Any]:
    """The local engine, spoken to in the API version that the requests are written in."""
    client = docker.APIClient(base_url="unix:///var/run/docker.sock", version="1.41", timeout=900)
    yield client
    client.close()


@pytest.fixture(scope="module")
def image(engine: Any) -> Iterator[str]:
    """An image with one empty file: enough to create containers of it."""
    name = f"ccbed-test-{secrets.token_hex(3)}"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    engine.import_image_from_data(content.getvalue(), repository=name, tag="1")
    yield f"{name}:1"
    engine.remove_image(f"{name}:1", force=True)


@pytest.fixture
def network(engine: Any) -> Iterator[str]:
    """The private network of a bed of its own."""
    bed = f"t{secrets.token_hex(3)}"
    pool = docker.types.IPAMPool(subnet=SUBNET)
    made = engine.create_network(container.network_name(bed), ipam=docker.types.IPAMConfig(pool_configs=[pool]))
    yield bed
    engine.remove_network(made["Id"])


Create = Callable[..., dict[str, Any]]


@pytest.fixture
def create(engine: Any, image: str, tmp_path: Path) -> Iterator[Create]:
    """Creates the container of a node that is as given, and inspects it."""
    made: list[str] = []
    for part in ("nodes/n0", "payloads", "agent", "shared"):
        (tmp_path / part).mkdir(parents=True)

    def create_request(bed: str = "", **given: Any) -> dict[str, Any]:
        body = _request(tmp_path, bed, ContainerSpec(**{"image": image, **given}))
        made.append(str(engine.create_container_from_config(body, name=f"ccbed-{secrets.token_hex(4)}")["Id"]))
        return dict(engine.inspect_container(made[-1]))

    yield create_request
    for identity in made:
        engine.remove_container(identity, force=True, v=True)


def _request(root: Path, bed: str, spec: ContainerSpec) -> dict[str, Any]:
    node = NodeSpec(name="n0", host="h", role="node", address="", hash="0123", container=spec)
    wanted = BedSpec(
        name=bed or "t", provider="docker", nodes=(node,), inventory="i", workdir=str(root), hostdir=str(root),
        shared_dir=f"{root}/shared", agent="a", network="private" if bed else "host",
    )  # fmt: skip
    body = container_requests.request(
        wanted, node, archive=f"{root}/agent/a.pyz", owner=(1000, 1000), addresses={"n0": ADDRESS}, tag="t-1"
    )
    return container.fill_incarnation(body, process_tag="t-1/n0/7c1e", label={"incarnation": "7c1e", "ordinal": 1})


def start(engine: Any, container: dict[str, Any]) -> str:
    """What the engine says when it is told to start it."""
    try:
        engine.start(container["Id"])
    except docker.errors.APIError as error:
        return str(error.explanation)
    return ""


def test_docker_engine_makes_a_container_that_cannot_rule_its_host(create: Create) -> None:
    host = create()["HostConfig"]
    assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], [], False)
    assert host["SecurityOpt"] == ["no-new-privileges"] and host["ReadonlyRootfs"] is True
    assert (host["NetworkMode"], host["IpcMode"], host["Init"]) == ("host", "private", True)
    assert host["RestartPolicy"]["Name"] in ("no", "")


def test_docker_engine_mounts_what_a_node_may_see_and_nothing_else(create: Create, tmp_path: Path) -> None:
    container = create()
    mounts = {mount["Destination"]: mount["RW"] for mount in container["Mounts"]}
    assert mounts == {
        f"{tmp_path}/nodes/n0": True, f"{tmp_path}/shared": True,
        f"{tmp_path}/payloads": False, f"{tmp_path}/agent": False,
    }  # fmt: skip
    assert set(container["HostConfig"]["Tmpfs"]) == {"/tmp", "/run"}
    assert container["Config"]["User"] == "1000:1000"


def test_docker_engine_keeps_limits_and_labels(create: Create) -> None:
    container = create(cpus="0.5", memory="64m", shm_size="32m")
    host = container["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["ShmSize"]) == (500_000_000, 64 * 1024**2, 32 * 1024**2)
    assert host["PidsLimit"] == container_requests.PIDS
    assert container["Config"]["Labels"]["ccbed.incarnation"] == "7c1e"


def test_docker_engine_gives_a_node_its_name_and_address_in_a_private_network(create: Create, network: str) -> None:
    networked = create(network)
    endpoint = networked["NetworkSettings"]["Networks"][container.network_name(network)]
    assert endpoint["IPAMConfig"]["IPv4Address"] == ADDRESS and "n0" in endpoint["Aliases"]
    assert networked["Config"]["Hostname"] == "n0"


@pytest.mark.parametrize("gpus", [("all",), ("0",), ("0", "1"), ("GPU-8f6c1a52",), ("nvidia.com/gpu=0",)])
def test_docker_engine_accepts_requests_for_gpus(create: Create, gpus: tuple[str, ...]) -> None:
    requested = create(gpu_devices=gpus)["HostConfig"]["DeviceRequests"]
    assert [(request["Count"], request["DeviceIDs"]) for request in requested] == [
        (-1, None) if gpus == ("all",) else (0, [*gpus])
    ]


def test_docker_engine_without_nvidia_runtime_says_so_at_the_start(engine: Any, create: Create) -> None:
    """Where it has the runtime, there is no such GPU."""
    error_text = start(engine, create(gpu_devices=("GPU-00000000-none",)))
    explanation = error_explanations.explain_engine(error_text)
    if "nvidia" in engine.info().get("Runtimes", {}):
        assert explanation is not None and explanation.text == "no GPU GPU-00000000-none on this host"
    else:
        assert error_text == NO_GPU_RUNTIME
        assert explanation is not None and "nvidia-container-toolkit" in explanation.fix


def test_docker_engine_without_infiniband_says_so_at_the_start(engine: Any, create: Create) -> None:
    """Where there is one, nothing is said of it."""
    container = create(rdma=True)
    assert container["HostConfig"]["CapAdd"] == ["IPC_LOCK"]
    explanation = error_explanations.explain_engine(start(engine, container))
    missing = explanation is not None and explanation.text == "ccbed_rdma is set, but the host has no /dev/infiniband"
    assert missing is not Path("/dev/infiniband").exists()


def test_docker_engine_says_that_an_image_has_no_python(engine: Any, create: Create) -> None:
    """Not at the start, for its init is there: in its output."""
    container = create()
    assert start(engine, container) == ""
    assert engine.wait(container["Id"], timeout=900)["StatusCode"] == 127
    output = engine.logs(container["Id"]).decode()
    explanation = error_explanations.explain_engine(output)
    assert explanation is not None, output
    assert explanation.text == "the image has no python3"


def test_docker_engine_says_which_mount_has_no_source(create: Create) -> None:
    with pytest.raises(docker.errors.APIError) as refused:
        create(mounts=("/no/such/place:/data:ro",))
    explanation = error_explanations.explain_engine(str(refused.value.explanation))
    assert explanation is not None and explanation.text == "/no/such/place does not exist"
