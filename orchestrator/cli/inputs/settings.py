"""Defaults of options from files: config.toml of the user, and ccbed.toml of the project, which wins.

A file has the names of options as keys, at its top for every verb that has the option, or in a table of one verb:

    bed = "lab"
    [run]
    fail-node = ["2"]
    [image.build]
    kind = "cuda"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ...app.places import short_path
from ...core.spec import values
from ...model.errors import UsageError
from ...model.frozen import dataclass
from ...store import paths
from . import settings_files

#: Before the name of a parameter of a workload, where it is an option of `run`.
PARAM = "param_"
_RUN = "run"
_CONFIG = "config"
_OF_USER = "only in ~/.config/ccbed/config.toml, in the environment or on the command line"
_VARIABLES = ("CCBED_DATABASE_URL", "CCBED_NODE_FILES_MIB")
_LARGEST = 1 << 20
_LINE = re.compile(r"\(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key of a file. ``verb``: ``()`` for every verb, or ``("image", "build")``; ``key``: as an option, without ``--``."""

    verb: tuple[str, ...]
    key: str
    value: Any
    file: Path
    line: int

    @property
    def place(self) -> str:
        return f"{short_path(self.file)}:{self.line}"

    @property
    def name(self) -> str:
        return ".".join((*self.verb, self.key))

    @property
    def refusal(self) -> str:
        """Why only the user's own file may have it; empty if this file may."""
        if self.file.name != settings_files.PROJECT:
            return ""
        outside = settings_files.outside(self.key, self.value, self.file.parent)
        return settings_files.refusal(self.verb, self.key) or outside


def read(file: Path) -> list[Setting]:
    """Raises UsageError for a file that is no TOML."""
    try:
        text = paths.read(file, _LARGEST).decode()
        content = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{short_path(file)}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{short_path(file)}: not valid TOML: not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        match = _LINE.search(str(error))
        where = f"{short_path(file)}:{match[1]}" if match else short_path(file)
        raise UsageError(f"{where}: not valid TOML: {_LINE.sub('', str(error)).strip()}") from None
    return list(_settings(content, (), file, _lines(text)))


def _settings(
    content: Mapping[str, Any], verb: tuple[str, ...], file: Path, lines: Mapping[tuple[str, ...], int]
) -> Iterator[Setting]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _settings(value, (*verb, key), file, lines)
        else:
            line = lines.get((*verb, key), 1)
            yield Setting(verb=verb, key=key.replace("_", "-"), value=value, file=file, line=line)


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Key with its tables -> its line. tomllib keeps no positions."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*\[+([^\]]+)\]", line):
            table = _key(match[1])
            lines.setdefault(table, number)
        elif match := re.match(r"\s*([^=#\[{]+?)\s*=", line):
            lines.setdefault((*table, *_key(match[1])), number)
    return lines


def _key(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


def default_map(ctx: click.Context, settings: Sequence[Setting]) -> dict[str, Any]:
    """The settings as click takes them: verb -> parameter -> value. Tables of other verbs than the one that is called are
    not read, but for `config`. Raises UsageError with every mistake."""
    refused = [setting for setting in settings if setting.refusal]
    problems = [f"{setting.place}: {setting.name}: {_OF_USER}: {setting.refusal}" for setting in refused]
    defaults: dict[str, Any] = {}
    listed = [setting for setting in settings if not setting.refusal]
    files = list(dict.fromkeys(setting.file for setting in listed))
    for setting in sorted(listed, key=lambda setting: (files.index(setting.file), bool(setting.verb))):
        for verb in _verbs(ctx, setting, problems):
            _add(ctx, verb, setting, defaults, problems)
    if problems:
        raise UsageError(*dict.fromkeys(problems), hint="ccbed VERB --help lists the options; their names are the keys")
    return defaults


def plugins(settings: Iterable[Setting]) -> tuple[Path, ...]:
    """The folders of plugins that the strongest file names."""
    named = [setting for setting in settings if setting.name == "plugins" and not setting.refusal]
    folders = named[-1].value if named else []
    folders = folders if isinstance(folders, list) else [folders]
    return tuple(_below_file(named[-1], str(folder)) for folder in folders)


def _verbs(ctx: click.Context, setting: Setting, problems: list[str]) -> Iterable[tuple[str, ...]]:
    """The verbs of a setting: that of its table, or for one at the top the verb that is called, if it has the option."""
    if not setting.verb:
        called = (ctx.invoked_subcommand or "",)
        commands = [path for path in _paths(ctx, called) if _option(ctx, path, setting.key)]
        if not commands and not _is_known(ctx, setting.key):
            problems.append(f"{setting.place}: unknown key {setting.key}; {_nearest(ctx, setting.key)}")
        return commands
    if _command(ctx, setting.verb) is None:
        parent = _command(ctx, setting.verb[:-1])
        known = parent.list_commands(ctx) if isinstance(parent, click.Group) else _root(ctx).list_commands(ctx)
        near = values.nearest(setting.verb[-1], known)
        problems.append(f"{setting.place}: unknown verb {'.'.join(setting.verb)}; {near}")
        return ()
    return (setting.verb,) if ctx.find_root().invoked_subcommand in (setting.verb[0], _CONFIG) else ()


def _add(
    ctx: click.Context,
    verb: tuple[str, ...],
    setting: Setting,
    defaults: dict[str, Any],
    problems: list[str],
) -> None:
    """Put the converted value into the map of its verb."""
    option = _option(ctx, verb, setting.key)
    if option is None and verb == (_RUN,) and setting.key.replace("-", "_") in _workload_params(ctx):
        name, value = f"{PARAM}{setting.key.replace('-', '_')}", _text(setting.value)
    elif option is None:
        known = {*_keys(_command(ctx, verb)), *(_workload_params(ctx) if verb == (_RUN,) else ())}
        near = values.nearest(setting.key, {key.replace("_", "-") for key in known})
        near = near if near.startswith("did") else f"ccbed {' '.join(verb)} --help lists the options"
        problems.append(f"{setting.place}: {setting.name}: unknown option of ccbed {' '.join(verb)}; {near}")
        return
    else:
        try:
            name, value = str(option.name), _converted(option, setting)
        except (click.BadParameter, ValueError) as error:
            text = error.message if isinstance(error, click.BadParameter) else str(error)
            problems.append(values.suggest(f"{setting.place}: {setting.name}: {text}"))
            return
    for part in verb:
        defaults = defaults.setdefault(part, {})
    defaults[name] = value


def _root(ctx: click.Context) -> click.Group:
    root = ctx.find_root().command
    if not isinstance(root, click.Group):
        raise TypeError(f"{root.name} has no verbs")
    return root


def _converted(option: click.Option, setting: Setting) -> Any:
    """The value as click takes it from a ``default_map``, with relative paths below the file. Raises click.BadParameter."""
    value = setting.value
    if option.is_flag and not isinstance(value, bool):
        raise ValueError(f"must be true or false (got {values.show(value)})")
    if isinstance(value, list) != option.multiple:
        if isinstance(value, list):
            raise ValueError("must be one value, not a list")
        value = [value]
    texts = [_path(option, setting, _text(item)) for item in value] if isinstance(value, list) else None
    result = texts if texts is not None else value if option.is_flag else _path(option, setting, _text(value))
    context = click.Context(click.Command("ccbed"))
    option.type_cast_value(context, result)
    return result


def _path(option: click.Option, setting: Setting, text: str) -> str:
    return str(_below_file(setting, text)) if isinstance(option.type, click.Path) else text


def _below_file(setting: Setting, text: str) -> Path:
    """A path; a relative one is relative to the file of the setting."""
    return Path(short_path(setting.file.parent / Path(text).expanduser()))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)


def _command(ctx: click.Context, verb: tuple[str, ...]) -> click.Command | None:
    command: click.Command = _root(ctx)
    for part in verb:
        child = command.get_command(ctx, part) if isinstance(command, click.Group) else None
        if child is None:
            return None
        command = child
    return command


def _paths(ctx: click.Context, verb: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """A verb and the verbs below it."""
    command = _command(ctx, verb)
    if command is not None:
        yield verb
        for name in command.list_commands(ctx) if isinstance(command, click.Group) else ():
            yield from _paths(ctx, (*verb, name))


def options(command: click.Command | None) -> Iterator[click.Option]:
    """The options of a verb that a file or the environment may set."""
    for param in command.params if command else ():
        if isinstance(param, click.Option) and not param.is_eager:
            yield param


def key(option: click.Option) -> str:
    """``--json`` -> json; of several names the longest."""
    return max((name.lstrip("-") for name in option.opts), key=len)


def _keys(command: click.Command | None) -> set[str]:
    return {name.lstrip("-") for option in options(command) for name in option.opts if name.startswith("--")}


def _option(ctx: click.Context, verb: tuple[str, ...], name: str) -> click.Option | None:
    known = options(_command(ctx, verb))
    return next((option for option in known if f"--{name}" in option.opts), None)


def _is_known(ctx: click.Context, name: str) -> bool:
    return f"--{name}" in {opt for option in options(_root(ctx)) for opt in option.opts} or name in _all_keys(ctx)


def is_variable(ctx: click.Context, name: str) -> bool:
    """Whether a variable of the environment sets an option of a verb, a parameter of a workload, or the index of runs."""
    key = name.removeprefix("CCBED_").lower()
    if not name.startswith("CCBED_") or name in _VARIABLES:
        return name in _VARIABLES
    return _is_known(ctx, key.replace("_", "-")) or key in _workload_params(ctx)


def _all_keys(ctx: click.Context) -> set[str]:
    paths = (path for verb in _root(ctx).list_commands(ctx) for path in _paths(ctx, (verb,)))
    return {name for path in paths for name in _keys(_command(ctx, path))}


def _nearest(ctx: click.Context, name: str) -> str:
    near = values.nearest(name, _all_keys(ctx))
    return near if near.startswith("did") else "the keys are the names of options: ccbed VERB --help"


def _workload_params(ctx: click.Context) -> set[str]:
    from dataclasses import fields

    workloads = ctx.obj.catalogue.workloads
    return {field.name for name in workloads for field in fields(workloads[name].module.Params)}
