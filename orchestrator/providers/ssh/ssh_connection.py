"""One SSH connection to a host: strict about keys, with deadlines, its sessions few; what fails is said in one sentence."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import shlex
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...model.bed import HostSpec
from . import destinations, host_keys, proxy
from .connection_errors import HostError, explain
from .destinations import Destination
from .paramiko_import import paramiko

CONNECT_S = 10.0
#: A machine that is on answers a first packet at once; three are sent in this time.
REACH_S = 4.0
KEEPALIVE_S = 5
#: How long what was sent may stay without acknowledgement before the kernel gives the connection up.
UNACKNOWLEDGED_S = 10
#: Bytes that may be on their way in one channel: so many may lie between an event and its reader.
WINDOW = 512 << 10
_TCP_USER_TIMEOUT, _TCP_QUICKACK = 18, 12
_TRANSIENT = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, EOFError, TimeoutError)


class SilentError(TimeoutError):
    """Nothing came back from the host's address."""


#: What the host, or its name, has said clearly: asking again, or waiting longer, changes nothing.
_DEFINITE = (
    socket.gaierror,
    paramiko.AuthenticationException,
    paramiko.BadHostKeyException,
    host_keys.UnknownHostKeyError,
    FileNotFoundError,
    PermissionError,
    SilentError,
    proxy.ProxyError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of a command: its exit code and what it wrote."""

    code: int
    out: bytes
    err: bytes


class Connection:
    """Open until ``close``. Every call on it may raise HostError."""

    def __init__(
        self, destination: Destination, client: paramiko.SSHClient, program: proxy.Proxy | None = None
    ) -> None:
        """``program``: what stands for its socket."""
        self.destination = destination
        self._client = client
        self._program = program

    @property
    def host(self) -> HostSpec:
        return self.destination.host

    @property
    def transport(self) -> paramiko.Transport:
        """Raises HostError where the connection is no more."""
        transport = self._client.get_transport()
        if transport is None or not transport.is_active():
            raise HostError(self.host.name, f"the connection to {self.destination.login} is lost")
        return transport

    @property
    def alive(self) -> bool:
        transport = self._client.get_transport()
        return bool(transport and transport.is_active())

    def answers(self, within_s: float) -> bool | None:
        """Does an sshd introduce itself there now, to somebody new? None: nobody can tell, a program is in between.

        ``within_s``: for the connection, and for a word.
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
        """Start a program there; the channel is its stdin and stdout."""
        try:
            channel = self.transport.open_session(window_size=WINDOW, timeout=deadline_s)
            channel.settimeout(deadline_s)
            channel.exec_command(shlex.join(argv))
            channel.settimeout(None)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise explain(self.destination, error, deadline_s) from error
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
            raise explain(self.destination, error, deadline_s) from error
        finally:
            channel.close()

    def close(self) -> None:
        """Whoever reads from it hears at once that it ended; paramiko itself would look only ten times a second."""
        transport = self._client.get_transport()
        if transport is not None:
            with contextlib.suppress(OSError):
                transport.sock.shutdown(socket.SHUT_RDWR)
        self._client.close()
        if self._program:
            self._program.close()


def connect(host: HostSpec, deadline_s: float = CONNECT_S, *, tries: int = 3, config: Path | None = None) -> Connection:
    """Connect within the deadline. ``config``: ssh's configuration, if not ~/.ssh/config. Raises HostError.

    Only what may pass by itself is tried again: resets and silence while connecting, never keys and refusals.
    """
    until = time.monotonic() + deadline_s
    destination, way = destinations.resolve(host, config)
    try:
        try:
            return _connected(destination, way, until)
        except Exception as error:
            if tries < 2 or not _is_transient(error) or time.monotonic() > until:
                raise
        return _again(destination, way, until, tries - 1)
    except Exception as error:
        late = not isinstance(error, _DEFINITE) and time.monotonic() > until - 0.1
        within_s = min(deadline_s, REACH_S) if isinstance(error, SilentError) else deadline_s
        raise explain(destination, TimeoutError() if late else error, within_s) from error


def _again(destination: Destination, way: str, until: float, tries: int) -> Connection:
    """After a first try that failed by something that may pass."""
    import tenacity

    time.sleep(min(0.1, _left(until)))
    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(_is_transient),
        stop=tenacity.stop_after_attempt(tries) | tenacity.stop_after_delay(_left(until)),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
        reraise=True,
    )
    return attempts(_connected, destination, way, until)


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, _DEFINITE):
        return False
    return isinstance(error, _TRANSIENT) or "banner" in str(error) or "No existing session" in str(error)


def _connected(destination: Destination, way: str, until: float) -> Connection:
    """``way``: the command that stands for a socket. What it says when it ends is the reason."""
    if not way:
        return _opened(destination, _socket(destination, until), until)
    program = proxy.Proxy(way)
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
    destination: Destination, sock: socket.socket, until: float, program: proxy.Proxy | None = None
) -> Connection:
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    if destination.host.key:
        with Path(destination.host.key).open(
            "rb"
        ):  # what is wrong with it is said better by the system than by paramiko
            pass
    client = paramiko.SSHClient()
    try:
        for file in destination.known:
            with contextlib.suppress(OSError):
                client.load_system_host_keys(str(file))
        client.set_missing_host_key_policy(
            host_keys.Policy(destination.known[0], record=destination.host.first_contact)
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


class _Prompt(socket.socket):
    """What comes is acknowledged at once. An sshd that serves no terminal sends nothing small before that is done, and the
    kernel takes 40 ms over it where nothing is to be sent: every session would begin so much later, every second event come.
    """

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        data = super().recv(size, flags)
        self.setsockopt(socket.IPPROTO_TCP, _TCP_QUICKACK, 1)  # the kernel forgets it again and again
        return data


def _socket(destination: Destination, until: float) -> socket.socket:
    within_s = min(_left(until), REACH_S)
    try:
        plain = socket.create_connection((destination.address, destination.port), timeout=within_s)
    except TimeoutError:
        raise SilentError from None
    sock = _Prompt(plain.family, plain.type, plain.proto, plain.detach())
    sock.settimeout(within_s)
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
