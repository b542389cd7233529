"""Bundles: sealed, changed, torn, carried away. Bed files, open runs, handles."""

from __future__ import annotations

import dataclasses
import datetime
import errno
import fcntl
import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.documents import decoder
from orchestrator.model import codec
from orchestrator.model.errors import EXIT_UNKNOWN, InfrastructureError, UsageError
from orchestrator.model.event import Clock, Event, Source
from orchestrator.model.run import Twin
from orchestrator.model.trial import Trial
from orchestrator.model.verdict import Verdict
from orchestrator.node.files.event_log import EventLog
from orchestrator.providers import owners
from orchestrator.reports import html
from orchestrator.run import twin_runs
from orchestrator.store import bed_files, bundle, index, journal, paths, seal, secrets, unpack

from . import history
from .beds import local

NOW = datetime.datetime(2026, 11, 21, 2, 0, 7, tzinfo=datetime.UTC)
STEP = {"step": 1, "loss": "0x1.8p-1", "start": 1.0, "end": 2.0, "digest": None}


def run(root: Path, trial: str = "dp-ring") -> Path:
    """A sealed run with a step of one rank."""
    directory = bundle.new(root, trial, NOW)
    bundle.make(directory)
    documents = {
        bundle.TRIAL: Trial(name=trial, workload="train-dp"),
        bundle.BUNDLE: {"run": directory.name, "format": 2},
    }
    bundle.write_inputs(directory, documents, {"t.yml": b"trial: t"})
    with journal.Journal(directory / bundle.HISTORY) as history:
        history.append(Event(type="note", f="run.begin", at=journal.now(), source=Source(writer="ctl", n=0)))
    paths.write(directory / "nodes/n2/i1-e0/steps-r2.jsonl", json.dumps(STEP).encode() + b"\n")
    seal.seal(directory)
    return directory


def test_a_run_is_named_after_its_time_and_trial(tmp_path: Path) -> None:
    name = bundle.new(tmp_path, "dp-ring", NOW).name
    assert name.startswith("2026-11-21T02-00-07Z-dp-ring-")
    assert len(name.rpartition("-")[2]) == 4


def test_git_tracks_no_runs_in_a_directory_that_ccbed_made(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "mine").mkdir()
    for runs in (tmp_path / "runs", tmp_path / "mine"):
        bundle.make(directory := bundle.new(runs, "t", NOW))
        (directory / bundle.NIGHT).touch()
        bundle.make(bundle.new(directory / index.NIGHT_RUNS, "t", NOW))
    git = ["git", "-C", str(tmp_path), "status", "--porcelain"]
    assert subprocess.run(git, capture_output=True, text=True, check=True).stdout == "?? mine/\n"
    assert [file.parent for file in tmp_path.rglob(".gitignore")] == [tmp_path / "runs"]


def test_latest_is_the_last_run_that_was_linked(tmp_path: Path) -> None:
    first, second = run(tmp_path), run(tmp_path)
    bundle.link_latest(tmp_path, first.name)
    bundle.link_latest(tmp_path, second.name)
    assert (tmp_path / "latest").resolve() == second
    assert index.resolve("latest", tmp_path) == second


def test_what_was_sealed_verifies_and_sha256sum_agrees(tmp_path: Path) -> None:
    directory = run(tmp_path)
    assert seal.verify(directory) == ()
    done = subprocess.run(
        ["sha256sum", "-c", "--quiet", seal.MANIFEST], cwd=directory, check=False, capture_output=True
    )
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_changed_a_missing_and_an_added_file_break_the_seal(tmp_path: Path) -> None:
    directory = run(tmp_path)
    (directory / "trial.json").write_text("{}")
    (directory / "inputs/t.yml").unlink()
    (directory / "more.txt").write_text("x")
    problems = "\n".join(seal.verify(directory))
    assert "trial.json: changed since" in problems
    assert "inputs/t.yml: listed in manifest-sha256.txt, but missing" in problems
    assert "more.txt: not listed" in problems


@pytest.mark.parametrize("name", ["verdicts.json.orig", "baselines.txt.bak", "derived-sha256.txt.1"])
def test_only_derived_files_themselves_are_left_out_of_the_seal(tmp_path: Path, name: str) -> None:
    directory = run(tmp_path)
    (directory / name).write_text("x")
    assert seal.verify(directory) == (f"{directory / name}: not listed in manifest-sha256.txt",)


def test_verdicts_and_report_are_rebuilt_without_touching_the_seal(tmp_path: Path) -> None:
    directory = run(tmp_path)
    verdict = Verdict(check="finished", outcome="pass", text="all")
    bundle.write_derived(directory, (verdict,), {"index.html": b"1", "plots/a.svg": b"2"})
    bundle.write_derived(directory, (verdict,), {"index.html": b"3"})
    assert seal.verify(directory) == ()
    assert bundle.load(directory).verdicts == (verdict,)
    assert sorted(path.name for path in (directory / "report").iterdir()) == ["index.html"]
    (directory / "report/index.html").write_bytes(b"4")
    assert "index.html: changed since derived" in seal.verify(directory)[0]


@pytest.mark.parametrize("path", ["../evil", "a/../../evil"])
def test_a_report_cannot_be_written_outside(tmp_path: Path, path: str) -> None:
    with pytest.raises(paths.TornBundleError, match="is not a path inside"):
        bundle.write_derived(run(tmp_path), (), {path: b""})


def test_a_link_in_a_bundle_is_refused(tmp_path: Path) -> None:
    directory = run(tmp_path)
    (directory / "nodes/n2/secret").symlink_to("/etc/passwd")
    with pytest.raises(paths.TornBundleError, match="a link or special file is not allowed"):
        tuple(bundle.load(directory).files.paths())
    assert "a link" in seal.verify(directory)[0]


@pytest.mark.parametrize(
    ("file", "content"), [("trial.json", "{"), ("trial.json", '{"x": 1}'), ("history.jsonl", "{}\n{}\n")]
)
def test_a_torn_bundle_is_one_clear_error(tmp_path: Path, file: str, content: str) -> None:
    directory = run(tmp_path)
    (directory / file).write_text(content)
    with pytest.raises(paths.TornBundleError, match=file) as caught:
        bundle.load(directory)
    assert caught.value.exit_code == EXIT_UNKNOWN


def test_a_page_links_the_twin_only_where_it_lies_beside_the_run(tmp_path: Path) -> None:
    """A cached twin may be in another directory of runs, and a bundle may be copied without it."""
    directory, twin_run = run(tmp_path), run(tmp_path)
    twin = Twin(
        key="k", run=twin_run.name, losses={}, digests={}, steps=1, faults=0, restarts=0, final_loss=0.0
    )  # fmt: skip
    (directory / bundle.TWIN).write_text(json.dumps(codec.plain(twin)))
    text = f"{twin_run.name} (k)"
    linked = dict(html._linked(bundle.load(directory), [("reference run", text)]))
    assert f'href="../../{twin_run.name}/report/index.html"' in linked["reference run"]
    (tmp_path / "elsewhere").mkdir()
    twin_run.rename(tmp_path / "elsewhere" / twin_run.name)
    assert html._linked(bundle.load(directory), [("reference run", text)]) == [("reference run", text)]


def test_no_run_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a run: it has no trial"):
        bundle.load(tmp_path)


def test_an_export_is_verified_elsewhere(tmp_path: Path) -> None:
    directory = run(tmp_path / "runs")
    archive = tmp_path / "run.tar.gz"
    assert unpack.export(directory, archive) == len(list(paths.walk(directory)))
    with unpack.unpacked(archive) as result:
        assert result.name == directory.name
        assert seal.verify(result) == ()
    with pytest.raises(UsageError, match="exists already"):
        unpack.export(directory, archive)


def test_an_archive_with_a_link_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "evil.tar"
    with tarfile.open(archive, "w") as out:
        member = tarfile.TarInfo("run/link")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        out.addfile(member)
    with pytest.raises(paths.TornBundleError, match="a link or special file"), unpack.unpacked(archive):
        pass


@pytest.mark.parametrize("has_filters", [True, False], ids=["with filters", "as Python 3.11.2"])
@pytest.mark.parametrize("name", ["../outside", "/outside", "run/../../outside"])
def test_an_archive_that_leads_out_of_its_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, has_filters: bool
) -> None:
    if not has_filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    archive = tmp_path / "run.tar.gz"
    with tarfile.open(archive, "w:gz") as target:
        member = tarfile.TarInfo(name)
        member.size, member.mode = 1, 0o6755
        target.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(paths.TornBundleError, match="leads out of the archive"), unpack.unpacked(archive):
        pass


def _without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    for name in ("symlink", "link"):
        monkeypatch.setattr(os, name, refuse)


def test_a_file_system_without_links_lacks_only_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_links(monkeypatch)
    runs = tmp_path / "runs"
    first, second = run(runs), run(runs)
    for directory in (first, second):
        bundle.link_latest(runs, directory.name)
    assert index.resolve("latest", runs) == max(first, second)
    (runs / "2099-11-21T02-00-07Z-dp-ring-0000").mkdir()
    with pytest.raises(UsageError, match="no run yet"):
        index.resolve("latest", runs)
    assert owners.identity(tmp_path) == owners.identity(tmp_path) != ""
    assert secrets._key(tmp_path) == secrets._key(tmp_path) != b""
    assert sorted(path.name for path in tmp_path.iterdir()) == [owners.FILE, secrets.KEY, "runs"]


def test_an_error_of_a_disk_is_not_taken_for_one_of_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for name in ("symlink", "link"):
        monkeypatch.setattr(os, name, fail)
    for act in (lambda: bundle.link_latest(tmp_path, "r"), lambda: owners.identity(tmp_path)):
        with pytest.raises(OSError, match="Input/output"):
            act()


def test_a_run_is_found_by_its_path_its_name_and_its_end(tmp_path: Path) -> None:
    directory = run(tmp_path)
    token = directory.name.rpartition("-")[2]
    for handle in (str(directory), directory.name, token):
        assert index.resolve(handle, tmp_path) == directory
    with pytest.raises(UsageError, match="no run ffff1 in"):
        index.resolve("ffff1", tmp_path)
    assert [(entry.trial, entry.state) for entry in index.runs(tmp_path)] == [("dp-ring", "sealed")]


def test_a_handle_names_a_node_of_a_bed() -> None:
    assert index.node("lab/n2") == ("lab", "n2")
    assert index.node("n2") is None
    assert index.node("../n2") is None


def test_a_bed_file_is_what_was_written(tmp_path: Path) -> None:
    bed = local(state=str(tmp_path))
    assert bed_files.read(tmp_path, "local") is None
    bed_files.write(tmp_path, bed)
    assert (bed_files.read(tmp_path, "local"), bed_files.names(tmp_path)) == (bed, ("local",))
    (tmp_path / "beds/local.json").write_text("{")
    with pytest.raises(InfrastructureError, match="not a readable bed file"):
        bed_files.read(tmp_path, "local")


def test_nodes_without_a_bed_file_are_still_found(tmp_path: Path) -> None:
    (tmp_path / "beds/lab/nodes").mkdir(parents=True)
    assert bed_files.names_without_file(tmp_path) == ("lab",)
    assert bed_files.minimal_spec(tmp_path, "lab").workdir == str(tmp_path / "beds/lab")
    assert bed_files.minimal_spec(tmp_path, "lab").provider == "process"


def test_a_bed_of_containers_without_its_file_is_known_by_its_keeper(tmp_path: Path) -> None:
    keeper = tmp_path / "beds/box/keeper"
    keeper.mkdir(parents=True)
    (keeper / "keeper.json").write_text(json.dumps({"backend": "containers", "engine": "/e.sock"}))
    spec = bed_files.minimal_spec(tmp_path, "box")
    assert (spec.provider, spec.network, spec.hostdir) == ("docker", "private", str(tmp_path / "beds/box"))
    assert [(host.connection, host.engine) for host in spec.hosts] == [("local", "/e.sock")]


def test_a_bed_on_hosts_elsewhere_without_its_file_is_refused_with_what_helps(tmp_path: Path) -> None:
    (tmp_path / "beds/far/keeper-h1").mkdir(parents=True)
    with pytest.raises(UsageError, match="hosts are not known") as caught:
        bed_files.minimal_spec(tmp_path, "far")
    assert "ccbed down INVENTORY" in str(caught.value.hint)


def test_only_one_changes_a_bed_at_a_time(tmp_path: Path) -> None:
    held = bed_files.lock(tmp_path, "local")
    with held, pytest.raises(UsageError, match="being changed by another"), bed_files.lock(tmp_path, "local"):
        pass
    with bed_files.lock(tmp_path, "local"):
        pass


def test_an_open_run_blocks_the_bed_by_name_and_tells_whether_it_is_driven(tmp_path: Path) -> None:
    with bed_files.run_lock(tmp_path, "r1", tmp_path / "r1"):
        bed_files.begin_run(tmp_path, "r1", tmp_path / "r1")
        open_run = bed_files.open_run(tmp_path)
        assert open_run is not None
        assert (open_run.run, open_run.driver) == ("r1", os.getpid())
        with (
            pytest.raises(UsageError, match=f"busy with run r1 \\(pid {os.getpid()}\\)"),
            bed_files.run_lock(tmp_path, "r2", tmp_path / "r2"),
        ):
            pass
    with pytest.raises(UsageError, match="has an open run, r1, whose orchestrator is gone") as refused:
        bed_files.begin_run(tmp_path, "r2", tmp_path / "r2")
    assert "ccbed resume" in refused.value.hint
    bed_files.end_run(tmp_path, "r1")
    assert bed_files.open_run(tmp_path) is None


def test_two_that_look_whether_a_run_is_driven_do_not_take_each_other_for_its_driver(tmp_path: Path) -> None:
    with bed_files.run_lock(tmp_path, "r1", tmp_path / "r1"):
        pass
    with (tmp_path / bed_files.RUN_LOCK).open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert bed_files.driver(tmp_path) == 0


@pytest.mark.parametrize(
    ("end", "state"),
    [
        ({"outcome": "finished", "kind": ""}, "pass"),
        ({"outcome": "finished", "kind": "infrastructure"}, "broken"),
        ({"outcome": "interrupted", "kind": ""}, "interrupted"),
        ({"outcome": "failed", "kind": "finding"}, "fail"),
    ],
)
def test_a_list_of_runs_says_of_a_run_what_its_exit_code_says(tmp_path: Path, end: dict[str, str], state: str) -> None:
    directory = run(tmp_path)
    last = history.clean().history.events[-1]
    assert last.f == "run.end"
    line = json.dumps(codec.plain(dataclasses.replace(last, value={**last.value, **end})))
    (directory / bundle.HISTORY).write_text("x" * 100_000 + "\n" + line + "\n")
    bundle.write_derived(directory, (Verdict(check="finished", outcome="pass", text="all"),), {})
    assert [entry.state for entry in index.runs(tmp_path)] == [state]


def test_a_run_whose_history_was_cut_off_is_listed_as_no_pass(tmp_path: Path) -> None:
    directory = run(tmp_path)
    bundle.write_derived(directory, (Verdict(check="finished", outcome="pass", text="all"),), {})
    for content in ("", '{"type":"note","f":"run.e'):
        (directory / bundle.HISTORY).write_text(content)
        assert [entry.state for entry in index.runs(tmp_path)] == ["unknown"]


def twin(**changes: Any) -> Twin:
    values = {"losses": {"0": {"1": "0x1p-1"}}, "digests": {"0": {"w": "ab"}}, **changes}
    return Twin(key="k1", run="r", steps=1, faults=0, restarts=0, final_loss=0.5, **values)


def test_a_twin_is_kept_under_its_key(tmp_path: Path) -> None:
    assert twin_runs.read_cached(tmp_path, "k1", 1) is None
    twin_runs.write_cached(tmp_path, twin())
    assert twin_runs.read_cached(tmp_path, "k1", 1) == twin()


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("0x1p-1", "0x1p-2", "does not match its checksum"),
        ('"sha256"', '"sum"', "it has no checksum"),
        ('{\n "sha256"', "{", ""),
        ("{", "[" * 100_000 + "{", ""),
    ],
    ids=["a loss", "no checksum", "no JSON", "too deep"],
)
def test_a_twin_that_was_damaged_is_told_with_its_file_and_is_not_used(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    twin_runs.write_cached(tmp_path, twin())
    file = tmp_path / "twins/k1.json"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(twin_runs.DamagedTwinError, match=rf"twins/k1\.json: .*{reason}"):
        twin_runs.read_cached(tmp_path, "k1", 1)


@pytest.mark.parametrize("changes", [{"digests": {}}, {"digests": {"0": {}}}, {"losses": {}}])
def test_a_twin_that_lacks_what_is_compared_is_not_used(tmp_path: Path, changes: dict[str, Any]) -> None:
    twin_runs.write_cached(tmp_path, twin(**changes))
    with pytest.raises(twin_runs.DamagedTwinError, match=f"it has no {next(iter(changes))} of rank 0"):
        twin_runs.read_cached(tmp_path, "k1", 1)


def test_a_twin_of_fewer_ranks_or_under_another_key_is_not_used(tmp_path: Path) -> None:
    twin_runs.write_cached(tmp_path, twin())
    with pytest.raises(twin_runs.DamagedTwinError, match="it has no losses of rank 1, 2"):
        twin_runs.read_cached(tmp_path, "k1", 3)
    (tmp_path / "twins/k1.json").rename(tmp_path / "twins/k2.json")
    with pytest.raises(twin_runs.DamagedTwinError, match="it is the reference run of key k1"):
        twin_runs.read_cached(tmp_path, "k2", 1)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    paths.write(tmp_path / "a", b"1")
    with pytest.raises(TypeError):
        paths.write(tmp_path / "a", None)  # type: ignore[arg-type]
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest() == hashlib.sha256(b"1").hexdigest()


def note(number: int) -> Event:
    at = Clock(boot="b1", mono=900.0 + number, wall=0.0)
    return Event(type="note", f="progress", at=at, source=Source(writer="ctl", n=0), value={"step": number})


def test_after_a_reboot_the_time_of_a_history_goes_on_from_its_last_event(tmp_path: Path) -> None:
    clocks = [Clock(boot="b1", mono=mono, wall=0.0) for mono in (900.0, 907.5)] + [Clock(boot="b2", mono=3.0, wall=0.0)]
    with journal.Journal(tmp_path / "history.jsonl") as history:
        for at in clocks:
            history.append(Event(type="note", f="progress", at=at, source=Source(writer="ctl", n=0)))
        assert [event.t for event in history.events] == [0.0, 7.5, 7.5]


def test_a_bundle_has_the_events_of_a_keeper_up_to_the_last_one_of_its_run(tmp_path: Path) -> None:
    directory, workdir = run(tmp_path), tmp_path / "bed"
    log = EventLog(workdir / "keeper" / "events.jsonl", writer="keeper")
    log.append("note", "node.exit", {"code": -9}, node="n0")
    earlier = (workdir / "keeper" / "events.jsonl").stat().st_size
    for node in ("n1", "n2", "n3"):
        log.append("note", "node.exit", {"code": -9}, node=node)
    lines = (workdir / "keeper" / "events.jsonl").read_bytes().splitlines(keepends=True)
    (directory / bundle.HISTORY).unlink()
    with journal.Journal(directory / bundle.HISTORY) as history:
        begin = {"cursors": {"keeper/events.jsonl": earlier}}
        history.append(
            Event(type="note", f="run.begin", at=journal.now(), source=Source(writer="ctl", n=0), value=begin)
        )
        history.append(decoder.event(lines[2]))
    bundle.keep_keeper_events(directory, workdir)
    assert (directory / "keepers/keeper/events.jsonl").read_bytes() == b"".join(lines[1:3])


def test_a_history_larger_than_any_document_is_read_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "LIMIT", 1000)
    file = tmp_path / bundle.HISTORY
    with journal.Journal(file) as history:
        for number in range(20):
            history.append(note(number))
    assert file.stat().st_size > paths.LIMIT
    assert len(bundle.read_history(tmp_path).events) == 20
    file.write_bytes(file.read_bytes() + b'{"torn')
    with journal.Journal(file) as history:
        assert (len(history.events), history.torn_bytes) == (20, 6)
        history.append(note(20))
    assert [event.seq for event in bundle.read_history(tmp_path).events] == list(range(1, 22))


def test_a_history_beyond_its_limit_says_how_to_raise_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / bundle.HISTORY).open("wb") as file:
        file.truncate(3 << 20)
    monkeypatch.setenv("CCBED_RECORD_MIB", "1")
    with pytest.raises(paths.TornBundleError, match=r"larger than the 1,048,576 bytes .* CCBED_RECORD_MIB=2 \(MiB\)"):
        bundle.read_history(tmp_path)
    monkeypatch.setenv("CCBED_RECORD_MIB", "none")
    with pytest.raises(UsageError, match="CCBED_RECORD_MIB: must be a number of MiB"):
        bundle.read_history(tmp_path)


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "LIMIT", 1000)
    (tmp_path / bundle.HISTORY).write_bytes(b"x" * 2000)
    with pytest.raises(paths.TornBundleError, match="larger than the 1,000 bytes that are read of a line"):
        bundle.read_history(tmp_path)
