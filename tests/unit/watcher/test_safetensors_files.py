"""safetensors: the functions of its torch flavour are observed, here those of a stand-in with the same signatures."""

from __future__ import annotations

import io
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.rank.watcher import digest
from orchestrator.rank.watcher.checkpoints import torch_saves

from .observed import Observed, observed

__all__ = ["observed"]


def save_file(tensors: dict[str, Any], filename: Any, metadata: dict[str, str] | None = None) -> None:
    """Write the tensors one after the other."""
    Path(filename).write_bytes(b"".join(bytes(tensor.view(torch.uint8).tolist()) for tensor in tensors.values()))


def load_file(filename: Any, device: str = "cpu") -> dict[str, Any]:
    return {"weight": torch.frombuffer(bytearray(Path(filename).read_bytes()), dtype=torch.float32)}


@pytest.fixture
def safetensors(observed: Observed) -> types.SimpleNamespace:
    module = types.SimpleNamespace(save_file=save_file, load_file=load_file)
    torch_saves.install_safetensors(module)
    return module


def test_a_load_has_the_file_and_the_weights_of_the_save(
    observed: Observed, safetensors: types.SimpleNamespace, tmp_path: Path
) -> None:
    tensors = {"weight": torch.rand(4)}
    safetensors.save_file(tensors, filename=tmp_path / "model.safetensors")
    assert torch.equal(safetensors.load_file(str(tmp_path / "model.safetensors"))["weight"], tensors["weight"])
    saved, load = observed.merged("saved"), observed.merged("load")
    assert saved["weights"] == load["weights"] == digest.total(tensors)[0]
    assert observed.merged("committed")["sha256"] == load["sha256"]
    assert load["path"] == str(tmp_path / "model.safetensors")


def test_a_save_or_load_that_raises_is_recorded_as_such(
    observed: Observed, safetensors: types.SimpleNamespace, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        safetensors.save_file({"weight": torch.ones(1)}, tmp_path / "missing" / "a")
    with pytest.raises(FileNotFoundError):
        safetensors.load_file(tmp_path / "a")
    assert observed.of("committed") == observed.of("saved") == []
    assert observed.merged("load")["error"].startswith("FileNotFoundError")


def test_a_file_that_is_opened_for_single_tensors_is_a_load_without_weights(observed: Observed, tmp_path: Path) -> None:
    package = types.SimpleNamespace(safe_open=lambda filename, framework: io.FileIO(filename))
    torch_saves.install_safe_open(package)
    (tmp_path / "a").write_bytes(b"a")
    with package.safe_open(tmp_path / "a", framework="pt") as source:
        assert source.read() == b"a"
    assert (observed.merged("load")["weights"], observed.merged("load")["bytes"]) == (None, 1)
