"""A trial and a command line without their secrets, and the secrets put back for the ranks. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...model import redaction, vaulted
from ...model.errors import UsageError
from ...model.trial import Trial

#: What stands in the place of a secret: a keyed digest of it, so that equal secrets stay equal and none can be guessed.
PLACEHOLDER = re.compile(r"<redacted:[0-9a-f]{16}>")
#: Parameters that are lists of arguments, and those that are never secrets.
_ARGUMENTS = ("args", "exec_")
_PLAIN = ("file", "cwd", "step_regex")
#: The option that names a secret: its own value is none.
OPTION = "--secret"
#: An argument that is one assignment or header: ``--token=a b``, ``Authorization: Basic …``.
_WHOLE = re.compile(r"(?P<head>(?P<name>(?:--?|\+\+?)?[A-Za-z_][\w.-]*)(?:=|:\s+))(?P<value>.+)", re.DOTALL)
#: Assignments inside of each other are followed so deep: ``--env=TOKEN=abc``.
_DEEPEST = 8
_ASSIGNED = re.compile(
    r"""(?P<name>(?<![\w-])(?P<dash>--?)?[A-Za-z_][\w.-]*)(?:=|["']?:(?!//)\s*|(?(dash)\s+(?!-)|(?!)))"""
    r"""(?:(?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote))[^\\])*)(?P=quote)|(?P<plain>[^\s"',;&][^\s,;&]{0,999}))"""
)
_WORD = re.compile(r"\S*")

Mask = Callable[[str], str]


@dataclass(kw_only=True)
class Redaction:
    """Replaces secrets and remembers them. ``mask``: secret -> placeholder; ``names``: what the user calls secret.

    ``secrets``: placeholder -> secret.
    """

    mask: Mask
    names: Collection[str] = ()
    secrets: dict[str, str] = field(default_factory=dict)

    def trial(self, trial: Trial) -> Trial:
        """The same trial with placeholders in its parameters."""
        return replace(trial, params={name: self._param(name, value) for name, value in trial.params.items()})

    def arguments(self, arguments: Sequence[str]) -> tuple[str, ...]:
        """The same arguments with placeholders."""
        result: list[str] = []
        option = ""
        for argument in arguments:
            result.append(self._argument(argument, option))
            option = argument if re.fullmatch(r"--?[A-Za-z][\w.-]*", argument) else ""
        return tuple(result)

    def text(self, text: str) -> str:
        """The same text with placeholders for the secrets that are known."""
        for placeholder, secret in self.secrets.items():
            if len(secret) >= vaulted.SHORTEST:
                text = text.replace(secret, placeholder)
        return text

    def _param(self, name: str, value: Any) -> Any:
        if name in _ARGUMENTS and isinstance(value, list | tuple):
            return type(value)(self.arguments([str(argument) for argument in value]))
        if isinstance(value, str) and name not in _PLAIN:
            return self._value(value, name)
        return value

    def _argument(self, argument: str, option: str) -> str:
        if option and not argument.startswith("--") and self._is_secret(argument, option):
            return self._kept(argument)
        head = ""
        for _ in range(_DEEPEST):
            whole = _WHOLE.fullmatch(argument)
            if not whole:
                break
            if self._is_secret_name(whole["name"], whole["value"]):
                return head + whole["head"] + self._kept(whole["value"])
            head, argument, option = head + whole["head"], whole["value"], whole["name"]
        return head + self._in_text(argument, option)

    def _in_text(self, text: str, option: str) -> str:
        """The values of assignments anywhere in it; the rest is judged by its form, as the value of ``option``."""
        result, rest, position = "", "", 0
        while match := _ASSIGNED.search(text, position):
            start, end = match.span("quoted" if match["quote"] else "plain")
            secret = self._is_secret_name(match["name"], text[start:end])
            if secret and not match["quote"]:
                end = _WORD.match(text, start).end()  # type: ignore[union-attr]
            result, rest = result + text[position:start], rest + text[position : match.start()] + " "
            position = start
            inner = _ASSIGNED.search(text, start)
            if secret or not inner or inner.start() >= end:
                result += self._kept(text[start:end]) if secret else self._value(text[start:end], match["name"])
                position = end
        if redaction.has_secret_form(text) or redaction.looks_secret(rest + text[position:], option):
            return self._kept(text)
        return result + text[position:]

    def _value(self, value: str, name: str) -> str:
        if PLACEHOLDER.search(value):
            return value
        return self._kept(value) if self._is_secret(value, name) or redaction.has_secret_form(value) else value

    def _is_secret(self, value: str, name: str) -> bool:
        is_name = name == OPTION and value in self.names
        return not is_name and (self._is_secret_name(name, value) or redaction.looks_secret(value, name))

    def _is_secret_name(self, name: str, value: str) -> bool:
        if name == OPTION and value in self.names:
            return False
        if redaction.is_named(name, self.names):
            return True
        return redaction.is_secret_option(name) and not redaction.is_trivial(value, name)

    def _kept(self, secret: str) -> str:
        if PLACEHOLDER.search(secret):
            return secret
        placeholder = self.mask(secret)
        self.secrets[placeholder] = secret
        return placeholder


def command_line(arguments: Sequence[str]) -> str:
    """A command line for people, with its secrets gone for good."""
    return shlex.join(Redaction(mask=lambda secret: "<redacted>").arguments(arguments))


def holds(content: bytes, secrets: Iterable[str]) -> bool:
    """Whether one of the secrets is in ``content``."""
    return any(len(secret) >= vaulted.SHORTEST and secret.encode() in content for secret in secrets)


def reveal(value: Any, secrets: Mapping[str, str]) -> Any:
    """``value`` with the secrets in the places of their placeholders."""
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda match: secrets.get(match[0], match[0]), value)
    if isinstance(value, Mapping):
        return {key: reveal(part, secrets) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(reveal(part, secrets) for part in value)
    return value


def require(trial: Trial, secrets: Collection[str], directory: str, bed: str) -> None:
    """Raises UsageError where a rank would be started with a placeholder among its arguments."""
    if unknown := missing(trial.params, secrets):
        raise UsageError(
            *(f"{directory}: {place} was redacted, and is not kept with the bed any more" for place in unknown),
            hint=f"give the run up: ccbed heal {bed}; then run it again with that argument",
        )


def missing(params: Mapping[str, Any], secrets: Collection[str] = ()) -> tuple[str, ...]:
    """The places of placeholders whose secrets are not known: ``params.args[3] (the value of --token)``."""
    return tuple(f"params.{place}" for place in _places(params, frozenset(secrets)))


def redacted_options(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The options whose values a recorded trial lacks: they are secret in the next run too."""
    lists = [params[name] for name in _ARGUMENTS if isinstance(params.get(name), list | tuple)]
    redacted = (
        (parts, number) for parts in lists for number, part in enumerate(parts) if PLACEHOLDER.search(str(part))
    )
    return tuple(option for parts, number in redacted if (option := _option(parts, number)))


def _places(params: Mapping[str, Any], secrets: frozenset[str]) -> Iterable[str]:
    for name, value in params.items():
        parts = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
        for number, part in enumerate(parts):
            if isinstance(part, str) and set(PLACEHOLDER.findall(part)) - secrets:
                yield name if isinstance(value, str) else f"{name}[{number}] ({_label(parts, number)})"


def _label(parts: Sequence[Any], number: int) -> str:
    name = _option(parts, number)
    return f"the value of {name}" if name else "an argument"


def _option(parts: Sequence[Any], number: int) -> str:
    before = str(parts[number - 1]) if number else ""
    head = str(parts[number]).partition("<redacted:")[0].rstrip("=\"' ")
    return head or (before if before.startswith("-") else "")
