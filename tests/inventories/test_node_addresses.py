"""Which address a node gets on its host, and why; what is wrong is said before any node is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.bed import node_addresses, observed_status
from orchestrator.model.bed import BedSpec, BedStatus, HostSpec, HostStatus, NodeSpec
from orchestrator.model.errors import InfrastructureError
from orchestrator.system import host_facts

TWO_NICS = {"eth0": ("10.0.0.1", "10.0.0.7"), "ib0": ("192.168.0.1", "fd00::1"), "lo": ("127.0.0.1", "::1")}


def bed(*, address: str = "10.0.0.1", reached: str = "10.0.0.1", hosts: int = 1, **node: Any) -> BedSpec:
    names = [f"h{number}" for number in range(1, hosts + 1)]
    nodes = tuple(
        NodeSpec(name=f"n{at}", host=name, role="node", address=address, hash="", **{"interface": "", **node})
        for at, name in enumerate(names)
    )
    specs = tuple(HostSpec(name=name, connection="ssh", address=reached) for name in names)
    return BedSpec(
        name="b", provider="docker", network="host", nodes=nodes, hosts=specs, inventory="i", workdir="/w",
        shared_dir="/s", agent="a",
    )  # fmt: skip


def choice(interfaces: Mapping[str, tuple[str, ...]] = TWO_NICS, **of: Any) -> tuple[str, str]:
    """(the line of `plan`, the problem)."""
    spec = bed(**of)
    hosts = tuple(HostStatus(name=host.name, interfaces=interfaces) for host in spec.hosts)
    status = BedStatus(name="b", hosts=hosts)
    try:
        placed = node_addresses.place(spec, status)
    except InfrastructureError as error:
        return "", error.problems[0].partition(": ")[2]
    line = " ".join(node_addresses.describe(spec, status))
    assert not placed.nodes[0].address or placed.nodes[0].address in line
    return line.partition(": h1 ")[0] + ": " + line.partition(": h1 ")[2].partition(",")[0], ""


@pytest.mark.parametrize(
    ("of", "line"),
    [
        ({}, "eth0 (the address by which it is reached): 10.0.0.1"),
        ({"address": "10.0.0.7"}, "eth0 (ccbed_address): 10.0.0.7"),
        ({"interface": "ib0"}, "ib0 (ccbed_interface): 192.168.0.1"),
        ({"address": "fd00::1", "interface": "ib0"}, "ib0 (ccbed_address): fd00::1"),
        ({"address": "203.0.113.9", "reached": "203.0.113.9"}, "eth0 (the interface of its default route): 10.0.0.1"),
        ({"address": ""}, "eth0 (the interface of its default route): 10.0.0.1"),
        ({"env": {"GLOO_SOCKET_IFNAME": "ib0,eth0"}}, "eth0 (the address by which it is reached): 10.0.0.1"),
        ({"address": "fd00::5", "interfaces": {"eth0": ("fd00::5",), "lo": ("::1",)}, "reached": "fd00::5"},
         "eth0 (the address by which it is reached): fd00::5"),
    ],
)  # fmt: skip
def test_the_address_follows_the_inventory_and_the_reason_is_said(of: dict[str, Any], line: str) -> None:
    assert choice(**of) == (line, "")


@pytest.mark.parametrize(
    ("of", "problem"),
    [
        ({"interface": "ib7"}, "has no interface ib7 with an address; present: eth0 10.0.0.1 10.0.0.7, ib0"),
        ({"address": "10.9.9.9"}, "10.9.9.9 is on no interface there; present: eth0"),
        ({"address": "10.0.0.7", "interface": "ib0"}, "10.0.0.7 is not on ib0 there; present: eth0"),
        ({"env": {"GLOO_SOCKET_IFNAME": "^docker0"}}, "GLOO_SOCKET_IFNAME is ^docker0, and gloo knows no exceptions"),
        ({"env": {"GLOO_SOCKET_IFNAME": "eth0,eth9"}}, "GLOO_SOCKET_IFNAME is eth0,eth9, and there is no interface eth9"),
        ({"address": "127.0.0.1", "reached": "127.0.0.1", "hosts": 2}, "127.0.0.1 on lo is a loopback address"),
        ({"address": "", "hosts": 2, "interfaces": {"lo": ("127.0.0.1",)}}, "127.0.0.1 on lo is a loopback address"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(of: dict[str, Any], problem: str) -> None:
    assert choice(**of)[1].startswith(problem)


def test_a_bed_on_one_host_may_use_the_loopback_and_hosts_that_were_not_observed_have_no_choice() -> None:
    assert choice(address="127.0.0.1")[0] == "lo (ccbed_address): 127.0.0.1"
    assert node_addresses.choices(bed(), BedStatus(name="b", hosts=(HostStatus(name="h1"),))) == {}
    private = replace(bed(), network="private")
    assert (
        node_addresses.choices(private, BedStatus(name="b", hosts=(HostStatus(name="h1", interfaces=TWO_NICS),))) == {}
    )


def test_a_node_without_an_address_is_observed_with_that_of_its_interface() -> None:
    keeper = {"alive": True, "pid": 1, "agent": "a"}
    node = {"name": "n0", "state": "warm", "spec_hash": "", "incarnation": "", "ordinal": 0, "pid": 1, "reason": ""}
    rows = [{**node, "address": "", "own_mib": 0.0, "shared_mib": 0.0}]
    observation = {
        "keeper": keeper,
        "nodes": rows,
        "leases": [],
        "interfaces": {"eth0": ["10.0.0.1"], "ib0": ["fd00::1"]},
    }
    status = observed_status.bed_status(bed(address="", interface="ib0"), {"h1": observation})
    assert (status.node("n0").address, status.node("n0").interface) == ("fd00::1", "ib0")
    assert dict(status.hosts[0].interfaces) == {"eth0": ("10.0.0.1",), "ib0": ("fd00::1",)}


def test_all_addresses_of_this_host_are_read_and_the_loopback_comes_last() -> None:
    known = host_facts.interfaces()
    assert list(known)[-1] == "lo" and "127.0.0.1" in known["lo"]
    assert not any(address.startswith("fe80") for addresses in known.values() for address in addresses)


def test_addresses_that_will_pass_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"fd{'0' * 29}{last} 02 40 00 {flags} eth0" for last, flags in ((1, "01"), (2, "20"), (3, "80"), (4, "40"))]
    monkeypatch.setattr(host_facts, "_lines", lambda path: rows)
    assert [address for _, address in host_facts._ipv6_addresses()] == ["fd00::3", "fd00::1", "fd00::2"]


def test_a_refusal_does_not_say_that_nothing_was_changed() -> None:
    """The hosts may have been prepared before."""
    status = BedStatus(name="b", hosts=(HostStatus(name="h1", interfaces=TWO_NICS),))
    with pytest.raises(InfrastructureError) as refused:
        node_addresses.place(bed(interface="ib7"), status)
    assert "nothing" not in refused.value.hint
