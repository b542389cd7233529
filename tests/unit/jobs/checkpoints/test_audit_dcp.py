"""The audit of directories of torch.distributed.checkpoint."""

from __future__ import annotations

import importlib
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.jobs.checkpoints import audit as audits

from . import layouts

dcp: Any = importlib.import_module("torch.distributed.checkpoint")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in layouts.STEPS:
            state = {
                "model": layouts.weights(step),
                "optim": layouts.optimizer(step),
                "step": step,
                "rng": torch.get_rng_state(),
            }
            dcp.save(state, checkpoint_id=tmp_path / str(step), no_dist=True)
    return tmp_path


def problems(root: Path) -> list[str]:
    return [
        text for checkpoint in audits.audit(root).checkpoints for text in (*checkpoint.problems, *checkpoint.doubts)
    ]


def test_what_is_whole_is_whole(root: Path) -> None:
    audit = audits.audit(root)
    assert [(checkpoint.outcome, checkpoint.step, checkpoint.updates) for checkpoint in audit.checkpoints] == [
        ("whole", 10, 10),
        ("whole", 20, 20),
    ]


def test_a_save_that_was_cut_before_its_metadata_is_named(root: Path) -> None:
    (root / "20" / ".metadata").unlink()
    assert problems(root) == [".metadata is missing beside 1 shards: the save was cut before its end"]


def test_a_shard_that_is_missing_or_cut_is_named(root: Path) -> None:
    shard = root / "20" / "__0_0.distcp"
    content = shard.read_bytes()
    shard.write_bytes(content[:-10])
    assert "__0_0.distcp is cut" in problems(root)[0]
    shard.unlink()
    assert "__0_0.distcp is missing" in problems(root)[0]


def test_a_piece_that_is_damaged_is_named_with_its_key(root: Path) -> None:
    shard = root / "20" / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    place = content.find(layouts.weights(20)["a.weight"].numpy().tobytes())
    assert place > 0
    content[place + 100] ^= 1
    shard.write_bytes(bytes(content))
    assert (
        "__0_0.distcp is damaged at model.a.weight: data/0 is damaged: its bytes do not match its checksum"
        in problems(root)[0]
    )


def test_metadata_that_is_cut_is_damage(root: Path) -> None:
    metadata = root / "20" / ".metadata"
    content = metadata.read_bytes()
    for end in range(0, len(content), max(1, len(content) // 20)):
        metadata.write_bytes(content[:end])
        assert problems(root), end


def test_a_shard_of_another_layout_is_named(root: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": {"a.weight": torch.ones(3)}}, checkpoint_id=root / "30", no_dist=True)
    shutil.copy(root / "30" / "__0_0.distcp", root / "20" / "__0_0.distcp")
    assert problems(root)


def test_the_state_of_the_optimizer_of_an_earlier_step_is_a_doubt(root: Path) -> None:
    shutil.copy(root / "10" / "__0_0.distcp", root / "20" / "__0_0.distcp")
    shutil.copy(root / "10" / ".metadata", root / "20" / ".metadata")
    assert "its optimizer has made 10 updates, as that of 10: it is of an earlier step, or was not used" in problems(
        root
    )


def test_a_link_to_the_newest_is_followed(root: Path) -> None:
    os.symlink("20", root / "latest")
    (root / "20" / ".metadata").unlink()
    assert audits.audit(root).pointers == ["latest names 20, which is damaged"]
