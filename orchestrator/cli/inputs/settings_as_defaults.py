"""Settings from files as defaults of options, with every mistake in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from ...app.settings import Setting
from ...core.spec import written_values
from ...model.errors import UsageError
from ...model.frozen import fields

#: Before the name of a parameter of a workload, where it is an option of `run`.
PARAM = "param_"
#: The metavar of an option whose text lists names with commas: a file may have a list.
PARTS = "PARTS"
_RUN = "run"
_CONFIG = "config"
_OF_USER = "only in ~/.config/ccbed/config.toml, in the environment or on the command line"
_VARIABLES = ("CCBED_DATABASE_URL", "CCBED_NODE_FILES_MIB")


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
        near = written_values.nearest(setting.verb[-1], known)
        problems.append(f"{setting.place}: unknown verb {'.'.join(setting.verb)}; {near}")
        return ()
    return (setting.verb,) if ctx.find_root().invoked_subcommand in (setting.verb[0], _CONFIG) else ()


def _add(
    ctx: click.Context, verb: tuple[str, ...], setting: Setting, defaults: dict[str, Any], problems: list[str]
) -> None:
    """Put the converted value into the map of its verb."""
    option = _option(ctx, verb, setting.key)
    if option is None and verb == (_RUN,) and setting.key.replace("-", "_") in _workload_params(ctx):
        name, value = f"{PARAM}{setting.key.replace('-', '_')}", _text(setting.value)
    elif option is None:
        known = {*_keys(_command(ctx, verb)), *(_workload_params(ctx) if verb == (_RUN,) else ())}
        near = written_values.nearest(setting.key, {key.replace("_", "-") for key in known})
        near = near if near.startswith("did") else f"ccbed {' '.join(verb)} --help lists the options"
        problems.append(f"{setting.place}: {setting.name}: unknown option of ccbed {' '.join(verb)}; {near}")
        return
    else:
        try:
            name, value = str(option.name), _converted(option, setting)
        except (click.BadParameter, ValueError) as error:
            text = error.message if isinstance(error, click.BadParameter) else str(error)
            problems.append(written_values.suggest(f"{setting.place}: {setting.name}: {text}"))
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
        raise ValueError(f"must be true or false (got {written_values.show(value)})")
    if isinstance(value, list) and option.metavar == PARTS:
        value = ",".join(map(_text, value))
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
    return str(setting.path(text)) if isinstance(option.type, click.Path) else text


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
    """Return whether a variable of the environment sets an option of a verb, a parameter of a workload, or the index of runs."""
    key = name.removeprefix("CCBED_").lower()
    if not name.startswith("CCBED_") or name in _VARIABLES:
        return name in _VARIABLES
    return _is_known(ctx, key.replace("_", "-")) or key in _workload_params(ctx)


def _all_keys(ctx: click.Context) -> set[str]:
    paths = (path for verb in _root(ctx).list_commands(ctx) for path in _paths(ctx, (verb,)))
    return {name for path in paths for name in _keys(_command(ctx, path))}


def _nearest(ctx: click.Context, name: str) -> str:
    near = written_values.nearest(name, _all_keys(ctx))
    return near if near.startswith("did") else "the keys are the names of options: ccbed VERB --help"


def _workload_params(ctx: click.Context) -> set[str]:
    workloads = ctx.obj.catalogue.workloads
    return {field.name for name in workloads for field in fields(workloads[name].module.Params)}
