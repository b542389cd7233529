"""Carry out `ccbed run`: build the trial from its options, run it once or several times, and show each result."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core.spec import parse_trial, plan, redact, slots, trial_draft
from ..model import codec
from ..model.bed import BedSpec
from ..model.errors import CcbedError, UsageError
from ..model.event import Event
from ..model.events import RunEnd
from ..model.frozen import dataclass, field, replace
from ..model.launch import Result
from ..model.plan import Placement
from ..model.trial import SCRIPT, Trial
from ..providers import files
from ..store import beds as store
from ..store import bundle, secrets
from . import audited_runs, detached, ephemeral_bed, spare_probe
from .inputs import beds, slurm_jobs, trials
from .inputs.session import Session
from .render import live, rank_output, summary
from .render.terminal import short_path
from .verbs import prune

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTrial:
    """A trial that can run on its bed. ``exports``: variables of all ranks; ``placement``: the nodes that it must not use."""

    source: trials.Source
    trial: Trial
    redaction: redact.Redaction
    bed: BedSpec
    data_dir: str | None = None
    exports: Mapping[str, str] = field(default_factory=dict)
    placement: Placement = plan.ANY_NODE


def run(session: Session, source: trials.Source, options: Mapping[str, Any]) -> int:
    """Return the exit code. ``options``: those of `run`, and those of the workload as ``param_NAME``."""
    name = _announced_run(session, source, options)
    checked = check(session, source, options)
    if options["dry_run"]:
        return _dry_run(session, checked, options)
    if options["detach"]:
        return detached.start(session, checked.bed)
    with _on_bed(session, checked, options) as placed:
        once = functools.partial(run_once, session, placed, options)
        if name:
            return summary.show(session, once(name=name), as_json=options["as_json"])
        from . import repeated_run

        return repeated_run.run(session, placed.bed, placed.trial, once, _command(session, placed.redaction), options)


def _announced_run(session: Session, source: trials.Source, options: Mapping[str, Any]) -> str:
    """Return the name of the run, which is announced before anything slow; empty where another process or directory has its runs."""
    if options["repeat"] is not None or options["resume"] is not None or options["detach"]:
        return ""
    directory = bundle.unused(options["runs_dir"], source.trial_name)
    session.announce(directory)
    return directory.name


def run_single(session: Session, source: trials.Source, options: Mapping[str, Any]) -> Result:
    """Run the trial once, as ``run`` does, and return its result in place of showing it."""
    with _on_bed(session, check(session, source, options), options) as placed:
        return run_once(session, placed, options)


def check(session: Session, source: trials.Source, options: Mapping[str, Any]) -> CheckedTrial:
    """Build the trial, and check that it can run on its bed. Raises UsageError, InfrastructureError: then nothing was started."""
    spare_probe.parse_limit(options["probe_spares"] or "0s")
    files.node_limit()
    missing_bed, bed = _bed(session, options)
    data_dir = _data_dir(options["data_dir"], bed)
    placement = beds.placement(session, bed, include_quarantined=options["include_quarantined"]) if bed else Placement()
    names = (*options["secret"], *source.secret_names)
    redaction = redact.Redaction(mask=secrets.mask(session.state), names=names)
    trial = redacted(source, redaction, _trial(session, source, options, bed, data_dir, placement))
    if bed is None:
        raise missing_bed or RuntimeError("neither a bed nor the reason why there is none")
    store.refuse_night(Path(bed.workdir))
    if session.job.job_id:
        slurm_jobs.refuse_other_job(session, bed)
    _require_agent(session, bed)
    trials.require_nodes(source, trial, bed, session.catalogue)
    slots.assign(trial, bed, placement)
    _require_rank(options["tee"], trial)
    exports = _exports(options["env"])
    trial = trials.without_missing_libraries(session.terminal, trial, bed)
    return CheckedTrial(
        source=source, trial=trial, redaction=redaction, bed=bed, data_dir=data_dir, exports=exports, placement=placement
    )  # fmt: skip


@contextmanager
def _on_bed(session: Session, checked: CheckedTrial, options: Mapping[str, Any]) -> Iterator[CheckedTrial]:
    """Place the trial on its bed. An ephemeral bed ends with the body; without an error leftovers are then removed."""
    bed = checked.bed
    with ephemeral_bed.of_command(session, bed, is_wanted=bool(options["inventory"]), quiet=options["as_json"]):
        placement = checked.placement
        if bed.slurm and options["inventory"]:  # which nodes the bed has is known when its job runs
            from .verbs.up import up

            up(session, bed, quiet=options["as_json"])
            placement = beds.placement(session, bed, include_quarantined=options["include_quarantined"])
        limit_s = spare_probe.parse_limit(options["probe_spares"] or "0s")
        placement = _probe_spares(session, checked.trial, bed, placement, options, limit_s)
        yield replace(checked, placement=placement)
    if all(host.connection == "local" for host in bed.hosts):
        prune.automatic(session, bed, options["runs_dir"], quiet=options["as_json"])


def _probe_spares(
    session: Session, trial: Trial, bed: BedSpec, placement: Placement, options: Mapping[str, Any], limit_s: float
) -> Placement:
    """Probe the spares, if --probe-spares asks for it, on the bed as it is brought up. Raises InfrastructureError if too few are fit."""
    if options["resume"]:
        return spare_probe.recorded(Path(options["resume"])) or placement
    if not limit_s:
        return placement
    from ..nightly import baselines

    if options["inventory"]:
        from .verbs.up import up

        up(session, bed, quiet=options["as_json"])
    probe = spare_probe.SpareProbe(
        session=session, bed=beds.usable(bed), limit_s=limit_s, runs=options["runs_dir"].resolve(),
        command=shlex.join(["ccbed", *session.argv]), baselines=baselines.read_all(options["baselines"]), reason=f"before {trial.name}",
    )  # fmt: skip
    if not options["as_json"]:
        session.terminal.line(f"probe  spares {' '.join(probe.find_spares(placement)) or 'none'}, about {limit_s:g} s")
    placement = probe.extend(placement)
    slots.assign(trial, bed, placement)
    return placement


def _require_agent(session: Session, bed: BedSpec) -> None:
    """Agents of another version of ccbed may not understand this one. Raises UsageError."""
    if bed.agent != session.agent():
        raise UsageError(
            f"bed {bed.name} runs the agent of another version of ccbed ({bed.agent[:6]}, not {session.agent()[:6]})",
            hint=f"ccbed up {short_path(bed.inventory)}",
        )


def _bed(session: Session, options: Mapping[str, Any]) -> tuple[CcbedError | None, BedSpec | None]:
    """Return the bed, or the error why there is none: errors in the trial are reported first."""
    if options["inventory"]:
        if options["bed"]:
            raise UsageError("--bed and --inventory exclude each other; give one of them")
        return None, beds.wanted(session, options["inventory"])
    try:
        return None, beds.choose(session, options["bed"])
    except CcbedError as error:
        return error, None


def _data_dir(option: Path | None, bed: BedSpec | None) -> str | None:
    """Raises UsageError where the nodes are on this machine and the directory does not exist."""
    path = str(option.resolve()) if option else bed.data_dir if bed else None
    if path and bed and bed.provider == "process" and not Path(path).is_dir():
        where = "--data-dir" if option else f"{short_path(bed.inventory)}: ccbed_data_dir"
        raise UsageError(f"{where}: no such directory (got {path})", hint="name the directory that holds the data set")
    return path


def _trial(
    session: Session,
    source: trials.Source,
    options: Mapping[str, Any],
    bed: BedSpec | None,
    data_dir: str | None,
    placement: Placement,
) -> Trial:
    workload_values = {
        name.removeprefix("param_"): value
        for name, value in options.items()
        if name.startswith("param_") and value is not None
    }
    overrides = trials.overrides(source.document.name, options, workload_values)
    overrides += trials.absolute_paths(source, workload_values)
    if source.is_script and bed is not None and options["nodes"] is None:
        overrides.append(all_nodes(source, bed, placement))
    if options["cold"]:
        overrides.append(trial_draft.Override(path=("params", "cold"), content=True, source="--cold"))
    implying = next((name for name in ("fail_node", "max_restarts", "grow_after") if options[name]), "")
    implying = implying or ("nodes" if ":" in (options["nodes"] or "") else "")
    if source.is_script and implying and not (options["recovery"] or options.get("param_launcher")):
        flag = f"--{implying.replace('_', '-')}"
        overrides.append(trial_draft.Override(path=("recovery", "policy"), content="auto", source=flag))
    if source.args:
        overrides.append(trial_draft.Override(path=("params", "args"), content=list(source.args), source="--"))
    if isinstance(source.document.content, dict):
        overrides += trials.implied_checks(source.document, options["fail_node"])
        is_bit_exact = bool(trials.twin_choice(source, options)) and not trials.may_shrink(options)
        overrides += trials.twin_check(source, chosen=is_bit_exact)
    trial = parse_trial.build(source.document, session.catalogue, overrides, data_dir)
    script = trial.params.get("file") if source.is_script else None
    if script and not Path(script).is_file():
        raise UsageError(
            f"{source.label}: params.file: no such file (got {script})", hint="the bundle's inputs/ has a copy"
        )
    return trial


def redacted(source: trials.Source, redaction: redact.Redaction, trial: Trial) -> Trial:
    """Replace the trial's secrets by placeholders. Raises UsageError for a recorded trial whose secrets are missing."""
    result = redaction.trial(trial)
    missing = redact.missing_secrets(result.params, redaction.secrets)
    if not missing:
        return result
    args = [redact.PLACEHOLDER.sub("...", str(arg)) for arg in result.params.get("args", ())]
    rerun_args = f" -- {shlex.join(args)}" if args else ""
    raise UsageError(
        *(f"{source.label}: {path} was redacted when the run was recorded; give it again" for path in missing),
        hint=f"ccbed run {source.label}{rerun_args}, with the values in place of the dots",
    )


def all_nodes(source: trials.Source, bed: BedSpec, placement: Placement) -> trial_draft.Override:
    """Give a script every node of the bed that it may use, unless it says how many."""
    world = source.document.content.get("world")
    count = world["nodes"] if isinstance(world, dict) and "nodes" in world else None
    usable = max(1, slots.count_usable(bed, placement))
    return trial_draft.Override(path=("world", "nodes"), content=count or usable, source=f"bed {bed.name}")


def _dry_run(session: Session, checked: CheckedTrial, options: Mapping[str, Any]) -> int:
    """Show what the run would do and where, on a bed that it would bring up as if it were up; with ``as_json`` every value."""
    trial, bed = checked.trial, beds.usable(checked.bed)
    provider = session.provider(bed)
    status = provider.observe(bed, memory=False)  # first: it shows what the engines of the hosts can do
    if options["inventory"]:
        warm = [status.node(node.name) for node in bed.all_nodes]
        warm = [node if node.state in ("busy", "unreachable") else replace(node, state="warm") for node in warm]
        status = replace(status, nodes=tuple(warm))
    capabilities = {node.host: provider.capabilities(node.host) for node in bed.all_nodes}
    planned = plan.plan(
        trial, bed, status, session.catalogue,
        run="(dry run)", payload="", capabilities=capabilities, data_dir=checked.data_dir,
        placement=checked.placement, machines=provider.machines(bed),
    )  # fmt: skip
    if options["as_json"]:
        session.terminal.json({"trial": codec.plain(trial), "plan": codec.plain(plan.without_secrets(planned))})
        return 0
    session.terminal.lines(
        [
            *trials.describe(trial, planned.last_step),
            *trials.notes(trial, session.catalogue),
            *_bed_lines(trial, bed, checked.placement),
            *trials.planned(trial, planned),
        ]
    )
    return 0


def run_once(
    session: Session,
    checked: CheckedTrial,
    options: Mapping[str, Any],
    runs: Path | None = None,
    reason: str = "by hand",
    resume: Path | None = None,
    name: str = "",
) -> Result:
    """``resume``: the directory of an open run, which is resumed in place of a new one; ``name``: that of the new one."""
    source, trial, redaction, bed = checked.source, checked.trial, checked.redaction, checked.bed
    quiet = bool(options["as_json"])
    if options["inventory"]:
        from .verbs.up import up

        up(session, bed, quiet=quiet)
    bed = beds.usable(bed)
    slurm_jobs.refuse_short(bed, trial)
    assigned = slots.assign(trial, bed, checked.placement)
    names = tuple(node.name for node in assigned.slots)
    printer = live.Printer(terminal=session.terminal, trial=trial, slots=names, quiet=quiet)
    last_step = plan.last_step(trial, session.catalogue, checked.data_dir)
    described = (*trials.describe(trial, last_step), *trials.notes(trial, session.catalogue))
    printer.head([*described, *_bed_lines(trial, bed, checked.placement), *slurm_jobs.describe(session, bed)])
    tee = _tee(session, source, redaction, bed, printer, options)

    def on_begin(directory: str) -> None:
        printer.directory(directory)
        if not live.is_twin(directory):
            tee.begin(Path(directory).name)

    def on_event(event: Event) -> None:
        if event.kind is RunEnd:
            tee.stop()
        printer.event(event)

    choice, runs = trials.twin_choice(source, options), runs or options["runs_dir"]
    is_local_script = source.is_script and bed.shares_file_system
    result = audited_runs.launch(
        session,
        session.request(
            trial,
            bed,
            runs,
            reason=reason,
            command=_command(session, redaction),
            data_dir=checked.data_dir,
            resume=str(resume) if resume else "",
            run=name,
            twin=has_twin(source, trial, choice),
            twin_after=choice is None and is_local_script and bool(trial.faults),
            inputs=source.inputs,
            secrets=dict(redaction.secrets),
            secret_names=tuple(redaction.names),
            environment=dict(os.environ) if is_local_script else None,
            exports=checked.exports,
            placement=spare_probe.relative_to(checked.placement, runs.resolve()),
            **{**printer.callbacks, "on_begin": on_begin, "on_event": on_event},
        ),
    )
    tee.stop()
    if options["log_dir"]:
        rank_output.copy_logs(Path(result.directory), options["log_dir"], printer.note)
    return result


def _command(session: Session, redaction: redact.Redaction) -> str:
    return redaction.text(shlex.join(["ccbed", *redaction.arguments(session.argv)]))


def _tee(
    session: Session,
    source: trials.Source,
    redaction: redact.Redaction,
    bed: BedSpec,
    printer: live.Printer,
    options: Mapping[str, Any],
) -> rank_output.Tee:
    """Return what prints the output of ranks. By default that of rank 0 of a script is printed."""
    which = options["tee"] or ("0" if source.is_script else rank_output.NONE)
    return rank_output.Tee(
        terminal=session.terminal,
        nodes=Path(bed.workdir) / "nodes",
        which=rank_output.NONE if options["as_json"] else which,
        hide=redaction.text,
        lock=printer.lock,
    )


def _require_rank(which: str | None, trial: Trial) -> None:
    """Raises UsageError where ``--tee`` names no rank of the trial."""
    if which is None or which in (rank_output.ALL, rank_output.NONE):
        return
    if not (which.isascii() and which.isdigit()):
        raise UsageError(f"--tee: must be a rank, all or none (got {which})", hint="--tee all")
    if int(which) >= trial.world.size:
        last = trial.world.size - 1
        raise UsageError(f"--tee: the trial has ranks 0 to {last} (got {which})", hint=f"--tee {last}, or --tee all")


def has_twin(source: trials.Source, trial: Trial, choice: bool | None) -> bool:
    """As the user chooses; by default a script has one only if its own file names the check."""
    if choice is not None:
        return choice
    return not source.is_script or any(check.name == trials.TWIN_CHECK for check in trial.checks)


def _exports(variables: Sequence[str]) -> dict[str, str]:
    """Raises UsageError for what is no name of a variable, and for a name without a value, here and in the environment."""
    pairs = [text.partition("=") for text in variables]
    invalid = [name for name, _, _ in pairs if not _VARIABLE.fullmatch(name)]
    if invalid:
        problem = "must be NAME or NAME=VALUE; a name has letters, digits and _"
        raise UsageError(*(f"--env: {problem} (got {name!r})" for name in invalid), hint="--env NAME=VALUE")
    missing = [name for name, assigned, _ in pairs if not assigned and name not in os.environ]
    if missing:
        raise UsageError(*(f"--env {name}: is not set" for name in missing), hint=f"--env {missing[0]}=VALUE")
    return {name: value if assigned else os.environ[name] for name, assigned, value in pairs}


def _bed_lines(trial: Trial, bed: BedSpec, placement: Placement) -> Iterator[str]:
    """The nodes of the slots, the spares, and each node that the run must not use."""
    assigned = slots.assign(trial, bed, placement)
    spares = [node.name for node in assigned.spares]
    spare = f" + spare {' '.join(spares)}" if spares else ""
    policy = ", ".join(trial.recovery.policy)
    names = " ".join(node.name for node in assigned.slots)
    yield f"bed    {bed.name}: {names}{spare} · recovery {policy} (change with --recovery)"
    if trial.world.can_shrink and trial.workload == SCRIPT:
        yield "note   fewer nodes share data and sums in another way: after a loss, batches, random states and bits are not compared"
    yield from (f"note   {text}" for text in slots.describe_excluded(bed, placement, assigned.substitutes))
    yield from (f"spare  {text}" for text in placement.notes)
