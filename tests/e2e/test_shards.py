"""Checkpoints of a file per rank: whole, fenced, checked before they are loaded, and read by any number of ranks."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import format_utils

from orchestrator.model import gang
from orchestrator.rank.checkpoint import tensor_digest
from orchestrator.rank.reference_models import classifier

from .stage import Played, Stage

FSDP: dict[str, Any] = {"workload": "train-fsdp", "params": {"epochs": 1}}


@pytest.fixture(scope="module")
def twin(warm: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Stage, Played]:
    stage = Stage(warm, tmp_path_factory.mktemp("twin"))
    return stage, stage.play(**FSDP)


def names(stage: Stage) -> list[str]:
    return sorted(path.name for path in stage.checkpoints.iterdir())


def spoil(file: Path) -> None:
    with open(file, "r+b") as content:
        content.seek(1000)
        content.write(b"\xff\xff\xff")


def test_every_rank_writes_a_file_and_the_newest_are_kept(twin: tuple[Stage, Played]) -> None:
    stage, played = twin
    kept = [f"e0-s{step}" for step in (10, 15, 20)]
    assert names(stage) == sorted([*kept, *(f"{name}.json" for name in kept), "fence.json"])
    files = {".metadata", *(f"__{rank}_0.distcp" for rank in range(4))}
    assert {path.name for path in (stage.checkpoints / "e0-s20").iterdir()} == files
    facts = json.loads((stage.checkpoints / "e0-s20.json").read_text())
    assert facts["bytes"] == sum(path.stat().st_size for path in (stage.checkpoints / "e0-s20").iterdir())
    commit = played.of("checkpoint.commit")[-1]
    assert (commit["name"], commit["sha256"], commit["bytes"], commit["files"]) == (
        "e0-s20",
        facts["sha256"],
        facts["bytes"],
        5,
    )
    assert all(size < facts["bytes"] / 3 for size in (facts["files"][name]["bytes"] for name in files))


def test_the_sum_of_a_checkpoint_is_what_sha256sum_gives(twin: tuple[Stage, Played]) -> None:
    stage, _ = twin
    line = "LC_ALL=C sha256sum .metadata *.distcp | sha256sum"
    listing = subprocess.run(["bash", "-c", line], cwd=stage.checkpoints / "e0-s20", capture_output=True, text=True)
    assert listing.stdout.split()[0] == stage.resume("e0-s20").sha256


def test_the_librarys_own_tools_read_it_and_one_rank_resumes_what_four_wrote(
    twin: tuple[Stage, Played], tmp_path: Path
) -> None:
    """Reference: the checkpoint converted by torch itself. One rank holds all parameters, so its hash is of all of them."""
    stage, _ = twin
    format_utils.dcp_to_torch_save(stage.checkpoints / "e0-s20", tmp_path / "whole.pt")
    weights = torch.load(tmp_path / "whole.pt", weights_only=True)["model"]
    model = classifier.build()
    model.load_state_dict(weights)
    alone = stage.play(world=1, epoch=1, resume=stage.resume("e0-s20"), **FSDP)
    assert alone.codes == {0: 0}
    assert alone.of("rank.restored")[0]["weights"] == tensor_digest.model(model)


@pytest.mark.parametrize("world", [2, 3, 5])
def test_another_number_of_ranks_trains_on(stage: Stage, world: int) -> None:
    """Sums are made in another order then, so that the loss is near; without noise, which every rank draws for itself."""
    params = {"epochs": 1, "noise": 0.0}
    first = stage.play(workload="train-fsdp", params=params)
    played = stage.play(world=world, epoch=1, workload="train-fsdp", params=params, resume=stage.resume("e0-s10"))
    assert set(played.codes.values()) == {0}
    ends = [stage.finished()[0]["loss_mean"] for stage in (first, played)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-3)
    assert json.loads((stage.checkpoints / "e1-s20.json").read_text())["world"] == world


@pytest.mark.parametrize("victim", [0, 2])
def test_killed_while_it_is_written_it_is_never_committed_and_the_one_before_gives_the_same_bits(
    stage: Stage, twin: tuple[Stage, Played], victim: int
) -> None:
    hold = gang.Hold(id="f0", rank=victim, step=15, phase="checkpoint", limit_s=20.0)
    broken = stage.play(**FSDP, holds=(hold,), more={"kill": victim})
    assert broken.codes[victim] == -9 and 0 not in broken.codes.values()
    assert ".e0-s15.tmp" in names(stage) and "e0-s15.json" not in names(stage)
    assert f"__{victim}_0.distcp" in {path.name for path in (stage.checkpoints / ".e0-s15.tmp").iterdir()}

    resumed = stage.play(epoch=1, resume=stage.resume("e0-s10"), **FSDP)
    for rank in range(4):
        assert resumed.finished()[rank]["digest"] == twin[1].finished()[rank]["digest"]
    assert not [name for name in names(stage) if name.endswith(".tmp")], "gone with the next commit"


@pytest.mark.parametrize("lost", ["rng", "optimizer"])
def test_state_that_is_not_restored_shows(stage: Stage, twin: tuple[Stage, Played], lost: str) -> None:
    damaged = {"training": FSDP["workload"], "params": FSDP["params"], "lost": lost}
    resumed = stage.play(epoch=1, workload="damaged-training", params=damaged, resume=twin[0].resume("e0-s10"))
    assert set(resumed.codes.values()) == {0}
    assert resumed.losses(1)[12] != twin[1].losses(1)[12]


@pytest.fixture(scope="module")
def pair(warm: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of two ranks."""
    stage = Stage(warm, tmp_path_factory.mktemp("pair"))
    stage.play(world=2, **FSDP)
    return stage.checkpoints


@pytest.mark.parametrize("file", [".metadata", "__1_0.distcp"])
def test_a_file_with_other_bytes_than_chosen_is_not_loaded(stage: Stage, pair: Path, file: str) -> None:
    shutil.copytree(pair, stage.checkpoints, dirs_exist_ok=True)
    chosen = stage.resume("e0-s10")
    spoil(Path(chosen.path) / file)
    played = stage.play(world=2, epoch=1, resume=chosen, **FSDP)
    assert played.codes == {0: 1, 1: 1}
    messages = [value["message"] for value in played.of("rank.error") if value["kind"] == "checkpoint"]
    assert messages and all(f"{file}: SHA-256" in message for message in messages)


def test_a_manifest_of_other_files_than_chosen_is_not_taken(stage: Stage, pair: Path) -> None:
    shutil.copytree(pair, stage.checkpoints, dirs_exist_ok=True)
    chosen = stage.resume("e0-s10")
    (stage.checkpoints / "e0-s10.json").write_bytes((stage.checkpoints / "e0-s15.json").read_bytes())
    played = stage.play(world=2, epoch=1, resume=chosen, **FSDP)
    assert played.codes == {0: 1, 1: 1}
    errors = [value["kind"] for value in played.of("rank.error")]
    assert "checkpoint" in errors, errors  # a rank that is late may miss its peer instead


def test_an_old_epoch_commits_nothing(stage: Stage) -> None:
    played = stage.play(world=2, workload="train-fsdp", params={"epochs": 1, "step_min_ms": 500}, overtaken_by=1)
    assert played.codes == {0: 1, 1: 1}
    assert played.of("checkpoint.refused") == [{"rank": 0, "name": "e0-s5", "fence": 1}]
    assert played.of("rank.error") == []
    assert names(stage) == ["fence.json"]


def test_what_an_old_epoch_cannot_write_any_more_is_refused_and_no_failure(stage: Stage) -> None:
    """The next epoch sweeps away what this one was writing; that says nothing of the disk."""
    params = {"epochs": 1, "step_min_ms": 500}
    played = stage.play(world=2, workload="train-fsdp", params=params, overtaken_by=1, more={"rlimit": 1_000_000})
    assert played.codes == {0: 1, 1: 1}
    assert played.of("checkpoint.failed") == []
    assert [value["name"] for value in played.of("checkpoint.refused")] == ["e0-s5"]
