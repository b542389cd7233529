"""Saves and loads of files: when they are committed, and that a load is recognised as a save."""

from __future__ import annotations

import hashlib
import inspect
import io
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.rank.watcher import digest, live_steps, record, steps
from orchestrator.rank.watcher.checkpoints import loads, saved_contents, saves

from . import jobs
from .observed import Observed, observed

__all__ = ["observed"]


def model_and_optimizer(seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Linear(4, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator))
    return model, torch.optim.Adam(model.parameters())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_save_to_its_final_name_is_committed_when_it_returns(observed: Observed, tmp_path: Path) -> None:
    model, _ = model_and_optimizer()
    path = tmp_path / "ckpt.pt"
    torch.save({"model": model.state_dict(), "epoch": 3}, path)
    saved, committed = observed.merged("saved"), observed.merged("committed")
    assert saved["weights"] == digest.total(model.state_dict())[0]
    assert saved["files"] == [[str(path), path.stat().st_size, None]]
    assert (committed["path"], committed["how"], committed["sha256"]) == (str(path), "return", sha256(path))
    assert observed.merged("save")["called"] < committed["t_committed"] <= saved["t"]


def test_a_load_has_the_hash_and_the_weights_of_the_save(observed: Observed, tmp_path: Path) -> None:
    model, _ = model_and_optimizer()
    torch.save(model.state_dict(), tmp_path / "ckpt.pt")
    torch.load(tmp_path / "ckpt.pt", weights_only=True)
    load = observed.merged("load")
    assert load["folder"] == {"ckpt.pt": (tmp_path / "ckpt.pt").stat().st_size, "records": -1}
    assert load["sha256"] == observed.merged("committed")["sha256"]
    assert load["weights"] == observed.merged("saved")["weights"]


@pytest.mark.parametrize("is_overwritten", [False, True], ids=["renamed-over", "written-over"])
def test_a_large_file_is_hashed_after_the_load_and_only_as_it_was_read(
    observed: Observed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_overwritten: bool
) -> None:
    monkeypatch.setattr(loads, "HASHED_AT_ONCE", 0)
    model, _ = model_and_optimizer()
    path = tmp_path / "ckpt.pt"
    torch.save(model.state_dict(), path)
    saved = observed.merged("committed")["sha256"]
    release = threading.Event()

    def wait() -> None:
        release.wait(600)

    saves.hashes.submit(wait)
    torch.load(path)
    if is_overwritten:
        path.write_bytes(b"another content")
    else:
        (tmp_path / "other").write_bytes(b"another content")
        (tmp_path / "other").rename(path)
    lines = [line for line in jobs.read(observed.folder) if line["k"] == "load"]
    assert [line["sha256"] for line in lines] == [None], "the load waited for the hash"
    saved_contents.owner.set(saved_contents.Owner(tuple(dict(model.named_parameters()))))
    release.set()
    *_, last = observed.of("load")
    assert (last["sha256"], last["matched"]) == (None if is_overwritten else saved, 1.0)


def test_another_model_has_other_digests(observed: Observed, tmp_path: Path) -> None:
    for seed in (0, 1):
        torch.save(model_and_optimizer(seed)[0].state_dict(), tmp_path / "ckpt.pt")
    first, second = observed.of("saved")
    assert first["weights"] != second["weights"]


def test_a_file_that_is_overwritten_has_a_new_hash(observed: Observed, tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pt"
    for seed in (0, 1):
        torch.save(model_and_optimizer(seed)[0].state_dict(), path)
        assert observed.of("committed")[-1]["sha256"] == sha256(path)
    assert len({line["sha256"] for line in observed.of("committed") if "sha256" in line}) == 2


@pytest.mark.parametrize(("module", "name"), [(os, "rename"), (os, "replace"), (shutil, "move"), (Path, "rename")])
def test_a_temporary_name_is_committed_by_its_rename(
    observed: Observed, tmp_path: Path, module: object, name: str
) -> None:
    torch.save(model_and_optimizer()[0].state_dict(), tmp_path / "ckpt.pt.tmp")
    assert observed.of("committed") == []
    getattr(module, name)(tmp_path / "ckpt.pt.tmp", tmp_path / "ckpt.pt")
    committed = observed.merged("committed")
    assert (committed["path"], committed["how"]) == (str(tmp_path / "ckpt.pt"), "rename")


def test_a_temporary_directory_is_committed_by_its_rename(observed: Observed, tmp_path: Path) -> None:
    (tmp_path / "tmp-checkpoint-5").mkdir()
    for name in ("model.pt", "optimizer.pt"):
        torch.save(model_and_optimizer()[0].state_dict(), tmp_path / "tmp-checkpoint-5" / name)
    assert observed.of("committed") == []
    os.rename(tmp_path / "tmp-checkpoint-5", tmp_path / "checkpoint-5")
    paths = {line["path"] for line in observed.of("committed")}
    assert paths == {str(tmp_path / "checkpoint-5" / name) for name in ("model.pt", "optimizer.pt")}


def write_text(path: Path, number: int) -> None:
    path.write_text(f"{number}\n")


def replace_link(path: Path, number: int) -> None:
    path.with_suffix(".x").symlink_to(f"step_{number:07}")
    os.replace(path.with_suffix(".x"), path)


@pytest.mark.parametrize(
    ("name", "update"),
    [("latest_checkpointed_iteration.txt", write_text), ("latest", write_text), ("latest", replace_link)],
)
def test_a_checkpoint_counts_once_the_tracker_of_the_job_names_it(
    observed: Observed, tmp_path: Path, name: str, update: Callable[[Path, int], None]
) -> None:
    model, optimizer = model_and_optimizer()

    def save(number: int) -> Path:
        folder = tmp_path / f"step_{number:07}"
        folder.mkdir()
        torch.save(model.state_dict(), folder / "model.pt")
        return folder / "model.pt"

    save(10)
    update(tmp_path / name, 10)
    observed.step(optimizer, model)
    count = len(observed.of("committed"))
    path = save(20)
    assert len(observed.of("committed")) == count
    update(tmp_path / name, 20)
    observed.step(optimizer, model)
    committed = observed.of("committed")[-1]
    assert (committed["path"], committed["how"]) == (str(path), "latest")
    assert committed["t_committed"] >= observed.of("saved")[-1]["staged"]


def test_a_tracker_that_is_not_renewed_does_not_hide_checkpoints(observed: Observed, tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    (tmp_path / "latest").write_text("other")
    torch.save(model.state_dict(), tmp_path / "ckpt.pt")
    assert observed.of("committed") == []
    observed.step(optimizer, model)
    assert observed.merged("committed")["how"] == "return"


def test_a_part_of_the_files_that_are_saved_together_is_not_committed(observed: Observed, tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()

    def save(number: int, *names: str) -> set[str]:
        (tmp_path / f"checkpoint-{number}").mkdir()
        for name in names:
            torch.save(model.state_dict(), tmp_path / f"checkpoint-{number}" / name)
        return {Path(line["path"]).name for line in observed.of("committed") if f"checkpoint-{number}/" in line["path"]}

    save(5, "model.pt", "optimizer.pt")
    observed.step(optimizer, model)
    assert save(10, "model.pt") == set()
    torch.save(optimizer.state_dict(), tmp_path / "checkpoint-10" / "optimizer.pt")
    assert len({line["id"] for line in observed.of("committed")}) == 4
    observed.step(optimizer, model)
    assert save(15, "model.pt") == set()
    observed.step(optimizer, model)
    assert observed.of("committed")[-1]["path"] == str(tmp_path / "checkpoint-15" / "model.pt")


def test_a_name_that_only_looks_temporary_is_committed_by_the_next_step(observed: Observed, tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    torch.save(model.state_dict(), tmp_path / "tmp.pt")
    assert observed.of("committed") == []
    observed.step(optimizer, model)
    assert observed.merged("committed")["how"] == "return"


def test_a_file_object_is_committed_once_it_is_closed(observed: Observed, tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    with (tmp_path / "ckpt.pt").open("wb") as out:
        torch.save(model.state_dict(), out)
        observed.step(optimizer, model)
        assert observed.of("committed") == []
    observed.step(optimizer, model)
    assert observed.merged("committed")["sha256"] == sha256(tmp_path / "ckpt.pt")


def test_a_buffer_is_committed_with_the_file_that_it_is_written_to(observed: Observed, tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    (tmp_path / "other.pt").write_bytes(b"\0" * len(buffer.getvalue()))
    (tmp_path / "t").write_bytes(buffer.getvalue())
    os.replace(tmp_path / "t", tmp_path / "ckpt.pt")
    observed.step(optimizer, model)
    committed = observed.merged("committed")
    assert (committed["path"], committed["sha256"]) == (str(tmp_path / "ckpt.pt"), sha256(tmp_path / "ckpt.pt"))


def test_a_buffer_that_no_file_holds_is_given_up(observed: Observed, tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    for _ in range(3):
        observed.step(optimizer, model)
    (tmp_path / "ckpt.pt").write_bytes(buffer.getvalue())
    observed.step(optimizer, model)
    assert saves.buffers.waiting() == 0
    assert observed.of("committed") == []


def test_a_save_that_raises_is_neither_saved_nor_committed(observed: Observed, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="unexpected pos"):
        torch.save({"a": torch.ones(1 << 16)}, "/dev/full")
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.save({}, tmp_path / "missing" / "ckpt.pt")
    assert len(observed.of("save")) == 2
    assert observed.of("saved") == observed.of("committed") == []


def test_a_load_that_raises_is_recorded_with_its_error(observed: Observed, tmp_path: Path) -> None:
    torch.save(model_and_optimizer()[0].state_dict(), tmp_path / "ckpt.pt")
    torn = tmp_path / "torn.pt"
    torn.write_bytes((tmp_path / "ckpt.pt").read_bytes()[:500])
    with pytest.raises(RuntimeError, match="central directory"):
        torch.load(torn)
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "missing.pt")
    first, second = observed.of("load")
    assert (first["sha256"], first["path"]) == (sha256(torn), str(torn))
    assert "central directory" in first["error"] and "weights" not in first
    assert second["error"].startswith("FileNotFoundError")


def test_a_load_gets_the_digest_of_the_owners_parameters_once_these_are_known(
    observed: Observed, tmp_path: Path
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))
    torch.save({"state_dict": {f"module.{key}": value for key, value in model.state_dict().items()}}, tmp_path / "a.pt")
    torch.load(tmp_path / "a.pt")
    parameters = dict(model.named_parameters())
    saved_contents.owner.set(saved_contents.Owner(tuple(parameters)))
    early, late = observed.of("load")
    assert (early["matched"], late["matched"]) == (None, 1.0)
    assert late["weights"] == digest.total(parameters)[0] != early["weights"]


def test_signatures_and_results_are_those_of_torch(observed: Observed, tmp_path: Path) -> None:
    assert list(inspect.signature(torch.save).parameters)[:2] == ["obj", "f"]
    assert "weights_only" in inspect.signature(torch.load).parameters
    assert torch.serialization.save is torch.save
    with pytest.raises(TypeError):
        torch.save({})  # type: ignore[call-arg]
    torch.save([1, 2], tmp_path / "list.pt")
    assert torch.load(tmp_path / "list.pt") == [1, 2]


def test_samples_that_are_saved_without_a_model_are_not_observed_forever(
    observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "MAX_UNRECOGNISED", 3)
    for _ in range(6):
        torch.save([1], io.BytesIO())
    assert len(observed.of("save")) == 4
    assert observed.merged("unknown")["what"] == "saves"


KILLED = """
import os, signal, sys
import torch
from _ccbed_watch.checkpoints import saves
model = torch.nn.Linear(4, 2)
torch.save(model.state_dict(), "first.pt")
saves.observe("during", lambda number: os.kill(os.getpid(), signal.SIGKILL))
torch.save(model.state_dict(), "second.pt")
"""


def test_a_file_that_is_torn_by_a_kill_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    watched = jobs.run(tmp_path, KILLED)
    assert watched.code == -9
    assert [Path(line["path"]).name for line in watched.of("save")] == ["first.pt", "second.pt"]
    assert {Path(line["path"]).name for line in watched.of("committed")} == {"first.pt"}
    assert len(watched.of("saved")) == 1


def test_a_tensor_that_is_pickled_for_a_message_is_neither_a_save_nor_a_load(observed: Observed) -> None:
    """As all_gather_object does, and FSDP1 for each state of the optimizer."""
    storage: Any = torch.ones(3)._typed_storage()  # type: ignore[no-untyped-call]
    rebuild, arguments = storage.__reduce__()
    assert rebuild(*arguments).tolist() == [1.0, 1.0, 1.0]
    assert not observed.of("save") and not observed.of("load")


def test_a_save_in_the_middle_of_an_accumulation_states_the_passes_before_it(
    observed: Observed, tmp_path: Path
) -> None:
    model, optimizer = model_and_optimizer()
    groups = steps.groups
    for save in range(3):
        torch.save(model.state_dict(), tmp_path / f"{save}.pt")
        groups.begin_backward()
    groups.begin_step(optimizer, sys._getframe())
    groups.end_step(optimizer, sys._getframe())
    torch.save(model.state_dict(), tmp_path / "3.pt")
    assert [line["passes"] for line in observed.of("save")] == [0, 1, 2, 0]


def test_a_checkpoint_of_many_files_is_reported_once_and_recorded_as_a_whole(
    observed: Observed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[tuple[int, str]] = []
    recorder = record.Recorder(str(observed.folder), lambda name, **value: reported.append((value["n"], value["path"])))
    monkeypatch.setattr(record, "_recorder", recorder)
    model, optimizer = model_and_optimizer()
    for n in range(2):
        for index in range(30):
            torch.save(model.state_dict(), tmp_path / f"{n}-{index}.pt")
        observed.step(optimizer, model)
    assert reported == [(n, str(tmp_path / f"{n}-0.pt")) for n in range(2)]
    committed = {line["path"] for line in observed.of("committed") if line.get("sha256")}
    assert committed == {str(tmp_path / f"{n}-{index}.pt") for n in range(2) for index in range(30)}
    monkeypatch.setattr(live_steps, "LATER_S", 0.0)
    (tmp_path / "other").mkdir()
    torch.save(model.state_dict(), tmp_path / "other" / "a.pt")
    torch.save(model.state_dict(), tmp_path / "other" / "b.pt")
    assert [n for n, _ in reported] == [0, 1, 2, 2], "where steps are not known, later saves are reported after a pause"


@pytest.mark.parametrize("name", ["{}.pt.tmp", "{}.pt"])
def test_of_many_saves_that_wait_each_further_one_looks_at_few(
    observed: Observed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    compared: list[saves.Save] = []
    is_ready = saves._is_ready

    def compare(save: saves.Save) -> bool:
        compared.append(save)
        return is_ready(save)

    monkeypatch.setattr(saves, "_is_ready", compare)
    monkeypatch.setattr(saves, "MANY", 8)
    (tmp_path / "latest").write_text("other.pt")
    model, optimizer = model_and_optimizer()
    for index in range(100):
        torch.save(model.state_dict(), tmp_path / name.format(index))
    assert observed.of("committed") == [] and len(compared) <= 100 * (8 + 2 * saves.PER_SAVE)
    observed.step(optimizer, model)
    assert len({line["path"] for line in observed.of("committed")}) == 100


def test_all_files_of_a_temporary_directory_are_committed_by_its_rename(observed: Observed, tmp_path: Path) -> None:
    model, _ = model_and_optimizer()
    (tmp_path / "tmp-5").mkdir()
    for index in range(300):
        torch.save(model.state_dict(), tmp_path / "tmp-5" / f"{index}.pt")
    os.rename(tmp_path / "tmp-5", tmp_path / "5")
    assert len({line["path"] for line in observed.of("committed") if line["how"] == "rename"}) == 300
