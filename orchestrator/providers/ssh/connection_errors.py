"""Errors of a connection to a host over SSH: each says what is wrong and what to do next."""

from __future__ import annotations

import errno
import socket

from ...model.bed import HostSpec
from ...model.requirements import HOST_PYTHON, version_text
from . import destinations
from .destinations import Destination
from .paramiko_import import paramiko

_NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


class HostError(OSError):
    """A host cannot be used now. The message does not name the host: a list of hosts puts the name before it.

    ``reached``: the host accepts this user.
    """

    def __init__(self, text: str, *, reached: bool = False) -> None:
        super().__init__(text)
        self.reached = reached


def explain(destination: Destination, error: BaseException, deadline_s: float) -> HostError:
    return HostError(
        _keys(destination, error) or _login(destination, error) or _network(destination, error, deadline_s)
    )


def _keys(destination: Destination, error: BaseException) -> str:
    known, name = destination.known[0], destinations.known_as(destination.address, destination.port)
    if isinstance(error, destinations.UnknownHostKeyError):
        scan = f"ssh-keyscan -p {destination.port} {destination.address} >> {known}"
        return (
            f"{destination.login} shows an unknown host key ({destinations.fingerprint(error.key)}); if it is the "
            f"right one: {scan}, or set ccbed_ssh_first_contact: true to accept keys of new hosts"
        )
    if isinstance(error, paramiko.BadHostKeyException):
        shown, wanted = destinations.fingerprint(error.key), destinations.fingerprint(error.expected_key)
        return (
            f"{destination.login} shows another host key than the known one ({shown}, not {wanted}): another machine may "
            f"intercept the connection; if the host was reinstalled: ssh-keygen -R '{name}' -f {known}, then accept the new key"
        )
    return ""


def _login(destination: Destination, error: BaseException) -> str:
    keys = ", ".join(destination.keys) or "your agent's keys and those in ~/.ssh"
    set_key = "set ansible_ssh_private_key_file, or load a key into your agent: ssh-add"
    if isinstance(error, paramiko.PasswordRequiredException):
        return f"{destination.login}: the key {keys} has a passphrase; load it into your agent: ssh-add {keys}"
    if isinstance(error, FileNotFoundError):
        return f"{destination.login}: no key file {error.filename}; set ansible_ssh_private_key_file to an existing key"
    if isinstance(error, PermissionError) and error.filename:
        return f"{destination.login}: you cannot read the key {error.filename}; check its owner and mode"
    if isinstance(error, paramiko.BadAuthenticationType):
        ways = ", ".join(error.allowed_types)
        return f"{destination.login} does not accept keys (it offers {ways}); allow PubkeyAuthentication there"
    if isinstance(error, paramiko.AuthenticationException) and "timeout" not in str(error).lower():
        return (
            f"{destination.login} rejects this user with {keys}; add the public key to authorized_keys of {destination.user} there, "
            f"or set ansible_user and ansible_ssh_private_key_file"
        )
    if isinstance(error, paramiko.SSHException) and "No authentication methods" in str(error):
        return f"{destination.login}: no key to log in with; {set_key}"
    return ""


def _network(destination: Destination, error: BaseException, deadline_s: float) -> str:
    place = destination.login
    if isinstance(error, destinations.ProxyError):
        return f"{place} cannot be reached through its proxy: {error}; check ansible_ssh_common_args, or ~/.ssh/config"
    if isinstance(error, socket.gaierror):
        return f"the name {destination.address} does not resolve; set ansible_host to its address"
    if isinstance(error, ConnectionRefusedError):
        return f"{place} refuses connections: no sshd listens on port {destination.port}; start it, or set ansible_port"
    if isinstance(error, OSError) and error.errno in _NO_WAY:
        return f"{place} cannot be reached: {error.strerror}; check the host's power, its link and ansible_host"
    if isinstance(error, TimeoutError) or "timed out" in str(error).lower() or "timeout" in str(error).lower():
        return f"{place} does not respond within {deadline_s:g} s; check the host's power, its link and firewall"
    if isinstance(error, paramiko.ConfigParseError):
        return f"~/.ssh/config cannot be read: {error}"
    if isinstance(error, paramiko.SSHException | OSError | EOFError):
        what = str(error) or type(error).__name__
        return f"{place} ends the connection ({what}); check the log of its sshd"
    raise error


def python_missing(host: HostSpec) -> HostError:
    text = f"no {host.python} there; install Python {version_text(HOST_PYTHON)} or newer, or set ansible_python_interpreter"
    return HostError(text, reached=True)


def python_old(host: HostSpec, version: str) -> HostError:
    text = (
        f"{host.python} is Python {version}, {version_text(HOST_PYTHON)} or newer is needed; install one beside it "
        f"(python3.11, say) and set ansible_python_interpreter"
    )
    return HostError(text, reached=True)


def directory_refused(host: HostSpec, path: str, reason: str) -> HostError:
    text = f"{path} cannot be created or written by {host.user or 'this user'}: {reason}; check its owner and mode, or set ccbed_workdir"
    return HostError(text, reached=True)
