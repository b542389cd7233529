"""One connection that stays, against `ssh host COMMAND` each time: an operation of the host, and a file written there."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.model.bed import HostSpec
from orchestrator.providers.event_reader import whole_lines
from orchestrator.providers.ssh.remote_host import RemoteSite

from ..e2e import sshd
from . import table

pytestmark = pytest.mark.skipif(bool(sshd.lacking()), reason=sshd.lacking())

RUN = "R"
EVENTS = f"nodes/n0/runs/{RUN}/agent.a.jsonl"
SSH, ASK, ECHO = "ssh host true", "ask over the connection", "host file to mirror"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path / "sshd") as server:
        yield server


@pytest.fixture
def site(server: sshd.Sshd, tmp_path: Path) -> Iterator[RemoteSite]:
    site = RemoteSite(sshd.bed(tmp_path, server.host()), server.host())
    site.open()
    site.watch(RUN, ["n0"])
    yield site
    site.close()


def fresh(host: HostSpec) -> float:
    options = [
        "-F",
        "/dev/null",
        "-i",
        str(host.key),
        "-o",
        f"UserKnownHostsFile={host.known_hosts}",
        "-o",
        "BatchMode=yes",
    ]
    before = time.monotonic()
    argv = ["ssh", *options, "-p", str(host.port), f"{host.user}@{host.address}", "true"]
    subprocess.run(argv, check=True, timeout=30, stdin=subprocess.DEVNULL)
    return time.monotonic() - before


def round_trip_s(site: RemoteSite) -> float:
    before = time.monotonic()
    sshd.ping(site)
    return time.monotonic() - before


def test_a_connection_that_stays_is_at_least_twenty_times_as_fast(
    server: sshd.Sshd, site: RemoteSite, tmp_path: Path
) -> None:
    remote_path, local_path = tmp_path / "host" / EVENTS, site.root / EVENTS
    remote_path.parent.mkdir(parents=True)
    remote_path.touch()
    numbers = itertools.count()

    def echoed() -> float:
        """A line appended on the host until it is a whole line here."""
        size = remote_path.stat().st_size
        line = b'{"n":%d}\n' % next(numbers)
        before = time.monotonic()
        with remote_path.open("ab") as file:
            file.write(line)
        while not whole_lines(local_path, size)[0]:
            time.sleep(0.0001)
        return time.monotonic() - before

    echoed()
    rounds = 4 * table.ROUNDS
    cases = {SSH: lambda: fresh(server.host()), ASK: lambda: round_trip_s(site), ECHO: echoed}
    note = f"The same sshd on loopback; {os.cpu_count()} cores. The file is found by inotify there and written here."
    results = table.Table(
        name="wire", title="To a host and back", samples=table.paired(cases, rounds), against=SSH, notes=(note,)
    )
    results.write()
    assert results.ratio(ASK) >= 20
    assert results.ratio(ECHO) >= 20
