"""`ccbed image build` on a real engine: built once, small in rights, and clear where it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.providers.node_images import image_build

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
#: Of its own, and removed with the test.
TAG = "ccbed/test-of-image-build:1"


def ccbed(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "orchestrator.cli", "image", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, capture_output=True, text=True, env=env, cwd=cwd, timeout=600, check=False)


def test_a_second_build_has_nothing_to_do(image: str) -> None:
    done = ccbed("build", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fresh"] is False
    assert json.loads(done.stdout)["name"] == image


def test_an_image_that_does_not_run_is_built_again(engine: Any, image: str, tmp_path: Path) -> None:
    """A power failure leaves layers without some of their files, and the label as it was."""
    (tmp_path / "cuda.Dockerfile").write_text("ARG BASE\nFROM $BASE\n")
    (tmp_path / "requirements.txt").touch()
    recipe = image_build.Recipe(folder=tmp_path, cache=tmp_path, kind="cuda", base=image, tag=TAG)
    output: list[str] = []
    remove_torch = "import importlib.util, os; os.remove(importlib.util.find_spec('torch').origin)"
    try:
        assert image_build.build(engine, recipe, {}, output.append).fresh
        assert not image_build.build(engine, recipe, {}, output.append).fresh
        container = engine.containers.create(TAG, ["python3", "-c", remove_torch], user="0", network_mode="none")
        container.start()
        assert container.wait()["StatusCode"] == 0
        container.commit(*TAG.split(":"))
        container.remove()
        assert image_build.build(engine, recipe, {}, output.append).fresh
        assert any(line.startswith(f"{TAG} does not run (AttributeError") and "torch" in line for line in output), (
            output
        )
        assert not image_build.build(engine, recipe, {}, output.append).fresh
    finally:
        engine.images.remove(TAG, force=True)


def test_it_is_listed(image: str) -> None:
    assert image in [row["name"] for row in json.loads(ccbed("list", "--json").stdout)]


def test_a_node_in_it_has_torch_and_no_rights(engine: Any, image: str) -> None:
    code = "import os, torch.distributed as d; print(os.getuid() > 0, d.is_gloo_available())"
    output = engine.containers.run(
        image, ["python3", "-c", code], remove=True, network_mode="none", read_only=True, cap_drop=["ALL"]
    )
    assert output.decode().split() == ["True", "True"]


def test_neither_wheels_nor_caches_nor_another_stage_are_left(engine: Any, image: str) -> None:
    script = r"find / -xdev \( -name 'torch-*.whl' -o -path '*/.cache/pip' \) -print 2>/dev/null; true"
    output = engine.containers.run(image, ["sh", "-c", script], remove=True, network_mode="none")
    assert output.decode() == ""
    assert engine.images.list(filters={"label": "ccbed.image.stage", "dangling": True}) == []


def test_a_base_that_is_nowhere_is_said_with_the_way_out(engine: Any) -> None:
    done = ccbed("build", "--base", "registry.invalid/nothing:1", "--tag", TAG)
    assert done.returncode == 4
    assert "base image registry.invalid/nothing:1: not on this engine, and it cannot be pulled" in done.stderr
    assert "--base" in done.stderr


def test_wheels_that_do_not_fit_fail_in_one_message_and_leave_no_image(engine: Any, image: str, tmp_path: Path) -> None:
    """``image`` first: its base is there then."""
    (tmp_path / "torch-2.13.0-cp39-cp39-linux_x86_64.whl").write_bytes(b"no wheel of this Python")
    done = ccbed("build", "--wheelhouse", str(tmp_path), "--tag", TAG)
    assert done.returncode == 4
    assert "No matching distribution found for torch==2.13.0" in done.stderr
    assert "Traceback" not in done.stderr
    assert engine.images.list(TAG) == []


def test_no_engine_is_said_with_how_to_start_one(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "orchestrator.cli", "image", "build"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "DOCKER_HOST": f"unix://{tmp_path}/nothing.sock"}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=ROOT, timeout=900, check=False)
    assert done.returncode == 4
    assert "no container engine responds at unix:///" in done.stderr
    assert "dockerd" in done.stderr
