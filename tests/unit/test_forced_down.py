"""``down --force`` ends the ccbed that drives a run on the bed, and no other process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.app import down
from orchestrator.app.requests import DownRequest
from orchestrator.model.bed import BedSpec, HostSpec
from orchestrator.model.errors import UsageError
from orchestrator.prepare import ansible_listing
from orchestrator.store import bed_files as store

#: Holds the lock of a night on the bed, as a program with this name.
HOLDER = """
import sys, time
from pathlib import Path
from orchestrator.store import bed_files
with bed_files.night_lock(Path(sys.argv[1]), "n"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    program = tmp_path / request.param
    program.write_text(HOLDER)
    process = subprocess.Popen(
        [sys.executable, str(program), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def end(workdir: Path) -> str:
    """What it prints."""
    lines: list[str] = []
    session: Any = SimpleNamespace(terminal=SimpleNamespace(line=lines.append))
    bed: Any = SimpleNamespace(name="local", workdir=str(workdir))
    down._end_orchestrator(session, bed)
    return "\n".join(lines)


@pytest.mark.parametrize("holder", ["ccbed"], indirect=True)
def test_the_ccbed_that_drives_a_night_is_ended(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    assert f"process {holder.pid} drives bed local, and is ended" in end(tmp_path)
    assert holder.wait() < 0 and store.orchestrator(tmp_path) == 0
    assert end(tmp_path) == ""


@pytest.mark.parametrize("holder", ["campaign"], indirect=True)
def test_another_program_is_not_ended(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"is driven by process {holder.pid}"):
        end(tmp_path)
    assert holder.poll() is None


@pytest.mark.parametrize("holder", ["ccbed"], indirect=True)
def test_the_ccbed_of_another_user_is_named(
    holder: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    with pytest.raises(UsageError, match=f"process {holder.pid} is of another user"):
        end(tmp_path)


def test_the_process_that_ends_its_own_bed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that brought up a bed of Slurm takes it down at its end."""
    killed: list[int] = []
    monkeypatch.setattr(down, "is_ccbed", lambda program: True)
    monkeypatch.setattr(down, "_ORCHESTRATOR_S", 0)
    monkeypatch.setattr(os, "kill", lambda pid, signal: killed.append(pid))
    with store.night_lock(tmp_path, "n"):
        assert end(tmp_path) == ""
    assert killed == []


def test_a_strangers_settings_of_ansible_are_refused_before_anything_ends_or_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    (tmp_path / "ansible.cfg").write_text("[defaults]\nhome = .a\n")
    (tmp_path / "lab.yml").write_text("all: {hosts: {h1: }}\n")
    bed = BedSpec(
        name="lab", provider="docker", nodes=(), hosts=(HostSpec(name="h1", connection="ssh"),), workdir="/w", shared_dir="/s",
        inventory=str(tmp_path / "lab.yml"), agent="a",
    )  # fmt: skip
    session: Any = SimpleNamespace(state=tmp_path, terminal=SimpleNamespace(line=print), vault=None)
    monkeypatch.setattr(down, "_selected", lambda *_: (bed,))
    monkeypatch.setattr(down, "end", lambda *_, **__: pytest.fail("the bed was ended"))
    monkeypatch.setattr(ansible_listing, "run", lambda *_, **__: pytest.fail("Ansible was run"))
    for request in (DownRequest(bed="lab", reset=True), DownRequest(bed="lab", limit=("typo",))):
        with pytest.raises(UsageError, match=r"ansible.cfg: home = .a: with it Ansible may run programs"):
            down.run(session, request)
