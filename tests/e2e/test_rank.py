"""Real ranks over gloo, forked from a warm process as an agent does it, without agent and orchestrator."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path

import pytest

from orchestrator.model import gang, trial
from orchestrator.rank.runtime import recorder

from .stage import ROOT, Played, Stage


@pytest.fixture(scope="module")
def twin(warm: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Stage(warm, tmp_path_factory.mktemp("twin")).play(params=SHORT)


#: 20 steps, a checkpoint after every fifth.
SHORT = {"epochs": 1}


def saved(stage: Stage, twin: Played, name: str) -> gang.Resume:
    """A checkpoint of the twin."""
    return Stage(stage._warm, twin.out.parent).resume(name)


def test_four_ranks_train_and_leave_complete_records(twin: Played) -> None:
    assert twin.codes == {0: 0, 1: 0, 2: 0, 3: 0}
    for value in twin.of("rank.start"):
        assert value["threads"] == 1
        assert value["preloaded"] == ["torch", "torch.distributed", "torch._dynamo"]
    for rank in range(4):
        assert [line["step"] for line in twin.steps(rank)] == list(range(1, 21))
        assert [value["mark"] for value in twin.of("rank.step") if value["rank"] == rank] == ["first"]
        rows = list(recorder.CHUNK.iter_unpack((twin.out / f"n{rank}/chunks-r{rank}.bin").read_bytes()))
        assert len(rows) == 20 * 6
        assert {row[3] for row in rows} == {(rank - 1) % 4}
        assert sum(row[5] for row in rows if row[0] == 1) == pytest.approx(971_048 * 6 / 4, abs=8)
        assert all(row[6] <= row[7] for row in rows)
        assert json.loads((twin.out / f"n{rank}/env-r{rank}.json").read_text())["RANK"] == str(rank)
    assert twin.of("progress")[-1]["step"] == 20
    assert twin.finished()[0]["metrics"]["accuracy"] > 0.5


def test_weights_differ_before_the_broadcast_and_agree_after_it(twin: Played) -> None:
    assert len({value["weights"] for value in twin.of("rank.restored")}) == 1


def test_replicas_are_identical_after_every_step(twin: Played) -> None:
    digests = [[line["digest"] for line in twin.steps(rank)] for rank in range(4)]
    assert digests[0] == digests[1] == digests[2] == digests[3]
    assert len(set(digests[0])) == 20


def test_the_same_seed_gives_the_same_bits(stage: Stage, twin: Played) -> None:
    second = stage.play(params=SHORT)
    for rank in range(4):
        assert second.losses(rank) == twin.losses(rank)
        assert second.finished()[rank]["digest"] == twin.finished()[rank]["digest"]


def test_another_seed_gives_others(stage: Stage, twin: Played) -> None:
    other = stage.play(params=SHORT, seed=8)
    assert other.finished()[0]["digest"]["model.0.weight"] != twin.finished()[0]["digest"]["model.0.weight"]


def test_killed_in_an_all_reduce_and_resumed_it_ends_with_the_same_bits(stage: Stage, twin: Played) -> None:
    hold = gang.Hold(id="f0", rank=2, step=13, phase="allreduce", limit_s=20.0)
    broken = stage.play(params=SHORT, holds=(hold,), more={"kill": 2})
    assert broken.codes[2] == -9
    assert all(code != 0 for code in broken.codes.values())
    assert {value["rank"] for value in broken.of("rank.inside")} == {0, 1, 3}
    assert stage.resume("e0-s10").step == 10

    resumed = stage.play(epoch=1, params=SHORT, resume=stage.resume("e0-s10"))
    assert resumed.codes == {0: 0, 1: 0, 2: 0, 3: 0}
    assert {value["step"] for value in resumed.of("rank.restored")} == {10}
    for rank in range(4):
        assert resumed.losses(rank) == {step: loss for step, loss in twin.losses(rank).items() if step > 10}
        assert resumed.finished()[rank]["digest"] == twin.finished()[rank]["digest"]
    parents = {value["name"]: value["parent"] for value in resumed.of("checkpoint.commit")}
    assert parents == {"e1-s15": "e0-s10", "e1-s20": "e1-s15"}


@pytest.mark.parametrize("lost", ["rng", "optimizer"])
def test_state_that_is_not_restored_shows(stage: Stage, twin: Played, lost: str) -> None:
    damaged = {"training": "train-dp", "params": SHORT, "lost": lost}
    resumed = stage.play(epoch=1, workload="damaged-training", params=damaged, resume=saved(stage, twin, "e0-s10"))
    assert resumed.codes == {0: 0, 1: 0, 2: 0, 3: 0}
    assert resumed.losses(1)[12] != twin.losses(1)[12]


def test_resumed_after_the_last_step_there_is_nothing_to_do_and_all_is_equal(stage: Stage, twin: Played) -> None:
    resumed = stage.play(epoch=1, params=SHORT, resume=saved(stage, twin, "e0-s20"))
    for rank in range(4):
        assert resumed.finished()[rank]["digest"] == twin.finished()[rank]["digest"]
        assert resumed.finished()[rank]["loss"] == twin.finished()[rank]["loss"]
    assert resumed.finished()[0]["loss_mean"] == twin.finished()[0]["loss_mean"]


#: A training has no phase of a collective that is measured, and none of the saves and loads of scripts.
PASSED = tuple(phase for phase in trial.PHASES if phase not in ("collective", *trial.SAVE_PHASES))


def test_every_rank_passes_every_phase(stage: Stage) -> None:
    life = ("rendezvous", "init", "restore", "shutdown")
    holds = tuple(gang.Hold(id=phase, rank=99, step=0 if phase in life else 10, phase=phase) for phase in PASSED)
    played = stage.play(world=2, params=SHORT, holds=holds)
    for rank in range(2):
        assert {value["hold"] for value in played.of("rank.inside") if value["rank"] == rank} == set(PASSED)


@pytest.mark.parametrize("phase", ["rendezvous", "restore", "checkpoint", "optimizer", "shutdown"])
def test_a_held_rank_that_is_released_goes_on(stage: Stage, phase: str) -> None:
    step = 10 if phase in ("checkpoint", "optimizer") else 0
    hold = gang.Hold(id="f0", rank=0, step=step, phase=phase)
    played = stage.play(world=2, params=SHORT, holds=(hold,), more={"release": {"0": ["f0"]}})
    assert played.codes == {0: 0, 1: 0}
    assert len(played.of("rank.held")) == len(played.of("rank.released")) == 1


@pytest.mark.parametrize(("world", "algorithm"), [(1, "ring"), (3, "ring"), (3, "library")])
def test_the_result_does_not_depend_on_how_the_batch_is_shared(stage: Stage, world: int, algorithm: str) -> None:
    params = {"epochs": 1, "batch": 50, "noise": 0.0, "algorithm": algorithm}
    alone = Stage(stage._warm, stage.directory / "alone").play(world=1, params=params)
    shared = stage.play(world=world, params=params)
    assert shared.finished()[0]["loss_mean"] == pytest.approx(alone.finished()[0]["loss_mean"], rel=1e-3)


def test_more_ranks_than_samples_still_train(stage: Stage, tmp_path: Path) -> None:
    """Batches of two, of the first twenty digits."""
    for file in (ROOT / "orchestrator/data/digits").glob("*-ubyte"):
        content, end = file.read_bytes(), 16 + 20 * 28 * 28 if "images" in file.name else 8 + 20
        (tmp_path / file.name).write_bytes(content[:4] + (20).to_bytes(4, "big") + content[8:end])
    params = {"epochs": 1, "batch": 2, "checkpoint_every": 1000, "digest_every": 0}
    played = stage.play(world=3, params=params, data=str(tmp_path))
    assert played.codes == {0: 0, 1: 0, 2: 0}


@pytest.mark.parametrize(("workload", "reason"), [("train-dp", ""), ("train-fsdp", "rank 0: ")])
def test_a_disk_that_is_full_loses_the_checkpoints_and_not_the_training(
    stage: Stage, workload: str, reason: str
) -> None:
    params = {**SHORT, "checkpoint_retry_s": 0.3}
    played = stage.play(world=2, workload=workload, params=params, more={"rlimit": 1_000_000})
    assert played.codes == {0: 0, 1: 0}
    lost = played.of("checkpoint.failed")
    assert [value["name"] for value in lost] == ["e0-s5", "e0-s10", "e0-s15", "e0-s20"]
    assert {value["reason"] for value in lost} == {f"{reason}File too large"}
    assert lost[0]["attempts"] > 1 and [value["attempts"] for value in lost[1:]] == [1, 1, 1]
    assert sorted(path.name for path in stage.checkpoints.iterdir()) == ["fence.json"]


@pytest.mark.parametrize("workload", ["train-dp", "train-fsdp"])
def test_a_share_that_is_away_for_a_moment_loses_nothing(stage: Stage, workload: str) -> None:
    away, back = stage.directory / "away", []

    def take_away() -> None:
        while not stage.has_event("checkpoint.commit"):
            time.sleep(0.002)
        stage.checkpoints.rename(away)
        while not stage.has_event("progress") or stage.last_step(0) < 10:
            time.sleep(0.002)
        time.sleep(0.3)
        back.append(time.monotonic())  # a rank may commit before this thread continues after the rename
        away.rename(stage.checkpoints)

    thread = threading.Thread(target=take_away)
    thread.start()
    params = {**SHORT, "step_min_ms": 300, "checkpoint_retry_s": 30}
    played = stage.play(world=2, workload=workload, params=params)
    thread.join()
    assert played.codes == {0: 0, 1: 0}
    assert played.of("checkpoint.failed") == []
    commits = [event for event in played.events if event["f"] == "checkpoint.commit"]
    assert [event["value"]["name"] for event in commits] == ["e0-s5", "e0-s10", "e0-s15", "e0-s20"]
    assert commits[1]["at"]["mono"] > back[0], "the second was tried until the share was back"


def test_an_old_epoch_commits_nothing(stage: Stage) -> None:
    played = stage.play(world=2, params={**SHORT, "step_min_ms": 500}, overtaken_by=1)
    assert played.codes == {0: 1, 1: 1}
    assert played.of("checkpoint.refused") == [{"rank": 0, "name": "e0-s5", "fence": 1}]
    assert played.of("rank.error") == []
    assert sorted(path.name for path in stage.checkpoints.iterdir()) == ["fence.json"]


def test_a_checkpoint_with_other_bytes_than_chosen_is_not_loaded(stage: Stage) -> None:
    stage.play(world=2, params=SHORT)
    chosen = stage.resume("e0-s10")
    with open(chosen.path, "r+b") as file:
        file.seek(1000)
        file.write(b"\xff\xff\xff")
    played = stage.play(world=2, epoch=1, params=SHORT, resume=chosen)
    assert played.codes == {0: 1, 1: 1}
    messages = [value["message"] for value in played.of("rank.error") if value["kind"] == "checkpoint"]
    assert messages and all(
        "SHA-256" in message for message in messages
    )  # a rank that is late may miss its peer instead


def test_a_damaged_data_file_is_named(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"nonsense")
    played = stage.play(world=2, params=SHORT, data=str(tmp_path))
    assert played.codes == {0: 1, 1: 1}
    messages = [value["message"] for value in played.of("rank.error") if value["kind"] == "data"]
    assert messages and all(
        "train-images-idx3-ubyte" in message for message in messages
    )  # a rank that is late may miss its peer instead
