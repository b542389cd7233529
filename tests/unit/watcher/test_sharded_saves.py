"""Distributed checkpoints: a save of two ranks is recognised at every world size, and counts by its ``.metadata``."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # FSDP2 imports it late: here once, and not in every forked rank
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict as state_dicts
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from orchestrator.rank.watcher import digest
from orchestrator.rank.watcher.checkpoints import saves

from . import jobs
from .observed import Observed, install_in_test, observed

__all__ = ["observed"]

dcp: Any = importlib.import_module("torch.distributed.checkpoint")
Job = tuple[torch.nn.Module, torch.optim.Optimizer]


def fork_ranks(folder: Path, world: int, body: Callable[[], None]) -> list[dict[str, Any]]:
    """Run ``body`` in ``world`` forked ranks on gloo, each with its own record; their lines in the order of ranks."""
    folder.mkdir()
    pids = [pid for rank in range(world) if (pid := _fork_rank(folder, rank, world, body))]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0] * world
    return jobs.read(folder)


def _fork_rank(folder: Path, rank: int, world: int, body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(rank))
            torch.set_num_threads(1)
            saves.hashes.__init__()  # type: ignore[misc]  # a thread does not survive a fork
            install_in_test(folder, patch)
            dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
            body()
            _wait_for_all(folder, rank, world)
            saves.finish_process()
        os._exit(0)
    except BaseException:  # noqa: BLE001 a child of the test
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def _wait_for_all(folder: Path, rank: int, world: int) -> None:
    """Without connections: of a barrier a rank may leave first, and end those in which the others still wait."""
    (folder / f"done-{rank}").touch()
    until = time.monotonic() + 600
    while len(list(folder.glob("done-*"))) < world:
        assert time.monotonic() < until, "another rank has failed"
        time.sleep(0.01)


def sharded_job(seed: int = 0) -> Job:
    """A model that FSDP2 shards unevenly, and its optimizer after one step."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    return model, optimizer


def state(job: Job) -> dict[str, Any]:
    return dict(zip(("model", "optim"), state_dicts.get_state_dict(*job), strict=True))


def total(lines: list[dict[str, Any]], category: str = "") -> str:
    """The sum over the ranks of the digest of the weights, or of a category of the contents."""
    values = [line["contents"][category] if category else line["weights"] for line in lines]
    return digest.render(sum(int(value, 16) for value in values))


def of(lines: list[dict[str, Any]], kind: str, number: int) -> list[dict[str, Any]]:
    """The lines of one kind and id."""
    return [line for line in lines if line["k"] == kind and line["id"] == number]


def save_three_times(folder: Path) -> None:
    """Save, then save the same again without waiting and change the weights, then save these."""
    group = dist.new_group()
    model, _ = job = sharded_job()
    dcp.save(state(job), checkpoint_id=folder / "ckpt")
    future = dcp.async_save(state(job), checkpoint_id=folder / "async", process_group=group)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    future.result()
    dcp.save(state(job), checkpoint_id=folder / "zero")


def test_saves_of_two_ranks_are_recognised_at_every_world_size(tmp_path: Path) -> None:
    lines = fork_ranks(tmp_path / "save", 2, lambda: save_three_times(tmp_path))
    saved = [of(lines, "saved", number) for number in (1, 2, 3)]
    assert [len(pair) for pair in saved] == [2, 2, 2]
    assert total(saved[0]) == total(saved[1]) != total(saved[2])
    for world in (1, 3):
        loaded = fork_ranks(
            tmp_path / f"load{world}", world, lambda: dcp.load(state(sharded_job(1)), checkpoint_id=tmp_path / "ckpt")
        )
        loads = of(loaded, "load", 1)
        assert total(loads) == total(saved[0])
        assert total(loads, "optimizer.exp_avg") == total(saved[0], "optimizer.exp_avg")
        hashes = {line["sha256"] for line in of(lines, "committed", 1) if "sha256" in line}
        assert {line["sha256"] for line in loads} == hashes and len(hashes) == 1
    for number in (1, 2, 3):
        assert {line["how"] for line in of(lines, "committed", number)} == {".metadata"}
    assert all(
        save["called"] < save_end["staged"] for save, save_end in zip(of(lines, "save", 2), saved[1], strict=True)
    )


class _FullDisk(FileSystemWriter):
    def finish(self, *args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")


def test_a_save_whose_metadata_cannot_be_written_is_not_committed(observed: Observed, tmp_path: Path) -> None:
    with pytest.raises(CheckpointException, match="No space left"):
        dcp.save({"weight": torch.ones(3)}, storage_writer=_FullDisk(tmp_path / "ckpt"), no_dist=True)
    assert len(observed.of("save")) == 1
    assert observed.of("saved") == observed.of("committed") == []


def test_a_save_of_many_tensors_is_in_its_middle_once(tmp_path: Path, observed: Observed) -> None:
    reached: list[int] = []
    saves.observe("during", reached.append)
    for step in (1, 2):
        dcp.save(
            {f"w{number}": torch.ones(3) * step for number in range(4)},
            checkpoint_id=tmp_path / str(step),
            no_dist=True,
        )
    assert len(reached) == 2
    assert len(set(reached)) == 2


def test_an_asynchronous_save_is_in_its_middle_once_in_the_thread_that_writes(
    tmp_path: Path, observed: Observed
) -> None:
    reached: list[tuple[int, str]] = []
    saves.observe("during", lambda number: reached.append((number, threading.current_thread().name)))
    for step in (1, 2):
        weights = {f"w{number}": torch.ones(3) * step for number in range(4)}
        dcp.async_save(weights, checkpoint_id=tmp_path / str(step), no_dist=True).result()
    assert [number for number, _ in reached] == [line["id"] for line in observed.of("save")]
    assert all(name.startswith("AsyncCheckpointExecutor") for _, name in reached)
    torch.save({"weight": torch.ones(3)}, tmp_path / "other.pt")
    assert len(reached) == 3, "the save of another thread is not that of this one"


def test_a_load_without_metadata_is_recorded_with_its_error(observed: Observed, tmp_path: Path) -> None:
    with pytest.raises(CheckpointException):
        dcp.load({"weight": torch.ones(3)}, checkpoint_id=tmp_path / "missing", no_dist=True)
    assert observed.merged("load")["error"].startswith("CheckpointException")
    assert "parts" not in observed.merged("load"), "there is no such directory"


def test_a_load_that_fails_is_recorded_with_the_files_that_were_there(observed: Observed, tmp_path: Path) -> None:
    dcp.save({"weight": torch.ones(3)}, checkpoint_id=tmp_path / "cut", no_dist=True)
    (tmp_path / "cut" / ".metadata").unlink()
    with pytest.raises(CheckpointException):
        dcp.load({"weight": torch.ones(3)}, checkpoint_id=tmp_path / "cut", no_dist=True)
    assert list(observed.merged("load")["parts"]) == ["__0_0.distcp"]


class _Application:
    """A ``Stateful``: distributed checkpoints call its ``state_dict`` themselves."""

    def __init__(self) -> None:
        self.weight, self.calls = torch.ones(3), 0

    def state_dict(self) -> dict[str, Any]:
        self.calls += 1
        return {"weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight = state["weight"]


def test_the_state_of_an_application_is_made_once(observed: Observed, tmp_path: Path) -> None:
    application = _Application()
    dcp.save({"app": application}, checkpoint_id=tmp_path / "ckpt", no_dist=True)
    assert application.calls == 1
    assert observed.merged("saved")["weights"] == digest.total({"weight": application.weight})[0]
