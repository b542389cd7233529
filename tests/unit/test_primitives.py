"""Primitives of faults on real processes and files: signals, files, limits by cgroup and by duty cycle, programs."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.act import Primitive
from orchestrator.node.files import label
from orchestrator.node.keeper import container_node, host_primitives, node_primitives, primitive_runner
from orchestrator.node.keeper.node_protocol import Unsupported
from orchestrator.node.oslayer import cgroups, namespaces, processes
from orchestrator.node.oslayer.event_loop import Loop
from orchestrator.node.oslayer.processes import Process
from orchestrator.node.oslayer.stops import DutyCycle, Stops

from .fault_stand import results_of

SPIN = "while True: pass"


@dataclass
class Stand:
    """A node of one process, as far as primitives need it."""

    directory: Path
    name: str = "n2"
    pid: int = 0
    limits: list[tuple[dict[str, int], bool]] = field(default_factory=list)
    stops: Stops = field(default_factory=Stops)

    def processes(self) -> list[Process]:
        process = processes.find(self.pid) if self.pid else None
        return [process] if process and process.state not in processes.EXITED else []

    def agent(self) -> Process | None:
        return next(iter(self.processes()), None)

    def rank(self, number: int) -> Process | None:
        return self.agent() if number == 2 else None

    def send_signal(self, targets: list[Process], number: int) -> list[int]:
        return self.stops.send(targets, number)

    def is_stopped(self, process: Process) -> bool:
        return self.stops.is_stopped(process)

    def limit(self, amounts: dict[str, int], on: bool) -> dict[str, Any]:
        self.limits.append((amounts, on))
        return {}


@pytest.fixture
def node(tmp_path: Path) -> Any:
    return Stand(tmp_path)


@pytest.fixture
def spinning(node: Any) -> Iterator[Any]:
    """The node with a process that uses all the CPU that it gets."""
    with subprocess.Popen([sys.executable, "-c", SPIN]) as process:
        node.pid = process.pid
        yield node
        process.kill()


def until(loop: Loop, is_true: Callable[[], object], limit_s: float = 600.0) -> None:
    end = time.monotonic() + limit_s
    loop.call_every(0.005, lambda: None)
    while not is_true():
        assert time.monotonic() < end, "the state was not reached"
        loop.run_once()


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [{"rank": 2}, {"process": "agent"}])
def test_a_signal_reaches_one_process_and_is_observed(spinning: Any, target: dict[str, Any]) -> None:
    stop, kill = (Primitive(kind="signal", args={"signal": name, **target}) for name in ("STOP", "KILL"))
    assert not node_primitives.observe(stop, spinning)[0]
    assert node_primitives.perform(stop, spinning) == {"signalled": [spinning.pid]}
    until(Loop(), lambda: node_primitives.observe(stop, spinning)[0])
    assert not node_primitives.observe(kill, spinning)[0]
    node_primitives.perform(kill, spinning)
    until(Loop(), lambda: node_primitives.observe(kill, spinning)[0])


# --- files ------------------------------------------------------------------------------------------------------------


def file(state: str, path: str = "fill", **more: Any) -> Primitive:
    return Primitive(kind="file", args={"state": state, "path": path, **more})


@pytest.mark.parametrize(("more", "size"), [({"size_mib": 2}, 2 << 20), ({"text": "x"}, 1)])
def test_a_file_of_a_fault_is_created_and_removed(node: Any, more: dict[str, Any], size: int) -> None:
    present, absent = file("present", **more), file("absent", **more)
    assert not node_primitives.observe(present, node)[0]
    for _ in range(2):
        node_primitives.perform(present, node)
        reached, evidence = node_primitives.observe(present, node)
        assert (reached, evidence["size_bytes"]) == (True, size)
    node_primitives.perform(absent, node)
    assert node_primitives.observe(absent, node)[0]


def test_a_file_of_the_node_is_moved_out_of_the_way_and_back(node: Any) -> None:
    (node.directory / "fill").write_text("of the node")
    for _ in range(2):
        node_primitives.perform(file("absent"), node)
        assert node_primitives.observe(file("absent"), node)[0]
    for _ in range(2):
        node_primitives.perform(file("present"), node)
        assert (node.directory / "fill").read_text() == "of the node"


def test_a_file_that_exists_is_never_overwritten(node: Any) -> None:
    (node.directory / "fill").write_text("of the node")
    node_primitives.perform(file("present", text="of the fault"), node)
    assert (node.directory / "fill").read_text() == "of the node"


@pytest.mark.parametrize("path", ["../fill", "/etc/fill", "away/fill", "link", ".."])
def test_a_file_outside_of_the_node_is_refused_before_anything_is_done(node: Any, path: str) -> None:
    (node.directory / "away").symlink_to("/tmp")
    (node.directory / "link").symlink_to("/tmp/fill")
    with pytest.raises(Unsupported, match="is not in the directory of n2"):
        node_primitives.check_supported([file("present", path, text="x")], node)


def test_a_rank_that_has_ended_is_not_waited_for(node: Any) -> None:
    (node.directory / label.RANKS).write_text('{"ranks": {"2": [1, 1]}}')
    flip, results = Primitive(kind="inside", args={"do": "flip", "local_rank": 0}), list[Any]()
    loop = Loop()
    loop.start(results_of(primitive_runner.observe_until([flip], [], node, 3600, lambda: True), results))
    until(loop, lambda: results)
    [(is_reached, evidence)] = results
    assert not is_reached and evidence["problem"].startswith("rank 2 ended first")


# --- limits -----------------------------------------------------------------------------------------------------------


def test_an_unknown_limit_is_refused_with_those_that_exist(node: Any) -> None:
    limit = Primitive(kind="limit", args={"state": "on", "disk": 1})
    with pytest.raises(Unsupported, match="unknown disk; known are cpu_percent, memory_mib, pids"):
        node_primitives.check_supported([limit], node)


def test_a_limit_is_passed_to_the_node_without_its_state(node: Any) -> None:
    node_primitives.perform(Primitive(kind="limit", args={"state": "off", "cpu_percent": 20}), node)
    assert node.limits == [({"cpu_percent": 20}, False)]


@pytest.fixture(params=[1, 2])
def proc(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A /proc in which this process and 77 are in the cgroup /a of version 1 or 2, with its file system beside it."""
    root, mount = tmp_path / "proc", tmp_path / "cgroup"
    controllers = ("cpu", "memory", "pids") if request.param == 1 else ("",)
    lines = [f"{n}:{name}:/a" for n, name in enumerate(controllers, 1)] if request.param == 1 else ["0::/a"]
    for pid in ("self", "77"):
        (root / pid).mkdir(parents=True)
        (root / pid / "cgroup").write_text("\n".join(lines))
    kind = "cgroup" if request.param == 1 else "cgroup2"
    mounts = [f"1 2 0:1 / {mount / name} rw - {kind} {kind} rw,{name}" for name in controllers]
    (root / "self" / "mountinfo").write_text("\n".join(mounts))
    files = {
        1: {
            "cpu": ["cpu.cfs_quota_us", "cpu.cfs_period_us"],
            "memory": ["memory.limit_in_bytes"],
            "pids": ["pids.max"],
        },
        2: {"": ["cpu.max", "memory.max", "pids.max"]},
    }[request.param]
    for controller, names in files.items():
        for cgroup in ("a", "a/child"):
            (mount / controller / cgroup).mkdir(parents=True)
            for name in names:
                (mount / controller / cgroup / name).write_text("100000" if "period" in name else "-1")
        if request.param == 2:
            (mount / controller / "a" / "cgroup.subtree_control").write_text("cpu memory pids")
    return root


def test_limits_are_written_where_the_kernel_shows_them(proc: Path) -> None:
    process = Process(pid=77, ppid=1, session=77, start=1, state="S")
    amounts = {"cpu_percent": 20, "memory_mib": 64, "pids": 9}
    assert cgroups.is_available(amounts, proc)
    assert cgroups.are_limited([process], amounts, False, proc)[0] is True
    assert cgroups.limit([process], "child", amounts, proc) == {"limited": [77]}
    for name in cgroups.CONTROLLERS.values():
        cgroup = cgroups.find("self", name, proc)
        assert cgroup is not None
        assert (cgroup / "child" / "cgroup.procs").read_text() == "77"
    membership = proc / "77" / "cgroup"
    membership.write_text(membership.read_text().replace("/a", "/a/child"))
    assert cgroups.limits(process, amounts, proc) == amounts
    assert cgroups.are_limited([process], amounts, True, proc)[0] is True
    assert cgroups.are_limited([process], amounts, False, proc)[0] is False
    assert cgroups.are_limited([process], {**amounts, "pids": 10}, True, proc)[0] is False


def test_what_the_kernel_does_not_show_is_not_known(tmp_path: Path) -> None:
    process = Process(pid=77, ppid=1, session=77, start=1, state="S")
    assert cgroups.are_limited([process], {"pids": 9}, True, tmp_path) == (None, {"pids": {"77": None}})
    assert not cgroups.is_available(["pids"], tmp_path)


def test_a_controller_that_is_not_enabled_for_children_is_left_alone(proc: Path) -> None:
    for file in proc.parent.glob("cgroup/**/cgroup.subtree_control"):
        file.write_text("memory")
        assert not cgroups.is_available(["cpu_percent"], proc)


def test_processes_run_for_a_part_of_the_time_until_the_cycle_stops(spinning: Any) -> None:
    loop = Loop()
    cycle = DutyCycle(loop, spinning.processes)
    cycle.start(20)
    until(loop, lambda: cycle.is_observed(20)[0])
    assert not cycle.is_observed(1)[1].keys() - {"stopped_percent"}
    cycle.stop()
    until(loop, lambda: all(process.state != processes.STOPPED for process in spinning.processes()))
    assert not cycle.is_active


def test_processes_that_run_all_the_time_are_not_observed_to_be_slowed(spinning: Any) -> None:
    loop = Loop()
    cycle = DutyCycle(loop, spinning.processes)
    until(loop, lambda: cycle.is_observed(20)[0] is not None)
    assert cycle.is_observed(20)[0] is False


@pytest.mark.parametrize(
    ("created", "on", "off"),
    [
        ({}, {"CpuPeriod": 100_000, "CpuQuota": 20_000}, {"CpuPeriod": 100_000, "CpuQuota": -1}),
        ({"NanoCpus": 1_500_000_000}, {"NanoCpus": 200_000_000}, {"NanoCpus": 1_500_000_000}),
    ],
)
def test_a_container_gets_back_what_it_was_created_with(
    created: dict[str, int], on: dict[str, int], off: dict[str, int]
) -> None:
    assert container_node._limits({"cpu_percent": 20}, created, True) == on
    assert container_node._limits({"cpu_percent": 20}, created, False) == off


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "more", "holds"),
    [
        (["true"], {}, True),
        (["false"], {}, False),
        (["echo", "netem delay"], {"contains": "netem"}, True),
        (["echo", "netem delay"], {"lacks": "netem"}, False),
        (["echo", "noqueue"], {"lacks": "netem"}, True),
        (["echo", "noqueue"], {"contains": "netem"}, False),
        (["/nonexistent"], {}, None),
    ],
)
def test_a_program_proves_a_state_by_its_code_and_its_output(run: list[str], more: dict[str, str], holds: bool) -> None:
    assert host_primitives.observe(Primitive(kind="argv", args={"run": run, **more}))[0] is holds


def test_a_program_for_the_network_of_a_node_without_one_is_refused_before_anything_is_done(node: Any) -> None:
    node.pid = os.getpid()
    program = Primitive(kind="argv", args={"run": ["tc", "qdisc"], "network": True})
    with pytest.raises(Unsupported, match="n2 has no network of its own"):
        primitive_runner.check_supported([program], node)


def test_a_part_whose_program_cannot_be_started_on_a_full_disk_does_not_hold_up_the_next(
    node: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A healing performs all of its parts."""

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    path = node.directory / "filler"
    create = Primitive(kind="file", args={"state": "present", "path": "filler", "text": "x"})
    parts, results = [Primitive(kind="argv", args={"run": ["true"]}), create], list[Any]()
    loop = Loop()
    loop.start(results_of(primitive_runner.perform_all(loop, parts, node, 10.0, lambda problems: True), results))
    assert [problems for _, problems in results] == [["true: No space left on device"]]
    assert path.exists()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_a_program_shapes_the_network_of_a_node_and_not_that_of_its_host(node: Any) -> None:
    """tc as a fault would use it: inject, verify, heal, verify heal."""
    shape = ["tbf", "rate", "1mbit", "burst", "4kb", "latency", "50ms"]
    inject, heal = (
        Primitive(kind="argv", args={"run": ["tc", "qdisc", verb, "dev", "lo", "root", *rest], "network": True})
        for verb, rest in (("add", shape), ("del", []))
    )
    show = {"run": ["tc", "qdisc", "show", "dev", "lo"], "network": True}
    verify = Primitive(kind="argv", args={**show, "contains": "tbf"})
    verify_heal = Primitive(kind="argv", args={**show, "lacks": "tbf"})
    with subprocess.Popen(["unshare", "--net", "sleep", "60"]) as process:
        node.pid, loop = process.pid, Loop()
        until(loop, lambda: namespaces.has_own_network(process.pid))
        for change, state in ((inject, verify), (heal, verify_heal)):
            assert observed(loop, state, node) is False
            assert problems_of(loop, change, node) == []
            assert observed(loop, state, node) is True
        process.kill()
    assert (
        "tbf"
        not in subprocess.run(["tc", "qdisc", "show", "dev", "lo"], capture_output=True, text=True, check=True).stdout
    )


def observed(loop: Loop, state: Primitive, node: Any) -> bool | None:
    results: list[Any] = []
    loop.start(results_of(primitive_runner.observe_once([state], node, 5.0), results))
    until(loop, lambda: results)
    is_reached: bool | None = results[0][0]
    return is_reached


def problems_of(loop: Loop, change: Primitive, node: Any) -> list[str]:
    results: list[Any] = []
    loop.start(results_of(primitive_runner.perform_all(loop, [change], node, 10.0, lambda problems: True), results))
    until(loop, lambda: results)
    problems: list[str] = results[0][1]
    return problems
