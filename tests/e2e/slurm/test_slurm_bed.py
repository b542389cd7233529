"""Beds on a real Slurm, as a user has them: kept and ephemeral; a job step per node, which connects back over TLS."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.model import events
from orchestrator.node.oslayer import processes
from orchestrator.store import bundle
from orchestrator.views.training.worker_returns import worker_returns

from ...lab.slurm import Slurm
from ...patience import until

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]
#: The limit of a command that hangs.
LIMIT_S = 900.0


@dataclass(kw_only=True)
class User:
    """A user of the cluster, with a home of their own."""

    slurm: Slurm
    home: Path

    def ccbed(self, *args: str, code: int = 0) -> str:
        done = subprocess.run(self.argv(*args), env=self.environment, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def argv(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "orchestrator.cli", *args]

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "SLURM_CONF": self.slurm.environment["SLURM_CONF"],
            "XDG_STATE_HOME": str(self.home),
            "OMP_NUM_THREADS": "1",
        }
        return {**os.environ, **own, "PYTHONPATH": str(ROOT)}

    def inventory(self, name: str, nodes: int = 3, spares: int = 0, partition: str = "main") -> str:
        own = {"ccbed_provider": "slurm", "ccbed_bed": name, "ccbed_time": "30m", "ccbed_partition": partition}
        file = self.home / f"{name}.yml"
        hosts = {"cluster": {"ccbed_nodes": nodes, "ccbed_spares": spares}}
        file.write_text(yaml.safe_dump({"all": {"vars": own, "hosts": hosts}}))
        return str(file)

    def runs(self, name: str) -> list[str]:
        return ["--runs-dir", str(self.home / f"{name}-runs")]

    def require_nothing_left(self, name: str) -> None:
        """No job, no process and no file of a bed."""
        jobs = self.slurm.run(
            "squeue", "--noheader", f"--name=ccbed-{name}", "--states=RUNNING,PENDING", "--Format=JobID"
        )
        assert not jobs.strip()
        assert not processes_of(f"{name}-", self.home)
        assert not (self.home / "ccbed/beds" / name).exists()

    def nodes(self, name: str) -> dict[str, dict[str, Any]]:
        return {node["name"]: node for node in json.loads(self.ccbed("status", name, "--json"))[0]["nodes"]}


@pytest.fixture(scope="module")
def user(slurm_daemons: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    yield User(slurm=slurm_daemons, home=tmp_path_factory.mktemp("home"))
    slurm_daemons.wait_until_idle()


@pytest.fixture(scope="module")
def kept(user: User) -> Iterator[User]:
    """A kept bed of three nodes and a spare. At its end `down` has left nothing of it."""
    user.ccbed("up", user.inventory("kept", spares=1))
    assert len(processes_of("kept-", user.home)) >= 8  # a keeper and an agent of each node, at least
    yield user
    user.ccbed("down", "kept", "--force")
    user.require_nothing_left("kept")


def processes_of(tag: str, home: Path) -> list[int]:
    """Pids of a bed's processes: by their tag, and the user's home in their command line or environment.

    Another run of these tests may have a bed of the same name.
    """
    own = []
    for folder in (Path(f"/proc/{entry}") for entry in os.listdir("/proc") if entry.isdigit()):
        try:
            environment, line = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
        except OSError:
            continue
        is_tagged = any(variable.startswith(f"CCBED_NODE={tag}".encode()) for variable in environment.split(b"\0"))
        if is_tagged and bytes(home) in environment + line:
            own.append(int(folder.name))
    return own


def test_a_kept_bed_is_one_job_and_a_second_up_changes_nothing(kept: User) -> None:
    assert list(kept.slurm.jobs().values()) == ["RUNNING"]
    assert {name: node["state"] for name, node in kept.nodes("kept").items()} == dict.fromkeys(
        ("n0", "n1", "n2", "n3"), "warm"
    )
    assert re.search(r"job +\d+ on n1 n2 n3 n4, ends in \d+ min$", kept.ccbed("status", "kept"), re.MULTILINE)
    assert "nothing to change" in kept.ccbed("up", kept.inventory("kept", spares=1))


def test_a_run_recovers_from_the_loss_of_a_node_with_the_spare(kept: User) -> None:
    """The fault ends what the bed has on the node, and not the user's own step there."""
    (job,) = kept.slurm.jobs()
    own = [*f"srun --jobid={job} --overlap --nodelist=n3 --nodes=1 --ntasks=1 sh -c".split(), "echo; exec sleep 600"]
    with subprocess.Popen(own, env=kept.slurm.environment, stdout=subprocess.PIPE) as step:
        assert step.stdout is not None and step.stdout.readline() == b"\n"
        output = kept.ccbed("run", "dp-ring", "--nodes", "3", "--fail-node", "2", "--bed", "kept", *kept.runs("kept"))
        assert step.poll() is None
        step.terminate()
    assert "PASS" in output.upper()
    assert re.search(rf"^job +{job}, ends at \d+:\d+, in \d+ min$", output, re.MULTILINE), output
    assert "nothing to change" in kept.ccbed("up", kept.inventory("kept", spares=1))


def test_nights_know_the_hosts_by_their_names_in_slurm(kept: User) -> None:
    suite = kept.home / "s.yml"
    suite.write_text("suite: s\ntrials: [{trial: gemm, world: {nodes: all}, params: {repeats: 1}}]\n")
    argv = kept.argv("nightly", str(suite), "--record", "--bed", "kept", *kept.runs("night"))
    done = subprocess.run(argv, env=kept.environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode in (0, 2), done.stdout + done.stderr  # three hosts of one machine are busy with each other
    [night] = (kept.home / "night-runs").glob("*/night.json")
    [plan] = (kept.home / "night-runs").glob("*/runs/*-gemm-*/plan.json")
    hosts = json.loads(night.read_text())["hosts"]
    assert len(set(hosts.values())) == 3 and set(hosts.values()) <= kept.slurm.node_states().keys()
    nodes = json.loads(plan.read_text())["nodes"].values()
    assert {node["name"]: node["machine"] for node in nodes if node["role"] == "node"} == hosts
    assert {node["host"] for node in nodes} >= {"h0", "h1", "h2"}
    for name in ("quarantine.json", "night.lock"):  # nights keep them for the next bed of the name
        (kept.home / "ccbed/beds/kept" / name).unlink()


def test_a_launcher_of_the_job_goes_on_with_the_spare(kept: User) -> None:
    """torchrun under ccbed: the lost node is proved, its launcher starts on the spare, and every worker trains again.

    A check that needs more of the records than this short run has may be unknown (exit 2).
    """
    script = ["--", "--steps", "60", "--checkpoint", str(kept.home / "launched.pt")]
    options = ["--nodes", "2", "--launcher", "torchrun-best", "--fail-node", "1", "--no-reference", "--bed", "kept"]
    argv = kept.argv("run", "example:gpt-ddp", *options, *kept.runs("launched"), *script)
    done = subprocess.run(argv, env=kept.environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode in (0, 2), done.stdout + done.stderr
    (directory,) = {path.resolve().parent for path in kept.home.glob("launched-runs/*/history.jsonl")}  # one by a link
    run = bundle.load(directory)
    outcomes = {verdict.check: verdict.outcome for verdict in run.verdicts}
    assert (outcomes["fault-verified"], outcomes["finished"]) == ("pass", "pass"), done.stdout
    (replaced,) = run.history.of(events.RecoveryReplaced)
    assert replaced.data.policy == {"n1": "spare"} and replaced.data.slots == ("n0", "n3")
    (back,) = worker_returns(run)
    assert back.first_step_s is not None and back.survivors == 0, back.reason
    assert "nothing to change" in kept.ccbed("up", kept.inventory("kept", spares=1))


def test_the_controller_may_be_away_during_a_run(kept: User) -> None:
    kept.slurm.stop("controller")
    try:
        kept.ccbed("run", "dp-ring", "--nodes", "3", "--bed", "kept", "--no-reference", *kept.runs("kept"))
    finally:
        kept.slurm.start_controller()


def srun_of(user: User, host: str) -> list[int]:
    """The processes of srun of a host's step: srun itself, then the one that ends the step if srun is killed."""
    config = f"SLURM_CONF={user.slurm.environment['SLURM_CONF']}".encode()
    pids = []
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        try:
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if argv[0] == b"srun" and f"--job-name=ccbed-{host}".encode() in argv and config in variables:
            pids.append(pid)
    return sorted(pids, key=lambda pid: parent(pid) in pids)


def parent(pid: int) -> int:
    process = processes.find(pid)
    return process.ppid if process else 0


def run_and_kill(user: User, name: str, pids: list[int]) -> str:
    """The output of a run while which these processes are killed.

    They are stopped first: one that sees the end of another would end the step before it is killed itself.
    """
    folder = user.home / f"{name}-killed-{pids[0]}"
    args = ["run", "dp-ring", "--nodes", "3", "--no-reference", "--epochs", "40", "--step-min-ms", "10"]
    args += ["--bed", name, "--runs-dir", str(folder)]
    with subprocess.Popen(
        user.argv(*args), env=user.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        until(
            lambda: (
                process.poll() is not None
                or any(b'"progress"' in file.read_bytes() for file in folder.glob("*/history.jsonl"))
            )
        )
        assert process.poll() is None, process.communicate()[0]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)
        output, _ = process.communicate(timeout=LIMIT_S)
    return output


def test_a_run_and_its_node_go_on_when_all_of_srun_is_killed(kept: User) -> None:
    """As a login node does that ends what users leave there. The job step, its keeper and ranks are on another node."""
    before = {name: node["pid"] for name, node in kept.nodes("kept").items()}
    output = run_and_kill(kept, "kept", srun_of(kept, "h1"))
    assert "PASS" in output.upper(), output
    assert not srun_of(kept, "h1")
    assert {name: node["pid"] for name, node in kept.nodes("kept").items()} == before
    assert "nothing to change" in kept.ccbed("up", kept.inventory("kept", spares=1))


def test_a_spare_takes_over_when_slurm_ends_the_step_of_a_killed_srun(kept: User) -> None:
    """Slurm ends a step whose srun was killed, if the second process of srun is left. `up` starts another step."""
    first = srun_of(kept, "h0")[0]
    output = run_and_kill(kept, "kept", [first])
    assert "PASS" in output.upper(), output
    (history,) = {path.resolve() for path in kept.home.glob(f"kept-killed-{first}/*/history.jsonl")}  # one by a link
    written = [json.loads(line) for line in history.read_text().splitlines()]
    # The end of a rank of the step may be noticed, and recovered from, before that of its node.
    assert {lost for event in written if event["f"] == "recovery.decided" for lost in event["value"]["lost"]} == {"n0"}
    node = kept.nodes("kept")["n0"]
    assert node["state"] == "dead"
    assert "its job step on n1 has ended" in node["reason"]
    kept.ccbed("up", kept.inventory("kept", spares=1))
    assert {node["state"] for node in kept.nodes("kept").values()} == {"warm"}


def test_an_ephemeral_bed_leaves_nothing(user: User) -> None:
    user.ccbed(
        "run", "dp-ring", "--nodes", "2", "--no-reference", "-i", user.inventory("brief", nodes=2), *user.runs("brief")
    )
    user.require_nothing_left("brief")


@pytest.mark.parametrize("end", ["SIGTERM", "hangup"])
def test_an_ephemeral_bed_is_released_when_its_run_is_ended(end: str, user: User) -> None:
    """SIGTERM is what a session's end, or `timeout`, sends. With an SSH connection the terminal goes: SIGHUP, and no output."""
    args = ["run", "dp-ring", "--nodes", "2", "--no-reference", "--epochs", "500", "-i", user.inventory("cut", nodes=2)]
    argv = ["setsid", "--ctty", *user.argv(*args, *user.runs(f"cut-{end}"))]
    main, own = os.openpty()
    os.set_blocking(main, False)
    output = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):
            output.extend(os.read(main, 65536))

    def trains() -> bool:
        read()
        histories = user.home.glob(f"cut-{end}-runs/*/history.jsonl")
        return any(b'"progress"' in file.read_bytes() for file in histories)

    with subprocess.Popen(argv, env=user.environment, stdin=own, stdout=own, stderr=own) as process:
        os.close(own)
        until(lambda: trains() or process.poll() is not None)
        assert process.poll() is None
        if end == "SIGTERM":
            process.terminate()

            def is_over() -> bool:
                read()
                return process.poll() is not None

            until(is_over)
        os.close(main)
        process.wait(LIMIT_S)
    if end == "SIGTERM":
        assert process.returncode == 130
        shown = " ".join(output.decode().split())
        assert "the bed is released; again: ccbed run " in shown and "ccbed resume" not in shown
    user.require_nothing_left("cut")


def test_the_script_that_plan_prints_runs_ccbed_in_a_job_of_its_own(user: User) -> None:
    inventory = user.inventory("batch", nodes=2)
    lines = user.ccbed("plan", inventory).splitlines()
    begin = lines.index("  #!/bin/bash")
    end = next(number for number, line in enumerate(lines) if line.startswith("  ccbed run "))
    script, program = user.home / "batch.sh", user.home / "bin/ccbed"
    script.write_text("".join(f"{line.removeprefix('  ')}\n" for line in lines[begin : end + 1]))
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m orchestrator.cli "$@"\n')
    program.chmod(0o755)
    environment = {**user.environment, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    submit = ["sbatch", "--parsable", f"--chdir={user.home}", f"--output={user.home}/batch.out", str(script)]
    job_id = int(subprocess.run(submit, env=environment, check=True, capture_output=True, text=True).stdout)
    until(lambda: job_id not in user.slurm.jobs())
    squeue = ("squeue", "--noheader", f"--jobs={job_id}", "--states=all", "--Format=State:20,NodeList:40")
    state, listed = user.slurm.run(*squeue).split()
    nodes = " ".join(user.slurm.run("scontrol", "show", "hostnames", listed).split())
    output = (user.home / "batch.out").read_text()
    assert state == "COMPLETED", output
    assert "PASS" in output.upper() and f"job         {job_id} on {nodes}" in output
    assert "not submitted by ccbed: it stays when the bed goes" in output
    user.require_nothing_left("batch")


def test_a_sweep_of_an_inventory_leaves_nothing(user: User) -> None:
    args = ["sweep", "gemm", "--each-node", "-i", user.inventory("swept", nodes=2), *user.runs("swept")]
    done = subprocess.run(user.argv(*args), env=user.environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert "bed swept is down" in done.stdout, done.stdout + done.stderr
    user.require_nothing_left("swept")


def test_a_run_whose_command_was_killed_keeps_its_job_until_it_is_resumed(user: User) -> None:
    run = ["run", "dp-ring", "--nodes", "2", "--no-reference", "--epochs", "60"]
    run += ["-i", user.inventory("left", nodes=2), *user.runs("left")]
    with subprocess.Popen(user.argv(*run), env=user.environment, stdout=subprocess.DEVNULL) as process:
        files = user.home.glob
        until(
            lambda: (
                process.poll() is not None
                or any(b'"progress"' in file.read_bytes() for file in files("left-runs/*/history.jsonl"))
            )
        )
        assert process.poll() is None
        process.kill()
    job_id = max(user.slurm.jobs())
    output = user.ccbed(*run, code=3)
    assert f"job {job_id} of bed left was left by a command that was killed, with run " in output
    assert user.slurm.jobs()[job_id] == "RUNNING"
    assert "failed before its run began" in user.ccbed("resume", *user.runs("left"), code=3), (
        "the last run of this shell"
    )
    (run_directory,) = user.home.glob("left-runs/*-dp-ring-*")
    output = user.ccbed("resume", str(run_directory), *user.runs("left"))
    assert f"job {job_id} of bed left was left by a command that was killed; it is used and released" in output
    assert "PASS" in output
    user.require_nothing_left("left")
