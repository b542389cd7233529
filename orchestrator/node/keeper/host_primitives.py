"""The primitives of faults on a node's host: its power, link, sshd and engine. Programs perform them; probes observe them."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from ...model.act import Primitive
from ..oslayer import processes
from ..oslayer.container_engine import EngineClient, EngineError
from ..oslayer.event_loop import Loop, Steps
from .node_protocol import Observed

#: How long a response may take. The kernel of a running host accepts a connection at once.
RESPONSE_S, LEAST_S = 1.0, 0.1
CHECK_S = 3.0
#: How long an open session is listened to: the end of one arrives at once.
SESSION_S = 0.1
TRIES = 2
#: How much output of a program is kept as evidence, in characters.
MAX_OUTPUT = 500
#: What is recorded of an observation, or of a program.
Evidence = Mapping[str, Any]
#: The errors of a connection to a host that is down, and to the socket of an engine that is down.
ABSENT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ECONNRESET)
STOPPED = (errno.ECONNREFUSED, errno.ENOENT)

#: How the banner of a sshd begins.
SSH = "SSH-"
#: Connections to a sshd, which stay open while its sessions live: (address, port) -> connection.
Sessions = dict[tuple[str, int], socket.socket]


def is_of_host(primitive: Primitive) -> bool:
    """Does it act on the node's host, and not on the node?"""
    return primitive.kind == "argv" or "of" in primitive.args


def why_unsupported(primitive: Primitive) -> str:
    """Return why it cannot be performed; empty if it can."""
    of = str(primitive.args.get("of", ""))
    if (primitive.kind, of) not in _OBSERVE:
        return f"primitive {primitive.kind} of {of or 'nothing'}"
    run = primitive.args.get("run")
    if not run or not all(isinstance(part, str) for part in run):
        return f"{primitive.kind} of {of or 'a host'} needs a program to run"
    return ""


# --- performing: a program from the inventory ---------------------------------------------------------------------------


def run_program(loop: Loop, argv: Sequence[str], limit_s: float) -> Steps[tuple[Evidence, str]]:
    """Run a program for ``limit_s`` at most; (evidence, problem), which is empty after exit code 0.

    It has a session of its own and no process tag, so that its children may outlive the keeper's nodes.
    """
    environment = {name: value for name, value in os.environ.items() if name != processes.TAG_VARIABLE}
    try:
        with tempfile.TemporaryFile() as output:
            program = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env=environment,
            )  # fmt: skip
            is_late = yield lambda resume: _await(loop, program, limit_s, resume)
            code, text = program.wait(), _read_tail(output)
    except OSError as error:
        return {_command_line(argv): "cannot be run"}, f"{argv[0]}: {error.strerror or error}"
    result = f"exit code {code}: {text}" if text else f"exit code {code}"
    return {_command_line(argv): result}, _problem(argv[0], code, text, limit_s if is_late else None)


def _await(loop: Loop, program: subprocess.Popen[bytes], limit_s: float, then: Callable[[bool], None]) -> None:
    """Call ``then`` when the program has ended: was it late? It is killed after ``limit_s``."""
    fd = os.pidfd_open(program.pid)
    loop.programs[program.pid] = lambda code: setattr(program, "returncode", code)
    is_late = False

    def expired() -> None:
        nonlocal is_late
        is_late = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)

    timer = loop.call_later(limit_s, expired)

    def ended() -> None:
        timer.cancel()
        loop.remove_reader(fd)
        os.close(fd)
        loop.programs.pop(program.pid, None)
        then(is_late)

    loop.add_reader(fd, ended)


def _command_line(argv: Sequence[str]) -> str:
    return shlex.join([os.path.basename(argv[0]), *argv[1:]])


def _problem(name: str, code: int, output: str, limit_s: float | None) -> str:
    if limit_s is not None:
        return f"{name} did not end within {limit_s:g} s"
    return f"{name} exited with code {code}: {output or 'no output'}" if code else ""


def _read_tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - 4 * MAX_OUTPUT))
    return output.read().decode(errors="replace").strip()[-MAX_OUTPUT:]


# --- observing ----------------------------------------------------------------------------------------------------------


def observe(primitive: Primitive, sessions: Sessions | None = None) -> Observed:
    """Does the state that the primitive names hold, seen from this process? Takes ``CHECK_S`` at most.

    ``sessions``: connections to sshd that earlier observations left open, and that this one judges or leaves open.
    """
    of = str(primitive.args.get("of", ""))
    if of == "ssh" and sessions is not None:
        return _observe_sshd(primitive.args, sessions)
    return _OBSERVE[primitive.kind, of](primitive.args)


def _observe_sshd(args: Evidence, sessions: Sessions) -> Observed:
    """Observe as ``_observe_network`` does; and that sshd is off holds only if a session that was open before has ended.

    A listener that is gone proves nothing about its sessions: they go on, and with them the connection of the orchestrator.
    """
    address = (str(args["address"]), int(args["port"]))
    holds, evidence = _observe_network(args, sessions)
    if args["state"] != "off" or not holds:
        return holds, evidence
    session = sessions.get(address)
    if session is None:
        return None, {**evidence, "session": "none was open before: not known whether sessions have ended"}
    if _has_ended(session):
        return True, {**evidence, "session": "ended"}
    return False, {
        **evidence,
        "session": "still open: the command of ccbed_ssh_control must end the sessions of sshd too",
    }


def _has_ended(session: socket.socket) -> bool:
    """Return whether the other side has closed the connection. One that says nothing within ``SESSION_S`` is open."""
    session.settimeout(SESSION_S)
    try:
        while session.recv(256):
            continue
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def _observe_network(args: Evidence, sessions: Sessions | None = None) -> Observed:
    """A host is up if its sshd sends a banner, and down if no connection is possible. A booting host is neither.

    With an empty ``greeting`` it is up if it accepts the connection: not every service sends a banner.
    A refused connection shows that the host is up and its sshd is down. ``within_s``: the time limit of the observation.
    ``sessions``: where the connection to a sshd that is up stays open.
    """
    response_s = min(RESPONSE_S, max(LEAST_S, float(args.get("within_s", CHECK_S)) / TRIES))
    address, expects_down = (str(args["address"]), int(args["port"])), args["state"] in ("off", "down")
    name = f"{address[0]}:{address[1]}"
    try:
        connection = _connect(address, response_s)
    except ConnectionRefusedError:
        return expects_down and args["of"] == "ssh", {name: "refuses connections"}
    except socket.gaierror as error:
        return None, {name: error.strerror}
    except OSError as error:
        return expects_down if _is_absence(error) else None, {name: error.strerror or "does not answer"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(connection)
        greeting = str(args.get("greeting", SSH))
        if not greeting:
            return not expects_down, {name: "accepts connections"}
        banner = _banner(connection)
        if sessions is not None and expects_down and banner.startswith(greeting) and not _has_ended(connection):
            if earlier := sessions.pop(address, None):
                earlier.close()
            sessions[address] = connection
            stack.pop_all()
    return not expects_down and banner.startswith(greeting), {name: banner or "accepts connections and sends no banner"}


def _connect(address: tuple[str, int], response_s: float) -> socket.socket:
    """Try twice: one lost packet proves nothing."""
    for _ in range(TRIES - 1):
        try:
            return socket.create_connection(address, response_s)
        except OSError as error:
            if not _is_absence(error):
                raise
    return socket.create_connection(address, response_s)


def _is_absence(error: OSError) -> bool:
    """Does the error concern the remote host, and not this one (no network, no file descriptors)?"""
    return isinstance(error, TimeoutError) or error.errno in ABSENT


def _banner(connection: socket.socket) -> str:
    try:
        connection.settimeout(RESPONSE_S)
        return connection.recv(64).decode(errors="replace").strip()
    except OSError:
        return ""


def _observe_engine(args: Evidence) -> Observed:
    """An engine is up if it answers a ping, and down if its socket refuses connections or is missing."""
    path = str(args["socket"])
    try:
        EngineClient(path).request("GET", "/_ping", deadline_s=RESPONSE_S)
    except EngineError as error:
        if error.is_response:
            return False, {path: error.message}
        return args["state"] == "off" if error.errno in STOPPED else None, {path: error.message}
    return args["state"] == "on", {path: "answers a ping"}


def _observe_argv(args: Evidence) -> Observed:
    try:
        done = subprocess.run(
            list(args["run"]), stdin=subprocess.DEVNULL, capture_output=True, timeout=CHECK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, {"run": list(args["run"]), "problem": str(error)}
    output = done.stdout.decode(errors="replace")
    is_shown = str(args.get("contains", "")) in output and not ("lacks" in args and str(args["lacks"]) in output)
    shown = {"output": output[-MAX_OUTPUT:]} if {"contains", "lacks"} & args.keys() else {}
    return done.returncode == 0 and is_shown, {"run": list(args["run"]), "code": done.returncode, **shown}


_OBSERVE: Mapping[tuple[str, str], Callable[[Evidence], Observed]] = {
    ("power", "host"): _observe_network,
    ("power", "ssh"): _observe_network,
    ("link", "host"): _observe_network,
    ("power", "engine"): _observe_engine,
    ("argv", ""): _observe_argv,
}
