"""The engine of a host over the connection to it: there is no second one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.bed import HostSpec
from orchestrator.providers.docker import engines
from orchestrator.providers.ssh.remote_host import RemoteSite

from . import sshd

#: The limit of a hang.
LIMIT_S = 600.0

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(sshd.lacking()), reason=sshd.lacking())]


@pytest.fixture(scope="module")
def server(engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def site(server: sshd.Sshd, tmp_path: Path) -> Iterator[RemoteSite]:
    site = RemoteSite(sshd.bed(tmp_path, server.host()), server.host())
    site.open(LIMIT_S)
    yield site
    site.close()


def test_the_engine_answers_over_the_connection(site: RemoteSite, server: sshd.Sshd) -> None:
    engine = engines.Engine(site.host, site.call)
    assert engine.identify().version
    assert engine.images(["ccbed/no-such-image:1"]) == {}
    assert len(server.children()) == 1, "no second connection"


def test_the_network_of_a_bed_is_made_found_and_removed(site: RemoteSite, tmp_path: Path) -> None:
    bed, engine = sshd.bed(tmp_path, site.host), engines.Engine(site.host, site.call)
    try:
        subnet = engine.network(bed, [])
        assert engine.network(bed, []) == subnet
        other = replace(bed, hostdir="/elsewhere")
        with pytest.raises(engines.EngineProblem, match="exists on this engine"):
            engine.network(other, [])
    finally:
        engine.remove_network(bed)
    assert engine.network(bed, [subnet]) != subnet, "a route leads there"
    engine.remove_network(bed)


def test_an_engine_that_is_not_there_is_one_sentence(site: RemoteSite) -> None:
    gone = HostSpec(name="h1", engine="/nowhere/docker.sock")
    with pytest.raises(OSError, match=r"/nowhere/docker\.sock: no such socket: start or install a container engine"):
        engines.Engine(gone, site.call).identify()
