"""Beds and what is found of them, for tests of diff, plan and the command line."""

from __future__ import annotations

import dataclasses

from orchestrator.core.bed import nodes_from_inventory
from orchestrator.core.inventory import parse_inventory
from orchestrator.model.bed import BedSpec, BedStatus, NodeSpec, NodeState, NodeStatus

LOCAL = """all:
  hosts: {localhost: {ansible_connection: local}}
  vars: {ccbed_nodes: 4, ccbed_spares: 1}
"""


def local(text: str = LOCAL, agent: str = "a" * 64, state: str = "/state") -> BedSpec:
    return nodes_from_inventory.assemble_bed(
        parse_inventory.parse(text, "local.yml"), agent=agent, state=state, home="/h"
    )


def node_status(node: NodeSpec, state: NodeState = "warm", **change: object) -> NodeStatus:
    pid = 100 + int(node.name[1:])
    status = NodeStatus(
        name=node.name, state=state, spec_hash=node.hash, incarnation=f"i-{node.name}", ordinal=1, pid=pid
    )
    return dataclasses.replace(status, **change)  # type: ignore[arg-type]


def up(bed: BedSpec, **states: NodeState) -> BedStatus:
    """The bed as it is wanted, but for the states of the nodes that are named."""
    nodes = tuple(node_status(node, states.get(node.name, "warm")) for node in bed.nodes)
    return BedStatus(name=bed.name, nodes=nodes, keeper_pid=99, keeper_hash=bed.agent)
