"""The verbs of the command line, and their options, which are made from the fields of requests."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ...app import requests
from ...app.requests import Option
from ...core.spec import written_values
from ...model import codec, errors
from ...model.errors import UsageError
from ...model.frozen import MISSING, fields
from . import completions
from .terminal_session import Session

_CONTEXT = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "CCBED"}

Q = TypeVar("Q")
R = TypeVar("R")
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]
#: What a verb does: it returns its exit code.
Verb = Callable[[Session, Q], int]


def command(**extra: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Return ``click.command`` with -h, and an environment variable CCBED_<OPTION> for every option."""
    return click.command(context_settings=_CONTEXT, **extra)


def group(**extra: Any) -> Callable[[Callable[..., Any]], click.Group]:
    """Return ``click.group`` with -h, for a verb that has verbs below it."""
    return click.group(context_settings=_CONTEXT, **extra)


def verb(
    request: type[Q], *more: Wrapper, below: click.Group | None = None, interspersed: bool = True, **extra: Any
) -> Callable[[Verb[Q]], click.Command]:
    """Return a decorator that makes a verb of a function from session and request, with an argument or option for each field.

    ``more``: further options; ``below``: the verb that it is a part of; ``interspersed``: options may follow arguments.
    """

    def make(function: Verb[Q]) -> click.Command:
        def called(session: Session, /, **given: Any) -> int:
            return function(session, requests.build(request, given))

        called.__name__, called.__doc__ = function.__name__, function.__doc__
        callback: Callable[..., Any] = as_json(click.pass_obj(called))
        for wrap in reversed((of_request(request), *more)):
            callback = wrap(callback)
        settings = _CONTEXT | {"allow_interspersed_args": interspersed}
        made = (below.command if below else click.command)(context_settings=settings, **extra)(callback)
        return made

    return make


def shows(
    request: type[Q], use_case: Callable[[Session, Q], R], *more: Wrapper, **extra: Any
) -> Callable[[Callable[[Session, R], None]], click.Command]:
    """Return a decorator that makes a verb of a use case and of a function that shows its result; with --json its document is shown.

    The exit code is that of the result, else 0; of several results the greatest. ``more``, ``extra``: as of ``verb``.
    """

    def make(show: Callable[[Session, R], None]) -> click.Command:
        def called(session: Session, filled: Q) -> int:
            result = use_case(session, filled)
            if not session.is_json:
                show(session, result)
            elif isinstance(result, tuple):
                session.terminal.json([getattr(item, "document", item) for item in result])
            else:
                session.terminal.json(getattr(result, "document", result))
            items = result if isinstance(result, tuple) else (result,)
            return max((getattr(item, "code", errors.EXIT_PASS) for item in items), default=errors.EXIT_PASS)

        called.__name__, called.__doc__ = show.__name__, show.__doc__
        return verb(request, *more, **extra)(called)

    return make


def _set_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    """The session has it for errors as well."""
    if ctx.obj is not None:
        ctx.obj.is_json = value
    return value


as_json = click.option("--json", "as_json", is_flag=True, callback=_set_json, help="Print JSON on stdout.")


def vault(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the inventory's vault; their values go to the session, not to the verb."""
    files = click.option(
        "--vault-password-file",
        multiple=True,
        type=click.Path(),
        expose_value=False,
        callback=_vault_files,
        help="A file with the password of the inventory's vault, or a program that prints it.",
    )
    prompt = click.option(
        "--ask-vault-pass",
        is_flag=True,
        expose_value=False,
        callback=_vault_prompt,
        help="Prompt for the password of the vault.",
    )
    return files(prompt(function))


def slurm_job(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for a bed's Slurm job; their values go to the session, not to the verb."""
    wait = click.option(
        "--wait",
        metavar="TIME",
        expose_value=False,
        callback=_wait,
        help="Slurm: how long the job may wait in the queue, such as 30s or 2h; then it is cancelled (default: no limit).",
    )
    job = click.option(
        "--jobid",
        type=click.IntRange(min=1),
        expose_value=False,
        callback=_job_id,
        help="Slurm: use the nodes of this running job instead of a new one.",
    )
    return wait(job(function))


def _wait(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    try:
        ctx.obj.job = dataclasses.replace(ctx.obj.job, wait_s=written_values.seconds(value))
    except ValueError as error:
        raise click.BadParameter(f"{error} (got {value})", ctx, param) from None


def _job_id(ctx: click.Context, _param: click.Parameter, value: int | None) -> None:
    if value is not None:
        ctx.obj.job = dataclasses.replace(ctx.obj.job, job_id=value)


def _vault_files(ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> None:
    ctx.obj.vault = dataclasses.replace(ctx.obj.vault, files=value)


def _vault_prompt(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        password = click.prompt("Vault password", hide_input=True, err=True)
        ctx.obj.vault = dataclasses.replace(ctx.obj.vault, password=password)


# --- options from the fields of a request ---


def of_request(request: type) -> Wrapper:
    """Add an argument or option for each field of ``request`` that is one, in their order, those of its values included."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for make in reversed([*_decorators(request)]):
            function = make(function)
        return function

    return add


def _decorators(request: type) -> Iterator[Wrapper]:
    for item in fields(request):
        kind, made = codec.hints(request)[item.name], item.metadata.get("option")
        if requests.is_request(kind):
            yield from _decorators(kind)
        elif made is not None:
            flag = f"--{item.name.replace('_', '-')}"
            names = made.flags or ((f"{flag}/--no-{flag[2:]}",) if kind == bool | None else (flag,))
            yield click.option(*names, item.name, **_settings(made, kind, item.default))
        elif (made := item.metadata.get("argument")) is not None:
            yield click.argument(item.name, **_argument(made, kind, item.default))


def _argument(made: Option, kind: Any, default: Any) -> dict[str, Any]:
    """The arguments of ``click.argument`` for a field."""
    settings = _common(made, kind) | {"required": default is MISSING}
    if kind == tuple[str, ...]:
        return settings | {"nargs": -1}
    return settings | ({"default": default} if default not in (None, MISSING) else {})


def _settings(made: Option, kind: Any, default: Any) -> dict[str, Any]:
    """The arguments of ``click.option`` for a field."""
    settings = _common(made, kind) | {"help": made.help, "required": default is MISSING}
    if default is not MISSING:
        settings |= {"default": None if default == () else default}
    if kind is bool:
        return settings | {"is_flag": True}
    if kind == bool | None:
        return settings
    if made.optional:  # without a value it has this one
        settings |= {"is_flag": False, "flag_value": made.optional}
    if kind in (tuple[str, ...], tuple[Path, ...]):
        settings |= {"multiple": True} | ({"type": Words()} if made.splits else {})
    return settings | ({"show_default": True} if default not in (None, (), "", MISSING) else {})


def _common(made: Option, kind: Any) -> dict[str, Any]:
    """Return what an option and an argument share."""
    settings: dict[str, Any] = {"metavar": made.metavar} if made.metavar else {}
    settings |= {"shell_complete": getattr(completions, made.completes)} if made.completes else {}
    if made.choices:
        settings |= {"type": click.Choice(made.choices)}
    if kind in (Path, Path | None, tuple[Path, ...]):
        kinds = {"file_okay": not made.is_folder, "dir_okay": not made.is_file}
        settings |= {"type": click.Path(path_type=Path, exists=made.exists, **kinds)}
    if kind in (int, int | None):
        settings |= {"type": click.IntRange(min=made.least, max=made.most)}
    if kind in (float, float | None):
        settings |= {"type": click.FloatRange(min=made.least)}
    return settings


class Words(click.ParamType[str]):
    """A text; a variable of the environment has several as words of a shell, so that a command with arguments is quoted."""

    name = "text"

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        try:
            return shlex.split(rv)
        except ValueError as error:
            raise UsageError(f"CCBED_NOTIFY: cannot be split into words: {error}") from None
