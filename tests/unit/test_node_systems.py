"""What nodes say of themselves is read through their provider; one that says nothing, or nonsense, is told apart."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from orchestrator.model.provider import Fetched, Provider
from orchestrator.providers import node_files as files


class Nodes:
    """A provider that has these files, and no other."""

    def __init__(self, **files: str) -> None:
        self._files = files

    def fetch(self, node: str, path: str, to: Path, limit: int) -> Fetched:
        if path != "system.json" or node not in self._files:
            return Fetched(path=path, size=0, reason="not there")
        to.parent.mkdir(parents=True)
        return Fetched(path=path, size=to.write_text(self._files[node]))


def test_each_node_is_read_and_silence_is_empty() -> None:
    provider = cast(Provider, Nodes(n0='{"cpu": "A"}', n1="{torn", n2="[]"))
    assert files.read_systems(provider, ("n0", "n1", "n2", "n3")) == {"n0": {"cpu": "A"}, "n1": {}, "n2": {}, "n3": {}}
