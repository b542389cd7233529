"""The directories of a bed's certificate and tokens, in which other users can replace no file, and the ports of its listeners."""

from __future__ import annotations

import errno
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.errors import InfrastructureError
from orchestrator.node.hostlink import reverse_link
from orchestrator.slurm.reverse_link import credentials, listener
from orchestrator.system import host_facts


def test_a_directory_in_which_others_can_replace_files_is_rejected(tmp_path: Path) -> None:
    links = tmp_path / "shared" / "links"
    credentials.ensure_certificate(links, tmp_path / "bed")
    for directory in (links.parent, links, links / reverse_link.TOKENS):
        directory.chmod(0o770)
        with pytest.raises(InfrastructureError) as error:
            credentials.ensure_certificate(links, tmp_path / "bed")
        assert error.value.hint == f"chmod go-w {directory}"
        directory.chmod(0o750)
        credentials.ensure_certificate(links, tmp_path / "bed")
    if os.geteuid() == 0:
        os.chown(links.parent, 65534, 65534)
        with pytest.raises(InfrastructureError, match="belongs to another user"):
            credentials.ensure_certificate(links, tmp_path / "bed")


def test_an_address_of_a_family_that_the_kernel_lacks_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces = {"eth0": ["198.18.0.1", "fd00::1"], "lo": ["127.0.0.1", "::1"]}
    monkeypatch.setattr(host_facts, "interfaces", lambda: interfaces)
    assert listener._own_addresses() == ["198.18.0.1", "127.0.0.1"], "it listens by IPv4"

    class WithoutIPv6(socket.socket):
        def __init__(self, family: int = -1, *arguments: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *arguments)

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(socket, "socket", WithoutIPv6)
        port = server.getsockname()[1]
        reached = list(reverse_link._connected_sockets(["::1", "127.0.0.1"], port, time.monotonic() + 60))
        monkeypatch.undo()
        assert len(reached) == 1
        reached[0].close()


def test_a_listener_takes_a_free_port_of_its_range(tmp_path: Path) -> None:
    links = tmp_path / "shared" / "links"
    credentials.ensure_certificate(links, tmp_path / "bed")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InfrastructureError, match=f"no port from {port} to {port} is free on this machine"):
            listener.Listener(links, tmp_path / "bed", ["h1"], "127.0.0.1", ports=(port, port))
        server = listener.Listener(links, tmp_path / "bed", ["h1"], "127.0.0.1", ports=(port, min(port + 50, 65535)))
        assert port < server.port <= port + 50
        server.close()
