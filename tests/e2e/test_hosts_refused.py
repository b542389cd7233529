"""Every way in which a host cannot be used is one sentence that says what to do; the sentences are a golden file."""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.inventory import ssh_options
from orchestrator.model.bed import HostSpec
from orchestrator.providers.ssh import connection_errors, ssh_connection
from orchestrator.providers.ssh.connection_errors import HostError
from orchestrator.providers.ssh.destinations import Destination
from orchestrator.providers.ssh.remote_host import RemoteSite

from ..patience import until
from . import sshd

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(sshd.lacking()), reason=sshd.lacking())]

#: The limit of a hang: no sentence depends on it.
LIMIT_S = 600.0
GOLDEN = Path(__file__).parents[1] / "golden" / "hosts" / "refused.txt"


@dataclass(kw_only=True)
class Place:
    """A server, a directory for what is wrong, and no configuration of ssh but this one's."""

    server: sshd.Sshd
    tmp: Path

    def host(self, **more: Any) -> HostSpec:
        return self.server.host(**more)

    def connect(self, host: HostSpec, deadline_s: float = LIMIT_S) -> ssh_connection.Connection:
        return ssh_connection.connect(host, deadline_s, config=self.tmp / "no_config")

    def open(self, host: HostSpec, hostdir: str = "") -> None:
        bed = sshd.bed(self.tmp / "bed", host)
        bed = replace(bed, hostdir=hostdir or bed.hostdir)
        RemoteSite(bed, host, self.connect).open(LIMIT_S)

    def empty(self) -> str:
        path = self.tmp / "known_empty"
        path.touch()
        return str(path)

    def other_key(self) -> str:
        return str(sshd.make_key(self.tmp / "other_key"))

    def changed(self) -> str:
        key = sshd.make_key(self.tmp / "other_host").with_suffix(".pub").read_text()
        path = self.tmp / "known_changed"
        path.write_text(f"[{sshd.ADDRESS}]:{self.server.port} {key}")
        return str(path)

    def program(self, text: str) -> str:
        path = self.tmp / "python"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)


def silent(place: Place) -> None:
    with socket.socket() as listener:
        listener.bind((sshd.ADDRESS, 0))
        listener.listen()
        host = place.host(port=listener.getsockname()[1], known_hosts=place.empty())
        place.connect(host, 0.5)


def by_error(error: Exception) -> Callable[[Place], None]:
    def refuse(place: Place) -> None:
        host = place.host(address="h9")
        destination = Destination(host=host, address="h9", port=22, user="ann", keys=(), known=(Path("known_hosts"),))
        raise connection_errors.explain(destination, error, 10.0)

    return refuse


CASES: dict[str, Callable[[Place], object]] = {
    "wrong key": lambda p: p.connect(p.host(key=p.other_key())),
    "key with passphrase": lambda p: p.connect(p.host(key=str(sshd.make_key(p.tmp / "locked", "secret")))),
    "no such key": lambda p: p.connect(p.host(key=f"{p.tmp}/gone")),
    "wrong user": lambda p: p.connect(p.host(user="no-such-user")),
    "unknown host key": lambda p: p.connect(p.host(known_hosts=p.empty())),
    "changed host key": lambda p: p.connect(p.host(known_hosts=p.changed())),
    "changed host key, first contact allowed": lambda p: p.connect(p.host(known_hosts=p.changed(), first_contact=True)),
    "refused": lambda p: p.connect(p.host(port=sshd.free_port())),
    "silent": silent,
    "unreachable": by_error(OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))),
    "no such name": by_error(socket.gaierror(-2, "Name or service not known")),
    "connection reset": by_error(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))),
    "no python": lambda p: p.open(p.host(python="/nowhere/python3")),
    "old python": lambda p: p.open(p.host(python=p.program('echo \'{"old": "3.6"}\''))),
    "broken python": lambda p: p.open(p.host(python=p.program("echo cannot open shared object >&2; exit 3"))),
    "proxy": lambda p: p.connect(p.host(ssh={"proxycommand": ("echo it is closed >&2; exit 3",)})),
    "directory": lambda p: p.open(p.host(), hostdir="/dev/null/ccbed"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def place(server: sshd.Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return Place(server=server, tmp=tmp_path)


def sentence(place: Place, case: str) -> str:
    """What is said, with everything taken out that differs from machine to machine."""
    with pytest.raises(HostError) as caught:
        CASES[case](place)
    text = str(caught.value)
    for original, shown in ((str(place.tmp), "DIR"), (str(place.server.directory), "SSHD")):
        text = text.replace(original, shown)
    text = text.replace(f"{place.host().user}@", "ME@").replace(f"by {place.host().user}:", "by ME:")
    text = text.replace(f" of {place.host().user} ", " of ME ")
    text = re.sub(r"SHA256:[A-Za-z0-9+/]{43}", "SHA256:HASH", text)
    return re.sub(r"(127\.0\.0\.1\]?:|port |-p )\d+", r"\1PORT", text)


def golden() -> dict[str, str]:
    return dict(line.split(": ", 1) for line in GOLDEN.read_text().splitlines())


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_is_the_golden_one(place: Place, case: str) -> None:
    assert sentence(place, case) == golden()[case]


def test_nothing_is_left_of_a_refused_host(place: Place) -> None:
    for case in ("no python", "old python", "directory"):
        sentence(place, case)
    until(lambda: not place.server.children())


def test_a_first_contact_records_the_key_and_is_strict_from_then_on(place: Place) -> None:
    known = place.empty()
    place.connect(place.host(known_hosts=known, first_contact=True)).close()
    assert Path(known).read_text().count("ssh-ed25519") == 1
    place.connect(place.host(known_hosts=known)).close()
    assert Path(known).read_text().count("\n") == 1


def test_the_users_own_configuration_counts(place: Place) -> None:
    config = place.tmp / "config"
    config.write_text(
        f"Host h1\n  HostName {sshd.ADDRESS}\n  Port {place.server.port}\n  User {place.host().user}\n"
        f"  IdentityFile {place.server.key}\n  UserKnownHostsFile {place.server.known}\n"
    )
    host = HostSpec(name="h1", connection="ssh", address="h1")
    connection = ssh_connection.connect(host, LIMIT_S, config=config)
    assert connection.run(["echo", "a; b"]).out == b"a; b\n"
    connection.close()


def test_a_host_behind_others_is_reached_by_the_way_that_the_inventory_names(
    place: Place, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Through a second server, which alone is told the address; by ProxyCommand, and by ProxyJump."""
    with sshd.running(tmp_path_factory.mktemp("bastion")) as bastion:
        login = f"-i {bastion.key} -o UserKnownHostsFile={bastion.known} -o BatchMode=yes -p {bastion.port}"
        command = f"ssh -F none {login} -W %h:%p {place.host().user}@{sshd.ADDRESS}"
        config = place.tmp / "config"
        config.write_text(
            f"Host bastion\n  HostName {sshd.ADDRESS}\n  Port {bastion.port}\n  IdentityFile {bastion.key}\n"
            f"  UserKnownHostsFile {bastion.known}\n"
        )
        ways = (f"-o 'ProxyCommand={command}'", f"-F {config} -J {place.host().user}@bastion")
        for arguments in ways:
            host = place.host(ssh=ssh_options.read(arguments))
            connection = place.connect(host)
            peer = connection.run(["sh", "-c", "echo $SSH_CONNECTION"]).out.decode().split()
            assert connection.run(["cat"], stdin=b"x" * 300_000, deadline_s=LIMIT_S).out == b"x" * 300_000
            assert peer[3] == str(place.server.port)
            assert len(bastion.children()) >= 1, "it goes by the bastion"
            connection.close()
            until(lambda: not bastion.children())
        bastion.cut()
    with pytest.raises(HostError, match=r"cannot be reached through its proxy: .*Connection refused"):
        place.connect(place.host(ssh=ssh_options.read(ways[0])))


def test_a_silent_host_costs_its_deadline_once(place: Place) -> None:
    before = time.monotonic()
    sentence(place, "silent")
    assert time.monotonic() - before < LIMIT_S / 2


def test_a_command_has_a_deadline(place: Place) -> None:
    connection = place.connect(place.host())
    with pytest.raises(HostError, match=r"`sleep` did not end within 5 s"):
        connection.run(["sleep", "60"], deadline_s=5.0)  # a busy machine may need seconds to start it
    assert connection.run(["cat"], stdin=b"x" * 300_000, deadline_s=LIMIT_S).out == b"x" * 300_000
    assert connection.run(["sh", "-c", "echo no >&2; exit 3"]).code == 3
    connection.close()


if __name__ == "__main__":  # writes the golden file anew
    import tempfile

    with tempfile.TemporaryDirectory() as directory, sshd.running(Path(directory) / "sshd") as running:
        lines = []
        for number, name in enumerate(CASES):
            folder = Path(directory) / str(number)
            folder.mkdir()
            lines.append(f"{name}: {sentence(Place(server=running, tmp=folder), name)}\n")
        GOLDEN.write_text("".join(lines))
