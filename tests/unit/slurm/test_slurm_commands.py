"""Slurm's clients: their errors in words, their output by width, the states of jobs and nodes. Outputs are those of 22.05."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.slurm import job_state, slurm_commands

SALLOC = ["salloc", "--no-shell"]
FAILED = "salloc: error: Job submit/allocate failed: "


@pytest.mark.parametrize(
    ("output", "words", "code"),
    [
        (f"salloc: error: invalid partition specified: nope\n{FAILED}Invalid partition name specified", "Slurm has no partition nope", 3),
        (f"{FAILED}User's group not permitted to use this partition", "your group may not use", 3),
        (f"{FAILED}Invalid account or account/partition combination specified", "no such account", 3),
        (f"{FAILED}Invalid qos specification", "no such quality of service", 3),
        (f"{FAILED}Job violates accounting/QOS policy (job submit limit)", "exceeds a limit of your account", 3),
        (f"{FAILED}Access/permission denied", "does not permit this to you", 3),
        (f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)", "exceeds a limit of Slurm", 3),
        ("salloc: unrecognized option '--zz=3'\nTry \"salloc --help\" for more information", "Slurm has no option zz", 3),
        ("slurm_load_jobs error: Invalid job id specified", "Slurm has no such job", 3),
        ("squeue: error: Munge encode failed: no socket\nslurm_load_jobs error: Protocol authentication error", "munge, which", 4),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "controller does not respond", 4),
        ("salloc: fatal: Could not establish a configuration source", "no configuration of Slurm", 4),
        ("salloc: error: something new", "something new", 4),
    ],
)  # fmt: skip
def test_an_error_of_slurm_is_explained_with_its_own_words_and_a_next_step(output: str, words: str, code: int) -> None:
    error = slurm_commands.explain(SALLOC, output)
    assert words in str(error) and error.exit_code == code and error.hint
    assert output.splitlines()[0].rpartition(": ")[2][:20] in str(error)


def test_rows_are_cut_by_bytes_and_by_width() -> None:
    widths = {"JobID": 6, "Comment": 12, "State": 8}
    line = b"12    " + "grüße | x".encode().ljust(12) + b"RUNNING "
    assert slurm_commands.rows(line.decode() + "\n", widths) == [
        {"JobID": "12", "Comment": "grüße | x", "State": "RUNNING"}
    ]
    assert slurm_commands.format_option(widths) == "--Format=JobID:6,Comment:12,State:8"


def test_a_newline_in_the_text_of_a_user_ends_no_row() -> None:
    widths = {"JobID": 6, "Comment": 12}
    output = "12    two\n7 lines  \n13    b\xadnd       \n"
    assert [row["JobID"] for row in slurm_commands.rows(output.replace("\xad", "\udcff"), widths)] == ["12", "13"]


def test_the_settings_of_a_user_do_not_change_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCANCEL_STATE", "SQUEUE_FORMAT", "SQUEUE_STATES", "SINFO_FORMAT", "SLURM_TIME_FORMAT"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/x")
    environment = slurm_commands.environment()
    assert environment["SLURM_TIME_FORMAT"] == "%s" and environment["SLURM_CONF"] == "/etc/x"
    assert not [name for name in environment if name.startswith(("SCANCEL_", "SQUEUE_", "SINFO_"))]


def test_a_client_that_does_not_respond_ends_with_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "squeue"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(slurm_commands.SlurmError, match=r"squeue: no response from Slurm's controller within 0\.2 s"):
        slurm_commands.run(["squeue"], deadline_s=0.2)


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs ``squeue``, ``sinfo`` and ``scontrol`` that print the files of the same name; returns their directory."""
    for name in ("squeue", "sinfo", "scontrol"):
        (tmp_path / name).write_text(f"#!/bin/sh\ncat {tmp_path}/{name}.txt\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def print_job(folder: Path, **fields: str) -> None:
    values = {
        "JobID": "7", "State": "RUNNING", "NumNodes": "2", "StartTime": "1000", "EndTime": "NONE", "PreemptTime": "N/A",
        "RestartCnt": "0", "UserName": "me", "Partition": "gpu", "Name": "ccbed-lab", "NodeList": "n[1-2]", "Reason": "None",
        "Comment": "ccbed:/x", **fields,
    }  # fmt: skip
    line = "".join(values[name].ljust(width) for name, width in job_state._JOB.items())
    (folder / "squeue.txt").write_text(line + "\n")


@pytest.mark.parametrize(
    ("fields", "kind", "reason"),
    [
        ({}, "running", "it runs on n[1-2]"),
        ({"State": "PENDING", "Reason": "Priority"}, "pending", "other jobs are before it (Priority)"),
        ({"State": "PENDING", "Reason": "None"}, "pending", "the scheduler has not considered it yet"),
        ({"State": "PENDING", "Reason": "ReqNodeNotAvail, UnavailableNodes:n1"}, "pending", "is not available (ReqNodeNotAvail)"),
        ({"State": "PENDING", "Reason": "SomethingNew"}, "pending", "SomethingNew"),
        ({"State": "PENDING", "Reason": "BeginTime", "RestartCnt": "1"}, "requeued", "put back into the queue"),
        ({"State": "CANCELLED", "EndTime": "2000"}, "cancelled", "scancel or an administrator"),
        ({"State": "TIMEOUT", "EndTime": "2000"}, "timed out", "it reached its time limit"),
        ({"State": "NODE_FAIL", "EndTime": "2000"}, "node failed", "a node of it failed"),
        ({"State": "PREEMPTED", "EndTime": "2000", "PreemptTime": "1990"}, "preempted", "higher priority"),
        ({"State": "COMPLETING"}, "completing", "it ends now"),
        ({"State": "COMPLETING", "Reason": "TimeLimit"}, "completing", "it reached its time limit"),
        ({"State": "COMPLETING", "PreemptTime": "1990"}, "completing", "a job of higher priority took its nodes"),
        ({"PreemptTime": "1990"}, "preempting", "a job of higher priority takes its nodes"),
        ({"State": "EXPEDITING"}, "unknown", "its state is EXPEDITING"),
        ({"State": "SUSPENDED"}, "suspended", "suspended"),
        ({"State": "FAILED", "Reason": "NonZeroExitCode", "EndTime": "2000"}, "ended", "NonZeroExitCode"),
    ],
)  # fmt: skip
def test_states_of_a_job_are_told_apart(fields: dict[str, str], kind: str, reason: str, queue: Path) -> None:
    print_job(queue, **fields)
    (queue / "scontrol.txt").write_text("n1\nn2\n")
    (queue / "sinfo.txt").write_text("")
    state = job_state.read_state(7, ())
    assert state.kind == kind and reason in state.reason
    expected_at = {"preempted": 1990.0, "running": 1000.0, "suspended": 1000.0}.get(kind)
    assert state.at == (expected_at or (2000.0 if kind in job_state.FINAL else None))


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("allocated", None), ("mixed", None), ("mixed-", None), ("allocated@", None), ("allocated*", "not responding"),
        ("draining", "draining"), ("drained*", "draining"), ("down*", "down"), ("failing", "failing"), ("fail", "failing"),
    ],
)  # fmt: skip
def test_states_of_nodes_are_told_apart(word: str, kind: str | None, queue: Path) -> None:
    print_job(queue)
    (queue / "scontrol.txt").write_text("n1\nn2\n")
    fields = {
        "NodeList": "n1",
        "StateLong": word,
        "NodeAddr": "10.0.0.1",
        "Port": "6818",
        "Timestamp": "1500",
        "User": "root",
        "Reason": "bad dimm",
    }
    row = "".join(fields[name].ljust(width) for name, width in job_state._NODE.items()) + "\n"
    (queue / "sinfo.txt").write_text(row + row)  # once for each partition of the node
    lost = job_state.read_state(7, ("n1", "n2")).lost
    assert [(node.name, node.kind, node.reason, node.at) for node in lost] == (
        [("n1", kind, "bad dimm (by root)", 1500.0)] if kind else []
    )


def print_partitions(folder: Path, *partitions: tuple[str, int, str]) -> None:
    """A row per partition and state of nodes: (name, nodes, size that a job may have)."""
    lines = [
        "".join(str(value).ljust(width) for value, width in zip(row, job_state._PARTITION.values(), strict=True))
        for row in partitions
    ]
    (folder / "sinfo.txt").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("fields", "never"),
    [
        ({"Reason": "PartitionTimeLimit"}, True), ({"Reason": "Resources"}, False), ({"Reason": "QOSMaxNodePerUserLimit"}, False),
        ({"Reason": "QOSMaxNodePerJobLimit"}, True), ({"Reason": "PartitionNodeLimit", "NumNodes": "4"}, False),
        ({"Reason": "PartitionNodeLimit", "NumNodes": "5-5"}, True),
        ({"Reason": "PartitionNodeLimit", "NumNodes": "5", "Partition": "gpu,large"}, False),
        ({"Reason": "PartitionNodeLimit", "NumNodes": "2", "Partition": "small"}, True),
        ({"Reason": "PartitionNodeLimit", "NumNodes": "99", "Partition": "hidden"}, False),
    ],
)  # fmt: skip
def test_a_job_that_waits_for_nodes_that_are_down_is_not_taken_for_one_that_never_starts(
    fields: dict[str, str], never: bool, queue: Path
) -> None:
    print_job(queue, State="PENDING", **fields)
    print_partitions(
        queue, ("gpu", 3, "1-infinite"), ("gpu", 1, "1-infinite"), ("large", 8, "1-infinite"), ("small", 4, "1")
    )
    job = job_state.read_job(7)
    assert job is not None and job_state.never_starts(job, job_state.read_node_limits) is never


def test_an_estimated_start_is_a_time_and_a_delay() -> None:
    job = job_state.Job(
        job_id=7, kind="pending", state="PENDING", is_preempted=False, reason="Priority", node_list="", node_count=2,
        starts_at=10_000.0, ends_at=None, user="me", partition="gpu", name="", comment="",
    )  # fmt: skip
    assert job_state.describe_start(job, 10_000.0 - 12 * 60).endswith(", in 12 min")
    assert job_state.describe_start(job, 10_000.0 + 1) == "no estimated start"
