"""The audit of checkpoints: what is whole is never called damaged, and each kind of damage is found."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from orchestrator.jobs.checkpoints import audit as audits
from orchestrator.model.errors import UsageError

from . import layouts


def outcome(root: Path, **choice: object) -> str:
    audit = audits.audit(root, **choice)  # type: ignore[arg-type]
    outcomes = {checkpoint.outcome for checkpoint in audit.checkpoints}
    if "damaged" in outcomes or audit.pointers:
        return "damaged"
    return "unknown" if "unknown" in outcomes else "whole"


def texts(root: Path, **choice: object) -> str:
    audit = audits.audit(root, **choice)  # type: ignore[arg-type]
    return "\n".join(
        [text for checkpoint in audit.checkpoints for text in (*checkpoint.problems, *checkpoint.doubts)]
        + [*audit.pointers]
    )


def parts(root: Path) -> list[Path]:
    return [
        path
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name != "config.json"
    ]


@pytest.fixture(scope="module", params=sorted(layouts.LAYOUTS))
def layout(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("layout") / "out"
    layouts.LAYOUTS[request.param](root)
    return root


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        root = tmp_path / "out"
        layouts.LAYOUTS[name](root)
        return root

    return make


def test_what_is_whole_is_whole(layout: Path) -> None:
    audit = audits.audit(layout)
    assert [
        (checkpoint.outcome, checkpoint.problems, checkpoint.doubts)
        for checkpoint in audit.checkpoints
        if checkpoint.outcome != "whole"
    ] == []
    assert not audit.pointers
    assert audit.newest_whole is audit.newest
    assert outcome(layout, whole=False) == "whole"


def test_a_file_that_is_cut_is_damaged_wherever_it_is_cut(layout: Path, tmp_path: Path) -> None:
    missed = []
    for path in parts(layout):
        if path.name == "latest":
            continue
        content = path.read_bytes()
        for end in (0, 5, len(content) // 3, len(content) - 1):
            copy = shutil.copytree(layout, tmp_path / "copy", symlinks=True)
            (copy / path.relative_to(layout)).write_bytes(content[:end])
            if outcome(copy) != "damaged":
                missed.append((path.name, end))
            shutil.rmtree(copy)
    assert not missed


def test_a_file_whose_second_half_never_reached_the_disk_is_damaged(layout: Path, tmp_path: Path) -> None:
    missed = []
    for path in parts(layout):
        content = path.read_bytes()
        page = len(content) // 2 // 4096 * 4096
        if len(content) - page < 4096 or path.suffix == ".json":
            continue
        copy = shutil.copytree(layout, tmp_path / "copy", symlinks=True)
        (copy / path.relative_to(layout)).write_bytes(content[:page] + bytes(len(content) - page))
        if outcome(copy) != "damaged":
            missed.append(path.name)
        shutil.rmtree(copy)
    assert not missed


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [
        ("hugging face", "checkpoint-20/optimizer.pt", "optimizer.pt is missing, which all others beside it have"),
        ("hugging face", "checkpoint-20/trainer_state.json", "trainer_state.json is missing"),
        ("hugging face", "checkpoint-20/model.safetensors", "it has no file of weights"),
        ("hugging face", "checkpoint-20/rng_state_1.pth", "it has files of 1 ranks, checkpoint-10 of 2"),
        ("hugging face", "checkpoint-20/rng_state_0.pth", "begins at rank 1"),
        ("accelerate", "step_20/optimizer.bin", "optimizer.bin is missing"),
        ("deepspeed", "global_step20/zero_pp_rank_1_mp_rank_00_optim_states.pt", "partition of rank 1 of 2 is missing"),
        ("deepspeed", "global_step20/mp_rank_00_model_states.pt", "no file of model states"),
        ("a file of each rank", "step-20/rank1.pt", "rank*.pt is missing for rank 1"),
        ("sharded weights", "model-00002-of-00002.safetensors", "1 of the 2 files model-*.safetensors are missing"),
    ],
)  # fmt: skip
def test_a_part_that_is_missing_is_named(made: Callable[[str], Path], name: str, file: str, expected: str) -> None:
    root = made(name)
    (root / file).unlink()
    assert expected in texts(root)
    assert outcome(root) != "whole"


@pytest.mark.parametrize(
    ("name", "newer", "older", "file", "expected"),
    [
        ("a file of each rank", "step-20", "step-10", "rank1.pt", "parts of different steps"),
        (
            "deepspeed",
            "global_step20",
            "global_step10",
            "mp_rank_00_model_states.pt",
            "its directory is of step 20, its files say 10",
        ),
        ("deepspeed", "global_step20", "global_step10", "zero_pp_rank_0_mp_rank_00_optim_states.pt", "says updates 10"),
        (
            "hugging face",
            "checkpoint-20",
            "checkpoint-10",
            "optimizer.pt",
            "its optimizer has made 10 updates, as that of checkpoint-10",
        ),
        (
            "hugging face",
            "checkpoint-20",
            "checkpoint-10",
            "model.safetensors",
            "is byte for byte that of checkpoint-10",
        ),
        ("hugging face", "checkpoint-20", "checkpoint-10", "scheduler.pt", "scheduler.pt has made as many steps"),
        (
            "hugging face",
            "checkpoint-20",
            "checkpoint-10",
            "trainer_state.json",
            "its directory is of step 20, its files say 10",
        ),
    ],
)
def test_a_part_of_another_step_is_named(
    made: Callable[[str], Path], name: str, newer: str, older: str, file: str, expected: str
) -> None:
    root = made(name)
    shutil.copy(root / older / file, root / newer / file)
    assert expected in texts(root)
    assert outcome(root) != "whole"


def test_two_files_of_different_steps_are_damage(made: Callable[[str], Path]) -> None:
    root = made("two files")
    shutil.copy(root / "optimizer_10.pt", root / "optimizer_20.pt")
    assert "parts of different steps: model_20.pt says step 20, optimizer_20.pt says step 10" in texts(root)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("global_step30", "latest names global_step30, which is not there"),
        ("", "latest is empty"),
        ("a b", "latest names no checkpoint"),
    ],
)
def test_a_pointer_that_names_nothing_is_damage(made: Callable[[str], Path], text: str, expected: str) -> None:
    root = made("deepspeed")
    (root / "latest").write_text(text)
    assert expected in texts(root)


def test_a_pointer_that_names_a_damaged_checkpoint_says_so(made: Callable[[str], Path]) -> None:
    root = made("deepspeed")
    (root / "global_step20" / "mp_rank_00_model_states.pt").write_bytes(b"")
    audit = audits.audit(root)
    assert audit.pointers == ["latest names global_step20, which is damaged"]
    assert audit.newest_whole is not None
    assert audit.newest_whole.name == "global_step10"


def test_a_link_without_a_target_is_damage(made: Callable[[str], Path]) -> None:
    root = made("lightning")
    (root / "step=20.ckpt").unlink()
    assert "last.ckpt names step=20.ckpt, which is not there" in texts(root)


def test_the_number_of_ranks_must_fit_where_it_is_asked(made: Callable[[str], Path]) -> None:
    root = made("deepspeed")
    assert outcome(root, world=2) == "whole"
    newest = audits.audit(root, world=4).newest
    assert (newest.outcome, newest.misfit) == ("misfit", "it is of 2 ranks, 4 would load it")
    assert not newest.problems


def test_a_world_that_is_known_to_have_shrunk_is_no_doubt(made: Callable[[str], Path]) -> None:
    root = made("hugging face")
    (root / "checkpoint-20" / "rng_state_1.pth").unlink()
    shutil.rmtree(root / "checkpoint-10")
    assert outcome(root, world=1) == "whole"


def test_what_a_save_left_that_did_not_end_is_no_checkpoint(made: Callable[[str], Path]) -> None:
    root = made("snapshots")
    (root / "snapshot_30.pt.tmp").write_bytes(b"PK\x03\x04")
    (root / "tmp-checkpoint-30").mkdir()
    audit = audits.audit(root)
    assert outcome(root) == "whole"
    assert audit.unfinished == ["snapshot_30.pt.tmp", "tmp-checkpoint-30"]


def test_a_run_whose_directory_is_called_temporary_is_read(made: Callable[[str], Path], tmp_path: Path) -> None:
    made("snapshots").rename(tmp_path / "tmp_run")
    (tmp_path / "tmp_run" / "snapshot_20.pt").write_bytes(b"")
    assert outcome(tmp_path) == "damaged"
    assert not audits.audit(tmp_path).unfinished


def test_what_a_save_left_beside_checkpoints_is_no_damage(made: Callable[[str], Path]) -> None:
    root = made("snapshots")
    (root / "tmp_a8f").mkdir()
    (root / "tmp_a8f" / "model.pt").write_bytes(b"PK\x03\x04")
    assert outcome(root) == "whole"
    assert audits.audit(root).unfinished == ["tmp_a8f"]


def test_a_lone_directory_of_a_save_that_did_not_end_is_no_damaged_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "tmp_a8f").mkdir()
    (tmp_path / "tmp_a8f" / "__0_0.distcp").write_bytes(b"cut")
    with pytest.raises(UsageError, match="tmp_a8f: what a save left that did not end, and nothing else"):
        audits.audit(tmp_path)
    assert audits.audit(tmp_path / "tmp_a8f").newest.outcome == "damaged", "where it is named"
    (tmp_path / "tmp_b").mkdir()
    torch.save({"model": {"weight": torch.ones(3)}}, tmp_path / "tmp_b" / "model.pt")
    audit = audits.audit(tmp_path)
    assert [checkpoint.outcome for checkpoint in audit.checkpoints] == ["whole"], "the directory of a job"
    assert audit.unfinished == ["tmp_a8f"]


def test_a_file_of_another_form_is_unknown_not_damaged(made: Callable[[str], Path]) -> None:
    root = made("snapshots")
    (root / "model_30.bin").write_bytes(b"something else")
    assert outcome(root) == "unknown"


def test_checksums_that_the_writer_left_out_are_no_damage(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"step": torch.tensor(3), "w": torch.arange(100.0)}, tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    audit = audits.audit(tmp_path)
    assert outcome(tmp_path) == "whole"
    assert audit.newest.step == 3


def test_one_file_can_be_named(made: Callable[[str], Path]) -> None:
    assert [checkpoint.name for checkpoint in audits.audit(made("snapshots") / "snapshot_10.pt").checkpoints] == [
        "snapshot_10.pt"
    ]


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_without_a_checkpoint_there_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError):
        audits.audit(tmp_path / name)


class Bomb:
    """Unpickling it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_nothing_of_a_pickle_is_executed(tmp_path: Path) -> None:
    made = str(tmp_path / "made").encode()
    torch.save({"step": 3, "bomb": Bomb(tmp_path / "made")}, tmp_path / "a.pt")
    (tmp_path / "state.pkl").write_bytes(b"\x80\x02cos\nmkdir\nX" + len(made).to_bytes(4, "little") + made + b"\x85R.")
    assert outcome(tmp_path) == "whole"
    assert not (tmp_path / "made").exists()


def test_a_hostile_pickle_is_damage_not_a_traceback(tmp_path: Path) -> None:
    for number, content in enumerate(
        (
            b"\x80\x04h\x05.",
            b"\x80\x04(((.",
            b"\x80\x04]N.",
            b"\x80\x04" + b"(" * 10_000 + b"t" * 10_000 + b".",
            b"\x80",
        )
    ):
        (tmp_path / "state.pkl").write_bytes(content)
        assert outcome(tmp_path) in ("damaged", "whole"), number


def test_a_shard_of_the_hub_that_lacks_a_tensor_is_named(made: Callable[[str], Path]) -> None:
    root = made("sharded weights")
    index = root / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["b.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(document))
    assert "model-00001-of-00002.safetensors lacks b.weight" in texts(root)


def test_a_world_that_is_given_settles_the_doubt_about_a_missing_file(made: Callable[[str], Path]) -> None:
    root = made("hugging face")
    (root / "checkpoint-20" / "rng_state_1.pth").unlink()
    newest = audits.audit(root).newest
    assert newest.doubts == ["it has files of 1 ranks, checkpoint-10 of 2: if that is right, give --world"]
    assert audits.audit(root, world=1).newest.outcome == "whole"
