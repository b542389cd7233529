"""The options that several verbs share."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from ...app import requests
from ...app.requests import Option
from ...core.spec import values
from ...model import codec
from ...model.errors import UsageError
from ...model.frozen import fields
from . import completions

_CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


Decorator = Callable[[Callable[..., Any]], click.Command]
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def command(**extra: Any) -> Decorator:
    """Return ``click.command`` with -h, and an environment variable CCBED_<OPTION> for every option."""
    return click.command(context_settings={**_CONTEXT, "auto_envvar_prefix": "CCBED"}, **extra)


def _set_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    """The session has it for errors as well."""
    if ctx.obj is not None:
        ctx.obj.is_json = value
    return value


runs_dir = click.option(
    "--runs-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="The directory of the runs' bundles.",
)
baselines = click.option(
    "--baselines",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("inventories/baselines"),
    show_default=True,
    help="The directory of the baselines: a file of floors for each hardware model.",
)
as_json = click.option("--json", "as_json", is_flag=True, callback=_set_json, help="Print JSON on stdout.")
inventory = click.argument("inventory", type=click.Path(path_type=Path), shell_complete=completions.inventories)
bed = click.option("--bed", default=None, help="The bed, if several are up.", shell_complete=completions.beds)
bed_keys = click.option(
    "--bed-key",
    "keys",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="A key of the run's bed, beds/BED/keeper/events.key in ccbed's state directory (until `ccbed down`; `ccbed bundle verify RUN`"
    " names it): verify that its keeper signed its events and the list of all evidence.",
)
include_quarantined = click.option(
    "--include-quarantined", is_flag=True, help="Give ranks to nodes in quarantine too (see ccbed quarantine)."
)
limit = click.option(
    "--limit",
    multiple=True,
    metavar="HOST",
    shell_complete=completions.hosts,
    help="Act only on this host; repeatable, or h1,h2, rack1-*, !h3. The other hosts stay part of the bed.",
)


def of_run(name: str = "run", **extra: Any) -> Wrapper:
    return click.argument(name, **{"shell_complete": completions.runs, **extra})


def of_bed(**extra: Any) -> Wrapper:
    return click.argument("bed", **{"required": False, "shell_complete": completions.beds, **extra})


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
        ctx.obj.job = dataclasses.replace(ctx.obj.job, wait_s=values.seconds(value))
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


def of_request(request: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
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
