"""Run a trial on a bed: train, break, recover, verify, and leave one sealed bundle."""

from __future__ import annotations

import copy
import functools
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from ...core.spec import draft, parse_trial, plan, redact
from ...model import codec
from ...model.bed import BedSpec
from ...model.errors import EXIT_INTERRUPTED, PRECEDENCE, CcbedError, Interrupted, UsageError
from ...model.launch import Request, Result
from ...model.trial import Trial
from ...store import secrets
from ..inputs import beds, missing_libraries, options, trials
from ..inputs.session import Session
from ..render import live, summary
from . import prune

_OWN = ("-h", "--help")


class RunCommand(click.Command):
    """Every field of the trial's workload is an option, so the options depend on the trial. ``about``: its label and workload."""

    about = "", ""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        session = parent.find_object(Session) if parent else None
        head, rest = _split(args)
        source = self._source(head, rest, session) if session else None
        if source is None:
            return super().make_context(info_name, head, parent, **extra)
        session = session or _never()
        taken = [name for param in self.params for name in param.opts]
        special = copy.copy(self)
        special.params = [*self.params, *trials.workload_options(source, session.catalogue, taken)]
        special.about = source.label, source.workload
        context = click.Command.make_context(special, info_name, head, parent, **extra)
        context.meta["source"] = source
        if rest and not source.is_script:
            context.fail(f"{source.label} takes no arguments of its own (got {shlex.join(rest)})")
        return context

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Those of the workload apart from those of every run."""
        own = [one for one in self.get_params(ctx) if (one.name or "").startswith("param_")]
        rest = [one for one in self.get_params(ctx) if one not in own]
        for title, params in (("Options", rest), (f"{self.about[0]}, which is of workload {self.about[1]}", own)):
            rows = [row for row in (one.get_help_record(ctx) for one in params) if row is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _source(self, head: list[str], rest: list[str], session: Session) -> trials.Source | None:
        name = trials.peek(head, self.params, session.catalogue)
        if name is None:
            return None
        try:
            return trials.open_source(name, rest, session.catalogue)
        except UsageError:
            if set(_OWN) & set(head):
                return None  # whoever asks for help is helped
            raise


@click.command(cls=RunCommand, context_settings={"help_option_names": list(_OWN), "auto_envvar_prefix": "CCBED"})
@click.argument("trial", metavar="TRIAL|FILE.yml|FILE.py [-- ARGS]")
@click.option(
    "--fail-node",
    multiple=True,
    metavar="N",
    help="Kill this node halfway through. Repeatable: all of them are killed at the same time, unless each has its own --at.",
)
@click.option(
    "--at",
    multiple=True,
    metavar="WHEN",
    help="When --fail-node acts: step=20,phase=allreduce, or 10s. One for all, or one per --fail-node, in order.",
)
@click.option("--recovery", metavar="POLICY", help="auto, none, or an order such as spare,restart.")
@click.option("--max-restarts", metavar="N", help="How many recoveries are allowed.")
@click.option("--nodes", metavar="N", help="How many nodes take part.")
@click.option("--ranks-per-node", metavar="N", help="How many ranks each node has.")
@click.option("--backend", metavar="NAME", help="auto, gloo or nccl.")
@click.option("--seed", metavar="N", help="Decides weights, data order and noise.")
@click.option("--wall", metavar="TIME", help="The run fails if it is not finished by then: 90s, 2h (default 1h).")
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run it N times; --json then prints one document with all of them. An interruption or an error ends it.",
)
@click.option(
    "--no-twin",
    is_flag=True,
    help="Make no uninterrupted run to compare with. Checks that need one are unknown (exit 2) where the trial names them,"
    " else listed as not checked.",
)
@click.option(
    "--secret",
    multiple=True,
    metavar="NAME",
    help="Redact the value of this environment variable or option of the script; repeatable.",
)
@options.bed
@click.option("-i", "--inventory", type=click.Path(path_type=Path), help="Bring this bed up first, if it is not.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where the ranks find data sets.")
@click.option("--dry-run", is_flag=True, help="Print the trial and its plan, and stop.")
@options.runs_dir
@options.as_json
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Run TRIAL on a bed: a built-in one, a file, or your own script with torchrun's environment.

    Every parameter of the trial's workload is an option too; `ccbed run TRIAL --help` lists them.

    \b
    ccbed run dp-ring --fail-node 2
    ccbed run train.py --nodes 4 -- --epochs 3
    """
    session, source = ctx.find_object(Session) or _never(), ctx.meta["source"]
    missing, bed = _bed(session, given)
    if bed and not given["inventory"]:
        session.ahead(bed)
    data_dir = _data_dir(given["data_dir"], bed)
    names = (*given["secret"], *source.secret_names)
    hidden = redact.Redaction(mask=secrets.mask(session.state), names=names)
    trial = _redacted(source, hidden, _trial(session, source, given, bed, data_dir))
    if bed is None:
        raise missing or _never()
    trials.fitting(source, trial, bed, session.catalogue)
    trial = missing_libraries.available(session.terminal, trial, bed)
    if given["dry_run"]:
        return _dry(session, trial, bed, data_dir, as_json=given["as_json"])
    once = functools.partial(_once, session, source, trial, hidden, bed, data_dir, given)
    if given["repeat"] is None:
        code = summary.show(session, once(), as_json=given["as_json"])
    else:
        code = _repeat(session, once, given["repeat"], as_json=given["as_json"])
    if all(host.connection == "local" for host in bed.hosts):
        prune.automatic(session, bed, given["runs_dir"], quiet=given["as_json"])
    return code


def _repeat(session: Session, once: Callable[[], Result], count: int, *, as_json: bool) -> int:
    """Show every run as it ends, or with ``--json`` all of them in one document at the end, with the error that ended it."""
    codes: list[int] = []
    documents: list[dict[str, Any]] = []
    error: CcbedError | None = None
    while error is None and len(codes) < count and EXIT_INTERRUPTED not in codes:
        try:
            result = once()
            codes.append(result.code)
            if as_json:
                documents.append(summary.document(result))
            else:
                summary.show(session, result)
        except KeyboardInterrupt:
            error = Interrupted("interrupted")
        except CcbedError as problem:
            error = problem
    codes += [error.exit_code] if error else []
    code = next(code for code in PRECEDENCE if code in codes)
    if as_json:
        failure = {"error": {"problems": list(error.problems), "next": error.hint}} if error else {}
        session.terminal.json({"runs": documents, "exit": code, **failure})
    if error:
        session.terminal.error(error.problems, error.hint)
    return code


def _bed(session: Session, given: Mapping[str, Any]) -> tuple[CcbedError | None, BedSpec | None]:
    """The bed, or why there is none: the mistakes of the trial are told first."""
    if given["inventory"]:
        if given["bed"]:
            raise UsageError("--bed and --inventory exclude each other; give one")
        return None, beds.wanted(session, given["inventory"])
    try:
        return None, beds.choose(session, given["bed"])
    except CcbedError as error:
        return error, None


def _data_dir(given: Path | None, bed: BedSpec | None) -> str | None:
    """Raises UsageError where the nodes are of this machine and have no such directory."""
    path = str(given.resolve()) if given else bed.data_dir if bed else None
    if path and bed and bed.provider == "process" and not Path(path).is_dir():
        where = "--data-dir" if given else f"{beds.shown(bed.inventory)}: ccbed_data_dir"
        raise UsageError(f"{where}: no such directory (got {path})", hint="name the directory that holds the data set")
    return path


def _trial(
    session: Session, source: trials.Source, given: Mapping[str, Any], bed: BedSpec | None, data_dir: str | None
) -> Trial:
    own = {name.removeprefix("param_"): value for name, value in given.items() if name.startswith("param_")}
    laid = trials.overrides(
        source.document.name, given, {name: value for name, value in own.items() if value is not None}
    )
    if source.is_script and bed is not None and given["nodes"] is None:
        laid.append(_all_nodes(source, bed))
    if source.args:
        laid.append(draft.Override(path=("params", "args"), value=list(source.args), source="--"))
    laid += trials.proofs(source.document, given["fail_node"]) if isinstance(source.document.value, dict) else []
    trial = parse_trial.build(source.document, session.catalogue, laid, data_dir)
    script = trial.params.get("file") if source.is_script else None
    if script and not Path(script).is_file():
        raise UsageError(
            f"{source.label}: params.file: no such file (got {script})", hint="the bundle's inputs/ has a copy"
        )
    return trial


def _redacted(source: trials.Source, hidden: redact.Redaction, trial: Trial) -> Trial:
    """The trial with placeholders for its secrets. Raises UsageError for a recorded trial whose secrets are not given again."""
    result = hidden.trial(trial)
    if not (unknown := redact.missing(result.params, hidden.secrets)):
        return result
    args = [redact.PLACEHOLDER.sub("...", str(arg)) for arg in result.params.get("args", ())]
    again = f" -- {shlex.join(args)}" if args else ""
    raise UsageError(
        *(f"{source.label}: {place} was redacted when the run was recorded; give it again" for place in unknown),
        hint=f"ccbed run {source.label}{again}, with the values in place of the dots",
    )


def _all_nodes(source: trials.Source, bed: BedSpec) -> draft.Override:
    """A script that says nothing else gets every node of the bed."""
    world = source.document.value.get("world")
    count = world["nodes"] if isinstance(world, dict) and "nodes" in world else None
    members = sum(node.role == "node" for node in bed.nodes)
    return draft.Override(path=("world", "nodes"), value=count or members, source=f"bed {bed.name}")


def _dry(session: Session, trial: Trial, bed: BedSpec, data_dir: str | None, *, as_json: bool) -> int:
    """What would be run where; every value of it with ``--json``."""
    provider = session.provider(bed)
    capabilities = {node.host: provider.capabilities(node.host) for node in bed.nodes}
    made = plan.plan(
        trial, bed, provider.observe(bed, memory=False), session.catalogue,
        run="(dry run)", payload="", capabilities=capabilities, data_dir=data_dir,
    )  # fmt: skip
    if as_json:
        session.terminal.json({"trial": codec.plain(trial), "plan": codec.plain(plan.shown(made))})
        return 0
    session.terminal.lines(
        [
            *trials.describe(trial, made.last_step),
            *trials.notes(trial, session.catalogue),
            *_bed_line(trial, bed),
            *trials.planned(trial, made),
        ]
    )
    return 0


def _once(
    session: Session,
    source: trials.Source,
    trial: Trial,
    hidden: redact.Redaction,
    bed: BedSpec,
    data_dir: str | None,
    given: Mapping[str, Any],
) -> Result:
    quiet = bool(given["as_json"])
    if given["inventory"]:
        from .up import up

        up(session, bed, quiet=quiet)
    slots = tuple(node.name for node in bed.nodes if node.role == "node")[: trial.world.nodes]
    teller = live.Teller(terminal=session.terminal, trial=trial, slots=slots, quiet=quiet)
    last = plan.last_step(trial, session.catalogue, data_dir)
    teller.head([*trials.describe(trial, last), *trials.notes(trial, session.catalogue), *_bed_line(trial, bed)])
    return session.launch(
        Request(
            trial=trial,
            bed=bed,
            provider=session.provider(bed),
            catalogue=session.catalogue,
            runs=str(given["runs_dir"]),
            state=str(session.state),
            command=hidden.text(shlex.join(["ccbed", *hidden.arguments(session.argv)])),
            data_dir=data_dir,
            twin=not given["no_twin"],
            inputs=source.inputs,
            secrets=dict(hidden.secrets),
            secret_names=tuple(hidden.names),
            umask=session.umask,
            began=teller.begun,
            told=teller.tell,
            known=teller.known,
            note=teller.note,
        )
    )


def _bed_line(trial: Trial, bed: BedSpec) -> list[str]:
    members = [node.name for node in bed.nodes if node.role == "node"][: trial.world.nodes]
    spares = [node.name for node in bed.nodes if node.role == "spare"]
    spare = f" + spare {' '.join(spares)}" if spares else ""
    policy = ", ".join(trial.recovery.policy)
    return [f"bed    {bed.name}: {' '.join(members)}{spare} · recovery {policy} (change with --recovery)"]


def _split(args: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what follows ``--``."""
    if "--" not in args:
        return args, []
    place = args.index("--")
    return args[:place], args[place + 1 :]


def _never() -> Any:
    raise RuntimeError("the group hands a session to every verb")
