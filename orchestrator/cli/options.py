"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


Decorator = Callable[[Callable[..., Any]], click.Command]
Added = Callable[[Callable[..., Any]], Callable[..., Any]]


def command(**extra: Any) -> Decorator:
    """``click.command`` with -h, and CCBED_<OPTION> for each option."""
    return click.command(context_settings={**_CONTEXT, "auto_envvar_prefix": "CCBED"}, **extra)


def runs_dir(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--runs-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("runs"),
        show_default=True,
        help="Where the bundles of runs are.",
    )(function)


def as_json(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="For programs: JSON on stdout.")(function)


def bed(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--bed", default=None, help="The bed, where several are up.")(function)


def force(text: str) -> Added:
    return click.option("--force", is_flag=True, help=text)
