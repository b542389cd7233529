"""Parse arguments of ssh in an inventory into options by name, so that ccbed's own connection honours them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..spec import written_values
from . import literal

#: The variables that hold them, in the order in which Ansible passes them to ssh: the first value of an option applies.
VARIABLES = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
#: The settings of Ansible's configuration with the same effect.
SETTINGS = tuple(name.removeprefix("ansible_") for name in VARIABLES)
#: Options that ccbed's own connection honours; ``config`` is -F.
HONOURED = (
    "port", "user", "hostname", "identityfile", "userknownhostsfile", "stricthostkeychecking", "proxycommand",
    "proxyjump", "config",
)  # fmt: skip
#: Options that ccbed's connection ignores (it has its own way, or they concern terminals, logs, shared connections).
LEFT_TO_SSH = (
    "addkeystoagent", "addressfamily", "batchmode", "canonicalizehostname", "casignaturealgorithms",
    "challengeresponseauthentication", "checkhostip", "ciphers", "clearallforwardings", "compression",
    "connectionattempts", "connecttimeout", "controlmaster", "controlpath", "controlpersist", "escapechar",
    "exitonforwardfailure", "forwardagent", "forwardx11", "forwardx11trusted", "globalknownhostsfile",
    "gssapiauthentication", "gssapidelegatecredentials", "gssapitrustdns", "hashknownhosts", "hostbasedauthentication",
    "hostkeyalgorithms", "identitiesonly", "ipqos", "kbdinteractiveauthentication", "kexalgorithms", "loglevel", "macs",
    "nohostauthenticationforlocalhost", "numberofpasswordprompts", "passwordauthentication", "preferredauthentications",
    "pubkeyacceptedalgorithms", "pubkeyacceptedkeytypes", "pubkeyauthentication", "rekeylimit", "requesttty", "sendenv",
    "serveralivecountmax", "serveraliveinterval", "setenv", "streamlocalbindunlink", "tcpkeepalive", "updatehostkeys",
    "verifyhostkeydns", "visualhostkey",
)  # fmt: skip
#: Options that run no program, write no file and lead no connection elsewhere, with values of ``PLAIN`` characters.
_HARMLESS = (
    "controlmaster", "controlpersist", "controlpath", "serveraliveinterval", "serveralivecountmax", "connecttimeout",
    "connectionattempts", "compression", "ciphers", "addressfamily", "preferredauthentications", "identitiesonly",
    "tcpkeepalive", "loglevel", "-4", "-6", "-C", "-q",
)  # fmt: skip
PLAIN = re.compile(r"[\w.,:/@~+ %-]*")
_LETTERS = {"p": "port", "l": "user", "i": "identityfile", "J": "proxyjump", "F": "config"}
#: Flags without a value, flags with a value, and flags whose value concerns only ssh itself.
_FLAGS, _WITH_WORD = "1246AaCfGgKkMNnqsTtVvXxYy", "BbcDEeFIiJLlmOoPpQRSWw"
_ALONE = ("-c", "-E", "-e", "-m", "-S")

Options = Mapping[str, tuple[str, ...]]


def read(*arguments: str) -> Options:
    """``-o Port=1 -J bastion -i key`` -> {"port": ("1",), "proxyjump": ("bastion",), "identityfile": ("key",)}.

    Identity files are collected; of every other option the first value applies, as in ssh. Raises ValueError with the
    names of unsupported options.
    """
    options: dict[str, tuple[str, ...]] = {}
    unsupported = []
    for name, value, written in _parse_words(arguments):
        if name in HONOURED:
            earlier = options.get(name, ())
            options[name] = (*earlier, value) if name == "identityfile" else earlier or (value,)
        elif value and name not in (*LEFT_TO_SSH, *_ALONE) and (name, value) != ("permitlocalcommand", "no"):
            unsupported.append(written)
    if unsupported:
        names = ", ".join(dict.fromkeys(unsupported))
        raise ValueError(f"ccbed's own connection does not support {names}; remove it")
    _check(options)
    return options


def are_harmless(arguments: str) -> bool:
    """Return whether a stranger may give these arguments."""
    try:
        words = [(name, value) for name, value, _ in _parse_words([arguments])]
    except ValueError:
        return False
    return all(PLAIN.fullmatch(word[1]) and (word[0] in _HARMLESS or word == ("forwardagent", "no")) for word in words)


def first(options: Options, name: str) -> str:
    """The first value of an option; empty if it is not set."""
    return next(iter(options.get(name, ())), "")


def known_hosts(options: Options) -> str | None:
    """The user's file of known hosts, if the options name it."""
    return first(options, "userknownhostsfile").split(" ")[0] or None


def first_contact(options: Options) -> bool:
    """Return whether an unknown host key may be accepted."""
    return first(options, "stricthostkeychecking").lower() in ("no", "off", "accept-new")


#: ``proxycommand`` is a command that the controller runs, as ssh does.
_READERS = {"port": literal.port, "user": literal.user, "hostname": literal.address, "proxyjump": literal.jump}


def _check(options: Options) -> None:
    """Raises ValueError for a value that would not stay a single word of a command."""
    for name, option_values in options.items():
        for value in option_values:
            try:
                literal.text(value)
                if name in _READERS and value != "none":
                    _READERS[name](value)
            except ValueError as error:
                raise ValueError(f"{name} of ssh {error} (got {written_values.show(value)})") from None


def _parse_words(arguments: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """(name, value, option as written). Raises ValueError for an argument that ssh itself would reject."""
    for text in arguments:
        words = iter(shlex.split(text))
        for word in words:
            if not word.startswith("-") or len(word) < 2:
                raise ValueError(f"{word!r} is no option of ssh")
            yield from _option(word, words)


def _option(word: str, words: Iterator[str]) -> Iterator[tuple[str, str, str]]:
    """Parse a word: flags, then possibly a letter with a value in the same or in the next word."""
    for at, letter in enumerate(word[1:], start=1):
        if letter in _FLAGS:
            yield f"-{letter}", "", f"-{letter}"
            continue
        if letter not in _WITH_WORD:
            raise ValueError(f"-{letter} is no option of ssh")
        value = word[at + 1 :] or next(words, "")
        if not value:
            raise ValueError(f"-{letter} needs a value")
        if letter == "o":
            yield _named(value)
        else:
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
    """The options with ``home`` in place of ``~`` in file names."""
    files = ("identityfile", "userknownhostsfile", "config")
    return {name: _expand_user(values, home) if name in files else values for name, values in options.items()}


def _expand_user(values: Sequence[str], home: str) -> tuple[str, ...]:
    return tuple(
        " ".join(home + path[1:] if path.startswith("~/") else path for path in text.split(" ")) for text in values
    )
