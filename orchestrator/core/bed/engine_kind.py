"""A container engine by its own answers: Docker or podman, its version, whether it runs without root, and what it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...model import requirements
from ...model.frozen import dataclass
from ...model.requirements import version_text

#: podman's own API beside Docker's: it says there whether it runs without root, and which cgroups it may use.
PODMAN_INFO = "/v4.0.0/libpod/info"
#: A name that no container has: the response shows whether the engine can change the limits of a container at all.
NO_CONTAINER = "ccbed-no-such-container"
CONTROLLERS = ("cpu", "memory", "pids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """``is_rootless``: it runs as a user, and root in its containers is that user. ``controllers``: of cgroups, which it
    may use. ``can_freeze``, ``can_update``: freeze a container, change the limits of one that runs."""

    version: str
    is_podman: bool = False
    is_rootless: bool = False
    controllers: tuple[str, ...] = CONTROLLERS
    can_freeze: bool = True
    can_update: bool = True

    @property
    def text(self) -> str:
        """Return the version for people: Docker's version alone, podman's with its name."""
        name = f"podman {self.version}" if self.is_podman else self.version
        return f"{name} without root" if self.is_rootless else name

    @property
    def oldest(self) -> str:
        return version_text(self._oldest)

    @property
    def is_too_old(self) -> bool:
        return requirements.version(self.version) < self._oldest

    @property
    def _oldest(self) -> tuple[int, ...]:
        return requirements.PODMAN if self.is_podman else requirements.ENGINE

    @property
    def name(self) -> str:
        return "podman" if self.is_podman else "Docker"

    @property
    def lacks(self) -> tuple[str, ...]:
        """The capabilities of nodes (``HostFacts.capabilities``) that this engine does not give."""
        can_limit = self.can_update and "cpu" in self.controllers
        return (*(() if can_limit else ("limit",)), *(() if self.can_freeze else ("pause",)))


def read(version: Mapping[str, Any], podman: Mapping[str, Any] | None, *, options: str, can_update: bool) -> Engine:
    """``version``: the response to ``/version``; ``podman``: that to ``PODMAN_INFO``; ``options``: the security options
    of ``/info``, as text."""
    number = str(version.get("Version", ""))
    if podman is None:
        return Engine(version=number, is_rootless="name=rootless" in options)
    host = podman.get("host", {})
    is_rootless = bool(host.get("security", {}).get("rootless"))
    delegated = host.get("cgroupControllers") or ()
    controllers = tuple(name for name in CONTROLLERS if name in delegated)
    can_freeze = not is_rootless or (host.get("cgroupVersion") == "v2" and bool(delegated))
    return Engine(
        version=number, is_podman=True, is_rootless=is_rootless, controllers=controllers, can_freeze=can_freeze,
        can_update=can_update,
    )  # fmt: skip


def knows_update(status: int, message: str) -> bool:
    """Return whether an engine knows updates, by its response to one of ``NO_CONTAINER``: an engine without them has no such page."""
    return status == 404 and "no such container" in message.lower()


def local_socket(environment: Mapping[str, str]) -> str:
    """The socket of this machine's engine that DOCKER_HOST names, as for docker and podman; empty if it names none here."""
    scheme, _, path = environment.get("DOCKER_HOST", "").partition("://")
    return path if scheme == "unix" else ""
