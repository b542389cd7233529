"""Run a trial: train, inject faults, recover, verify, seal the bundle."""

from __future__ import annotations

import copy
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...model.errors import CcbedError, UsageError
from ...model.frozen import dataclass
from ..inputs import beds, completions, options
from ..inputs.session import Session

if TYPE_CHECKING:
    from ..inputs.trials import Source

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
        from ..inputs import trials

        taken = [name for param in self.params for name in param.opts]
        extended = copy.copy(self)
        own = [param for param in self.params if not (source.is_module and param.name == "trial")]
        extended.params = [*own, *trials.workload_options(source, session.catalogue, taken)]
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
    from ..inputs import trials

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
@click.option("-m", "--module", metavar="MODULE", help="Run a module instead of a file, as python -m does.")
@click.option(
    "--fail-node",
    multiple=True,
    metavar="N",
    shell_complete=completions.nodes,
    help="Kill this node halfway through the run; in a script, after its second checkpoint. "
    "Repeatable: without --at all are killed at the same time.",
)
@click.option(
    "--at",
    multiple=True,
    metavar="WHEN",
    help="When --fail-node acts: step=20,phase=allreduce, 10s, save, or after-save=2+3. Once for all, or once per --fail-node.",
)
@click.option(
    "--recovery",
    metavar="POLICY",
    help="auto, none, an order of spare, restart, replace (start it on another host) and shrink such as spare,replace, "
    "or theirs: the --launcher recovers.",
)
@click.option("--max-restarts", metavar="N", help="Maximum number of recoveries.")
@click.option(
    "--grow-after",
    metavar="TIME",
    help="After this time, start again the nodes that a smaller gang goes on without; they rejoin after the next checkpoint.",
)
@click.option(
    "--replace-wait",
    metavar="TIME",
    help="How long --recovery replace waits until another host has room. [default: not at all]",
)
@click.option(
    "--nodes",
    "--nnodes",
    "nodes",
    metavar="N|MIN:MAX",
    help="Number of nodes. With 2:4 a gang of 4 that loses a node without a spare goes on with the others, down to 2.",
)
@click.option("--ranks-per-node", "--nproc-per-node", "ranks_per_node", metavar="N", help="Ranks per node.")
@click.option("--backend", metavar="NAME", help="auto, gloo or nccl.")
@click.option("--seed", metavar="N", help="The seed of weights, data order and noise.")
@click.option("--wall", metavar="TIME", help="The time limit of the run: 90s, 2h (default 1h).")
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run the trial N times; --json prints one document for all runs. An interruption or an error stops it.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Resume the --repeat in DIR that was interrupted; the rest of the line is as before. `ccbed resume DIR` does the same.",
)
@click.option(
    "--twin/--no-twin",
    default=None,
    help="Compare with a twin, the same trial without faults; a script and its twin then run in copies of its project."
    " Without one, checks that need it are unknown (exit 2) if the trial names them, else not checked."
    " [default: a twin; for a script with faults that took less than a minute, one that follows the run]",
)
@click.option(
    "--secret",
    multiple=True,
    metavar="NAME",
    help="Redact this environment variable or option of the script. Repeatable.",
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Set this variable in every rank, on every host. Repeatable. On this machine ranks of a script have your whole environment.",
)
@click.option(
    "--cold", is_flag=True, help="Start a new Python interpreter for each rank of a script, as torchrun does."
)
@click.option(
    "--timeout",
    metavar="TIME",
    help="A script that completes no step for this long has stalled, even while its ranks work"
    " (default: 30s, or 20 steps, and only while no rank works).",
)
@click.option(
    "--grace",
    metavar="TIME",
    help="Send SIGTERM to the ranks of a script that are to end, and SIGKILL after this time (default: SIGKILL at once).",
)
@click.option("--detach", is_flag=True, help="Run in the background, without this terminal; Ctrl-C then has no effect.")
@click.option("--tee", metavar="RANK|all|none", help="Print the output of this rank (default: 0, of a script).")
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Copy the ranks' output to DIRECTORY/RUN/attempt_N/RANK/output.log at the end.",
)
@options.bed
@click.option(
    "-i",
    "--inventory",
    type=click.Path(path_type=Path),
    shell_complete=completions.inventories,
    help="Bring this bed up first, if it is not up.",
)
@options.slurm_job
@options.include_quarantined
@click.option(
    "--probe-spares",
    is_flag=False,
    flag_value="30s",
    metavar="[TIME]",
    help="Probe the spares first (matrix products, memory, disk) for about TIME (default 30s). A spare that is worse than its"
    " floor or than its peers does not join. Put this option behind TRIAL.",
)
@options.baselines
@click.option("--data-dir", type=click.Path(path_type=Path), help="The directory of data sets for the ranks.")
@click.option("--dry-run", is_flag=True, help="Print the trial and its plan, and stop.")
@options.runs_dir
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
    from .. import run_trial

    session = ctx.find_object(Session)
    if session is None:
        raise RuntimeError("the group passes a session to every verb")
    return run_trial.run(session, ctx.meta["source"], values)


def _split(args: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of ccbed, and those of the script, which follow ``--``."""
    if "--" not in args:
        return args, []
    index = args.index("--")
    return args[:index], args[index + 1 :]
