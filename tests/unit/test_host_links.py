"""A link per host: nodes have the rate of their host; the switches and whether there is a rate are those of the bed."""

from __future__ import annotations

import pytest

from orchestrator.core.bed import diff, links, nodes_from_inventory
from orchestrator.core.inventory import parse_inventory
from orchestrator.model.bed import BedSpec
from orchestrator.model.errors import UsageError

from . import beds

INVENTORY = """\
all:
  vars: {{ccbed_provider: process, ccbed_isolation: namespace, ccbed_bed: mixed, ansible_connection: local}}
  hosts:
    fast: {{ccbed_nodes: 3, ccbed_link: {fast}}}
    slow: {{ccbed_nodes: 1, ccbed_link: {slow}}}
"""


def bed(fast: str = "{rate: 145mbit}", slow: str = "{rate: 72mbit}") -> BedSpec:
    text = INVENTORY.format(fast=fast, slow=slow)
    return nodes_from_inventory.assemble_bed(
        parse_inventory.parse(text, "mixed.yml"), agent="a" * 64, state="/state", home="/h"
    )


def test_each_node_has_the_link_of_its_host_and_the_bed_the_fastest() -> None:
    spec = bed()
    assert [node.port.link.rate for node in spec.nodes if node.port] == [145_000_000] * 3 + [72_000_000]
    assert spec.link == links.parse({"rate": "145mbit"}), "a bound of time must hold for every node"
    text = links.bed_text(spec)
    assert "145 Mbit/s tbf" in text and "(n0 n1 n2); 72 Mbit/s tbf" in text and text.endswith("(n3)")


def test_only_the_nodes_of_a_changed_host_are_replaced() -> None:
    before, wanted = bed(), bed(slow="{rate: 100mbit}")
    changes = diff.diff(wanted, beds.up(before), before).changes
    assert {change.node: change.action for change in changes} == {
        "n0": "keep",
        "n1": "keep",
        "n2": "keep",
        "n3": "replace",
    }


@pytest.mark.parametrize("slow", ["{delay: 1ms}", "{rate: 72mbit, groups: 2, uplink: 1gbit}"])
def test_hosts_that_differ_in_their_switches_or_lack_a_rate_are_rejected(slow: str) -> None:
    with pytest.raises(UsageError) as error:
        bed(slow=slow)
    assert "groups, uplink, and whether there is a rate must be the same for all hosts" in str(error.value.problems)
