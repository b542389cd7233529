"""One SSH connection to a host: strict about keys, with deadlines, its sessions few; what fails is said in one sentence."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import shlex
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.bed import HostSpec
from . import hostkeys, lean
from .lean import paramiko
from .refusals import Goal, HostError, explained

CONNECT_S = 10.0
#: A machine that is on answers a first packet at once; three are sent in this time.
REACH_S = 4.0
KEEPALIVE_S = 5
#: How long what was sent may stay without acknowledgement before the kernel gives the connection up.
UNACKNOWLEDGED_S = 10
#: Bytes that may be on their way in one channel: so many may lie between an event and its reader.
WINDOW = 512 << 10
_TCP_USER_TIMEOUT = 18
_TRANSIENT = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, EOFError, TimeoutError)


class SilentError(TimeoutError):
    """Nothing came back from the host's address."""


#: What the host, or its name, has said clearly: asking again, or waiting longer, changes nothing.
_SAID = (
    socket.gaierror,
    paramiko.AuthenticationException,
    paramiko.BadHostKeyException,
    hostkeys.UnknownHostKeyError,
    FileNotFoundError,
    PermissionError,
    SilentError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of a command: its exit code and what it wrote."""

    code: int
    out: bytes
    err: bytes


class Connection:
    """Open until ``close``. Every call on it may raise HostError."""

    def __init__(self, goal: Goal, client: paramiko.SSHClient) -> None:
        self.goal = goal
        self._client = client

    @property
    def host(self) -> HostSpec:
        return self.goal.host

    @property
    def transport(self) -> paramiko.Transport:
        """Raises HostError where the connection is no more."""
        transport = self._client.get_transport()
        if transport is None or not transport.is_active():
            raise HostError(self.host.name, f"the connection to {self.goal.place} is lost")
        return transport

    @property
    def alive(self) -> bool:
        transport = self._client.get_transport()
        return bool(transport and transport.is_active())

    def start(self, argv: Sequence[str], deadline_s: float = CONNECT_S) -> paramiko.Channel:
        """Start a program there; the channel is its stdin and stdout."""
        try:
            channel = self.transport.open_session(window_size=WINDOW, timeout=deadline_s)
            channel.settimeout(deadline_s)
            channel.exec_command(shlex.join(argv))
            channel.settimeout(None)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise explained(self.goal, error, deadline_s) from error
        return channel

    def run(self, argv: Sequence[str], stdin: bytes = b"", deadline_s: float = CONNECT_S) -> Done:
        """Run a program there to its end."""
        until = time.monotonic() + deadline_s
        channel = self.start(argv, deadline_s)
        try:
            return _ended(channel, stdin, until)
        except TimeoutError:
            text = f"`{argv[0]}` did not end within {deadline_s:g} s there"
            raise HostError(self.host.name, text) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise explained(self.goal, error, deadline_s) from error
        finally:
            channel.close()

    def close(self) -> None:
        self._client.close()


def connect(host: HostSpec, deadline_s: float = CONNECT_S, *, tries: int = 3, config: Path | None = None) -> Connection:
    """Connect within the deadline. ``config``: ssh's configuration, if not ~/.ssh/config. Raises HostError.

    Only what may pass by itself is tried again: resets and silence while connecting, never keys and refusals.
    """
    until = time.monotonic() + deadline_s
    goal, proxy = _goal(host, config or Path("~/.ssh/config").expanduser())
    try:
        try:
            return _connected(goal, proxy, until)
        except Exception as error:
            if tries < 2 or not _is_transient(error) or time.monotonic() > until:
                raise
        return _again(goal, proxy, until, tries - 1)
    except Exception as error:
        late = not isinstance(error, _SAID) and time.monotonic() > until - 0.1
        within_s = min(deadline_s, REACH_S) if isinstance(error, SilentError) else deadline_s
        raise explained(goal, TimeoutError() if late else error, within_s) from error


def _again(goal: Goal, proxy: str, until: float, tries: int) -> Connection:
    """After a first try that failed by something that may pass."""
    import tenacity

    time.sleep(min(0.1, _left(until)))
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_is_transient),
        stop=tenacity.stop_after_attempt(tries) | tenacity.stop_after_delay(_left(until)),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
        reraise=True,
    )
    return attempts(_connected, goal, proxy, until)


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, _SAID):
        return False
    return isinstance(error, _TRANSIENT) or "banner" in str(error) or "No existing session" in str(error)


def _goal(host: HostSpec, file: Path) -> tuple[Goal, str]:
    """(where to go, the command that stands for a socket, if any)."""
    found = _configured(file, host.address or host.name)
    port = host.port if host.port != paramiko.config.SSH_PORT else int(found.get("port", host.port))
    keys = (host.key,) if host.key else tuple(_present(found.get("identityfile", [])))
    goal = Goal(
        host=host,
        address=str(found.get("hostname", host.address or host.name)),
        port=port,
        user=host.user or str(found.get("user", getpass.getuser())),
        keys=keys,
        known=hostkeys.files(host.known_hosts, shlex.split(str(found.get("userknownhostsfile", "")))),
    )
    proxy = str(found.get("proxycommand", ""))
    if found.get("proxyjump", "none") != "none" and not proxy:
        proxy = shlex.join(["ssh", "-W", f"{goal.address}:{goal.port}", *_jumps(str(found["proxyjump"]))])
    return goal, "" if proxy == "none" else proxy


def _jumps(text: str) -> list[str]:
    *first, last = text.split(",")
    name, _, port = last.rpartition(":") if ":" in last else (last, "", "")
    return [*(["-J", ",".join(first)] if first else []), *(["-p", port] if port else []), name]


def _configured(file: Path, name: str) -> Mapping[str, Any]:
    try:
        text = file.read_text()
    except OSError:
        return {}
    if "exec" in text.lower():
        lean.with_programs()
    config = paramiko.SSHConfig.from_text(text)
    return dict(config.lookup(name))


def _present(names: Sequence[str]) -> list[str]:
    return [str(path) for name in names if (path := Path(name).expanduser()).exists()]


def _connected(goal: Goal, proxy: str, until: float) -> Connection:
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    if goal.host.key:
        with Path(goal.host.key).open("rb"):  # what is wrong with it is said better by the system than by paramiko
            pass
    client = paramiko.SSHClient()
    try:
        for file in goal.known:
            with contextlib.suppress(OSError):
                client.load_system_host_keys(str(file))
        client.set_missing_host_key_policy(hostkeys.Policy(goal.known[0], record=goal.host.first_contact))
        client.connect(
            goal.address,
            port=goal.port,
            username=goal.user,
            key_filename=list(goal.keys) or None,
            look_for_keys=not goal.keys,
            sock=paramiko.ProxyCommand(proxy) if proxy else _socket(goal, until),
            timeout=_left(until),
            banner_timeout=_left(until),
            auth_timeout=_left(until),
            channel_timeout=CONNECT_S,
        )
        transport = client.get_transport()
        assert transport is not None
        transport.set_keepalive(KEEPALIVE_S)
    except BaseException:
        client.close()
        raise
    return Connection(goal, client)


def _socket(goal: Goal, until: float) -> socket.socket:
    try:
        sock = socket.create_connection((goal.address, goal.port), timeout=min(_left(until), REACH_S))
    except TimeoutError:
        raise SilentError from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, UNACKNOWLEDGED_S * 1000)
    return sock


def _left(until: float) -> float:
    return max(0.05, until - time.monotonic())


def _ended(channel: paramiko.Channel, stdin: bytes, until: float) -> Done:
    """Feed and drain a channel until its program ends. Raises TimeoutError."""
    out, err = bytearray(), bytearray()
    given = memoryview(stdin)
    if not given:
        channel.shutdown_write()
    while not (channel.exit_status_ready() and channel.eof_received and not _waits(channel)):
        if time.monotonic() > until:
            raise TimeoutError
        moved = False
        if given and channel.send_ready():
            channel.settimeout(_left(until))
            given = given[channel.send(given[:32768]) :]
            moved = True
            if not given:
                channel.shutdown_write()
        if channel.recv_ready():
            out += channel.recv(1 << 16)
            moved = True
        if channel.recv_stderr_ready():
            err += channel.recv_stderr(1 << 16)
            moved = True
        if not moved:
            if channel.closed or not channel.get_transport().is_active():
                raise EOFError("the connection was lost")
            time.sleep(0.001)
    return Done(code=channel.recv_exit_status(), out=bytes(out), err=bytes(err))


def _waits(channel: paramiko.Channel) -> bool:
    return bool(channel.recv_ready() or channel.recv_stderr_ready())


def own_name() -> str:
    """This orchestrator's owner, as others shall see it."""
    return f"{getpass.getuser()}@{os.uname().nodename}"
