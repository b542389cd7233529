"""Redact secrets from a trial and a command line, and reveal them to the ranks."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ...model import redaction, vaulted
from ...model.errors import UsageError
from ...model.frozen import dataclass, field, replace
from ...model.trial import Trial

#: The placeholder of a secret: a keyed digest, so that equal secrets stay equal and cannot be guessed.
PLACEHOLDER = re.compile(r"<redacted:[0-9a-f]{16}>")
#: Parameters that are lists of arguments, and those that are never secrets.
_ARGUMENTS = ("args", "exec_")
_PLAIN = ("file", "module", "cwd", "root", "stop_at", "step_regex")
#: The option that names a secret: its own value is not secret.
OPTION = "--secret"
#: An argument that is one assignment or header: ``--token=a b``, ``Authorization: Basic …``.
_WHOLE = re.compile(r"(?P<head>(?P<name>(?:--?|\+\+?)?[A-Za-z_][\w.-]*)(?:=|:\s+))(?P<value>.+)", re.DOTALL)
#: The limit of nested assignments: ``--env=TOKEN=abc`` has two levels.
_MAX_DEPTH = 8
_WORD = re.compile(r"\S*")

Mask = Callable[[str], str]


@dataclass(kw_only=True)
class Redaction:
    """Replaces secrets and records them. ``mask``: secret -> placeholder; ``names``: options and variables that are secret.

    ``values``: of variables that are secret; an argument that has one is redacted under any name. ``secrets``: placeholder -> secret.
    """

    mask: Mask
    names: Collection[str] = ()
    values: Collection[str] = ()
    secrets: dict[str, str] = field(default_factory=dict)

    def trial(self, trial: Trial) -> Trial:
        return replace(trial, params={name: self._param(name, value) for name, value in trial.params.items()})

    def arguments(self, arguments: Sequence[str]) -> tuple[str, ...]:
        result: list[str] = []
        option = ""
        for argument in arguments:
            result.append(self._argument(argument, option))
            option = argument if re.fullmatch(r"--?[A-Za-z][\w.-]*", argument) else ""
        return tuple(result)

    def text(self, text: str) -> str:
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
        shown = self._by_name(argument, option)
        has_value = any(len(value) >= vaulted.SHORTEST and value in shown for value in self.values)
        return self._placeholder(argument) if has_value else shown

    def _by_name(self, argument: str, option: str) -> str:
        if option and not argument.startswith("--") and self._is_secret(argument, option):
            return self._placeholder(argument)
        head = ""
        for _ in range(_MAX_DEPTH):
            whole = _WHOLE.fullmatch(argument)
            if not whole:
                break
            name, value = whole["name"], whole["value"]
            if redaction.is_secret(name, value, self.names) and not self._is_declared(name, value):
                return head + whole["head"] + self._placeholder(whole["value"])
            head, argument, option = head + whole["head"], whole["value"], whole["name"]
        return head + self._in_text(argument, option)

    def _in_text(self, text: str, option: str) -> str:
        """Redact the values of assignments anywhere in ``text``; judge the rest by its form, as the value of ``option``."""
        result, rest, position = "", "", 0
        for name, quote, start, end, is_secret in redaction.assignments(text, self.names):
            if start < position:  # within a word that is redacted
                continue
            between, secret = text[position:start], is_secret and not self._is_declared(name, text[start:end])
            position = _WORD.match(text, start).end() if secret and not quote else end  # type: ignore[union-attr]
            value = text[start:position]
            result += between + (
                self._placeholder(value) if secret else self._value(value, "" if name == "-p" else name)
            )
            rest += between + " "
        if redaction.has_secret_form(text) or redaction.looks_secret(rest + text[position:], option):
            return self._placeholder(text)
        return result + text[position:]

    def _value(self, value: str, name: str) -> str:
        if PLACEHOLDER.search(value):
            return value
        return self._placeholder(value) if self._is_secret(value, name) or redaction.has_secret_form(value) else value

    def _is_secret(self, value: str, name: str) -> bool:
        return not self._is_declared(name, value) and (
            redaction.is_secret(name, value, self.names) or redaction.looks_secret(value, name)
        )

    def _is_declared(self, name: str, value: str) -> bool:
        return name == OPTION and value in self.names

    def _placeholder(self, secret: str) -> str:
        if PLACEHOLDER.search(secret):
            return secret
        placeholder = self.mask(secret)
        self.secrets[placeholder] = secret
        return placeholder


def command_line(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """A command line for display; its secrets cannot be revealed. ``environment``: has the values of variables that --secret names."""
    names = [name for option, name in itertools.pairwise(arguments) if option == OPTION]
    values = values_of(names, arguments, environment or {})
    return shlex.join(Redaction(mask=lambda secret: "<redacted>", names=names, values=values).arguments(arguments))


def values_of(names: Iterable[str], assignments: Iterable[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables: of ``NAME=VALUE`` among ``assignments``, else of the environment."""
    given = dict(environment) | {
        name: value for name, _, value in (text.partition("=") for text in assignments) if value
    }
    return tuple(given[name] for name in names if given.get(name))


def contains_secret(content: bytes, secrets: Iterable[str]) -> bool:
    return any(len(secret) >= vaulted.SHORTEST and secret.encode() in content for secret in secrets)


def reveal(value: Any, secrets: Mapping[str, str]) -> Any:
    """``value`` with the secrets in place of their placeholders."""
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda match: secrets.get(match[0], match[0]), value)
    if isinstance(value, Mapping):
        return {key: reveal(part, secrets) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(reveal(part, secrets) for part in value)
    return value


def require(trial: Trial, secrets: Collection[str], directory: str, bed: str) -> None:
    """Raises UsageError if a rank would start with a placeholder among its arguments."""
    if paths := missing_secrets(trial.params, secrets):
        raise UsageError(
            *(f"{directory}: {path} was redacted, and the bed no longer has its value" for path in paths),
            hint=f"abandon the run: ccbed heal {bed}; then start it again with that argument",
        )


def missing_secrets(params: Mapping[str, Any], secrets: Collection[str] = ()) -> tuple[str, ...]:
    """The paths of placeholders whose secrets are not known: ``params.args[3] (the value of --token)``."""
    return tuple(f"params.{path}" for path in _paths(params, frozenset(secrets)))


def redacted_options(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The options whose values are redacted in a recorded trial: they are secret in the next run too."""
    lists = [params[name] for name in _ARGUMENTS if isinstance(params.get(name), list | tuple)]
    redacted = (
        (parts, number) for parts in lists for number, part in enumerate(parts) if PLACEHOLDER.search(str(part))
    )
    return tuple(option for parts, number in redacted if (option := _option(parts, number)))


def _paths(params: Mapping[str, Any], secrets: frozenset[str]) -> Iterable[str]:
    for name, value in params.items():
        parts = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
        for number, part in enumerate(parts):
            if isinstance(part, str) and set(PLACEHOLDER.findall(part)) - secrets:
                yield name if isinstance(value, str) else f"{name}[{number}] ({_label(parts, number)})"


def _label(parts: Sequence[Any], number: int) -> str:
    name = _option(parts, number)
    return f"the value of {name}" if name else "an argument"


def _option(parts: Sequence[Any], number: int) -> str:
    preceding = str(parts[number - 1]) if number else ""
    head = str(parts[number]).partition("<redacted:")[0].rstrip("=\"' ")
    return head or (preceding if preceding.startswith("-") else "")
