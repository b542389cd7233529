"""A host that connects back over TLS: it serves as a host behind SSH does, and every peer that is not it is disconnected."""

from __future__ import annotations

import errno
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.model.bed import BedSpec, HostSpec
from orchestrator.node.hostlink import reverse_link
from orchestrator.node.hostlink.tls_stream import TlsStream, client_context
from orchestrator.node.oslayer import processes
from orchestrator.providers import archive
from orchestrator.providers.ssh.remote_host import RemoteSite
from orchestrator.slurm.reverse_link import credentials, listener, reverse_connection
from orchestrator.system import plain_files

from ...patience import until

pytestmark = pytest.mark.e2e

HOST, RUN, LIMIT_S = "h1", "R", 120.0


@dataclass(kw_only=True)
class Linked:
    """A bed with one host, and the process on it that connects back."""

    links: Path
    bed: BedSpec
    host: HostSpec
    listener: listener.Listener
    process: subprocess.Popen[bytes]
    log: Path

    def site(self) -> RemoteSite:
        return reverse_connection.make_site(
            self.bed, self.host, self.listener, lambda host: self.log.read_text(), lambda host: ""
        )

    @property
    def hostdir(self) -> Path:
        return Path(self.bed.directory_on(HOST))

    @property
    def token(self) -> str:
        return (self.links / reverse_link.TOKENS / HOST).read_text()


@pytest.fixture
def links(tmp_path: Path) -> Path:
    directory = tmp_path / "shared" / "links"
    credentials.ensure_certificate(directory, tmp_path / "bed")
    credentials.new_token(directory, HOST)
    return directory


@pytest.fixture
def own(links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[listener.Listener]:
    monkeypatch.setattr(listener, "GREETING_S", LIMIT_S)
    server = listener.Listener(links, tmp_path / "bed", [HOST], "127.0.0.1")
    yield server
    server.close()


@pytest.fixture
def linked(links: Path, own: listener.Listener, tmp_path: Path) -> Iterator[Linked]:
    host = HostSpec(name=HOST, connection="ssh")
    bed = BedSpec(
        name="b", provider="slurm", nodes=(), inventory="", workdir=str(tmp_path / "bed"), agent="", hosts=(host,),
        shared_dir=str(tmp_path / "shared"), hostdir=str(tmp_path / "hosts"),
    )  # fmt: skip
    code, _ = archive.write(tmp_path / "shared" / "agent")
    hostdir = bed.directory_on(HOST)
    argv = [sys.executable, "-I", "-S", str(code), "reverse", "--links", str(links), "--host", HOST]
    argv += ["--hostdir", hostdir, "--bed", bed.name, "--root", bed.shared_dir]
    log = tmp_path / "step.log"
    with log.open("wb") as file, subprocess.Popen(argv, stdout=file, stderr=subprocess.STDOUT) as process:
        yield Linked(links=links, bed=bed, host=host, listener=own, process=process, log=log)
        process.kill()


def test_a_site_calls_writes_watches_and_fetches(linked: Linked, tmp_path: Path) -> None:
    site = linked.site()
    site.open(LIMIT_S)
    try:
        assert site.call("routes") is not None
        path = linked.hostdir / "nodes/n0/inbox/c.json"
        site.write(str(path), b"{}")
        until(path.exists)
        site.watch(RUN, ["n0"])
        data = secrets.token_bytes(3 << 20)
        (linked.hostdir / f"nodes/n0/runs/{RUN}").mkdir(parents=True, exist_ok=True)
        (linked.hostdir / f"nodes/n0/runs/{RUN}/bulk.bin").write_bytes(data)
        events = linked.hostdir / f"nodes/n0/runs/{RUN}/agent.a.jsonl"
        events.write_bytes(b'{"n":1}\n')
        mirrored = Path(linked.bed.workdir) / f"nodes/n0/runs/{RUN}/agent.a.jsonl"
        until(lambda: mirrored.exists() and mirrored.read_bytes() == b'{"n":1}\n')
        received = site.fetch("n0", f"runs/{RUN}/bulk.bin", tmp_path / "received", 1 << 30)
        assert (received.reason, (tmp_path / "received").read_bytes()) == ("", data)
        assert "outside of the bed's directories" in site.fetch("n0", "/etc/passwd", tmp_path / "no", 10).reason
    finally:
        site.close()


def test_a_lost_link_is_made_again(linked: Linked) -> None:
    site = linked.site()
    site.open(LIMIT_S)
    try:
        pid = int(Path(f"/proc/{linked.process.pid}/task/{linked.process.pid}/children").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        until(lambda: site.connection_count >= 2 and site.is_connected)
        assert "there" in site.settle()
    finally:
        site.close()


def test_a_host_with_a_new_token_or_without_one_ends(linked: Linked) -> None:
    """A step of an earlier job, or of a bed that is down, serves nothing any more."""
    site = linked.site()
    site.open(LIMIT_S)
    site.close()
    credentials.new_token(linked.links, HOST)
    assert linked.process.wait(LIMIT_S) == 0


@contextmanager
def outsider(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the bed on this host that no step of the test started."""
    tag = processes.node_tag(processes.bed_tag("b", str(tmp_path / "hosts" / HOST)), "n0", "a")
    environment = {**os.environ, processes.TAG_VARIABLE: tag}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        until(lambda: processes.scan() and processes.select(processes.scan(), tag))
        yield process
        process.kill()


@pytest.fixture
def earlier(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with outsider(tmp_path) as process:
        yield process


def test_a_step_that_is_replaced_leaves_what_the_next_step_started(linked: Linked, tmp_path: Path) -> None:
    site = linked.site()
    site.open(LIMIT_S)
    site.close()
    with outsider(tmp_path) as process:
        credentials.new_token(linked.links, HOST)
        assert linked.process.wait(LIMIT_S) == 0
        assert process.poll() is None


def test_a_step_first_ends_what_an_earlier_step_left(earlier: subprocess.Popen[bytes], linked: Linked) -> None:
    site = linked.site()
    site.open(LIMIT_S)
    site.close()
    assert earlier.poll() == -signal.SIGKILL


def test_a_step_ends_all_that_it_started() -> None:
    """Also a process that detached."""
    code = (
        "import subprocess; from orchestrator.node.hostlink import reverse_link; from orchestrator.node.oslayer import forks\n"
        "forks.become_subreaper()\n"
        "subprocess.run(['sh', '-c', 'setsid sleep 600 >/dev/null & echo $!'])\n"
        "subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL)\n"
        "reverse_link._end_descendants()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True)
    detached = processes.find(int(done.stdout))
    assert detached is None or detached.state in processes.EXITED


def test_a_step_that_cannot_fork_tries_again(
    links: Path, own: listener.Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    step = reverse_link.ReverseLinks(links, HOST, reverse_link.read_pinned(links, HOST), str(links), [])
    with monkeypatch.context() as patched:
        patched.setattr(os, "fork", fail)
        step.poll(100.0)
    monkeypatch.setattr(os, "fork", lambda: 1 << 30)
    step.poll(100.0)
    assert [state.pid for state in step._attempts.values()] == [0]
    step.poll(200.0)
    assert [state.pid for state in step._attempts.values()] == [1 << 30]


def test_each_command_has_its_own_link(linked: Linked, links: Path, tmp_path: Path) -> None:
    second = listener.Listener(links, tmp_path / "bed", [HOST], "127.0.0.1")
    other = reverse_connection.make_site(linked.bed, linked.host, second, lambda host: "", lambda host: "")
    site = linked.site()
    try:
        site.open(LIMIT_S)
        other.open(LIMIT_S)
        assert site.settle().keys() == other.settle().keys()
        assert len(reverse_link.read_listeners(links)) == 2
    finally:
        other.close()
        site.close()
        second.close()
    assert len(reverse_link.read_listeners(links)) == 1


def test_a_listener_of_a_killed_command_leaves_the_list(links: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from orchestrator.slurm.reverse_link import listener\n"
        f"listener.Listener(Path({str(links)!r}), Path({str(tmp_path / 'bed')!r}), ['h1']); print('up', flush=True)\n"
        "sys.stdin.read()"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"up\n"
        assert len(reverse_link.read_listeners(links)) == 1
        process.kill()
    server = listener.Listener(links, tmp_path / "bed", [HOST], "127.0.0.1")
    assert [row["port"] for row in reverse_link.read_listeners(links).values()] == [server.port]
    server.close()


def test_rows_of_other_machines_expire_unless_they_are_renewed(links: Path, tmp_path: Path) -> None:
    rows = [{"id": f"r{age}", "machine": "another", "at": time.time() - age} for age in (60, 1000)]
    rows.append({"id": "old", "machine": "another"})
    plain_files.replace_file(links / reverse_link.LISTENERS, json.dumps({"listeners": rows}).encode())
    server = listener.Listener(links, tmp_path / "bed", [HOST], "127.0.0.1")
    assert [name for name in reverse_link.read_listeners(links) if name.startswith(("r", "old"))] == ["r60"]
    server.close()


def test_a_listener_renews_its_row(links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "RENEW_S", 0.01)
    server = listener.Listener(links, tmp_path / "bed", [HOST], "127.0.0.1")
    (first,) = reverse_link.read_listeners(links).values()
    until(lambda: next(iter(reverse_link.read_listeners(links).values()))["at"] > first["at"])
    assert len(reverse_link.read_listeners(links)) == 1
    server.close()
    assert reverse_link.read_listeners(links) == {}


def test_a_listener_without_a_free_descriptor_serves_later(
    own: listener.Listener, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = socket.socket.accept
    failures: list[int] = []

    def fail(sock: socket.socket) -> tuple[socket.socket, object]:
        if len(failures) < 3:
            failures.append(errno.EMFILE)
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(sock)

    monkeypatch.setattr(socket.socket, "accept", fail)
    row = next(iter(reverse_link.read_listeners(links).values()))
    reverse_link.connect(row, HOST, reverse_link.read_pinned(links, HOST))
    own.take(HOST, LIMIT_S).close()
    assert len(failures) == 3


def test_a_server_with_another_certificate_gets_no_token(links: Path, tmp_path: Path) -> None:
    """The host verifies the server before it sends a byte of its token."""
    credentials.ensure_certificate(tmp_path / "foreign", tmp_path / "foreign-key")
    credentials.new_token(tmp_path / "foreign", HOST)
    server = listener.Listener(tmp_path / "foreign", tmp_path / "foreign-key", [HOST], "127.0.0.1")
    row = next(iter(reverse_link.read_listeners(tmp_path / "foreign").values()))
    with pytest.raises(OSError, match="another certificate than the pinned one"):
        reverse_link.connect(row, HOST, reverse_link.read_pinned(links, HOST))
    until(lambda: server.rejected)
    assert "token" not in server.rejected[0]
    server.close()


def greet(server: listener.Listener, links: Path, greeting: bytes) -> bytes:
    """The reply to a peer that knows the certificate and sends this; empty if it was disconnected."""
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=900)
    certificate = (links / reverse_link.CERTIFICATE).read_bytes()
    stream = TlsStream(sock, client_context(certificate))
    stream.handshake(time.monotonic() + 600)
    try:
        stream.sendall(greeting)
        return stream.receive_line(1024, time.monotonic() + 600)
    except (EOFError, OSError):
        return b""
    finally:
        stream.close()


@pytest.mark.parametrize(
    "change",
    [
        {"token": "0" * 64},
        {"token": ""},
        {"token": None},
        {"token": ["a"]},
        {"host": "h2"},
        {"host": "../tokens/h1"},
        {"host": None},
        {"listener": "another"},
    ],
    ids=str,
)
def test_a_wrong_greeting_is_disconnected(own: listener.Listener, links: Path, change: dict[str, object]) -> None:
    token = (links / reverse_link.TOKENS / HOST).read_text()
    identity = next(iter(reverse_link.read_listeners(links)))
    right = {"host": HOST, "token": token, "listener": identity}
    assert greet(own, links, json.dumps({**right, **change}).encode() + b"\n") == b""
    with pytest.raises(TimeoutError):
        own.take(HOST, 0.0)
    assert greet(own, links, json.dumps(right).encode() + b"\n") == reverse_link.WELCOME


def test_an_earlier_token_is_rejected(own: listener.Listener, links: Path) -> None:
    identity = next(iter(reverse_link.read_listeners(links)))
    earlier = (links / reverse_link.TOKENS / HOST).read_text()
    credentials.new_token(links, HOST)
    greeting = {"host": HOST, "token": earlier, "listener": identity}
    assert greet(own, links, json.dumps(greeting).encode() + b"\n") == b""
    until(lambda: own.rejected)
    assert "wrong token" in own.rejected[-1]
    assert own.rejection(HOST) == "a wrong token"
    assert own.rejection("h") == own.rejection(f"{HOST}0") == ""


@pytest.mark.parametrize("data", [b"\n", b"[]\n", b"x" * 5000, b"[" * 1000 + b"\n", b"\xff\xfe\n"], ids=range(5))
def test_garbage_inside_tls_is_disconnected(own: listener.Listener, links: Path, data: bytes) -> None:
    assert greet(own, links, data) == b""


def test_garbage_and_recorded_bytes_outside_of_tls_are_disconnected(own: listener.Listener, links: Path) -> None:
    """Bytes of an accepted session, sent again, do not even complete a handshake."""
    recorded = record_session(own, links)
    assert len(recorded) > 400
    for data in (b"GET / HTTP/1.0\r\n\r\n", secrets.token_bytes(4096), b"", recorded):
        with socket.create_connection(("127.0.0.1", own.port), timeout=900) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                while sock.recv(4096):
                    pass
    with pytest.raises(TimeoutError):
        own.take(HOST, 0.0)


def record_session(own: listener.Listener, links: Path) -> bytes:
    """What a host sends to be accepted, as a peer on the network between records it. Its stream is taken and closed."""
    relay = socket.create_server(("127.0.0.1", 0))
    sent = bytearray()

    def forward() -> None:
        near, _ = relay.accept()
        far = socket.create_connection(("127.0.0.1", own.port))
        threads = [threading.Thread(target=copy, args=pair) for pair in ((near, far, sent), (far, near, bytearray()))]
        for thread in threads:
            thread.start()

    def copy(source: socket.socket, target: socket.socket, record: bytearray) -> None:
        try:
            while data := source.recv(4096):
                record += data
                target.sendall(data)
        except OSError:
            pass
        target.close()

    thread = threading.Thread(target=forward)
    thread.start()
    row = {**next(iter(reverse_link.read_listeners(links).values())), "port": relay.getsockname()[1]}
    stream = reverse_link.connect(row, HOST, reverse_link.read_pinned(links, HOST))
    own.take(HOST, LIMIT_S).close()
    stream.close()
    thread.join()
    relay.close()
    return bytes(sent)


def test_a_stream_that_nothing_takes_is_kept(own: listener.Listener, links: Path) -> None:
    (row,) = reverse_link.read_listeners(links).values()
    stream = reverse_link.connect(row, HOST, reverse_link.read_pinned(links, HOST))
    until(lambda: HOST in own._streams and own._loop.call_soon_threadsafe(own._keep))
    assert json.loads(stream.receive_line(1024, time.monotonic() + 600)) == {"id": 0, "do": "ping"}
    stream.close()


def test_silent_peers_do_not_keep_a_host_out(
    own: listener.Listener, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More silent peers than may be pending: all of them are disconnected in time, and the host connects."""
    monkeypatch.setattr(listener, "GREETING_S", 0.5)
    peers = [socket.create_connection(("127.0.0.1", own.port)) for _ in range(listener.MAX_PENDING + 8)]
    row = next(iter(reverse_link.read_listeners(links).values()))
    pinned = reverse_link.read_pinned(links, HOST)

    def is_connected() -> bool:
        try:
            reverse_link.connect(row, HOST, pinned)
        except (OSError, EOFError, ValueError):
            return False
        return True

    until(is_connected)
    for peer in peers:
        peer.settimeout(60)
        with suppress(ConnectionError):
            assert peer.recv(1) == b""
        peer.close()
    own.take(HOST, LIMIT_S).close()


@pytest.mark.parametrize(("has_handshake", "pace_s"), [(False, 0.004), (True, 0.2)])
def test_a_slow_peer_is_disconnected_in_time(
    own: listener.Listener, links: Path, monkeypatch: pytest.MonkeyPatch, *, has_handshake: bool, pace_s: float
) -> None:
    """It sends a byte of a record now and then: at this pace the record would take longer than a minute."""
    monkeypatch.setattr(listener, "GREETING_S", 2.0)
    with socket.create_connection(("127.0.0.1", own.port), timeout=900) as sock:
        stream = TlsStream(sock, client_context((links / reverse_link.CERTIFICATE).read_bytes()))
        record = b"\x16\x03\x01\x40\x00" + bytes(16384)
        if has_handshake:
            stream.handshake(time.monotonic() + 600)
            stream._tls.write(bytes(16384))
            record = stream._outgoing.read()
        end = time.monotonic() + 600
        sock.settimeout(pace_s)
        for byte in record:
            assert time.monotonic() < end, "it is still connected"
            try:
                sock.sendall(bytes([byte]))
                assert sock.recv(1) == b""
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break


def test_secrets_that_others_can_access_are_not_used(links: Path) -> None:
    token = links / reverse_link.TOKENS / HOST
    assert token.stat().st_mode & 0o777 == 0o600
    token.chmod(0o640)
    with pytest.raises(PermissionError, match="chmod 600"):
        reverse_link.read_pinned(links, HOST)
    assert not credentials.is_token(links, HOST, token.read_text())
    token.chmod(0o600)
    assert credentials.is_token(links, HOST, token.read_text())
    (links / reverse_link.LISTENERS).write_text('{"listeners": [{"id": "a"}]}')
    (links / reverse_link.LISTENERS).chmod(0o606)
    assert reverse_link.read_listeners(links) == {}


def test_old_tls_is_rejected(own: listener.Listener) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", own.port), timeout=900) as sock, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(sock)


def test_both_directions_of_a_stream_at_once(own: listener.Listener, links: Path) -> None:
    """16 MiB go each way: no byte is lost or doubled, and neither direction waits for the other."""
    row = next(iter(reverse_link.read_listeners(links).values()))
    near = reverse_link.connect(row, HOST, reverse_link.read_pinned(links, HOST))
    far, data = own.take(HOST, LIMIT_S), secrets.token_bytes(16 << 20)
    received: dict[str, bytearray] = {"near": bytearray(), "far": bytearray()}

    def receive() -> None:
        while len(received["near"]) < len(data):
            received["near"] += near.recv(1 << 16)

    far.deliver_to(received["far"].extend, lambda reason: None)
    far.sendall(data)
    work = [threading.Thread(target=near.sendall, args=(data,)), threading.Thread(target=receive)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join(LIMIT_S)
    until(lambda: len(received["far"]) == len(data))
    assert (bytes(received["near"]), bytes(received["far"])) == (data, data)
    near.close()
    far.close()
