"""The files of a night survive a kill at any byte, and damaged ones give one clear error."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from orchestrator.model.errors import InfrastructureError, UsageError
from orchestrator.nightly import night_files
from orchestrator.nightly.night_judgement import Judged, NightJudgement
from orchestrator.nightly.records import Finding
from orchestrator.nightly.suite import Cell, MetricRule, Night, Row, Suite
from orchestrator.store.paths import TornBundleError

CELL = Cell(
    name="gemm[dtype=float32]", trial="gemm", overrides={"params.dtype": ["float32"]},
    rules=(MetricRule(metric="rate", floor=2.5, xfail="T-1"),),
)  # fmt: skip
ROWS = tuple(
    Row(cell=CELL.name, repeat=repeat, state="passed", run=f"run-{repeat}", exit=0, duration_s=1.5)
    for repeat in range(3)
)


@pytest.fixture
def night(tmp_path: Path) -> Path:
    directory = night_files.new(tmp_path / "runs", "quick", datetime.datetime(2026, 11, 23, 2, tzinfo=datetime.UTC))
    suite = Suite(name="quick", cells=(CELL,), seed=7, budget_s=60.0, text="suite: quick\n")
    night_files.write_night(
        directory,
        Night(
            name=directory.name, suite=suite, bed="lab", provider="process", hosts={"n0": "localhost"}, number=3,
            started="2026-11-23T02:00:00Z", order=(CELL.name,), command="ccbed nightly quick", ccbed="1.0",
        ),
    )  # fmt: skip
    return directory


def write_rows(directory: Path) -> bytes:
    with night_files.Journal(directory) as journal:
        for row in ROWS:
            journal.append(row)
    return (directory / "night.jsonl").read_bytes()


def test_a_night_reads_as_it_was_written(night: Path) -> None:
    result = night_files.read_night(night)
    assert (result.suite.cells, result.suite.text, result.number) == ((CELL,), "suite: quick\n", 3)
    assert (night / "suite.yml").read_text() == "suite: quick\n"
    assert night_files.nights(night.parent) == (night,)


def test_a_journal_cut_at_any_byte_keeps_its_complete_rows_and_accepts_the_next(night: Path) -> None:
    content = write_rows(night)
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    for length in range(len(content) + 1):
        (night / "night.jsonl").write_bytes(content[:length])
        complete = ROWS[: sum(end <= length for end in ends)]
        assert night_files.read_rows(night) == complete
    (night / "night.jsonl").write_bytes(content[: ends[1] + 5])
    with night_files.Journal(night) as journal:
        journal.append(ROWS[2])
    assert night_files.read_rows(night) == ROWS


def test_zeros_after_a_crash_of_the_machine_are_no_row(night: Path) -> None:
    content = write_rows(night)
    (night / "night.jsonl").write_bytes(content + b"\0" * 64 + b"\n")
    assert night_files.read_rows(night) == ROWS


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[]", "expected object"),
        (b'{"cell":"a","repeat":0,"state":"fine"}', "state"),
        (b'{"cell":"a","repeat":"0","state":"passed"}', "repeat"),
        (b'{"cell":"a","repeat":0,"state":"passed","run":"../../etc"}', "run: must be the name of a bundle"),
    ],
)
def test_a_line_that_is_no_row_is_named(night: Path, line: bytes, reason: str) -> None:
    content = write_rows(night)
    (night / "night.jsonl").write_bytes(line + b"\n" + content)
    with pytest.raises(TornBundleError, match=r"night\.jsonl:1: ") as caught:
        night_files.read_rows(night)
    assert reason in str(caught.value)


def test_a_night_of_another_format_and_a_damaged_one_are_refused(night: Path) -> None:
    document = json.loads((night / "night.json").read_text())
    for change, reason in (({"format": 2}, "unknown format 2"), ({"order": "x"}, "order"), ({"hosts": None}, "hosts")):
        (night / "night.json").write_text(json.dumps({**document, **change}))
        with pytest.raises(TornBundleError, match=reason):
            night_files.read_night(night)
    (night / "night.json").write_text("{")
    with pytest.raises(TornBundleError, match="not valid JSON"):
        night_files.read_night(night)
    with pytest.raises(UsageError, match="not a night"):
        night_files.read_night(night.parent)


def test_two_writers_of_one_night_exclude_each_other(night: Path) -> None:
    with night_files.Journal(night), pytest.raises(InfrastructureError, match="another ccbed runs this night"):
        night_files.Journal(night)
    night_files.Journal(night).__exit__()


def test_the_seal_shows_a_changed_file(night: Path) -> None:
    content = write_rows(night)
    assert "not sealed" in night_files.verify(night)[0]
    night_files.close(night)
    assert night_files.verify(night) == ()
    (night / "night.jsonl").write_bytes(content.replace(b"passed", b"failed"))
    assert [problem.split(":")[0] for problem in night_files.verify(night)] == [str(night / "night.jsonl")]


def test_a_judgement_reads_as_it_was_written_without_values_that_are_no_numbers(night: Path) -> None:
    assert night_files.read_judgement(night) is None
    finding = Finding(gate="floor", outcome="unknown", text="the rate is not a number (nan)", metric="rate")
    judged = (
        Judged(finding=finding, state="unknown", value=float("nan")),
        Judged(finding=finding, state="fail", value=2.0),
    )
    night_files.write_judgement(night, NightJudgement(outcome="fail", exit=1, sentence="1 failed", findings=judged))
    result = night_files.read_judgement(night)
    assert result is not None
    assert [item.value for item in result.findings] == [None, 2.0]


def test_a_bundle_names_its_cell_and_repeat(tmp_path: Path) -> None:
    for again in ("", "n1", "n0,n1"):
        reason = night_files.reason("2026-11-23T02-00-00Z-night-quick-3f9c", "all of it[a=1 in 2]", 4, again)
        (tmp_path / "bundle.json").write_text(json.dumps({"reason": reason}))
        assert night_files.origin(tmp_path) == ("all of it[a=1 in 2]", 4, again)
    (tmp_path / "bundle.json").write_text(json.dumps({"reason": "by hand"}))
    assert night_files.origin(tmp_path) is None
