"""The life of a run, read top-down: prepare, drive, judge, seal. Everything else is called from here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import __version__, driving, judging, rendering
from .core import judge, plugin_files, programs, redact
from .core import plan as planning
from .core import twin as twins
from .model import codec, vaulted
from .model.bed import BedSpec, BedStatus
from .model.errors import EXIT_INTERRUPTED, EXIT_PASS, CcbedError, Interrupted, UsageError
from .model.launch import Request, Result
from .model.plan import LeftOut, Plan
from .model.run import Twin
from .model.trial import Trial
from .providers import asking, preflight, systems
from .store import beds, bundle, closing, fingerprint, inputs, paths, payload, secrets
from .store import twins as cache
from .store.journal import JournalError


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run under way: what was asked for, where, with which files."""

    request: Request
    trial: Trial
    files: Mapping[str, bytes]
    twin: Twin | None = None
    suffix: str = ""

    @property
    def bed(self) -> BedSpec:
        return self.request.bed

    @property
    def workdir(self) -> Path:
        return Path(self.request.bed.workdir)


def launch(request: Request) -> Result:
    """A trial from its beginning to its verdicts, or one that is gone on with. Raises UsageError, InfrastructureError."""
    if request.resume:
        return resume(request, Path(request.resume))
    salt = secrets.salt(Path(request.state))
    files = payload.collect(Path(__file__).parent, request.catalogue, inputs.script(request.trial), salt)
    run = _Run(request=request, trial=request.trial, files=files)
    return _one(replace(run, twin=_twin(run)) if _wants_twin(request) else run)


def resume(request: Request, directory: Path) -> Result:
    """Take over a run whose orchestrator is gone, or that was interrupted; a finished one is judged again."""
    kept = vaulted.reveal(paths.document(directory, bundle.PLAN), request.bed.vault)
    plan = planning.restored(codec.build(Plan, kept), request.bed)
    if plan.bed != request.bed.name:
        raise UsageError(f"{directory}: was run on bed {plan.bed}, not on {request.bed.name}", hint=f"--bed {plan.bed}")
    workdir = Path(request.bed.workdir)
    request = replace(request, secrets=secrets.of_run(workdir, plan.run))
    request.began(str(directory))
    with beds.run_lock(workdir, plan.run, directory), _resumable(directory), _let_go(request):
        open_run = beds.OpenRun(run=plan.run, directory=str(directory))
        if not _ended(directory):
            open_run = _still_open(workdir, directory)
            if not request.stop:
                redact.require(request.trial, request.secrets, str(directory), request.bed.name)
            if open_run.cut:
                driving.drive(request, request.trial, plan, directory, cut=True)
                beds.cut_run(workdir, plan.run, directory, cut=False)
        if not _ended(directory) and not (request.stop and open_run.cut):
            driving.drive(request, request.trial, plan, directory)
        return _finish(request, directory)


def _still_open(workdir: Path, directory: Path) -> beds.OpenRun:
    """Raises UsageError when the bed has gone on without this run."""
    open_run = beds.open_run(workdir)
    if open_run is None or open_run.run != directory.name:
        raise UsageError(
            f"{directory}: cannot be resumed: it was given up on its bed",
            hint=f"again: ccbed run {directory}/trial.json",
        )
    return open_run


@contextmanager
def _let_go(request: Request) -> Iterator[None]:
    """Its hosts are let go of once the run is finished: what it left there is removed over the same connections."""
    try:
        yield
    finally:
        request.provider.close()


@contextmanager
def _resumable(directory: Path) -> Iterator[None]:
    """What keeps a run that has begun from going on is told with the command that goes on."""
    again = f"ccbed resume {directory}"
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"{directory}: interrupted at once; what runs on the bed goes on", hint=again) from None
    except OSError as error:
        raise driving.full(error, directory, again) from error


# --- the twin ---------------------------------------------------------------------------------------------------------


def _wants_twin(request: Request) -> bool:
    chosen = judge.specs(request.trial, request.catalogue)
    return request.twin and judge.needs_twin(chosen, request.catalogue)


def _twin(run: _Run) -> Twin | None:
    """The uninterrupted run of the same trial: from the cache, or run now."""
    request, state = run.request, Path(run.request.state)
    _refuse_busy(run.workdir)
    key = twins.twin_key(run.trial, _foreseen(run))
    if cached := _cached(run, key):
        return cached
    _refuse_unfit(run)
    undisturbed = replace(run.trial, faults=(), checks=())
    quiet = replace(request, twin=False, reason=f"twin of trial {run.trial.id}", told=lambda event: None)
    try:
        made = _one(_Run(request=quiet, trial=undisturbed, files=run.files, suffix="-twin"))
    except (JournalError, driving.CutOffError) as error:
        _drop_twin(run)
        first = "free space, then " if isinstance(error, JournalError) else ""
        raise type(error)(*error.problems, hint=f"{first}again: {request.command}") from error
    if made.code == EXIT_INTERRUPTED:
        closing.close(Path(made.directory), "interrupted")
        _drop_twin(run)
        raise Interrupted(f"interrupted in the run to compare with, {made.run}", hint=f"again: {request.command}")
    twin = twins.make_twin(bundle.load(Path(made.directory)))
    if twin is not None:
        cache.put(state, twin)
    return twin


def _cached(run: _Run, key: str) -> Twin | None:
    """The twin that was made before. A damaged one is reported, and made again."""
    try:
        twin = cache.get(Path(run.request.state), key, run.trial.world.size)
    except cache.DamagedTwinError as error:
        run.request.note(f"the cached run to compare with is damaged and made again: {error}")
        return None
    if twin is not None:
        run.request.known(twin.run)
    return twin


def _foreseen(run: _Run) -> dict[str, Any]:
    """The fingerprint that a run of this trial would have now."""
    provider = run.request.provider
    provider.open(run.bed, asking.BED)
    plan = _plan(run, provider.observe(run.bed, memory=False), run_id="", at="")
    return _fingerprint(run, plan, _systems(run))


def _refuse_unfit(run: _Run) -> None:
    """What the run will be refused for is said before anything is run to compare with. Raises UsageError, InfrastructureError."""
    with _let_go(run.request):
        status = run.request.provider.observe(run.bed)
        _plan(run, status, run_id="", at="", checked=_preflight(run, status))


def _drop_twin(run: _Run) -> None:
    """A twin is not gone on with: the run that was asked for has not begun, and makes another one."""
    left = beds.open_run(run.workdir)
    if left is not None:
        beds.end_run(run.workdir, left.run)


# --- one run ----------------------------------------------------------------------------------------------------------


def _one(run: _Run) -> Result:
    request = run.request
    _refuse_busy(run.workdir)
    directory = bundle.create(Path(request.runs), run.trial.name + run.suffix)
    with _locked(run.workdir, directory):
        plan = _begin(run, directory)
        with _resumable(directory), _let_go(request):
            request.began(str(directory))
            loading = rendering.ahead(request.catalogue)
            driving.drive(request, run.trial, plan, directory)
            loading.join()
            return _finish(request, directory)


@contextmanager
def _locked(workdir: Path, directory: Path) -> Iterator[None]:
    """The lock of a bed's run; where another has it, nothing of this one remains."""
    with ExitStack() as stack:
        try:
            stack.enter_context(beds.run_lock(workdir, directory.name, directory))
        except BaseException:
            paths.discard(directory)
            raise
        yield


def _begin(run: _Run, directory: Path) -> Plan:
    """Everything before the first command; if any of it fails, nothing of the run remains."""
    provider, name = run.request.provider, directory.name
    try:
        beds.begin_run(run.workdir, name, directory.resolve())
        secrets.keep(run.workdir, name, run.request.secrets)
        status = provider.observe(run.bed, memory=False)
        with _opened(run, name), ThreadPoolExecutor(max_workers=2) as pool:
            placed, told = pool.submit(provider.put, run.files), pool.submit(_systems, run)
            checked = _preflight(run, status)
            plan = _plan(run, status, run_id=name, at=placed.result(), checked=checked)
            kept, left_out = _inputs(run)
            plan = replace(plan, inputs=bundle.sums(kept), inputs_left_out=left_out)
            bundle.write_inputs(directory, _documents(run, plan, told.result()), kept)
        bundle.link_latest(directory)
        return plan
    except BaseException as error:
        beds.end_run(run.workdir, name)
        paths.discard(directory)
        if isinstance(error, OSError):
            raise driving.full(error, directory, run.request.command) from error
        raise


@contextmanager
def _opened(run: _Run, name: str) -> Iterator[None]:
    """The provider is bound to the run; where it does not begin after all, nothing of it stays on the hosts."""
    provider = run.request.provider
    provider.open(run.bed, name)
    try:
        yield
    except BaseException:
        with suppress(CcbedError, OSError):
            provider.forget(run.bed, name)
        raise


def _systems(run: _Run) -> Mapping[str, Mapping[str, Any]]:
    """What the nodes say that they run on; of those of this machine it need not be asked."""
    if run.bed.provider in planning.EMULATED:
        return {}
    return systems.read(run.request.provider, (node.name for node in run.bed.nodes))


def _preflight(run: _Run, status: BedStatus) -> preflight.Checked:
    """Raises InfrastructureError with the fix when the bed's hosts lack what a run needs."""
    checked = preflight.examine(run.bed, status, run.request.provider.asker(run.bed))
    refused = preflight.refused(checked.findings)
    if refused:
        raise refused
    return checked


def _refuse_busy(workdir: Path) -> None:
    """Raises UsageError, naming the open run."""
    if beds.open_run(workdir) or beds.driver(workdir):
        raise beds.busy(workdir)


def _plan(
    run: _Run, status: BedStatus, *, run_id: str, at: str, checked: preflight.Checked = preflight.NOTHING
) -> Plan:
    request, provider = run.request, run.request.provider
    return planning.plan(
        run.trial, run.bed, status, request.catalogue, run=run_id, payload=at,
        capabilities={node.host: provider.capabilities(node.host) for node in run.bed.nodes},
        data_dir=request.data_dir, clocks=checked.clocks, gaps=checked.gaps, rooms=checked.rooms,
        twin=request.twin,
        secret_names=request.secret_names, umask=request.umask,
    )  # fmt: skip


def _fingerprint(run: _Run, plan: Plan, told: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of the nodes; where they are processes that use no GPU, of this machine, which is the same. ``told``: by the nodes."""
    asked: dict[str, Any] = {
        "code": payload.digest(run.files), "threads": plan.threads, "backend": plan.backend, "data": plan.data
    }  # fmt: skip
    if run.bed.provider in planning.EMULATED and plan.backend == "gloo":
        return fingerprint.take(**asked)
    names = (*plan.slots, *plan.spares)
    told = told or systems.read(run.request.provider, names)
    told = {name: told.get(name, {}) for name in names}
    programs.require(run.trial, run.bed, run.request.catalogue, told)
    return fingerprint.of_nodes(told, plan.slots, **asked)


def _documents(run: _Run, plan: Plan, told: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """File name in the bundle -> what is written there before the run begins."""
    request = run.request
    about = bundle.describe(
        run=plan.run,
        version=__version__,
        command=request.command,
        reason=request.reason,
        bed=plan.bed,
        twin=request.twin,
    )
    documents: dict[str, Any] = {
        bundle.TRIAL: run.trial,
        bundle.PLAN: vaulted.mask(codec.plain(planning.shown(plan)), run.bed.vault),
        bundle.FINGERPRINT: _fingerprint(run, plan, told),
        bundle.BUNDLE: about,
    }
    if run.twin:
        documents[bundle.TWIN] = run.twin
    return documents


def _inputs(run: _Run) -> tuple[Mapping[str, bytes], tuple[LeftOut, ...]]:
    """(the files under ``inputs/``: the user's and the plugins; the user's files that are not there)."""
    request = run.request
    users, left_out = inputs.of_run(run.trial, run.files, request.inputs, (*request.secrets.values(), *run.bed.vault))
    checks = judge.specs(run.trial, request.catalogue)
    return {**users, **plugin_files.sources(run.trial, checks, request.catalogue)}, left_out


# --- after it ---------------------------------------------------------------------------------------------------------


def _ended(directory: Path) -> bool:
    if not (directory / bundle.HISTORY).exists():
        return False
    last = bundle.read_history(directory).last("run.end")
    return last is not None


def _finish(request: Request, directory: Path) -> Result:
    """Seal the evidence, judge it, render it. An interrupted run stays open."""
    if not _ended(directory):
        return Result(run=directory.name, directory=str(directory), code=EXIT_INTERRUPTED)
    judging.close(directory)
    result = judging.conclude(request.catalogue, directory)
    beds.end_run(Path(request.bed.workdir), directory.name)
    if result.code == EXIT_PASS:
        request.provider.forget(request.bed, directory.name)
    return result
