"""What an image is built from: bases, wheels, and the mark of what went in."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound

from orchestrator.model import requirements
from orchestrator.model.errors import InfrastructureError, UsageError
from orchestrator.providers.node_images import bases, image_build


def engine(*names: str) -> Any:
    """An engine that has these images, and reaches no registry."""

    def get(name: str) -> Any:
        if name not in names:
            raise ImageNotFound(name)
        return SimpleNamespace(id=f"sha256:{name}")

    def pull(*_: str) -> None:
        raise APIError("no such host")

    return SimpleNamespace(images=SimpleNamespace(get=get, pull=pull))


def silent(_: str) -> None:
    """Nobody listens."""


def os_release(folder: Path, text: str) -> Path:
    (folder / "os-release").write_text(text)
    return folder / "os-release"


def no_mirror() -> Iterator[str]:
    return iter(())


def test_a_base_that_is_there_is_not_pulled() -> None:
    assert bases.find(engine("mine:1"), "mine:1", silent) == "mine:1"
    assert bases.find(engine(bases.STOCK), None, silent) == bases.STOCK


def test_a_base_that_cannot_be_had_is_told_with_the_way_out() -> None:
    with pytest.raises(InfrastructureError, match="cannot be pulled: no such host") as raised:
        bases.find(engine(), "mine:1", silent)
    assert "--base" in raised.value.hint


def test_a_base_that_no_image_can_have_as_its_name_is_a_wrong_option() -> None:
    client = engine()

    def get(name: str) -> Any:
        raise APIError("Bad Request", response=SimpleNamespace(status_code=400), explanation="invalid reference format")

    client.images.get = get
    with pytest.raises(UsageError, match=r"--base: invalid reference format \(got a b\)"):
        bases.find(client, "a b", silent)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: debootstrap mounts /proc in what it makes")
def test_a_base_that_cannot_be_made_leaves_nothing_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "debootstrap"
    program.parent.mkdir()
    mount = 'for target; do case $target in */root) mkdir -p "$target/proc"; mount -t proc proc "$target/proc" ;; esac; done'
    program.write_text(f"#!/bin/sh\n{mount}\necho 'E: no mirror responds'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(bases, "local_release", lambda *_: bases.Release(suite="bookworm"))
    with pytest.raises(InfrastructureError, match="debootstrap failed while the base was made: E: no mirror responds"):
        bases.find(engine(), None, silent)
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin"]


def test_debian_makes_bookworm_from_its_own_mirror(tmp_path: Path) -> None:
    file = os_release(tmp_path, 'ID=debian\nVERSION_CODENAME="trixie"\n')
    result = bases.local_release(file, lambda: iter(["http://mirror/debian"]))
    assert result == bases.Release(suite="bookworm", mirror="http://mirror/debian")


def test_ubuntu_makes_what_it_is_with_universe_for_venv(tmp_path: Path) -> None:
    result = bases.local_release(os_release(tmp_path, "ID=ubuntu\nVERSION_CODENAME=noble\n"), no_mirror)
    assert result == bases.Release(suite="noble", components="main,universe")


@pytest.mark.parametrize("text", ["ID=fedora\n", ""])
def test_elsewhere_no_base_is_made(tmp_path: Path, text: str) -> None:
    assert bases.local_release(os_release(tmp_path, text), no_mirror) is None


def wheel(folder: Path, requires: str) -> Path:
    file = folder / "torch-2.13.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("torch-2.13.0.dist-info/METADATA", f"Name: torch\nRequires-Dist: {requires}\n\nText.\n")
    return file


def test_a_wheel_for_cuda_is_told_by_what_it_requires(tmp_path: Path) -> None:
    assert not image_build.needs_cuda(wheel(tmp_path, "networkx"))
    assert image_build.needs_cuda(wheel(tmp_path, 'nvidia-nccl-cu13==2.28.9; platform_system == "Linux"'))


def test_wheels_are_for_the_python_of_the_base() -> None:
    assert image_build.target("3.11", "3.11", "x86_64") == ["--only-binary=:all:"]
    other = image_build.target("3.11", "3.13", "aarch64")
    assert "--python-version=3.11" in other
    assert "--platform=manylinux2014_aarch64" in other


def test_a_wheelhouse_without_torch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no wheel of torch in it"):
        image_build.check_wheels(tmp_path)


def test_wheels_that_are_there_are_not_downloaded_again(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("torch==2.13.0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_build, "_fill", lambda folder, *_: wheel(folder, "networkx"))
        first = image_build.collect_wheels(tmp_path, requirements, "3.11", {}, silent)
        patch.setattr(image_build, "_fill", None)
        assert image_build.collect_wheels(tmp_path, requirements, "3.11", {}, silent) == first
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == [first.name]


def test_cuda_needs_a_base_that_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--kind cuda needs --base"):
        image_build.build(engine(), image_build.Recipe(folder=tmp_path, cache=tmp_path, kind="cuda"), {}, silent)


def test_an_image_that_is_made_of_the_same_is_not_built_again(tmp_path: Path) -> None:
    (tmp_path / "cpu.Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "requirements.txt").write_text("torch==2.13.0\n")
    recipe = image_build.Recipe(folder=tmp_path, cache=tmp_path, base="mine:1")
    made_of = image_build.inputs(recipe, "sha256:mine:1")
    remote = SimpleNamespace(id="sha256:1", labels={image_build.INPUTS: made_of}, attrs={"Size": 5})
    client = engine("mine:1")
    client.containers = SimpleNamespace(run=lambda name, *_, **__: b"")
    get = client.images.get
    client.images.get = lambda name: remote if name == requirements.CPU_IMAGE else get(name)
    assert not image_build.build(client, recipe, {}, silent).fresh
    (tmp_path / "cpu.Dockerfile").write_text("FROM scratch\nUSER 1\n")
    assert image_build.inputs(recipe, "sha256:mine:1") != made_of
    assert image_build.inputs(recipe, "sha256:mine:2") != image_build.inputs(recipe, "sha256:mine:1")
