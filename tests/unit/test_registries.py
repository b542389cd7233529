"""Names of images, and why a registry gives none, in plain words."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.container import split_image
from orchestrator.providers.docker import engines


@pytest.mark.parametrize(
    ("name", "parts", "registry"),
    [
        ("pytorch", ("pytorch", "latest"), "docker.io"),
        ("pytorch/pytorch:2.13", ("pytorch/pytorch", "2.13"), "docker.io"),
        ("127.0.0.1:5000/team/torch", ("127.0.0.1:5000/team/torch", "latest"), "127.0.0.1:5000"),
        ("127.0.0.1:5000/team/torch:1", ("127.0.0.1:5000/team/torch", "1"), "127.0.0.1:5000"),
        ("localhost/torch:1", ("localhost/torch", "1"), "localhost"),
        ("ghcr.io/a/b@sha256:12", ("ghcr.io/a/b", "sha256:12"), "ghcr.io"),
    ],
)
def test_a_name_has_a_registry_and_a_tag(name: str, parts: tuple[str, str], registry: str) -> None:
    assert (split_image(name), engines.registry_of(name)) == (parts, registry)


@pytest.mark.parametrize(
    ("message", "part"),
    [
        (
            "Head https://example.org/v2/a/manifests/1: no basic auth credentials",
            "on the controller: docker login example.org",
        ),
        ("unauthorized: incorrect username or password", "on the controller: docker login example.org"),
        ("manifest for example.org/a:1 not found: manifest unknown: manifest unknown", "has no such image"),
        ("dial tcp: lookup example.org: no such host", "cannot be pulled from example.org: dial tcp"),
    ],
)
def test_the_error_says_what_to_do(message: str, part: str) -> None:
    text = engines.explain_pull("example.org/a:1", message)
    assert part in text and "\n" not in text


def test_a_password_in_an_address_is_not_shown() -> None:
    text = engines.explain_pull("example.org/a:1", "proxyconnect http://me:geheim@proxy:3128: refused")
    assert "geheim" not in text and "…@proxy:3128" in text


@pytest.mark.parametrize(
    "config",
    [
        {"auths": {"example.org": {"auth": "%%%"}}},
        {"auths": {"example.org": "me:geheim"}},
        {"credHelpers": {"example.org": "damaged"}},
    ],
    ids=["not base64", "no mapping", "helper prints no JSON"],
)
def test_a_damaged_login_is_none(config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-damaged"
    helper.write_text("#!/bin/sh\necho oops\n")
    helper.chmod(0o755)
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert engines.logins(["example.org/a:1"]) == {}
