"""What a lab is made of, without making one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.core.bed import nodes_from_inventory
from orchestrator.core.inventory import parse_inventory

from ..lab import layout

OTHER = layout.Lab(root=Path("/srv/lab"), count=2)
COMMITTED = Path(__file__).parents[2] / "inventories" / "lab.yml"


def test_the_committed_inventory_is_the_default_lab() -> None:
    assert COMMITTED.read_text() == layout.inventory(layout.Lab())


def test_the_inventory_asks_for_four_nodes_and_a_spare() -> None:
    inventory = parse_inventory.parse(COMMITTED.read_text(), "inventories/lab.yml")
    bed = nodes_from_inventory.assemble_bed(inventory, agent="3fa9c1", state="/state", home="/h")
    assert [node.host for node in bed.nodes if node.role == "node"] == ["h1", "h1", "h2", "h3"]
    assert [node.host for node in bed.nodes if node.role == "spare"] == ["h3"]
    assert bed.host("h2").power["off"][1:] == ("power", "off", "h2")
    assert bed.host("h2").address == "198.18.0.2"


def test_labs_of_different_roots_do_not_meet() -> None:
    default = layout.Lab()
    for name in ("tag", "network", "uplink", "cgroup"):
        assert getattr(default, name) != getattr(OTHER, name)


def test_links_have_names_that_the_kernel_takes() -> None:
    assert len(OTHER.uplink) <= 15
    assert len(layout.port(layout.Lab(count=200).hosts[-1])) <= 15


def test_every_host_resolves_every_other() -> None:
    lines = layout.hosts_file(OTHER).splitlines()
    assert {line.split()[1]: line.split()[0] for line in lines} == {
        "localhost": "127.0.0.1",
        "h1": f"{OTHER.network}.1",
        "h2": f"{OTHER.network}.2",
        "controller": f"{OTHER.network}.254",
    }


def test_what_a_host_mounts_lies_in_the_lab() -> None:
    document = json.loads(layout.boot(OTHER, OTHER.hosts[0], machine_id=True))
    assert not any(source.startswith("/") for source, _ in document["binds"])
    assert {"/var/lib/docker", "/tmp", "/etc/hosts", layout.SHARED} <= {target for _, target in document["binds"]}


@pytest.mark.parametrize("rate", ["", "fast", "-1gbit", "0mbit", "1gbps"])
def test_a_rate_is_a_number_with_its_unit(rate: str) -> None:
    with pytest.raises(ValueError, match="must be such as 1gbit"):
        layout.bits(rate)


def test_a_bucket_holds_two_packets_or_more_where_the_link_is_fast() -> None:
    assert "burst 131072 " in layout.shaping("1gbit", "eth0")
    assert "burst 1000000 " in layout.shaping("40gbit", "eth0")


@pytest.mark.parametrize("count", [0, 201])
def test_a_lab_has_as_many_hosts_as_its_network(count: int) -> None:
    with pytest.raises(ValueError, match="must be 1 to 200"):
        layout.Lab(count=count)


def test_a_host_of_another_lab_is_named_with_those_of_this_one() -> None:
    with pytest.raises(ValueError, match="no host h3 in this lab; it has h1, h2"):
        OTHER.host("h3")
