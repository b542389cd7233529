"""The inventories that come with ccbed are right ones, and become what their comments say."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.bed import container_requests, nodes_from_inventory
from orchestrator.core.inventory import parse_inventory
from orchestrator.core.spec import planning
from orchestrator.model.bed import BedSpec, ContainerSpec, SlurmSpec
from orchestrator.model.trial import Trial, World

FOLDER = Path(__file__).parents[2] / "inventories"


def bed(name: str) -> BedSpec:
    path = FOLDER / name
    inventory = parse_inventory.parse(path.read_text(), str(path))
    return nodes_from_inventory.assemble_bed(inventory, agent="a" * 12, state="/state", home="/h")


@pytest.fixture
def cluster() -> BedSpec:
    return bed("gpu-cluster.example.yml")


def test_the_cluster_is_four_hosts_with_a_spare_one(cluster: BedSpec) -> None:
    assert cluster.name == "gpu-cluster" and cluster.network == "host" and cluster.allow_faults == "node"
    assert [(node.host, node.role, node.address) for node in cluster.nodes] == [
        ("gpu01", "node", "198.51.100.11"), ("gpu02", "node", "198.51.100.12"), ("gpu03", "node", "198.51.100.13"),
        ("gpu04", "node", "198.51.100.14"), ("gpu05", "spare", "198.51.100.15"),
    ]  # fmt: skip
    assert {host.user for host in cluster.hosts} == {"trainer"}
    assert cluster.host("gpu04").power["off"][-1] == "off"


def test_its_trials_run_on_nccl(cluster: BedSpec) -> None:
    eight = Trial(name="t", workload="train-dp", world=World(nodes=4, ranks_per_node=8))
    nine = Trial(name="t", workload="train-dp", world=World(nodes=4, ranks_per_node=9))
    assert planning._backend(eight, cluster.nodes) == ("nccl", ())
    assert planning._backend(nine, cluster.nodes) == ("gloo", ())


def test_its_containers_have_every_gpu_rdma_and_the_clusters_nccl(cluster: BedSpec) -> None:
    addresses = {node.name: node.address for node in cluster.nodes}
    body = container_requests.request(
        cluster,
        cluster.node("n4"),
        archive="/scratch/ccbed/agent/a.pyz",
        owner=(1000, 1000),
        addresses=addresses,
        tag="t",
    )
    host = body["HostConfig"]
    assert host["DeviceRequests"][0]["DeviceIDs"] == [str(index) for index in range(8)]
    assert host["Devices"] and host["CapAdd"] == ["IPC_LOCK"] and host["ShmSize"] == 64 * 1024**3
    assert "NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3" in body["Env"]
    assert len(host["ExtraHosts"]) == 2 * 5, "each address in both of its forms"


def test_every_inventory_that_comes_along_is_right() -> None:
    for path in FOLDER.glob("*.yml"):
        result = bed(path.name)
        assert result.nodes, path
        assert all(isinstance(node.container, ContainerSpec) for node in result.nodes) is (result.provider == "docker")


def test_the_slurm_bed_is_one_job_of_three_nodes_and_a_spare() -> None:
    cluster = bed("slurm.yml")
    assert cluster.slurm == SlurmSpec(nodes=4, options={"partition": "gpu"}, time_s=7200)
    assert [(node.name, node.host, node.role) for node in cluster.nodes] == [
        ("n0", "h0", "node"), ("n1", "h1", "node"), ("n2", "h2", "node"), ("n3", "h3", "spare"),
    ]  # fmt: skip
    assert {host.connection for host in cluster.hosts} == {"slurm"} and not cluster.shares_file_system
