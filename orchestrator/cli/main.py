"""The entry point: load the verb that is called, print every error in one format, return the exit code."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from .. import __version__
from ..model import errors
from .inputs import session as sessions
from .inputs import verbosity
from .render import terminal

#: In the order of the life of beds and runs, as ``--help`` shows them.
VERBS = (
    "up", "down", "status", "plan", "drain", "undrain", "run", "nightly", "sweep", "resume", "watch",
    "logs", "exec", "check", "judge", "report", "compare", "runs", "trend", "baseline", "quarantine", "accept", "bundle",
    "size", "list", "heal", "prune", "doctor", "image", "init", "config", "completion",
)  # fmt: skip
#: The exit code of a shell after SIGPIPE: 128 + 13.
_BROKEN_PIPE = 141
#: Verbs that explain or write the settings themselves.
_WITHOUT_SETTINGS = ("config", "init", "completion")
#: click's variable: a shell sets it when it asks for completions.
_COMPLETING = "_CCBED_COMPLETE"
#: Allocations before the garbage collector runs: loading modules makes no cycles.
_GC_THRESHOLD = 20_000


class Verbs(click.Group):
    """Imports the module of a verb only when the verb is called. Its help line is the first line of the file."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f".verbs.{_stem(cmd_name)}", __package__)
        command: click.Command = module.command
        command.context_settings.setdefault("auto_envvar_prefix", "CCBED")
        verbosity.add(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from ..core.spec import values

            ctx.fail(f"unknown verb {args[0]}; {values.nearest(args[0], VERBS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        folder = Path(__file__).parent / "verbs"
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, _summary(folder / f"{_stem(verb)}.py")) for verb in VERBS])


def main() -> NoReturn:
    """Run the program ``ccbed``. It exits without the interpreter's shutdown: all files are closed by then."""
    gc.set_threshold(_GC_THRESHOLD)
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before the session exists
        code = errors.EXIT_INTERRUPTED
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def run(args: Sequence[str], session: sessions.Session | None = None) -> int:
    """Execute a command line and return the exit code. ``session``: that of a test; default: this process's own."""
    session = session or sessions.Session(state=sessions.state_dir(), terminal=terminal.standard())
    session.argv = tuple(args)
    session.umask = os.umask(0o077)  # only the user may read what ccbed writes
    if _COMPLETING in os.environ:
        from . import bash_completion

        bash_completion.install()
    try:
        code = _group().main(list(args), prog_name="ccbed", standalone_mode=False, obj=session)
        return code if isinstance(code, int) else errors.EXIT_PASS
    except BrokenPipeError:
        _silence()
        return _BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        session.terminal.error(["interrupted"])
        return errors.EXIT_INTERRUPTED
    except Exception as error:
        return _explain(error, session)
    finally:
        if session.terminal.verbose:
            session.terminal.note(_used(session))
        session.close()
        os.umask(session.umask)


def _used(session: sessions.Session) -> str:
    files = ", ".join(map(terminal.short_path, session.settings)) or "none"
    return f"ccbed {__version__}: {session.took()} · state in {session.state} · files of settings: {files}"


def _explain(error: Exception, session: sessions.Session) -> int:
    from ..core.spec import values

    if isinstance(error, errors.CcbedError):
        session.terminal.error(map(values.suggest, error.problems), error.hint)
        return error.exit_code
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message())
        return errors.EXIT_PASS
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        session.terminal.error(
            [values.suggest(error.format_message())], f"{context.command_path} --help" if context else "ccbed --help"
        )
        return errors.EXIT_USAGE
    explained = errors.explain(error)
    if explained:
        session.terminal.error(explained.problems, explained.hint)
        return explained.exit_code
    traceback_file = _save_traceback(session.state)
    session.terminal.error(
        [f"internal error of ccbed: {type(error).__name__}: {error}"], f"the traceback is in {traceback_file}"
    )
    return errors.EXIT_INFRASTRUCTURE


def _save_traceback(state: Path) -> str:
    from ..core.spec import redact

    text = traceback.format_exc()
    file = state / f"crash-{os.getpid()}.txt"
    try:
        state.mkdir(parents=True, exist_ok=True)
        file.write_text(f"ccbed {__version__}: {redact.command_line(sys.argv[1:])}\n{text}")
    except OSError:
        return f"this text, as {file} cannot be written:\n{text}"
    return str(file)


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
    verbosity.add(group)
    return group


def _prepare(ctx: click.Context, plugins: tuple[Path, ...]) -> None:
    session: sessions.Session = ctx.obj
    session.plugins = tuple(plugins)
    from .inputs import settings_files

    if ctx.invoked_subcommand not in _WITHOUT_SETTINGS and (files := settings_files.find(session.terminal.warn)):
        _apply_settings(ctx, session, files)


def _apply_settings(ctx: click.Context, session: sessions.Session, files: Sequence[Path]) -> None:
    """Make the settings of the files the defaults of the verb. Raises UsageError with every mistake in them."""
    from .inputs import settings

    session.settings = tuple(files)
    values = [setting for file in files for setting in settings.read(file)]
    session.plugins = session.plugins or settings.plugins(values)
    ctx.default_map = settings.default_map(ctx, values)


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


def _stem(verb: str) -> str:
    return f"{verb}_" if verb in ("exec", "list") else verb


def _summary(file: Path) -> str:
    from ..store.shipped import summary

    return summary(file)
