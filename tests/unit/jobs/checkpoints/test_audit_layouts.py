"""Directories that jobs make, and that are whole: none of them is called damaged, and a file that is cut in them still is."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.jobs.checkpoints import audit as audits

from . import layouts
from .test_audit import outcome, texts

dcp: Any = importlib.import_module("torch.distributed.checkpoint")
WEIGHTS = torch.arange(2048.0)


def save(path: Path, **values: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model": WEIGHTS, **values}, path)


def best_and_last(root: Path) -> None:
    save(root / "best.pt", epoch=3)
    save(root / "last.pt", epoch=9)


def losses(root: Path) -> None:
    for epoch in (1, 2):
        save(root / f"epoch={epoch}-val_loss=0.25.ckpt", epoch=epoch, global_step=epoch * 10)


def versions(root: Path) -> None:
    for step in (10, 20):
        save(root / f"epoch=0-step={step}-v1.ckpt", global_step=step)


def accelerate_by_number(root: Path) -> None:
    """The examples of diffusers: the random states count the steps of an epoch, the job all."""
    for step in (500, 1000):
        folder = root / f"checkpoint-{step}"
        save(folder / "random_states_0.pkl", step=3)
        save(folder / "pytorch_model.bin", weights=WEIGHTS + step)
        save(folder / "custom_checkpoint_0.pkl", step=step)


def trainer_on_deepspeed(root: Path) -> None:
    """ZeRO-3: the weights lie in the directory of DeepSpeed only."""
    folder = root / "checkpoint-20"
    save(folder / "global_step20" / "zero_pp_rank_0_mp_rank_00_model_states.pt", global_steps=20, dp_world_size=1)
    save(folder / "global_step20" / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
    (folder / "latest").write_text("global_step20")
    (folder / "trainer_state.json").write_text('{"global_step": 20}')


def state_of_a_run(root: Path) -> None:
    """What Trainer.save_state() writes beside the checkpoints."""
    layouts.hugging_face(root)
    (root / "trainer_state.json").write_text('{"global_step": 20}')


def another_index(root: Path) -> None:
    save(root / "model.pt")
    (root / "documents.index.json").write_text('{"a": 1}')


def latest_is_a_step(root: Path) -> None:
    layouts.snapshots(root)
    (root / "latest").write_text("20")


def latest_is_of_another_host(root: Path) -> None:
    layouts.snapshots(root)
    (root / "last_checkpoint").write_text("/scratch/of/the/job/snapshot_20.pt")


def counted_epochs(root: Path) -> None:
    save(root / "epoch_3-of-10.pt", epoch=3)


def keys_that_are_sets(root: Path) -> None:
    root.mkdir()
    torch.save({frozenset([1, 2]): WEIGHTS}, root / "a.pt", pickle_protocol=4)


def quantized_in_the_older_form(root: Path) -> None:
    root.mkdir()
    packed = torch.quantize_per_tensor(torch.ones(64, 64), 0.1, 0, torch.quint8)
    torch.save(packed, root / "a.pt", _use_new_zipfile_serialization=False)


def scripted(root: Path) -> None:
    root.mkdir()
    torch.jit.save(
        torch.jit.trace(  # type: ignore[no-untyped-call]
            torch.nn.Linear(64, 64), torch.ones(64)
        ),
        root / "a.pt",
    )


WHOLE: Mapping[str, Callable[[Path], None]] = {
    made.__name__: made
    for made in (
        best_and_last, losses, versions, accelerate_by_number, trainer_on_deepspeed, state_of_a_run, another_index, latest_is_a_step,
        latest_is_of_another_host, counted_epochs, keys_that_are_sets, quantized_in_the_older_form, scripted,
    )
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(WHOLE))
def test_what_a_job_makes_is_whole_and_damaged_once_it_is_cut(tmp_path: Path, name: str) -> None:
    root = tmp_path / "out"
    WHOLE[name](root)
    assert texts(root) == ""
    files = [path for path in root.rglob("*") if path.suffix in (".pt", ".ckpt", ".bin", ".distcp")]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    assert outcome(root) == "damaged"


def test_an_archive_of_another_program_is_unknown(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("m/data/weights/weight_0", b"x" * 100)
    assert outcome(tmp_path) == "unknown"
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("m/data/0", b"x" * 100)
    assert "its record data.pkl is missing" in texts(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_pieces_in_the_form_of_safetensors_are_whole_until_they_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def content(tensors: Mapping[str, torch.Tensor], **_metadata: object) -> bytes:
        layouts.safetensors(tmp_path / "piece", tensors)
        return (tmp_path / "piece").read_bytes()

    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(save=content))
    root = tmp_path / "out" / "step_3"
    form = dcp.filesystem.SerializationFormat.SAFETENSORS
    dcp.save({"a": WEIGHTS}, storage_writer=dcp.FileSystemWriter(root, serialization_format=form), no_dist=True)
    assert (root / "__0_0.distcp").read_bytes()[8:9] == b"{"
    assert texts(root) == ""
    os.truncate(root / "__0_0.distcp", 4096)
    assert outcome(root) == "damaged"


@pytest.mark.filterwarnings("ignore")
def test_metadata_of_one_rank_is_unknown(tmp_path: Path) -> None:
    dcp.save({"a": WEIGHTS}, checkpoint_id=tmp_path / "step_3", no_dist=True)
    metadata = tmp_path / "step_3" / ".metadata"
    shutil.move(metadata, metadata.with_name("__0.metadata"))
    assert outcome(tmp_path) == "unknown"


def test_a_pointer_to_a_step_that_is_damaged_says_so(tmp_path: Path) -> None:
    root = tmp_path / "out"
    latest_is_a_step(root)
    (root / "snapshot_20.pt").write_bytes(b"")
    assert "latest names 20, which is damaged" in texts(root)
    (root / "latest").write_text("30")
    assert "latest names 30, which is not there" in texts(root)


def test_a_trainer_without_weights_is_still_damaged(tmp_path: Path) -> None:
    layouts.hugging_face(tmp_path / "out")
    (tmp_path / "out" / "checkpoint-20" / "model.safetensors").unlink()
    assert "it has no file of weights" in texts(tmp_path / "out")


def test_parts_of_one_checkpoint_are_compared_whatever_their_roles_are_called(tmp_path: Path) -> None:
    for name, step in (("generator_20.pt", 20), ("optim_20.pt", 10)):
        save(tmp_path / name, step=step)
    assert len(audits.audit(tmp_path).checkpoints) == 1
    assert "parts of different steps" in texts(tmp_path)


def test_an_index_without_shards_is_still_damaged(tmp_path: Path) -> None:
    layouts.sharded_weights(tmp_path / "out")
    index = tmp_path / "out" / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}}))
    assert "it has no weight_map" in texts(tmp_path / "out")
