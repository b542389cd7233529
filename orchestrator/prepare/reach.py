"""Opens a port on a host, and connects to those of others: does a firewall between the hosts of a bed let ranks through?

Runs alone on the host (standard library of Python 3.7 or newer), as ``facts.py`` does; prints one JSON value. A port stays open
for ``HOLD_S`` seconds without this program.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from typing import Any

HOLD_S = 20
CONNECT_S = 2.0


def hold(address: str) -> list[int]:
    """The port that is open at ``address`` now, on which the kernel accepts connections; empty if none can be opened."""
    with contextlib.suppress(OSError):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with open(os.devnull, "r+") as null, socket.socket(family) as listener:
            listener.bind((address, 0))
            listener.listen(64)
            fds = [listener.fileno()]
            subprocess.Popen(
                ["sleep", str(HOLD_S)], pass_fds=fds, stdin=null, stdout=null, stderr=null, start_new_session=True
            )
            return [int(listener.getsockname()[1])]
    return []


def meet(targets: list[list[Any]]) -> list[str]:
    """For each (address, port) an empty text, or why it cannot be reached."""
    return [_problem(str(address), int(port)) for address, port in targets]


def _problem(address: str, port: int) -> str:
    try:
        socket.create_connection((address, port), CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def main(request: str) -> None:
    """``request``: JSON: an address to hold a port at, or a list of targets."""
    about = json.loads(request)
    print(json.dumps(hold(about) if isinstance(about, str) else meet(about)))
