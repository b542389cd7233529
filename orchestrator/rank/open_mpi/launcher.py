"""Runs by itself, as mpirun starts it. As ``host``: hands the command for another host to a rank. As ``rank``: hands a rank
the environment that makes it a process of the MPI job, and stays until that rank is done. Standard library only."""

from __future__ import annotations

import json
import os
import socket
import sys

#: A rank's socket in the directory of its own.
DOOR = "door"


def main(argv: list[str]) -> int:
    """``host DIRECTORY HOST COMMAND…`` or ``rank DIRECTORY…``, a directory for every rank of the job in its order."""
    kind, *rest = argv
    if kind == "host":
        return hand(rest[0], {"host": rest[1], "command": rest[2:]})
    return hand(rest[int(os.environ["OMPI_COMM_WORLD_RANK"])], dict(os.environ))


def hand(directory: str, message: object) -> int:
    """Said through the door in ``directory``; over when it is closed. The path of a socket is short, that of a run is not."""
    os.chdir(directory)
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(DOOR)
        door.sendall(json.dumps(message).encode() + b"\n")
        while door.recv(1):
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
