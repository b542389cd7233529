"""A host over a real SSH connection: events at once, the same bytes, and a connection that comes back."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.model.bed import BedSpec
from orchestrator.model.provider import Cursors
from orchestrator.providers.bed_commands import BED
from orchestrator.providers.event_reader import Follower
from orchestrator.providers.ssh import ssh_connection
from orchestrator.providers.ssh.remote_host import RemoteSite

from ...patience import until
from .. import sshd

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(sshd.lacking()), reason=sshd.lacking())]

RUN = "R"
NODES = ("n0", "n1")
#: On an idle machine it is under a millisecond; this is what a loaded one may take.
EVENT_S = 0.15
#: The limit of a hang.
LIMIT_S = 120.0


@dataclass(kw_only=True)
class Wired:
    """A site that is connected, the host's directory behind it, and the server between them."""

    server: sshd.Sshd
    bed: BedSpec
    site: RemoteSite

    def remote_path(self, name: str) -> Path:
        path = Path(self.bed.hostdir) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def local_path(self, name: str) -> Path:
        return Path(self.bed.workdir) / name

    def append(self, name: str, data: bytes) -> None:
        with self.remote_path(name).open("ab") as file:
            file.write(data)

    def same(self, name: str) -> bool:
        local, remote = self.local_path(name), self.remote_path(name)
        is_as_long = local.exists() and local.stat().st_size == remote.stat().st_size
        return is_as_long and local.read_bytes() == remote.read_bytes()

    def follower(self) -> Follower:
        return Follower(
            Path(self.bed.workdir), RUN, [self.local_path(f"nodes/{node}/runs/{RUN}") for node in NODES], []
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def wired(server: sshd.Sshd, tmp_path: Path) -> Iterator[Wired]:
    bed = sshd.bed(tmp_path, server.host())
    site = RemoteSite(bed, server.host())
    site.open(LIMIT_S)
    site.watch(RUN, NODES)
    yield Wired(server=server, bed=bed, site=site)
    site.close()
    until(lambda: server.sessions() == 0 and not server.children())


def cut(wired: Wired) -> None:
    """Cut the connection, and wait until it is lost, or another one has replaced it already."""
    before = wired.site.connection_count
    assert wired.server.cut()
    until(lambda: not wired.site.is_connected or wired.site.connection_count > before)


def line(number: int, node: str = "n0") -> bytes:
    source = f'"source":{{"node":"{node}","incarnation":"a","writer":"agent","n":{number}}}'
    at = '"at":{"boot":"b","mono":1.0,"wall":1.0}'
    return f'{{"type":"note","f":"progress","node":"{node}","value":{{"n":{number}}},{at},{source}}}\n'.encode()


def latencies(wired: Wired, count: int) -> list[float]:
    """Seconds from an append on the host to the event that the follower of the mirror gives."""
    follower, received = wired.follower(), []
    name = f"nodes/n0/runs/{RUN}/agent.a.jsonl"
    cursors: Cursors = {}
    _, cursors = follower.poll(cursors, 0)
    for number in range(count):
        before = time.monotonic()
        wired.append(name, line(number))
        events: list[object] = []
        while not events:
            got, cursors = follower.poll(cursors, 5.0)
            events += got
        received.append(time.monotonic() - before)
        assert len(events) == 1
    follower.close()
    return received


def test_somebody_new_hears_an_sshd_that_is_there_and_none_that_is_not(tmp_path: Path) -> None:
    with sshd.running(tmp_path / "sshd") as own:
        connection = ssh_connection.connect(own.host())
        assert connection.is_responding(LIMIT_S) is True
        own.process.terminate()
        own.process.wait(60)
        assert connection.is_responding(LIMIT_S) is False
        connection.close()


def test_an_event_is_here_at_once(wired: Wired, record_property: Callable[[str, object], None]) -> None:
    taken = latencies(wired, 50)
    record_property("median_s", statistics.median(taken))
    print(f"event, host file to follower: median {statistics.median(taken) * 1000:.2f} ms")
    # If the file were polled four times a second, an event, which is appended when the previous one is here, would take 0.25 s.
    assert statistics.quantiles(taken, n=4)[0] < EVENT_S


def test_a_big_log_does_not_delay_events(wired: Wired) -> None:
    log = f"nodes/n0/runs/{RUN}/i1-e0/rank-0.log"
    wired.append(log, os.urandom(16 << 20) * 6)
    until(lambda: wired.local_path(log).exists())
    taken = latencies(wired, 5)
    is_first = wired.local_path(log).stat().st_size < wired.remote_path(log).stat().st_size
    print(f"event beside a 96 MB log: median {statistics.median(taken) * 1000:.2f} ms, most {max(taken) * 1000:.2f} ms")
    assert is_first, "the log, which began earlier, is whole later"
    until(lambda: wired.same(log))


def test_every_node_has_its_own_bytes(wired: Wired) -> None:
    names = [f"nodes/{node}/{path}" for node in NODES for path in ("agent.log", f"runs/{RUN}/i1-e0/rank-0.log")]
    for name in names:
        wired.append(name, name.encode() + os.urandom(300_000))
    wired.append("nodes/n2/agent.log", b"nobody asked for this one")
    for node in NODES:
        assert wired.site.settle(f"nodes/{node}")["there"]
    assert all(wired.same(name) for name in names)
    assert all(wired.local_path(name).read_bytes().startswith(name.encode()) for name in names)
    assert not wired.local_path("nodes/n2").exists()


def test_a_cut_connection_goes_on_where_it_was(wired: Wired) -> None:
    event, log = f"nodes/n0/runs/{RUN}/agent.a.jsonl", f"nodes/n1/runs/{RUN}/i1-e0/rank-1.log"
    wired.append(event, line(0))
    wired.append(log, os.urandom(3 << 20))
    until(lambda: wired.local_path(log).exists())
    cut(wired)
    wired.append(event, line(1) + line(2))
    wired.append(log, os.urandom(1 << 20))
    until(lambda: wired.site.is_connected)
    until(lambda: wired.same(event) and wired.same(log))
    until(lambda: wired.server.sessions() == 1)


def test_commands_of_a_time_without_connection_arrive(wired: Wired) -> None:
    place = Path(wired.bed.hostdir) / "nodes/n0/inbox"
    wired.site.write(f"{place}/R.a.json", b"before")
    until((place / "R.a.json").exists)
    cut(wired)
    wired.site.write(f"{place}/R.b.json", b"meanwhile")
    until((place / "R.b.json").exists)
    assert (place / "R.b.json").read_bytes() == b"meanwhile"


def test_the_mirror_outlives_its_orchestrator(wired: Wired) -> None:
    name = f"nodes/n0/runs/{RUN}/agent.a.jsonl"
    wired.append(name, line(0))
    until(lambda: wired.same(name))
    wired.site.close()
    kept = wired.local_path(name).stat().st_ino
    wired.append(name, line(1))
    second = RemoteSite(wired.bed, wired.server.host())
    second.open(LIMIT_S)
    second.watch(RUN, NODES)
    assert wired.same(name)
    assert wired.local_path(name).stat().st_ino == kept, "it was gone on with"
    second.close()


def test_a_mirror_that_differs_is_fetched_anew(wired: Wired) -> None:
    name = f"nodes/n0/runs/{RUN}/agent.a.jsonl"
    wired.append(name, line(0) * 3)
    until(lambda: wired.same(name))
    wired.site.close()
    wired.local_path(name).write_bytes(b"something else\n")
    second = RemoteSite(wired.bed, wired.server.host())
    second.open(LIMIT_S)
    second.watch(RUN, NODES)
    assert wired.same(name)
    second.close()


def test_the_wheel_is_taken_again_after_a_cut(wired: Wired) -> None:
    cut(wired)
    until(lambda: wired.site.is_connected)
    other = RemoteSite(wired.bed, wired.server.host())
    other.open(LIMIT_S)
    with pytest.raises(
        OSError, match=rf"run {RUN} of {ssh_connection.own_name()} \(pid {os.getpid()}\) drives this bed"
    ):
        other.watch("R2", NODES)
    wired.site.watch(BED, NODES)
    sshd.ping(wired.site)
    other.watch("R2", NODES)
    other.close()


def test_what_a_node_wrote_is_gathered_to_the_last_byte(wired: Wired, tmp_path: Path) -> None:
    name = f"nodes/n0/runs/{RUN}/i1-e0/rank-0.log"
    wired.append(name, os.urandom(700_000))
    got = wired.site.fetch("n0", f"runs/{RUN}", tmp_path / "to", 1 << 20)
    assert (got.size, got.reason, got.capped) == (700_000, "", ())
    assert (tmp_path / "to/i1-e0/rank-0.log").read_bytes() == wired.remote_path(name).read_bytes()
    assert wired.site.fetch("n0", f"runs/{RUN}", tmp_path / "less", 1000).capped
    assert wired.site.fetch("n0", "runs/gone", tmp_path / "none", 1000).reason == "not there"


def test_the_shared_directory_can_be_fetched_too(wired: Wired, tmp_path: Path) -> None:
    wired.remote_path("shared/R/checkpoints/a.pt").write_bytes(os.urandom(600_000))
    got = wired.site.fetch("n0", f"{wired.bed.shared_dir}/R", tmp_path / "to", 1 << 20)
    assert (got.size, got.reason) == (600_000, "")
    assert (tmp_path / "to/checkpoints/a.pt").read_bytes() == wired.remote_path(
        "shared/R/checkpoints/a.pt"
    ).read_bytes()


def test_a_lost_host_is_missing_with_its_reason(server: sshd.Sshd, tmp_path: Path) -> None:
    with sshd.running(tmp_path / "sshd") as own:
        bed = sshd.bed(tmp_path, own.host())
        site = RemoteSite(bed, own.host())
        site.open(LIMIT_S)
        site.watch(RUN, ["n0"])
        remote_path = tmp_path / "host/nodes/n0/agent.log"
        remote_path.parent.mkdir(parents=True)
        remote_path.write_bytes(b"early\n")
        mirrored = tmp_path / "mirror/nodes/n0/agent.log"
        until(lambda: mirrored.exists() and mirrored.read_bytes() == b"early\n")
    until(lambda: not site.is_connected)
    before = time.monotonic()
    got = site.fetch("n0", "agent.log", tmp_path / "to", 1000, 10 * LIMIT_S)
    gone = site.fetch("n0", f"runs/{RUN}", tmp_path / "none", 1000, 10 * LIMIT_S)
    assert time.monotonic() - before < LIMIT_S
    assert (tmp_path / "to").read_bytes() == b"early\n"
    assert "refuses connections" in got.reason
    assert "what had come before is here" in got.reason
    assert "refuses connections" in gone.reason
    with pytest.raises(OSError, match="not connected"):
        site.call("look")
    site.close()


def test_a_host_that_falls_silent_holds_nobody_up(wired: Wired) -> None:
    helper = wired.server.programs()[0]
    os.kill(helper, signal.SIGSTOP)
    count, before = wired.site.connection_count, time.monotonic()
    with pytest.raises(OSError, match="no response from it"):
        wired.site.call("look", 10 * LIMIT_S)
    assert time.monotonic() - before < LIMIT_S
    until(lambda: wired.site.connection_count > count and wired.site.is_connected)
    assert sshd.ping(wired.site, LIMIT_S)["boot"]
    with suppress(ProcessLookupError):
        os.kill(helper, signal.SIGCONT)


def test_one_session_serves_everything(wired: Wired) -> None:
    for _ in range(20):
        sshd.ping(wired.site)
        wired.site.put({"orchestrator/a.py": b"x = 1\n"})
    connection = wired.site.connection
    for _ in range(20):
        assert connection.run(["true"]).code == 0
    until(lambda: wired.server.sessions() == 1)


def test_a_login_shell_that_talks_is_passed_over(tmp_path: Path) -> None:
    talk = f"{tmp_path}/talk"
    Path(talk).write_text('#!/bin/sh\necho "welcome to {this} host"\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    Path(talk).chmod(0o755)
    with sshd.running(tmp_path / "sshd", f"ForceCommand {talk}") as own:
        site = RemoteSite(sshd.bed(tmp_path, own.host()), own.host())
        site.open(LIMIT_S)
        assert sshd.ping(site)["boot"]
        site.close()


def test_who_only_looked_leaves_nothing_behind(server: sshd.Sshd, tmp_path: Path) -> None:
    site = RemoteSite(sshd.bed(tmp_path, server.host()), server.host())
    site.open(LIMIT_S)
    assert sshd.ping(site)["boot"]
    assert (tmp_path / "host/agent").is_dir()
    site.close()
    until(lambda: not (tmp_path / "host").exists())
    assert not (tmp_path / "mirror").exists()
