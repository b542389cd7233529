"""`up` after a preflight that failed tries it again, until it passes; afterwards it is as quick as ever."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from orchestrator.model.bed import BedSpec, BedStatus
from orchestrator.model.requirements import Requirement
from orchestrator.providers import preflight
from orchestrator.store import bed_files as store

from .beds import LOCAL
from .test_cli import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "local.yml").write_text(LOCAL)
    return Desk(root=tmp_path)


@pytest.fixture
def requirements(monkeypatch: pytest.MonkeyPatch) -> list[Requirement]:
    """What preflight will say; every look takes one."""
    findings: list[Requirement] = []

    def check(bed: BedSpec, status: BedStatus, prober: object) -> tuple[Requirement, ...]:
        return (findings.pop(0),)

    monkeypatch.setattr(preflight, "check", check)
    return findings


BAD = Requirement(name="address eth9", outcome="fail", text="no interface eth9", fix="set ccbed_interface")
GOOD = Requirement(name="address", outcome="ok", text="ok")


def test_a_failed_preflight_is_repeated_by_the_next_up(desk: Desk, requirements: list[Requirement]) -> None:
    requirements += [BAD, BAD, GOOD]
    running = ["next: left running: the host agent, nodes n0 n1 n2 n3 n4; to remove it: ccbed down local"]
    for left in (running, []):
        assert desk("up", "local.yml") == 4
        assert "  preflight   address eth9 FAILED\n" in desk.out
        reason = ["error: preflight: address eth9: no interface eth9", "next: set ccbed_interface"]
        assert desk.err.splitlines() == [*reason, *left]
    assert desk("up", "local.yml") == 0
    assert desk.out.splitlines()[0] == "  preflight   address ok"
    assert "nothing to change, 5 of 5 ready" in desk.out
    assert desk("up", "local.yml") == 0, "it asks no more: there is nothing left to say"
    assert desk.out.startswith("bed local: nothing to change")


def test_an_up_that_was_ended_before_its_preflight_is_not_taken_for_good(
    desk: Desk, requirements: list[Requirement], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as local:
        local.setattr(preflight, "check", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert desk("up", "local.yml") == 130
    requirements += [BAD]
    assert desk("up", "local.yml") == 4


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (RuntimeError("can't start new thread"), "no more processes or threads can start on this machine"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), "/x: No space left on device"),
        (ZeroDivisionError("x"), "internal error of ccbed: ZeroDivisionError: x"),
    ],
)
def test_an_up_that_the_machine_stops_ends_with_what_is_left_running(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception, problem: str
) -> None:
    monkeypatch.setattr(preflight, "check", lambda *_: (_ for _ in ()).throw(error))
    assert desk("up", "local.yml") == 4
    assert f"error: {problem}" in desk.err
    last = desk.err.splitlines()[-1]
    assert last == "next: left running: the host agent, nodes n0 n1 n2 n3 n4; to remove it: ccbed down local"


def test_a_bed_that_is_taken_down_leaves_no_doubt_behind(desk: Desk, requirements: list[Requirement]) -> None:
    requirements += [BAD]
    desk("up", "local.yml")
    assert store.needs_preflight(desk.root / "state", "local")
    assert desk("down", "local") == 0
    assert not store.needs_preflight(desk.root / "state", "local")
