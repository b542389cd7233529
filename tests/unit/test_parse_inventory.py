"""Inventories: what a right one becomes, and what is said about each of the wrong ones in tests/golden/inventories."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.bed import nodes_from_inventory
from orchestrator.core.inventory import parse_inventory
from orchestrator.model.bed import BedSpec
from orchestrator.model.errors import UsageError

from .golden import FOLDER, same_as_golden

WRONG = sorted((FOLDER / "inventories").glob("*.yml"))
LOCAL = Path(__file__).parents[2] / "inventories" / "local.yml"


def bed(text: str, path: str = "inventories/lab.yml", agent: str = "3fa9c1") -> BedSpec:
    return nodes_from_inventory.assemble_bed(parse_inventory.parse(text, path), agent=agent, state="/state", home="/h")


@pytest.mark.parametrize("file", WRONG, ids=lambda file: file.stem)
def test_a_wrong_inventory_is_told_with_place_and_reason_all_at_once(file: Path) -> None:
    with pytest.raises(UsageError) as caught:
        bed(file.read_text(), f"inventories/{file.name}")
    same_as_golden(f"inventories/{file.stem}.txt", "".join(f"{problem}\n" for problem in caught.value.problems))


def test_the_local_inventory_asks_for_four_nodes_and_a_spare() -> None:
    spec = bed(LOCAL.read_text(), str(LOCAL))
    assert [(node.name, node.role) for node in spec.nodes] == [
        ("n0", "node"), ("n1", "node"), ("n2", "node"), ("n3", "node"), ("n4", "spare"),
    ]  # fmt: skip
    assert (spec.name, spec.provider, spec.workdir) == ("local", "process", "/state/beds/local")
    assert spec.shared_dir == "/state/beds/local/shared"


def test_a_hosts_own_variable_wins_over_its_groups_and_a_child_over_its_parent() -> None:
    text = """
all:
  vars: {ccbed_nodes: 1, ccbed_gpus: 1, ansible_connection: local}
  children:
    big:
      vars: {ccbed_gpus: 4}
      children:
        also_big:
          vars: {ccbed_gpus: 8}
          hosts: {h2: {}, h3: {ccbed_gpus: 2}}
      hosts: {h1: {}}
  hosts: {h0: {}}
"""
    assert {node.host: node.gpus for node in bed(text).nodes} == {"h0": 1, "h1": 4, "h2": 8, "h3": 2}


def test_nodes_of_all_hosts_come_before_their_spares() -> None:
    text = """
all:
  vars: {ansible_connection: local, ccbed_nodes: 2, ccbed_spares: 1}
  hosts: {a: {}, b: {}}
"""
    spec = [(node.name, node.host, node.role) for node in bed(text).nodes]
    assert spec == [
        ("n0", "a", "node"), ("n1", "a", "node"), ("n2", "b", "node"), ("n3", "b", "node"),
        ("n4", "a", "spare"), ("n5", "b", "spare"),
    ]  # fmt: skip


def test_gpus_of_a_host_are_shared_out_between_its_nodes() -> None:
    text = "all: {hosts: {a: {ansible_connection: local, ccbed_nodes: 2, ccbed_spares: 1, ccbed_gpus: 2}}}"
    assert [node.env["CUDA_VISIBLE_DEVICES"] for node in bed(text).nodes] == ["0,1", "2,3", "4,5"]


def test_the_hash_of_a_node_changes_with_its_address_and_with_the_agent_only_where_it_must() -> None:
    text = "all: {hosts: {a: {ansible_connection: local, ccbed_nodes: 2}}}"
    before = {node.name: node.hash for node in bed(text).nodes}
    assert {node.name: node.hash for node in bed(text).nodes} == before
    more = {node.name: node.hash for node in bed(text.replace("nodes: 2", "nodes: 3")).nodes}
    assert {name: more[name] for name in before} == before
    moved = {node.name: node.hash for node in bed(text.replace("local,", "local, ccbed_address: 127.0.0.2,")).nodes}
    other = {node.name: node.hash for node in bed(text, agent="777777").nodes}
    assert not set(before.values()) & {*moved.values(), *other.values()}


def test_the_home_directory_stands_for_a_tilde() -> None:
    text = "all: {hosts: {a: {ansible_connection: local, ccbed_data_dir: ~/mnist}}}"
    assert bed(text).data_dir == "/h/mnist"


def test_variables_that_are_not_ours_are_left_alone() -> None:
    text = "all: {hosts: {a: {ansible_connection: local, key: !vault 'abc', tmpl: '{{ x }}'}}}"
    assert bed(text).nodes[0].name == "n0"


def test_the_known_hosts_of_ansibles_ssh_are_those_of_ccbed() -> None:
    arguments = "-o UserKnownHostsFile=~/lab/known -oStrictHostKeyChecking=accept-new -o Port=22"
    text = f"all: {{hosts: {{h1: {{ccbed_provider: docker, ansible_ssh_common_args: '{arguments}'}}}}}}"
    assert (bed(text).hosts[0].known_hosts, bed(text).hosts[0].first_contact) == ("/h/lab/known", True)
    own = text.replace("ccbed_provider", "ccbed_known_hosts: /k, ccbed_ssh_first_contact: false, ccbed_provider")
    assert (bed(own).hosts[0].known_hosts, bed(own).hosts[0].first_contact) == ("/k", False)
    strict = text.replace(arguments, "-C")
    assert (bed(strict).hosts[0].known_hosts, bed(strict).hosts[0].first_contact) == (None, False)
