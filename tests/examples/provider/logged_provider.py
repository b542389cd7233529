"""Process nodes whose commands are also written to a log, to read in which order they were sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...model.event import Command
from .process_provider import ProcessProvider


class LoggedProvider:
    """See model.provider.Provider. It holds a process provider, which does everything but ``perform``."""

    def __init__(self, state: Path) -> None:
        self._provider = ProcessProvider(state)
        self._log = state / "commands.log"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def perform(self, command: Command) -> None:
        """Returns at once, as every provider does: a line in a file takes microseconds."""
        with self._log.open("a") as log:
            log.write(f"{command.f} {command.node} {command.key}\n")
        self._provider.perform(command)
