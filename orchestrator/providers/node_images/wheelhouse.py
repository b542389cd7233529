"""The wheels of an image, collected on this machine, so that the build needs no index."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...model.errors import InfrastructureError, UsageError
from .bases import Say

_DOWNLOAD_S = 1800
_HINT = "name a directory of wheels with --wheelhouse, or pip's index of the CPU build in TORCH_INDEX"


def check(folder: Path) -> Path:
    """Check a wheelhouse of the user. Raises UsageError if it has no wheel of torch."""
    if not any(folder.glob("torch-*.whl")):
        raise UsageError(
            f"--wheelhouse {folder}: no wheel of torch in it",
            hint=f"python3 -m pip download --dest {folder} torch==… numpy",
        )
    return folder


def collect(cache: Path, requirements: Path, python: str, environment: Mapping[str, str], say: Say) -> Path:
    """Wheels of the requirements for CPython ``python`` (``3.11``), downloaded once into ``cache``."""
    index = environment.get("TORCH_INDEX", "")
    key = hashlib.sha256(f"{requirements.read_text()}\0{python}\0{platform.machine()}\0{index}".encode())
    folder = cache / "wheels" / key.hexdigest()[:12]
    if folder.is_dir():
        return folder
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    fresh.mkdir(parents=True)
    try:
        _fill(fresh, requirements, python, index, say)
        os.rename(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _fill(folder: Path, requirements: Path, python: str, index: str, say: Say) -> None:
    torch = next(line for line in requirements.read_text().splitlines() if line.startswith("torch=="))
    say(f"downloading {torch} for CPUs (about 200 MB)")
    tags = target(python, f"{sys.version_info.major}.{sys.version_info.minor}", platform.machine())
    _pip(["--no-deps", *tags, *(["--index-url", index] if index else []), "--dest", str(folder), torch])
    torch_file = next(folder.glob("torch-*.whl"))
    if needs_cuda(torch_file):
        raise InfrastructureError(
            f"the index offers only the CUDA build of {torch}, several GB that no CPU node uses", hint=_HINT
        )
    _pip([*tags, "--find-links", str(folder), "--dest", str(folder), "-r", str(requirements)])


def target(python: str, running: str, machine: str) -> Sequence[str]:
    """Options of pip, so that it selects wheels for the base's Python if this interpreter is another version."""
    if python == running:
        return ["--only-binary=:all:"]
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in (28, 27, 26, 24, 17)]
    return ["--only-binary=:all:", f"--python-version={python}", *platforms, f"--platform=manylinux2014_{machine}"]


def needs_cuda(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        name = next(member for member in archive.namelist() if member.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    head = text.split("\n\n", 1)[0]
    return any(line.startswith(("Requires-Dist: nvidia", "Requires-Dist: cuda")) for line in head.splitlines())


def _pip(arguments: Sequence[str]) -> None:
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"the download of wheels did not end within {_DOWNLOAD_S} s", hint=_HINT) from error
    if done.returncode:
        messages = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
        raise InfrastructureError(
            f"the wheels of torch cannot be downloaded: {(messages or ['pip failed'])[-1]}", hint=_HINT
        )
