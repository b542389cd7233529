"""Engines of other versions than the one that is spoken: asked again in theirs, or refused in a sentence."""

from __future__ import annotations

import http.server
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.keeper import container_status
from orchestrator.node.oslayer import container_engine
from orchestrator.node.oslayer.container_engine import EngineError
from orchestrator.node.oslayer.event_loop import Loop

OLD = "client version 1.41 is too new. Maximum supported API version is 1.40"
NEW = "client version 1.41 is too old. Minimum supported API version is 1.44, please upgrade your client to a newer version"


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    refusal: str
    paths: list[str]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        refused = self.path.startswith("/v1.41/")
        body = json.dumps({"message": self.server.refusal} if refused else {"Version": "29.0.1"}).encode()
        self.send_response(400 if refused else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is told."""


@contextmanager
def answering(path: Path, refusal: str) -> Iterator[list[str]]:
    """An engine that refuses version 1.41 with these words; the paths that it is asked for."""
    with _Server(str(path), _Handler) as server:
        server.refusal, server.paths = refusal, []
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.paths
        server.shutdown()
        thread.join()


def test_an_engine_that_wants_a_newer_version_is_asked_in_it_from_then_on(tmp_path: Path) -> None:
    with answering(tmp_path / "s", NEW) as paths:
        client = container_engine.EngineClient(str(tmp_path / "s"))
        assert client.request("GET", "/version") == {"Version": "29.0.1"}
        assert client.request("GET", "/version") == {"Version": "29.0.1"}
    assert paths == ["/v1.41/version", "/v1.44/version", "/v1.44/version"]


def test_a_keepers_loop_asks_again_too(tmp_path: Path) -> None:
    responses: list[Any] = []
    with answering(tmp_path / "s", NEW):
        loop = Loop()

        def on_response(content: Any, error: EngineError | None) -> None:
            responses.append((content, error))

        container_engine.LoopClient(loop, container_engine.EngineClient(str(tmp_path / "s"))).request(
            "GET", "/version", on_response
        )
        while not responses:
            loop.run_once()
    assert responses == [({"Version": "29.0.1"}, None)]


def test_an_engine_that_is_too_old_is_refused_with_what_helps(tmp_path: Path) -> None:
    with (
        answering(tmp_path / "s", OLD),
        pytest.raises(EngineError, match=r"too old .*1\.40.*install Docker 20\.10"),
    ):
        container_engine.EngineClient(str(tmp_path / "s")).request("GET", "/version")


def test_an_engine_that_answers_before_it_has_read_the_body_is_understood(tmp_path: Path) -> None:
    def refuse() -> None:
        with server.accept()[0] as connection:
            connection.recv(200)
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(EngineError) as raised:
            container_engine.EngineClient(str(tmp_path / "s")).request("POST", "/x", "x" * (4 << 20))
        thread.join()
    assert raised.value.status == container_engine.NOT_FOUND


def test_what_answers_with_something_else_than_containers_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_engine.EngineClient, "request", lambda self, method, path, **_: "hello")
    with pytest.raises(container_engine.EngineError, match=r"/x.sock: not a container engine; set ccbed_engine"):
        container_status.list_containers("/bed", "b", "/x.sock")
