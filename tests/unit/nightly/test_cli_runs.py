"""`runs`, `runs prune` and `trend`: what they print, keep and remove."""

from __future__ import annotations

import csv
import io
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.nightly import baselines, bundle_records, levels, night_files, retention
from orchestrator.nightly.baselines import Floor
from orchestrator.nightly.night_judgement import REFERENCE, Judged, NightJudgement, State
from orchestrator.nightly.records import Finding
from orchestrator.nightly.statistics.night_statistics import Compared
from orchestrator.nightly.suite import NIGHT, RUNS
from orchestrator.store import bed_files as store
from orchestrator.store import index as runs_index

from ..test_cli import Desk, ccbed
from . import run_archive
from .run_archive import Archive, measurement

__all__ = ["ccbed"]


@pytest.fixture
def archive(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> Archive:
    monkeypatch.setattr(bundle_records, "read", run_archive.read)
    return Archive(ccbed.root / "runs")


def age(directory: Path, days: float) -> None:
    """Set the times of all files of a directory."""
    moment = time.time() - days * 86_400
    for path in (directory, *directory.rglob("*")):
        os.utime(path, (moment, moment))


def test_runs_lists_when_bed_trial_outcome_and_times(ccbed: Desk, archive: Archive) -> None:
    assert ccbed("runs") == 0
    assert ccbed.out == "no runs in runs\n"
    run = archive.run(ttr_s=1.234)
    archive.recorded_night(1, 90.0, started="2026-11-24T02:00:00Z")
    assert ccbed("runs") == 0
    head, first, _ = ccbed.out.splitlines()
    assert head.split() == ["RUN", "WHEN", "BED", "TRIAL", "OUTCOME", "RECOVERY", "DURATION", "NIGHT"]
    row = [run.name[-4:], "2026-11-23", "02:00:07", "lab", "copy", "pass", "1.23", "s", "12.50", "s"]
    assert row in [first.split(), ccbed.out.splitlines()[2].split()]
    assert ccbed("runs", "--trial", "gemm") == 0 and ccbed.out == "no such runs in runs\n"
    assert ccbed("runs", "--since", "soon") == 3 and "--since: must be an age" in ccbed.err
    assert ccbed("runs", "--limit", "1") == 0 and "the newest 1 of 2 runs     all: --limit 0" in ccbed.out
    assert ccbed("runs", "--json", "--night", "zzzz") == 0
    assert json.loads(ccbed.out) == {"runs": [], "count": 0, "notes": []}


def test_runs_reports_what_it_skips(ccbed: Desk, archive: Archive) -> None:
    for _ in range(7):
        (archive.run() / "record.json").unlink()
    assert ccbed("runs") == 0
    assert ccbed.err.count("is skipped") == 5 and "2 more of these" in ccbed.err
    assert ccbed("runs", "--json") == 0 and len(json.loads(ccbed.out)["notes"]) == 7


def test_a_run_in_a_night_is_named_by_its_end(ccbed: Desk, archive: Archive) -> None:
    night = archive.recorded_night(1, 90.0)
    (run,) = (night / RUNS).iterdir()
    assert (
        runs_index.resolve(run.name[-4:], archive.directory) == run == runs_index.resolve(run.name, archive.directory)
    )
    assert [entry.run for entry in runs_index.runs(night)] == [run.name]
    assert runs_index.runs(archive.directory) == ()
    assert ccbed("list", "runs", "--json") == 0 and [row["run"] for row in json.loads(ccbed.out)] == [run.name]


def test_a_trend_is_a_table_by_night_and_node(ccbed: Desk, archive: Archive) -> None:
    for number, value in enumerate((90.0, 80.0, 99.0), start=1):
        night = archive.recorded_night(number, value)
    assert ccbed("trend", "copy", "--metric", "rate") == 0
    lines = [line.split() for line in ccbed.out.splitlines()]
    assert ccbed.out.startswith("copy: copy rate, GB/s, higher is better\n  bed lab; h100; dtype=float32\n")
    assert ["2", "2026-11-02", "02:00", "80", "79"] in lines
    assert ccbed("trend", "copy rate", "--node", "n1", "--json") == 0
    (trend,) = json.loads(ccbed.out)["trends"]
    assert [point["value"] for point in trend["points"]] == [89.0, 79.0, 98.0]
    judge(night, n0=(0.22, "fail"), n1=(0.01, "pass"))
    assert ccbed("trend", "copy") == 0
    head, columns, figures = ccbed.out.splitlines()[:3]
    assert head.startswith("night 3 of bed lab · ") and columns.split() == ["n0", "n1", "limit", "reference"]
    assert figures.split() == ["copy", "rate", "-19.7", "%", "-1.0", "%", "5", "%", "90", "GB/s"]
    assert ccbed("trend", "copy", "--node", "n1") == 0
    assert ccbed.out.splitlines()[2].split() == ["copy", "rate", "-1.0", "%", "5", "%", "90", "GB/s"]
    assert ccbed("trend", "copy", "--csv") == 0
    rows = list(csv.DictReader(io.StringIO(ccbed.out)))
    assert [(row["night"], row["node"], row["median"], row["unit"]) for row in rows][:2] == [
        ("1", "n0", "90.0", "GB/s"), ("1", "n1", "89.0", "GB/s"),
    ]  # fmt: skip


def judge(night: Path, **figures: tuple[float, State]) -> None:
    """Write the judgement of a night. ``figures``: node -> how much worse it is, in logarithms, and the state."""
    findings = tuple(
        Judged(
            finding=Finding(gate=REFERENCE, outcome="pass", text="", metric="copy rate", node=node), state=state, unit="GB/s",
            key=run_archive.KEY,
            compared=Compared(kind="rate", better="higher", excess=excess, limit=0.0513, reference=90.0, nights=2),
        )
        for node, (excess, state) in figures.items()
    )  # fmt: skip
    night_files.write_judgement(night, NightJudgement(outcome="fail", exit=1, sentence="", findings=findings))


def test_a_night_without_a_number_is_no_value_of_a_trend(ccbed: Desk, archive: Archive) -> None:
    archive.recorded_night(1, 90.0)
    archive.recorded_night(2, None, 70.0)
    archive.recorded_night(3, None)
    archive.repeat(archive.night(4), measurement((60.0,), "n1"))
    assert ccbed("trend", "copy") == 0
    lines = [line.split() for line in ccbed.out.splitlines()]
    assert ["2", "2026-11-02", "02:00", "70", "69"] in lines
    assert ["4", "2026-11-04", "02:00", "-", "60"] in lines


def test_an_unknown_trend_exits_2_with_what_is_known(ccbed: Desk, archive: Archive) -> None:
    assert ccbed("trend", "copy") == 2
    assert "no recorded night with measurements yet" in ccbed.err and "next: ccbed nightly quick --record" in ccbed.err
    archive.recorded_night(1, 90.0)
    for args, reason in (
        (("coppy",), "did you mean copy?"),
        (("copy", "--metric", "busbw"), "no metric busbw in recorded nights; known: copy rate"),
        (("copy", "--since", "2030-01-01"), "no recorded night matches"),
        (("copy", "--bed", "other"), "copy: no bed other in recorded nights; known: lab"),
        (("copy rate", "--node", "n7"), "copy rate: no node n7 in recorded nights; known: n0, n1"),
    ):
        assert ccbed("trend", *args) == 2, args
        assert reason in ccbed.err, ccbed.err
    assert ccbed("trend", "copy", "--plot", "x.pdf") == 3


def test_an_unknown_trend_of_many_metrics_is_one_line_with_the_nearest(ccbed: Desk, archive: Archive) -> None:
    night = archive.night(1)
    names = [f"all-reduce {size} KiB of {ranks} ranks busbw" for size in range(40) for ranks in (2, 4, 8)]
    archive.repeat(night, *(measurement((1.0,), metric=replace(run_archive.RATE, name=name)) for name in names))
    night_files.close(night)
    for name, near in (
        ("all-reduce 7 KiB of 8 rank busbw", "did you mean all-reduce 7 KiB of 8 ranks busbw?"),
        ("zz", "121 are known, such as: "),
    ):
        assert ccbed("trend", name) == 2
        (line,) = (line for line in ccbed.err.splitlines() if line.startswith("error:"))
        assert near in line and len(line) < 600


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_trend_is_drawn(ccbed: Desk, archive: Archive, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    archive.recorded_night(1, 90.0)
    archive.recorded_night(2, None)
    file = ccbed.root / f"trend.{suffix}"
    assert ccbed("trend", "copy", "--plot", str(file)) == 0
    assert file.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")


def test_prune_keeps_what_is_young_and_says_why(ccbed: Desk, archive: Archive) -> None:
    old, young = archive.run(), archive.run()
    age(old, 40)
    assert ccbed("runs", "prune") == 3 and "give --keep TIME or --keep-last N" in ccbed.err
    assert ccbed("runs", "prune", "--keep", "30d", "--dry-run") == 0
    assert "older than 30 d" in ccbed.out and old.exists()
    assert ccbed("runs", "prune", "--keep", "30d") == 0
    assert not old.exists() and young.exists()
    assert ccbed("runs") == 0 and old.name[-4:] not in ccbed.out


def test_prune_keeps_the_newest(ccbed: Desk, archive: Archive) -> None:
    runs = [archive.run(started=f"2026-11-{day:02d}T02:00:00Z") for day in (1, 3, 2)]
    assert ccbed("runs", "prune", "--keep-last", "2") == 0
    assert [run.exists() for run in runs] == [False, True, True]


def test_prune_keeps_recorded_nights_that_gates_compare_with(
    ccbed: Desk, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones since each level are the reference; the last ones show a slide."""
    monkeypatch.setattr(retention, "WINDOW", 1)
    nights = [archive.recorded_night(number, 90.0) for number in (1, 2, 3, 4, 5)]
    other = archive.recorded_night(1, 90.0, bed="other")
    casual = archive.night(0)
    for night in (*nights, other, casual):
        age(night, 400)
    levels.add(nights[0].parent, [levels.Level(bed="lab", night=3, because="a new driver")])
    for verb in (("runs", "prune", "--keep", "30d"), ("prune", "--runs")):
        assert ccbed(*verb, "--dry-run") == 0
        assert "recorded night 1 of bed lab: later nights are compared with it" in ccbed.out
        assert "recorded night 5 of bed lab: one of the last 1" in ccbed.out
    assert ccbed("runs", "prune", "--keep", "30d") == 0
    assert [night.exists() for night in (*nights, other, casual)] == [True, False, True, False, True, True, False]
    assert ccbed("runs", "prune", "--keep", "30d", "--recorded") == 0
    assert not any(night.exists() for night in (*nights, other))


@pytest.mark.parametrize("directory", ["inventories/baselines", "other"])
def test_prune_never_removes_the_evidence_of_a_baseline(ccbed: Desk, archive: Archive, directory: str) -> None:
    night, run, old = archive.recorded_night(1, 90.0), archive.run(), archive.run()
    (in_night,) = (night / RUNS).iterdir()
    for path in (night, run, old):
        age(path, 400)
    floor = Floor(
        metric="copy rate", floor=80.0, unit="GB/s", better="higher", measured=90.0, margin=0.1, n=2, trial="copy",
        evidence=(in_night.name, run.name), accepted="2026-11-01", workload="node-probe",
    )  # fmt: skip
    file = ccbed.root / directory / "h100.yml"
    file.parent.mkdir(parents=True)
    file.write_text(baselines.merge(file, "h100", [floor]))
    options = ("--keep", "30d", "--recorded", "--baselines", directory)
    assert ccbed("runs", "prune", *options, "--dry-run") == 0
    assert f"evidence of copy rate in {file}" in ccbed.out
    assert ccbed("runs", "prune", *options) == 0
    assert (night.exists(), run.exists(), old.exists()) == (True, True, False)
    assert ccbed("prune", "--runs", "--older-than", "0s", "--baselines", directory) == 0
    assert (night.exists(), run.exists()) == (True, True)
    file.write_text("hardware: [")
    assert ccbed("runs", "prune", *options) == 3 and night.exists()


def test_prune_keeps_a_night_that_has_not_ended(ccbed: Desk, archive: Archive) -> None:
    night = archive.night(0)
    assert ccbed("runs", "prune", "--keep", "0s", "--dry-run") == 0
    assert f"has not ended: ccbed nightly --resume {night.name}" in ccbed.out
    age(night, 2)
    assert ccbed("runs", "prune", "--keep", "1d") == 0 and not night.exists()


def test_prune_removes_nothing_beside_a_night_that_cannot_be_read(ccbed: Desk, archive: Archive) -> None:
    run, night = archive.run(), archive.night(1)
    (night / NIGHT).write_text("{")
    age(run, 40)
    assert ccbed("runs", "prune", "--keep", "30d") == 2
    assert run.exists() and night.exists() and NIGHT in ccbed.err


def test_a_night_is_no_leftover_of_a_run_that_never_began(ccbed: Desk, archive: Archive) -> None:
    night = archive.recorded_night(1, 90.0)
    age(night, 40)
    assert ccbed("prune") == 0 and night.exists()


def test_a_night_has_the_same_names_in_both_layers() -> None:
    assert (runs_index.NIGHT, runs_index.NIGHT_RUNS) == (NIGHT, RUNS)


def test_resume_of_a_night_names_the_command_that_resumes_it(ccbed: Desk, archive: Archive) -> None:
    night = archive.night(0)
    for handle in (night.name, night.name.rpartition("-")[2], str(night)):
        assert ccbed("resume", handle) == 3
        assert "a night, not a run" in ccbed.err and f"ccbed nightly --resume runs/{night.name}" in ccbed.err


def test_a_night_does_not_begin_beside_a_run_that_is_judged(ccbed: Desk) -> None:
    ccbed("up", "local.yml")
    workdir = ccbed.root / "state/beds/local"
    with store.run_lock(workdir, "r", ccbed.root / "runs/r"):  # the run itself has ended: it is open no more
        assert ccbed("nightly", "quick") == 3
    assert "error: bed local is busy: another ccbed drives a run on it" in ccbed.err
    assert not (ccbed.root / "runs").exists()
