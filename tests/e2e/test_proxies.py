"""HTTP proxies: builds, packages and programs in nodes use them; what goes from node to node never does."""

from __future__ import annotations

import contextlib
import http.server
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.errors import InfrastructureError
from orchestrator.providers.node_images import image_build

from .conftest import ROOT, ccbed
from .test_docker_bed import inventory, labelled

pytestmark = pytest.mark.e2e

NAME = "proxytest"
#: Names that nobody has: only a proxy responds for them.
PACKAGES, ELSEWHERE, DIRECT = "packages.invalid", "elsewhere.invalid", "direct.invalid"
READ = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=900).read().decode())"
DOCKERFILE = f"""ARG BASE
FROM ${{BASE}}
RUN python3 -c '{READ}' http://{PACKAGES}/wheel
"""


@dataclass(frozen=True, kw_only=True)
class Server:
    """An HTTP server on loopback that responds to everything, and the addresses that were asked of it."""

    name: str
    port: int
    requests: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serving(name: str) -> Iterator[Server]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append(self.path)
            body = f"from the {name}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(name=name, port=listener.server_port)
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    yield server
    listener.shutdown()
    listener.server_close()
    thread.join()


@pytest.fixture
def proxy() -> Iterator[Server]:
    with serving("proxy") as server:
        yield server


def without_proxies() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}


# --- builds and packages -----------------------------------------------------------------------------------------------


def test_a_build_uses_the_proxy_of_this_machine_and_the_image_does_not_keep_it(
    engine: Any, image: str, proxy: Server, tmp_path: Path
) -> None:
    (tmp_path / "cpu.Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "requirements.txt").write_text("torch==0\n")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "torch-0-py3-none-any.whl").touch()
    recipe = image_build.Recipe(folder=tmp_path, cache=tmp_path, base=image, wheels=wheels, tag="ccbed-test/proxies:1")

    def build(environment: Mapping[str, str]) -> image_build.Built:
        return image_build.build(engine, recipe, environment, lambda text: None)

    with pytest.raises(InfrastructureError):
        build({})
    built = build({"http_proxy": proxy.url})
    try:
        assert proxy.requests == [f"http://{PACKAGES}/wheel"]
        config = engine.images.get(built.id).attrs["Config"]
        assert [item for item in config["Env"] if "proxy" in item.lower()] == []
    finally:
        engine.images.remove(built.name, force=True)


@pytest.mark.skipif(not Path("/usr/bin/apt-get").exists(), reason="no apt-get")
def test_apt_uses_the_proxy_that_the_playbooks_export(proxy: Server, tmp_path: Path) -> None:
    """The lists of an archive that only the proxy can reach."""
    for folder in ("lists/partial", "archives/partial"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "sources.list").write_text(f"deb [trusted=yes] http://{PACKAGES}/debian ./\n")
    options = [
        *("-o", f"Dir::Etc::sourcelist={tmp_path / 'sources.list'}", "-o", "Dir::Etc::sourceparts=-"),
        *("-o", f"Dir::State::lists={tmp_path / 'lists'}", "-o", f"Dir::Cache::archives={tmp_path / 'archives'}"),
        *("-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=0", "-o", "APT::Update::Post-Invoke-Success::="),
    ]
    script = f'export http_proxy={proxy.url}; . {ROOT}/playbooks/files/apt.sh; apt_get "$@"'
    env = {**without_proxies(), "APT_WAIT_S": "1"}
    subprocess.run(
        ["sh", "-c", script, "sh", *options, "update"], env=env, capture_output=True, timeout=600, check=False
    )
    assert any(request.startswith(f"http://{PACKAGES}/debian/") for request in proxy.requests)


# --- nodes -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Proxied:
    state: Path
    runs: Path
    proxy: Server
    neighbour: Server

    def read(self, url: str) -> tuple[int, str]:
        return ccbed(self.state, "exec", f"{NAME}/n0", "--", "python3", "-c", READ, url)


@pytest.fixture(scope="module")
def proxied(engine: Any, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """Two nodes in the network of this machine, so that they reach a proxy on its loopback."""
    directory = tmp_path_factory.mktemp("proxied")
    state = directory / "state" / "ccbed"
    with serving("proxy") as proxy, serving("neighbour") as neighbour:
        more: dict[str, Any] = {"network": "host", "address": "127.0.0.1", "http_proxy": proxy.url, "no_proxy": DIRECT}
        code, output = ccbed(state, "up", str(inventory(directory, image, NAME, **more)))
        assert code == 0, output
        yield Proxied(state=state, runs=directory / "runs", proxy=proxy, neighbour=neighbour)
        code, output = ccbed(state, "down", NAME, "--force")
        assert code == 0, output
        assert labelled(engine, NAME) == []


def test_a_program_in_a_node_reaches_others_through_the_proxy_and_nodes_without_it(proxied: Proxied) -> None:
    assert proxied.read(f"http://{ELSEWHERE}/data") == (0, "from the proxy\n")
    assert proxied.proxy.requests == [f"http://{ELSEWHERE}/data"]
    for host in ("n1", "127.0.0.1", "localhost"):
        assert proxied.read(f"http://{host}:{proxied.neighbour.port}/{host}") == (0, "from the neighbour\n")
    assert proxied.neighbour.requests == ["/n1", "/127.0.0.1", "/localhost"]
    assert proxied.read(f"http://{DIRECT}/")[0] != 0, "it exists nowhere, and the proxy is not asked"
    assert proxied.proxy.requests == [f"http://{ELSEWHERE}/data"]


def test_training_never_asks_the_proxy(proxied: Proxied) -> None:
    before = list(proxied.proxy.requests)
    args = ["--bed", NAME, "--nodes", "2", "--epochs", "1", "--no-reference", "--runs-dir", str(proxied.runs)]
    code, output = ccbed(proxied.state, "run", "dp-ring", *args)
    assert code == 0, output
    assert proxied.proxy.requests == before
