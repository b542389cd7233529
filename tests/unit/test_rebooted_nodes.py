"""A node that was started before its host was rebooted has ended, whatever its pid and its container are now."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model import container as names
from orchestrator.node.keeper import container_status
from orchestrator.node.keeper.container_lifecycle import ContainerLifecycle
from orchestrator.node.oslayer import container_engine, processes
from orchestrator.node.oslayer.event_loop import Loop
from orchestrator.system import host_facts

EARLIER = "0d1a2b3c-earlier"


@pytest.fixture
def hostdir(tmp_path: Path) -> Path:
    (tmp_path / "keeper/nodes").mkdir(parents=True)
    return tmp_path


def write(hostdir: Path, boot: str, exit_boot: str = "") -> None:
    """The keeper's record of n0, whose pid and start time are those of this process, and of its exit."""
    own = {
        "incarnation": "a",
        "pid": os.getpid(),
        "start": processes.start_time(os.getpid()),
        "container": "c1",
        "boot": boot,
    }
    (hostdir / "keeper/nodes/n0.json").write_text(json.dumps({"label": own, "wanted": {}}))
    if exit_boot:
        (hostdir / "keeper/nodes/n0.exit").write_text(json.dumps({"incarnation": "a", "boot": exit_boot}))


def row(state: str) -> dict[str, Any]:
    labels = {names.NODE: "n0", names.INCARNATION: "a", names.SPEC: "s", names.ORDINAL: "1"}
    return {"Id": "c1", "State": state, "Status": "Exited (137) 3 days ago", "Labels": labels}


def status(hostdir: Path, state: str) -> tuple[str, str]:
    (node,) = container_status.list_nodes(str(hostdir), [row(state)], "/no.sock")
    return node["state"], node["reason"]


def test_a_node_of_an_earlier_boot_is_dead_also_if_its_container_was_started_by_hand(hostdir: Path) -> None:
    write(hostdir, EARLIER)
    assert status(hostdir, "exited") == ("dead", "its host was rebooted")
    assert status(hostdir, "running") == ("dead", "its host was rebooted")


def test_a_node_of_this_boot_is_as_its_engine_says(hostdir: Path) -> None:
    write(hostdir, host_facts.boot_id())
    assert status(hostdir, "exited") == ("dead", "exited (137) 3 days ago")
    assert status(hostdir, "running")[0] == "starting"


def test_a_node_that_ended_before_the_reboot_has_both_reasons(hostdir: Path) -> None:
    write(hostdir, EARLIER, exit_boot=EARLIER)
    assert status(hostdir, "exited") == ("dead", "exited (137) 3 days ago, then its host was rebooted")


@pytest.mark.parametrize("is_rebooted", [True, False])
def test_a_keeper_adopts_no_container_of_an_earlier_boot(
    hostdir: Path, monkeypatch: pytest.MonkeyPatch, is_rebooted: bool
) -> None:
    requests: list[str] = []
    notes: list[str] = []

    def request(self: Any, method: str, path: str, then: Any, *rest: object, **more: object) -> None:
        requests.append(path)

    monkeypatch.setattr(container_engine.LoopClient, "request", request)
    write(hostdir, EARLIER if is_rebooted else host_facts.boot_id())
    lifecycle = ContainerLifecycle(
        Loop(), hostdir, "lab", "archive", lambda node, payload: notes.append(type(payload).__name__), "/no.sock"
    )
    lifecycle.take_over([row("running")])
    node = lifecycle.get("n0")
    assert (node.processes() == [], notes) == ((True, ["NodeExit"]) if is_rebooted else (False, []))
    assert node.is_exit_reported() is is_rebooted


def test_only_a_container_with_a_process_was_started_again_by_hand(
    hostdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine may list a container as running for a moment after its exit was reported."""
    write(hostdir, host_facts.boot_id(), exit_boot=host_facts.boot_id())
    assert status(hostdir, "running") == ("dead", container_status.STARTED_BY_HAND)
    monkeypatch.setattr(container_status, "_main_pid", lambda hostdir, row, engine: 0)
    assert status(hostdir, "running") == ("dead", "")
