"""An emulated fabric on this machine: its links, its names, a lost node, and that nothing of it is ever left."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import pytest

from orchestrator import plugins
from orchestrator.collectives import views as collectives
from orchestrator.collectives.views import directions
from orchestrator.core.bed import links
from orchestrator.model import codec, events
from orchestrator.model.event import Command
from orchestrator.model.trial import FaultPlan, Recovery, Trial, Trigger, World
from orchestrator.node.files import label
from orchestrator.node.oslayer import processes
from orchestrator.providers import bed_commands
from orchestrator.providers.process import fabric_checks
from orchestrator.providers.process.process_provider import ProcessProvider
from orchestrator.store import bed_files
from orchestrator.system import plain_files

from ..patience import until
from . import trials
from .conftest import ROOT, Bed, ccbed

pytestmark = [pytest.mark.e2e, pytest.mark.root]

INVENTORY = ROOT / "inventories/fabric.yml"
NODES = ("n0", "n1", "n2", "n3", "n4")
#: Bytes from one node to another, and what of them the buckets of both ends may let through at once.
SENT, AT_ONCE = 6_000_000, 1_000_000
#: How often a link is measured that seems too slow: a busy machine only delays bytes.
MEASUREMENTS = 10
SHAPER = (
    "tc",
    "qdisc",
    "change",
    "dev",
    "eth0",
    "root",
    "handle",
    "1:",
    "tbf",
    "burst",
    "250000",
    "limit",
    "67108864",
    "rate",
)
RECEIVE = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
connection, got = listener.accept()[0], 0
while piece := connection.recv(1 << 16):
    got += len(piece)
print(got, time.monotonic())
"""
#: It sends once its input ends.
SEND = f"""
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("connected", flush=True)
sys.stdin.read()
print(time.monotonic(), flush=True)
connection.sendall(bytes({SENT}))
"""

#: Seconds until n1 refuses a connection; a busy machine may be late.
PING = f"""
import socket, time
for _ in range({MEASUREMENTS}):
    t = time.monotonic()
    try: socket.create_connection(("n1", 9))
    except OSError: pass
    print(time.monotonic() - t)
"""


def _lacking() -> str:
    return "; ".join(lack.text for lack in fabric_checks.lacking(links.parse({"rate": "1gbit"})))


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    if lacking := _lacking():
        pytest.skip(f"no emulated fabric here: {lacking}")
    state, file = tmp_path_factory.mktemp("state") / "ccbed", tmp_path_factory.mktemp("inventory") / INVENTORY.name
    file.write_bytes(INVENTORY.read_bytes())
    code, output = ccbed(state, "up", str(file))
    assert code == 0, output
    spec = bed_files.read(state, "fabric")
    assert spec is not None
    yield Bed(state=state, runs=tmp_path_factory.mktemp("runs"), spec=spec, catalogue=plugins.discover(()))
    code, output = ccbed(state, "down", "fabric", "--force")
    assert code == 0, output


def pids(bed: Bed) -> dict[str, int]:
    """Of the agents that live."""
    labels = {name: label.live_label(Path(bed.spec.workdir) / "nodes" / name) for name in NODES}
    return {name: int(label_["pid"]) for name, label_ in labels.items() if label_}


def keeper(bed: Bed) -> int:
    return int(label.live_label(Path(bed.spec.workdir) / "keeper", label.KEEPER_LABEL)["pid"])


def kill(*wanted: int) -> None:
    """And wait until they are gone."""
    living = [process for process in map(processes.find, wanted) if process]
    for pid in wanted:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(processes.is_alive(process.pid, process.start) for process in living))


def namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def namespaces(bed: Bed) -> set[str]:
    """Of every node, and the one of the switch, which an agent holds by a descriptor."""
    node_pids = pids(bed)
    switch = str(plain_files.read_json(Path(bed.spec.workdir) / "nodes" / "n0" / label.NODE_LABEL)["switch"])
    return {switch, *map(namespace, node_pids.values())}


def known(wanted: set[str]) -> set[str]:
    """Which of these namespaces any process on this machine is in, holds, or has mounted."""
    links = set()
    for place in (*Path("/proc").glob("[0-9]*/ns/net"), *Path("/proc").glob("[0-9]*/fd/*")):
        try:
            links.add(str(place.readlink()))
        except OSError:
            continue
    mounts = Path("/proc/self/mountinfo").read_text()
    return {name for name in wanted if name in links or name in mounts}


def wait_until_gone(wanted: set[str]) -> None:
    until(lambda: not known(wanted), lambda: known(wanted))


def nothing_is_left(wanted: set[str]) -> None:
    """No namespace of the fabric; and this machine's own never had a link or a shaper of it."""
    wait_until_gone(wanted)
    assert "fabric-" not in output("ip", "-d", "link") and " tbf " not in output("tc", "qdisc")


def output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=900).stdout


def within(pid: int, *argv: str) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net", *argv]


def rate(bed: Bed, *sources: str, target: str) -> float:
    """bit/s of TCP connections that send at once, from before their first byte until the last one has come.

    So a machine that is busy makes it smaller, and never larger than what the link carries.
    """
    node_pids, address = pids(bed), bed.spec.node(target).address
    with ExitStack() as stack:

        def start(pid: int, *argv: str) -> subprocess.Popen[str]:
            command = within(pid, sys.executable, "-c", *argv)
            return stack.enter_context(subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True))

        receivers = [start(node_pids[target], RECEIVE, address) for _ in sources]
        ports = [line(receiver) for receiver in receivers]
        senders = [start(node_pids[source], SEND, address, port) for source, port in zip(sources, ports, strict=True)]
        assert {line(sender) for sender in senders} == {"connected"}
        for sender in senders:
            assert sender.stdin
            sender.stdin.close()
        begins = [float(line(sender)) for sender in senders]
        received = [line(receiver).split() for receiver in receivers]
    assert [int(count) for count, _ in received] == [SENT] * len(sources)
    return (SENT * len(sources) - AT_ONCE) * 8 / (max(float(end) for _, end in received) - min(begins))


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def assert_rate(bed: Bed, *sources: str, target: str, above: float, below: float = math.inf) -> None:
    """No measurement is faster than the link, and one is about as fast."""
    rates: list[float] = []
    while not rates or (rates[-1] <= above and len(rates) < MEASUREMENTS):
        rates.append(rate(bed, *sources, target=target))
    assert above < rates[-1] and max(rates) < below, (sources, target, rates)


def assert_shaped(bed: Bed, node: str) -> None:
    """The link has its rate again, as the kernel says."""
    assert " tbf " in output(*within(pids(bed)[node], "tc", "qdisc", "show", "dev", "eth0"))


def changed(tmp_path: Path, link: str) -> Path:
    file = tmp_path / "fabric.yml"
    file.write_text(re.sub(r"ccbed_link: .*", f"ccbed_link: {link}", INVENTORY.read_text()))
    return file


def test_each_node_is_in_a_namespace_of_its_own_and_known_by_its_name_both_ways(bed: Bed) -> None:
    node_pids = pids(bed)
    assert len({namespace(pid) for pid in (*node_pids.values(), keeper(bed), os.getpid())}) == len(NODES) + 1
    for name in ("n1", "n4"):
        code, output = bed.ccbed("exec", name, "--", "sh", "-c", "ip -o -4 addr; hostname; getent hosts n0 10.77.0.4")
        assert code == 0, output
        assert (
            f"{bed.spec.node(name).address}/16" in output and re.search(r"\beth0\b", output) and "docker" not in output
        )
        assert (
            f"\n{name}\n" in output
            and re.search(r"10\.77\.0\.1\s+n0", output)
            and re.search(r"10\.77\.0\.4\s+n3", output)
        )


def test_links_that_lose_nothing_have_a_tcp_that_does_not_look_for_their_rate_again(bed: Bed) -> None:
    output = bed.ccbed("exec", "n1", "--", "cat", "/proc/sys/net/ipv4/tcp_congestion_control")[1]
    facts = json.loads((Path(bed.spec.workdir) / "nodes/n1/system.json").read_text())
    assert output.strip() == facts["tcp_congestion_control"] == "reno"


def test_all_that_is_made_says_whose_it_is(bed: Bed) -> None:
    shaping = output(*within(pids(bed)["n2"], "ip", "-d", "link", "show", "eth0"))
    assert re.search(r"alias fabric-[0-9a-f]{8}/n2/[0-9a-f]{8}", shaping), shaping


def test_a_second_up_changes_nothing_and_status_tells_the_link(bed: Bed) -> None:
    assert "nothing to change" in bed.ccbed("up", str(INVENTORY))[1]
    assert "1 Gbit/s tbf" in bed.ccbed("status", "fabric")[1]
    assert json.loads(bed.ccbed("status", "fabric", "--json")[1])[0]["link"]["rate"] == 10**9
    assert "fabric 1 Gbit/s tbf" in bed.ccbed("doctor", str(INVENTORY))[1]


def _probed(bed: Bed) -> tuple[events.LinkFit, list[str]]:
    """The line of a short run's probe, and the directions that are slower than the others."""
    params = {"probe_s": 0.5, "warmup": 1, "iterations": 1, "sizes": ("4096",)}
    trial = Trial(
        name="probe", workload="collective", params=params, world=World(nodes=4), recovery=Recovery(policy=("none",))
    )
    done = bed.run(trial)
    assert (done.code, done.bad()) == (0, [])
    (fit,), setting = done.run.history.of(events.LinkFit), collectives.setting(done.run)
    assert setting is not None and len(setting.link.directions) == 12
    slow = directions.slow(setting.link.directions)
    return fit.data, sorted(
        f"{setting.node(direction.sender)} -> {setting.node(direction.receiver)}" for direction in slow
    )


def test_the_probe_is_reused_until_a_link_changes_and_then_names_the_slow_directions(bed: Bed) -> None:
    first, slow = _probed(bed)
    assert not first.reused_from and slow == []
    known = json.loads((Path(bed.spec.workdir) / "links.json").read_bytes())["links"]["run"]
    second, slow = _probed(bed)
    assert slow == [] and (second.reused_from == known or second.changed), "a busy machine may not confirm it"
    pid = pids(bed)["n2"]
    output(*within(pid, *SHAPER, "500mbit"))
    try:
        third, slow = _probed(bed)
    finally:
        output(*within(pid, *SHAPER, "1gbit"))
    assert slow and set(slow) <= {"n2 -> n0", "n2 -> n1", "n2 -> n3"}, "a busy machine may hide one of them"
    assert third.changed and not third.reused_from, "a busy machine may find another one changed first"


def test_a_sweep_names_the_slow_end_of_a_link_and_nothing_on_equal_links(bed: Bed, tmp_path: Path) -> None:
    params = {
        "operation": "send-recv",
        "algorithm": ["library"],
        "sizes": ["4K"],
        "iterations": 1,
        "warmup": 1,
        "probe_s": 0.5,
    }
    file = tmp_path / "links.json"
    file.write_text(
        json.dumps({"trial": "links", "workload": "collective", "params": params, "recovery": {"policy": "none"}})
    )
    sweep = ("sweep", str(file), "--each-pair", "--bed", "fabric", "--runs-dir", str(bed.runs), "--json")
    code, text = bed.ccbed(*sweep)
    assert code in (0, 2) and json.loads(text)["culprits"] == [], text  # on a busy machine pairs may differ too much
    pid = pids(bed)["n2"]
    output(*within(pid, *SHAPER, "800mbit"))
    try:
        code, text = bed.ccbed(*sweep)
    finally:
        output(*within(pid, *SHAPER, "1gbit"))
    (culprit,) = json.loads(text)["culprits"]
    assert (code, culprit["kind"], culprit["parts"]) == (2, "egress", ["n2"])
    assert 0.15 < culprit["slowdown"] < 0.25


def test_a_node_is_lost_in_a_collective_and_training_comes_back_bit_exact(bed: Bed) -> None:
    before, killed = namespaces(bed), pids(bed)["n2"]
    done = bed.run(trials.dp(trials.crash(2, step=13, phase="allreduce")))
    assert (done.code, done.bad()) == (0, [])
    environment = json.loads(next(done.directory.glob("nodes/n1/i*-e0/env-r1.json")).read_text())
    assert environment["GLOO_SOCKET_IFNAME"] == "eth0" and environment["MASTER_ADDR"] == "10.77.0.1"
    assert "nothing to change" in bed.ccbed("up", str(INVENTORY))[1]
    assert pids(bed)["n2"] != killed and len(namespaces(bed)) == len(before), "n2 is in a namespace of its own again"
    wait_until_gone(before - namespaces(bed))
    assert rate(bed, "n0", target="n2") > 0, "and on the switch again"
    assert_shaped(bed, "n2")


def test_a_link_that_is_cut_for_a_while_stops_the_gang_and_loses_nothing(bed: Bed) -> None:
    fault = FaultPlan(id="f0", fault="cut-link", node=1, at=Trigger(step=8), params={"for_s": 1.0})
    done = bed.run(trials.dp(fault))
    assert (done.code, done.bad()) == (0, [])
    (event,) = done.of("fault.verified")
    assert event.value["evidence"] == {"eth0": "has no link"}
    (healed,) = done.of("heal.verified")
    assert healed.value["evidence"]["eth0"] == "has a link"
    assert rate(bed, "n0", target="n1") > 0
    assert_shaped(bed, "n1")


def test_another_link_replaces_the_nodes_and_shapes_both_directions(bed: Bed) -> None:
    before, file = pids(bed), changed(Path(bed.spec.inventory).parent, "{rate: 100mbit}")
    code, output = bed.ccbed("up", str(file))
    assert code == 0, output
    assert re.search(r"~ n0 .*link 1 Gbit/s tbf.* -> 100 Mbit/s tbf", output)
    assert not set(before.values()) & set(pids(bed).values())
    for source, target in (("n0", "n1"), ("n1", "n0"), ("n4", "n2")):
        assert_rate(bed, source, target=target, above=30e6, below=105e6)
    # What goes to a node is shaped as well: its link is shared by all who send to it.
    assert_rate(bed, "n0", "n2", "n3", target="n1", above=30e6, below=105e6)


def test_the_uplinks_of_two_groups_are_shared(bed: Bed) -> None:
    code, output = bed.ccbed("up", str(changed(Path(bed.spec.inventory).parent, "{groups: 2, uplink: 50mbit}")))
    assert code == 0, output
    assert_rate(bed, "n0", target="n1", above=150e6)  # within the group of n0, n1 and the spare
    for source, target in (("n0", "n2"), ("n3", "n1")):  # between the groups
        assert_rate(bed, source, target=target, above=10e6, below=53e6)


def test_a_keeper_that_is_started_anew_plugs_into_the_switch_that_is_there(bed: Bed) -> None:
    switch = plain_files.read_json(Path(bed.spec.workdir) / "nodes" / "n0" / label.NODE_LABEL)["switch"]
    kill(keeper(bed), pids(bed)["n3"])
    provider = ProcessProvider(bed.state)
    spec = bed_files.read(bed.state, "fabric")
    assert spec is not None
    provider.prepare(spec)
    order = Command(f="node.apply", key="again/n3", node="n3", deadline_s=120.0, value=codec.plain(spec.node("n3")))
    answer = bed_commands.bind(provider, spec).perform([order])[order.key]
    provider.close()
    assert answer is not None and answer.type == "ok", answer
    assert plain_files.read_json(Path(spec.workdir) / "nodes" / "n3" / label.NODE_LABEL)["switch"] == switch
    assert_rate(bed, "n2", target="n3", above=10e6)


def test_nothing_is_left_when_all_of_it_is_killed_at_once_nor_after_down(bed: Bed) -> None:
    wanted = namespaces(bed)
    assert len(wanted) == len(NODES) + 1 and known(wanted) == wanted
    kill(keeper(bed), *pids(bed).values())
    nothing_is_left(wanted)
    Path(bed.spec.inventory).write_bytes(INVENTORY.read_bytes())
    code, output = bed.ccbed("up", bed.spec.inventory)
    assert code == 0, output
    wanted = namespaces(bed)
    assert bed.ccbed("down", "fabric")[0] == 0
    nothing_is_left(wanted)


def test_delay_is_there_or_refused_by_name_before_anything_is_made(tmp_path: Path) -> None:
    if lacking := _lacking():
        pytest.skip(f"no emulated fabric here: {lacking}")
    file, state = changed(tmp_path, "{rate: 1gbit, delay: 20ms}"), tmp_path / "state"
    code, output = ccbed(state, "up", str(file))
    if fabric_checks.lacking(links.parse({"delay": "20ms"})):
        wanted = r"fabric.yml:\d+: ccbed_link: kernel \S+ has no netem \(delay and loss\)"
        assert code == 4 and re.search(wanted, output), output
        assert not (state / "beds" / "fabric").exists() and not (state / "beds" / "fabric.json").exists()
        return
    assert code == 0, output
    code, output = ccbed(state, "exec", "n0", "--", sys.executable, "-c", PING)
    assert ccbed(state, "down", "fabric")[0] == 0
    times = [float(line) for line in output.splitlines()]
    assert len(times) == MEASUREMENTS and 0.04 <= min(times) < 0.4


def test_who_is_not_root_is_told_in_one_sentence() -> None:
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("needs root and setpriv, to be somebody else")
    home = Path("/tmp") / f"ccbed-fabric-nobody-{os.getpid()}"
    home.mkdir(mode=0o755)
    try:
        os.chown(home, 65534, 65534)
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_STATE_HOME": str(home), "PYTHONPATH": str(ROOT)}
        argv = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-m", "orchestrator.cli"]
        done = subprocess.run(
            [*argv, "up", str(INVENTORY)], env=env, cwd=home, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 4, done.stdout + done.stderr
        output = (done.stdout + done.stderr).splitlines()
        assert output[0] == "error: bed fabric: ccbed_isolation: namespace needs root (this is uid 65534)"
        assert len(output) == 2 and output[1].startswith("next: the same with sudo")
        assert not (home / "ccbed" / "beds" / "fabric.json").exists()
    finally:
        shutil.rmtree(home)
