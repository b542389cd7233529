"""What Ansible or SSH says of a host -> one plain sentence, and what to do next."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...model.bed import HostSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """``text``: what is wrong; ``fix``: what to do about it."""

    text: str
    fix: str


#: What is said of a host that is not reached, how it is told, what to do. ``{…}``: where and how it is reached.
_UNREACHED = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key .*(?:mismatch|does not match)",
        "its host key has changed: another machine, or one that was installed anew",
        "if that is right: ssh-keygen -R '{known}' and accept the new key",
    ),
    (
        r"Host key verification failed|not found in known_hosts|unknown host key",
        "its host key is not known",
        "ssh-keyscan -p {port} {address} >> {file}, after comparing it; or set ccbed_ssh_first_contact: true",
    ),
    (
        r"Permission denied|Authentication failed|Too many authentication failures|no acceptable key",
        "user {user} is not let in",
        "ssh-copy-id -p {port} {user}@{address}; or set ansible_user and ansible_ssh_private_key_file",
    ),
    (
        r"identity file|no such identity|private key|Load key",
        "the SSH key {key} cannot be used",
        "set ansible_ssh_private_key_file to a key of yours (mode 0600)",
    ),
    (
        r"Connection refused",
        "nothing listens on {address} port {port}",
        "start sshd there, or set ansible_port",
    ),
    (
        r"timed out|No route to host|Network is unreachable|Host is down",
        "{address} does not answer on port {port}",
        "is it on, and is ansible_host right? ping {address}",
    ),
    (
        r"Could not resolve|Name or service not known|Temporary failure in name resolution",
        "the name {address} is not known",
        "set ansible_host to its address",
    ),
    (
        r"Connection reset|Connection closed|Broken pipe|closed by (?:remote host|.* port)",
        "the connection to {address} broke",
        "look into sshd's log on {name}",
    ),
)
#: The same for a host that is reached, and on which something fails.
_FAILED = (
    (
        r"[Mm]issing sudo password|a password is required|Incorrect sudo password",
        "user {user} may not become root",
        "let {user} sudo without a password, or keep ansible_become_password in a vault",
    ),
    (
        r"sudo: (?:command )?not found|No such file or directory: b?'sudo'",
        "there is no sudo, and {user} is not root",
        "install sudo there, or set ansible_user: root",
    ),
    (
        r"[Nn]o space left on device",
        "its disk is full ({said})",
        "free space on {name}: df -h there, docker system prune",
    ),
    (
        r"Request failed|urlopen error|No package|Unable to locate package|Cannot download|Failed to (?:update|fetch|download)|Depsolve",
        "{said}",
        "give {name} a way to its packages (docker_repository, nvidia_repository: mirrors), or install it by hand",
    ),
    (
        r"Could not get lock|is another process using it|dpkg was interrupted",
        "{said}",
        "wait until its package manager is done: ps -C apt,dpkg,dnf",
    ),
    (
        r"requires a minimum of Python|future feature annotations is not defined|SyntaxError",
        "the Python at {python} is too old",
        "install a newer one there, and set ansible_python_interpreter to it",
    ),
    (
        r"no Python at|python\S*: (?:command not found|not found|No such file)|No such file.*python|interpreter.*not found",
        "there is no Python at {python}",
        "install python3 there, or set ansible_python_interpreter",
    ),
)


def advise(host: HostSpec, said: str, *, reached: bool = False) -> Advice:
    """The advice for the first known reason; for an unknown one its own words. ``reached``: it failed on the host itself."""
    said = _short(said)
    words = {
        "name": host.name,
        "address": host.address or host.name,
        "port": host.port,
        "user": host.user or "your user",
        "key": host.key or "",
        "python": host.python,
        "file": host.known_hosts or "~/.ssh/known_hosts",
        "known": host.address if host.port == 22 else f"[{host.address}]:{host.port}",
        "said": said,
    }
    for pattern, text, fix in _FAILED if reached else (*_UNREACHED, *_FAILED):
        if re.search(pattern, said):
            return Advice(text=text.format(**words), fix=fix.format(**words))
    return Advice(text=said or "it failed and does not say why", fix=f"look at it: ssh {_login(host)}")


def _login(host: HostSpec) -> str:
    port = f"-p {host.port} " if host.port != 22 else ""
    return f"{port}{host.user + '@' if host.user else ''}{host.address or host.name}"


def _short(said: str) -> str:
    """The lines that say something, on one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    text = " ".join(lines)
    return text if len(text) <= 400 else f"{text[:200]} … {text[-180:]}"
