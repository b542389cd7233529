"""A host that is connected again gets the keeper of its bed, also from another version of ccbed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.model.bed import BedSpec, HostSpec
from orchestrator.providers import archive
from orchestrator.providers.docker.docker_provider import DockerProvider

from . import beds


class Site:
    """A host that was connected ``connection_count`` times; the arguments of each start of its keeper."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.connection_count = 1
        self.started: list[Mapping[str, Any]] = []
        self.is_started = threading.Event()

    def call(self, op: str, deadline_s: float = 10.0, **args: Any) -> Any:
        if op == "keeper":
            self.started.append(args)
            self.is_started.set()

    def watch(self, run: str, nodes: object) -> None: ...

    def heartbeats(self) -> Mapping[str, tuple[str, int]]:
        return {}


def bed_of(tmp_path: Path, agent: str) -> BedSpec:
    local = beds.local()
    hosts = (HostSpec(name=local.nodes[0].host),)
    return replace(
        local, provider="docker", agent=agent, workdir=str(tmp_path / "bed"), hostdir="/hosts/b", hosts=hosts
    )


def test_a_resumed_run_asks_for_the_keeper_of_the_version_that_brought_up_the_bed(tmp_path: Path) -> None:
    bed, site = bed_of(tmp_path, agent="0" * 12), Site(tmp_path)
    provider = DockerProvider(tmp_path, lambda bed, host, patient: site)  # type: ignore[arg-type, return-value]
    provider.open(bed, "R")
    provider.heartbeats()
    site.connection_count = 2
    provider.heartbeats()
    assert site.is_started.wait(600)
    assert archive.agent_hash() != bed.agent
    assert [args["archive"] for args in site.started] == [f"/hosts/b/agent/agent-{bed.agent}.pyz"]
