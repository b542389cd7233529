"""The emulated fabric before anything is made: links as they are written, ports, names, what ip and tc are told, what is missing."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.core.bed import diff, links, nodes_from_inventory
from orchestrator.core.inventory import parse_inventory
from orchestrator.core.spec import planning
from orchestrator.model import codec
from orchestrator.model.bed import BedSpec, LinkSpec
from orchestrator.model.errors import InfrastructureError, UsageError
from orchestrator.node.keeper import fabric as node_fabric
from orchestrator.node.oslayer import namespaces, traffic_control
from orchestrator.providers import preflight
from orchestrator.providers.process import fabric_checks as needs

from . import beds
from .test_plan import CATALOGUE, trial

INVENTORY = Path(__file__).parents[2] / "inventories" / "fabric.yml"
FAST = LinkSpec(rate=10**9, burst=50_000)
TIERS = LinkSpec(rate=10**8, burst=5000, groups=2, uplink=2 * 10**8, uplink_burst=9000)


def bed(link: str = "{rate: 1gbit}") -> BedSpec:
    text = INVENTORY.read_text().replace("{rate: 1gbit}", link)
    return nodes_from_inventory.assemble_bed(
        parse_inventory.parse(text, "fabric.yml"), agent="a" * 64, state="/state", home="/h"
    )


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({"rate": "1gbit", "burst": "64k"}, LinkSpec(rate=10**9, burst=65536)),
        ({"rate": "145mbit", "burst": 4000}, LinkSpec(rate=145_000_000, burst=4000)),
        ({"rate": "1.5Gbit/s", "burst": "1m"}, LinkSpec(rate=1_500_000_000, burst=1024**2)),
        ({"delay": "500us", "loss": "0.1%"}, LinkSpec(delay_s=0.0005, loss=0.001)),
    ],
)
def test_a_link_is_read_in_the_units_of_tc(value: dict[str, object], wanted: LinkSpec) -> None:
    assert links.parse(value) == wanted


def test_a_bucket_that_is_not_given_grows_with_the_rate_and_holds_some_frames() -> None:
    assert links.parse({"rate": "8kbit"}).burst == links.BURST_FLOOR
    assert links.parse({"rate": "10gbit"}).burst == 10 * links.parse({"rate": "1gbit"}).burst > links.BURST_FLOOR
    tiers = links.parse({"groups": 2, "uplink": "10gbit"})
    assert (tiers.burst, tiers.uplink_burst) == (0, links.default_burst(10**10))


def test_a_link_is_told_in_short() -> None:
    assert links.text(FAST) == "1 Gbit/s tbf, burst 50 kB"
    assert links.text(TIERS) == "100 Mbit/s tbf, burst 5 kB, 2 groups behind uplinks of 200 Mbit/s"
    assert links.text(LinkSpec(delay_s=0.001, loss=0.001)) == "delay 1 ms, loss 0.1%"
    assert (links.text(None), links.text(LinkSpec())) == ("unshaped", "unshaped")


def test_the_inventory_gives_each_node_a_port_an_address_and_the_link() -> None:
    spec = bed()
    assert [(node.name, node.address, node.interface) for node in spec.nodes] == [
        (f"n{index}", f"10.77.0.{index + 1}", "eth0") for index in range(5)
    ]
    assert (spec.fabric, spec.network, spec.hosts) == (True, "private", ())
    assert spec.link == links.parse({"rate": "1gbit"}) and {n.port.link for n in spec.nodes if n.port} == {spec.link}
    assert codec.build(BedSpec, codec.plain(spec)) == spec


def test_a_plan_has_the_link_of_its_bed() -> None:
    spec = bed()
    about = {"run": "r", "payload": "/p", "capabilities": {"localhost": frozenset({"kill"})}}
    made = planning.plan(trial(), spec, beds.up(spec), CATALOGUE, **about)  # type: ignore[arg-type]
    assert made.link == spec.link and made.nodes["n1"].interface == "eth0"
    assert planning.plan(trial(), beds.local(), beds.up(beds.local()), CATALOGUE, **about).link is None  # type: ignore[arg-type]


def test_another_link_is_the_reason_for_which_nodes_are_replaced() -> None:
    before, wanted = bed(), bed("{rate: 145mbit, burst: 8k}")
    changes = diff.diff(wanted, beds.up(before), before).changes
    assert {change.action for change in changes} == {"replace"}
    assert "link 1 Gbit/s tbf" in changes[0].reason and "-> 145 Mbit/s tbf, burst 8.19 kB" in changes[0].reason
    assert diff.diff(before, beds.up(before), before).empty


def test_members_are_spread_over_the_groups_in_order_and_spares_are_with_the_first() -> None:
    roles = ["node"] * 5 + ["spares"] * 2
    assert [port.group for port in links.ports(roles, [TIERS] * 7)] == [0, 0, 0, 1, 1, 0, 0]
    assert [port.group for port in links.ports(["node"] * 4 + ["spares"], [None] * 5)] == [0] * 5
    assert links.address(0) == "10.77.0.1" and links.address(250) == "10.77.1.1"


def test_names_resolve_to_the_nodes_and_this_machines_other_names_stay() -> None:
    own = ["127.0.0.1 localhost vm # n0\n", "192.168.1.5 n1 other", "# a remark", "10.77.0.1 theirs"]
    text = links.hosts_file({"n0": "10.77.0.1", "n1": "10.77.0.2"}, own)
    mapped = "::ffff:10.77.0.1\tn0.fabric\n::ffff:10.77.0.2\tn1.fabric\n"
    assert text == f"10.77.0.1\tn0\n10.77.0.2\tn1\n{mapped}127.0.0.1 localhost vm # n0\n# a remark\n"


def test_both_ends_of_a_link_are_shaped_and_a_delay_is_on_the_way_once() -> None:
    assert traffic_control.port_rate_commands("n3", FAST) == [
        f"qdisc add dev n3 root handle 1: tbf rate 1000000000bit burst 50000 limit {traffic_control.QUEUE_BYTES}"
    ]
    slow = LinkSpec(rate=10**6, burst=2000, delay_s=0.0015, loss=0.001)
    assert traffic_control.node_rate_commands(slow) == [
        f"qdisc add dev eth0 root handle 1: tbf rate 1000000bit burst 2000 limit {traffic_control.QUEUE_BYTES}",
        f"qdisc add dev eth0 parent 1:1 netem limit {traffic_control.QUEUE_PACKETS} delay 1500us loss 0.1%",
    ]
    assert len(traffic_control.port_rate_commands("n3", slow)) == 1
    assert traffic_control.node_rate_commands(LinkSpec(loss=0.02)) == [
        f"qdisc add dev eth0 root netem limit {traffic_control.QUEUE_PACKETS} loss 2%"
    ]
    assert (
        traffic_control.node_rate_commands(LinkSpec())
        == traffic_control.port_rate_commands("n3", LinkSpec())
        == traffic_control.uplink_commands(FAST)
        == []
    )


def test_a_node_has_the_same_hardware_address_whenever_it_is_started() -> None:
    assert traffic_control.cable_commands("n3", "10.77.0.4", 7) == [
        "link add eth0 address 02:cc:0a:4d:00:04 type veth peer name n3 netns /proc/self/fd/7"
    ]


def test_packets_are_smaller_than_the_bucket_so_that_none_is_cut_into_frames() -> None:
    def packets(link: LinkSpec) -> list[str]:
        return [line for line in traffic_control.node_commands("10.77.0.4", 16, "t/n3/1", link) if "gso" in line]

    assert packets(LinkSpec(rate=10**9, burst=64_000)) == ["link set dev eth0 gso_max_size 40000"]
    assert packets(LinkSpec(rate=10**8, burst=1600)) == [
        f"link set dev eth0 gso_max_size {traffic_control.PACKET_LEAST}"
    ]
    assert packets(LinkSpec(rate=10**11, burst=10**7)) == ["link set dev eth0 gso_max_size 65536"]
    assert packets(LinkSpec()) == []


def test_a_connection_has_two_packets_in_the_queue_of_a_shaper_that_loses_nothing() -> None:
    shaped = traffic_control.tcp_settings(LinkSpec(rate=10**9, burst=64_000))
    assert shaped["tcp_congestion_control"] == "reno" and shaped["tcp_limit_output_bytes"] == "80000"
    assert "tcp_limit_output_bytes" not in traffic_control.tcp_settings(LinkSpec())
    assert traffic_control.tcp_settings(LinkSpec(rate=10**9, burst=64_000, loss=0.01)) == {}


def test_one_switch_is_a_bridge_and_two_tiers_are_leaves_with_shaped_uplinks_to_a_core() -> None:
    def bridges(link: LinkSpec) -> list[str]:
        return [
            line.split()[2] for line in traffic_control.switch_commands(link, "t/switch") if " type bridge " in line
        ]

    assert bridges(FAST) == ["leaf0"]
    assert bridges(TIERS) == ["leaf0", "leaf1", "core"]
    assert [line.split()[3] for line in traffic_control.uplink_commands(TIERS)] == ["up0", "down0", "up1", "down1"]
    assert all("rate 200000000bit burst 9000 " in line for line in traffic_control.uplink_commands(TIERS))
    assert (
        "link set dev down1 master core alias t/switch/uplink addrgenmode none up"
        in traffic_control.switch_commands(TIERS, "t/switch")
    )
    assert traffic_control.port_commands("n3", 1, "t/n3/1") == [
        "link set dev n3 master leaf1 alias t/n3/1 addrgenmode none up"
    ]


def test_only_what_the_link_asks_for_is_tried() -> None:
    assert {program: list(lines) for program, lines in links.probe_commands(FAST).items()} == {
        "ip": ["bridge", "veth"], "tc": ["tbf"],
    }  # fmt: skip
    assert list(links.probe_commands(LinkSpec(loss=0.1))["tc"]) == ["netem"]
    assert list(links.probe_commands(None)["tc"]) == []


def test_what_the_kernel_lacks_is_told_by_name_with_the_next_step() -> None:
    output = "Error: Specified qdisc kind is unknown.\nCommand failed -:2\n"
    (lack,) = links.parse_probe(1, output, ["tbf", "netem"], "6.18")
    assert lack.text == "kernel 6.18 has no netem (delay and loss)" and "remove delay and loss" in lack.fix
    (lack,) = links.parse_probe(1, "unshare: unshare failed: Operation not permitted", ["tbf"], "6.18")
    assert "cannot create network namespaces: unshare: unshare failed" in lack.text and "CAP_SYS_ADMIN" in lack.fix
    assert links.parse_probe(0, "", ["tbf"], "6.18") == ()


def test_a_missing_program_and_a_missing_right_are_told_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(node_fabric, "find_program", lambda name: None if name == "tc" else f"/sbin/{name}")
    with pytest.raises(InfrastructureError) as refused:
        needs.refuse(bed())
    assert list(refused.value.problems) == ["bed fabric: program tc is missing"]
    assert refused.value.hint == "install iproute2"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(InfrastructureError, match=r"needs root \(this is uid 1000\)"):
        needs.refuse(bed())


def test_what_keeps_both_programs_from_being_tried_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = subprocess.CompletedProcess([], 1, "", "unshare: unshare failed: Operation not permitted")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(node_fabric, "find_program", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(subprocess, "run", lambda *args, **named: denied)
    with pytest.raises(InfrastructureError) as refused:
        needs.refuse(bed())
    assert len(refused.value.problems) == 1 and "cannot create network namespaces" in refused.value.problems[0]


def test_a_shaper_that_the_kernel_lacks_is_told_where_the_inventory_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "f.yml"
    file.write_text("all:\n  vars:\n    # ccbed_link: what a link is\n    ccbed_link: {delay: 1ms}\n")
    monkeypatch.setattr(
        needs, "lacking", lambda link: (links.missing_kind("netem", "6.18"), links.missing_kind("veth", "6.18"))
    )
    with pytest.raises(InfrastructureError) as refused:
        needs.refuse(dataclasses.replace(bed(), inventory=str(file)))
    assert list(refused.value.problems) == [
        f"{file}:4: ccbed_link: kernel 6.18 has no netem (delay and loss)",
        "bed fabric: kernel 6.18 has no veth (links)",
    ]


def test_a_namespace_that_a_process_does_not_hold_is_not_found() -> None:
    own = namespaces.open_current()

    try:
        held = namespaces.open_held(os.getpid(), namespaces.namespace_name(own))
        assert held >= 0 and namespaces.namespace_name(held) == namespaces.namespace_name(own)
        os.close(held)
    finally:
        os.close(own)
    assert namespaces.open_held(os.getpid(), "net:[1]") == -1


def test_preflight_asks_the_nodes_of_a_fabric_themselves() -> None:
    requests: list[tuple[str, str]] = []

    class Prober:
        def probe_host(self, host: str, op: str, deadline_s: float, **args: object) -> object:
            raise AssertionError("the machine is not asked")

        def probe_node(self, node: str, op: str, deadline_s: float, **args: object) -> object:
            requests.append((node, op))
            raise OSError("does not answer")

    findings = preflight.check(bed(), beds.up(bed()), Prober())
    assert {node for node, op in requests if op == "survey"} == {"n0", "n1", "n2", "n3", "n4"}
    assert any(finding.outcome == "fail" and "n3" in finding.name for finding in findings)


def test_a_wrong_link_is_quoted_as_it_was_written() -> None:
    with pytest.raises(UsageError) as refused:
        bed("{rate: 145mbps}")
    (problem,) = refused.value.problems
    assert "ccbed_link" in problem and "(got {rate: 145mbps})" in problem and "'" not in problem
