"""Run a trial: train, inject faults, recover, verify, sign the result."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ...app import beds, requests
from ...app.requests import RunRequest, TrialRef
from ...model.errors import CcbedError, UsageError
from ...model.frozen import dataclass
from ..inputs import completions, options
from ..inputs.terminal_session import Session

if TYPE_CHECKING:
    from ...app.trials import Source

_HELP = ("-h", "--help")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A line of `run` as far as its own options go. ``words``: all arguments that belong to none of them."""

    bed: str | None
    inventory: str | None
    module: str | None
    is_help: bool
    words: tuple[str, ...]


class RunCommand(click.Command):
    """Every parameter of the trial's workload is an option too, so the trial is read before the options are final.

    ``workload_title``: the heading of those options in the help.
    """

    workload_title = ""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        session = parent.find_object(Session) if parent else None
        own, script_args = _split(args)
        if session is None:
            return super().make_context(info_name, own, parent, **extra)
        if extra.get("resilient_parsing"):  # the shell completes this line: only its trial is read
            source = _completed_source(session, self._parse_known(info_name, own, parent, resilient=True))
            command = self._extended(session, source) if source else self
            return click.Command.make_context(command, info_name, own, parent, **extra)
        known = self._parse_known(info_name, own, parent)
        warm_up(session, known)
        source = _open_source(session, known, script_args)
        if source is None:
            return super().make_context(info_name, own, parent, **extra)
        context = click.Command.make_context(self._extended(session, source), info_name, own, parent, **extra)
        context.meta["source"] = source
        if script_args and not source.is_script:
            context.fail(f"{source.label} takes no arguments of its own (got {shlex.join(script_args)})")
        return context

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options of the workload in a section of their own."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        workload = [option for option in options if (option.name or "").startswith("param_")]
        general = [option for option in options if option not in workload]
        for title, params in (("Options", general), (self.workload_title, workload)):
            rows = [row for row in (param.get_help_record(ctx) for param in params) if row is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _parse_known(
        self, info_name: str | None, args: list[str], parent: click.Context | None, *, resilient: bool = False
    ) -> _Known:
        """Parse the line without the options of the workload, which depend on the trial."""
        context = click.Context(
            self,
            info_name=info_name,
            parent=parent,
            ignore_unknown_options=True,
            resilient_parsing=resilient,
            **self.context_settings,
        )
        values, words, _ = self.make_parser(context).parse_args(list(args))
        known = {param.name: param.consume_value(context, values)[0] for param in self.params}
        texts = {name: value for name, value in known.items() if isinstance(value, str)}
        help_option = self.get_help_option(context)
        is_help = help_option is not None and values.get(help_option.name or "") is True
        words = [texts["trial"], *words] if "trial" in texts else words
        named = {name: texts.get(name) for name in ("bed", "inventory", "module")}
        return _Known(**named, is_help=is_help, words=tuple(words))

    def _extended(self, session: Session, source: Source) -> RunCommand:
        """Return this command with the options of the trial's workload."""
        from ..inputs import workload_options

        taken = [name for param in self.params for name in param.opts]
        extended = copy.copy(self)
        own = [param for param in self.params if not (source.is_module and param.name == "trial")]
        extended.params = [*own, *workload_options.of(source, session.catalogue, taken)]
        extended.workload_title = f"Parameters of workload {source.workload} ({source.label})"
        return extended


def warm_up(session: Session, known: _Known) -> None:
    """Start to connect the hosts of the bed while the trial is read; an error in the bed is reported later.

    Help needs no host. With an inventory the bed may not be up yet.
    """
    if known.is_help or known.inventory:
        return
    with suppress(CcbedError):
        session.warm_up(beds.choose(session, known.bed))


def _open_source(session: Session, known: _Known, script_args: list[str]) -> Source | None:
    """Return the trial; None where the line names none, or asks for help with a trial that cannot be read."""
    from ...app import trials

    if known.module:
        return trials.open_module(known.module, script_args)
    name = trials.name_among(known.words, session.catalogue)
    if name is None:
        return None
    try:
        return trials.open_source(name, script_args, session.catalogue)
    except UsageError:
        if known.is_help:
            return None
        raise


def _completed_source(session: Session, known: _Known) -> Source | None:
    with suppress(CcbedError):
        return _open_source(session, known, [])
    return None


@click.command(cls=RunCommand, context_settings={"help_option_names": list(_HELP), "auto_envvar_prefix": "CCBED"})
@click.argument("trial", metavar="TRIAL|FILE.yml|FILE.py|example:NAME [-- ARGS]", shell_complete=completions.trials)
@options.of_request(RunRequest)
@options.slurm_job
@options.as_json
@click.pass_context
def command(ctx: click.Context, /, **values: Any) -> int:
    """Run TRIAL on a bed: a built-in one, a file, your own script or an example with torchrun's environment.

    Every parameter of the trial's workload is an option too; `ccbed run TRIAL --help` lists them.

    \b
    ccbed run dp-ring --fail-node 2
    ccbed run train.py --nodes 4 -- --epochs 3
    ccbed run -m package.train --nproc-per-node 2 -- --epochs 3
    """
    session, source = ctx.find_object(Session), ctx.meta["source"]
    if session is None:
        raise RuntimeError("the group passes a session to every verb")
    from ...app import run
    from ..render import summary_lines

    request = _request(source, values)
    if request.dry_run:
        return _plan(session, request, source)
    if request.detach:
        from ...app import detached

        return detached.start(session, run.check(session, request, source).bed)
    if request.repeat is not None or request.resume:
        from ...app import nights

        return nights.product("--repeat").repeat(session, request, source)
    result = run.run(session, request, source)
    if session.is_json:
        summary_lines.show(session, result, as_json=True)
    return result.code


def _request(source: Source, values: Mapping[str, Any]) -> RunRequest:
    params = {
        name.removeprefix("param_"): value
        for name, value in values.items()
        if name.startswith("param_") and value is not None
    }
    trial = TrialRef(name=values.get("trial") or "", args=source.args, module=values["module"])
    return requests.build(RunRequest, {**values, "trial": trial, "params": params})


def _plan(session: Session, request: RunRequest, source: Source) -> int:
    from ...app import run
    from ..render import trial_lines

    planned = run.plan_run(session, request, source)
    if session.is_json:
        session.terminal.json(planned.document)
    else:
        session.terminal.lines(trial_lines.dry_run(planned))
    return 0


def _split(args: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of ccbed, and those of the script, which follow ``--``."""
    if "--" not in args:
        return args, []
    index = args.index("--")
    return args[:index], args[index + 1 :]
