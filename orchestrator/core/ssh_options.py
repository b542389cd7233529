"""Options of OpenSSH in ansible_ssh_common_args -> by name, so that ccbed's own connection keeps to them."""

from __future__ import annotations

import shlex


def read(arguments: str) -> dict[str, str]:
    """``-o UserKnownHostsFile=x -oPort=1`` -> {"userknownhostsfile": "x", …}; the first of a name counts, as for ssh."""
    try:
        words = shlex.split(arguments)
    except ValueError:
        return {}
    found: dict[str, str] = {}
    for number, word in enumerate(words):
        text = words[number + 1] if word == "-o" and number + 1 < len(words) else word[2:] if word[:2] == "-o" else ""
        name, sign, value = text.partition("=") if "=" in text else text.partition(" ")
        if sign and value.strip():
            found.setdefault(name.strip().lower(), value.strip())
    return found


def known_hosts(options: dict[str, str]) -> str | None:
    """The user's file of known hosts, where it is named."""
    return options.get("userknownhostsfile", "").split(" ")[0] or None


def first_contact(options: dict[str, str]) -> bool:
    """Whether a host that is not known yet may be accepted."""
    return options.get("stricthostkeychecking", "").lower() in ("no", "off", "accept-new")
