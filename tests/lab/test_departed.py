"""Hosts and nodes that leave the inventory of a bed that is up: named with their reason, ended, and not forgotten when away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from orchestrator.model.errors import EXIT_INFRASTRUCTURE, EXIT_PASS

from .desk import HOSTS, PLAYED_S, CommandResult, Desk

pytestmark = pytest.mark.lab
UP_S = 400.0


def wanted(desk: Desk, counts: Mapping[str, int]) -> Path:
    """The inventory with these hosts alone, each with so many nodes."""
    file = desk.inventory(ccbed_start_timeout="5m")
    document = yaml.safe_load(file.read_text())
    hosts = document["all"]["hosts"]
    document["all"]["hosts"] = {
        name: hosts[name] | {"ccbed_nodes": count, "ccbed_spares": 0} for name, count in counts.items()
    }
    file.write_text(yaml.safe_dump(document))
    return file


def up(desk: Desk, inventory: Path) -> CommandResult:
    """However slow the lab's machine is just now."""
    output = desk.ccbed("up", inventory, within_s=UP_S)
    assert output.code == EXIT_PASS, output.text
    return output


def nodes_on_hosts(desk: Desk) -> dict[str, list[str]]:
    return {host: sorted(desk.containers(host)) for host in HOSTS}


def keepers(desk: Desk, host: str) -> list[str]:
    listed = desk.inside(host, "ps", "-eo", "args").splitlines()
    return [line for line in listed if "agent-" in line and " keeper " in line]


def test_nodes_move_between_hosts_and_a_host_leaves(desk: Desk) -> None:
    up(desk, wanted(desk, {"h1": 1, "h2": 2, "h3": 1}))
    assert nodes_on_hosts(desk) == {
        "h1": ["ccbed-bad-n0"],
        "h2": ["ccbed-bad-n1", "ccbed-bad-n2"],
        "h3": ["ccbed-bad-n3"],
    }
    inventory = wanted(desk, {"h1": 1, "h2": 1, "h3": 2})
    up(desk, inventory)
    assert nodes_on_hosts(desk) == {
        "h1": ["ccbed-bad-n0"],
        "h2": ["ccbed-bad-n1"],
        "h3": ["ccbed-bad-n3", "ccbed-bad-n4"],
    }
    assert "nothing to change, 4 of 4 ready" in desk.ccbed("up", inventory, within_s=PLAYED_S).text
    assert keepers(desk, "h3"), "the search itself finds them"

    inventory = wanted(desk, {"h1": 1, "h2": 1})
    plan = desk.ccbed("plan", inventory, within_s=PLAYED_S).text
    assert "3 to remove" in plan
    assert "- n3 n4 keeper   node   its host h3 is no longer in the inventory" in plan
    assert "h3: 3 processes ended, none is left" in up(desk, inventory).text
    assert (nodes_on_hosts(desk)["h3"], keepers(desk, "h3")) == ([], [])
    assert "nothing to change, 2 of 2 ready" in desk.ccbed("up", inventory, within_s=PLAYED_S).text


def test_a_host_that_left_and_is_away_is_named_until_it_is_back(desk: Desk) -> None:
    up(desk, wanted(desk, dict.fromkeys(HOSTS, 1)))
    inventory = wanted(desk, {"h1": 1, "h2": 1})
    with desk.off("h3"):
        output = desk.ccbed("up", inventory, within_s=PLAYED_S)
        assert output.code == EXIT_PASS, output.text
        assert "n2: its host h3 is no longer in the inventory, and cannot be reached" in output.text
        assert "no longer in the inventory" in desk.ccbed("status", within_s=PLAYED_S).text
        down = desk.ccbed("down", "bad", within_s=PLAYED_S)
        assert down.code == EXIT_INFRASTRUCTURE
        assert "host h3" in down.text
        assert desk.ccbed("up", inventory, within_s=UP_S).code == EXIT_PASS
    assert "h3" in up(desk, inventory).text
    assert nodes_on_hosts(desk)["h3"] == []
    bed = json.loads(next((desk.folder / "state").rglob("beds/bad.json")).read_text())
    assert bed["departed"] == []
    assert "none is left" in desk.ccbed("down", "bad", within_s=PLAYED_S).text
