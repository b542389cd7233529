"""Directories of checkpoints in the forms of PyTorch and its frameworks, written with torch alone.

What each framework writes was read from real directories of transformers 5.24, accelerate 1.15, lightning 2.6 and deepspeed 0.19.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

STEPS = (10, 20)
WORLD = 2


def optimizer(step: int) -> dict[str, Any]:
    """The state of Adam after so many updates."""
    weight = torch.nn.Parameter(torch.full((8, 8), float(step)))
    adam = torch.optim.Adam([weight])
    weight.grad = torch.ones_like(weight)
    adam.step()
    state = adam.state_dict()
    state["state"][0]["step"] = torch.tensor(float(step))
    return state


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"a.weight": torch.arange(2048.0) + step, "a.bias": torch.ones(3) * step}


def safetensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    header, at = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(bytes(tensor.numpy().tobytes()) for tensor in tensors.values())
    )


def hugging_face(root: Path) -> None:
    for step in STEPS:
        folder = root / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        safetensors(folder / "model.safetensors", weights(step))
        torch.save(optimizer(step), folder / "optimizer.pt")
        torch.save({"_step_count": step + 1, "last_epoch": step}, folder / "scheduler.pt")
        for rank in range(WORLD):
            torch.save({"cpu": torch.full((64,), step + rank)}, folder / f"rng_state_{rank}.pth")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "epoch": 0.5}))
        (folder / "config.json").write_text("{}")


def accelerate(root: Path) -> None:
    for step in STEPS:
        folder = root / f"step_{step}"
        folder.mkdir(parents=True)
        safetensors(folder / "model.safetensors", weights(step))
        torch.save(optimizer(step), folder / "optimizer.bin")
        for rank in range(WORLD):
            torch.save(
                {"step": 3, "torch_manual_seed": torch.full((64,), step + rank)}, folder / f"random_states_{rank}.pkl"
            )


def deepspeed(root: Path) -> None:
    for step in STEPS:
        folder = root / f"global_step{step}"
        folder.mkdir(parents=True)
        states = {"module": weights(step), "global_steps": step, "dp_world_size": WORLD, "mp_world_size": 1}
        torch.save(states, folder / "mp_rank_00_model_states.pt")
        for rank in range(WORLD):
            held = {"optimizer_state_dict": {"base_optimizer_state": optimizer(step), "partition_count": [WORLD]}}
            torch.save(held, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (root / "latest").write_text(f"global_step{STEPS[-1]}")


def lightning(root: Path) -> None:
    root.mkdir()
    for step in STEPS:
        held = {
            "epoch": 0,
            "global_step": step,
            "state_dict": weights(step),
            "optimizer_states": [optimizer(step)],
            "loops": {},
        }
        torch.save(held, root / f"step={step}.ckpt")
    (root / "last.ckpt").symlink_to(f"step={STEPS[-1]}.ckpt")


def snapshots(root: Path) -> None:
    root.mkdir()
    for step in STEPS:
        torch.save({"model": weights(step), "opt": optimizer(step), "step": step}, root / f"snapshot_{step}.pt")


def legacy(root: Path) -> None:
    root.mkdir()
    for step in STEPS:
        held = {"model": weights(step), "opt": optimizer(step), "step": step}
        torch.save(held, root / f"snapshot_{step}.pt", _use_new_zipfile_serialization=False)


def rank_files(root: Path) -> None:
    for step in STEPS:
        folder = root / f"step-{step}"
        folder.mkdir(parents=True)
        for rank in range(3):
            torch.save({"model": weights(step), "opt": optimizer(step), "step": step}, folder / f"rank{rank}.pt")


def two_files(root: Path) -> None:
    root.mkdir()
    for step in STEPS:
        torch.save({"model": weights(step), "step": step}, root / f"model_{step}.pt")
        torch.save({"optimizer": optimizer(step), "step": step}, root / f"optimizer_{step}.pt")


def sharded_weights(root: Path) -> None:
    root.mkdir()
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    tensors = weights(1)
    safetensors(root / names[0], {"a.weight": tensors["a.weight"]})
    safetensors(root / names[1], {"a.bias": tensors["a.bias"]})
    index = {"metadata": {}, "weight_map": {"a.weight": names[0], "a.bias": names[1]}}
    (root / "model.safetensors.index.json").write_text(json.dumps(index))


LAYOUTS: Mapping[str, Callable[[Path], None]] = {
    "hugging face": hugging_face, "accelerate": accelerate, "deepspeed": deepspeed, "lightning": lightning, "snapshots": snapshots,
    "legacy": legacy, "a file of each rank": rank_files, "two files": two_files, "sharded weights": sharded_weights,
}  # fmt: skip
