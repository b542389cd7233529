"""A job's own launcher: its command line, its environment, and what is read of its workers' records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.rank.runtime import launcher

VALUES: dict[str, str | int] = {
    "rank": 1, "nnodes": 4, "nproc": 2, "master_addr": "10.0.0.1", "master_port": 4711, "run": "r", "max_restarts": 3,
    "is_host": "false", "python": "/venv/bin/python",
}  # fmt: skip


def test_torchrun_is_a_full_command() -> None:
    line = launcher.build_command("torchrun", VALUES, ("train.py",), ("--lr", "0.1"))
    assert line[:3] == ["/venv/bin/python", "-m", "torch.distributed.run"]
    assert line[-3:] == ["train.py", "--lr", "0.1"]
    assert "10.0.0.1:4711" in line


def test_a_module_is_two_words() -> None:
    line = launcher.build_command("torchrun", VALUES, ("-m", "package.train"), ("--lr", "0.1"))
    assert line[-4:] == ["-m", "package.train", "--lr", "0.1"]


def test_a_command_places_script_and_arguments_itself() -> None:
    text = "accelerate launch --machine_rank {rank} {script} --config 'a b' {args}"
    line = launcher.build_command(text, VALUES, ("train.py",), ("x y",))
    assert line == ["accelerate", "launch", "--machine_rank", "1", "train.py", "--config", "a b", "x y"]


def test_arguments_inside_a_word_are_quoted_for_a_shell() -> None:
    line = launcher.build_command("sh -c 'exec python {script} {args}'", VALUES, ("train.py",), ("x y",))
    assert line == ["sh", "-c", "exec python train.py 'x y'"]


@pytest.mark.parametrize("text", ["torchrun", "torchrun-best", "accelerate launch --machine_rank {rank}"])
def test_a_right_command_has_no_problem(text: str) -> None:
    assert list(launcher.find_problems(text)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [("run {host}", "unknown {host}"), ("run 'a", "not a command"), ("run {rank", "not a command")],
)
def test_a_wrong_command_is_named(text: str, problem: str) -> None:
    assert problem in next(iter(launcher.find_problems(text)))


def test_the_newest_step_of_the_first_worker_is_read_line_by_line(tmp_path: Path) -> None:
    records = launcher.Records(tmp_path)
    _begin(tmp_path / "watch-r1-2.jsonl", pid=2, local_rank=1, step=7)
    first = _begin(tmp_path / "watch-r0-1.jsonl", pid=1, local_rank=0, step=3)
    with first.open("a") as out:
        out.write('not json\n{"k": "step", "n": 4')
    records.read()
    assert records.newest == (1, 3), "a torn line does not count, nor does another worker"
    with first.open("a") as out:
        out.write("4}\n")
    records.read()
    assert records.newest == (1, 44)


def test_a_worker_that_is_started_again_counts_from_the_beginning(tmp_path: Path) -> None:
    records = launcher.Records(tmp_path)
    _begin(tmp_path / "watch-r0-9.jsonl", pid=9, local_rank=0, step=20)
    records.read()
    _begin(tmp_path / "watch-r0-11.jsonl", pid=11, local_rank=0, step=2)
    records.read()
    assert records.newest == (11, 2)


def _begin(path: Path, *, pid: int, local_rank: int, step: int) -> Path:
    lines = [{"k": "begin", "pid": pid, "local_rank": local_rank}, {"k": "step", "n": step}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_save_is_reported_once_it_is_committed(tmp_path: Path) -> None:
    records = launcher.Records(tmp_path)
    lines = [
        {"k": "save", "id": 1, "n": 10, "path": "a.tmp"},
        {"k": "committed", "id": 1, "path": "a.pt", "bytes": 5},
        {"k": "committed", "id": 1, "path": "a.pt", "bytes": 5, "sha256": "00"},
        {"k": "save", "id": 2, "n": 20, "path": "b.tmp"},
    ]
    (tmp_path / "watch-r3-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(save.rank, save.n, save.path) for save in records.read()] == [(3, 10, "a.pt")]
    assert records.read() == []


def test_the_files_and_workers_that_save_after_one_step_are_one_report_and_those_of_a_restart_another(
    tmp_path: Path,
) -> None:
    records = launcher.Records(tmp_path)
    for rank, restart in ((0, 0), (1, 0), (2, 1)):
        lines = [{"k": "begin", "pid": rank, "local_rank": rank, "restart": restart}]
        for number in range(3):
            lines += [
                {"k": "save", "id": number, "n": 10},
                {"k": "committed", "id": number, "path": f"{rank}-{number}.pt"},
            ]
        (tmp_path / f"watch-r{rank}-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(save.rank, save.n, save.path) for save in records.read()] == [(0, 10, "0-0.pt"), (2, 10, "2-0.pt")]
