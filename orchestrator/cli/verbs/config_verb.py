"""Show the settings from files and the environment, and where each value comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from ...app import settings
from ...app.places import short_path
from ...core.spec import redact
from ..inputs import options
from ..inputs.settings_as_defaults import default_map, is_variable
from ..inputs.terminal_session import Session


@options.group()
def command() -> None:
    """Settings: ccbed.toml of the project, then config.toml of the user; a variable CCBED_<OPTION> and an option win over both.

    \b
    The keys are the names of options, at the top for every verb or in a table of one verb:
        bed = "lab"
        [run]
        recovery = "restart"
    """


@command.command(
    context_settings={"auto_envvar_prefix": "CCBED"}, short_help="Print every setting and where it comes from."
)
@options.as_json
@click.pass_context
def show(ctx: click.Context, as_json: bool) -> int:
    """Print every setting with its value and where it comes from, the strongest last."""
    session = ctx.find_object(Session)
    assert session is not None
    files = settings.find(session.terminal.warn)
    rows = list(_rows(ctx, files))
    searched = [str(settings.user_file()), str(settings.project_file() or settings.PROJECT)]
    if as_json:
        session.terminal.json({"settings": rows, "files": searched})
        return 0
    if rows:
        session.terminal.table(["KEY", "VALUE", "FROM"], [[row["key"], row["value"], row["from"]] for row in rows])
    else:
        next_step = "remove the # before a line of the file" if files else "write some: ccbed init config"
        session.terminal.line(f"no settings     {next_step}")
    session.terminal.line(f"files     {' · '.join(short_path(file) for file in searched)}")
    return 0


def _rows(ctx: click.Context, files: Iterable[Path]) -> Iterator[dict[str, str]]:
    """The settings of the files, the weakest first, then the variables. Raises UsageError with every mistake in them."""
    session = ctx.find_object(Session)
    assert session is not None
    values = [setting for file in files for setting in settings.read(file, session.terminal.warn)]
    session.plugins = session.plugins or settings.plugins(values)
    default_map(ctx, values)
    last = {setting.name: setting.place for setting in values}
    for setting in values:
        overridden = "" if last[setting.name] == setting.place else f" (overridden in {last[setting.name]})"
        yield {"key": setting.name, "value": _shown(setting), "from": f"{setting.place}{overridden}"}
    for name, value in sorted(os.environ.items()):
        if is_variable(ctx, name):
            yield {"key": name, "value": _redacted(name, value), "from": "environment"}


def _shown(setting: settings.Setting) -> str:
    """The value of a setting without its secrets; a list as such."""
    name, value = f"--{setting.key}", setting.value
    if isinstance(value, list):
        return str([_redacted(name, item) if isinstance(item, str) else item for item in value])
    return _redacted(name, value) if isinstance(value, str) else str(value)


def _redacted(name: str, value: str) -> str:
    """The value of an option or variable without a secret, and without the password in a URL."""
    names = (value,) if name == redact.OPTION else ()  # a name, not a secret
    [assignment] = redact.Redaction(mask=lambda secret: "<redacted>", names=names).arguments((f"{name}={value}",))
    return re.sub(r"//[^/@\s]+@", "//<redacted>@", assignment.partition("=")[2])
