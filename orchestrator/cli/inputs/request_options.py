"""The options of a verb, from the fields of its request."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from ...app import requests
from ...app.requests import Option
from ...model import codec
from ...model.errors import UsageError
from ...model.frozen import fields
from . import completions


def of(request: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option for each field of ``request`` that is one, in their order, those of its values included."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for make in reversed([*_decorators(request)]):
            function = make(function)
        return function

    return add


def _decorators(request: type) -> Iterator[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    for item in fields(request):
        kind, made = codec.hints(request)[item.name], item.metadata.get("option")
        if requests.is_request(kind):
            yield from _decorators(kind)
        elif made is not None:
            flag = f"--{item.name.replace('_', '-')}"
            names = made.flags or ((f"{flag}/--no-{flag[2:]}",) if kind == bool | None else (flag,))
            yield click.option(*names, item.name, **_settings(made, kind, item.default))


def _settings(made: Option, kind: Any, default: Any) -> dict[str, Any]:
    """The arguments of ``click.option`` for a field."""
    settings: dict[str, Any] = {"help": made.help, "default": None if default == () else default}
    settings |= {"metavar": made.metavar} if made.metavar else {}
    settings |= {"shell_complete": getattr(completions, made.completes)} if made.completes else {}
    if kind is bool:
        return settings | {"is_flag": True}
    if kind == bool | None:
        return settings
    if made.optional:  # without a value it has this one
        settings |= {"is_flag": False, "flag_value": made.optional}
    if kind == tuple[str, ...]:
        settings |= {"multiple": True} | ({"type": Words()} if made.splits else {})
    if made.choices:
        settings |= {"type": click.Choice(made.choices)}
    if kind in (Path, Path | None):
        kinds = {"file_okay": not made.is_folder, "dir_okay": not made.is_file}
        settings |= {"type": click.Path(path_type=Path, exists=made.exists, **kinds)}
    if kind in (int, int | None):
        settings |= {"type": click.IntRange(min=made.least, max=made.most)}
    return settings | ({"show_default": True} if default not in (None, (), "") else {})


class Words(click.ParamType[str]):
    """A text; a variable of the environment has several as words of a shell, so that a command with arguments is quoted."""

    name = "text"

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        try:
            return shlex.split(rv)
        except ValueError as error:
            raise UsageError(f"CCBED_NOTIFY: cannot be split into words: {error}") from None
