"""The options -q and -v, which every verb has."""

from __future__ import annotations

import dataclasses
import functools

import click
from click.core import ParameterSource

#: The options of every verb that set how much it prints.
_VERBOSITIES = (
    (-1, ("-q", "--quiet"), "Print results and problems only."),
    (1, ("-v", "--verbose"), "Print every event and what was used: files of settings, directories, time."),
)


def add(command: click.Command) -> None:
    """Add -q and -v to a verb and to the verbs below it, unless they are there; they change the session's terminal."""
    for verbosity, names, text in _VERBOSITIES:
        if not any(names[1] in param.opts for param in command.params):
            callback = functools.partial(_set_verbosity, verbosity)
            command.params.append(
                click.Option([*names], is_flag=True, expose_value=False, callback=callback, help=text)
            )
    for nested in command.commands.values() if isinstance(command, click.Group) else ():
        add(nested)


def _set_verbosity(verbosity: int, ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.obj is None:
        return
    is_on_line = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    if ctx.obj.terminal.verbosity and not is_on_line:
        return  # the line is stronger than a file or the environment; click reads the line first
    if ctx.obj.terminal.verbosity == -verbosity:
        raise click.UsageError("--quiet and --verbose exclude each other", ctx)
    ctx.obj.terminal = dataclasses.replace(ctx.obj.terminal, verbosity=verbosity)
