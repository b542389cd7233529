"""The docker SDK over the connection to a host: no second one, few sessions, and it survives a cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.bed import HostSpec
from orchestrator.providers.docker import engine_over_ssh
from orchestrator.providers.ssh import ssh_connection
from orchestrator.providers.ssh.connection_errors import HostError
from orchestrator.providers.ssh.remote_host import RemoteSite

from . import sshd

SOCKET = Path(engine_over_ssh.DEFAULT)
#: The limit of a hang.
LIMIT_S = 60


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
    wait(lambda: not server.children())


@pytest.fixture
def client(site: RemoteSite) -> Iterator[Any]:
    client = engine_over_ssh.client(lambda: site.connection, site.host)
    yield client
    client.close()


def test_the_engine_answers_over_the_connection(client: Any, server: sshd.Sshd) -> None:
    assert client.version()["Version"]
    assert client.ping() is True
    assert isinstance(client.images.list(), list)
    assert len(server.children()) == 1, "no second connection"


def test_many_calls_at_once_take_few_sessions(client: Any, server: sshd.Sshd) -> None:
    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(lambda _: client.ping(), range(60)))
    assert server.sessions() <= 2 * (engine_over_ssh.SESSIONS + 1), "each is a shell that runs the command, at most"


def test_calls_go_on_after_a_cut(client: Any, site: RemoteSite, server: sshd.Sshd) -> None:
    assert client.ping()
    before = site.connection_count
    server.cut()
    wait(lambda: site.connection_count > before and site.is_connected)
    assert client.ping()


def wait(done: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_an_engine_that_is_not_there_is_one_sentence(site: RemoteSite) -> None:
    gone = HostSpec(name="h1", engine="/nowhere/docker.sock")
    with pytest.raises(HostError, match=r"no container engine responds at /nowhere/docker\.sock; on the host: sudo"):
        engine_over_ssh.client(lambda: site.connection, gone, LIMIT_S)


def test_a_host_without_docker_is_one_sentence(tmp_path: Path) -> None:
    with sshd.running(tmp_path / "sshd", "SetEnv PATH=/nowhere") as own:
        connection = ssh_connection.connect(own.host())
        with pytest.raises(HostError, match="neither docker nor podman on the host; install Docker"):
            engine_over_ssh.client(lambda: connection, own.host(), LIMIT_S)
        connection.close()
