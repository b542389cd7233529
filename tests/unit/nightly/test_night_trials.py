"""A trial of a night that hangs where its engine cannot end it is interrupted after its deadline, and its row says so."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app import bed_job
from orchestrator.app.hosts import quarantine
from orchestrator.cli import main
from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.model.bed import BedSpec
from orchestrator.model.errors import EXIT_INTERRUPTED, InfrastructureError, Interrupted, UsageError
from orchestrator.model.launch import Request, Result
from orchestrator.nightly import index, night_files
from orchestrator.nightly.app import night_end, night_trials
from orchestrator.store import bed_files

from ..beds import LOCAL
from ..fake_bed import FakeProvider
from .night_bundles import figure, write_bundle


class KilledError(BaseException):
    """Stands for kill -9: no code handles it."""


SUITE = "suite: s\ntrials: [barrier]\n"
HANGS = "suite: s\ntrials: [{trial: barrier, deadline: 0.1s}]\n"


def nightly(
    root: Path,
    launch: Callable[[Request], Result],
    suite: str = SUITE,
    bed: FakeProvider | None = None,
    before: Callable[[], None] = lambda: None,
    *options: str,
    inventory: str = LOCAL,
) -> tuple[int, dict[str, Any], str]:
    """Exit code, document and errors of a night on a bed that is only simulated."""
    (root / "local.yml").write_text(inventory)
    (root / "s.yml").write_text(suite)
    out, err, bed = io.StringIO(), io.StringIO(), bed or FakeProvider()
    for line in (
        ("up", str(root / "local.yml")),
        ("nightly", str(root / "s.yml"), "--runs-dir", str(root / "runs"), "--json", *options),
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
    code, document, _ = nightly(tmp_path, launch, HANGS)
    (row,) = document["rows"]
    assert (code, row["state"]) == (1, "unfinished")
    assert row["reason"].startswith("hung: not ended 0.1 s after twice its deadline of 0.1 s")
    assert time.monotonic() - begin < 60


def interrupted(request: Request) -> Result:
    raise Interrupted("interrupted by hand", hint="ccbed resume r")


def test_an_interruption_before_the_deadline_is_that_of_the_user(tmp_path: Path) -> None:
    code, document, errors = nightly(tmp_path, interrupted)
    assert (code, document["exit"]) == (EXIT_INTERRUPTED, EXIT_INTERRUPTED)
    assert "the night is open" in errors
    assert "ccbed nightly --resume " in errors


def test_a_bed_that_is_taken_down_during_the_night_stays_down(tmp_path: Path) -> None:
    """The run that was open ends with an error of a file; the row says what happened, and nothing brings the bed up again."""
    bed = FakeProvider()

    def take_down(request: Request) -> Result:
        bed_files.forget(tmp_path / "state", "local")
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
    assert bed_files.read(tmp_path / "state", "local") is None


def test_a_night_ends_with_its_job_that_was_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between two trials, and without another job. What did not run is an error, not a skipped row."""
    bed, requests = FakeProvider(), list[Request]()
    launch = measure(requests)

    def cancel_after(request: Request) -> Result:
        for node in request.bed.nodes:
            bed.state(node.name, "absent")
        return launch(request)

    monkeypatch.setattr(bed_job.BedJob, "deliberate_end", staticmethod(lambda bed: "job 7: cancelled (scancel)"))
    suite = "suite: s\ntrials: [gemm, {trial: gemm, name: b}, {trial: gemm, name: c}]\n"
    code, document, _ = nightly(tmp_path, cancel_after, suite, bed)
    assert [(row["state"], row["reason"]) for row in document["rows"][1:]] == [
        ("error", "not run: job 7: cancelled (scancel)")
    ] * 2
    assert (code, len(requests), bed.commands.count("node.apply n0")) == (4, 1, 1)


def test_a_cell_that_does_not_fit_into_the_job_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what it took in earlier nights; one that is not known starts."""
    requests: list[Request] = []
    suite = "suite: s\ntrials: [gemm, {trial: gemm, name: b}]\n"
    assert nightly(tmp_path, measure(requests), suite)[0] == 0

    def refuse(bed: BedSpec, past_s: float, what: str) -> None:
        if what == "the cell" and past_s > 0:
            raise UsageError("the cell took 9 s in earlier nights, and job 7 of bed lab ends in 5 s")

    monkeypatch.setattr(bed_job.BedJob, "refuse_longer", staticmethod(refuse))
    more = suite.replace("]", ", {trial: gemm, name: c}]")
    _, document, _ = nightly(tmp_path, measure(requests), more)
    skipped = {row["cell"]: row["reason"] for row in document["rows"] if row["state"] == "skipped"}
    assert skipped == dict.fromkeys(
        ("gemm", "b"), "the cell took 9 s in earlier nights, and job 7 of bed lab ends in 5 s"
    )


def test_a_keeper_that_ended_is_a_row_and_is_started_again(tmp_path: Path) -> None:
    bed = FakeProvider()

    def kill_keeper(request: Request) -> Result:
        bed.keeper = ""
        raise InfrastructureError("preflight: agent aaaaaa: not on host agent")

    code, document, _ = nightly(tmp_path, kill_keeper, bed=bed)
    lost = [row for row in document["rows"] if row["cell"] == "node (host agent)"]
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
        bed_files.change_run(workdir, directory.name, directory)

    code, document, errors = nightly(tmp_path, fail, before=leave_open)
    reason = f"night {night} has ended" if night else f"its directory is gone: {directory}"
    assert f"run {directory.name} is abandoned: {reason}" in errors
    assert [row["reason"] for row in document["rows"]] == ["no host"]
    assert code == 4
    assert bed_files.open_run(workdir) is None


# --- nodes that are lost ----------------------------------------------------------------------------------------------


def measure(requests: list[Request]) -> Callable[[Request], Result]:
    """A launch whose run has a figure of each node that it got."""

    def launch(request: Request) -> Result:
        requests.append(request)
        nodes = [node.name for node in request.bed.nodes if node.role == "node"][: request.trial.world.nodes]
        directory = (
            Path(request.runs) / f"2026-11-23T02-00-{len(requests):02d}Z-{request.trial.name}-{len(requests):04x}"
        )
        figures = [figure("GEMM rate", 100.0, "FLOP/s", "higher", node=name) for name in nodes]
        write_bundle(directory, figures, trial=request.trial.name, nodes=nodes, reason=request.reason)
        return Result(run=directory.name, directory=str(directory), code=0)

    return launch


LOST = """suite: s
defaults: {world: {nodes: all}}
trials:
  - {trial: gemm}
  - {trial: barrier, name: four, world: {nodes: 4}}
  - {trial: barrier, name: last, world: {nodes: 3}}
"""


def lose(bed: FakeProvider, *names: str) -> Callable[[], None]:
    """The nodes end, and cannot be brought up again."""

    def kill() -> None:
        bed.broken = names
        for name in names:
            bed.state(name, "dead")

    return kill


def test_a_night_measures_the_nodes_that_are_up_and_names_the_lost_one(tmp_path: Path) -> None:
    """Four nodes and a spare; n3 is gone before the night begins, and cannot be brought up again."""
    bed, requests = FakeProvider(), list[Request]()
    code, document, errors = nightly(tmp_path, measure(requests), LOST, bed, lose(bed, "n3"))
    rows = {row["cell"]: row for row in document["rows"]}
    assert {cell: row["state"] for cell, row in rows.items()} == {
        "node n3": "unknown", "gemm": "passed", "four": "skipped", "last": "passed",
    }, errors  # fmt: skip
    assert {request.trial.world.nodes for request in requests} == {3}
    assert all("n3" not in [node.name for node in request.bed.nodes] for request in requests)
    assert rows["node n3"]["reason"].startswith("is dead; cannot be brought up again: ")
    assert (
        rows["four"]["reason"] == "trial barrier needs 4 nodes; bed local has 3 (spares are never counted); n3 is dead"
    )
    assert (code, document["outcome"]) == (0, "pass")
    assert "lost: n3; runs: 2 passed, 1 skipped" in document["sentence"]
    (finding,) = [entry for entry in document["findings"] if entry["finding"].get("node") == "n3"]
    assert (finding["state"], finding["finding"]["outcome"]) == ("unknown", "unknown")
    report = Path(document["report"]).parent
    for name in ("index.html", "summary.md", "junit.xml"):
        assert "cannot be brought up again" in (report / name).read_text(), name


def test_lost_nodes_are_tried_once_and_again_when_their_state_changes(tmp_path: Path) -> None:
    bed, requests = FakeProvider(), list[Request]()
    launch = measure(requests)

    def launch_and_return(request: Request) -> Result:
        if len(requests) == 1:
            bed.broken = ()
            bed.state("n3", "absent")
        return launch(request)

    suite = "suite: s\nseed: 1\ndefaults: {world: {nodes: all}}\ntrials: [gemm, {trial: gemm, name: b}, {trial: gemm, name: c}]\n"
    code, document, _ = nightly(tmp_path, launch_and_return, suite, bed, lose(bed, "n3"))
    assert [request.trial.world.nodes for request in requests] == [3, 3, 4]
    assert bed.commands.count("node.apply n3") == 3, (
        "brought up before the night, tried once, and after its state changed"
    )
    lost = [row["reason"] for row in document["rows"] if row["cell"] == "node n3"]
    assert lost[1:] == ["was absent; brought up again"]
    assert code == 0


def test_a_night_without_any_node_is_broken(tmp_path: Path) -> None:
    bed, requests = FakeProvider(), list[Request]()

    def launch(request: Request) -> Result:
        raise InfrastructureError("node n0 of bed local is dead, not ready")

    names = ("n0", "n1", "n2", "n3")
    code, document, _ = nightly(tmp_path, launch, "suite: s\ntrials: [gemm]\n", bed, lose(bed, *names))
    assert (code, requests) == (4, [])
    assert {row["cell"] for row in document["rows"]} == {"gemm", *(f"node {name}" for name in names)}


def test_a_fault_aimed_at_a_node_that_is_not_there_is_skipped(tmp_path: Path) -> None:
    bed, requests = FakeProvider(), list[Request]()
    suite = (
        "suite: s\ntrials: [{trial: dp-ring, world: {nodes: all}, faults: [crash-node: {node: 3, at: {step: 10}}]}]\n"
    )
    code, document, _ = nightly(tmp_path, measure(requests), suite, bed, lose(bed, "n3"))
    (row,) = [row for row in document["rows"] if row["cell"] == "dp-ring"]
    assert (row["state"], code, requests) == ("skipped", 2, [])
    assert "n3 is dead" in row["reason"]


def test_a_failover_without_its_spare_is_skipped(tmp_path: Path) -> None:
    """It would recover by a restart, which takes another time."""
    bed, requests = FakeProvider(), list[Request]()
    suite = "suite: s\ntrials: [{trial: dp-ring, world: {nodes: 2}, faults: [crash-node: {node: 1, at: {step: 10}}]}]\n"
    _, document, _ = nightly(tmp_path, measure(requests), suite, bed, lose(bed, "n4"))
    (row,) = [row for row in document["rows"] if row["cell"] == "dp-ring"]
    assert (row["state"], row["reason"]) == ("skipped", "no spare is left to recover with: n4 is dead")


TWO_HOSTS = "all: {hosts: {a: {}, b: {}}, vars: {ansible_connection: local, ccbed_nodes: 2}}"


def drain(root: Path) -> Callable[[], None]:
    """Host b, with n2 and n3, is drained."""

    def act() -> None:
        quarantine.drain(root / "state/beds/local", ["b"], quarantine.Drain(by="y", since="x", reason="a fan"))

    return act


def test_a_night_keeps_which_nodes_are_on_drained_hosts(tmp_path: Path) -> None:
    suite = "suite: s\ntrials: [gemm]\n"
    _, document, _ = nightly(tmp_path, measure([]), suite, None, drain(tmp_path), inventory=TWO_HOSTS)
    night = night_files.read_night(Path(document["directory"]))
    reason = "is on host b, which is set aside since x by y: a fan"
    assert (sorted(night.hosts), night.drained) == (["n0", "n1"], {"n2": reason, "n3": reason})
    assert f"n2 {reason}; it takes no part" in document["notes"]


def test_an_open_night_gives_no_rank_to_a_host_that_was_drained_meanwhile(tmp_path: Path) -> None:
    requests: list[Request] = []
    suite = "suite: s\ndefaults: {world: {nodes: all}}\ntrials: [gemm]\n"
    nightly(tmp_path, interrupted, suite, inventory=TWO_HOSTS)
    (first,) = night_files.nights(tmp_path / "runs")
    assert not night_files.is_closed(first)
    _, _, errors = nightly(
        tmp_path, measure(requests), suite, None, drain(tmp_path), "--resume-open", inventory=TWO_HOSTS
    )
    assert f"open night {first.name}, begun " in errors and ": resumed, exit 2" in errors
    assert [[node.name for node in request.bed.nodes] for request in requests] == [["n0", "n1"]] * 2


# --- trials and beds that change during a night ---------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["removed", "broken"])
@pytest.mark.parametrize("nodes", ["1", "all"])
def test_a_trial_that_was_removed_or_broken_during_the_night_is_an_error(
    tmp_path: Path, change: str, nodes: str
) -> None:
    requests: list[Request] = []
    launch = measure(requests)
    for name in ("a", "b"):
        (tmp_path / f"{name}.yml").write_text(
            f"trial: {name}\nworkload: node-probe\nparams: {{probes: [gemm]}}\nworld: {{nodes: 1}}\n"
        )

    def launch_and_change(request: Request) -> Result:
        for name in {"a", "b"} - {request.trial.name}:
            file = tmp_path / f"{name}.yml"
            file.unlink() if change == "removed" else file.write_text("trial: [")
        return launch(request)

    suite = f"suite: s\ndefaults: {{world: {{nodes: {nodes}}}}}\ntrials: [a.yml, b.yml]\n"
    code, document, errors = nightly(tmp_path, launch_and_change, suite)
    assert sorted(row["state"] for row in document["rows"]) == ["error", "passed"], errors
    assert (code, len(requests)) == (4, 1)


def test_a_bed_file_that_is_damaged_during_the_night_ends_it_with_its_report(tmp_path: Path) -> None:
    requests: list[Request] = []
    launch = measure(requests)

    def launch_and_damage(request: Request) -> Result:
        (tmp_path / "state/beds/local.json").write_text("{")
        return launch(request)

    suite = "suite: s\ntrials: [gemm, {trial: gemm, name: b}]\n"
    code, document, _ = nightly(tmp_path, launch_and_damage, suite)
    assert [row["state"] for row in document["rows"]] == ["passed", "error"]
    assert "not run: " in document["rows"][1]["reason"] and "not a readable bed file" in document["rows"][1]["reason"]
    assert code == 4
    assert Path(document["report"]).is_file()


@pytest.mark.parametrize(
    ("step", "done"),
    [("index.open", "resumed"), ("night_end._judge", "resumed"), ("night_files.write_judgement", "judged")],
)
def test_a_night_that_is_killed_between_its_last_row_and_its_judgement_is_open_until_it_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, done: str
) -> None:
    """The first judgement comes before the seal: suspects are measured again."""
    modules = {"index": index, "night_end": night_end, "night_files": night_files}
    module, _, name = step.partition(".")

    def kill(*_args: object, **_options: object) -> None:
        raise KilledError

    launch = measure([])
    suite = "suite: s\ntrials: [gemm]\n"
    with monkeypatch.context() as killed:
        killed.setattr(modules[module], name, kill)
        with pytest.raises(KilledError):
            nightly(tmp_path, launch, suite)
    (first,) = night_files.nights(tmp_path / "runs")
    assert night_files.is_closed(first) == (done == "judged") and not night_files.is_judged(first)
    code, document, errors = nightly(tmp_path, launch, suite)
    assert f"night {first.name} has not ended, and its process is gone; end it: ccbed nightly --resume" in errors
    assert (code, night_files.is_judged(first), night_files.is_judged(Path(document["directory"]))) == (0, False, True)
    command = f"sh -c 'cat >> {tmp_path}/notified'"
    code, _, errors = nightly(tmp_path, launch, suite, None, lambda: None, "--resume-open", "--notify", command)
    assert (code, night_files.is_judged(first)) == (0, True)
    assert f"open night {first.name}, begun " in errors and f": {done}, exit 0; the new night begins" in errors
    assert (first / "report/index.html").is_file()
    assert (tmp_path / "notified").read_text().count("# PASS") == 2
    assert "has not ended" not in nightly(tmp_path, launch, suite)[2]


def test_the_newest_night_has_a_link_and_its_report_lies_where_it_is_wanted(tmp_path: Path) -> None:
    files = ("--report-dir", str(tmp_path / "page"), "--junit-xml", str(tmp_path / "out.xml"))
    _, document, _ = nightly(tmp_path, measure([]), "suite: s\ntrials: [gemm]\n", None, lambda: None, *files)
    assert (tmp_path / "runs/latest-night").resolve() == Path(document["directory"])
    assert (tmp_path / "out.xml").read_bytes() == (tmp_path / "page/junit.xml").read_bytes()
    assert sorted(path.name for path in (tmp_path / "page").iterdir()) == [
        "index.html", "junit.xml", "metrics.prom", "summary.md",
    ]  # fmt: skip


def test_a_night_whose_index_fails_in_any_way_is_judged_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise ValueError("a byte")

    monkeypatch.setattr(index, "open", fail)
    code, document, _ = nightly(tmp_path, measure([]), "suite: s\ntrials: [gemm]\n")
    assert (code, Path(document["report"]).is_file()) == (0, True)
    assert "the history cannot be read" in document["notes"][0] and "ValueError: a byte" in document["notes"][0]


def test_a_deadline_that_passes_as_its_run_ends_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the timer is late between its decision and its signal."""
    leaving, kill, received = threading.Event(), os.kill, list[int]()

    def kill_late(pid: int, number: int) -> None:
        leaving.wait(600)
        kill(pid, number)

    monkeypatch.setattr(os, "kill", kill_late)
    previous = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    deadline = night_trials._Deadline(0.0)
    try:
        with deadline:
            until = time.monotonic() + 600
            while not deadline.has_passed and time.monotonic() < until:
                time.sleep(0.002)
            threading.Timer(0.2, leaving.set).start()
        deadline._timer.join()
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert deadline.has_passed
    assert received == []
