"""What follows a night: a terminal, or a test that keeps the order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..selector import Past
    from ..suite import Cell, Night, Row
    from .finished import Finished


class NightObserver(Protocol):
    """Follows a night."""

    def begin(self, night: Night, past: Mapping[str, Past], directory: Path, nodes: int) -> None: ...
    def start(self, cell: Cell, repeat: int, again: str) -> None: ...
    def node(self, row: Row) -> None:
        """Something is lost of the bed, or came back."""

    def cell(self, cell: Cell, rows: Sequence[Row]) -> None:
        """All repeats of a cell have ended."""

    def ended(self, finished: Finished) -> None: ...
    def closed(self, night: Night, done: str, code: int) -> None:
        """An open night of a process that died was ended: how, and with which exit code."""
