"""The inputs of a run, cut off after every step and after every loss of power: a run is whole, or it is none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.model.errors import UsageError
from orchestrator.model.trial import Trial
from orchestrator.store import bed_files, bundle, durable, paths, seal
from orchestrator.system import plain_files

TRIAL = Trial(name="dp-ring", workload="train-dp")
DOCUMENTS = {bundle.TRIAL: TRIAL, bundle.PLAN: {"run": "r"}, bundle.BUNDLE: {"format": 2}}
INPUTS = {"user/train.py": b"a", "user/lib/net.py": b"b"}
FILES = {bundle.TRIAL, bundle.PLAN, bundle.BUNDLE, "inputs/user/train.py", "inputs/user/lib/net.py"}


def on_disk(steps: tuple[durable.Step, ...]) -> Iterator[set[Path]]:
    """What may be on the disk when the power fails after ``steps``: a name is safe once its directory was synced."""
    safe: set[Path] = set()
    unsafe: set[Path] = set()
    for step in steps:
        if isinstance(step, durable.SyncDirectory):
            safe |= {path for path in unsafe if path.parent == step.path}
            unsafe -= safe
        else:
            unsafe.add(step.path)
    for size in range(len(unsafe) + 1):
        for kept in itertools.combinations(sorted(unsafe), size):
            yield safe | set(kept)


def reachable(root: Path, names: set[Path]) -> set[str]:
    """The files below ``root``, relative to it, all of whose directories are there."""
    whole = (path for path in names if all(up in names for up in path.parents if root in up.parents))
    return {str(path.relative_to(root)) for path in whole} & FILES


def test_after_a_loss_of_power_a_directory_with_a_trial_has_all_else(tmp_path: Path) -> None:
    steps = bundle.input_steps(tmp_path, DOCUMENTS, INPUTS)
    states = [reachable(tmp_path, names) for k in range(len(steps) + 1) for names in on_disk(steps[:k])]
    assert {frozenset(files) for files in states if bundle.TRIAL in files} == {frozenset(FILES)}
    assert reachable(tmp_path, set().union(*on_disk(steps))) == FILES


def test_the_trial_first_would_be_noticed(tmp_path: Path) -> None:
    """The negative control: the order that was wrong."""
    steps = bundle.input_steps(tmp_path, DOCUMENTS, INPUTS)
    wrong = (*steps[-2:], *steps[:-2])
    states = [reachable(tmp_path, names) for k in range(len(wrong) + 1) for names in on_disk(wrong[:k])]
    assert {bundle.TRIAL} in states


def test_a_directory_cut_off_after_any_step_but_the_last_is_no_run(tmp_path: Path) -> None:
    for cut in range(len(bundle.input_steps(tmp_path, DOCUMENTS, INPUTS)) + 1):
        directory = tmp_path / str(cut)
        directory.mkdir()
        steps = bundle.input_steps(directory, DOCUMENTS, INPUTS)
        durable.perform(steps[:cut])
        if (directory / bundle.TRIAL).exists():
            assert set(paths.walk(directory)) == FILES
            assert bundle.load_trial(directory) == TRIAL
        else:
            assert cut < len(steps)
            with pytest.raises(UsageError, match="not a run"):
                bundle.load_trial(directory)


def test_after_a_loss_of_power_no_directory_of_a_run_is_there_without_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps as they are really taken, from the mark beside the bed to the trial."""
    bed, runs = tmp_path / "bed", tmp_path / "runs"
    bed.mkdir()
    steps: list[durable.Step] = []
    take = durable.perform_step

    def record(step: durable.Step) -> None:
        steps.append(step)
        take(step)

    monkeypatch.setattr(durable, "perform_step", record)
    directory = bundle.new(runs, "t")
    bed_files.begin_run(bed, directory.name, directory)
    bundle.make(directory)
    bundle.write_inputs(directory, DOCUMENTS, INPUTS)
    bed_files.change_run(bed, directory.name, directory, begun=True)
    states = [names for k in range(len(steps) + 1) for names in on_disk(tuple(steps[:k]))]
    assert [names for names in states if directory in names and bed / bed_files.OPEN_RUN not in names] == []
    assert any(directory in names for names in states)


def test_all_evidence_is_on_the_disk_before_its_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"nodes/n{node}/{name}" for node in range(20) for name in ("a.jsonl", "b.bin")}
    for name in names:
        paths.write(tmp_path / name, name.encode())
    synced: list[Path] = []

    def sync(path: Path) -> None:
        synced.append(path)
        assert (tmp_path / seal.MANIFEST).exists() == (path == tmp_path)

    monkeypatch.setattr(plain_files, "sync", sync)
    seal.seal(tmp_path)
    assert sorted(synced[:-1]) == sorted(tmp_path / name for name in names)
    assert synced[-1] == tmp_path


def test_evidence_that_cannot_be_forced_to_the_disk_is_not_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    paths.write(tmp_path / "history.jsonl", b"")
    monkeypatch.setattr(plain_files, "sync", fail)
    with pytest.raises(OSError, match="No space left"):
        seal.seal(tmp_path)
    assert not (tmp_path / seal.MANIFEST).exists()
