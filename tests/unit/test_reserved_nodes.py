"""Which nodes have reserve ranks: all of a host with few nodes; of many nodes the spares and those that gangs use first."""

from __future__ import annotations

from orchestrator.core.bed import nodes_from_inventory
from orchestrator.core.inventory import parse_inventory
from orchestrator.model.bed import BedSpec

MOST, FEW = nodes_from_inventory.RESERVED_NODES, nodes_from_inventory.FEW_RESERVED_NODES


def bed(nodes: int, spares: int = 1) -> BedSpec:
    text = f"all: {{hosts: {{localhost: {{ansible_connection: local}}}}, vars: {{ccbed_nodes: {nodes}, ccbed_spares: {spares}}}}}"
    inventory = parse_inventory.parse(text, "local.yml")
    return nodes_from_inventory.assemble_bed(inventory, agent="a" * 64, state="/s", home="/h")


def reserved(spec: BedSpec) -> list[str]:
    return [node.name for node in spec.nodes if node.has_reserves]


def test_all_nodes_of_a_host_with_few_have_reserves() -> None:
    assert len(reserved(bed(MOST - 1))) == MOST


def test_of_many_nodes_a_few_have_them_and_the_spare_is_among_them() -> None:
    assert reserved(bed(MOST)) == [*(f"n{number}" for number in range(FEW - 1)), f"n{MOST}"]


def test_each_host_counts_for_itself() -> None:
    hosts = "h1: {ansible_host: 10.0.0.1}, h2: {ansible_host: 10.0.0.2, ccbed_nodes: 2}"
    text = f"all: {{hosts: {{{hosts}}}, vars: {{ccbed_provider: docker, ccbed_nodes: {2 * MOST}}}}}"
    spec = nodes_from_inventory.assemble_bed(
        parse_inventory.parse(text, "lab.yml"), agent="a" * 64, state="/s", home="/h"
    )
    counts = [sum(node.has_reserves for node in spec.nodes if node.host == host) for host in ("h1", "h2")]
    assert counts == [FEW, 2]


def test_a_node_that_loses_its_reserves_needs_no_replacement() -> None:
    few, many = bed(MOST - 1), bed(MOST)
    before, after = few.node(f"n{FEW}"), many.node(f"n{FEW}")
    assert (before.has_reserves, after.has_reserves) == (True, False)
    assert before.hash == after.hash
