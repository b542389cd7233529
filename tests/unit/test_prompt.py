"""What a host sends is acknowledged at once, so that it may send the next."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass
from typing import Any, cast

from orchestrator.providers.ssh import ssh_connection
from orchestrator.providers.ssh.destinations import Destination

ROUNDS = 10
#: The kernel acknowledges so late where nobody asks it not to.
DELAY_S = 0.04


@dataclass(frozen=True)
class _FakeTerminal:
    port: int
    address: str = "127.0.0.1"


def test_a_host_that_answers_in_two_parts_is_not_slowed_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection: Any
            connection, _ = server.accept()
            with connection:
                while connection.recv(1):
                    connection.send(b"a")
                    connection.send(b"b")

        threading.Thread(target=answer, daemon=True).start()
        with ssh_connection._socket(
            cast(Destination, _FakeTerminal(server.getsockname()[1])), time.monotonic() + 5
        ) as sock:
            taken = []
            for _ in range(ROUNDS):
                begin = time.monotonic()
                sock.send(b"?")
                message = b""
                while len(message) < 2:
                    message += sock.recv(10)
                assert message == b"ab"
                taken.append(time.monotonic() - begin)
            assert min(taken[1:]) < DELAY_S / 2
