"""What travels with a run: all files of the plugins that a rank may need, none of them loaded here."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

import orchestrator
from orchestrator import plugins
from orchestrator.model.errors import UsageError
from orchestrator.model.trial import Trial
from orchestrator.store import rank_payload

PACKAGE = Path(orchestrator.__file__).parent


def test_a_workload_that_nobody_asked_for_is_sent_and_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "torn.py").write_text("def (")
    files = rank_payload.collect(PACKAGE, plugins.discover([tmp_path]))
    assert files["orchestrator/workloads/torn.py"] == b"def ("
    assert {
        "orchestrator/workloads/train_dp.py",
        "orchestrator/algorithms/ring.py",
        "orchestrator/rank/runtime/rank_main.py",
    } <= set(files)


def write(root: Path, files: dict[str, str | int]) -> None:
    """Write texts, and files of so many bytes."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else b"\0" * content)


def small(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    monkeypatch.setattr(rank_payload, "TRAVELS", dataclasses.replace(rank_payload.TRAVELS, **limits))


def test_ignore_rules_of_every_directory_hold_and_ccbedignore_has_the_last_word(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".git/HEAD": "x", ".gitignore": "*.log\n/out/\n", ".ccbedignore": "!keep.log\ndata\n", "train.py": "1", "a.log": "1",
            "keep.log": "1", "out/x": "1", "lib/out/y.py": "1", "lib/.gitignore": "y.*\n", "lib/z.py": "1", "data/big": "1",
        },
    )  # fmt: skip
    project = rank_payload.read_directory(tmp_path, in_place=False)
    assert set(project.files) == {"train.py", "keep.log", "lib/z.py"}
    assert {"a.log", "out", "lib/out/y.py", "data"} <= set(project.left_out)
    below = rank_payload.read_directory(tmp_path / "lib", in_place=False)
    assert set(below.files) == {"z.py"}, "rules of the directories above hold as well"


def test_the_script_travels_even_where_a_rule_ignores_it(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*.py\n", "train.py": "1", "lib.py": "1"})
    assert set(rank_payload.read_directory(tmp_path, tmp_path / "train.py", in_place=False).files) == {"train.py"}


def test_a_large_file_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, largest=2 * rank_payload.MIB)
    write(tmp_path, {"train.py": "1", "weights.bin": 3 * rank_payload.MIB})
    project = rank_payload.read_directory(tmp_path, in_place=False)
    assert set(project.files) == {"train.py"}
    assert rank_payload.large_files(project) == "weights.bin (3 MiB)"


def test_checkpoints_of_earlier_runs_never_make_a_project_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, total=1000)
    write(tmp_path, {"train.py": "1", "tokenizer.bin": 500, **{f"step{n}.pt": 300 + n for n in range(4)}})
    project = rank_payload.read_directory(tmp_path, in_place=False)
    assert set(project.files) == {"train.py", "tokenizer.bin", "step0.pt"}
    assert project.left_out["step3.pt"] == "a checkpoint beside the script"


def test_a_project_that_is_too_large_is_refused_with_its_largest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, total=1000)
    write(tmp_path, {"train.py": "1", "corpus.txt": 999, "b.txt": 10})
    with pytest.raises(UsageError, match=r"would travel.*corpus\.txt") as error:
        rank_payload.read_directory(tmp_path, in_place=False)
    assert ".ccbedignore" in error.value.hint
    small(monkeypatch, entries=2)
    with pytest.raises(UsageError, match="more than 2 files"):
        rank_payload.read_directory(tmp_path, in_place=False)


def test_in_place_nothing_is_too_large_or_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_payload, "IN_PLACE", rank_payload.Limits(entries=3, total=10, largest=100))
    write(tmp_path, {"train.py": "1", "a.bin": 50, "b.bin": 200, "z/c": "1"})
    project = rank_payload.read_directory(tmp_path, tmp_path / "train.py", in_place=True)
    assert set(project.files) == {"train.py"}
    assert {"a.bin", "b.bin"} <= set(project.left_out)


def trial(**params: object) -> Trial:
    return Trial(name="t", workload="script", params=params)


def test_the_root_of_a_project(tmp_path: Path) -> None:
    write(tmp_path, {"repo/.git/HEAD": "x", "repo/scripts/train.py": "1", "alone/train.py": "1"})
    repo, alone = str(tmp_path / "repo/scripts/train.py"), str(tmp_path / "alone/train.py")
    assert rank_payload.project_root(trial(file=repo), in_place=False) == tmp_path / "repo"
    assert rank_payload.project_root(trial(file=repo), in_place=True) == tmp_path / "repo/scripts"
    assert rank_payload.project_root(trial(file=alone), in_place=False) == tmp_path / "alone"
    assert rank_payload.project_root(trial(file=repo, root=str(tmp_path)), in_place=False) == tmp_path
    assert (
        rank_payload.project_root(trial(module="m", cwd=str(tmp_path / "alone")), in_place=False) == tmp_path / "alone"
    )
    assert rank_payload.project_root(trial(exec_=("true",)), in_place=False) is None
    with pytest.raises(UsageError, match="does not contain"):
        rank_payload.project_root(trial(file=alone, root=str(tmp_path / "repo")), in_place=False)


def test_a_home_directory_under_git_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, {".git/HEAD": "x", "job/train.py": "1"})
    file = str(tmp_path / "job/train.py")
    assert rank_payload.project_root(trial(file=file), in_place=False) == tmp_path / "job"


def test_a_file_whose_name_is_not_utf_8_is_left_out_with_the_reason(tmp_path: Path) -> None:
    for name in (b"train.py", b"caf\xe9.py", b"caf\xe9/inner.py"):
        path = tmp_path / os.fsdecode(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    os.symlink("train.py", tmp_path / os.fsdecode(b"l\xe9"))
    project = rank_payload.read_directory(tmp_path, in_place=True)
    reason = "its name is not UTF-8"
    assert (set(project.files), project.left_out) == (
        {"train.py"},
        {"caf\\xe9": reason, "caf\\xe9.py": reason, "l\\xe9": reason},
    )
