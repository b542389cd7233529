"""An orchestrator is gone while it made a twin, was being interrupted, or judged: what the other commands do and say."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from orchestrator.model.errors import Interrupted
from orchestrator.model.event import Event
from orchestrator.model.events import CollectiveMeasured
from orchestrator.model.trial import Recovery, Trial, World
from orchestrator.run import judging, lifecycle
from orchestrator.store import bundle

from ..patience import until
from . import trials
from .conftest import ROOT, Bed, ran
from .test_bad_input import untouched
from .test_interrupted import SLOW, at, ctrl_c
from .test_slow_node import written

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("own_interrupts")]


@pytest.fixture
def left_in_twin(bed: Bed) -> Path:
    """The directory of a twin whose orchestrator is gone; its gang still trains."""
    where: list[str] = []

    def began(directory: str) -> None:
        where.append(directory)
        if "-twin-" in directory:
            ctrl_c(2)

    # the interrupt comes before the gang is started: the twin is gone on with from its first line
    seed = 100_000 + len(list(bed.runs.glob("*")))  # a twin that was never made before
    trial = trials.dp(trials.crash(2), params={"step_min_ms": 7}, seed=seed)
    with pytest.raises((Interrupted, KeyboardInterrupt)):
        lifecycle.launch(bed.request(trial, on_begin=began))
    return Path(where[-1])


@pytest.mark.parametrize("handle", ["latest", "the reference run's directory"])
def test_resume_of_a_run_whose_twin_was_being_made_runs_its_faults(bed: Bed, left_in_twin: Path, handle: str) -> None:
    status = bed.ccbed("status")[1]
    assert "its orchestrator is gone while it made its reference run" in status
    requested = (bed.runs / "latest").resolve()
    assert f"ccbed resume {requested}" in status
    name = "latest" if handle == "latest" else str(left_in_twin)
    code, output = bed.ccbed("resume", name, "--runs-dir", str(bed.runs))
    assert code == 0, output
    second = ran(str(requested), bed)
    assert (second.outcome("fault-verified"), second.outcome("bit-exact")) == ("pass", "pass")
    assert len(second.of("fault.act")) == 2
    assert second.run.twin is not None
    assert second.run.twin.run == left_in_twin.name, "the reference run was gone on with, not made again"
    assert bundle.stage(left_in_twin) == "closed"
    assert bed.ccbed("resume", str(left_in_twin)) == bed.ccbed("resume", str(requested)), (
        "a reference run means the run it was made for"
    )
    assert untouched(bed)


def test_a_run_that_is_given_up_while_its_twin_is_made_is_closed_with_it(bed: Bed, left_in_twin: Path) -> None:
    requested = (bed.runs / "latest").resolve()
    code, output = bed.ccbed("heal", "local")
    assert (code, "is closed" in output) == (0, True), output
    assert bed.ccbed("check", str(requested))[0] == 130
    assert bundle.is_sealed(left_in_twin)
    assert bed.ccbed("resume", str(requested))[0] == 3
    assert untouched(bed)


def test_one_resume_is_enough_after_a_second_ctrl_c_while_the_first_is_carried_out(bed: Bed) -> None:
    where: list[str] = []
    first, second = at("gang.joined", ctrl_c), at("run.interrupted", ctrl_c)

    def record(event: Event) -> None:
        first(event)
        second(event)

    request = bed.request(trials.dp(trials.crash(2), params=SLOW), on_begin=where.append, on_event=record)
    with pytest.raises(Interrupted):
        lifecycle.launch(request)
    code, output = bed.ccbed("resume", where[-1])
    assert code == 0, output
    assert ran(where[-1], bed).bad() == []
    assert untouched(bed)


@pytest.fixture
def unjudged(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """Makes a run that has ended, and whose orchestrator died before it judged it."""

    def make() -> Path:
        where: list[str] = []
        request = bed.request(trials.dp(trials.crash(2), checks=()), twin=False, on_begin=where.append)
        with monkeypatch.context() as patched:
            patched.setattr(judging, "conclude", lambda *args, **named: ctrl_c())
            with pytest.raises(Interrupted):
                lifecycle.launch(request)
        return Path(where[-1])

    return make


def test_a_run_that_has_ended_does_not_block_its_bed_and_the_next_command_judges_it(
    bed: Bed, unjudged: Callable[[], Path]
) -> None:
    directory = unjudged()
    assert f"judge it: ccbed resume {directory}" in bed.ccbed("status")[1]
    code, output = bed.ccbed("up", bed.spec.inventory)
    assert (code, "nothing to change" in output) == (0, True), output
    assert f"judged run {directory.name}: its orchestrator died after the run had ended" in output
    assert "exit 0; verdicts: ccbed check" in output
    assert bundle.stage(directory) == "closed"
    assert untouched(bed)

    directory, notes = unjudged(), list[str]()
    result = lifecycle.launch(bed.request(trials.dp(checks=()), twin=False, on_note=notes.append))
    assert result.code == 0
    assert [directory.name in note for note in notes] == [True]
    assert bundle.stage(directory) == "closed"
    assert untouched(bed)


def test_resume_of_a_run_that_has_ended_prints_its_verdict_and_has_its_code(
    bed: Bed, unjudged: Callable[[], Path]
) -> None:
    directory = unjudged()
    code, output = bed.ccbed("resume", str(directory))
    assert (code, "PASS" in output) == (0, True), output
    repeated_code, repeated = bed.ccbed("resume", str(directory))
    assert repeated_code == code and repeated and output.endswith(repeated), (
        "a second time nothing is sealed and judged"
    )
    assert untouched(bed)


def test_resume_of_a_run_that_failed_has_its_code(bed: Bed) -> None:
    failed = bed.run(trials.dp(trials.crash(2), policy=("none",), checks=()), twin=False)
    assert failed.code == 1
    code, output = bed.ccbed("resume", str(failed.directory))
    assert (code, "FAIL" in output) == (1, True), output
    (failed.directory / "history.jsonl").write_text("")
    assert bed.ccbed("resume", str(failed.directory))[0] != 0, "evidence that was changed shows nothing"
    assert untouched(bed)


def test_a_run_that_has_ended_and_cannot_be_judged_is_given_up(bed: Bed, unjudged: Callable[[], Path]) -> None:
    history = unjudged() / "history.jsonl"
    history.write_text("no event\n" + history.read_text())
    code, output = bed.ccbed("up", bed.spec.inventory)
    assert (code, "history.jsonl:1: not an event" in output, "ccbed heal local" in output) == (2, True, True), output
    assert "open run" in bed.ccbed("status")[1]
    code, output = bed.ccbed("heal", "local")
    assert (code, "is abandoned" in output) == (0, True), output
    assert untouched(bed)


#: `ccbed`, which gets a signal as soon as the history of a kind of run has a line for the nth time.
SIGNALLED = """
import os, signal, sys
from orchestrator import __main__ as program
from orchestrator.store import journal
_, number, kind, line, nth, *sys.argv[1:] = sys.argv
append, left = journal.Journal.append, [int(nth)]
def append_and_end(self, event):
    name, result = self.path.parent.name, append(self, event)
    own = "control" if "-twin-control-" in name else "twin" if "-twin-" in name else "run"
    if result is not None and (own, event.f) == (kind, line):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), int(number))
    return result
journal.Journal.append = append_and_end
program.main()
"""


def killed(bed: Bed, runs: Path, kind: str, line: str, *args: str) -> Path:
    """The directory of a run whose orchestrator got SIGKILL when the history of a ``kind`` of run had the line."""
    return signalled(bed, runs, signal.SIGKILL, (kind, line, 1), *args)


def signalled(bed: Bed, runs: Path, number: signal.Signals, when: tuple[str, str, int], *args: str) -> Path:
    """``when``: the kind of run, the line of its history, and for which time that has it."""
    environment = {**os.environ, "XDG_STATE_HOME": str(bed.state.parent), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", SIGNALLED, str(int(number)), *map(str, when), "run", "--runs-dir", str(runs), *args]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == (130 if number == signal.SIGINT else -number), done.stdout + done.stderr
    return next(path for path in runs.glob("20*") if "-twin-" not in path.name)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A user's script in a directory of its own."""
    for name in ("gpt_ddp.py", "gpt.py", "text.txt"):
        shutil.copy(ROOT / "orchestrator/jobs/examples" / name, tmp_path / name)
    return tmp_path / "gpt_ddp.py"


@pytest.mark.parametrize(
    ("kind", "line"), [("run", "gang.joined"), ("run", "run.end"), ("twin", "rank.step"), ("control", "gang.joined")]
)
def test_a_script_whose_orchestrator_was_killed_is_compared_with_the_reference_runs_that_follow_it(
    bed: Bed, script: Path, tmp_path: Path, kind: str, line: str
) -> None:
    options = ("--nodes", "2", "--fail-node", "1", "--", "--checkpoint", "{out}/c.pt")
    directory = killed(bed, tmp_path / "runs", kind, line, str(script), *options)
    code, output = bed.ccbed("resume", str(directory))
    assert code == 0, output
    second = ran(str(directory), bed)
    assert second.outcome("bit-exact") == "pass"
    assert second.run.twin is not None
    assert second.run.twin.control is not None
    assert not (directory / "work").exists()
    assert untouched(bed)


@pytest.mark.parametrize(("kind", "line"), [("twin", "rank.step"), ("run", "fault.injected"), ("run", "run.end")])
def test_a_training_whose_orchestrator_was_killed_is_compared_with_its_reference_run(
    bed: Bed, tmp_path: Path, kind: str, line: str
) -> None:
    seed = str(200_000 + len(kind + line))  # a twin that was never made before
    directory = killed(bed, tmp_path / "runs", kind, line, "dp-ring", "--fail-node", "2", "--seed", seed)
    code, output = bed.ccbed("resume", str(directory))
    assert code == 0, output
    assert ran(str(directory), bed).outcome("bit-exact") == "pass"
    assert untouched(bed)


def test_a_script_without_reference_runs_has_none_after_it_was_resumed(bed: Bed, script: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    options = ("--no-reference", str(script), "--nodes", "2", "--fail-node", "1", "--", "--checkpoint", "{out}/c.pt")
    directory = killed(bed, runs, "run", "gang.joined", *options)
    code, output = bed.ccbed("resume", str(directory))
    assert code == 0, output
    assert ran(str(directory), bed).outcome("bit-exact") == "skipped"
    assert untouched(bed)


def measured(directory: Path, attempt: int) -> list[int]:
    """The cases that an attempt measured."""
    events = bundle.read_history(directory).of(CollectiveMeasured)
    return [event.data.case or 0 for event in events if event.epoch == attempt]


@pytest.mark.parametrize(
    "options",
    [
        ("--algorithm", "ring,library"),
        ("--algorithm", "auto,library"),
        ("--algorithm", "ring,library", "--precision", "90%"),
    ],
    ids=["all iterations", "auto", "precision"],
)
def test_a_sweep_that_was_interrupted_keeps_the_cases_that_it_had_finished(
    bed: Bed, tmp_path: Path, options: tuple[str, ...]
) -> None:
    sizes = ("--sizes", "1K,4K,16K", "--iterations", "10", "--nodes", "2", "--probe-s", "0.1")
    when = ("run", "checkpoint.commit", 2)
    directory = signalled(bed, tmp_path / "runs", signal.SIGINT, when, "allreduce", *sizes, *options)
    assert set(measured(directory, 0)) >= {0, 1, 2, 3}
    code, output = bed.ccbed("resume", str(directory))
    assert code == 0, output
    assert measured(directory, 1) == [4, 5]
    second = ran(str(directory), bed)
    assert second.bad() == []
    assert "6 cases exact" in second.verdict("results-exact").text
    assert untouched(bed)


def test_a_sweep_whose_orchestrator_was_killed_goes_on(bed: Bed, tmp_path: Path) -> None:
    sizes = ("--sizes", "1K,4K,16K", "--iterations", "10", "--nodes", "2", "--probe-s", "0.1")
    when = ("run", "collective.measured", 2)
    directory = signalled(bed, tmp_path / "runs", signal.SIGKILL, when, "allreduce", *sizes)
    code, output = bed.ccbed("resume", str(directory))
    assert code == 0, output
    assert (measured(directory, 0), measured(directory, 1)) == (list(range(6)), [])
    assert ran(str(directory), bed).bad() == []
    assert untouched(bed)


def test_a_sweep_that_lost_a_node_after_a_finished_case_does_not_measure_it_again(bed: Bed) -> None:
    params = {
        "operation": "all-reduce",
        "algorithm": ["ring"],
        "sizes": ["1K", "4K", "16K"],
        "iterations": 10,
        "probe": False,
    }
    crash = trials.crash(1, step=25, phase="collective")
    lost = Trial(
        name="sweep",
        workload="collective",
        params=params,
        faults=(crash,),
        world=World(nodes=2),
        recovery=Recovery(policy=("restart",)),
    )
    done = bed.run(lost, twin=False)
    assert (done.code, done.bad()) == (0, [])
    assert sorted(measured(done.directory, 0)) == [0, 1]
    assert measured(done.directory, 1) == [2]


# --- upgraded meanwhile ------------------------------------------------------------------------------------------------

UPGRADED = (
    "all: {hosts: {localhost: {ansible_connection: local}}, vars: {ccbed_bed: old, ccbed_nodes: 2, ccbed_spares: 1}}\n"
)


def installed(folder: Path) -> Path:
    """ccbed as it was before the last change of what it runs on hosts, or at the commit CCBED_UPGRADE_FROM."""
    last = subprocess.run(
        ["git", "rev-list", "-1", "HEAD", "--", "orchestrator/node"], cwd=ROOT, capture_output=True, text=True
    )
    commit = os.environ.get("CCBED_UPGRADE_FROM", f"{last.stdout.strip()}^")
    archive = subprocess.run(["git", "archive", commit, "orchestrator"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"the history of this checkout has no {commit}")
    folder.mkdir()
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    return folder


def test_a_run_that_is_open_and_its_bed_outlive_an_upgrade(tmp_path: Path) -> None:
    before, runs, inventory = installed(tmp_path / "before"), tmp_path / "runs", tmp_path / "old.yml"
    inventory.write_text(UPGRADED)

    def start(version: Path, *args: str) -> subprocess.Popen[str]:
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(version)}
        argv = [sys.executable, "-m", "orchestrator.cli", *args]
        return subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=PIPE, stderr=STDOUT, text=True)

    def ccbed(version: Path, *args: str, code: int = 0) -> str:
        with start(version, *args) as process:
            output, _ = process.communicate()
        assert process.returncode == code, output
        return output

    ccbed(before, "up", str(inventory))
    args = ["run", "dp-ring", "--no-reference", "--bed", "old", "--nodes", "2", "--step-min-ms", "200", "--runs-dir"]
    with start(before, *args, str(runs)) as process:
        until(lambda: b'"progress"' in written(runs) or process.poll() is not None)
        assert process.poll() is None
        process.kill()
    run = str((runs / "latest").resolve())
    assert "has an open run" in ccbed(ROOT, "up", str(inventory), code=3)
    assert "finished" in ccbed(ROOT, "resume", run)
    assert "PASS" in ccbed(ROOT, "check", run)
    assert "0 to create, 0 to change" not in ccbed(ROOT, "up", str(inventory)), "its host agent is replaced"
    ccbed(ROOT, "down", "old")
    assert list((tmp_path / "state/ccbed/beds").glob("old/*")) == []
