"""Faults on nodes that have a link of their own: the link's part is verified too, and a keeper that dies leaves the fabric."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.core.bed import links
from orchestrator.model.trial import FaultPlan, Trigger
from orchestrator.node.files import label
from orchestrator.node.keeper import fabric as keeper_fabric
from orchestrator.node.oslayer import processes
from orchestrator.providers.process import fabric_checks
from orchestrator.store import bed_files

from . import trials
from .conftest import ROOT, Bed, ccbed

pytestmark = [pytest.mark.e2e, pytest.mark.root]

INVENTORY = str(ROOT / "inventories/fabric.yml")


@contextmanager
def _up(state: Path, runs: Path) -> Iterator[Bed]:
    if lacking := "; ".join(lack.text for lack in fabric_checks.lacking(links.parse({"rate": "1gbit"}))):
        pytest.skip(f"no emulated fabric here: {lacking}")
    code, output = ccbed(state, "up", INVENTORY)
    assert code == 0, output
    spec = bed_files.read(state, "fabric")
    assert spec is not None
    try:
        yield Bed(state=state, runs=runs, spec=spec, catalogue=plugins.discover(()))
    finally:
        assert ccbed(state, "down", "fabric", "--force")[0] == 0


def _agents(bed: Bed) -> dict[str, int]:
    nodes = (Path(bed.spec.workdir) / "nodes").iterdir()
    return {node.name: int(label.live_label(node).get("pid", 0)) for node in nodes}


def test_the_link_is_verified_before_the_kill_and_an_adopted_fabric_still_cuts_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with _up(tmp_path_factory.mktemp("state") / "ccbed", tmp_path_factory.mktemp("runs")) as bed:
        done = bed.run(trials.dp(trials.crash(2, step=13, phase="allreduce")))
        assert (done.code, done.bad()) == (0, [])
        (before,), (verified,), (healed,) = (done.of(f) for f in ("fault.before", "fault.verified", "heal.verified"))
        assert (before.value["held"], before.value["evidence"]["eth0"]) == (False, "has a link")
        assert (verified.value["evidence"]["eth0"], verified.value["evidence"]["left"]) == ("has no link", [])
        assert healed.value["evidence"]["eth0"] == "has a link"

        agents = _agents(bed)
        keeper = processes.find(int(label.live_label(Path(bed.spec.workdir) / "keeper", label.KEEPER_LABEL)["pid"]))
        assert keeper is not None
        os.kill(keeper.pid, signal.SIGKILL)
        while processes.is_alive(keeper.pid, keeper.start):
            pass
        code, output = bed.ccbed("up", INVENTORY)
        assert code == 0, output
        assert _agents(bed) == agents, "adopted, not restarted"
        done = bed.run(trials.dp(trials.crash(1)))
        assert (done.code, done.bad()) == (0, [])
        assert done.of("fault.verified")[0].value["evidence"]["eth0"] == "has no link"


def test_a_crash_whose_link_is_not_cut_is_unknown(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that takes links down does nothing and reports success; a killed node would show no link afterwards."""
    program, folder = keeper_fabric.find_program("ip"), tmp_path_factory.mktemp("programs")
    (folder / "ip").write_text(f"""#!/bin/sh
[ "$1" = -batch ] || exec {program} "$@"
lines=$(cat)
case "$lines" in "link set dev "*" down") exit 0 ;; esac
printf '%s\\n' "$lines" | {program} "$@"
""")
    (folder / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    with _up(tmp_path_factory.mktemp("state") / "ccbed", tmp_path_factory.mktemp("runs")) as bed:
        done = bed.run(trials.dp(trials.crash(2)))
        assert done.outcome("fault-verified") == "unknown"
        assert done.code == 2
        assert not done.of("node.exit", "fault.verified")


def test_a_slow_link_is_proved_by_the_kernel_and_healed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of one peer and of all traffic; nothing is lost."""
    to_peer = FaultPlan(
        id="f0", fault="slow-link", node="n1", at=Trigger(step=5), params={"direction": "out", "peer": "n2"}
    )
    inbound = FaultPlan(
        id="f1", fault="slow-link", node="n3", at=Trigger(step=8), params={"direction": "in", "percent": 10}
    )
    unknown = replace(to_peer, params={"peer": "n9"})
    with _up(tmp_path_factory.mktemp("state") / "ccbed", tmp_path_factory.mktemp("runs")) as bed:
        done = bed.run(trials.dp(to_peer, inbound, checks=()))
        assert (done.code, done.bad()) == (0, [])
        evidence = {
            (event.f, event.value["id"]): event.value["evidence"]
            for event in done.of("fault.before", "fault.verified", "heal.verified")
        }
        full = {"out": "1000 Mbit/s", "in": "1000 Mbit/s"}
        assert evidence["fault.before", "f0"] == evidence["heal.verified", "f0"] == full
        assert evidence["fault.verified", "f0"] == {**full, "out": "1000 Mbit/s, 500 Mbit/s with the peer"}
        assert evidence["fault.verified", "f1"] == {**full, "in": "100 Mbit/s"}
        assert evidence["heal.verified", "f1"] == full
        done = bed.run(trials.dp(unknown, checks=()))
        assert done.outcome("fault-verified") == "unknown"
        assert any("n1 has no peer n9" in str(event.value) for event in done.run.history.events)
