"""The power of a node of a Slurm job is cut by an administrator's command: proved from outside, and the node comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ...lab import slurm as lab
from ...lab.slurm import Slurm
from .test_slurm_bed import User

pytestmark = pytest.mark.e2e

NODE = "n2"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    try:
        with lab.running(isolated=NODE) as slurm:
            yield slurm
    except lab.LackingError as error:
        pytest.skip(str(error))


@pytest.fixture
def user(cluster: Slurm, tmp_path: Path) -> Iterator[User]:
    yield User(slurm=cluster, home=tmp_path)
    cluster.cancel_all()


def bed(user: User, power: dict[str, list[str]]) -> None:
    """A bed of two nodes and a spare, n1 to n3, whose power may be cut."""
    file = Path(user.inventory("lab", 2, 1))
    content = yaml.safe_load(file.read_text())
    content["all"]["vars"] |= {"ccbed_allow_faults": "node", "ccbed_power": power, "ccbed_nodelist": "n[1-3]"}
    file.write_text(yaml.safe_dump(content))
    user.ccbed("up", str(file))


def run(user: User, code: int, for_s: float | None = None) -> tuple[str, Path]:
    """Output and bundle of a run that trains through the loss of power. ``for_s``: until it is on again; None: the end of the run.

    The other nodes are on this machine, which is never switched off.
    """
    trial = {
        "trial": "power", "workload": "train-dp", "params": {"epochs": 20}, "world": {"nodes": 2},
        "faults": [{"power-off": {"node": "n1", "at": {"step": 100}, "back_s": 20, "for_s": for_s}}],
    }  # fmt: skip
    file = user.home / "power.yml"
    file.write_text(yaml.safe_dump(trial))
    output = user.ccbed("run", str(file), "--no-reference", "--bed", "lab", *user.runs("lab"), code=code)
    (directory,) = user.home.glob("lab-runs/2*")
    return output, directory


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (directory / "history.jsonl").read_text().splitlines())
    return [event for event in lines if event["f"] == name]


@pytest.mark.parametrize("for_s", [None, 1.0], ids=["to the end", "shorter than a loss"])
def test_a_node_without_power_is_replaced_and_runs_again_once_its_power_is_on(user: User, for_s: float | None) -> None:
    """Where the power is on again at once, the connection of the node's old step still counts as one."""
    bed(user, {state: lab.power_command(user.slurm, state) for state in ("off", "on")})
    before = user.nodes("lab")
    output, directory = run(user, 0, for_s)
    assert "PASS" in output and "n1 lost: spare; rank 1 is now on n2" in output, output
    assert for_s or "n1" in [event["node"] for event in events(directory, "node.silent")]
    after = user.nodes("lab")
    assert {node["state"] for node in after.values()} == {"warm"}
    assert after["n1"]["pid"] != before["n1"]["pid"] and after["n0"]["pid"] == before["n0"]["pid"]
    user.ccbed("down", "lab")
    user.require_nothing_left("lab")


def test_a_command_that_cuts_no_power_proves_nothing(user: User) -> None:
    bed(user, {"off": ["true", "{node}"], "on": ["true", "{node}"]})
    output, _ = run(user, 2)
    assert "fault-verified is unknown: fault not proved: f0 has no fault.verified" in output, output
    user.ccbed("down", "lab")
    user.require_nothing_left("lab")
