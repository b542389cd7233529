"""What a hostile or unlucky user does: one clear error or a failed verdict with the cause, the right exit code, nothing left."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.model.errors import InfrastructureError
from orchestrator.model.event import Event
from orchestrator.model.trial import Liveness, World
from orchestrator.run import lifecycle
from orchestrator.store import bed_files

from ..patience import until
from . import trials
from .conftest import Bed, Ran, ran

pytestmark = pytest.mark.e2e


def untouched(bed: Bed) -> bool:
    """No run is open, every node is warm, and `up` finds nothing to change."""
    return (
        bed_files.open_run(Path(bed.spec.workdir)) is None and bed.unchanged() and "busy" not in bed.ccbed("status")[1]
    )


# --- refused before anything starts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("dp-ring --fail-node 9", "--fail-node 9: crash-node.node: the trial has nodes 0..3 (got 9)"),
        ("dp-ring --fail-node n9", "unknown node n9; known: n0, n1, n2, n3, n4"),
        ("dp-ring --fail-node 2 --at step=99", "the last step is 60 (got 99)"),
        (
            "dp-ring --fail-node 2 --at step=7,phase=checkpoint",
            "no checkpoint is written in this step: one is written every 5 steps (got 7)",
        ),
        ("dp-ring --nodes 7", "bed local has 4 (spares are never counted)"),
        ("dp-ring --backend nccl", "backend nccl needs 1 GPU per node"),
        ("dp-ring --data-dir /nowhere", "--data-dir: no such directory (got /nowhere)"),
        ("dp-ring --data-dir .", "no data set that train-dp can read"),
        ("dp-ring --bed elsewhere", "no bed elsewhere is up; up: local"),
        ("silent.py --fail-node 1 --at step=3,phase=allreduce", "this workload has no such phase"),
        ("silent.py --fail-node 1 --at bogus", "500ms or 10m, or a point: step=20, after-save=2+3, save"),
        ("silent.py --fail-node 1 --fail-node 1", "is planned twice on this node at the same point"),
        ("silent.py --tee 7", "--tee: the trial has ranks 0 to 3 (got 7)"),
        ("silent.py --tee first", "--tee: must be a rank, all or none (got first)"),
        (
            "silent.py --env BAD-NAME=1",
            "--env: must be NAME or NAME=VALUE; a name has letters, digits and _ (got 'BAD-NAME')",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("silent.py").write_text("print('nothing')\n")
    code, text = bed.ccbed("run", *args.split())
    assert code == 3
    assert expected in text
    assert not [entry for entry in (tmp_path / "runs").glob("*") if entry.is_dir()], "no orphan run directory"
    assert bed_files.open_run(Path(bed.spec.workdir)) is None


def test_nothing_can_be_done_to_a_bed_on_which_a_run_goes_on(bed: Bed) -> None:
    messages: list[tuple[int, str]] = []

    def meanwhile(event: Event) -> None:
        if event.f == "gang.joined":
            messages.extend(bed.ccbed(*verb) for verb in (("run", "dp-ring"), ("heal",), ("down", "local")))

    done = bed.run(trials.dp(checks=()), on_event=meanwhile, twin=False)
    assert done.outcome("finished") == "pass"
    assert [code for code, _ in messages] == [3, 3, 3]
    assert all(done.directory.name in text for _, text in messages)
    assert untouched(bed)


# --- ports ------------------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_left_to_who_has_it(bed: Bed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = bed.run(trials.dp(trials.crash(2), world=World(nodes=4, master_port=port)))
    assert done.bad() == []
    answers = [event.value for event in done.of("store.open") if event.type == "ok"]
    assert [answer["retries"][0] for answer in answers] == [port, port]
    assert all(answer["port"] > port for answer in answers)
    assert [event.epoch for event in done.of("store.retried")] == [0, 1]
    assert untouched(bed)


def test_no_free_port_is_a_failure_of_the_machine_with_its_cause(bed: Bed) -> None:
    with socket.create_server(("127.0.0.1", 65535)):
        done = bed.run(trials.dp(checks=(), world=World(nodes=4, master_port=65535)), twin=False)
    assert done.code == 4
    assert "ports 65535 to 65535 of 127.0.0.1 are taken" in done.verdict("finished").text
    assert untouched(bed)


# --- full disks -------------------------------------------------------------------------------------------------------


class Disk:
    """A small file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, but: int = 0) -> None:
        """Leave ``but`` KiB free."""
        filesystem = os.statvfs(self.path)
        (self.path / "filler").write_bytes(bytes(max(0, filesystem.f_bavail * filesystem.f_frsize - but * 1024)))

    def clear(self) -> None:
        (self.path / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root: a file system is mounted")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "ccbed-test", str(path)], capture_output=True)
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.decode().strip()}")
    yield Disk(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.root
def test_a_disk_that_is_full_loses_checkpoints_and_says_so(bed: Bed, disk: Disk) -> None:
    """4 MiB hold one checkpoint of 2.9 MB at most: the first is resumed from."""
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk.path)], check=True)
    narrow = Bed(
        state=bed.state, runs=bed.runs, catalogue=bed.catalogue, spec=replace(bed.spec, shared_dir=str(disk.path))
    )
    done = narrow.run(trials.dp(trials.crash(2), checks=(), params={"checkpoint_retry_s": 0.2}), twin=False)
    lost = done.of("checkpoint.failed")
    assert {event.value["reason"] for event in lost} == {"No space left on device"}
    assert [event.value.get("step") for event in done.of("resume.chosen")] == [0, 5]
    assert f"{len(lost)} checkpoints could not be written" in done.verdict("finished").text
    assert done.outcome("resumed-newest") == "pass"
    assert done.code == 0, done.bad()
    assert untouched(bed)


@pytest.mark.root
@pytest.mark.parametrize("moment", ["fence.write", "gang.joined", "rank.held", "fault.injected", "recovery.decided"])
def test_a_journal_that_cannot_be_written_stops_the_gang_heals_and_is_gone_on_with(
    bed: Bed, disk: Disk, moment: str
) -> None:
    trial = trials.dp(trials.crash(2))
    where: list[Path] = []

    def narrow(event: Event) -> None:
        if event.f == moment and "twin" not in where[-1].name:
            disk.fill()

    request = bed.request(trial, runs=str(disk.path), on_event=narrow, on_begin=lambda path: where.append(Path(path)))
    with pytest.raises(InfrastructureError) as raised:
        lifecycle.launch(request)
    directory = where[-1]
    assert "the journal cannot be written: No space left on device" in str(raised.value)
    assert f"ccbed resume {directory}" in raised.value.hint
    assert "nothing to change" in bed.ccbed("up", bed.spec.inventory)[1]
    assert "busy" not in bed.ccbed("status")[1]
    disk.clear()
    lifecycle.launch(bed.request(trial, resume=str(directory)))
    second = ran(str(directory), bed)
    cut_before_the_injection = [bad for bad in second.bad() if bad.startswith("unknown fault-verified")]
    assert second.bad() == cut_before_the_injection, "one that was never sent is not made up for"
    assert second.outcome("bit-exact") == "pass"
    assert untouched(bed)


@pytest.mark.root
def test_a_run_whose_journal_cannot_be_written_can_be_given_up_on_the_full_disk(bed: Bed, disk: Disk) -> None:
    request = bed.request(
        trials.dp(trials.crash(2), checks=()), twin=False, runs=str(disk.path),
        on_event=lambda event: disk.fill() if event.f == "rank.held" else None,
    )  # fmt: skip
    with pytest.raises(InfrastructureError):
        lifecycle.launch(request)
    code, output = bed.ccbed("heal", "local")
    assert code == 0
    assert "is abandoned" in output
    assert untouched(bed)


@pytest.mark.root
def test_where_nothing_can_be_written_nothing_is_begun(bed: Bed, disk: Disk) -> None:
    disk.fill()
    with pytest.raises(InfrastructureError, match="No space left on device"):
        lifecycle.launch(bed.request(trials.dp(checks=()), twin=False, runs=str(disk.path)))
    assert [entry.name for entry in disk.path.iterdir()] == ["filler"]
    assert untouched(bed)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_without_any_whole_checkpoint_training_starts_anew_and_that_is_a_finding(bed: Bed) -> None:
    where: list[Path] = []

    def damage(event: Event) -> None:
        # No rank saves without n2, and the scan of the checkpoints is ordered only after the last of these events.
        if event.f in ("node.exit", "gang.stop"):
            for file in (Path(bed.spec.shared_dir) / where[-1].name / "checkpoints").glob("*.pt"):
                file.write_bytes(file.read_bytes()[:1000])

    done = bed.run(
        trials.dp(trials.crash(2), params={"step_min_ms": 20}),
        on_event=damage,
        on_begin=lambda path: where.append(Path(path)),
    )
    assert {event.value["name"] for event in done.of("checkpoint.skipped")} == {"e0-s5", "e0-s10"}
    assert [event.value["step"] for event in done.of("resume.chosen")] == [0, 0]
    assert done.outcome("finished") == "pass"
    assert done.outcome("bit-exact") == "fail"
    assert done.code == 1
    assert untouched(bed)


# --- scripts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("raise ValueError('no luck')", "left with exit code 1: ValueError: no luck"),
        ("raise SystemExit(3)", "left with exit code 3"),
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV"),
        ("def f(:", "left with exit code 1: SyntaxError"),
    ],
)
def test_a_script_that_fails_is_a_finding_that_names_the_cause(bed: Bed, tmp_path: Path, text: str, cause: str) -> None:
    (tmp_path / "job.py").write_text(text + "\n")
    code, output = bed.ccbed("run", str(tmp_path / "job.py"), "--runs-dir", str(tmp_path / "runs"))
    assert code == 1
    assert cause in output
    assert "internal error of ccbed" not in output
    assert untouched(bed)


def test_a_script_that_hangs_is_a_failed_verdict_with_stacks(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import time\ndef stuck():\n    time.sleep(1000)\nstuck()\n")
    params = {"file": str(tmp_path / "job.py")}
    trial = replace(
        trials.dp(checks=(), policy=("none",)), workload="script", params=params, liveness=Liveness(wall_s=15.0)
    )
    done = bed.run(trial)
    assert done.code == 1
    assert "not finished after 15 s" in done.verdict("finished").text
    assert done.outcome("no-hang") == "fail"
    stacks = [log.read_text() for log in done.directory.glob("nodes/*/*/rank-*.log")]
    assert len(stacks) == 4
    assert all("line 3 in stuck" in log for log in stacks)
    assert untouched(bed)


# --- bundles ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sealed(bed: Bed) -> Ran:
    return bed.run(trials.dp())


def _tear_a_line(bundle: Path) -> None:
    lines = (bundle / "history.jsonl").read_text().splitlines()
    lines[19] = lines[19][:10]
    (bundle / "history.jsonl").write_text("\n".join(lines) + "\n")


def _link_outside(bundle: Path) -> None:
    (bundle / "nodes/n1/agent.log").unlink()
    (bundle / "nodes/n1/agent.log").symlink_to("/etc/passwd")


def _list_outside(bundle: Path) -> None:
    manifest = bundle / "manifest-sha256.txt"
    manifest.write_text(manifest.read_text() + f"{'0' * 64}  ../../etc/passwd\n")


@pytest.mark.parametrize(
    ("tear", "reason"),
    [
        (_tear_a_line, "history.jsonl: changed since"),
        (lambda bundle: (bundle / "plan.json").unlink(), "plan.json: listed in manifest-sha256.txt, but missing"),
        (lambda bundle: (bundle / "trial.json").unlink(), "not a run: it has no trial.json"),
        (_link_outside, "agent.log: a link or special file is not allowed in a bundle"),
        (_list_outside, "'../../etc/passwd' is not a path inside the bundle"),
        (lambda bundle: (bundle / "manifest-sha256.txt").write_bytes(b"\xff\0"), "manifest-sha256.txt:1: not a sum"),
    ],
    ids=["torn line", "missing file", "no trial", "link", "escape", "no manifest"],
)
def test_a_torn_bundle_proves_nothing_and_says_where(
    bed: Bed, sealed: Ran, tmp_path: Path, tear: Callable[[Path], None], reason: str
) -> None:
    bundle = tmp_path / sealed.directory.name
    shutil.copytree(sealed.directory, bundle)
    tear(bundle)
    for verb in (("check",), ("report",), ("bundle", "verify"), ("watch",)):
        code, output = bed.ccbed(*verb, str(bundle))
        assert code in (2, 3), verb
        assert reason in output, verb
        assert "next: " in output, verb
        assert "internal error of ccbed" not in output


def test_a_torn_archive_is_no_bundle(bed: Bed, sealed: Ran, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    assert bed.ccbed("bundle", "export", str(sealed.directory), "-o", str(archive))[0] == 0
    assert bed.ccbed("bundle", "verify", str(archive))[0] == 0
    archive.write_bytes(archive.read_bytes()[:5000])
    code, output = bed.ccbed("bundle", "verify", str(archive))
    assert code == 2
    assert "not a readable archive" in output


def test_verdicts_that_were_damaged_are_made_again(bed: Bed, sealed: Ran, tmp_path: Path) -> None:
    bundle = tmp_path / sealed.directory.name
    shutil.copytree(sealed.directory, bundle)
    (bundle / "verdicts.json").write_text("{")
    assert bed.ccbed("check", str(bundle))[0] == 0
    assert bed.ccbed("bundle", "verify", str(bundle))[0] == 0


# --- commands ---------------------------------------------------------------------------------------------------------


def refusals(directory: Path, name: str) -> int:
    lines = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    return sum(line["f"] == "command.refused" and line["value"]["key"] == name for line in lines)


@pytest.mark.parametrize("performer", ["nodes/n1", "keeper"])
def test_a_file_that_is_no_command_is_refused_once_and_the_next_is_performed(bed: Bed, performer: str) -> None:
    directory, name = Path(bed.spec.workdir) / performer, "r.deep.json"
    (directory / name).write_text("[" * 100_000)
    (directory / name).rename(directory / "inbox" / name)
    until((directory / "refused" / name).exists)
    assert bed.ccbed("exec", "n1", "--", "true")[0] == 0
    assert bed.run(trials.dp(trials.crash(1))).code == 0
    assert refusals(directory, name) == 1
    assert untouched(bed)
