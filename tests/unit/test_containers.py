"""What the engine is asked to create for a node: the whole request of typical nodes, and what must hold for every one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.bed import container_requests, gpu_devices, nodes_from_inventory
from orchestrator.core.bed.engine_kind import Engine
from orchestrator.core.inventory import parse_inventory
from orchestrator.model import container
from orchestrator.model.bed import BedSpec, ContainerSpec, NodeSpec

from .golden import same_as_golden

entry = """all:
  hosts: {localhost: {ansible_connection: local}}
  vars: {ccbed_provider: docker, ccbed_nodes: 2, ccbed_spares: 1}
"""
MANY = """all:
  hosts:
    a: {ansible_host: 198.18.0.1}
    b: {ansible_host: 198.18.0.2, ccbed_spares: 1}
  vars:
    ccbed_provider: docker
    ccbed_image: example/torch:1
    ccbed_workdir: /scratch/ccbed
    ccbed_shared_dir: /nfs/ccbed
    ccbed_data_dir: /nfs/mnist
    ccbed_env: {NCCL_DEBUG: WARN, NCCL_IB_HCA: mlx5_0}
"""
ADDRESSES = {"n0": "198.18.0.1", "n1": "198.18.0.2", "n2": "198.18.0.2"}
#: As IPv6 sockets look the addresses up.
MAPPED = [f"{name}.bed:::ffff:{address}" for name, address in ADDRESSES.items()]


def bed(text: str, more: str = "") -> BedSpec:
    spec = nodes_from_inventory.assemble_bed(
        parse_inventory.parse(text + more, "lab.yml"), agent="a" * 12, state="/state", home="/h"
    )
    return replace(spec, nodes=tuple(replace(node, hash="0123456789ab") for node in spec.nodes))


def request(spec: BedSpec, name: str = "n0") -> dict[str, Any]:
    return container_requests.request(
        spec,
        spec.node(name),
        archive=f"{spec.hostdir}/agent/agent-3fa9c1.pyz",
        owner=(1000, 1001),
        addresses=ADDRESSES,
        tag=f"{spec.name}-00c0ffee",
        env={"PYTHONMALLOC": "malloc"},
    )


def of(**given: Any) -> dict[str, Any]:
    """The request of a container that is as usual but for what is given."""
    spec = bed(MANY)
    usual = spec.node("n0").container
    assert usual is not None
    node = replace(spec.node("n0"), container=replace(usual, **given))
    return request(replace(spec, nodes=(node, *spec.nodes[1:])))


def environment(body: dict[str, Any]) -> dict[str, str]:
    return dict(item.split("=", 1) for item in body["Env"])


def limits(body: dict[str, Any]) -> dict[str, int]:
    assert all(limit["Soft"] == limit["Hard"] for limit in body["HostConfig"]["Ulimits"])
    return {limit["Name"]: limit["Hard"] for limit in body["HostConfig"]["Ulimits"]}


BODIES = {
    "one-engine": lambda: request(bed(entry), "n2"),
    "many-hosts": lambda: request(bed(MANY), "n1"),
    "gpu-index": lambda: request(bed(MANY, "    ccbed_gpus: 2\n")),
    "gpu-all": lambda: of(gpu_devices=("all",)),
    "gpu-uuid": lambda: of(gpu_devices=("GPU-8f6c1a52-0b1c-4c3e-9d2e-111111111111",)),
    "gpu-cdi": lambda: of(gpu_devices=("nvidia.com/gpu=0", "nvidia.com/gpu=1")),
    "rdma": lambda: of(rdma=True, gpu_devices=("0", "1")),
    "limits": lambda: of(cpus="2.5", memory="1.5g", mounts=("/a:/b:ro", "/c:/d"), user="1000:8"),
}


@pytest.mark.parametrize("case", BODIES)
def test_the_request_is_as_it_was_last_read(case: str) -> None:
    same_as_golden(f"containers/{case}.json", json.dumps(BODIES[case](), indent=1) + "\n")


@pytest.mark.parametrize("user", ["7", "7:1000", "root", "ccbed"])
def test_who_could_not_read_the_beds_directory_is_refused_by_name(user: str) -> None:
    with pytest.raises(ValueError, match=f"ccbed_user {user}: .* belongs to uid 1000"):
        of(user=user)


@pytest.mark.parametrize("case", BODIES)
def test_no_container_can_rule_its_host(case: str) -> None:
    body = BODIES[case]()
    host = body["HostConfig"]
    assert host["Privileged"] is False and host["CapDrop"] == ["ALL"] and host["ReadonlyRootfs"] is True
    assert host["CapAdd"] == (["IPC_LOCK"] if case == "rdma" else [])
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert not {"PidMode", "UsernsMode", "UTSMode", "CgroupnsMode", "Binds", "Runtime"} & host.keys()
    assert not any("docker.sock" in mount["Source"] for mount in host["Mounts"])
    assert body["User"] not in ("", "root")


@pytest.mark.parametrize("case", BODIES)
def test_a_container_ends_with_its_agent_and_is_not_started_again_by_the_engine(case: str) -> None:
    body = BODIES[case]()
    assert body["HostConfig"]["Init"] is True and body["HostConfig"]["RestartPolicy"] == {"Name": "no"}
    assert body["Entrypoint"][:3] == ["python3", body["Entrypoint"][1], "node"] and body["Cmd"] == []


def test_a_node_sees_its_own_directory_alone_and_writes_there_and_in_the_shared_one() -> None:
    mounts = {mount["Target"]: mount for mount in request(bed(MANY), "n1")["HostConfig"]["Mounts"]}
    assert {target for target, mount in mounts.items() if not mount["ReadOnly"]} == {
        "/scratch/ccbed/nodes/n1",
        "/nfs/ccbed",
    }
    assert {target for target, mount in mounts.items() if mount["ReadOnly"]} == {
        "/scratch/ccbed/payloads", "/scratch/ccbed/agent", "/nfs/mnist",
    }  # fmt: skip
    assert all(mount["Source"] == target for target, mount in mounts.items())


def test_a_mount_of_the_inventory_takes_the_place_of_ours() -> None:
    body = of(mounts=("/elsewhere:/nfs/mnist",))
    assert [mount["Source"] for mount in body["HostConfig"]["Mounts"] if mount["Target"] == "/nfs/mnist"] == [
        "/elsewhere"
    ]


def test_every_node_and_spare_resolves_from_every_other() -> None:
    spec = bed(MANY)
    assert request(spec)["HostConfig"]["ExtraHosts"] == ["n0:198.18.0.1", "n1:198.18.0.2", "n2:198.18.0.2", *MAPPED]


def test_the_inventory_has_the_last_word_on_its_environment_but_not_on_the_mark() -> None:
    changed = MANY.replace("{NCCL_DEBUG: WARN, NCCL_IB_HCA: mlx5_0}", "{HOME: /work, CCBED_NODE: x, CCBED_LABEL: y}")
    spec = bed(changed)
    result = environment(request(spec))
    assert (result["HOME"], result["CCBED_NODE"], result["CCBED_LABEL"]) == ("/work", "", "")


def test_an_incarnation_is_filled_in_and_nothing_else_is_touched() -> None:
    body = request(bed(MANY))
    label = {"incarnation": "7c1e", "ordinal": 3, "spec": {"name": "n0"}}
    made = container.fill_incarnation(body, process_tag="lab-00c0ffee/n0/7c1e", label=label)
    assert (made["Labels"]["ccbed.incarnation"], made["Labels"]["ccbed.ordinal"]) == ("7c1e", "3")
    assert environment(made)["CCBED_NODE"] == "lab-00c0ffee/n0/7c1e"
    assert json.loads(environment(made)["CCBED_LABEL"]) == label
    second = container.fill_incarnation(made, process_tag="", label={"incarnation": "", "ordinal": ""})
    same = ("CCBED_LABEL", "CCBED_NODE")
    assert {**second, "Env": [entry for entry in second["Env"] if not entry.startswith(same)]} == {
        **body, "Env": [entry for entry in body["Env"] if not entry.startswith(same)]
    }  # fmt: skip


# --- GPUs and RDMA ----------------------------------------------------------------------------------------------------


def test_a_node_without_gpus_gets_none_whatever_its_image_asks_for() -> None:
    body = of()
    assert body["HostConfig"]["DeviceRequests"] == []
    assert environment(body)["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize("gpus", [("0",), ("2", "3"), ("all",), ("GPU-1", "GPU-2"), ("nvidia.com/gpu=0",)])
def test_inside_of_a_container_gpus_are_numbered_from_0_so_nothing_says_which_are_visible(
    gpus: tuple[str, ...],
) -> None:
    assert "CUDA_VISIBLE_DEVICES" not in environment(of(gpu_devices=gpus))
    assert environment(of(gpu_devices=gpus))["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_nodes_of_one_host_get_gpus_of_their_own_by_the_hosts_numbers() -> None:
    text = entry.replace("ccbed_spares: 1", "ccbed_spares: 1, ccbed_standby: 1, ccbed_gpus: 2")
    given = [node.container.gpu_devices for node in bed(text).nodes if node.container]
    assert given == [("0", "1"), ("2", "3"), ("0", "1"), ("4", "5")]


def test_a_list_of_gpus_is_shared_out_and_a_standby_has_those_of_the_node_that_it_stands_for() -> None:
    text = entry.replace("ccbed_spares: 1", "ccbed_standby: 2, ccbed_gpus: [GPU-a, GPU-b]")
    nodes = bed(text).nodes
    assert [node.container.gpu_devices for node in nodes if node.container] == [
        ("GPU-a",), ("GPU-b",), ("GPU-a",), ("GPU-b",),
    ]  # fmt: skip
    assert [node.gpus for node in nodes] == [1, 1, 1, 1]


def test_cdi_names_go_to_the_engine_and_keep_the_runtimes_hook_out() -> None:
    body = of(gpu_devices=("nvidia.com/gpu=0",))
    assert body["HostConfig"]["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=0"]}]
    assert environment(body)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_cdi_names_need_an_engine_that_knows_them() -> None:
    spec = ContainerSpec(image="x", gpu_devices=("nvidia.com/gpu=0",))
    assert gpu_devices.version_problem(spec, Engine(version="20.10.24+dfsg1")) == (
        "CDI device nvidia.com/gpu=0 needs Docker Engine 25 or newer (found 20.10.24+dfsg1); or name GPUs by index or UUID"
    )
    assert gpu_devices.version_problem(spec, Engine(version="28.2.2")) == ""
    assert gpu_devices.version_problem(replace(spec, gpu_devices=("0",)), Engine(version="20.10.24")) == ""


def test_proxies_reach_programs_and_never_stand_between_nodes() -> None:
    body = request(bed(MANY, "    ccbed_http_proxy: http://p:3128\n    ccbed_no_proxy: [a.example, n0]\n"))
    variables = environment(body)
    assert variables["http_proxy"] == variables["HTTP_PROXY"] == "http://p:3128" and "https_proxy" not in variables
    excepted = variables["no_proxy"].split(",")
    assert variables["NO_PROXY"] == variables["no_proxy"] and len(excepted) == len(set(excepted))
    assert {"a.example", "localhost", "127.0.0.1", "n0", "n1", "n2", "198.18.0.1", "198.18.0.2"} == {*excepted} - {
        "::1"
    }


def test_an_exception_in_the_environment_does_not_replace_those_of_the_nodes() -> None:
    spec = bed(MANY.replace("ccbed_env: {", "ccbed_env: {NO_PROXY: b.example, "))
    assert not {"no_proxy", "NO_PROXY"} & spec.node("n0").env.keys(), "ranks would start with it alone"
    assert {"b.example", "n1"} <= {*environment(request(spec))["no_proxy"].split(",")}


def test_memory_is_locked_and_infiniband_is_there_only_where_rdma_is_asked_for() -> None:
    plain, rdma = of(gpu_devices=("0",)), of(gpu_devices=("0",), rdma=True)
    assert (plain["HostConfig"]["Devices"], plain["HostConfig"]["CapAdd"]) == ([], [])
    assert "memlock" not in limits(plain) and limits(rdma)["memlock"] == -1
    assert [device["PathOnHost"] for device in rdma["HostConfig"]["Devices"]] == ["/dev/infiniband"]


# --- limits -----------------------------------------------------------------------------------------------------------


def test_shared_memory_is_bounded_and_never_more_than_half_of_the_memory() -> None:
    gib = 1024**3
    shm = {name: body["HostConfig"]["ShmSize"] for name, body in {
        "usual": of(), "gpus": of(gpu_devices=("0",)), "small": of(memory="512m"), "asked": of(shm_size="16g", memory="1g"),
    }.items()}  # fmt: skip
    assert shm == {"usual": gib, "gpus": 8 * gib, "small": gib // 4, "asked": 16 * gib}


def test_memory_is_a_limit_without_swap_and_cpus_are_parts_of_one() -> None:
    host = of(memory="2GiB", cpus="0.5")["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (2 * 1024**3, 2 * 1024**3, 500_000_000)
    assert not {"Memory", "MemorySwap", "NanoCpus"} & of()["HostConfig"].keys()


def test_compiled_kernels_can_be_loaded_from_tmp() -> None:
    assert "exec" in of()["HostConfig"]["Tmpfs"]["/tmp"].split(",")


# --- networks ---------------------------------------------------------------------------------------------------------


def test_one_engine_gives_its_nodes_a_network_with_names_and_fixed_addresses() -> None:
    body = request(bed(entry), "n2")
    assert body["HostConfig"]["NetworkMode"] == "ccbed-lab"
    assert body["NetworkingConfig"]["EndpointsConfig"] == {
        "ccbed-lab": {"Aliases": ["n2"], "IPAMConfig": {"IPv4Address": "198.18.0.2"}, "MacAddress": "02:cc:c6:12:00:02"}
    }
    assert body["HostConfig"]["ExtraHosts"] == ["n0:198.18.0.1", "n1:198.18.0.2", *MAPPED]


def test_several_hosts_share_theirs() -> None:
    body = request(bed(MANY))
    assert body["HostConfig"]["NetworkMode"] == "host" and "NetworkingConfig" not in body


def test_only_a_node_that_shall_be_a_container_has_a_request() -> None:
    spec = bed(entry)
    node = NodeSpec(name="n9", host="localhost", role="node", address="", hash="")
    with pytest.raises(ValueError, match="n9: its spec has no container"):
        container_requests.request(spec, node, archive="a", owner=(0, 0), addresses={}, tag="t")
