"""What nodes live in: their host, its link, its sshd, its engine. Controlled by argv of the inventory, proved by who answers."""

from __future__ import annotations

import errno
import socket
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from ...model.act import Primitive

#: How long an answer may take. A host that is there accepts a connection at once: its kernel does.
ANSWER_S, LEAST_S = 1.0, 0.1
CHECK_S = 3.0
TRIES = 2
#: So much of what a program prints is evidence, in characters.
OUTPUT = 500
#: What connecting to a host says that is not there; and to the socket of an engine that is not.
ABSENT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ECONNRESET)
STOPPED = (errno.ECONNREFUSED, errno.ENOENT)

#: Whether the state holds (None: not known), and the evidence.
Seen = tuple[bool | None, dict[str, Any]]


def concerns(primitive: Primitive) -> bool:
    """Is it about what a node lives in, rather than about the node itself?"""
    return primitive.kind == "argv" or "of" in primitive.args


def objection(primitive: Primitive) -> str:
    """Why it cannot be carried out; empty where it can."""
    of = str(primitive.args.get("of", ""))
    if (primitive.kind, of) not in _HOLDS:
        return f"there is no primitive {primitive.kind} of {of or 'nothing'}"
    run = primitive.args.get("run")
    if not run or not all(isinstance(part, str) for part in run):
        return f"{primitive.kind} of {of or 'a host'} needs a program to run"
    return ""


def holds(primitive: Primitive) -> Seen:
    """Is the state that the primitive names what can be seen from here? With what was seen. Takes ``CHECK_S`` at most."""
    return _HOLDS[primitive.kind, str(primitive.args.get("of", ""))](primitive.args)


def _network(args: Mapping[str, Any]) -> Seen:
    """There: an sshd that introduces itself. Gone: not even a connection. A host that only boots is neither.

    A refusal shows that the host is there and its sshd is not. ``within_s``: that nobody answers must show in this time.
    """
    answer_s = min(ANSWER_S, max(LEAST_S, float(args.get("within_s", CHECK_S)) / TRIES))
    where, gone = (str(args["address"]), int(args["port"])), args["state"] in ("off", "down")
    name = f"{where[0]}:{where[1]}"
    try:
        connection = _connected(where, answer_s)
    except ConnectionRefusedError:
        return gone and args["of"] == "ssh", {name: "refuses connections"}
    except socket.gaierror as error:
        return None, {name: error.strerror}
    except OSError as error:
        return gone if _is_absence(error) else None, {name: error.strerror or "does not answer"}
    with connection:
        banner = _banner(connection)
    return not gone and banner.startswith("SSH-"), {name: banner or "accepts connections and says nothing"}


def _connected(where: tuple[str, int], answer_s: float) -> socket.socket:
    """Twice: that one packet was lost on the way is no proof of anything."""
    for _ in range(TRIES - 1):
        try:
            return socket.create_connection(where, answer_s)
        except OSError as error:
            if not _is_absence(error):
                raise
    return socket.create_connection(where, answer_s)


def _is_absence(error: OSError) -> bool:
    """Whether it says something of who was asked; this machine's own troubles (no network, no descriptor) do not."""
    return isinstance(error, TimeoutError) or error.errno in ABSENT


def _banner(connection: socket.socket) -> str:
    try:
        connection.settimeout(ANSWER_S)
        return connection.recv(64).decode(errors="replace").strip()
    except OSError:
        return ""


def _engine(args: Mapping[str, Any]) -> Seen:
    path, said = str(args["socket"]), ""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(path)
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
            said = connection.recv(256).decode(errors="replace").partition("\r\n")[0]
    except OSError as error:
        gone = args["state"] == "off" if error.errno in STOPPED else None
        return gone, {path: error.strerror or "does not answer"}
    return args["state"] == "on" and " 200 " in said, {path: said or "answers nothing"}


def _argv(args: Mapping[str, Any]) -> Seen:
    try:
        done = subprocess.run(
            list(args["run"]), stdin=subprocess.DEVNULL, capture_output=True, timeout=CHECK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, {"run": list(args["run"]), "problem": str(error)}
    output = done.stdout.decode(errors="replace")
    is_shown = str(args.get("contains", "")) in output and not ("lacks" in args and str(args["lacks"]) in output)
    shown = {"output": output[-OUTPUT:]} if {"contains", "lacks"} & args.keys() else {}
    return done.returncode == 0 and is_shown, {"run": list(args["run"]), "code": done.returncode, **shown}


_HOLDS: Mapping[tuple[str, str], Callable[[Mapping[str, Any]], Seen]] = {
    ("power", "host"): _network,
    ("power", "ssh"): _network,
    ("link", "host"): _network,
    ("power", "engine"): _engine,
    ("argv", ""): _argv,
}
