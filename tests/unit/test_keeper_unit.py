"""The keeper's systemd unit: its text, which systemd has it, its removal, and what happens where it cannot be installed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.node.files import label
from orchestrator.node.hostlink import keeper_unit
from orchestrator.node.keeper import keeper_start
from orchestrator.node.oslayer import processes
from orchestrator.system import plain_files

from .golden import same_as_golden

Fake = Callable[..., Path]


@pytest.fixture
def wanted() -> keeper_unit.Wanted:
    return keeper_unit.Wanted(
        hostdir=Path("/var/lib/ccbed/lab"),
        bed="lab",
        archive=Path("/var/lib/ccbed/lab/agent/agent-0123456789ab.pyz"),
        digest="0123456789ab",
        python="/usr/bin/python3",
        named="",
        more=("--backend", "containers", "--owner", "ann@desk", "--owner-id", "5ec4e7"),
    )


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Makes programs of a host, which write down how they are called. ``code``: with which they exit."""
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    calls.touch()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(keeper_unit, "SYSTEM_UNITS", tmp_path / "system")
    monkeypatch.setattr(keeper_unit, "RUNNING", tmp_path)
    monkeypatch.setattr(keeper_unit, "LINGERING", tmp_path / "linger")
    monkeypatch.setattr(keeper_unit, "_user_units", lambda: tmp_path / "user")
    monkeypatch.setattr(keeper_unit, "_MANAGER_S", 0.0)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(keeper_unit, "_user_name", lambda: "ann")

    def make(name: str, code: int = 0, text: str = "") -> Path:
        file = folder / name
        file.write_text(f"#!/bin/sh\necho {name} \"$@\" >> {calls}\necho '{text}' >&2\nexit {code}\n")
        file.chmod(0o755)
        return calls

    for name in ("systemctl", "loginctl", "sudo"):
        make(name, 1)
    return make


@pytest.mark.parametrize(("scope", "user"), [("system", "root"), ("user", "ann")])
def test_the_text_of_the_unit(wanted: keeper_unit.Wanted, scope: str, user: str) -> None:
    text = keeper_unit.render(scope, wanted, user)
    same_as_golden(f"hosts/keeper-{scope}.service", re.sub(" {9,}", " (blanks)", text))
    assert "5ec4e7" not in text and "ann@desk" not in text


def test_a_host_without_systemd_has_no_unit(programs: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(keeper_unit, "RUNNING", tmp_path / "missing")
    assert keeper_unit.find_manager() == (None, "this host does not run systemd")


def test_root_and_sudo_have_a_unit_of_the_system(programs: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    programs("sudo", 0)
    manager, _ = keeper_unit.find_manager()
    assert manager and (manager.scope, manager.root) == ("system", ("sudo", "-n"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    manager, _ = keeper_unit.find_manager()
    assert manager and (manager.scope, manager.root) == ("system", ())


def test_another_user_has_a_unit_of_its_own_if_it_lingers(programs: Fake, tmp_path: Path) -> None:
    fix = "ann may not become root and does not linger; fix: sudo loginctl enable-linger ann"
    assert keeper_unit.find_manager() == (None, fix)
    (tmp_path / "linger").mkdir()
    (tmp_path / "linger/ann").touch()
    assert keeper_unit.find_manager()[1] == (
        "the systemd of user ann does not respond; fix: sudo systemctl start user@1000"
    )
    programs("systemctl", 0)
    manager, _ = keeper_unit.find_manager()
    assert manager and manager.scope == "user"


def test_a_unit_is_disabled_before_its_file_is_removed(programs: Fake, tmp_path: Path) -> None:
    calls = programs("systemctl", 0)
    keeper_unit.remove("/var/lib/ccbed/lab", "lab")
    assert calls.read_text() == "", "without a unit nothing is called"
    name = keeper_unit.unit_name("lab", "/var/lib/ccbed/lab")
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / name).touch()
    keeper_unit.remove("/var/lib/ccbed/lab", "lab")
    assert not (tmp_path / "user" / name).exists()
    assert calls.read_text().splitlines() == [
        f"systemctl --user disable --now {name}",
        "systemctl --user daemon-reload",
        f"systemctl --user reset-failed {name}",
    ]


def test_a_unit_that_may_not_be_removed_is_an_error_with_the_fix(programs: Fake, tmp_path: Path) -> None:
    programs("sudo", 1, "sudo: a password is required")
    name = keeper_unit.unit_name("lab", "/var/lib/ccbed/lab")
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / name).touch()
    with pytest.raises(
        RuntimeError, match=f"a password is required; fix: sudo systemctl disable --now {name}; sudo rm "
    ):
        keeper_unit.remove("/var/lib/ccbed/lab", "lab")


def test_a_keeper_whose_unit_does_not_start_starts_without_one(
    programs: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: keeper_unit.Wanted
) -> None:
    started: list[object] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(keeper_start, "ensure_keeper", lambda *args, **more: started.append(args))
    programs("systemctl", 1, "Failed to enable unit: Read-only file system")
    (tmp_path / "bed/keeper").mkdir(parents=True)
    own = keeper_unit.Wanted(
        hostdir=tmp_path / "bed", bed="lab", archive=wanted.archive, digest="0", python="python3", named="", more=()
    )
    keeper_unit.ensure_keeper(own)
    assert len(started) == 1
    assert plain_files.read_json(tmp_path / "bed/keeper" / label.UNIT) == {
        "scope": "",
        "problem": "systemctl daemon-reload: Failed to enable unit: Read-only file system",
    }
    assert list((tmp_path / "system").iterdir()) == [], "no unit is left"


def test_a_running_keeper_is_left_alone(
    programs: Fake, monkeypatch: pytest.MonkeyPatch, wanted: keeper_unit.Wanted
) -> None:
    calls = programs("systemctl", 0)
    monkeypatch.setattr(keeper_start, "is_running", lambda directory, digest, named: True)
    keeper_unit.ensure_keeper(wanted)
    assert calls.read_text() == ""


def test_ctrl_c_while_a_keeper_starts_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would come up later, in a bed of which `up` has said that nothing of it is left running."""
    launcher = tmp_path / "launcher"
    launcher.write_text("#!/bin/sh\nsleep 600 </dev/null >/dev/null 2>&1 &\n")
    tag = keeper_start.starting_tag("b", tmp_path).strip()
    started: list[int] = []

    def interrupted(*_: object) -> bool:
        started.extend(process.pid for process in processes.select(processes.scan(), tag))
        raise KeyboardInterrupt

    monkeypatch.setattr(keeper_start, "wait_readable", interrupted)
    (tmp_path / label.KEEPER_DIR).mkdir()
    with pytest.raises(KeyboardInterrupt):
        keeper_start.ensure_keeper(tmp_path, "b", launcher, "a" * 64, "/bin/sh")
    assert started and not processes.select(processes.scan(), tag)
