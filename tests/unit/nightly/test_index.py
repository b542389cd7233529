"""The index of runs, on SQLite and on a PostgreSQL server: refreshed, it is what a rebuild makes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.nightly import index, night_files, suite
from orchestrator.nightly.index import scan
from orchestrator.nightly.index.store import Index
from orchestrator.nightly.suite import JOURNAL, NIGHT
from orchestrator.store import bundle, seal

from .. import postgres
from ..postgres import server_url
from .run_archive import KEY, RATE, Archive, measurement, read

__all__ = ["server_url"]

Open = Callable[[], Index]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Of an empty database; empty for the file."""
    if request.param == "sqlite":
        return ""
    return postgres.empty(request.getfixturevalue("server_url"))


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "runs")


@pytest.fixture
def opened(archive: Archive, url: str, tmp_path: Path) -> Iterator[Open]:
    indexes = []

    def open_index() -> Index:
        indexes.append(index.open(archive.directory, state=tmp_path / "state", url=url, read=read))
        return indexes[-1]

    archive.directory.mkdir()
    yield open_index
    for opened_index in indexes:
        opened_index.close()


def content(opened_index: Index) -> tuple[object, ...]:
    """All that an index tells."""
    records = [
        record for bed in ("lab", "other") for record in opened_index.records(bed=bed)
    ]  # fmt: skip
    return (
        repr(opened_index.runs()),
        repr(opened_index.nights()),
        repr(records),
        repr(opened_index.trend()),
        opened_index.notes,
    )


def test_runs_are_listed_newest_last_with_filters(archive: Archive, opened: Open) -> None:
    old = archive.run(started="2026-11-20T02:00:00Z", outcome="fail", ttr_s=1.5)
    new = archive.run(started="2026-11-23T02:00:00Z", trial="gemm", bed="other")
    night = archive.recorded_night(1, 90.0)
    with opened() as runs:
        assert (runs.refresh(), runs.refresh()) == (4, 0)
        listed, count = runs.runs()
        assert count == 3 and listed[0].run == old.name
        assert Path(listed[0].directory) == old and listed[0].ttr_s == 1.5 and listed[0].is_sealed
        assert [entry.run for entry in runs.runs(trial="gemm")[0]] == [new.name]
        assert [entry.run for entry in runs.runs(outcome="fail")[0]] == [old.name]
        assert [entry.run for entry in runs.runs(bed="other")[0]] == [new.name]
        assert [entry.night for entry in runs.runs(night=night.name)[0]] == [night.name]
        assert [entry.night for entry in runs.runs(night=night.name[-4:])[0]] == [night.name]
        assert old.name not in [entry.run for entry in runs.runs(since_s=1795392000.0)[0]]
        limited, count = runs.runs(limit=1)
        assert len(limited) == 1 and count == 3


def test_a_night_is_listed_with_its_judgement(archive: Archive, opened: Open) -> None:
    archive.recorded_night(1, 90.0, 91.0)
    archive.night(0)
    with opened() as runs:
        runs.refresh()
        casual, recorded = sorted(runs.nights(), key=lambda night: night.number)
        assert (recorded.number, recorded.outcome, recorded.exit, recorded.runs, recorded.is_closed) == (
            1,
            "pass",
            0,
            2,
            True,
        )
        assert (casual.number, casual.outcome, casual.runs) == (0, None, 0)


def test_records_join_the_repeats_of_a_cell_in_order(archive: Archive, opened: Open) -> None:
    night = archive.night(1)
    archive.repeat(night, measurement((3.0,)), repeat=2)
    archive.repeat(night, measurement((1.0, 1.5)), repeat=0)
    archive.repeat(night, measurement((2.0,)), measurement((9.0,), ""), repeat=1)
    archive.recorded_night(2, 90.0)
    with opened() as runs:
        runs.refresh()
        gang, node = (record for record in runs.records(bed="lab") if record.night < 2)
        assert (node.night, node.node, node.metric, node.key) == (1, "n0", RATE, KEY)
        assert node.values == (1.25, 2.0, 3.0)
        assert node.suspects == {"driver": "580.159", "torch": "2.13"}
        assert gang.suspects == {"driver": "580.159, 580.170", "torch": "2.13"}
        assert [record.night for record in runs.records(bed="lab")] == [1, 1, 2, 2]
        assert list(runs.records(bed="other")) == []


def test_a_second_measurement_is_none_of_the_passes(archive: Archive, opened: Open) -> None:
    night = archive.night(1)
    for repeat, value in enumerate((90.0, 91.0, 92.0)):
        archive.repeat(night, measurement((value, value + 0.2, value + 0.1)), repeat=repeat)
    archive.repeat(night, measurement((80.0,)), again="n0")
    night_files.close(night)
    with opened() as runs:
        runs.refresh()
        (record,) = runs.records(bed="lab")
    assert (record.values, record.again) == ((90.1, 91.1, 92.1), (80.0,))


def test_only_runs_that_a_recorded_night_names_are_records(archive: Archive, opened: Open) -> None:
    archive.run(measurement((1.0,)))
    archive.repeat(archive.night(0), measurement((2.0,)))
    night = archive.night(1)
    archive.run(measurement((3.0,)), below=f"{night.name}/runs")  # a twin, or a run whose orchestrator died
    archive.repeat(night, measurement((4.0,)), sealed=False)
    kept = archive.repeat(night, measurement((5.0,)))
    with opened() as runs:
        runs.refresh()
        assert [record.values for record in runs.records(bed="lab")] == [(5.0,)]
        assert [
            entry.run for entry in runs.runs()[0] if entry.cell and entry.is_sealed and night.name == entry.night
        ] == [kept.name]


def test_a_row_that_comes_after_its_bundle_names_it(archive: Archive, opened: Open) -> None:
    night = archive.night(1)
    run = archive.run(measurement((5.0,)), below=f"{night.name}/runs")
    with opened() as runs:
        runs.refresh()
        assert list(runs.records(bed="lab")) == []
        (night / JOURNAL).write_text(f'{{"cell":"copy","repeat":3,"state":"passed","run":"{run.name}"}}\n')
        runs.refresh()
        assert [record.values for record in runs.records(bed="lab")] == [(5.0,)]
        assert [(entry.cell, entry.repeat) for entry in runs.runs()[0]] == [("copy", 3)]


def test_a_pass_without_a_value_is_no_value_and_never_zero(archive: Archive, opened: Open) -> None:
    """The reader of bundles leaves out what is not a number."""
    night = archive.night(1)
    archive.repeat(night, measurement(()), measurement((), "n1"))
    archive.repeat(night, measurement((2.0,)), measurement((), "n1"), repeat=1)
    with opened() as runs:
        runs.refresh()
        assert [record.values for record in runs.records(bed="lab")] == [(2.0,), ()]
        (trend,) = runs.trend("copy")
        assert [(point.node, point.value) for point in trend.points] == [("n0", 2.0), ("n1", None)]
        archive.run(measurement((float("nan"),)))
        runs.refresh()
        assert len(runs.notes) == 1 and "is skipped" in runs.notes[0] and len(runs.runs()[0]) == 2


def test_text_that_databases_reject_is_no_obstacle(archive: Archive, opened: Open) -> None:
    archive.run(trial="copy", bed="l\0ab")
    half = archive.run(trial="copy", bed="l\ud800ab")
    with opened() as runs:
        runs.refresh()
        assert [entry.bed for entry in runs.runs()[0]] == ["l\0ab"]
        assert [entry.bed for entry in runs.runs(bed="l\N{REPLACEMENT CHARACTER}ab")[0]] == ["l\0ab"]
        (note,) = runs.notes
        assert note.startswith(f"{half.name} is skipped: ")


def test_trends_are_of_one_key_and_found_by_cell_metric_node_and_bed(archive: Archive, opened: Open) -> None:
    for number in (1, 2, 3):
        archive.recorded_night(number, 90.0 + number, 92.0 + number)
    archive.recorded_night(1, 50.0, bed="other")
    with opened() as runs:
        runs.refresh()
        lab, other = runs.trend("copy", "rate")
        assert (lab.bed, lab.cells, lab.nodes, other.bed) == ("lab", ("copy[dtype=float32]",), ("n0", "n1"), "other")
        assert [point.value for point in lab.points if point.node == "n0"] == [92.0, 93.0, 94.0]
        assert runs.trend("copy[dtype=float32]") == runs.trend() == (lab, other)
        assert runs.trend("cop") == runs.trend("copy", "ate") == ()
        (one_node,) = runs.trend(node="n1", bed="lab", since_s=lab_start(2))
        assert [point.value for point in one_node.points] == [92.0, 93.0]


def test_a_node_has_the_trends_of_its_ranks_and_links(archive: Archive, opened: Open) -> None:
    labels = ("n1", "n1:3", "n1->n2", "n2->n1", "n1:0->n2:1", "n2:1->n1:0", "n10", "n10:1", "n2->n10", "xn1", "n2", "")
    archive.repeat(archive.night(1), *(measurement((1.0,), label) for label in labels))
    with opened() as runs:
        runs.refresh()
        (trend,) = runs.trend(node="n1")
        assert trend.nodes == tuple(sorted(labels[:6]))
        assert runs.trend(node="n_") == runs.trend(node="%") == ()


def lab_start(number: int) -> float:
    return 1793498400.0 + (number - 1) * 86400.0


def test_units_that_changed_are_not_mixed(archive: Archive, opened: Open) -> None:
    night = archive.night(1)
    other = type(RATE)(name=RATE.name, unit="MB/s", better="higher")
    archive.repeat(night, measurement((1.0,)), measurement((1000.0,), metric=other))
    with opened() as runs:
        runs.refresh()
        assert sorted((record.metric.unit, record.values) for record in runs.records(bed="lab")) == [
            ("GB/s", (1.0,)), ("MB/s", (1000.0,)),
        ]  # fmt: skip
        assert len(runs.trend()) == 2


def test_a_damaged_bundle_is_skipped_and_reported_until_it_is_repaired(archive: Archive, opened: Open) -> None:
    run = archive.run()
    damaged = archive.run()
    text = (damaged / "record.json").read_text()
    (damaged / "record.json").unlink()
    with opened() as runs:
        assert (runs.refresh(), runs.refresh()) == (2, 0)
        assert [entry.run for entry in runs.runs()[0]] == [run.name]
        (note,) = runs.notes
        assert note.startswith(f"{damaged.name} is skipped: ") and "record.json: damaged" in note
        (damaged / "record.json").write_text(text)
        assert runs.refresh() == 1
        assert len(runs.runs()[0]) == 2 and runs.notes == ()


def test_a_night_that_changed_since_its_seal_leaves_the_records(archive: Archive, opened: Open) -> None:
    night = archive.recorded_night(1, 90.0)
    casual = archive.night(0)
    with opened() as runs:
        runs.refresh()
        assert len(list(runs.records(bed="lab"))) == 2
        text = (night / NIGHT).read_text()
        (night / NIGHT).write_text(text.replace('"number": 1', '"number": 7'))
        (casual / NIGHT).write_text("{")
        runs.refresh()
        assert list(runs.records(bed="lab")) == []
        assert len(runs.notes) == 2 and any("changed since" in note for note in runs.notes)
        assert [entry.cell for entry in runs.runs()[0]] == [""]


def test_what_was_removed_is_forgotten(archive: Archive, opened: Open) -> None:
    archive.run()
    night = archive.recorded_night(1, 90.0)
    with opened() as runs:
        runs.refresh()
        shutil.rmtree(night)
        assert runs.refresh() == 0
        assert (len(runs.runs()[0]), runs.nights(), list(runs.records(bed="lab"))) == (1, (), [])


def test_a_clock_that_went_backwards_is_reported_and_numbers_order_the_nights(archive: Archive, opened: Open) -> None:
    archive.recorded_night(1, 90.0, started="2026-11-09T02:00:00Z")
    archive.recorded_night(2, 91.0, started="2026-11-08T02:00:00Z")
    with opened() as runs:
        runs.refresh()
        assert [record.night for record in runs.records(bed="lab")] == [1, 1, 2, 2]
        (note,) = runs.notes
        assert "the clock went backwards: night 2 began 2026-11-08" in note


def test_a_copied_night_counts_once(archive: Archive, opened: Open) -> None:
    night = archive.recorded_night(1, 90.0)
    copy = f"{night.name[:-4]}ffff"
    shutil.copytree(night, archive.directory / copy)
    with opened() as runs:
        runs.refresh()
        assert [record.values for record in runs.records(bed="lab")] == [(90.0,), (89.0,)]
        assert any("are both night 1" in note for note in runs.notes)


def test_links_and_hidden_directories_are_no_runs(archive: Archive, opened: Open) -> None:
    run = archive.run()
    (archive.directory / "latest").symlink_to(run.name)
    run.rename(archive.directory / ".hidden")
    with opened() as runs:
        assert runs.refresh() == 0


def test_the_names_of_files_are_those_of_the_store() -> None:
    assert (scan.TRIAL, scan.HISTORY, scan.VERDICTS) == (bundle.TRIAL, bundle.HISTORY, bundle.VERDICTS)
    assert scan.MANIFEST == seal.MANIFEST
    assert (scan.NIGHT, scan.JOURNAL, scan.FINDINGS, scan.RUNS) == (
        suite.NIGHT,
        suite.JOURNAL,
        suite.FINDINGS,
        suite.RUNS,
    )


def test_a_directory_without_runs_is_empty(tmp_path: Path) -> None:
    with index.open(tmp_path / "none", state=tmp_path / "state", url="", read=read) as runs:
        assert (runs.refresh(), runs.runs(), runs.trend(), runs.notes) == (0, ((), 0), (), ())
    assert not (tmp_path / "none").exists()


def test_many_bundles_are_written_in_several_transactions(
    archive: Archive, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.nightly.index.refresh.BATCH", 2)
    for number in (1, 2, 3):
        archive.recorded_night(number, 90.0, 91.0)
    with opened() as runs:
        assert runs.refresh() == 9
        in_batches = content(runs)
        monkeypatch.undo()
        runs.rebuild()
        assert content(runs) == in_batches


def test_one_database_holds_several_directories(url: str, tmp_path: Path) -> None:
    if not url:
        url = f"sqlite:///{tmp_path}/shared.sqlite3"
    archives = [Archive(tmp_path / name) for name in ("a", "b")]
    for archive, value in zip(archives, (1.0, 2.0), strict=True):
        archive.recorded_night(1, value)
    opened = [index.open(archive.directory, url=url, state=tmp_path, read=read) for archive in archives]
    for runs in opened:
        runs.refresh()
    opened[0].rebuild()
    assert [[record.values for record in runs.records(bed="lab")] for runs in opened] == [
        [(1.0,), (0.0,)],
        [(2.0,), (1.0,)],
    ]
    for runs in opened:
        runs.close()


#: What happens to a directory of runs between two refreshes.
ACTIONS = ("add", "add to a night", "new night", "remove", "change", "damage", "close", "nothing")


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_refresh_after_any_changes_is_a_rebuild(
    data: st.DataObject, url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("archive")
    archive = Archive(root / "runs")
    archive.directory.mkdir()
    with index.open(archive.directory, url=url, state=root, read=read) as runs:
        for _ in range(data.draw(st.integers(1, 4))):
            for _ in range(data.draw(st.integers(1, 4))):
                act(archive, data)
            runs.refresh()
        refreshed = content(runs)
        runs.rebuild()
        assert content(runs) == refreshed


def act(archive: Archive, data: st.DataObject) -> None:
    """One random change."""
    action = data.draw(st.sampled_from(ACTIONS))
    open_nights = sorted(
        path.parent
        for path in archive.directory.glob("*/night.json")
        if not (path.parent / "manifest-sha256.txt").exists()
    )
    known = sorted(path.parent for path in archive.directory.rglob("record.json"))
    value = float(data.draw(st.integers(1, 5)))
    if action == "add":
        archive.run(measurement((value,)))
    elif action == "new night":
        archive.night(data.draw(st.integers(0, 3)), bed=data.draw(st.sampled_from(["lab", "other"])))
    elif action == "add to a night" and open_nights:
        archive.repeat(data.draw(st.sampled_from(open_nights)), measurement((value,)), sealed=data.draw(st.booleans()))
    elif action == "close" and open_nights:
        night = data.draw(st.sampled_from(open_nights))
        (night / JOURNAL).touch()
        night_files.close(night)
    elif action == "remove" and known:
        shutil.rmtree(data.draw(st.sampled_from(known)))
    elif action == "change" and known:
        run = data.draw(st.sampled_from(known))
        record = read(run)
        Archive.write(run, replace(record, outcome="unknown", measurements=(measurement((value, value)),)))
    elif action == "damage" and known:
        (data.draw(st.sampled_from(known)) / "record.json").unlink()
