"""The end of a night: it is judged with the quarantine of its start, and a new judgement replaces the offences of an earlier one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import night_end
from orchestrator.nightly import judging, night_files
from orchestrator.nightly.culprits import quarantine
from orchestrator.nightly.night_judgement import NightJudgement

from .night_bundles import write_night
from .test_culprits import FLOOR, NODES, rates


def night_of(runs: Path, number: int, *slow: str, quarantined: tuple[str, ...] = ()) -> Path:
    directory = write_night(runs, number, {"gemm": rates(*slow)}, nodes=NODES, cells=[FLOOR])
    file = directory / "night.json"
    reasons = dict.fromkeys(quarantined, "is in quarantine since x: y")
    file.write_text(json.dumps({**json.loads(file.read_text()), "quarantined": reasons}))
    return directory


def judge(directory: Path) -> NightJudgement:
    options = {"baselines": str(directory.parent / "baselines")}
    return night_end._judge(directory, night_files.read_rows(directory), night_end.History(), options)


def accuse(directory: Path, workdir: Path, judgement: NightJudgement) -> list[str]:
    options: dict[str, Any] = {"on_culprit": "", "apply": False}
    return night_end._accuse(directory, night_files.read_night(directory), judgement, options, workdir)


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
