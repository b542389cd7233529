"""One SSH connection to a host: strict host keys, deadlines, few sessions, errors with cause and fix."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import shlex
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from ...model.bed import HostSpec
from ...model.frozen import dataclass
from . import destinations
from .connection_errors import HostError, explain
from .destinations import Destination
from .paramiko_import import paramiko

CONNECT_S = 10.0
#: A machine that is on responds to a first packet at once; TCP sends three in this time.
REACH_S = 4.0
KEEPALIVE_S = 5
#: How long data may stay unacknowledged before the kernel closes the connection.
UNACKNOWLEDGED_S = 10
#: The flow-control window of a channel, in bytes.
WINDOW = 512 << 10
_TCP_USER_TIMEOUT, _TCP_QUICKACK = 18, 12
_TRANSIENT = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, EOFError, TimeoutError)


class SilentError(TimeoutError):
    """No packet came back from the host's address."""


#: Definite errors of the host or its name: a retry or more time cannot help.
_DEFINITE = (
    socket.gaierror,
    paramiko.AuthenticationException,
    paramiko.BadHostKeyException,
    destinations.UnknownHostKeyError,
    FileNotFoundError,
    PermissionError,
    SilentError,
    destinations.ProxyError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    code: int
    out: bytes
    err: bytes


class Connection:
    """Open until ``close``. Every call on it may raise HostError."""

    def __init__(
        self, destination: Destination, client: paramiko.SSHClient, program: destinations.Proxy | None = None
    ) -> None:
        """``program``: the proxy that provides its socket, if any."""
        self.destination = destination
        self._client = client
        self._program = program

    @property
    def host(self) -> HostSpec:
        return self.destination.host

    @property
    def transport(self) -> paramiko.Transport:
        """Raises HostError if the connection is lost."""
        transport = self._client.get_transport()
        if transport is None or not transport.is_active():
            raise HostError(f"the connection to {self.destination.login} is lost")
        return transport

    @property
    def alive(self) -> bool:
        transport = self._client.get_transport()
        return bool(transport and transport.is_active())

    def is_responding(self, within_s: float) -> bool | None:
        """Return whether sshd greets a new connection now. None behind a proxy: then it is not known.

        ``within_s``: the limit for the connection, and for the greeting.
        """
        if self._program:
            return None
        try:
            with socket.create_connection(self.transport.sock.getpeername()[:2], within_s) as sock:
                sock.settimeout(within_s)
                return sock.recv(4) == b"SSH-"
        except OSError:
            return False

    def start(self, argv: Sequence[str], deadline_s: float = CONNECT_S) -> paramiko.Channel:
        """Start a program on the host; the channel is its stdin and stdout."""
        try:
            channel = self.transport.open_session(window_size=WINDOW, timeout=deadline_s)
            channel.settimeout(deadline_s)
            channel.exec_command(shlex.join(argv))
            channel.settimeout(None)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise explain(self.destination, error, deadline_s) from error
        return channel

    def run(self, argv: Sequence[str], stdin: bytes = b"", deadline_s: float = CONNECT_S) -> CommandResult:
        until = time.monotonic() + deadline_s
        channel = self.start(argv, deadline_s)
        try:
            return _run_to_end(channel, stdin, until)
        except TimeoutError:
            text = f"`{argv[0]}` did not end within {deadline_s:g} s there"
            raise HostError(text) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise explain(self.destination, error, deadline_s) from error
        finally:
            channel.close()

    def close(self) -> None:
        """Shut the socket down first, so that readers notice at once; paramiko polls ten times a second."""
        transport = self._client.get_transport()
        if transport is not None:
            with contextlib.suppress(OSError):
                transport.sock.shutdown(socket.SHUT_RDWR)
        self._client.close()
        if self._program:
            self._program.close()


def connect(host: HostSpec, deadline_s: float = CONNECT_S, *, tries: int = 3, config: Path | None = None) -> Connection:
    """Connect within the deadline. ``config``: ssh's configuration, if not ~/.ssh/config. Raises HostError.

    Only transient errors are retried: resets and silence while connecting, never keys and rejections.
    """
    until = time.monotonic() + deadline_s
    destination, proxy_command = destinations.resolve(host, config)
    try:
        try:
            return _connected(destination, proxy_command, until)
        except Exception as error:
            if tries < 2 or not _is_transient(error) or time.monotonic() > until:
                raise
        return _retry(destination, proxy_command, until, tries - 1)
    except Exception as error:
        late = not isinstance(error, _DEFINITE) and time.monotonic() > until - 0.1
        within_s = min(deadline_s, REACH_S) if isinstance(error, SilentError) else deadline_s
        raise explain(destination, TimeoutError() if late else error, within_s) from error


def _retry(destination: Destination, proxy_command: str, until: float, tries: int) -> Connection:
    """Retry after a first attempt with a transient error."""
    import tenacity

    time.sleep(min(0.1, _left(until)))
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_is_transient),
        stop=tenacity.stop_after_attempt(tries) | tenacity.stop_after_delay(_left(until)),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
        reraise=True,
    )
    return attempts(_connected, destination, proxy_command, until)


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, _DEFINITE):
        return False
    return isinstance(error, _TRANSIENT) or "banner" in str(error) or "No existing session" in str(error)


def _connected(destination: Destination, proxy_command: str, until: float) -> Connection:
    """``proxy_command``: provides the socket, or empty. If it ends, its last output is the reason."""
    if not proxy_command:
        return _opened(destination, _socket(destination, until), until)
    program = destinations.Proxy(proxy_command)
    try:
        return _opened(destination, program.sock, until, program)
    except BaseException as error:
        lost = isinstance(error, paramiko.SSHException | OSError | EOFError) and not isinstance(error, _DEFINITE)
        reason = program.error() if lost else None
        program.close()
        if reason:
            raise reason from error
        raise


def _opened(
    destination: Destination, sock: socket.socket, until: float, program: destinations.Proxy | None = None
) -> Connection:
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    if destination.host.key:
        with Path(destination.host.key).open("rb"):  # the system's error is clearer than paramiko's
            pass
    client = paramiko.SSHClient()
    try:
        for file in destination.known:
            with contextlib.suppress(OSError):
                client.load_system_host_keys(str(file))
        client.set_missing_host_key_policy(
            destinations.HostKeyPolicy(destination.known[0], record=destination.host.first_contact)
        )
        client.connect(
            destination.address,
            port=destination.port,
            username=destination.user,
            key_filename=list(destination.keys) or None,
            look_for_keys=not destination.keys,
            sock=sock,
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
        sock.close()
        raise
    return Connection(destination, client, program)


class _QuickAckSocket(socket.socket):
    """Acknowledges received data at once.

    An sshd without a terminal sends no small packet before the acknowledgement, and the kernel delays that by 40 ms if it
    has nothing to send. Every session would start, and every second event arrive, so much later.
    """

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        data = super().recv(size, flags)
        self.setsockopt(socket.IPPROTO_TCP, _TCP_QUICKACK, 1)  # the kernel resets the option
        return data


def _socket(destination: Destination, until: float) -> socket.socket:
    within_s = min(_left(until), REACH_S)
    try:
        plain = socket.create_connection((destination.address, destination.port), timeout=within_s)
    except TimeoutError:
        raise SilentError from None
    sock = _QuickAckSocket(plain.family, plain.type, plain.proto, plain.detach())
    sock.settimeout(within_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, UNACKNOWLEDGED_S * 1000)
    return sock


def _left(until: float) -> float:
    return max(0.05, until - time.monotonic())


def _run_to_end(channel: paramiko.Channel, stdin: bytes, until: float) -> CommandResult:
    """Feed and drain a channel until its program ends. Raises TimeoutError."""
    out, err = bytearray(), bytearray()
    pending = memoryview(stdin)
    if not pending:
        channel.shutdown_write()
    while not (channel.exit_status_ready() and channel.eof_received and not _has_output(channel)):
        if time.monotonic() > until:
            raise TimeoutError
        moved = False
        if pending and channel.send_ready():
            channel.settimeout(_left(until))
            pending = pending[channel.send(pending[:32768]) :]
            moved = True
            if not pending:
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
    return CommandResult(code=channel.recv_exit_status(), out=bytes(out), err=bytes(err))


def _has_output(channel: paramiko.Channel) -> bool:
    return bool(channel.recv_ready() or channel.recv_stderr_ready())


def own_name() -> str:
    """The owner of this orchestrator, for messages to others."""
    return f"{getpass.getuser()}@{os.uname().nodename}"
