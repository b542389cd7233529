"""Arguments of ssh in an inventory -> its options by name, so that ccbed's own connection keeps to them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..spec import values
from . import literal

#: Where they may stand, in the order in which ansible hands them to ssh: the first of an option counts.
VARIABLES = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
#: What ccbed's own connection does as it is told; ``config`` is -F.
HONOURED = (
    "port", "user", "hostname", "identityfile", "userknownhostsfile", "stricthostkeychecking", "proxycommand",
    "proxyjump", "config",
)  # fmt: skip
#: What it does in a way of its own, and what is about terminals, logs and shared connections: left to ansible.
LEFT_TO_SSH = (
    "addkeystoagent", "batchmode", "canonicalizehostname", "challengeresponseauthentication", "checkhostip",
    "ciphers", "compression", "connectionattempts", "connecttimeout", "controlmaster", "controlpath",
    "controlpersist", "escapechar", "forwardagent", "forwardx11", "forwardx11trusted", "globalknownhostsfile",
    "gssapiauthentication", "gssapidelegatecredentials", "gssapitrustdns", "hashknownhosts", "hostkeyalgorithms",
    "identitiesonly", "ipqos", "kbdinteractiveauthentication", "kexalgorithms", "loglevel", "macs",
    "nohostauthenticationforlocalhost", "numberofpasswordprompts", "passwordauthentication",
    "preferredauthentications", "pubkeyacceptedalgorithms", "pubkeyacceptedkeytypes", "pubkeyauthentication",
    "rekeylimit", "requesttty", "sendenv", "serveralivecountmax", "serveraliveinterval", "setenv",
    "streamlocalbindunlink", "tcpkeepalive", "updatehostkeys", "verifyhostkeydns", "visualhostkey",
)  # fmt: skip
_LETTERS = {"p": "port", "l": "user", "i": "identityfile", "J": "proxyjump", "F": "config"}
#: Letters that take no word, or one that only concerns ssh itself.
_FLAGS, _WITH_WORD = "1246AaCfGgKkMNnqsTtVvXxYy", "BbcDEeFIiJLlmOoPpQRSWw"
_ALONE = frozenset("cEemS")

Options = Mapping[str, tuple[str, ...]]


def read(*arguments: str) -> Options:
    """``-o Port=1 -J bastion -i key`` -> {"port": ("1",), "proxyjump": ("bastion",), "identityfile": ("key",)}.

    Keys are collected; of every other option the first counts, as for ssh. Raises ValueError that names what ccbed's own
    connection cannot keep to.
    """
    found: dict[str, tuple[str, ...]] = {}
    unknown = []
    for name, value, shown in _given(arguments):
        if name in HONOURED:
            before = found.get(name, ())
            found[name] = (*before, value) if name == "identityfile" else before or (value,)
        elif name not in LEFT_TO_SSH:
            unknown.append(shown)
    if unknown:
        raise ValueError(f"ccbed's own connection does not know {', '.join(dict.fromkeys(unknown))}; remove it")
    _check(found)
    return found


def first(options: Options, name: str) -> str:
    """Empty where it is not given."""
    return next(iter(options.get(name, ())), "")


def known_hosts(options: Options) -> str | None:
    """The user's file of known hosts, where it is named."""
    return first(options, "userknownhostsfile").split(" ")[0] or None


def first_contact(options: Options) -> bool:
    """Whether a host that is not known yet may be accepted."""
    return first(options, "stricthostkeychecking").lower() in ("no", "off", "accept-new")


#: ``proxycommand`` is a command that this machine runs, as ssh does.
_READ = {"port": literal.port, "user": literal.user, "hostname": literal.address, "proxyjump": literal.jump}


def _check(found: Options) -> None:
    """Raises ValueError for a value that would not stay one word of a command."""
    for name, given in found.items():
        for value in given:
            try:
                literal.text(value)
                if name in _READ and value != "none":
                    _READ[name](value)
            except ValueError as error:
                raise ValueError(f"{name} of ssh {error} (got {values.show(value)})") from None


def _given(arguments: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """(name, value, as it stands) of each option. Raises ValueError for what ssh would not understand either."""
    for text in arguments:
        words = iter(shlex.split(text))
        for word in words:
            if not word.startswith("-") or len(word) < 2:
                raise ValueError(f"{word!r} is no option of ssh")
            yield from _option(word, words)


def _option(word: str, words: Iterator[str]) -> Iterator[tuple[str, str, str]]:
    """One word: flags, and at their end perhaps a letter with a value that stands in it or is the next word."""
    for at, letter in enumerate(word[1:], start=1):
        if letter in _FLAGS:
            continue
        if letter not in _WITH_WORD:
            raise ValueError(f"-{letter} is no option of ssh")
        value = word[at + 1 :] or next(words, "")
        if not value:
            raise ValueError(f"-{letter} needs a value")
        if letter == "o":
            yield _named(value)
        elif letter not in _ALONE:
            yield _LETTERS.get(letter, f"-{letter}"), value, f"-{letter}"
        return


def _named(text: str) -> tuple[str, str, str]:
    name, sign, value = text.partition("=") if "=" in text.split(" ", 1)[0] else text.partition(" ")
    name, value = name.strip(), value.strip().removeprefix("=").strip()
    if not sign or not value:
        raise ValueError(f"-o {text} has no value")
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    return name.lower(), value, f"-o {name}"


def absolute(options: Options, home: str) -> Options:
    """With ``home`` for ``~`` in the names of files."""
    files = ("identityfile", "userknownhostsfile", "config")
    return {name: _at_home(values, home) if name in files else values for name, values in options.items()}


def _at_home(values: Sequence[str], home: str) -> tuple[str, ...]:
    return tuple(
        " ".join(home + one[1:] if one.startswith("~/") else one for one in text.split(" ")) for text in values
    )
