"""A provider that has let go of a run is as it was before: outside of runs a host that is away is a failure at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.bed import BedSpec, HostSpec
from orchestrator.model.errors import UnreachedError
from orchestrator.providers.docker.docker_provider import DockerProvider
from orchestrator.providers.process import process_provider
from orchestrator.providers.process.process_provider import ProcessProvider

from . import beds


class Site:
    """A host that is reached, until it is away."""

    is_connected, connection_count = True, 1
    away = False

    def __init__(self, root: Path) -> None:
        self.root = root

    def call(self, op: str, deadline_s: float = 10.0, **args: Any) -> Any:
        if Site.away:
            raise OSError("not connected")
        return {"keeper": {"alive": False}, "nodes": [], "leases": [], "interfaces": {}, "engine": ""}

    def watch(self, run: str, nodes: object) -> None: ...

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        return {}

    def close(self) -> None: ...


def test_after_a_run_hosts_are_reached_as_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[bool] = []

    def connect(bed: BedSpec, host: HostSpec, patient: bool) -> Any:
        requested.append(patient)
        return Site(tmp_path)

    local = beds.local()
    bed = replace(local, provider="docker", workdir=str(tmp_path / "bed"), hosts=(HostSpec(name=local.nodes[0].host),))
    provider = DockerProvider(tmp_path, connect)
    provider.open(bed, "R")
    provider.observe(bed)
    provider.close()
    provider.observe(bed)
    assert requested == [True, False]
    monkeypatch.setattr(Site, "away", True)
    with pytest.raises(UnreachedError):
        provider.observe(bed)


def test_after_a_run_processes_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[bool] = []
    monkeypatch.setattr(process_provider, "bed_status", lambda bed, memory: measured.append(memory))
    bed = replace(beds.local(), workdir=str(tmp_path / "bed"))
    provider = ProcessProvider(tmp_path)
    provider.open(bed, "R")
    provider.observe(bed)
    provider.close()
    provider.observe(bed)
    assert measured == [False, True]
