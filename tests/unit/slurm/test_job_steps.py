"""The command line of a job step: one node, no more than it shares, no secret of the user's environment."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.model.bed import BedSpec, HostSpec, Machine, NodeSpec, SlurmSpec
from orchestrator.model.errors import InfrastructureError
from orchestrator.node.oslayer import processes
from orchestrator.slurm import job_steps, slurm_commands
from orchestrator.slurm.allocation import Allocation
from orchestrator.system import host_facts

ALLOCATION = Allocation(
    job_id=7, nodes=("a1", "a2"), addresses=("198.51.100.1", "198.51.100.2"), ends_at=None, is_owned=True
)

HOSTS = ("h0", "h1")


def bed(tmp_path: Path, gpus: int = 0, python: str = "") -> BedSpec:
    nodes = tuple(
        NodeSpec(name=f"n{index}", host=f"h{index}", role="node", address="", hash="", gpus=gpus, python=python)
        for index in range(2)
    )
    hosts = tuple(HostSpec(name=f"h{index}", connection="slurm") for index in range(2))
    return BedSpec(
        name="b", provider="slurm", nodes=nodes, inventory="", workdir=str(tmp_path / "own"), agent="", hosts=hosts,
        shared_dir="/shared/ckpt", hostdir="/shared/b",
    )  # fmt: skip


def test_the_command_line_of_a_step(tmp_path: Path) -> None:
    assert job_steps.step_command(bed(tmp_path, python="/env/bin/python"), ALLOCATION, "h1", "/shared/b/agent.pyz") == [
        "srun", "--jobid=7", "--nodelist=a2", "--nodes=1", "--ntasks=1", "--job-name=ccbed-h1", "--no-kill",
        "--kill-on-bad-exit=0", "--wait=0", "--overlap", "--gres=none", "--mpi=none", "--cpu-bind=none", "--mem-bind=none",
        "--mem=0", "--input=none", "--output=/shared/b/steps/h1.%t.log", "--quiet", "--chdir=/",
        "--export=HOME,LANG,LD_LIBRARY_PATH,LOGNAME,PATH,USER",
        "/env/bin/python", "-I", "-S", "/shared/b/agent.pyz", "reverse", "--links", "/shared/b/links", "--host", "h1",
        "--hostdir", "/shared/b/h1", "--bed", "b", "--root", "/shared/ckpt",
    ]  # fmt: skip


def test_a_step_of_nodes_with_gpus_has_the_gpus_of_the_job(tmp_path: Path) -> None:
    assert "--gres=none" not in job_steps.step_command(bed(tmp_path, gpus=8), ALLOCATION, "h0", "a.pyz")


def test_without_an_interpreter_in_the_inventory_it_is_this_one(tmp_path: Path) -> None:
    assert sys.executable in job_steps.step_command(bed(tmp_path), ALLOCATION, "h0", "a.pyz")


def test_a_percent_sign_in_the_path_of_the_log_is_none_of_its_pattern(tmp_path: Path) -> None:
    argv = job_steps.step_command(replace(bed(tmp_path), hostdir="/nfs/50%t/b"), ALLOCATION, "h0", "a.pyz")
    assert "--output=/nfs/50%%t/b/steps/h0.%t.log" in argv


PROGRAM = [
    "-I", "-S", "/shared/b/agent.pyz", "reverse", "--links", "/shared/b/links", "--host", "h1",
    "--hostdir", "/shared/b/h1", "--bed", "b", "--root", "/shared/ckpt",
]  # fmt: skip


def contained(tmp_path: Path, kind: str, gpus: int = 0) -> BedSpec:
    """A bed in containers of an image that exists."""
    image = tmp_path / "train.img"
    image.touch()
    os.utime(image, ns=(1, 1))
    spec = SlurmSpec(nodes=2, container=kind, image=str(image), mounts=("/data:/data:ro",))  # type: ignore[arg-type]
    return replace(bed(tmp_path, gpus=gpus), slurm=spec)


def test_the_options_of_pyxis(tmp_path: Path) -> None:
    """Unproven: there was no Pyxis to run them with."""
    spec = contained(tmp_path, "pyxis")
    argv = job_steps.step_command(spec, ALLOCATION, "h1", "/shared/b/agent.pyz")
    name = f"{tmp_path}/train.img 0 1"
    assert argv[argv.index("--chdir=/") + 1 :] == [
        "--export=HOME,LANG,LOGNAME,PATH,USER", f"--container-image={tmp_path}/train.img",
        f"--container-name=ccbed-b-{hashlib.sha256(name.encode()).hexdigest()[:8]}",
        "--container-mounts=/shared/b:/shared/b,/shared/ckpt:/shared/ckpt,/data:/data:ro",
        "--container-env=HOME,LANG,LOGNAME,USER",
        "--no-container-mount-home", "--no-container-remap-root", "--no-container-entrypoint", "python3", *PROGRAM,
    ]  # fmt: skip


@pytest.mark.parametrize(("gpus", "options"), [(0, ["--no-home"]), (8, ["--no-home", "--nv"])])
def test_the_command_of_apptainer(tmp_path: Path, gpus: int, options: list[str]) -> None:
    """Unproven: there was no Apptainer to run it with."""
    spec = contained(tmp_path, "apptainer", gpus)
    argv = job_steps.step_command(spec, ALLOCATION, "h1", "/shared/b/agent.pyz")
    assert argv[argv.index("--chdir=/") + 1 :] == [
        "--export=HOME,LANG,LOGNAME,PATH,USER", "apptainer", "exec", *options,
        "--bind=/shared/b:/shared/b,/shared/ckpt:/shared/ckpt,/data:/data:ro", f"{tmp_path}/train.img", "python3", *PROGRAM,
    ]  # fmt: skip


def test_a_changed_image_file_gets_another_container_name(tmp_path: Path) -> None:
    spec = contained(tmp_path, "pyxis")
    first = job_steps.step_command(spec, ALLOCATION, "h1", "a.pyz")
    os.utime(tmp_path / "train.img", ns=(2, 2))
    assert job_steps.step_command(spec, ALLOCATION, "h1", "a.pyz") != first


def test_an_image_that_is_missing_and_a_path_that_cannot_be_mounted_are_rejected(tmp_path: Path) -> None:
    spec = contained(tmp_path, "pyxis")
    with pytest.raises(InfrastructureError, match="a comma or colon separates mounts"):
        job_steps.step_command(replace(spec, hostdir="/shared/a,b"), ALLOCATION, "h1", "a.pyz")
    (tmp_path / "train.img").unlink()
    with pytest.raises(InfrastructureError, match=r"ccbed_image: .*train\.img: No such file"):
        job_steps.step_command(spec, ALLOCATION, "h1", "a.pyz")


def test_a_step_in_another_container_is_not_that_of_the_bed(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` starts a new one."""
    monkeypatch.setenv("PYXIS_CONTAINER_IMAGE", "other.sqsh")
    spec = replace(contained(clients, "apptainer"), hostdir=str(clients / "shared"))
    job_steps.start(spec, ALLOCATION, "h0", "a.pyz")
    writer = os.open(clients / "fifo", os.O_WRONLY)
    assert "PYXIS" not in (clients / "env").read_text(), "it would be an option of the step"
    assert job_steps.end_reason(spec, ALLOCATION, "h0") == ""
    assert spec.slurm
    other = replace(spec, slurm=replace(spec.slurm, image="/other.sif"))
    assert "runs with another ccbed_container" in job_steps.end_reason(other, ALLOCATION, "h0")
    assert job_steps.end(spec, HOSTS, 20.0) == []
    os.close(writer)


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A srun that writes its environment and reads the end of a pipe that nobody closes before the test does.

    The squeue prints the file ``running``; without that file, the controller does not respond.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text(
        f"#!/bin/sh\nenv > {tmp_path}/env.part\nmv {tmp_path}/env.part {tmp_path}/env\nexec cat {tmp_path}/fifo\n"
    )
    (folder / "squeue").write_text(f"#!/bin/sh\nexec cat {tmp_path}/running\n")
    (tmp_path / "running").touch()
    for program in folder.iterdir():
        program.chmod(0o755)
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path


def test_the_step_of_a_host_that_was_off_is_abandoned_also_if_its_srun_does_not_end(clients: Path) -> None:
    (clients / "bin/srun").write_text(f"#!/bin/sh\ntrap '' TERM\ncat {clients}/fifo\nexec sleep 1000\n")
    spec = replace(bed(clients), hostdir=str(clients / "shared"))
    job_steps.start(spec, ALLOCATION, "h0", "a.pyz")
    writer = os.open(clients / "fifo", os.O_WRONLY)
    assert job_steps.end(spec, HOSTS, 0.0) == ["h0"]
    job_steps.abandon(spec, "h0", 0.0)
    until = time.monotonic() + 600
    while not job_steps.end_reason(spec, ALLOCATION, "h0"):
        assert time.monotonic() < until, "its srun lives"
    os.close(writer)


def test_a_host_is_the_node_of_its_number_and_its_slurmd() -> None:
    known = replace(ALLOCATION, addresses=("a1", "10.0.0.2"), ports=(6818, 7003))
    assert job_steps.machine(known, "h1") == Machine(name="a2", address="10.0.0.2", port=7003)
    assert job_steps.machine(ALLOCATION, "h1").port == 6818, "a record of an earlier version has no ports"


def test_a_step_runs_until_its_srun_ends(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    spec = replace(bed(clients), hostdir=str(clients / "shared"))
    assert job_steps.end_reason(spec, ALLOCATION, "h0") == "job 7 has no step on a1"
    job_steps.start(spec, ALLOCATION, "h0", "a.pyz")
    writer = os.open(clients / "fifo", os.O_WRONLY)
    environment = (clients / "env").read_text()
    assert "SLURM_CONF=/etc/slurm.conf" in environment
    assert "SLURM_NTASKS" not in environment
    assert job_steps.end_reason(spec, ALLOCATION, "h0") == ""
    assert "no step" in job_steps.end_reason(spec, replace(ALLOCATION, job_id=8), "h0")
    job_steps.log(spec, "h0").write_text("Python 3.6 is too old\n")
    assert job_steps.end(spec, HOSTS, 20.0) == []
    os.close(writer)
    reason = job_steps.end_reason(spec, ALLOCATION, "h0")
    assert reason == "its job step on a1 has ended: Python 3.6 is too old"


def rows(*names: str) -> str:
    """The output of squeue, which fills each row."""
    return "".join(f"{name:64}\n" for name in names)


def started_since(others: list[processes.Process]) -> list[processes.Process]:
    """The processes of this test: daemons of other tests may be children of the same process."""
    known = {process.pid for process in others}
    return [process for process in processes.descendants(os.getpid()) if process.pid not in known]


def kill_srun(spec: BedSpec, clients: Path, *hosts: str) -> None:
    """Start the steps of the hosts and kill their srun as soon as it runs."""
    others = processes.descendants(os.getpid())
    for host in hosts:
        job_steps.start(spec, ALLOCATION, host, "a.pyz")
    writer = os.open(clients / "fifo", os.O_WRONLY)
    while running := started_since(others):
        processes.kill(running)
    os.close(writer)


def test_a_step_whose_srun_was_killed_runs_until_slurm_says_that_it_has_ended(
    clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_steps, "ASK_S", 0.0)
    spec = replace(bed(clients), hostdir=str(clients / "shared"))
    (clients / "running").write_text(rows("ccbed-h0", "ccbed-h1"))
    kill_srun(spec, clients, "h0")
    assert job_steps.end_reason(spec, ALLOCATION, "h0") == ""
    assert job_steps.end(spec, HOSTS, 0.0) == []
    (clients / "running").write_text(rows("ccbed-h1"))
    assert job_steps.end_reason(spec, ALLOCATION, "h0") == "its job step on a1 has ended"
    (clients / "running").write_text(rows("ccbed-h0"))
    assert job_steps.end_reason(spec, ALLOCATION, "h0") == "its job step on a1 has ended", "its end is final"


def test_a_step_without_srun_has_not_ended_while_the_controller_is_away(clients: Path) -> None:
    spec = replace(bed(clients), hostdir=str(clients / "shared"))
    (clients / "running").unlink()
    kill_srun(spec, clients, "h0")
    assert job_steps.end_reason(spec, ALLOCATION, "h0") == ""


def test_the_controller_is_asked_once_for_all_hosts(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(bed(clients), hostdir=str(clients / "shared"))
    monkeypatch.setattr(job_steps, "ASK_S", 3600.0)
    kill_srun(spec, clients, "h0", "h1")
    assert "has ended" in job_steps.end_reason(spec, ALLOCATION, "h0")
    (clients / "running").write_text(rows("ccbed-h1"))
    assert "has ended" in job_steps.end_reason(spec, ALLOCATION, "h1")


def test_a_step_of_another_machine_is_taken_to_run(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(bed(clients), hostdir=str(clients / "shared"))
    monkeypatch.setattr(host_facts, "machine_id", lambda: "another")
    others = processes.descendants(os.getpid())
    job_steps.start(spec, ALLOCATION, "h0", "a.pyz")
    monkeypatch.undo()
    assert job_steps.end_reason(spec, ALLOCATION, "h0") == ""
    assert job_steps.end(spec, HOSTS, 0.0) == []
    processes.kill(started_since(others))


def test_the_end_of_a_step_that_is_noticed_while_its_bed_goes_leaves_no_file(
    clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once while Slurm is asked, and once while the directory of the records is removed."""
    monkeypatch.setattr(job_steps, "ASK_S", 0.0)
    spec = replace(bed(clients), hostdir=str(clients / "shared"))
    kill_srun(spec, clients, "h0")
    run, rmdir = slurm_commands.run, os.rmdir

    def end_while_asked(argv: Sequence[str], deadline_s: float | None = None) -> str:
        output = run(argv, deadline_s)
        job_steps.forget(spec)
        return output

    monkeypatch.setattr(slurm_commands, "run", end_while_asked)
    assert "has ended" in job_steps.end_reason(spec, ALLOCATION, "h0")
    assert list(Path(spec.workdir).iterdir()) == []
    monkeypatch.setattr(slurm_commands, "run", run)
    kill_srun(spec, clients, "h0")
    step = job_steps._read(spec, "h0")
    assert step

    def note_first(path: str, *, dir_fd: int | None = None) -> None:
        with suppress(FileNotFoundError):
            job_steps._write(spec, "h0", step)
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", note_first)
    job_steps.forget(spec)
    assert list(Path(spec.workdir).iterdir()) == []
