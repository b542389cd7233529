"""The program that mpirun starts, which sends its command or environment to a rank. Standard library only.

As ``host``, it sends the command for another host. As ``rank``, it sends the environment that makes the rank a process of the
MPI job, and runs until that rank has finished.
"""

from __future__ import annotations

import json
import os
import socket
import sys

#: The name of a rank's socket in its directory.
SOCKET = "socket"


def main(argv: list[str]) -> int:
    """``host DIRECTORY HOST COMMAND…`` or ``rank DIRECTORY…``, with a directory for every rank of the job in order."""
    kind, *rest = argv
    if kind == "host":
        return send(rest[0], {"host": rest[1], "command": rest[2:]})
    return send(rest[int(os.environ["OMPI_COMM_WORLD_RANK"])], dict(os.environ))


def send(directory: str, message: object) -> int:
    """Send ``message`` to the socket in ``directory``; return when it is closed. The path of a socket must be short."""
    os.chdir(directory)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(SOCKET)
        connection.sendall(json.dumps(message).encode() + b"\n")
        while connection.recv(1):
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
