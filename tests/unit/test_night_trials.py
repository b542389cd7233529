"""A trial of a night that hangs where its engine cannot end it is interrupted after its deadline, and its row says so."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main, night_trials
from orchestrator.cli.inputs.session import Session
from orchestrator.cli.render import terminal
from orchestrator.model.errors import EXIT_INTERRUPTED, InfrastructureError, Interrupted
from orchestrator.model.launch import Request, Result
from orchestrator.store import beds

from .beds import LOCAL
from .fake_bed import FakeProvider

SUITE = "suite: s\ntrials: [{trial: barrier, deadline: 0.1s}]\n"


def nightly(
    root: Path,
    launch: Callable[[Request], Result],
    suite: str = SUITE,
    bed: FakeProvider | None = None,
    before: Callable[[], None] = lambda: None,
) -> tuple[int, dict[str, Any], str]:
    """Exit code, document and errors of a night on a bed that is only simulated."""
    (root / "local.yml").write_text(LOCAL)
    (root / "s.yml").write_text(suite)
    out, err, bed = io.StringIO(), io.StringIO(), bed or FakeProvider()
    for line in (
        ("up", str(root / "local.yml")),
        ("nightly", str(root / "s.yml"), "--runs-dir", str(root / "runs"), "--json"),
    ):
        out.seek(0)
        out.truncate()
        session = Session(
            state=root / "state", terminal=terminal.Terminal(out=out, err=err), providers={"process": lambda state: bed},
            agent=lambda: "a" * 64, launch=launch,
        )  # fmt: skip
        if line[0] == "nightly":
            before()
        code = main.run(line, session)
    text = out.getvalue()
    return code, json.loads(text) if text.startswith("{") else {}, err.getvalue()


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(night_trials, "GRACE_S", 0.1)


def hang(request: Request) -> Result:
    assert request.trial.liveness.wall_s == 0.1
    time.sleep(600)
    raise AssertionError("not interrupted")


def hang_in_the_loop(request: Request) -> Result:
    """The loop of a run turns the signal into an interruption, as for Ctrl-C."""
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        return Result(run="r", directory="", code=EXIT_INTERRUPTED)
    raise AssertionError("not interrupted")


@pytest.mark.parametrize("launch", [hang, hang_in_the_loop])
def test_a_launch_that_hangs_is_an_unfinished_row(tmp_path: Path, launch: Callable[[Request], Result]) -> None:
    begin = time.monotonic()
    code, document, _ = nightly(tmp_path, launch)
    (row,) = document["rows"]
    assert (code, row["state"]) == (1, "unfinished")
    assert row["reason"].startswith("hung: not ended 0.1 s after twice its deadline of 0.1 s")
    assert time.monotonic() - begin < 60


def interrupted(request: Request) -> Result:
    raise Interrupted("interrupted by hand", hint="ccbed resume r")


def test_an_interruption_before_the_deadline_is_that_of_the_user(tmp_path: Path) -> None:
    code, document, errors = nightly(tmp_path, interrupted)
    assert (code, document) == (EXIT_INTERRUPTED, {})
    assert "the night is open" in errors
    assert "ccbed nightly --resume " in errors


def test_a_bed_that_is_taken_down_during_the_night_stays_down(tmp_path: Path) -> None:
    """The run that was open ends with an error of a file; the row says what happened, and nothing brings the bed up again."""
    bed = FakeProvider()

    def take_down(request: Request) -> Result:
        beds.forget(tmp_path / "state", "local")
        for node in request.bed.nodes:
            bed.state(node.name, "absent")
        raise InfrastructureError("nodes/n0/inbox/x.json: No such file or directory")

    suite = "suite: s\ntrials: [{trial: barrier, repeats: 3}, {trial: gemm}]\n"
    code, document, _ = nightly(tmp_path, take_down, suite, bed)
    reason = "bed local was taken down during the night (ccbed down)"
    assert [(row["state"], row["reason"]) for row in document["rows"]] == [
        ("error", reason), ("error", f"not run: {reason}"), ("error", f"not run: {reason}"),
    ]  # fmt: skip
    assert code == 4
    assert Path(document["report"]).is_file()
    assert beds.read(tmp_path / "state", "local") is None


def test_a_keeper_that_ended_is_a_row_and_is_started_again(tmp_path: Path) -> None:
    bed = FakeProvider()

    def kill_keeper(request: Request) -> Result:
        bed.keeper = ""
        raise InfrastructureError("preflight: agent aaaaaa: not on keeper")

    code, document, _ = nightly(tmp_path, kill_keeper, bed=bed)
    lost = [row for row in document["rows"] if row["cell"] == "node (keeper)"]
    assert [row["reason"] for row in lost] == ["was dead (its process has ended); brought up again"]
    assert bed.keeper
    assert code == 4


@pytest.mark.parametrize("night", ["", "2026-11-22T02-00-00Z-night-s-0a1b"])
def test_a_run_that_nothing_can_resume_blocks_no_night(tmp_path: Path, night: str) -> None:
    """Its directory is gone, or its night has ended without it."""
    directory = tmp_path / "runs" / night / "runs" / "2026-11-22T02-00-01Z-barrier-1c2d"
    if night:
        directory.mkdir(parents=True)
        for name in ("night.json", "manifest-sha256.txt"):
            (directory.parent.parent / name).write_text("{}")
    workdir = tmp_path / "state" / "beds" / "local"

    def fail(request: Request) -> Result:
        raise InfrastructureError("no host")

    def leave_open() -> None:
        workdir.mkdir(exist_ok=True)
        beds.change_run(workdir, directory.name, directory)

    code, document, errors = nightly(tmp_path, fail, before=leave_open)
    reason = f"night {night} has ended" if night else f"its directory is gone: {directory}"
    assert f"run {directory.name} is abandoned: {reason}" in errors
    assert [row["reason"] for row in document["rows"]] == ["no host"]
    assert code == 4
    assert beds.open_run(workdir) is None
