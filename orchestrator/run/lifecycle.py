"""The life of a run, read top-down: prepare, drive, judge, seal."""

from __future__ import annotations

import secrets as tokens
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ..core.bed import selection
from ..core.spec import redact
from ..model.errors import EXIT_INTERRUPTED, EXIT_PASS, CcbedError, Interrupted, UsageError
from ..model.event import History
from ..model.launch import Request, Result
from ..model.plan import Plan
from ..store import bed_files, bundle, paths, rank_payload, secrets
from . import abandon, drive, judging, known_links, preparation, twin_runs


def launch(request: Request) -> Result:
    """Run a trial from its preparation to its verdicts, or resume a run. Raises UsageError, InfrastructureError."""
    if request.resume:
        return resume(request, Path(request.resume))
    salt = secrets.salt(Path(request.state))
    project = rank_payload.read_project(
        request.trial, request.bed, is_copied=request.twin and preparation.needs_twin(request)
    )
    files = rank_payload.collect(Path(__file__).parents[1], request.catalogue, project, salt)
    directory = bundle.new(Path(request.runs), request.trial.name, run=request.run)
    if project and not project.in_place and (missing := rank_payload.large_files(project)):
        request.on_note(f"does not travel to the nodes: {missing}")
    with bed_files.run_lock(Path(request.bed.workdir), directory.name, directory), _disconnecting(request):
        abandon.settle(request.bed, request.provider, request.catalogue, request.on_note)
        plan = preparation.begin(preparation.Draft(request=request, files=files, project=project), directory)
        with _resumable(directory, Path(request.bed.workdir)):
            return _start(request, plan, directory)


def resume(request: Request, directory: Path) -> Result:
    """Take over a run that was interrupted or whose orchestrator is gone. A run that has ended is judged again."""
    plan = preparation.read_plan(directory, request.bed)
    if plan.bed != request.bed.name:
        raise UsageError(f"{directory}: was run on bed {plan.bed}, not on {request.bed.name}", hint=f"--bed {plan.bed}")
    workdir = Path(request.bed.workdir)
    known, about = secrets.of_run(workdir, plan.run), paths.document(directory, bundle.BUNDLE)
    request = replace(
        request, secrets=known.secrets, environment=known.environment, exports=known.exports,
        secret_names=plan.secret_names, umask=plan.umask, twin=bool(about["twin"]), twin_after=bool(about.get("twin_after")),
        budget_s=about.get("budget_s"),
    )  # fmt: skip
    with bed_files.run_lock(workdir, plan.run, directory), _resumable(directory, workdir), _disconnecting(request):
        if bundle.has_ended(directory):
            twin_runs.abandon_open(request, directory)
            return _finish_with_twin(request, directory)
        open_run = _require_open(workdir, directory)
        if not request.stop:
            redact.require(request.trial, request.secrets, str(directory), request.bed.name)
        if not bundle.has_begun(directory):
            return _resume_unstarted(request, plan, directory)
        request.on_begin(str(directory))
        request = twin_runs.with_interval(request, directory)
        _resume_started(request, plan, directory, cut=open_run.cut)
        return _finish_with_twin(request, directory)


def _start(request: Request, plan: Plan, directory: Path, *, fresh: bool = True) -> Result:
    """Drive a run that has its inputs, but no history. Its twin comes first. ``fresh``: the plan was made just now."""
    ends_by_interrupt = _ends_by_interrupt(request)
    try:
        is_new = twin_runs.provide(request, directory)
    except Interrupted as interruption:
        if not ends_by_interrupt:
            raise
        abandon.collect_and_close(request, directory, "interrupted in the reference run")
        bed_files.end_run(Path(request.bed.workdir), directory.name)
        raise Interrupted(*interruption.problems, hint=f"run it again: {request.command}") from interruption
    if request.twin_after:
        from . import kept_references

        kept_references.reuse(request, directory)
    request = twin_runs.with_interval(request, directory)
    if is_new or not fresh:
        plan = preparation.renew(request, plan, directory)
    request.on_begin(str(directory))
    loading = judging.warm_up_reports(request.catalogue)
    drive.drive(request, request.trial, plan, directory, ends_by_interrupt=ends_by_interrupt)
    known_links.keep(request, plan, directory)
    loading.join()
    return _finish_with_twin(request, directory)


def _ends_by_interrupt(request: Request) -> bool:
    """Ctrl-C ends a script on this machine, as under torchrun. Any other run stays open, and can be resumed."""
    return request.trial.workload == "script" and all(host.connection == "local" for host in request.bed.hosts)


def _resume_unstarted(request: Request, plan: Plan, directory: Path) -> Result:
    """Start a run whose orchestrator died before the first command of the run, or while it made the twin."""
    twin_runs.resume(request, directory)
    if request.stop:
        return _finish(request, directory)
    from ..providers import abandoned_run  # with 4 modules that a run from its beginning does not need

    abandoned_run.mend(
        request.provider, request.bed, plan.run, History(), tokens.token_hex(3),
        drained=selection.hosts_of(request.bed, plan.placement.drained),
    )  # fmt: skip
    return _start(request, plan, directory, fresh=False)


def _resume_started(request: Request, plan: Plan, directory: Path, *, cut: bool) -> None:
    """Continue where the history ends. An interruption that was under way is completed first."""
    if cut:
        drive.drive(request, request.trial, plan, directory, cut=True)
        bed_files.change_run(Path(request.bed.workdir), plan.run, directory, cut=False)
        if request.stop:
            return
    for _ in ("to the end of an interruption", "to the end of the run"):
        ends = _ends_by_interrupt(request)
        if bundle.has_ended(directory) or drive.drive(request, request.trial, plan, directory, ends_by_interrupt=ends):
            return


def _require_open(workdir: Path, directory: Path) -> bed_files.OpenRun:
    """Raises UsageError when the run is not the open run of its bed, or is open in another directory."""
    open_run = bed_files.open_run(workdir)
    if open_run is None or open_run.run != directory.name:
        raise UsageError(
            f"{directory}: cannot be resumed: it is not the open run of its bed (abandoned, or renamed)",
            hint=f"run it again: ccbed run {directory}/trial.json; the open run: ccbed status {workdir.name}",
        )
    original = Path(open_run.directory)
    if original.resolve() != directory.resolve() and bundle.stage(original) != "none":
        raise UsageError(f"{directory}: a copy of a run that is open in {original}", hint=f"ccbed resume {original}")
    return open_run


@contextmanager
def _disconnecting(request: Request) -> Iterator[None]:
    """Disconnect the hosts once the run is finished: its files there are removed over the same connections."""
    try:
        yield
    finally:
        request.provider.close()


@contextmanager
def _resumable(directory: Path, workdir: Path) -> Iterator[None]:
    """Add the command that resumes the run to an error that stops it."""
    command = f"ccbed resume {directory}"
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"{directory}: {_interruption(directory, workdir)}", hint=command) from None
    except OSError as error:
        raise drive.storage_error(error, directory, command) from error


def _interruption(directory: Path, workdir: Path) -> str:
    """Return what an interruption leaves: after the end of the run, its ranks have ended and its faults are healed.

    The ranks of a twin that follows it are on the bed.
    """
    with suppress(CcbedError):
        open_run = bed_files.open_run(workdir)
        if bundle.has_ended(directory) and not (open_run and open_run.twin):
            return "interrupted after the run had ended, before its report was complete"
    return "interrupted at once; the ranks and faults on the bed stay as they are"


def _finish_with_twin(request: Request, directory: Path) -> Result:
    """Judge a run that has ended, after the twin that follows it, if that is planned."""
    is_interrupted = twin_runs.provide_after(request, directory)
    result = _finish(request, directory)
    return replace(result, code=EXIT_INTERRUPTED) if is_interrupted else result


def _finish(request: Request, directory: Path) -> Result:
    """Judge and seal a run that has ended, and release the bed. An interrupted run stays open."""
    if not bundle.has_ended(directory):
        return Result(run=directory.name, directory=str(directory), code=EXIT_INTERRUPTED)
    result = judging.finish(
        request.catalogue, directory, Path(request.bed.workdir), judging.signer(request), request.on_stage
    )
    bed_files.end_run(Path(request.bed.workdir), directory.name)
    judging.forget(request, directory, result.code)
    if result.code == EXIT_PASS:
        twin_runs.remove_copies(directory)
    return result
