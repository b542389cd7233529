"""Notifications of a night: to a real server on this machine that hangs, fails, redirects, and to commands that do the same."""

from __future__ import annotations

import functools
import json
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nightly import notify as module
from orchestrator.nightly.notify import describe, notify
from orchestrator.nightly.reports.night_report import NightReport

from ...patience import until
from . import synthetic_nights

SECRET = "T0K3Nsecret"


class Server(ThreadingHTTPServer):
    """Responds to request number n with ``statuses[n]``, the last of them for all later ones; 0 hangs, -1 drips."""

    daemon_threads = True

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses = statuses
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.stop = threading.Event()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hooks/{SECRET}"

    def close(self) -> None:
        self.stop.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        status = self.server.statuses[min(len(self.server.requests), len(self.server.statuses)) - 1]
        if status == 0:
            self.server.stop.wait()
            return
        if status == -1:
            self._drip()
            return
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _drip(self) -> None:
        """A header that never ends."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not self.server.stop.wait(0.02):
            try:
                self.wfile.write(b"x")
            except OSError:
                return

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*statuses: int) -> Server:
        servers.append(Server(*statuses))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@functools.cache
def bad_night() -> NightReport:
    return synthetic_nights.report(nodes=4, nights=2)


def is_delivered(sent: str) -> bool:
    return sent.startswith("notified ")


def send(target: str, night_dir: Path, deadline_s: float = 20.0) -> str:
    (night_dir / "report").mkdir(exist_ok=True)
    (night_dir / "report" / "summary.md").write_text("# FAIL: n5 is slow\n")
    report = bad_night()
    return notify(target, night_dir, report.night, report.judgement, deadline_s=deadline_s, pause_s=0.001)


# --- webhooks -----------------------------------------------------------------------------------------------------------


def test_a_webhook_gets_the_verdict_and_the_summary_as_json(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(200)
    assert send(server.url, tmp_path) == f"notified http://127.0.0.1:{server.server_port}/…"
    path, headers, body = server.requests[0]
    assert (path, headers["Content-Type"]) == (f"/hooks/{SECRET}", "application/json")
    assert body["text"] == "# FAIL: n5 is slow\n"
    assert (body["outcome"], body["exit"], body["bed"], body["directory"]) == ("fail", 1, "lab", str(tmp_path))
    assert body["findings_total"] == len(body["findings"]) > 0


def test_a_server_that_fails_twice_gets_it_the_third_time_with_the_same_identifier(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(503, 429, 204)
    assert is_delivered(send(server.url, tmp_path))
    assert [headers["Idempotency-Key"] for _, headers, _ in server.requests] == [server.requests[0][2]["id"]] * 3


def test_a_server_that_always_fails_is_reported_with_the_number_of_requests(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(500)
    sent = send(server.url, tmp_path)
    assert not is_delivered(sent)
    assert sent.endswith("/…: status 500 (4 requests); the verdict stays as it is")
    assert len(server.requests) == module.ATTEMPTS


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_request_that_is_rejected_is_not_repeated(serve: Callable[..., Server], tmp_path: Path, status: int) -> None:
    server = serve(status)
    sent = send(server.url, tmp_path)
    assert (is_delivered(sent), f"status {status};" in sent, len(server.requests)) == (False, True, 1)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(serve: Callable[..., Server], tmp_path: Path, status: int) -> None:
    server = serve(status)
    sent = send(server.url, tmp_path)
    assert (is_delivered(sent), "redirects are not followed" in sent, len(server.requests)) == (False, True, 1)


@pytest.mark.parametrize("status", [0, -1], ids=["hangs", "drips"])
def test_a_server_that_never_ends_its_response_is_left_at_the_deadline(
    serve: Callable[..., Server], tmp_path: Path, status: int
) -> None:
    server = serve(status)
    begin = time.monotonic()
    sent = send(server.url, tmp_path, deadline_s=0.3)
    assert (is_delivered(sent), "no response within 0.3 s" in sent) == (False, True)
    assert time.monotonic() - begin < 300


def test_nothing_of_a_url_but_its_host_is_printed(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(500, 404)
    with_password = server.url.replace("http://", f"http://bot:{SECRET}@") + f"?token={SECRET}"
    sent = send(with_password, tmp_path)
    assert SECRET not in sent and "bot" not in sent
    assert server.requests[0][1]["Authorization"].startswith("Basic ")
    closed = serve(200)
    closed.close()
    assert SECRET not in send(closed.url, tmp_path, deadline_s=0.5)


@pytest.mark.parametrize(
    "url",
    [
        f"http://[{SECRET}",
        f"http://u:{SECRET}@127.0.0.1:x/",
        f"https://:{SECRET}@/",
        f"http://a b/{SECRET}",
        f"http://h/\n{SECRET}",
    ],
)
def test_a_url_that_is_not_valid_is_said_without_it(url: str, tmp_path: Path) -> None:
    sent = send(url, tmp_path, deadline_s=5.0)
    assert (is_delivered(sent), SECRET in sent) == (False, False)


def test_a_host_that_refuses_is_named_with_the_reason(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(200)
    server.close()
    sent = send(server.url, tmp_path)
    assert f"http://127.0.0.1:{server.server_port}/…: Connection refused (4 requests)" in sent


def test_the_proxy_of_the_environment_is_used(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = serve(200)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
    assert is_delivered(send("http://example.org/x", tmp_path))
    assert proxy.requests[0][0] == "http://example.org/x"


# --- commands -----------------------------------------------------------------------------------------------------------


def command(code: str, *words: str) -> str:
    return shlex.join([sys.executable, "-c", code, *words])


def test_a_command_gets_the_summary_and_the_directory(tmp_path: Path) -> None:
    code = "import pathlib, sys; pathlib.Path(sys.argv[-1], 'got').write_text(sys.stdin.read() + repr(sys.argv[1:]))"
    sent = send(command(code, "--channel", "ops"), tmp_path)
    assert (is_delivered(sent), sent) == (True, f"notified {Path(sys.executable).name} …")
    assert (tmp_path / "got").read_text() == f"# FAIL: n5 is slow\n['--channel', 'ops', {str(tmp_path)!r}]"


def test_without_a_report_the_command_gets_the_sentence(tmp_path: Path) -> None:
    report = bad_night()
    code = "import pathlib, sys; pathlib.Path(sys.argv[-1], 'got').write_text(sys.stdin.read())"
    assert is_delivered(notify(command(code), tmp_path, report.night, report.judgement))
    assert (tmp_path / "got").read_text() == f"FAIL: {report.judgement.sentence}\n"


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    script = 'sleep 600 & echo $! > "$1/child"; wait'
    for deadline_s in (1.0, 5.0, 30.0):
        sent = send(shlex.join(["sh", "-c", script, "sh"]), tmp_path, deadline_s=deadline_s)
        assert f"did not end within {deadline_s:g} s" in sent
        if (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip():
            break
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    until(lambda: not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.mark.parametrize(
    ("target", "reason"),
    [("/no/such/program", "No such file or directory"), ("", "not a command"), ("echo 'open", "not a command: No closing quotation"),
     ("a\0b", "ValueError"), ("a \ud800", "UnicodeEncodeError")],
)  # fmt: skip
def test_a_command_that_cannot_be_started_is_said(target: str, reason: str, tmp_path: Path) -> None:
    sent = send(target, tmp_path)
    assert (is_delivered(sent), reason in sent) == (False, True)


@pytest.mark.parametrize(
    ("target", "name"),
    [("https://h:8443/a/b?c", "https://h:8443/…"), ("HTTPS://u:p@h/x", "https://h/…"),
     ("/opt/bin/page --key k", "page …"), ("page", "page")],
)  # fmt: skip
def test_the_name_of_a_target(target: str, name: str) -> None:
    assert describe(target) == name


def test_a_night_is_recorded_without_the_addresses_that_it_notifies() -> None:
    words = ["nightly", "quick", "--notify", "https://h/secret", "--record", "--notify=run --notify x"]
    words += ["--notify", "--notify", "--yes"]
    assert module.without_targets(words) == ["nightly", "quick", "--record", "--yes"]
