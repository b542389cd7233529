"""The private Slurm of the tests is a real one: it runs jobs of several users, loses nodes, and leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..patience import until
from . import slurm as lab_slurm
from .slurm import NODES, Slurm

#: Of no other run of these tests on this machine.
_SLEEP_S = f"4321.{os.getpid()}"


def test_four_nodes_run_the_steps_of_a_user_without_root(slurm: Slurm) -> None:
    output = slurm.run("srun", "--nodes=4", "sh", "-c", "echo $SLURMD_NODENAME $(id --user --name)", user="daemon")
    assert sorted(output.split("\n")[:-1]) == [f"{node} daemon" for node in NODES]


def test_a_node_that_lost_its_power_leaves_no_process(slurm: Slurm) -> None:
    job = slurm.run(
        "sbatch", "--parsable", "--nodelist=n2", "--output=/dev/null", "--wrap", f"exec sleep {_SLEEP_S}"
    ).strip()
    until(lambda: bool(_sleepers()))
    slurm.power_off("n2")
    until(lambda: not _sleepers())
    assert slurm.jobs() == {int(job): "RUNNING"}
    slurm.set_node("n2", "down")
    until(lambda: slurm.jobs().get(int(job)) != "RUNNING")


def test_a_job_outlives_a_restart_of_the_controller_and_a_drain(slurm: Slurm) -> None:
    slurm.run("salloc", "--no-shell", "--nodes=2")
    slurm.set_node("n1", "drain")
    slurm.restart_controller()
    until(lambda: slurm.node_states()["n1"].startswith("drain"))
    assert list(slurm.jobs().values()) == ["RUNNING"]


def test_a_command_that_does_not_exist_is_one_line_and_starts_no_slurm(capsys: pytest.CaptureFixture[str]) -> None:
    assert lab_slurm.main(["--help"]) == 3
    assert capsys.readouterr().err == "--help: no such program; usage: python -m tests.lab.slurm COMMAND …\n"


@pytest.mark.skipif(bool(lab_slurm.lack()), reason=lab_slurm.lack())
def test_two_are_independent_and_end_with_their_files() -> None:
    """A second one beside the session's; its directory and its processes are gone at its end."""
    with lab_slurm.running() as other:
        assert other.jobs() == {}
        other.run("salloc", "--no-shell", "--nodes=1")
        marked = _marked(other.folder)
        assert len(marked) >= 2 + len(NODES)
    assert not _marked(other.folder) and not other.folder.exists()


def _sleepers() -> list[int]:
    return [pid for pid in _pids() if _read(pid, "cmdline") == f"sleep\0{_SLEEP_S}\0".encode()]


def _marked(folder: Path) -> list[int]:
    return [pid for pid in _pids() if f"{lab_slurm.MARK}={folder}:".encode() in _read(pid, "environ")]


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
