"""Builds the image of nodes on an engine; a label with the hash of its inputs avoids a second build."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import docker
from docker.errors import APIError, ContainerError, DockerException, ImageNotFound
from requests.exceptions import RequestException

from ...model.errors import InfrastructureError, UsageError
from ...model.frozen import dataclass
from ...model.requirements import CPU_IMAGE, CUDA_IMAGE, IMAGE_PYTHON, version_text
from . import bases
from .bases import Say

INPUTS = "ccbed.image.inputs"
STAGE = "ccbed.image.stage"
_BUILD_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An image to build. ``folder`` holds the Dockerfiles; ``wheels``: the user's own; ``cache``: of downloaded wheels."""

    folder: Path
    cache: Path
    kind: Literal["cpu", "cuda"] = "cpu"
    tag: str | None = None
    base: str | None = None
    wheels: Path | None = None

    @property
    def name(self) -> str:
        return self.tag or (CPU_IMAGE if self.kind == "cpu" else CUDA_IMAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image that exists; ``fresh``: this call built it."""

    name: str
    id: str
    base: str
    inputs: str
    fresh: bool
    bytes: int


def connect() -> Any:
    """This machine's engine, or the one of DOCKER_HOST. Raises InfrastructureError."""
    try:
        client = docker.from_env(timeout=_BUILD_S)
        client.ping()
    except (DockerException, RequestException) as error:
        where = os.environ.get("DOCKER_HOST", "/var/run/docker.sock")
        raise InfrastructureError(
            f"no container engine responds at {where}: {error}",
            hint="start it (sudo systemctl start docker; without systemd: sudo dockerd &) and check that you may use its"
            " socket (group docker), or set DOCKER_HOST to another engine",
        ) from error
    return client


def build(client: Any, recipe: Recipe, environment: Mapping[str, str], say: Say) -> Built:
    """Build an image unless it is up to date. Raises UsageError or InfrastructureError; then the old image stays.

    An image that does not run is built again with its base: the engine's layers may lack files after a power failure.
    """
    _check(recipe)
    base = bases.find(client, recipe.base, say)
    input_hash = inputs(recipe, client.images.get(base).id)
    present = _present_image(client, recipe.name)
    if present is not None and present.labels.get(INPUTS) == input_hash:
        problem = _problem(client, recipe.name)
        if not problem:
            return _built(present, recipe.name, base, input_hash, fresh=False)
        say(f"{recipe.name} does not run ({problem}): it is built again")
        for name in (recipe.name, *([] if recipe.base else [base])):
            client.images.remove(name, force=True)
        base = bases.find(client, recipe.base, say)
        input_hash = inputs(recipe, client.images.get(base).id)
    wheels = recipe.wheels
    if wheels is None and recipe.kind == "cpu":
        python = _python(client, base)
        wheels = collect_wheels(recipe.cache, recipe.folder / "requirements.txt", python, environment, say)
    say(f"building {recipe.name} on {base}")
    args = {"BASE": base, "TORCH_INDEX": environment.get("TORCH_INDEX", ""), **_proxies(environment)}
    try:
        with tempfile.TemporaryFile(prefix="ccbed-context-") as file:
            _context(file, recipe, wheels)
            _send(client, file, recipe, args, input_hash, say)
    finally:
        _remove_stages(client)
    return _built(client.images.get(recipe.name), recipe.name, base, input_hash, fresh=True)


def listed(client: Any) -> Iterable[Built]:
    """Images of this engine that ccbed built."""
    for image in client.images.list(filters={"label": INPUTS}):
        for name in image.tags:
            yield _built(image, name, "", image.labels[INPUTS], fresh=False)


def _check(recipe: Recipe) -> None:
    if recipe.kind == "cuda" and not recipe.base:
        raise UsageError(
            "--kind cuda needs --base: a stock CUDA PyTorch image that fits your driver",
            hint="ccbed image build --kind cuda --base pytorch/pytorch:<tag>",
        )
    if recipe.wheels is not None:
        check_wheels(recipe.wheels)


def _dockerfile(recipe: Recipe) -> Path:
    return recipe.folder / f"{recipe.kind}.Dockerfile"


def inputs(recipe: Recipe, base: str) -> str:
    """A hash of everything that determines the image. Downloaded wheels follow from the requirements."""
    parts = [_dockerfile(recipe).read_text(), (recipe.folder / "requirements.txt").read_text(), base]
    if recipe.wheels is not None:
        parts += [f"{path.name} {path.stat().st_size}" for path in sorted(recipe.wheels.glob("*.whl"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _present_image(client: Any, name: str) -> Any:
    try:
        return client.images.get(name)
    except ImageNotFound:
        return None


def _problem(client: Any, name: str) -> str:
    """Return why an image cannot run ranks; empty if it can."""
    try:
        _run(client, name, "import torch; torch.ones(1)")
    except ContainerError as error:
        return (error.stderr or b"").decode(errors="replace").strip().rpartition("\n")[
            2
        ] or f"exit code {error.exit_status}"
    except DockerException as error:
        return str(error)
    return ""


def _run(client: Any, name: str, code: str) -> bytes:
    command = ["python3", "-c", code]
    out: bytes = client.containers.run(name, command, entrypoint="", network_mode="none", remove=True)
    return out


def _python(client: Any, base: str) -> str:
    try:
        out = _run(client, base, "import sys; print('%d.%d' % sys.version_info[:2])")
    except DockerException as error:
        raise InfrastructureError(
            f"base image {base}: python3 does not run in it: {error}",
            hint=f"a base needs Python {version_text(IMAGE_PYTHON)} or newer",
        ) from error
    version: str = out.decode().strip()
    if tuple(int(part) for part in version.split(".")) < IMAGE_PYTHON:
        raise InfrastructureError(
            f"base image {base}: its Python is {version}, and {version_text(IMAGE_PYTHON)} or newer is needed",
            hint="name another base with --base",
        )
    return version


def _proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """This machine's proxies as arguments of the build, which no image keeps. Those of ~/.docker/config.json the SDK adds."""
    names = ("http_proxy", "https_proxy", "no_proxy")
    return {form: environment[form] for name in names for form in (name, name.upper()) if environment.get(form)}


def _context(file: BinaryIO, recipe: Recipe, wheels: Path | None) -> None:
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(_dockerfile(recipe), arcname="Dockerfile")
        archive.add(recipe.folder / "requirements.txt", arcname="requirements.txt")
        for path in sorted(wheels.glob("*.whl")) if wheels else ():
            archive.add(path, arcname=f"wheelhouse/{path.name}")
    file.seek(0)


def _send(client: Any, file: BinaryIO, recipe: Recipe, args: Mapping[str, str], inputs: str, say: Say) -> None:
    """Build in the host's network: an engine may have no other, and an index is reached as from this machine."""
    output: list[str] = []
    try:
        lines = client.api.build(
            fileobj=file, custom_context=True, tag=recipe.name, buildargs=dict(args), labels={INPUTS: inputs},
            rm=True, forcerm=True, network_mode="host", decode=True, timeout=_BUILD_S,
        )  # fmt: skip
        for line in lines:
            text = str(line.get("stream", "")).strip()
            output += [text] if text else []
            if text.startswith("Step "):
                say(text[:100])
            if "error" in line:
                raise InfrastructureError(*_failure(recipe, str(line["error"]), output), hint=_NEXT)
    except (APIError, RequestException) as error:
        raise InfrastructureError(f"{recipe.name}: the engine rejected the build: {error}", hint=_NEXT) from error


_NEXT = "docker info and docker system df show the state of the engine; then retry: finished steps are cached"


def _failure(recipe: Recipe, error: str, output: list[str]) -> list[str]:
    reasons = [line for line in output if "ERROR" in line or "rror:" in line][-3:] or output[-3:]
    code = error.rsplit("returned a non-zero code:", 1)[-1].strip() if "returned a non-zero code" in error else ""
    return [f"{recipe.name}: {f'a step failed with code {code}' if code else error}", *reasons]


def _remove_stages(client: Any) -> None:
    """Remove the build stage of the wheels: it is as large as the image, and not needed any more."""
    for image in client.images.list(filters={"label": STAGE, "dangling": True}):
        try:
            client.images.remove(image.id)
        except APIError:
            continue


def _built(image: Any, name: str, base: str, inputs: str, *, fresh: bool) -> Built:
    return Built(name=name, id=image.id, base=base, inputs=inputs, fresh=fresh, bytes=image.attrs["Size"])


_DOWNLOAD_S = 1800
_HINT = "name a directory of wheels with --wheelhouse, or pip's index of the CPU build in TORCH_INDEX"


def check_wheels(folder: Path) -> Path:
    """Check a wheelhouse of the user. Raises UsageError if it has no wheel of torch."""
    if not any(folder.glob("torch-*.whl")):
        raise UsageError(
            f"--wheelhouse {folder}: no wheel of torch in it",
            hint=f"python3 -m pip download --dest {folder} torch==… numpy",
        )
    return folder


def collect_wheels(cache: Path, requirements: Path, python: str, environment: Mapping[str, str], say: Say) -> Path:
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
