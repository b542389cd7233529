"""Reserve ranks of a real bed: what they own, who uses them, and that they end with their node."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from orchestrator.model.bed import NodeStatus
from orchestrator.node.oslayer import processes
from orchestrator.providers.process import process_provider

from . import reserves, trials
from .conftest import ROOT, Bed, Ran

pytestmark = pytest.mark.e2e
PATIENCE_S = 60.0


def _wait(is_reached: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_reached():
        assert time.monotonic() < until
        time.sleep(0.02)


def _nodes(bed: Bed) -> list[NodeStatus]:
    return list(process_provider.bed_status(bed.spec, memory=False).nodes)


def _reserves(bed: Bed) -> Mapping[str, int]:
    """Node -> pid of its reserve, once each one waits for its order."""

    def waiting() -> dict[str, int]:
        pids = ((node.name, reserves.ready(bed.spec.workdir, node.name, node.incarnation)) for node in _nodes(bed))
        return {name: pid for name, own in pids for pid in own}

    _wait(lambda: len(waiting()) == len(bed.spec.nodes))
    return waiting()


def _is_unix(socket: str) -> bool:
    """The list of sockets is read in parts: while others are closed, one that stays may be left out of it."""
    number = socket.removeprefix("socket:[").removesuffix("]")
    return any(number in Path("/proc/net/unix").read_text().split() for _ in range(20))


def _starts(ran: Ran, epoch: int) -> dict[str, int]:
    return {str(event.node): event.value["pid"] for event in ran.of("rank.start") if event.epoch == epoch}


def test_a_reserve_owns_nothing_of_a_run_until_a_recovery_makes_it_a_rank(bed: Bed) -> None:
    pids = _reserves(bed)
    assert {node.state for node in _nodes(bed)} == {"warm"}
    for pid in pids.values():
        links = [descriptor.readlink() for descriptor in Path(f"/proc/{pid}/fd").iterdir()]
        sockets = [link.name for link in links if link.name.startswith("socket:")]
        assert len(sockets) == 1 and _is_unix(sockets[0]), "no port"
        others = {link.name for link in links if not link.name.startswith(("socket:", "pipe:"))}
        assert others <= {"null", "agent.log"}, "no file"
        assert len(os.listdir(f"/proc/{pid}/task")) == 1
    ran = bed.run(trials.dp(trials.crash(2), checks=(*trials.CHECKS, "spare-warm")))
    assert ran.bad() == []
    first, second = _starts(ran, 0), _starts(ran, 1)
    assert not {*first.values()} & {*pids.values()}, "the first attempt forks its ranks"
    assert second == {node: pid for node, pid in pids.items() if node != "n2"}
    stopped = [event.value for event in ran.of("gang.stop") if event.type == "ok"]
    assert {event["left"] for event in stopped} == {0}
    assert bed.unchanged()


def test_a_reserve_ends_with_its_node(bed: Bed) -> None:
    reserve = _reserves(bed)["n1"]
    agent = next(node for node in _nodes(bed) if node.name == "n1")
    os.kill(agent.pid, signal.SIGKILL)
    _wait(lambda: processes.find(reserve) is None)
    code, output = bed.ccbed("up", str(ROOT / "inventories/local.yml"))
    assert code == 0, output
    assert _reserves(bed)["n1"] != reserve
