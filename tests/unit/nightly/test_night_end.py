"""The end of a night: it is judged with the quarantine of its start, and a new judgement replaces the offences of an earlier one."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from orchestrator.app.hosts import quarantine
from orchestrator.cli import main
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.model import errors
from orchestrator.nightly import judging, night_files
from orchestrator.nightly.app import night_end
from orchestrator.nightly.app.night_requests import NightRequest
from orchestrator.nightly.night_judgement import NightJudgement

from .night_bundles import figure, write_night
from .test_culprits import FLOOR, NODES, rates


def night_of(runs: Path, number: int, *slow: str, quarantined: tuple[str, ...] = ()) -> Path:
    directory = write_night(runs, number, {"gemm": rates(*slow)}, nodes=NODES, cells=[FLOOR])
    file = directory / "night.json"
    reasons = dict.fromkeys(quarantined, "is set aside since x: y")
    file.write_text(json.dumps({**json.loads(file.read_text()), "quarantined": reasons}))
    return directory


def judge(directory: Path) -> NightJudgement:
    folder = directory.parent / "baselines"
    return night_end._judge(directory, night_files.read_rows(directory), night_end.History(), folder)


def accuse(directory: Path, workdir: Path, judgement: NightJudgement) -> list[str]:
    night = night_files.read_night(directory)
    return night_end._accuse(directory, night, judgement, NightRequest(), workdir)


@pytest.mark.parametrize(("fail_on", "outcome", "code"), [("fail", "warn", 0), ("warn", "fail", 1)])
def test_warnings_fail_a_night_that_says_so(tmp_path: Path, fail_on: str, outcome: str, code: int) -> None:
    nodes = tuple(f"n{number}" for number in range(8))
    lines = [[figure("gemm", 50.0 if node == "n3" else 100.0, "TFLOP/s", "higher", node=node) for node in nodes]]
    directory = write_night(tmp_path, 3, {"gemm": lines}, nodes=nodes)
    file = directory / "night.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "fail_on": fail_on}))
    judgement = judge(directory)
    assert (judgement.outcome, judgement.exit) == (outcome, code)
    assert [judged.state for judged in judgement.findings if judged.finding.node == "n3"] == ["warn"]
    assert judgement.sentence.startswith("n3: gemm is -50.0% beside 7 equal nodes; limit ")
    assert ("; warnings count as failures (--fail-on warn); runs: 1 passed." in judgement.sentence) is (
        fail_on == "warn"
    )


def test_without_a_warning_a_strict_night_passes(tmp_path: Path) -> None:
    directory = night_of(tmp_path, 3)
    file = directory / "night.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "fail_on": "warn"}))
    judgement = judge(directory)
    assert (judgement.outcome, judgement.exit) == ("pass", 0)
    assert "--fail-on" not in judgement.sentence


def test_a_night_that_is_resumed_keeps_its_own_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    night_of(tmp_path / "runs", 7)
    for rule, expected in (("warn", errors.EXIT_USAGE), ("fail", 0)):
        err = io.StringIO()
        session = Session(state=tmp_path / "state", terminal=terminal.Terminal(out=io.StringIO(), err=err))
        assert main.run(["nightly", "--resume", "0007", "--fail-on", rule], session) == expected, err.getvalue()
        assert ("was begun with --fail-on fail" in err.getvalue()) is (rule == "warn")


@pytest.mark.parametrize(("quarantined", "state"), [(("n2",), "xfail"), ((), "fail")])
def test_a_night_is_judged_with_the_quarantine_of_its_start(
    tmp_path: Path, quarantined: tuple[str, ...], state: str
) -> None:
    """Neither a release, nor the bed's end, nor a later offence changes what an old night says."""
    directory = night_of(tmp_path, 3, "n2", quarantined=quarantined)
    [judged] = [
        judged for judged in judge(directory).findings if judged.finding.node == "n2" and judged.finding.gate == "floor"
    ]
    assert judged.state == state


def test_a_common_cause_replaces_the_offences_that_the_night_had_before(tmp_path: Path) -> None:
    directory = night_of(tmp_path, 3, "n2")
    accuse(directory, tmp_path, judging.judge(directory, ()))
    assert [offence.node for offence in quarantine.read(tmp_path).offences] == ["n2"]
    of_all = judging.judge(night_of(tmp_path / "all", 3, "n1", "n2", "n3"), ())
    [line] = accuse(directory, tmp_path, of_all)
    assert "a common cause" in line
    assert quarantine.read(tmp_path).offences == ()
