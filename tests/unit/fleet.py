"""A bed of three hosts in memory: h1 h2 h3 with a node each (n0 n1 n2), and a spare on h3 (n3)."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.cli.inputs import terminal_session
from orchestrator.cli.render import terminal
from orchestrator.model.bed import BedSpec, BedStatus, HostSpec
from orchestrator.model.errors import InfrastructureError, OwnedError

from .test_departed import Hosts

Verb = Callable[..., tuple[int, str]]


@dataclasses.dataclass(kw_only=True)
class Fleet(Hosts):
    """``contacted``: the hosts that were observed, ended or started, in order without repetition. ``is_foreign``: another
    user has a bed of this name there. ``pruned``: the hosts whose leftovers were listed."""

    contacted: dict[str, None] = dataclasses.field(default_factory=dict)
    is_foreign: bool = False
    pruned: list[str] = dataclasses.field(default_factory=list)

    def leftovers(self, bed: BedSpec) -> Sequence[tuple[str, Mapping[str, Any]]]:
        self.pruned += [host.name for host in bed.hosts]
        return []

    def observe(self, bed: BedSpec, *, memory: bool = True) -> BedStatus:
        self.contacted |= dict.fromkeys(host.name for host in bed.hosts)
        if self.is_foreign:
            raise OwnedError("host h2: bed lab exists already and belongs to another user")
        return super().observe(bed, memory=memory)

    def retire_hosts(self, bed: BedSpec, hosts: Sequence[HostSpec]) -> tuple[int, ...]:
        self.is_foreign = False
        ended = super().retire_hosts(bed, [host for host in hosts if host.name not in self.away])
        if missing := [host.name for host in hosts if host.name in self.away]:
            raise InfrastructureError(*(f"host {name}: no route" for name in missing))
        return ended


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def ccbed(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verb:
    """Three hosts h1 h2 h3 with a node each (n0 n1 n2) and a spare on h3 (n3)."""
    monkeypatch.setattr("orchestrator.providers.preflight.check", lambda *_: ())
    inventory = tmp_path / "lab.yml"
    hosts = {f"h{n}": {"ansible_host": f"10.0.0.{n}", "ccbed_spares": int(n == 3)} for n in (1, 2, 3)}
    inventory.write_text(
        json.dumps({"all": {"hosts": hosts, "vars": {"ccbed_provider": "docker", "ansible_user": "x"}}})
    )

    def run(verb: str, *args: str) -> tuple[int, str]:
        out = io.StringIO()
        desk = terminal_session.Session(
            state=tmp_path, terminal=terminal.Terminal(out=out, err=out), agent=lambda: "a" * 64,
            providers={"docker": lambda state: fleet},
        )  # fmt: skip
        target = [str(inventory)] if verb in ("up", "plan", "doctor") else []
        prepare = ["--no-prepare"] if verb == "up" else []
        fleet.contacted.clear()
        fleet.commands.clear()
        return main.run([verb, *target, *prepare, *args], desk), out.getvalue()

    return run
