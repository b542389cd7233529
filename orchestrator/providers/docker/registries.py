"""Registries of images: this user's logins, and why an engine cannot pull an image, in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...model import container, redaction

#: What engines say when a registry wants a login, or rejects the one it got. A registry also says so of an image that it
#: does not show to this user.
_LOGIN = re.compile(
    r"unauthorized|authentication required|no basic auth credentials|denied|incorrect username or password"
    r"|invalid username/password|\b40[13]\b",
    re.IGNORECASE,
)
_MISSING = re.compile(r"manifest unknown|not found|does not exist|name unknown", re.IGNORECASE)
_DOCKER_HUB = "docker.io"


def explain(image: str, message: str) -> str:
    """The text for the user. ``message``: of the engine; it may quote an address with a password."""
    message = redaction.USERINFO.sub("…@", message.strip())
    registry = registry_of(image)
    if _LOGIN.search(message):
        login = "docker login" if registry == _DOCKER_HUB else f"docker login {registry}"
        return (
            f"image {image}: registry {registry} rejects this user's login, or has none of it ({message[:200]}); "
            f"on the controller: {login}"
        )
    if _MISSING.search(message):
        return f"image {image}: registry {registry} has no such image ({message[:200]}); correct ccbed_image"
    return f"image {image} is missing and cannot be pulled from {registry}: {message[:300]}; docker load it, or correct ccbed_image"


def registry_of(image: str) -> str:
    """The registry in an image's name: its first part, if that is an address or localhost."""
    first, slash, _ = container.split_image(image)[0].partition("/")
    return first if slash and (set(".:") & set(first) or first == "localhost") else _DOCKER_HUB


def logins(images: Iterable[str]) -> dict[str, str]:
    """Image -> the header X-Registry-Auth with this user's login, of the images whose registry has one in ~/.docker/config.json.

    Credential helpers and stores are asked. One that fails counts as no login: the registry then says that it wants one.
    """
    import docker.auth
    from docker.errors import DockerException

    try:
        config = docker.auth.load_config()
    except (DockerException, ValueError):
        return {}
    headers = {}
    for image in images:
        try:
            login = docker.auth.resolve_authconfig(config, registry_of(image))
        except (DockerException, ValueError, KeyError):
            continue
        if login:
            headers[image] = docker.auth.encode_header(login).decode()
    return headers
