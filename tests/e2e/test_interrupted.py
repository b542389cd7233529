"""Who is stopped in the middle: Ctrl-C once and twice, a keeper or a spare that is killed; and what the other verbs say meanwhile."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.model.errors import Interrupted
from orchestrator.model.event import Event
from orchestrator.model.trial import World
from orchestrator.node.files import label
from orchestrator.node.oslayer import processes
from orchestrator.run import lifecycle
from orchestrator.store import bed_files
from orchestrator.system import plain_files

from . import trials
from .conftest import ROOT, Bed, ccbed, ran
from .test_bad_input import untouched

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("own_interrupts")]

SLOW = {"step_min_ms": 30}


def at(name: str, what: Callable[[], object]) -> Callable[[Event], None]:
    """Do something at the first event of that name."""
    events: list[Event] = []

    def record(event: Event) -> None:
        if event.f == name and not events:
            events.append(event)
            what()

    return record


def ctrl_c(times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("moment", ["gang.joined", "rank.held", "fault.act", "node.exit", "recovery.decided"])
def test_ctrl_c_heals_and_stops_and_the_run_is_gone_on_with(bed: Bed, moment: str) -> None:
    trial = trials.dp(trials.crash(2), params=SLOW)
    stopped = lifecycle.launch(bed.request(trial, on_event=at(moment, ctrl_c)))
    assert stopped.code == 130
    assert "busy" not in bed.ccbed("status")[1]
    assert "nothing to change" in bed.ccbed("up", bed.spec.inventory)[1]
    code, output = bed.ccbed("run", "dp-ring")
    assert code == 3
    assert stopped.run in output and "ccbed resume" in output
    lifecycle.launch(bed.request(trial, resume=stopped.directory))
    second = ran(stopped.directory, bed)
    assert second.bad() == []
    assert len([event for event in second.of("fault.act") if event.type == "invoke"]) == 1
    assert untouched(bed)


def test_a_second_ctrl_c_leaves_the_gang_alone_and_the_run_is_taken_up_again(bed: Bed) -> None:
    trial = trials.dp(params=SLOW)
    where: list[str] = []
    request = bed.request(trial, on_begin=where.append, on_event=at("gang.joined", lambda: ctrl_c(2)))
    with pytest.raises(Interrupted) as raised:
        lifecycle.launch(request)
    assert raised.value.hint == f"ccbed resume {where[-1]}"
    assert "busy" in bed.ccbed("status")[1]
    assert bed.ccbed("watch", where[-1])[0] == 4, "nobody drives it"
    code, output = bed.ccbed("run", "dp-ring")
    assert (code, "whose orchestrator is gone" in output) == (3, True)
    lifecycle.launch(bed.request(trial, resume=where[-1]))
    second = ran(where[-1], bed)
    assert second.bad() == []
    assert [event.epoch for event in second.of("gang.joined")] == [0], "the worker group was not stopped"
    assert untouched(bed)


def test_an_abandoned_run_is_given_up_by_heal_and_not_gone_on_with(bed: Bed) -> None:
    where: list[str] = []
    event = at("fault.injected", lambda: ctrl_c(2))
    with pytest.raises(Interrupted):
        lifecycle.launch(bed.request(trials.dp(trials.crash(2), params=SLOW), on_begin=where.append, on_event=event))
    document = json.loads(bed.ccbed("status", "--json")[1])[0]
    assert document["open_run"]["run"] == Path(where[-1]).name
    assert "crash-node" in document["leases"][0]
    code, _ = bed.ccbed("heal", "local")
    assert code == 0
    assert untouched(bed)
    assert bed.ccbed("resume", where[-1])[0] == 3
    assert bed.ccbed("check", where[-1])[0] == 130
    assert bed.ccbed("bundle", "verify", where[-1])[0] == 0
    assert [line for line in ran(where[-1], bed).bad() if line.startswith("fail evidence-agrees")] == []


def test_ctrl_c_in_the_run_to_compare_with_leaves_the_run_that_was_asked_for_to_be_resumed(bed: Bed) -> None:
    """The twin that was interrupted is closed; ``resume`` makes another one and goes on to the faults that were asked for."""
    trial = trials.dp(trials.crash(2), params={"step_min_ms": 250})
    timer = threading.Timer(0.6, ctrl_c)
    with pytest.raises(Interrupted, match="interrupted in the reference run") as raised:
        lifecycle.launch(bed.request(trial, on_begin=lambda _: timer.start()))
    directory = raised.value.hint.removeprefix("ccbed resume ")
    assert "-twin-" not in directory
    assert (bed.runs / "latest").resolve() == Path(directory)
    twin = max(bed.runs.glob("*-twin-*"), key=lambda path: path.stat().st_mtime_ns)
    judged = ran(str(twin), bed)
    assert (judged.code, [line for line in judged.bad() if line.startswith("fail evidence-agrees")]) == (130, [])
    lifecycle.launch(bed.request(trial, resume=directory))
    second = ran(directory, bed)
    assert second.bad() == []
    assert second.outcome("fault-verified") == "pass"
    assert untouched(bed)


def test_an_interrupted_trial_blocks_its_bed_in_one_line_until_resume_closes_it(bed: Bed, tmp_path: Path) -> None:
    command, runs = [sys.executable, "-m", "orchestrator.cli"], ["--runs-dir", str(tmp_path)]
    env = {**os.environ, "XDG_STATE_HOME": str(bed.state.parent), "PYTHONPATH": str(ROOT)}
    args = ["run", "dp-ring", "--no-reference", "--step-min-ms", "100", *runs]
    with subprocess.Popen([*command, *args], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "start     " not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    (run,) = (path.parent for path in tmp_path.glob("*/history.jsonl") if not path.parent.is_symlink())
    code, output = bed.ccbed("run", "dp-ring", "--no-reference", *runs)
    assert (code, f"to end it: ccbed resume --close {run}" in output, output.count("error: ")) == (3, True, 1), output
    code, output = bed.ccbed("resume", "--close", str(run))
    assert (code, f"run {run.name} is closed" in output, "INTERRUPTED" in output) == (130, True, True), output
    assert bed.ccbed("resume", "--close", *runs)[0] == 3, "no run is open"
    assert untouched(bed)


def test_ctrl_c_on_the_command_line_prints_how_to_go_on(bed: Bed, tmp_path: Path) -> None:
    """A process of its own, as a user has it: exit code 130, and the printed command finishes the run."""
    command = [sys.executable, "-m", "orchestrator.cli"]
    env = {**os.environ, "XDG_STATE_HOME": str(bed.state.parent), "PYTHONPATH": str(ROOT)}
    args = ["run", "dp-ring", "--no-reference", "--step-min-ms", "100"]
    with subprocess.Popen([*command, *args], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        output = ""
        while "start     " not in output:
            output += process.stdout.readline()
        process.send_signal(signal.SIGINT)
        output += process.stdout.read()
    assert process.returncode == 130
    match = re.search(r"ccbed (resume \S+)", output)
    assert match is not None
    done = subprocess.run([*command, *match[1].split()], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "finished" in done.stdout
    assert done.returncode == 0
    assert "Traceback" not in output + done.stdout + done.stderr
    assert untouched(bed)


# --- what belongs to the bed is killed --------------------------------------------------------------------------------


def test_an_idle_spare_that_is_killed_is_said_and_replaced_and_the_run_goes_on(bed: Bed) -> None:
    directory = Path(bed.spec.workdir) / "nodes" / "n4"
    kill = at(
        "gang.joined", lambda: os.kill(int(plain_files.read_json(directory / label.NODE_LABEL)["pid"]), signal.SIGKILL)
    )
    done = bed.run(trials.dp(params={"step_min_ms": 100}), on_event=kill)
    assert done.outcome("finished") == "pass"
    assert done.of("recovery.decided") == ()
    assert "n4 exited, which was not planned" in done.verdict("planned-faults-only").text
    assert done.code == 1
    assert untouched(bed)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Bed]:
    """A node and a spare of their own; whatever came over their keeper, `down` leaves no process."""
    state = tmp_path / "state" / "ccbed"
    inventory = tmp_path / "small.yml"
    inventory.write_text("all: {hosts: {localhost: {ansible_connection: local, ccbed_nodes: 1, ccbed_spares: 1}}}\n")
    assert ccbed(state, "up", str(inventory))[0] == 0
    spec = bed_files.read(state, "small")
    assert spec is not None
    yield Bed(state=state, runs=tmp_path / "runs", spec=spec, catalogue=plugins.discover(()))
    code, output = ccbed(state, "down", "small", "--force")
    assert code == 0, output
    assert [
        process.pid
        for process in processes.scan()
        if process.tag.startswith(f"{processes.bed_tag('small', spec.workdir)}/")
    ] == []
    assert bed_files.names(state) == ()


def test_down_with_force_ends_the_run_that_would_start_the_nodes_again(small: Bed) -> None:
    words = ["run", "dp-ring", "--nodes", "1", "--no-reference", "--step-min-ms", "3000", "--runs-dir", str(small.runs)]
    run = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli", *words],
        env={**os.environ, "XDG_STATE_HOME": str(small.state.parent)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 600
        while not any("gang.joined" in file.read_text() for file in small.runs.glob("*/history.jsonl")):
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.02)
        code, output = small.ccbed("down", "small", "--force")
        assert code == 0, output
        assert f"process {run.pid} drives bed small, and is ended" in output
        assert run.wait(600) == 130
    finally:
        run.kill()
        run.communicate()


def test_down_with_force_ends_no_program_that_uses_ccbed_as_a_library(small: Bed) -> None:
    program = "import sys; from pathlib import Path; from orchestrator.store import bed_files\n"
    program += "with bed_files.run_lock(Path(sys.argv[1]), 'r', Path('/tmp')): print(flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", program, small.spec.workdir], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        other.stdout.readline()
        code, output = small.ccbed("down", "small", "--force")
        assert code == 3
        assert f"is driven by process {other.pid}" in output
        assert other.poll() is None
    finally:
        other.communicate()


def test_a_run_on_a_bed_without_its_keeper_is_refused(small: Bed) -> None:
    _kill_keeper(small)
    code, output = small.ccbed("run", "dp-ring", "--nodes", "1", "--no-reference", "--runs-dir", str(small.runs))
    assert (code, "the host agent is gone" in output, "ccbed up" in output) == (4, True, True), output


def test_what_trains_goes_on_when_its_keeper_is_killed(small: Bed) -> None:
    kill = at("gang.joined", lambda: _kill_keeper(small))
    done = small.run(trials.dp(params=SLOW, world=World(nodes=1)), on_event=kill)
    assert done.outcome("finished") == "pass"


def test_a_fault_whose_keeper_is_gone_is_not_waited_for_and_is_no_finding(small: Bed) -> None:
    kill = at("gang.joined", lambda: _kill_keeper(small))
    done = small.run(trials.dp(trials.crash(0), params=SLOW, world=World(nodes=1)), on_event=kill)
    requested, answered = done.of("fault.act")
    assert (answered.type, answered.value["reason"]) == ("info", "not sent: the host agent of this bed is gone")
    assert answered.t - requested.t < requested.value["deadline_s"] / 2
    assert done.code == 4


def _kill_keeper(bed: Bed) -> None:
    _killed(int(plain_files.read_json(Path(bed.spec.workdir) / "keeper" / label.KEEPER_LABEL)["pid"]))


def _killed(pid: int) -> None:
    """A signal only asks for the end: until it has come, the process holds its lock and looks alive."""
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        assert select.select([descriptor], [], [], 60)[0], f"process {pid} is still there"
    finally:
        os.close(descriptor)


# --- what the other verbs say -----------------------------------------------------------------------------------------


def test_exec_has_the_commands_own_code_and_keeps_its_streams_apart(bed: Bed) -> None:
    assert bed.ccbed("exec", "local/n1", "--", "sh", "-c", "echo out; exit 7") == (7, "out\n")
    assert bed.ccbed("exec", "n1", "--", "sh", "-c", "kill -9 $$")[0] == 137
    code, output = bed.ccbed("exec", "n9", "--", "true")
    assert (code, "bed local has no node n9; it has n0, n1, n2, n3, n4" in output) == (3, True)
    code, output = bed.ccbed("exec", "--json", "n1", "--", "/no/such/program")
    document = json.loads(output)
    assert (code, document["exit"]) == (127, 127) and "/no/such/program: cannot be run" in document["stderr"]


def test_ctrl_c_ends_what_exec_started(bed: Bed) -> None:
    directory = Path(bed.spec.workdir) / "nodes" / "n1" / "exec"
    before = set(directory.glob("*/stdout"))

    def once_it_runs() -> None:
        until = time.monotonic() + 600
        while set(directory.glob("*/stdout")) == before and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.2)
        ctrl_c()

    threading.Thread(target=once_it_runs).start()
    assert bed.ccbed("exec", "n1", "--", "sh", "-c", "sleep 1000; true")[0] == 130
    assert bed.unchanged()
    assert "busy" not in bed.ccbed("status")[1]


def test_logs_name_what_there_is(bed: Bed) -> None:
    assert bed.ccbed("logs", "local/n1")[0] == 0
    assert bed.ccbed("logs", "local/keeper")[0] == 0
    code, output = bed.ccbed("logs", "local/n9")
    assert (code, "bed local has no node n9" in output) == (3, True)
