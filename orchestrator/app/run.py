"""Run a trial on a bed: build it from the request, check that it can run, and run it once."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..core.spec import parse_trial, planning, redact, slots, trial_draft
from ..model import codec
from ..model.bed import BedSpec
from ..model.errors import CcbedError, UsageError
from ..model.frozen import dataclass, field, replace
from ..model.launch import Result
from ..model.plan import Placement, Plan
from ..model.run import SHORT_S
from ..model.trial import THEIRS, Trial, parse_stop
from ..providers import node_files
from ..store import bed_files as store
from ..store import bundle, secrets
from . import audited, bed_job, beds, leftovers, observers, trials
from .observers import PlannedRun
from .places import LONG_S, SHORTER, duration, short_path
from .requests import BedRef, RunRequest
from .session import Session

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: In place of the number of a rank whose output is shown.
ALL_RANKS, NO_RANK = "all", "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTrial:
    """A trial that can run on its bed. ``exports``: variables of all ranks; ``placement``: the nodes that it must not use."""

    source: trials.Source
    trial: Trial
    redaction: redact.Redaction
    bed: BedSpec
    data_dir: str | None = None
    exports: Mapping[str, str] = field(default_factory=dict)
    placement: Placement = planning.ANY_NODE


def run(session: Session, request: RunRequest, source: trials.Source | None = None) -> Result:
    """Run the trial once, and return how it ended. ``source``: the trial of the request, where it was opened before.

    Raises UsageError, and nothing was started; InfrastructureError; Interrupted.
    """
    source = source or trials.opened(request.trial, session.catalogue)
    name = announce(session, request, source)
    checked = check(session, request, source)
    with on_bed(session, request, checked) as placed:
        result = run_once(session, request, placed, name=name)
        session.run_observer(request.output, is_script=source.is_script).judged(result)
        return result


def announce(session: Session, request: RunRequest, source: trials.Source) -> str:
    """Return the name of the run, which is announced before anything slow."""
    directory = bundle.unused(request.output.runs_dir, source.trial_name)
    session.announce(directory)
    return directory.name


def check(session: Session, request: RunRequest, source: trials.Source) -> CheckedTrial:
    """Build the trial, and check that it can run on its bed. Raises UsageError, InfrastructureError: then nothing was started."""
    parse_probe_limit(request.spares.probe_spares)
    node_files.node_limit()
    budget(request, source)
    missing_bed, bed = _bed(session, request.bed)
    data_dir = _data_dir(request.process.data_dir, bed)
    include = request.spares.include_quarantined
    placement = beds.placement(session, bed, include_quarantined=include) if bed else Placement()
    names = (*request.process.secret, *source.secret_names)
    known = redact.values_of(request.process.secret, request.process.env, os.environ)
    redaction = redact.Redaction(mask=secrets.mask(session.state), names=names, values=known)
    trial = redacted(source, redaction, _trial(session, request, source, bed, data_dir, placement))
    if bed is None:
        raise missing_bed or RuntimeError("neither a bed nor the reason why there is none")
    store.refuse_night(Path(bed.workdir))
    if session.job.job_id:
        bed_job.of(bed).refuse_other_job(session, bed)
    _require_agent(session, bed)
    trials.require_nodes(source, trial, bed, session.catalogue)
    slots.assign(trial, bed, placement)
    _require_rank(request.output.tee, trial)
    exports = _exports(request.process.env)
    trial = trials.without_missing_libraries(session.terminal, trial, bed, session.catalogue)
    return CheckedTrial(
        source=source, trial=trial, redaction=redaction, bed=bed, data_dir=data_dir, exports=exports, placement=placement
    )  # fmt: skip


@contextmanager
def on_bed(session: Session, request: RunRequest, checked: CheckedTrial) -> Iterator[CheckedTrial]:
    """Place the trial on its bed. An ephemeral bed ends with the body; without an error leftovers are then removed."""
    bed, is_wanted = checked.bed, bool(request.bed.inventory)
    with bed_job.of(bed).of_command(
        session, bed, is_wanted=is_wanted, quiet=session.is_json, is_asked=request.ephemeral
    ):
        placement = checked.placement
        if bed.slurm and is_wanted:  # which nodes the bed has is known when its job runs
            bring_up(session, bed)
            placement = beds.placement(session, bed, include_quarantined=request.spares.include_quarantined)
        limit_s = parse_probe_limit(request.spares.probe_spares)
        if limit_s or request.resume:
            from . import nights  # of a module that other runs do not load

            placement = nights.product("--probe-spares").place(session, request, checked, placement, limit_s)
        yield replace(checked, placement=placement)
    if all(host.connection == "local" for host in bed.hosts) and not session.releases(bed.name):
        leftovers.prune_automatically(session, bed, request.output.runs_dir)


def bring_up(session: Session, bed: BedSpec) -> None:
    """A bed that is up already needs no module of `up`."""
    from .up import up

    up(session, bed, quiet=session.is_json)


def parse_probe_limit(text: str | None) -> float:
    """Seconds, 0 for no probe. Raises UsageError."""
    from ..core.spec import written_values

    try:
        limit_s = written_values.seconds(text or "0s")
    except ValueError as error:
        raise UsageError(f"--probe-spares: {error} (got {text})", hint="--probe-spares 30s") from None
    if limit_s > 3600:
        raise UsageError(f"--probe-spares: must be an hour at most (got {text})", hint="--probe-spares 30s")
    return limit_s


def _require_agent(session: Session, bed: BedSpec) -> None:
    """Agents of another version of ccbed may not understand this one. Raises UsageError."""
    if bed.agent != session.agent():
        raise UsageError(
            f"bed {bed.name} runs the agent of another version of ccbed ({bed.agent[:6]}, not {session.agent()[:6]})",
            hint=f"ccbed up {short_path(bed.inventory)}",
        )


def _bed(session: Session, bed: BedRef) -> tuple[CcbedError | None, BedSpec | None]:
    """Return the bed, or the error why there is none: errors in the trial are reported first."""
    if bed.inventory:
        return None, beds.meant(session, bed)
    try:
        return None, beds.meant(session, bed)
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
    request: RunRequest,
    source: trials.Source,
    bed: BedSpec | None,
    data_dir: str | None,
    placement: Placement,
) -> Trial:
    overrides = [*_changes(request, source), *trials.absolute_paths(source, request.params)]
    if source.is_script and bed is not None and request.world.nodes is None:
        overrides.append(all_nodes(source, bed, placement))
    if source.args:
        overrides.append(trial_draft.Override(path=("params", "args"), content=list(source.args), source="--"))
    if isinstance(source.document.content, dict):
        overrides += trials.implied_checks(source.document, request.fault.fail_node)
        overrides += trials.twin_check(source, chosen=bool(twin_choice(request, source)) and not _may_shrink(request))
    trial = parse_trial.build(source.document, session.catalogue, overrides, data_dir)
    script = trial.params.get("file") if source.is_script else None
    if script and not Path(script).is_file():
        raise UsageError(
            f"{source.label}: params.file: no such file (got {script})", hint="the bundle's inputs/ has a copy"
        )
    return trial


def _changes(request: RunRequest, source: trials.Source) -> Iterator[trial_draft.Override]:
    """Yield what the request changes in the trial."""
    recovery, world, limits = request.recovery, request.world, request.limits
    launcher = request.params.get("launcher")
    changes = {
        "--nodes": (("world", "nodes"), world.nodes),
        "--ranks-per-node": (("params", "nproc") if launcher else ("world", "ranks_per_node"), world.ranks_per_node),
        "--backend": (("world", "backend"), world.backend),
        "--recovery": (("recovery", "policy"), recovery.recovery or (THEIRS if launcher else None)),
        "--max-restarts": (("recovery", "max_restarts"), recovery.max_restarts),
        "--grow-after": (("recovery", "grow_after"), recovery.grow_after),
        "--replace-wait": (("recovery", "replace_wait"), recovery.replace_wait),
        "--seed": (("seed",), world.seed),
        "--wall": (("liveness", "wall_s"), limits.wall),
        "--timeout": (("params", "timeout_s"), limits.timeout),
        "--grace": (("params", "grace_s"), limits.grace),
        "--budget": (("params", "stop_at"), None if source.params.get("stop_at") else limits.budget),
        "--cold": (("params", "cold"), request.process.cold or None),
        "--require": (("require",), request.ladder.require),
        "--accept": (("accept",), request.ladder.accept),
    }
    for flag, (path, value) in changes.items():
        if value is not None:
            yield trial_draft.Override(path=path, content=value, source=flag)
    for name, value in request.params.items():
        flag = f"--{name.strip('_').replace('_', '-')}"
        yield trial_draft.Override(path=("params", name), content=value, source=flag)
    yield from trials.faults(source.document.name, request.fault)
    if source.is_script and (flag := _implies_recovery(request)) and not (recovery.recovery or launcher):
        yield trial_draft.Override(path=("recovery", "policy"), content="auto", source=flag)


def _implies_recovery(request: RunRequest) -> str:
    """The flag that makes sense with a recovery only; empty if there is none."""
    implying = {
        "--fail-node": request.fault.fail_node,
        "--max-restarts": request.recovery.max_restarts,
        "--grow-after": request.recovery.grow_after,
        "--nodes": ":" in (request.world.nodes or ""),
    }
    return next((flag for flag, value in implying.items() if value), "")


def twin_choice(request: RunRequest, source: trials.Source) -> bool | None:
    """Tell whether the run has a twin, as the user chooses. A drill with a shipped example has one, so it begins afresh in a copy."""
    is_drill = request.reference is None and bool(request.fault.fail_node) and not request.limits.budget
    return True if is_drill and trials.is_example(source) else request.reference


def _may_shrink(request: RunRequest) -> bool:
    """Tell whether the request lets the gang go on with fewer nodes: then no bits are promised."""
    return ":" in (request.world.nodes or "") or "shrink" in (request.recovery.recovery or "")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The plan of a run that was not started. ``notes``: of the workload."""

    trial: Trial
    plan: Plan
    bed: BedSpec
    placement: Placement
    notes: tuple[str, ...]

    @property
    def document(self) -> object:
        """Every value, for programs."""
        return {"trial": codec.plain(self.trial), "plan": codec.plain(planning.without_secrets(self.plan))}


def plan_run(session: Session, request: RunRequest, source: trials.Source | None = None) -> DryRun:
    """Return what the run would do and where, on a bed that it would bring up as if it were up. Raises as ``run`` does."""
    checked = check(session, request, source or trials.opened(request.trial, session.catalogue))
    trial, bed = checked.trial, beds.usable(checked.bed)
    provider = session.provider(bed)
    status = provider.observe(bed, memory=False)  # first: it shows what the engines of the hosts can do
    if request.bed.inventory:
        warm = [status.node(node.name) for node in bed.all_nodes]
        warm = [node if node.state in ("busy", "unreachable") else replace(node, state="warm") for node in warm]
        status = replace(status, nodes=tuple(warm))
    capabilities = {node.host: provider.capabilities(node.host) for node in bed.all_nodes}
    planned = planning.plan(
        trial, bed, status, session.catalogue,
        run="(dry run)", payload="", capabilities=capabilities, data_dir=checked.data_dir,
        placement=checked.placement, machines=provider.machines(bed),
    )  # fmt: skip
    notes = trials.notes(trial, session.catalogue)
    return DryRun(trial=trial, plan=planned, bed=bed, placement=checked.placement, notes=notes)


def run_once(
    session: Session,
    request: RunRequest,
    checked: CheckedTrial,
    runs: Path | None = None,
    reason: str = "by hand",
    resume: Path | None = None,
    name: str = "",
) -> Result:
    """``resume``: the directory of an open run, which is resumed in place of a new one; ``name``: that of the new one."""
    source, trial, redaction, bed = checked.source, checked.trial, checked.redaction, checked.bed
    if request.bed.inventory:
        bring_up(session, bed)
    bed = beds.usable(bed)
    bed_job.of(bed).refuse_short(bed, trial)
    observer = session.run_observer(request.output, is_script=source.is_script)
    budget_s = budget(request, source)
    choice, runs = twin_choice(request, source), runs or request.output.runs_dir
    is_first = has_twin(source, trial, choice) and not budget_s
    is_local_script = source.is_script and bed.shares_file_system
    follows = choice is None and not is_first and is_local_script and bool(trial.faults)
    cost = _cost(trial, source.is_script and is_first, follows, request.limits.budget or "")
    if source.is_script and trial.faults and not trial.params.get("stop_at"):
        cost += _shorter(runs, trial)
    observer.planned(_planned(session, checked, bed, cost))
    result = audited.launch(
        session,
        session.request(
            trial,
            bed,
            runs,
            reason=reason,
            command=command_line(session, redaction),
            data_dir=checked.data_dir,
            resume=str(resume) if resume else "",
            run=name,
            twin=is_first,
            twin_after=follows,
            budget_s=budget_s,
            inputs=source.inputs,
            secrets=dict(redaction.secrets),
            secret_names=tuple(redaction.names),
            environment=dict(os.environ) if is_local_script else None,
            exports=checked.exports,
            placement=relative_to(checked.placement, runs.resolve()),
            **observers.callbacks(observer),
        ),
    )
    observer.ended(result)
    return result


def budget(request: RunRequest, source: trials.Source) -> float | None:
    """The seconds that a drill may take; None: no limit. Raises UsageError where they bound nothing."""
    if request.limits.budget is None:
        return None
    if not source.is_script:
        raise UsageError("--budget is for a script; its reference runs follow it", hint="--wall limits any run")
    if request.reference:
        raise UsageError(
            "--budget and --reference exclude each other: the latter takes what it takes", hint="leave one out"
        )
    with suppress(ValueError):
        if budget_s := parse_stop(request.limits.budget).after_s:
            return budget_s
    raise UsageError(f"--budget: must be a time such as 90s or 10m (got {request.limits.budget})", hint="--budget 10m")


def _cost(trial: Trial, is_first: bool, follows: bool, budget: str = "") -> tuple[str, ...]:
    """Return how often a script runs, if more than once. ``is_first``: its reference comes first; ``follows``: after a short run."""
    if not (is_first or follows):
        return ()
    times = "up to 3 times: with the fault, undisturbed, restarted" if trial.faults else "twice"
    limit = f"the last two only if it takes under {SHORT_S:g} s; " if follows else ""
    limit = f"what does not fit into {budget} is left out, the restarted one first; " if budget else limit
    return (f"the job runs {times} ({limit}--no-reference: once)",)


def _shorter(runs: Path, trial: Trial) -> tuple[str, ...]:
    """Tell how to make a drill short where the newest of the last runs of the same script took more than five minutes."""
    names = sorted((path.name for path in runs.glob(f"*-{trial.name}-*") if "-twin-" not in path.name), reverse=True)
    for name in names[:10]:
        with suppress(CcbedError, OSError, ValueError, LookupError):
            if _given(bundle.load_trial(runs / name)) == _given(trial):
                took_s = bundle.read_history(runs / name).events[-1].t
                return (f"its last run took {duration(took_s)}; {SHORTER}",) if took_s > LONG_S else ()
    return ()


def _given(trial: Trial) -> object:
    return {name: value for name, value in codec.plain(trial.params).items() if value is not None}


def _planned(session: Session, checked: CheckedTrial, bed: BedSpec, cost: tuple[str, ...]) -> PlannedRun:
    trial = checked.trial
    assigned = slots.assign(trial, bed, checked.placement)
    return PlannedRun(
        trial=trial, bed=bed, placement=checked.placement, slots=tuple(node.name for node in assigned.slots),
        last_step=planning.last_step(trial, session.catalogue, checked.data_dir), notes=(*trials.notes(trial, session.catalogue), *cost),
        job=bed_job.of(bed).describe(session, bed), hide=checked.redaction.text,
    )  # fmt: skip


def command_line(session: Session, redaction: redact.Redaction) -> str:
    return redaction.text(shlex.join(["ccbed", *redaction.arguments(session.argv)]))


def _require_rank(which: str | None, trial: Trial) -> None:
    """Raises UsageError where ``--tee`` names no rank of the trial."""
    if which is None or which in (ALL_RANKS, NO_RANK):
        return
    if not (which.isascii() and which.isdigit()):
        raise UsageError(f"--tee: must be a rank, all or none (got {which})", hint="--tee all")
    if int(which) >= trial.world.size:
        last = trial.world.size - 1
        raise UsageError(f"--tee: the trial has ranks 0 to {last} (got {which})", hint=f"--tee {last}, or --tee all")


def has_twin(source: trials.Source, trial: Trial, choice: bool | None) -> bool:
    """Return the user's choice; by default a script has a twin only if its own file names the check."""
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


def relative_to(placement: Placement, runs: Path) -> Placement:
    """The placement of a run in ``runs``: its bundle names that of the probe by a relative path, so that both may be moved."""
    if not placement.spare_probe:
        return placement
    return replace(placement, spare_probe=os.path.join("..", os.path.relpath(placement.spare_probe, runs)))  # noqa: PTH118
