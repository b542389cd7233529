"""Images of a registry that wants a login: `up` hands this user's login to the engine, and it is written nowhere else."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.bed import HostSpec
from orchestrator.prepare import playbook_runs
from orchestrator.providers import sites
from orchestrator.providers.docker import engines

from . import registry
from .conftest import ccbed
from .test_docker_bed import inventory, labelled

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(registry.lacking()), reason=registry.lacking())]


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """A registry with an image that the engine does not have. ``small``: another one, of no use as a node."""

    address: str
    image: str
    small: str
    engine: Any
    config: Path

    def log_in(self, password: str | None) -> None:
        """Write this user's login as `docker login` does; None: log out."""
        secret = base64.b64encode(f"{registry.USER}:{password}".encode()).decode()
        auths = {} if password is None else {self.address: {"auth": secret}}
        (self.config / "config.json").write_text(json.dumps({"auths": auths}))

    def forget(self, image: str) -> None:
        """Remove the image from the engine, if it is there."""
        if image in {name for present in self.engine.images.list() for name in present.tags}:
            self.engine.images.remove(image, force=True)

    def pull(self, image: str) -> None:
        engines.Engine(HostSpec(name="localhost"), sites.call_here).pull(image)


@pytest.fixture
def shelf(stocked: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    own = Shelf(
        address=stocked.address, image=stocked.image, small=stocked.small, engine=stocked.engine, config=tmp_path
    )
    yield own
    for image in (own.image, own.small):
        own.forget(image)


@pytest.fixture(scope="module")
def stocked(engine: Any, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    folder = tmp_path_factory.mktemp("registry")
    with registry.running(folder) as address:
        login = {"username": registry.USER, "password": registry.PASSWORD}
        small = _small(engine, folder, f"{address}/team/small:1")
        for source, name in ((image, f"{address}/team/torch:1"), (small, small)):
            repository, _, tag = name.rpartition(":")
            engine.images.get(source).tag(repository, tag)
            errors = [
                line["error"]
                for line in engine.api.push(repository, tag, auth_config=login, stream=True, decode=True)
                if "error" in line
            ]
            assert errors == []
            engine.images.remove(name)
        yield Shelf(address=address, image=f"{address}/team/torch:1", small=small, engine=engine, config=folder)


def _small(engine: Any, folder: Path, name: str) -> str:
    (folder / "small").mkdir()
    (folder / "small" / "Dockerfile").write_text("FROM scratch\nLABEL ccbed.test=registry\nCOPY Dockerfile /\n")
    engine.images.build(path=str(folder / "small"), tag=name)
    return name


def contents(directory: Path) -> Iterator[bytes]:
    """What the files hold. The node that is up replaces some of them meanwhile."""
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield (Path(folder) / name).read_bytes() if (Path(folder) / name).is_file() else b""


def test_up_pulls_with_the_login_of_this_user_and_writes_it_nowhere(shelf: Shelf, tmp_path: Path) -> None:
    shelf.log_in(registry.PASSWORD)
    state = tmp_path / "state" / "ccbed"
    code, output = ccbed(state, "up", str(inventory(tmp_path, shelf.image, "regtest", 1)))
    try:
        assert code == 0, output
        assert shelf.engine.containers.get("ccbed-regtest-n0").attrs["Config"]["Image"] == shelf.image
        written = b"".join(contents(state)) + output.encode()
        for secret in (registry.PASSWORD, base64.b64encode(registry.PASSWORD.encode()).decode()[:12]):
            assert secret.encode() not in written
        assert shelf.address.encode() in written, "the negative control: the name of the image is in these files"
    finally:
        code, output = ccbed(state, "down", "regtest", "--force")
    assert code == 0, output
    assert labelled(shelf.engine, "regtest") == []


@pytest.mark.parametrize("password", [None, "wrong-9c1d"])
def test_a_missing_or_wrong_login_is_one_error_with_the_command(
    shelf: Shelf, tmp_path: Path, password: str | None
) -> None:
    shelf.log_in(password)
    state = tmp_path / "state" / "ccbed"
    code, output = ccbed(state, "up", str(inventory(tmp_path, shelf.image, "regnone", 1)))
    assert code == 4
    assert f"image {shelf.image}: registry {shelf.address} rejects this user's login, or has none of it" in output
    assert f"on the controller: docker login {shelf.address}" in output
    assert "Traceback" not in output and str(password) not in output
    assert output.count("error:") == 1, output
    assert ccbed(state, "down", "regnone")[0] == 0
    assert labelled(shelf.engine, "regnone") == []


def test_a_credential_helper_is_asked(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = json.dumps({"ServerURL": shelf.address, "Username": registry.USER, "Secret": registry.PASSWORD})
    helper = tmp_path / "docker-credential-test"
    helper.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{reply}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (shelf.config / "config.json").write_text(json.dumps({"credHelpers": {shelf.address: "test"}}))
    shelf.pull(shelf.small)
    assert shelf.engine.images.get(shelf.small).labels == {"ccbed.test": "registry"}


def test_an_image_that_the_registry_does_not_have_is_no_question_of_a_login(shelf: Shelf) -> None:
    shelf.log_in(registry.PASSWORD)
    with pytest.raises(engines.EngineProblem, match=f"registry {shelf.address} has no such image"):
        shelf.pull(f"{shelf.address}/team/none:1")


def play(shelf: Shelf, folder: Path, image: str) -> tuple[playbook_runs.PlaybookResult, list[playbook_runs.Step]]:
    """The playbook that provides the image of a host, with the logins of this user."""
    settings = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ccbed_image": image}
    file = folder / "hosts.yml"
    file.write_text(json.dumps({"all": {"hosts": {"h1": {}}, "vars": settings}}))
    steps: list[playbook_runs.Step] = []
    wanted = playbook_runs.PlaybookRun(
        playbook="image", inventory=str(file), hosts=["h1"], deadline_s=600,
        variables={
            "ccbed_hostdir": str(folder / "bed"),
            "ccbed_image_ids": {image: ""},
            "ccbed_registry_logins": engines.logins([image]),
        },
    )  # fmt: skip
    return playbook_runs.run(wanted, steps.append), steps


def test_the_login_goes_to_a_host_with_the_pull_and_stays_nowhere(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.log_in(registry.PASSWORD)
    home = tmp_path / "hosthome"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    result, steps = play(shelf, tmp_path, shelf.small)
    assert result.done == ("h1",), result.failed
    assert "pull" in [step.task for step in steps]
    assert shelf.engine.images.get(shelf.small).labels == {"ccbed.test": "registry"}
    assert not list(home.rglob("config.json"))
    login = engines.logins([shelf.small])[shelf.small]
    assert login not in repr(steps) and registry.PASSWORD not in repr(steps)


@pytest.mark.parametrize("password", [None, "wrong-9c1d"])
def test_a_host_without_the_right_login_names_the_command(shelf: Shelf, tmp_path: Path, password: str | None) -> None:
    shelf.log_in(password)
    result, steps = play(shelf, tmp_path, shelf.small)
    message = result.failed["h1"].message
    assert f"image {shelf.small} is missing on the host and on the controller, and cannot be pulled (" in message
    assert f"fix: docker login {shelf.address} on the controller" in message
    assert str(password) not in repr(steps)
