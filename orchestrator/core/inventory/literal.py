"""Readers of inventory values that reach a host: they accept plain data only and reject everything else with a reason.

An accepted value means the same to a shell, to ssh, to Ansible's templates, to a container engine and in a path. Every use
quotes it as well. The readers raise ValueError.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..spec import written_values

#: Letters and digits of any script; no space, quote, bracket, dollar, backslash, percent sign or control character.
_COMPONENT = re.compile(r"[\w.+@=,-]{1,255}")
#: With the prefix ``keeper-``, a host's name is the name of a directory.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,239}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,63}\$?")
_NUMBERED_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,63})?")
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@-]{0,14}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*([/:@][A-Za-z0-9_][A-Za-z0-9._-]*)*")
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/=+-]{0,127}")
_PROXY = re.compile(
    r"https?://(?:[\w.~%!+-]{1,128}:[\w.~%!+-]{1,256}@)?(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?/?"
)
_NO_PROXY = re.compile(r"\*|(?=.{1,253}$)(\*?\.)?(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*(:\d{1,5})?")
HOP = re.compile(r"(?:([^@]*)@)?(?:\[([^\]]+)\]|([^:]+))(?::(.*))?")
MAX_PATH_LENGTH, MAX_IMAGE_LENGTH = 1024, 255
#: Ansible's plug-ins of connections -> the kind of ccbed's own. ``smart`` is ssh with every ssh of today.
_CONNECTIONS = {"ssh": "ssh", "smart": "ssh", "paramiko": "ssh", "paramiko_ssh": "ssh", "local": "local"}
_DISCOVERED = ("auto", "auto_legacy", "auto_silent", "auto_legacy_silent")
#: Ansible's own groups.
_GROUPS = ("all", "ungrouped")


def text(value: Any) -> str:
    """Any text that can be an argument of a program."""
    if not isinstance(value, str | int | float) or isinstance(value, bool) or value == "":
        raise ValueError("must be text")
    if "\0" in str(value):
        raise ValueError("must not contain a NUL character")
    return str(value)


def path(value: Any) -> str:
    """An absolute path, or a path below the user's home directory (``~/``), without ``..``."""
    result = _plain_path(value)
    return result if result.startswith("~/") else absolute_path(result)


def absolute_path(value: Any) -> str:
    result = _plain_path(value)
    if not result.startswith("/"):
        raise ValueError("must be an absolute path")
    if {"..", "."} & set(result.split("/")):
        raise ValueError("must be a path without . and ..")
    return result


def file(value: Any) -> str:
    """The path of a file on the controller; it may be relative."""
    return _plain_path(value, relative=True)


def host_name(value: Any) -> str:
    """The name of a host in an inventory: it is part of paths and of Ansible's patterns."""
    result = str(value)
    if not _is_numeric(result) and (not _NAME.fullmatch(result) or ".." in result):
        raise ValueError("must be 1 to 240 letters, digits, . _ and -, begin with a letter or digit, and have no ..")
    if result in _GROUPS:
        raise ValueError("is the name of one of Ansible's own groups; rename the host")
    return result


def address(value: Any) -> str:
    """The address of a host: a name or a numeric address."""
    result = text(value)
    if not _is_numeric(result) and (not _NAME.fullmatch(result) or ".." in result):
        raise ValueError("must be a host name or a numeric address")
    return str(ipaddress.ip_address(result)) if _is_numeric(result) else result


def numeric_address(value: Any) -> str:
    if not isinstance(value, str) or not _is_numeric(value):
        raise ValueError("must be a numeric address such as 127.0.0.1")
    return str(ipaddress.ip_address(value))


def user(value: Any) -> str:
    return _matching(_USER, value, "must be the name of a user")


def container_user(value: Any) -> str:
    return _matching(_NUMBERED_USER, value, "must be a user such as 1000 or 1000:1000")


def interface(value: Any) -> str:
    return _matching(_INTERFACE, value, "must be the name of a network interface such as eth0")


def image(value: Any) -> str:
    result = _matching(_IMAGE, value, "must be the name of an image such as ccbed/cpu:2.13.0")
    if len(result) > MAX_IMAGE_LENGTH:
        raise ValueError(f"must have at most {MAX_IMAGE_LENGTH} characters")
    return result


def device(value: Any) -> str:
    return _matching(_DEVICE, value, "must be the name of a device: an index, a UUID, or a CDI name")


def program(value: Any) -> str:
    """A program's name or path, without arguments."""
    if str(value).startswith("/"):
        return absolute_path(value)
    return _matching(_NAME, value, "must be a program's name or absolute path, without arguments")


def port(value: Any) -> int:
    number = written_values.whole(value, 1)
    if number > 65535:
        raise ValueError("must be <= 65535")
    return number


def jump(value: Any) -> str:
    """One or more hosts of ssh's ProxyJump: ``[user@]host[:port],…``."""
    for hop in text(value).removeprefix("ssh://").split(","):
        parts = HOP.fullmatch(hop)
        if not parts:
            raise ValueError("must be [user@]host[:port]")
        if parts[1] is not None:
            user(parts[1])
        address(parts[2] or parts[3])
        if parts[4] is not None:
            port(parts[4])
    return str(value)


def proxy(value: Any) -> str:
    """``http://[user:password@]host[:port]``."""
    return _matching(_PROXY, value, "must be http://host:port, with user:password@ before the host if need be")


def no_proxy(value: Any) -> str:
    """Hosts that are reached without the proxy: a list, or text with commas."""
    items = value if isinstance(value, list) else str(value).split(",")
    wanted = "must be names of hosts or domains, addresses or networks"
    words = [str(item).strip() for item in items]
    return ",".join(word if _is_network(word) else _matching(_NO_PROXY, word, wanted) for word in words)


def _connection(value: Any) -> str:
    """``ssh`` or ``local``: ccbed's own connections are those of Ansible's plug-ins of these kinds."""
    name = text(value).removeprefix("ansible.builtin.").removeprefix("ansible.netcommon.")
    if name not in _CONNECTIONS:
        raise ValueError(f"must be ssh or local: ccbed cannot connect by the plug-in {written_values.printable(name)}")
    return _CONNECTIONS[name]


def _interpreter(value: Any) -> str:
    """A program; where Ansible discovers it, the usual one."""
    return "python3" if str(value) in _DISCOVERED else program(value)


def _switch(value: Any) -> bool:
    true, false = ("true", "yes", "on", "y", "t", "1"), ("false", "no", "off", "n", "f", "0")
    if str(value).lower() not in (*true, *false):
        raise ValueError("must be true or false")
    return str(value).lower() in true


def _is_network(value: str) -> bool:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        return False
    return "%" not in value


def _is_numeric(value: str) -> bool:
    try:
        result = ipaddress.ip_address(value)
    except ValueError:
        return False
    scope = getattr(result, "scope_id", None)
    return not scope or _INTERFACE.fullmatch(scope) is not None


def _plain_path(value: Any, *, relative: bool = False) -> str:
    result = value if isinstance(value, str) else ""
    if not relative and not result.startswith(("/", "~/")):
        raise ValueError("must be an absolute path")
    stripped = result.rstrip("/")
    parts = stripped.removeprefix("~/").removeprefix("/").split("/")
    if stripped.startswith("-") or not all(_COMPONENT.fullmatch(part) for part in parts):
        raise ValueError("must be a path of letters, digits and . _ + @ = , -")
    if len(result) > MAX_PATH_LENGTH:
        raise ValueError(f"must have at most {MAX_PATH_LENGTH} characters")
    return stripped


def _matching(pattern: re.Pattern[str], value: Any, problem: str) -> str:
    result = text(value)
    if not pattern.fullmatch(result):
        raise ValueError(problem)
    return result


#: Ansible's variables that ccbed reads as well. ``ssh_options`` reads the arguments of ssh.
ANSIBLE: Mapping[str, Callable[[Any], Any]] = {
    "ansible_connection": _connection,
    "ansible_host": address,
    "ansible_port": port,
    "ansible_user": user,
    "ansible_ssh_private_key_file": file,
    "ansible_python_interpreter": _interpreter,
    "ansible_host_key_checking": _switch,
}
