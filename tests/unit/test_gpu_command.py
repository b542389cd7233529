"""The command of `make test-gpu`: what it says where it cannot run, its parts, and the packages that it takes from wheels."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ..gpu import __main__ as command

ROOT = Path(__file__).parents[2]


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(command.REHEARSAL, raising=False)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_is_one_line_and_exit_3() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", "run"], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (3, "", 1), done.stderr
    assert done.stderr.startswith("test-gpu: no NVIDIA GPU on this machine (nvidia-smi -L: ")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'NVIDIA-SMI has failed'; exit 9", "NVIDIA-SMI has failed"),
        ("echo 'Failed to initialize NVML' >&2; exit 9", "Failed to initialize NVML"),
        ("exit 0", "it lists none"),
    ],
)
def test_the_reason_is_that_of_the_drivers_tool(script: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    with pytest.raises(command.Unusable, match=reason):
        command.require_gpu()


def test_a_gpu_that_torch_cannot_use_is_named_with_its_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(command.REHEARSAL, raising=False)
    monkeypatch.setitem(sys.modules, "torch", type("Torch", (), {"__version__": "2.3.1+cu121"}))
    with pytest.raises(command.Unusable, match=r"has torch 2\.3\.1\+cu121: 2\.4 or newer is needed"):
        command.require_torch()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(command.Unusable, match=r"has no torch .*make test-gpu PYTHON=PATH"):
        command.require_torch()


def test_parts_are_the_files_of_tests_and_an_unknown_one_lists_them() -> None:
    assert command._files("nccl, digests") == ["tests/gpu/test_nccl.py", "tests/gpu/test_digests.py"]
    assert len(command._files("")) == len(command.parts()) == len(list((ROOT / "tests/gpu").glob("test_*.py")))
    with pytest.raises(command.Unusable, match=r"unknown ncl; the parts are checkpoints,"):
        command._files("ncl")


def test_tests_for_which_no_time_was_left_are_named_and_no_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    tests = [{"test": "a", "outcome": "passed"}, {"test": "b", "outcome": "not rehearsed"}]
    report.write_text(json.dumps({"tests": tests}))
    assert command.conclude(report, 0) == 0
    report.write_text(json.dumps({"tests": [*tests, {"test": "c", "outcome": "not run"}]}))
    assert command.conclude(report, 0) == 1
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "  not rehearsed: b", "  not run: c", f"test-gpu: 1 not rehearsed, 1 not run, 1 passed; {report}",
    ]  # fmt: skip


def test_what_is_installed_are_the_dependencies_and_the_tools_of_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tools = set(command.requirements()) - set(project["dependencies"])
    assert {command._name(line) for line in tools} == set(command.TOOLS)
    assert not any("torch" in command._name(line) for line in command.requirements())


def test_missing_packages_without_wheels_are_named_with_the_command_that_gathers_them(tmp_path: Path) -> None:
    assert list(command._missing(["pytest>=8.2", "no-such-package>=1"])) == ["no-such-package>=1"]
    with pytest.raises(command.Unusable, match=r"lacks no-such-package; where .* make wheels PYTHON_VERSION=3\."):
        command._install(Path(sys.executable), tmp_path / "wheels", ["no-such-package>=1"])


def test_wheels_above_the_limit_are_refused_with_the_largest(tmp_path: Path) -> None:
    for name, mib in (("a.whl", 1), ("b.whl", command.MOST_MIB)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(mib << 20)
    with pytest.raises(command.Unusable, match=r"46\.0 MiB in .*, the limit is 45; the largest is b\.whl"):
        command._weigh(tmp_path)
    (tmp_path / "b.whl").unlink()
    assert command._weigh(tmp_path) == 0


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(command.Unusable, match=r"PYTHON_VERSION: must be like 3\.12 \(got '3\.12\.1'\)"):
        command.gather("3.12.1")
