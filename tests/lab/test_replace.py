"""Hosts that are lost for real, without spares: their node is started on another host with room, or waits for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from orchestrator.model.errors import EXIT_PASS

from ..e2e.conftest import ccbed
from . import layout
from .test_losses import SILENCE, Bed, Ran, _recovered, fault

slow = pytest.mark.lab


@pytest.fixture(scope="module")
def bed(lab: layout.Lab, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """One node on each host and no spare; the last host has room for another node."""
    state, runs = tmp_path_factory.mktemp("state") / "ccbed", tmp_path_factory.mktemp("runs")
    inventory = runs / "inventory.yml"
    document = yaml.safe_load(layout.inventory(lab, image))
    hosts = document["all"]["hosts"]
    for host in hosts.values():
        host["ccbed_nodes"] = 1
        host.pop("ccbed_spares", None)
    hosts[lab.hosts[-1].name]["ccbed_max_nodes"] = 2
    inventory.write_text(yaml.safe_dump(document))
    code, output = ccbed(state, "up", str(inventory))
    assert code == 0, output
    yield Bed(state=state, runs=runs, inventory=inventory)
    code, output = ccbed(state, "down", str(inventory), "--force")
    assert code == 0, output


@pytest.fixture(autouse=True)
def _as_up_left_it(bed: Bed) -> Iterator[None]:
    yield
    bed.unchanged()


def waiting(bed: Bed, *options: str) -> Ran:
    """A run of the trial that was written last, with further options."""
    code, output = ccbed(bed.state, "run", str(bed.runs / "loss.yml"), "--runs-dir", str(bed.runs), *options)
    return Ran(code=code, output=output, directory=(bed.runs / "latest").resolve())


def test_a_host_without_power_is_replaced_by_one_that_has_room(bed: Bed) -> None:
    ran = bed.run(fault("power-off"), policy="replace")
    _recovered(ran, SILENCE)
    decided = ran.first("recovery.decided")
    assert decided.value["policy"] == {"n1": "replace"}
    assert decided.value["hosts"] == {"n3": "h3"}
    assert [event.node for event in ran.history.of("gang.start") if event.type == "invoke" and event.epoch == 1] == [
        "n0", "n3", "n2",
    ]  # fmt: skip
    assert "rank 1 is now on n3 (host h3)" in ran.output


@slow
def test_a_container_that_is_killed_is_started_on_another_host(bed: Bed) -> None:
    ran = bed.run(fault("crash-node"), policy="replace")
    assert ran.code == EXIT_PASS, ran.output
    assert ran.first("recovery.decided").value["hosts"] == {"n3": "h3"}


@slow
def test_a_host_that_returns_is_room_for_its_node_where_no_other_has_any(bed: Bed) -> None:
    """The last host is drained; the lost one is powered on again while the run waits."""
    code, output = ccbed(bed.state, "set-aside", "h3", "-i", str(bed.inventory), "--reason", "test")
    assert code == 0, output
    try:
        bed.trial(fault("power-off", for_s=6.0), policy="replace", batch=64)
        ran = waiting(bed, "--nodes", "2", "--replace-wait", "90s")
    finally:
        ccbed(bed.state, "set-aside", "h3", "--end", "-i", str(bed.inventory))
    assert ran.code == EXIT_PASS, ran.output
    assert ran.first("recovery.waiting").value["hosts"]["h2"] == "does not respond"
    assert ran.first("recovery.decided").value["hosts"] == {"n1": "h2"}
