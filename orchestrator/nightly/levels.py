"""Accepted levels: from which night on a figure is compared with a new reference, because people accepted its change.

They lie beside the nights, a line for each, so that an index that is made anew keeps them. Only `ccbed baseline accept` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ..core.documents import decoder
from ..model import codec
from ..model.errors import InfrastructureError
from ..model.frozen import dataclass
from ..store import paths
from .classes import matches
from .run_record import nodes_of

FILE = "levels.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """``night``: the number of the recorded night of the bed that begins the level; its nodes and metrics, all where none is named.
    ``because``, ``by``, ``at``: for people.
    """

    bed: str
    night: int
    nodes: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    because: str = ""
    by: str = ""
    at: str = ""

    def covers(self, label: str, metric: str) -> bool:
        """``label``: of a measurement; a figure of the whole gang belongs to a level of all nodes."""
        is_of_node = not self.nodes or bool(set(nodes_of(label)) & set(self.nodes))
        return is_of_node and (not self.metrics or any(matches(pattern, metric) for pattern in self.metrics))


def read(runs: Path, bed: str) -> tuple[Level, ...]:
    """The levels of a bed, in the order of acceptance. Raises TornBundleError with the line for what is no level."""
    file = runs / FILE
    if not file.is_file():
        return ()
    levels: list[Level] = []
    for number, line in enumerate(paths.data(runs, FILE).splitlines(), start=1):
        try:
            level: Level = decoder.convert(Level, decoder.parse(line))
        except decoder.DocumentError as error:
            hint = "correct or remove that line; ccbed baseline accept writes such lines"
            raise paths.TornBundleError(f"{file}:{number}: not an accepted level ({error})", hint=hint) from None
        levels.append(level)
    return tuple(level for level in levels if level.bed == bed)


def add(runs: Path, levels: Iterable[Level]) -> None:
    """Append levels. Raises InfrastructureError where they cannot be written."""
    text = "".join(json.dumps(codec.plain(level), ensure_ascii=False) + "\n" for level in levels)
    file = runs / FILE
    try:
        before = file.read_bytes() if file.is_file() else b""
        paths.write(file, before + text.encode(), durable=True)
    except OSError as error:
        raise InfrastructureError(
            f"{file}: the level cannot be written: {error.strerror}", hint="free space, or give the right --runs-dir"
        ) from error
