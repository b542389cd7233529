"""The entry point: load the verb that is called, print every error in one format, return the exit code."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import io
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from .. import __version__
from ..app import session as base
from ..model import errors
from .inputs import terminal_session as sessions
from .render import terminal

#: As ``--help`` shows the verbs.
GROUPS = {
    "Daily": ("up", "run", "watch", "top", "status", "logs", "resume", "down", "runs", "help"),
    "Judge": ("check", "judge", "checkpoint", "report", "compare", "bundle"),
    "Nightly": ("nightly", "sweep", "probe", "trend", "baseline", "accept"),
    "Beds": ("plan", "exec", "heal", "set-aside", "prune"),
    "Set-up": ("init", "doctor", "image", "list", "size", "config", "completion"),
}
VERBS = tuple(verb for verbs in GROUPS.values() for verb in verbs)
_PACKAGE = __package__.rpartition(".")[0]
#: Verb -> the product that has it.
_OF_PRODUCTS = {
    "nightly": "nightly",
    "sweep": "nightly",
    "runs": "nightly",
    "trend": "nightly",
    "baseline": "nightly",
    "accept": "nightly",
    "probe": "nightly",
    "size": "collectives",
    "judge": "jobs",
    "checkpoint": "jobs",
}
#: The exit code of a shell after SIGPIPE: 128 + 13.
_BROKEN_PIPE = 141
#: Verbs that explain or write the settings themselves.
_WITHOUT_SETTINGS = ("config", "init", "completion", "help")
#: click's variable: a shell sets it when it asks for completions.
_COMPLETING = "_CCBED_COMPLETE"
#: Options with which `run` starts nothing.
_STARTS_NOTHING = {"-h", "--help", "--version", "--dry-run"}
#: The option that an error begins with.
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?=[ :])")
#: click's text for an unknown verb below a verb.
_NO_COMMAND = re.compile(r"No such command '(.+)'\.")


class _ReaderGoneError(Exception):
    """The reader of the output has gone, as with ``| head``: click would end a BrokenPipeError with exit code 1."""


class Verbs(click.Group):
    """Imports the module of a verb only when the verb is called. Its help line is the first line of the file."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _reader_watched():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _reader_watched():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        product, file = _file(cmd_name)
        if product:
            from .. import products

            products.require(product, cmd_name)
        package = f"{_PACKAGE}.{product}" if product else __package__
        module = importlib.import_module(f"{package}.verbs.{file.stem}")
        command: click.Command = module.command
        command.context_settings.setdefault("auto_envvar_prefix", "CCBED")
        _add_verbosity(command)
        _name_variables(command)
        for old, new in base.FORMER.get(cmd_name, {}).items():
            _accept_former_variable(ctx, command, f"CCBED_{old.upper()}", f"CCBED_{new.upper()}")
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if len(args) > 1 and args[0] in ("-h", "--help") and args[1] in VERBS:  # ``ccbed -h up``
            args = [*args[1:], args[0]]
        return super().parse_args(ctx, [*_with_present_names(args, ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from ..core.spec import written_values

            ctx.fail(f"unknown verb {args[0]}; {written_values.nearest(args[0], VERBS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        files = {verb: file for verb in VERBS if (file := _file(verb)[1]).is_file()}
        for name, verbs in GROUPS.items():
            if rows := [(verb, _summary(files[verb])) for verb in verbs if verb in files]:
                with formatter.section(name):
                    formatter.write_dl(rows)


@contextmanager
def _reader_watched() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderGoneError from error


def main(begun: str = "") -> int:
    """Run the command line of this process; its exit code. ``begun``: the file that says so, if it may begin a run."""
    _prepare_streams()
    if begun and not _begins_run(sys.argv[1:]):
        Path(begun).unlink(missing_ok=True)
    return run(sys.argv[1:])


def run(args: Sequence[str], session: sessions.Session | None = None) -> int:
    """Execute a command line and return the exit code. ``session``: that of a test; default: this process's own."""
    base.complete_environment()
    session = session or sessions.Session(state=base.state_dir(), terminal=terminal.standard())
    screen = session.terminal  # a verb may replace that of its session
    session.argv = tuple(args)
    session.umask = os.umask(0o077)  # only the user may read what ccbed writes
    if _begins_run(session.argv):
        from ..app import announcement

        session.announcer = announcement.Announcer(session.state, session.argv)
    if _COMPLETING in os.environ:
        from .verbs import completion_verb

        completion_verb.install()
    try:
        code = _invoke(list(args), session)
        if session.announcer:
            session.announcer.end(code)
        return code
    except (BrokenPipeError, _ReaderGoneError):
        _silence()
        return _BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        return _report(errors.Interrupted("interrupted"), session, screen)
    except Exception as error:
        return _report(_explained(error, session), session, screen)
    finally:
        if session.terminal.verbose:
            session.terminal.note(_used(session))
        with suppress(
            RuntimeError, OSError
        ):  # what ended the command stands, even if no thread can start to disconnect
            session.close()
        os.umask(session.umask)


def _with_present_names(args: Sequence[str], ctx: click.Context) -> Iterator[str]:
    """The command line with the present names of verbs and options; a former one is named on stderr."""
    end = args.index("--") if "--" in args else len(args)
    verb = next((word for word in args[:end] if word in VERBS or word in base.FORMER_VERBS), "")
    former = base.FORMER.get(verb, {})
    place = args.index(verb) if verb in base.FORMER_VERBS else -1
    for index, word in enumerate(args):
        if index == place:
            ctx.obj.terminal.warn(
                f"{verb} is now {' '.join(base.FORMER_VERBS[verb])}; the former name works for one release"
            )
            yield from base.FORMER_VERBS[verb]
            continue
        name, equals, value = word.partition("=")
        if index < end and name.startswith("--") and name[2:] in former:
            ctx.obj.terminal.warn(f"{name} is now --{former[name[2:]]}; the former name works for one release")
            name = f"--{former[name[2:]]}"
        if place >= 0 and equals and name == "--end":  # a flag now: --release=n1
            yield from (name, value)
        else:
            yield f"{name}{equals}{value}"


def _accept_former_variable(ctx: click.Context, command: click.Command, old: str, new: str) -> None:
    if old in os.environ and new not in os.environ:
        for param in command.params:
            if param.envvar == new:
                param.envvar = old
                if ctx.obj is not None:
                    ctx.obj.terminal.warn(f"{old} is now {new}; the former name works for one release")


def _begins_run(args: Sequence[str]) -> bool:
    """Return whether the line starts a run, or was to start one: it is announced before it is parsed."""
    own = args[: args.index("--")] if "--" in args else args
    verb = next((word for word in own if word in VERBS), "")
    misspelt = next((word for word in own if not word.startswith("-")), "")
    verb = verb or "".join(difflib.get_close_matches(misspelt, VERBS, n=1))
    starts = verb in ("run", "sweep", "nightly", "accept")
    return starts and _COMPLETING not in os.environ and not _STARTS_NOTHING & set(own)


def _invoke(args: list[str], session: sessions.Session) -> int:
    try:
        code = _group().main(args, prog_name="ccbed", standalone_mode=False, obj=session)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return errors.EXIT_PASS
    return code if isinstance(code, int) else errors.EXIT_PASS


def _used(session: sessions.Session) -> str:
    from ..app import places

    files = ", ".join(map(places.short_path, session.settings)) or "none"
    return f"ccbed {__version__}: {session.took()} · state in {session.state} · files of settings: {files}"


def _report(error: errors.CcbedError, session: sessions.Session, screen: terminal.Terminal) -> int:
    """Print an error on stderr, with --json also as the document on stdout unless one is there; return its exit code."""
    screen.error(error.problems, error.hint)
    if session.announcer:
        session.announcer.end(error.exit_code, error)
    line = session.argv[: session.argv.index("--")] if "--" in session.argv else session.argv
    if (session.is_json or "--json" in line) and "json" not in screen.formats:
        failure = {"problems": list(error.problems), "next": error.hint}
        with screen.surviving():
            screen.json({"error": failure, "exit": error.exit_code})
    return error.exit_code


def _explained(error: Exception, session: sessions.Session) -> errors.CcbedError:
    from ..core.spec import written_values

    if isinstance(error, errors.CcbedError):
        error.problems = [_with_origin(written_values.suggest(problem), session) for problem in error.problems]
        return error
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        verb = "".join(f" {word}" for word in session.argv[:1] if word in VERBS)
        hint = f"{context.command_path if context else f'ccbed{verb}'} --help"
        return errors.UsageError(written_values.suggest(_problem(error)), hint=_of_script(error, session.argv) or hint)
    explained = errors.explain(error) or errors.InfrastructureError(
        f"internal error of ccbed: {type(error).__name__}: {error}",
        hint=f"the traceback is in {_save_traceback(session.state)}",
    )
    name = getattr(error, "filename", None)
    path = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None
    if path and (session.state.is_relative_to(path) or path.is_relative_to(session.state)):
        explained.hint += "; or set XDG_STATE_HOME to a directory that you may write"
    explained.hint = "\n".join((explained.hint, *getattr(error, "__notes__", ())))
    return explained


def _of_script(error: click.ClickException, line: Sequence[str]) -> str:
    """The hint for an option that is unknown, and may be one of the script that is to run; empty if it is not."""
    if (
        not isinstance(error, click.NoSuchOption)
        or "did you mean" in _problem(error)
        or "--" in line
        or "run" not in line
    ):
        return ""
    script = next((word for word in line if word.endswith(".py")), "")
    start = next((at for at, word in enumerate(line) if word.partition("=")[0] == error.option_name), 0)
    if not script or not start:
        return ""
    return f"put the script's options behind --: {shlex.join(('ccbed', *line[:start], '--', *line[start:]))}"


def _with_origin(problem: str, session: sessions.Session) -> str:
    """The problem; of an option that is not in the line with the variable or the file that sets it."""
    match = _OPTION.match(problem)
    if not match or any(word.partition("=")[0] == match[0] for word in session.argv):
        return problem
    variable = f"CCBED_{match[1].replace('-', '_').upper()}"
    origin = variable if variable in os.environ else session.set_in.get(match[1], "")
    return f"{problem} ({match[0]} is set in {origin})" if origin else problem


def _problem(error: click.ClickException) -> str:
    """Return what is wrong with the command line, as the other errors say it."""
    from ..core.spec import written_values

    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption):
        names = {name.lstrip("-"): name for name in error.possibilities or ()}
        close = difflib.get_close_matches(error.option_name.lstrip("-"), names, n=1)
        return f"unknown option {error.option_name}" + (f"; did you mean {names[close[0]]}?" if close else "")
    if (match := _NO_COMMAND.match(error.message)) and context and isinstance(context.command, click.Group):
        near = written_values.nearest(match[1], context.command.list_commands(context))
        return f"unknown verb {context.command_path} {match[1]}; {near}"
    if type(error) is click.BadParameter and error.param is not None:
        is_option = isinstance(error.param, click.Option)
        text = error.message.rstrip(".")
        return f"{_given(error.param, context)}: {text}" if is_option else text
    return error.format_message()


def _given(param: click.Parameter, context: click.Context | None) -> str:
    """The option as it was set: ``--rank``, or its variable."""
    is_variable = context and context.get_parameter_source(param.name or "") is ParameterSource.ENVIRONMENT
    return str(param.envvar) if is_variable and param.envvar else max(param.opts, key=len)


def _save_traceback(state: Path) -> str:
    from ..core.spec import redact

    text = traceback.format_exc()
    file = state / f"crash-{os.getpid()}.txt"
    try:
        state.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f"ccbed {__version__}: {redact.command_line(sys.argv[1:], os.environ)}\n{text}", encoding="utf-8"
        )
    except OSError:
        return f"this text, as {file} cannot be written:\n{text}"
    return str(file)


def _prepare_streams() -> None:
    """Open /dev/null in place of each standard stream that the caller closed, so that no file takes its number.

    A character that the encoding of the terminal lacks is printed as a question mark.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where the locale is not UTF-8


def _silence() -> None:
    """Discard the output: its reader is gone, and the interpreter would report that at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _group() -> click.Group:
    callback: Callable[..., Any] = click.pass_context(_prepare)
    group = Verbs(
        name="ccbed",
        callback=callback,
        help="A cluster test-bed: it injects faults into nodes and verifies that training recovers.",
        epilog="Start with: ccbed up inventories/local.yml",
        context_settings={"auto_envvar_prefix": "CCBED", "help_option_names": ["-h", "--help"]},
        params=[
            click.Option(
                ["--plugins"],
                multiple=True,
                type=click.Path(path_type=Path),
                help="A folder with your own faults/, checkers/, workloads/, …",
            ),
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_version,
                help="Print the versions of ccbed, torch and Python.",
            ),
        ],
    )
    _add_verbosity(group)
    return group


def _prepare(ctx: click.Context, plugins: tuple[Path, ...]) -> None:
    session: sessions.Session = ctx.obj
    session.plugins = tuple(plugins)
    _require_utf8(str(session.state), *session.argv)
    from ..app import settings

    if ctx.invoked_subcommand not in _WITHOUT_SETTINGS and (files := settings.find(session.terminal.warn)):
        _apply_settings(ctx, session, files)


def _require_utf8(*texts: str) -> None:
    """Raises UsageError for a directory or a word that is not UTF-8: records of runs could not be read again."""
    with suppress(FileNotFoundError):  # the current directory was removed
        texts = (str(Path.cwd()), *texts)
    wrong = [repr(os.fsencode(text))[1:] for text in texts if text.encode(errors="replace").decode() != text]
    if wrong:
        raise errors.UsageError(f"{wrong[0]}: not UTF-8, in which ccbed writes its records", hint="use another path")


def _apply_settings(ctx: click.Context, session: sessions.Session, files: Sequence[Path]) -> None:
    """Make the settings of the files the defaults of the verb. Raises UsageError with every mistake in them."""
    from ..app import settings
    from .inputs.settings_as_defaults import default_map

    session.settings = tuple(files)
    values = [item for file in files for item in settings.read(file, session.terminal.warn)]
    session.plugins = session.plugins or settings.plugins(values)
    ctx.default_map = default_map(ctx, values)
    session.set_in = {
        setting.key: setting.place
        for setting in sorted(values, key=lambda setting: (files.index(setting.file), bool(setting.verb)))
        if setting.verb[:1] in ((), (ctx.invoked_subcommand,))
    }


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"ccbed {__version__} · torch {_torch()} · Python {'.'.join(map(str, sys.version_info[:3]))}")
        ctx.exit()


def _torch() -> str:
    """The version of torch in this environment, without importing it."""
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "not installed"


def _name_variables(command: click.Command) -> None:
    """Let CCBED_<OPTION> set every option of a verb and of those below it, also --json, whose parameter has another name."""
    for param in command.params:
        if isinstance(param, click.Option) and param.envvar is None:
            name = max(param.opts, key=len).lstrip("-")
            param.envvar = f"CCBED_{name.replace('-', '_').upper()}"
    for nested in command.commands.values() if isinstance(command, click.Group) else ():
        _name_variables(nested)


def _stem(verb: str) -> str:
    return f"{verb}_verb".replace("-", "_")


def _file(verb: str) -> tuple[str, Path]:
    """The product that has the verb, empty for the test-bed, and the file of the verb."""
    product, folder = _OF_PRODUCTS.get(verb, ""), Path(__file__).parent
    return product, (folder.parent / product if product else folder) / "verbs" / f"{_stem(verb)}.py"


def _summary(file: Path) -> str:
    """The first line of a verb's file."""
    return file.read_text().partition("\n")[0].strip('"').rstrip(".")


#: The options of every verb that set how much it prints.
_VERBOSITIES = (
    (-1, ("-q", "--quiet"), "Print results and problems only."),
    (1, ("-v", "--verbose"), "Print every event and what was used: files of settings, directories, time."),
)


def _add_verbosity(command: click.Command) -> None:
    """Add -q and -v to a verb and to the verbs below it, unless they are there; they change the session's terminal."""
    for verbosity, names, text in _VERBOSITIES:
        if not any(names[1] in param.opts for param in command.params):
            callback = functools.partial(_set_verbosity, verbosity)
            command.params.append(
                click.Option([*names], is_flag=True, expose_value=False, callback=callback, help=text)
            )
    for nested in command.commands.values() if isinstance(command, click.Group) else ():
        _add_verbosity(nested)


def _set_verbosity(verbosity: int, ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.obj is None:
        return
    is_on_line = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    if ctx.obj.terminal.verbosity and not is_on_line:
        return  # the line is stronger than a file or the environment; click reads the line first
    if ctx.obj.terminal.verbosity == -verbosity:
        raise click.UsageError("--quiet and --verbose exclude each other", ctx)
    ctx.obj.terminal = dataclasses.replace(ctx.obj.terminal, verbosity=verbosity)
