"""What every verb is handed: the terminal, the directories, the providers. Nothing here is global."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...prepare.vault import Vault
from ..render import terminal

if TYPE_CHECKING:
    from ...model.bed import BedSpec
    from ...model.launch import Request, Result
    from ...model.plugin import Catalogue
    from ...model.provider import Provider


def process_provider(state: Path) -> Provider:
    """The nodes of this machine."""
    from ...providers.process import process_provider as process

    return process.ProcessProvider(state)


def docker_provider(state: Path) -> Provider:
    """The containers of one engine or of several hosts."""
    from ...providers.docker import docker_provider as docker

    return docker.DockerProvider(state)


def agent_hash() -> str:
    """The hash of the agent archive that this version would start."""
    from ...providers import archive

    return archive.agent_hash()


def launch(request: Request) -> Result:
    """The life of a run."""
    from ...run import lifecycle

    return lifecycle.launch(request)


@dataclass(kw_only=True)
class Session:
    """One invocation. ``providers``: kind of provider -> what opens it, given the state directory.

    ``umask``: the user's own, for what the user's programs write.
    """

    state: Path
    terminal: terminal.Terminal
    argv: tuple[str, ...] = ()
    umask: int = 0o077
    plugins: tuple[Path, ...] = ()
    providers: Mapping[str, Callable[[Path], Provider]] = field(
        default_factory=lambda: {"process": process_provider, "docker": docker_provider}
    )
    agent: Callable[[], str] = agent_hash
    launch: Callable[[Request], Result] = launch
    began: float = field(default_factory=time.monotonic)
    _opened: list[Provider] = field(default_factory=list)
    _warmed_up: list[tuple[BedSpec, Provider]] = field(default_factory=list)
    vault: Vault = field(default_factory=Vault)

    def warm_up(self, bed: BedSpec) -> None:
        """Start to connect the bed's hosts in the background. The next call of ``provider`` returns that provider."""
        provider = self.provider(bed)
        provider.warm_up(bed)
        self._warmed_up.append((bed, provider))

    def provider(self, bed: BedSpec) -> Provider:
        """Return a provider of the bed's kind; ``close`` closes it."""
        for known_bed, provider in self._warmed_up:
            if known_bed == bed:
                self._warmed_up.remove((known_bed, provider))
                return provider
        self._opened.append(self.providers[bed.provider](self.state))
        return self._opened[-1]

    def close(self) -> None:
        """Let go of the hosts."""
        for provider in self._opened:
            provider.close()

    def took(self) -> str:
        """How long this invocation has taken, for people."""
        seconds = time.monotonic() - self.began
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"

    @cached_property
    def catalogue(self) -> Catalogue:
        """Raises UsageError for a plugin folder that is not there."""
        from ... import plugins

        return plugins.discover(self.plugins)
