"""What a node says that it runs on, and what it says where it cannot."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent import system_facts

LABEL = {"node": "n0", "incarnation": "7c1e", "agent": "7a369e57f342"}
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (x@y)\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host with two GPUs, as /proc and /sys show it."""
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU @ 2GHz\nmicrocode\t: 0xb000590\nprocessor\t: 1\nmodel name\t: Other\n",
        "proc/meminfo": "MemTotal:       16384000 kB\nMemFree: 1 kB\n",
        "proc/driver/nvidia/version": VERSION,
        "proc/driver/nvidia/gpus/0000:17:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nVideo BIOS: \t 96.00.89\n",
        "proc/driver/nvidia/gpus/0000:03:00.0/information": "Model: \t\t NVIDIA A100\nIRQ: 1\n",
        "sys/class/dmi/id/bios_version": "2.1.3\n",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    }
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text)
    return tmp_path / "root"


def test_a_node_tells_what_it_runs_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCBED_IMAGE_ID", "sha256:1234")
    monkeypatch.setenv("CCBED_ENGINE_VERSION", "20.10.24")
    facts = system_facts.collect_facts(LABEL, root)
    expected = {
        "node": "n0", "incarnation": "7c1e", "image": "sha256:1234", "engine": "20.10.24", "cpu": "Some CPU @ 2GHz",
        "memory_mib": 16000, "clocksource": "tsc", "driver": "570.86.10", "gpus": ["NVIDIA A100", "NVIDIA H100 80GB HBM3"],
        "kernel": os.uname().release, "vbios": ["unknown", "96.00.89"], "bios": "2.1.3", "microcode": "0xb000590",
        "agent": "7a369e57f342",
    }  # fmt: skip
    assert {name: facts.get(name) for name in expected} == expected


def test_what_is_not_found_is_told_as_missing(tmp_path: Path) -> None:
    facts = system_facts.collect_facts({"node": "n0", "incarnation": "1"}, tmp_path)
    assert {"clocksource", "memory_limit"} <= facts["missing"].keys()
    assert not {"image", "engine"} & facts["missing"].keys()
    assert not facts["missing"].keys() & facts.keys()
    assert facts["cpu"] == os.uname().machine


def test_a_container_that_was_not_told_its_image_says_so(root: Path) -> None:
    (root / ".dockerenv").touch()
    assert {"image", "engine"} <= system_facts.collect_facts(LABEL, root)["missing"].keys()


class Timers:
    """Timers that a test lets fire."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def later(self, after_s: float, call: Callable[[], None]) -> None:
        self.calls.append(call)


def smi(folder: Path, script: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)


def query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> tuple[system_facts.SystemFacts, Timers]:
    programs, node, timers = tmp_path / "bin", tmp_path / "node", Timers()
    for folder in (programs, node):
        folder.mkdir()
    if script is not None:
        smi(programs, script)
    monkeypatch.setenv("PATH", f"{programs}:/bin:/usr/bin" if script is not None else str(programs))
    (node / "gpu.xml").write_text("of the incarnation before")
    facts = system_facts.SystemFacts(node, LABEL)
    facts.write()
    facts.start_gpu_query(timers.later)
    return facts, timers


def reap(facts: system_facts.SystemFacts) -> None:
    """What the agent does when a child has ended."""
    (pid,) = facts.groups
    _, status = os.waitpid(pid, 0)
    assert facts.exited(pid, os.waitstatus_to_exitcode(status))
    assert facts.groups == ()


def written(tmp_path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((tmp_path / "node" / "system.json").read_text())
    return content


def test_nvidia_smi_is_asked_and_what_it_says_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, _ = query(tmp_path, monkeypatch, 'echo "<log>$*</log>"')
    assert not (tmp_path / "node" / "gpu.xml").exists()
    reap(facts)
    assert (tmp_path / "node" / "gpu.xml").read_text() == "<log>-q -x</log>\n"
    assert "gpu.xml" not in written(tmp_path)["missing"]


def test_a_node_without_nvidia_smi_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, timers = query(tmp_path, monkeypatch, None)
    assert (facts.groups, timers.calls) == ((), [])
    assert written(tmp_path)["missing"]["gpu.xml"] == "nvidia-smi is not installed"
    assert not (tmp_path / "node" / "gpu.xml").exists()


def test_nvidia_smi_that_fails_leaves_a_reason_and_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, _ = query(tmp_path, monkeypatch, "echo half; exit 9")
    reap(facts)
    assert written(tmp_path)["missing"]["gpu.xml"] == "nvidia-smi exited with code 9"
    assert sorted(path.name for path in (tmp_path / "node").iterdir()) == ["system.json"]


def test_a_gpu_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, timers = query(tmp_path, monkeypatch, "exec sleep 1000")
    (end,) = timers.calls
    end()
    reap(facts)
    assert written(tmp_path)["missing"]["gpu.xml"] == "nvidia-smi did not end within 20 s"
    end()


def test_a_child_of_somebody_else_is_left_to_them(tmp_path: Path) -> None:
    assert system_facts.SystemFacts(tmp_path, LABEL).exited(signal.SIGKILL, 0) is False


def test_a_full_disk_does_not_keep_a_node_from_starting(tmp_path: Path) -> None:
    system_facts.SystemFacts(tmp_path / "not" / "there", LABEL).write()
