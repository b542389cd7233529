"""A bed whose hosts connect back from this machine (``keeper_farm``), driven by the provider's code for beds of many hosts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from orchestrator.model.bed import BedSpec, HostSpec, NodeSpec
from orchestrator.model.event import Command
from orchestrator.providers import archive
from orchestrator.providers.bed_commands import BedCommands
from orchestrator.providers.hosts_provider import HostsProvider
from orchestrator.providers.ssh import host_connection
from orchestrator.providers.ssh.remote_host import RemoteSite
from orchestrator.run import collect
from orchestrator.slurm.reverse_link import credentials, listener, reverse_connection

from .keeper_farm import farm

RUN = "bench-run"
DEADLINE_S = 300.0
#: All hosts share the cores of this machine: a host that is silent for seconds has no core, but is not lost.
PATIENT = {"QUIET_S": 60.0, "SILENCE_S": 60.0, "CONNECT_S": 60.0}
#: What a node without ranks has left after a run: its log, a description of its system, the events of its agent.
FILES = {"agent.log": 2_000, "system.json": 6_000, f"runs/{RUN}/agent.jsonl": 20_000}


class KeeperProvider(HostsProvider):
    """As the provider for Slurm, without Slurm: the hosts run already, and connect back."""

    keeper_s = DEADLINE_S

    def __init__(self, bed: BedSpec) -> None:
        super().__init__(Path(bed.workdir).parent / "state", self._connect_back)
        names = [host.name for host in bed.hosts]
        self._listener = listener.Listener(Path(bed.hostdir) / "links", Path(bed.workdir), names, "127.0.0.1")

    def connect(self, bed: BedSpec) -> None:
        self._on_all_hosts(bed, lambda host: self._site(bed, host))

    def close(self) -> None:
        super().close()
        self._listener.close()

    def _connect_back(self, bed: BedSpec, host: HostSpec, patient: bool) -> RemoteSite:
        site = reverse_connection.make_site(bed, host, self._listener, explain=lambda name: "", ended=lambda name: "")
        site.open(DEADLINE_S)
        return site

    def _prepare_host(self, bed: BedSpec, host: HostSpec, archive_path: str) -> None:
        self._make_directories(bed, host)

    def prepare(self, bed: BedSpec) -> None:
        archive.write(Path(bed.hostdir) / "agent")
        super().prepare(bed)

    def _archive_path(self, bed: BedSpec, host: HostSpec, digest: str) -> str:
        return f"{bed.hostdir}/agent/agent-{digest}.pyz"

    def _place_archive(self, bed: BedSpec, host: HostSpec, path: str, content: bytes) -> None:
        """It is on the file system that the hosts share."""

    def _keeper(self, bed: BedSpec, host: HostSpec) -> dict[str, Any]:
        return {**super()._keeper(bed, host), "python": sys.executable}


@dataclass(frozen=True, kw_only=True)
class KeeperBed:
    """``farm``: the pid of the process below which the hosts run."""

    spec: BedSpec
    provider: KeeperProvider
    farm: int

    def command_all(self) -> None:
        """One command for each keeper, and all outcomes. The nodes to be ended do not run."""
        commands = [
            Command(f="node.kill", key=f"k/{node.name}", node=node.name, deadline_s=DEADLINE_S)
            for node in self.spec.nodes
        ]
        outcomes = BedCommands(provider=self.provider, cursors=self.provider.open(self.spec, "bed")).perform(commands)
        bad = {key: outcome for key, outcome in outcomes.items() if outcome is None or outcome.type != "ok"}
        assert not bad, bad

    def gather(self, to: Path) -> None:
        """All files of a run, from all nodes."""
        wanted = {
            node.name: (*((name, name) for name in ("agent.log", "system.json")), (f"runs/{RUN}", ""))
            for node in self.spec.nodes
        }
        summary = collect.gather(self.provider, wanted, to, patience_s=DEADLINE_S)
        assert (summary["files"], summary["missing"]) == (len(FILES) * len(wanted), [])

    def write_files(self) -> None:
        for node in self.spec.nodes:
            for name, size in FILES.items():
                path = Path(self.spec.directory_on(node.host)) / "nodes" / node.name / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text((json.dumps({"n": 1, "text": "x" * 60}) + "\n") * (size // 80))


@contextmanager
def keeper_bed(folder: Path, count: int) -> Iterator[KeeperBed]:
    """``count`` hosts run and try to connect; the provider is not connected yet."""
    shared = folder / "shared"
    hosts = tuple(HostSpec(name=f"h{number}", connection="ssh") for number in range(count))
    nodes = tuple(
        NodeSpec(name=f"n{number}", host=f"h{number}", role="node", address="127.0.0.1", hash="x")
        for number in range(count)
    )
    spec = BedSpec(
        name="keepers", provider="slurm", nodes=nodes, inventory="", workdir=str(folder / "bed"), agent="", hosts=hosts,
        shared_dir=str(shared / "shared"), hostdir=str(shared),
    )  # fmt: skip
    links = shared / "links"
    credentials.ensure_certificate(links, folder / "bed")
    for host in hosts:
        credentials.new_token(links, host.name)
    with farm({host.name: Path(spec.directory_on(host.name)) for host in hosts}, links, spec.name, shared) as process:
        provider = KeeperProvider(spec)
        try:
            with mock.patch.dict(vars(host_connection), PATIENT), mock.patch.dict(vars(listener), {"GREETING_S": 60.0}):
                yield KeeperBed(spec=spec, provider=provider, farm=process.pid)
        finally:
            provider.close()


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    begin = time.monotonic()
    work()
    return time.monotonic() - begin
