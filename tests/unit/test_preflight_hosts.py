"""Preflight of several hosts: real connections, look-ups, tokens and clocks; here every host is an address of this machine."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Never

import pytest

from orchestrator.model.bed import BedSpec, BedStatus, ContainerSpec, HostSpec, NodeSpec
from orchestrator.model.plan import HostClock
from orchestrator.model.requirements import Requirement
from orchestrator.node import preflight_checks
from orchestrator.node.oslayer import gpus
from orchestrator.providers import preflight

from . import beds

Answer = Callable[..., Any]


@dataclass
class Hosts:
    """Asks this machine in the name of each host; ``odd``: (host, op) -> another answer. ``roots``: a host's own shared dir."""

    odd: dict[tuple[str, str], Answer] = field(default_factory=dict)
    roots: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)

    def probe_host(self, host: str, op: str, deadline_s: float, **args: Any) -> Any:
        self.requests.append((host, op))
        args |= {"shared_dir": self.roots[host]} if "shared_dir" in args and host in self.roots else {}
        if (host, op) in self.odd:
            return self.odd[host, op](**args)
        if op == "images":
            return {"ccbed/cpu": "sha256:aa"}
        answer = preflight_checks.OPS[op](**args)
        if op == "survey":
            number = int(host.removeprefix("h")) + 2
            answer["interfaces"] = {"eth0": [f"127.0.0.{number}"]}
        return answer

    def probe_node(self, node: str, op: str, deadline_s: float, **args: Any) -> Any:
        self.requests.append((node, f"{op} inside"))
        number = int(node.removeprefix("n"))
        if (node, op) in self.odd:
            return self.odd[node, op](**args)
        if op == "resolve":
            return {name: [f"127.0.0.{int(name[1:]) + 2}"] for name in args["names"]}
        answer: Any = preflight_checks.OPS[op](**args)
        return {**answer, "interfaces": {"eth0": [f"127.0.0.{number + 2}"]}} if op == "survey" else answer


@pytest.fixture(autouse=True)
def _no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses here have no names, and nobody far away is asked for them."""

    def nameless(address: str) -> Never:
        raise OSError("no name")

    monkeypatch.setattr(socket, "gethostbyaddr", nameless)


def bed(tmp_path: Path, count: int = 3, **change: Any) -> BedSpec:
    hosts = tuple(HostSpec(name=f"h{i}", connection="ssh", address=f"127.0.0.{i + 2}") for i in range(count))
    box = ContainerSpec(image="ccbed/cpu")
    nodes = tuple(
        NodeSpec(
            name=f"n{i}", host=f"h{i}", role="node", address=f"127.0.0.{i + 2}", hash="a", interface="", container=box
        )
        for i in range(count)
    )
    (tmp_path / "shared").mkdir(exist_ok=True)
    made = BedSpec(
        name="b", provider="docker", nodes=nodes, inventory="b.yml", workdir=str(tmp_path), shared_dir=str(tmp_path / "shared"),
        agent="f" * 12, hosts=hosts, hostdir=str(tmp_path), network="host",
    )  # fmt: skip
    return dataclasses.replace(made, **change)


def examined(of: BedSpec, hosts: Hosts) -> preflight.Checked:
    return preflight.examine(of, BedStatus(**{**vars_of(beds.up(of)), "keeper_hash": of.agent}), hosts)


def unreachable(*problems: str) -> Answer:
    return lambda **args: {**preflight_checks.check_peers(**args), "problems": list(problems)}


def sees(shm: int | str, *, same: bool = True) -> Answer:
    return lambda pids, shared_dir: {node: {"shm": shm, "same": same} for node in pids}


def vars_of(status: BedStatus) -> dict[str, Any]:
    return {name.name: getattr(status, name.name) for name in dataclasses.fields(status)}


def wrong(checked: preflight.Checked) -> list[tuple[str, str, str]]:
    return [
        (finding.name, finding.outcome, finding.text) for finding in checked.requirements if finding.outcome != "ok"
    ]


def test_a_good_bed_is_said_to_be_good_in_one_line_for_each_kind(tmp_path: Path) -> None:
    hosts = Hosts()
    checked = examined(bed(tmp_path), hosts)
    assert wrong(checked) == []
    names = [finding.name for finding in checked.requirements]
    assert names == ["address", "reach", "names", "clocks", "shm", "disk", "shared", "image", "agent ffffff"]
    assert next(finding.text for finding in checked.requirements if finding.name == "reach") == "6 connections ok"
    assert checked.gaps == ()
    assert list((tmp_path / "shared").iterdir()) == [], "no token is left"


def test_every_finding_that_is_not_ok_has_its_fix(tmp_path: Path) -> None:
    hosts = Hosts(roots={"h2": str(tmp_path / "own")})
    hosts.odd["h1", "meet"] = unreachable("No route to host", "No route to host")
    hosts.odd["h0", "images"] = lambda engine, wanted: {"ccbed/cpu": "sha256:bb"}
    checked = examined(bed(tmp_path), hosts)
    assert {finding.name for finding in checked.requirements if finding.outcome != "ok"} == {"reach", "image", "shared"}
    assert all(finding.fix for finding in checked.requirements if finding.outcome != "ok")


def test_who_cannot_be_reached_from_where_is_named(tmp_path: Path) -> None:
    hosts = Hosts()
    hosts.odd["h1", "meet"] = unreachable("", "No route to host")
    (problems,) = wrong(examined(bed(tmp_path), hosts))
    assert problems[:2] == ("reach", "fail")
    assert problems[2].startswith("h1 cannot reach n2 at 127.0.0.4:")
    assert problems[2].endswith(": No route to host")


def test_every_node_resolves_the_names_of_all_nodes_and_a_stale_one_is_named(tmp_path: Path) -> None:
    hosts = Hosts()
    hosts.odd["n2", "resolve"] = lambda names, limit_s: {"n0": ["127.0.0.9"], "n1": [], "n2": ["127.0.0.4"]}
    spec = bed(tmp_path)
    assert wrong(examined(spec, hosts)) == [
        ("names", "fail", "n2 resolves n0 to 127.0.0.9, not to 127.0.0.2"),
        ("names", "warn", "n2 resolves n1 to no address, not to 127.0.0.3"),
    ]
    assert {node for node, op in hosts.requests if op == "resolve inside"} == {"n0", "n1", "n2"}


def test_a_name_is_resolved_as_programs_of_the_node_resolve_it() -> None:
    addresses = preflight_checks.resolve_nodes(["localhost", "no-such-node.invalid"], 2.0)
    assert "127.0.0.1" in addresses["localhost"] and addresses["no-such-node.invalid"] == []


def test_private_networks_of_several_hosts_are_named_as_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet = unreachable("No route to host", "No route to host")
    monkeypatch.setattr(preflight_checks, "OPS", {**preflight_checks.OPS, "meet": meet})
    checked = examined(bed(tmp_path, network="private"), Hosts())
    fixes = {finding.fix for finding in checked.requirements if finding.name == "reach"}
    assert fixes == {"remove ccbed_network: private, in which containers reach those of their own host only"}


def test_a_host_that_is_not_there_is_one_finding_and_the_others_are_looked_at(tmp_path: Path) -> None:
    def silent(**_: Any) -> Any:
        raise TimeoutError("does not answer")

    hosts = Hosts()
    hosts.odd["h1", "survey"] = silent
    checked = examined(bed(tmp_path), hosts)
    assert wrong(checked) == [("host h1", "fail", "does not answer")]
    assert next(finding.text for finding in checked.requirements if finding.name == "reach") == "2 connections ok"


def test_a_directory_that_is_not_shared_is_told_and_no_recovery_is_planned(tmp_path: Path) -> None:
    hosts = Hosts(roots={"h2": str(tmp_path / "own")})
    checked = examined(bed(tmp_path), hosts)
    assert wrong(checked)[0][:2] == ("shared", "warn")
    reasons = {"h2 does not see what h0 writes there", "h2 does not see what h1 writes there"}
    reasons |= {"h0 does not see what h2 writes there", "h1 does not see what h2 writes there"}
    assert {gap.reason for gap in checked.gaps} == reasons
    assert next(finding.fix for finding in checked.requirements if finding.name == "shared").startswith(
        "mount one file system there"
    )


def test_a_directory_that_cannot_be_written_is_not_shared_either(tmp_path: Path) -> None:
    hosts = Hosts(roots={"h1": "/proc/nowhere"})
    first = examined(bed(tmp_path), hosts).gaps[0]
    assert (sorted(first.nodes), first.other_nodes) == (["n1"], None)
    assert first.reason.startswith("h1 cannot write there: ")


def test_an_address_that_is_on_no_interface_or_on_another_one_is_named(tmp_path: Path) -> None:
    of = bed(tmp_path)
    first = dataclasses.replace(of.nodes[0], address="127.0.0.9")
    second = dataclasses.replace(of.nodes[1], interface="eth7")
    problems = wrong(examined(dataclasses.replace(of, nodes=(first, second, of.nodes[2])), Hosts()))
    assert [text for name, outcome, text in problems if (name, outcome) == ("address", "fail")] == [
        "n0: 127.0.0.9 is on no interface of h0; present: eth0 127.0.0.2",
        "n1: h1 has no interface eth7 with an address; present: eth0 127.0.0.3",
    ]


def test_nodes_of_one_host_with_the_same_mistake_are_one_finding_and_one_fix(tmp_path: Path) -> None:
    of = bed(tmp_path)
    nodes = tuple(
        dataclasses.replace(n, name=f"n{i}", host=host, address=address, interface="eth9")
        for i, (n, host, address) in enumerate(
            (n, n.host, n.address) for n in (*of.nodes, *of.nodes) if n.host in ("h0", "h1")
        )
    )
    checked = examined(dataclasses.replace(of, nodes=nodes), Hosts())
    refused = preflight.failure(finding for finding in checked.requirements if finding.name == "address")
    assert refused is not None
    assert refused.problems == (
        "preflight: address: n0 n2: h0 has no interface eth9 with an address; present: eth0 127.0.0.2",
        "preflight: address: n1 n3: h1 has no interface eth9 with an address; present: eth0 127.0.0.3",
    )
    assert refused.hint == "set ccbed_address or ccbed_interface of that host"
    assert preflight.summary(checked.requirements).startswith("address FAILED · ")


def test_what_is_well_is_said_in_a_line_and_what_is_not_only_named() -> None:
    findings = (
        Requirement(name="disk", outcome="ok", text="9 GiB ok"),
        Requirement(name="names", outcome="warn", text="n0 is slow", fix="a line"),
        Requirement(name="names", outcome="warn", text="n1 is slow", fix="a line"),
    )
    assert preflight.summary(findings) == "disk 9 GiB ok · names warned"
    assert preflight.failure(findings) is None


class SlowError(Exception):
    """The look-up takes longer than its limit."""


def look_ups(monkeypatch: pytest.MonkeyPatch, slow: str) -> list[str]:
    """The addresses that are looked up: none has a name, and ``slow`` takes longer than its limit; no time passes."""
    requested: list[str] = []

    def look_up(address: str) -> Never:
        requested.append(address)
        raise SlowError if address == slow else OSError("no name")

    def timed(work: Callable[[], Any], limit_s: float) -> tuple[Any, float]:
        try:
            return work(), 0.0
        except SlowError:
            return None, limit_s
        except OSError:
            return None, 0.0

    monkeypatch.setattr(socket, "gethostbyaddr", look_up)
    monkeypatch.setattr(preflight_checks, "_timed", timed)
    return requested


def test_a_slow_look_up_is_told_with_the_line_that_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look_ups(monkeypatch, slow="127.0.0.3")
    findings = [finding for finding in examined(bed(tmp_path), Hosts()).requirements if finding.outcome != "ok"]
    assert [(finding.outcome, finding.text) for finding in findings] == [
        ("warn", f"h{i} takes over 0.5 s to look up 127.0.0.3") for i in range(3)
    ]
    assert "add a line for 127.0.0.3 to /etc/hosts of h0" in findings[0].fix


def test_a_mapped_address_without_a_name_is_well_and_one_that_takes_long_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c10d asks for the names of its peers on IPv6 sockets: that another form of the address has one does not help."""
    requested = look_ups(monkeypatch, slow="::ffff:127.0.0.3")
    findings = [finding for finding in examined(bed(tmp_path), Hosts()).requirements if finding.outcome != "ok"]
    assert {f"::ffff:127.0.0.{i}" for i in (2, 3, 4)} <= set(requested)
    assert [(finding.outcome, finding.text) for finding in findings] == [
        ("fail", f"h{i} takes over 1 s to look up ::ffff:127.0.0.3, as connections of torch do") for i in range(3)
    ]
    assert "add a line for ::ffff:127.0.0.3 to /etc/hosts of h0" in findings[0].fix


def test_work_that_takes_longer_than_its_limit_is_left_to_itself() -> None:
    is_over = threading.Event()
    assert preflight_checks._timed(is_over.wait, 0.01) == (None, 0.01)
    is_over.set()
    result, duration_s = preflight_checks._timed(is_over.wait, 60)
    assert result is True and duration_s < 60


def test_a_name_that_leads_elsewhere_is_told(tmp_path: Path) -> None:
    hosts = Hosts()

    def survey(**args: Any) -> Any:
        answer = preflight_checks.survey(**args)
        names = [
            {"address": "127.0.0.3", "name": "n1.lab", "reverse_s": 0.001, "back": ["10.9.9.9"], "forward_s": 0.001}
        ]
        return {**answer, "interfaces": {"eth0": ["127.0.0.2"]}, "names": names}

    hosts.odd["h0", "survey"] = survey
    assert wrong(examined(bed(tmp_path), hosts)) == [
        ("names", "warn", "on h0 127.0.0.3 is n1.lab, and n1.lab is 10.9.9.9")
    ]


def test_clocks_of_other_boots_are_measured_with_what_nobody_knows(tmp_path: Path) -> None:
    hosts = Hosts()

    def clock() -> dict[str, Any]:
        time.sleep(0.004)
        return {"boot": "other", "mono": time.monotonic() - 5000.0, "wall": time.time() - 7.0}

    hosts.odd["h1", "clock"] = clock
    checked = examined(bed(tmp_path), hosts)
    assert list(checked.clocks) == ["other"]
    measured: HostClock = checked.clocks["other"]
    assert measured.host == "h1"
    assert abs(measured.offset_s - 5000.0) <= measured.uncertainty_s
    assert 0.001 < measured.uncertainty_s < 10
    (text,) = [text for name, _, text in wrong(checked) if name == "clocks"]
    assert re.fullmatch(r"h1 is [67]\.\d s behind this machine", text), text  # the measurement has its uncertainty


def test_gpus_that_are_missing_or_ill_are_told(tmp_path: Path) -> None:
    of = bed(tmp_path)
    nodes = tuple(dataclasses.replace(node, gpus=1) for node in of.nodes)
    hosts = Hosts()
    hosts.odd["h0", "gpus"] = lambda: {"count": 1, "problems": []}
    hosts.odd["h1", "gpus"] = lambda: {"count": 1, "problems": ["GPU 0 (H200): retired_pages.pending is Yes"]}
    hosts.odd["h2", "gpus"] = lambda: {"reason": "nvidia-smi: not found"}
    problems = wrong(examined(dataclasses.replace(of, nodes=nodes), hosts))
    assert problems == [
        ("gpus h1", "fail", "GPU 0 (H200): retired_pages.pending is Yes"),
        ("gpus h2", "fail", "nvidia-smi: not found"),
    ]


def test_the_shm_of_containers_is_measured_where_it_can_be_and_else_as_it_was_given(tmp_path: Path) -> None:
    hosts = Hosts()
    hosts.odd["h0", "inside"] = sees(512 << 20)
    hosts.odd["h1", "inside"] = sees("/proc/7/root: Permission denied")
    hosts.odd["h2", "inside"] = sees(700 << 20)
    of = bed(tmp_path)
    result = next(host for host in examined(of, hosts).requirements if host.name == "shm")
    assert (result.outcome, result.text) == ("ok", "512 MiB ok")
    small = dataclasses.replace(of.nodes[1], container=ContainerSpec(image="ccbed/cpu", shm_size="32m"))
    checked = examined(dataclasses.replace(of, nodes=(of.nodes[0], small, of.nodes[2])), hosts)
    assert wrong(checked) == [("shm", "fail", "32 MiB free, 64 MiB needed")]
    assert next(finding.fix for finding in checked.requirements if finding.name == "shm").startswith(
        "set ccbed_shm_size of h1 to more"
    )


def test_what_a_process_sees_is_looked_at_from_outside(tmp_path: Path) -> None:
    result = preflight_checks.inspect_processes({"own": os.getpid(), "gone": 2**22 + 1}, str(tmp_path))
    expected = os.statvfs("/dev/shm")
    assert abs(result["own"]["shm"] - expected.f_bavail * expected.f_frsize) < 64 << 20
    assert result["own"]["same"] is True
    assert "No such file" in result["gone"]["shm"]
    assert result["gone"]["same"] is None


def test_a_directory_that_was_mounted_after_a_container_was_started_is_not_shared_with_it(tmp_path: Path) -> None:
    hosts = Hosts()
    hosts.odd["h1", "inside"] = sees(1 << 30, same=False)
    checked = examined(bed(tmp_path), hosts)
    (gap,) = checked.gaps
    assert (sorted(gap.nodes), gap.other_nodes) == (["n1"], None)
    assert gap.reason == "the container of n1 has another directory there than its host"
    finding = next(finding for finding in checked.requirements if finding.name == "shared")
    assert (finding.outcome, finding.fix.startswith("start the containers again: ccbed down b")) == ("warn", True)


def test_the_table_of_nvidia_smi_is_read() -> None:
    text = "0, GPU-1, NVIDIA H200, 0, No\n1, GPU-2, NVIDIA H200, 3, No\n2, GPU-3, NVIDIA H200, [N/A], Yes\n"
    assert gpus.parse_health(text) == {
        "count": 3,
        "problems": [
            "GPU 1 (NVIDIA H200): ecc.errors.uncorrected.volatile.total is 3",
            "GPU 2 (NVIDIA H200): retired_pages.pending is Yes",
        ],
    }


def test_containers_with_a_network_of_their_own_are_asked_each_inside_of_it(tmp_path: Path) -> None:
    hosts = Hosts()
    checked = examined(bed(tmp_path, network="private"), hosts)
    assert wrong(checked) == []
    assert {node for node, op in hosts.requests if op == "survey inside"} == {"n0", "n1", "n2"}
    assert {op for _, op in hosts.requests if not op.endswith(" inside")} == {"clock", "images", "inside", "space"}


def test_the_disk_of_containers_is_that_of_their_directories_on_the_host(tmp_path: Path) -> None:
    """What a container sees of it at their path is its own root, which may be small or a tmpfs."""
    hosts, gib = Hosts(), 1024**3
    for host in ("h0", "h1", "h2"):
        hosts.odd[host, "space"] = lambda paths: dict.fromkeys(paths, 65 * gib)
    checked = examined(bed(tmp_path, network="private"), hosts)
    (disk,) = [finding for finding in checked.requirements if finding.name == "disk"]
    assert (disk.outcome, disk.text) == ("ok", "65 GiB ok")
    hosts.odd["h1", "space"] = lambda paths: dict.fromkeys(paths, 1)
    (disk,) = [host for host in examined(bed(tmp_path, network="private"), hosts).requirements if host.name == "disk"]
    assert disk.outcome == "fail" and "on h1" in disk.fix


def test_what_holds_a_port_is_gone_when_it_is_let_go() -> None:
    port, pid, start = preflight_checks.hold_port("127.0.0.1", 30.0)
    assert preflight_checks.try_connections([["127.0.0.1", port]], 1.0) == [""]
    preflight_checks.release_ports([[pid, start]])
    assert preflight_checks.try_connections([["127.0.0.1", port]], 1.0) == ["Connection refused"]


def test_tokens_cannot_leave_their_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a plain name"):
        preflight_checks.write_token(str(tmp_path), "../x", "h0")
    with pytest.raises(ValueError, match="not a plain name"):
        preflight_checks.write_token(str(tmp_path), "abc", "../h0")


def test_a_check_says_its_value_or_its_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight_checks.main("space", {"paths": ["/nowhere/at/all"]}) == 0
    assert (
        preflight_checks.main("meet", {"targets": [["127.0.0.1", "x"]], "limit_s": 1, "shared_dir": "/", "token": "t"})
        == 0
    )
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith('{"value": {"/nowhere/at/all": ')
    assert second.startswith('{"problem": ')


def test_what_is_free_on_each_host_and_in_each_limited_container_is_measured(tmp_path: Path) -> None:
    hosts = Hosts()
    hosts.odd["h1", "inside"] = lambda pids, shared_dir: {"n1": {"shm": 1 << 30, "memory": 5 << 30, "same": True}}
    free_memory = examined(bed(tmp_path), hosts).free_memory
    assert [(free.location, free.nodes) for free in free_memory] == [
        ("host h0", ("n0",)), ("host h1", ("n1",)), ("host h2", ("n2",)), ("the container of n1", ("n1",)),
    ]  # fmt: skip
    assert free_memory[-1].size_bytes == 5 << 30 and all(free.size_bytes > 1 << 20 for free in free_memory)
