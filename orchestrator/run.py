"""The life of a run, read top-down: prepare, drive, judge, seal. Everything else is called from here."""

from __future__ import annotations

import json
import os
import secrets
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import __version__, views
from .core import judge, metrics
from .core import plan as planning
from .core import twin as twins
from .loop import Loop
from .model import codec
from .model.bed import BedSpec, BedStatus, NodeStatus
from .model.errors import EXIT_INTERRUPTED, EXIT_PASS, CcbedError, InfrastructureError, Interrupted, UsageError
from .model.event import Event, History, Source
from .model.launch import Request, Result
from .model.plan import Plan
from .model.plugin import Catalogue
from .model.run import Run, Twin
from .model.trial import Trial
from .providers import heal, preflight
from .store import beds, bundle, clock, closing, fingerprint, paths, payload, seal
from .store import twins as cache
from .store.journal import Journal, JournalError

#: Per node, what is fetched at most, in bytes; what is cut is recorded.
GATHER_LIMIT = 256 * 1024 * 1024


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
    script = Path(request.trial.params["file"]) if request.trial.params.get("file") else None
    files = payload.collect(Path(__file__).parent, request.catalogue, script)
    run = _Run(request=request, trial=request.trial, files=files)
    return _one(replace(run, twin=_twin(run)) if _wants_twin(request) else run)


def resume(request: Request, directory: Path) -> Result:
    """Take over a run whose orchestrator is gone, or that was interrupted; a finished one is judged again."""
    plan: Plan = codec.build(Plan, paths.document(directory, bundle.PLAN))
    if plan.bed != request.bed.name:
        raise UsageError(f"{directory}: was run on bed {plan.bed}, not on {request.bed.name}", hint=f"--bed {plan.bed}")
    request.began(str(directory))
    workdir = Path(request.bed.workdir)
    with beds.run_lock(workdir, plan.run, directory), _resumable(directory):
        open_run = beds.OpenRun(run=plan.run, directory=str(directory))
        if not _ended(directory):
            open_run = _still_open(workdir, directory)
            if open_run.cut:
                _drive(request, request.trial, plan, directory, cut=True)
                beds.cut_run(workdir, plan.run, directory, cut=False)
        if not _ended(directory) and not (request.stop and open_run.cut):
            _drive(request, request.trial, plan, directory)
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
def _resumable(directory: Path) -> Iterator[None]:
    """What keeps a run that has begun from going on is told with the command that goes on."""
    again = f"ccbed resume {directory}"
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"{directory}: interrupted at once; what runs on the bed goes on", hint=again) from None
    except OSError as error:
        raise _full(error, directory, again) from error


def _full(error: OSError, directory: Path, again: str) -> InfrastructureError:
    place = error.filename or directory
    return InfrastructureError(
        f"{place}: {error.strerror or error}", hint=f"free space or restore the directory, then: {again}"
    )


# --- the twin ---------------------------------------------------------------------------------------------------------


def _wants_twin(request: Request) -> bool:
    chosen = judge.specs(request.trial, request.catalogue)
    return request.twin and judge.needs_twin(chosen, request.catalogue)


def _twin(run: _Run) -> Twin | None:
    """The uninterrupted run of the same trial: from the cache, or run now."""
    request, state = run.request, Path(run.request.state)
    _refuse_busy(run.workdir)
    key = twins.twin_key(
        run.trial, _fingerprint(_plan(run, request.provider.observe(run.bed), run_id="", at=""), run.files)
    )
    if found := cache.get(state, key):
        return found
    undisturbed = replace(run.trial, faults=(), checks=())
    quiet = replace(request, reason=f"twin of trial {run.trial.id}", told=lambda event: None)
    try:
        made = _one(_Run(request=quiet, trial=undisturbed, files=run.files, suffix="-twin"))
    except JournalError as error:
        _drop_twin(run)
        raise JournalError(*error.problems, hint=f"free space, then again: {request.command}") from error
    if made.code == EXIT_INTERRUPTED:
        closing.close(Path(made.directory), "interrupted")
        _drop_twin(run)
        raise Interrupted(f"interrupted in the run to compare with, {made.run}", hint=f"again: {request.command}")
    twin = twins.make_twin(bundle.load(Path(made.directory)))
    if twin is not None:
        cache.put(state, twin)
    return twin


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
        with _resumable(directory):
            request.began(str(directory))
            _drive(request, run.trial, plan, directory)
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
        status = provider.observe(run.bed)
        _preflight(run.bed, status)
        provider.open(run.bed, name)
        plan = _plan(run, status, run_id=name, at=provider.put(run.files))
        _write_inputs(run, plan, directory)
        bundle.link_latest(directory)
        return plan
    except BaseException as error:
        beds.end_run(run.workdir, name)
        paths.discard(directory)
        if isinstance(error, OSError):
            raise _full(error, directory, run.request.command) from error
        raise


def _preflight(bed: BedSpec, status: BedStatus) -> None:
    """Raises InfrastructureError with the fix when the bed's host lacks what a run needs."""
    failed = [finding for finding in preflight.check(bed, status) if finding.outcome == "fail"]
    if failed:
        problems = [f"preflight: {finding.name}: {finding.text}" for finding in failed]
        raise InfrastructureError(*problems, hint="\n".join(finding.fix for finding in failed))


def _refuse_busy(workdir: Path) -> None:
    """Raises UsageError, naming the open run."""
    if beds.open_run(workdir) or beds.driver(workdir):
        raise beds.busy(workdir)


def _plan(run: _Run, status: BedStatus, *, run_id: str, at: str) -> Plan:
    request, provider = run.request, run.request.provider
    return planning.plan(
        run.trial,
        run.bed,
        status,
        request.catalogue,
        run=run_id,
        payload=at,
        capabilities={node.host: provider.capabilities(node.host) for node in run.bed.nodes},
        data_dir=request.data_dir,
    )


def _fingerprint(plan: Plan, files: Mapping[str, bytes]) -> dict[str, Any]:
    return fingerprint.take(code=payload.digest(files), threads=plan.threads, backend=plan.backend)


def _write_inputs(run: _Run, plan: Plan, directory: Path) -> None:
    request = run.request
    about = bundle.describe(
        run=plan.run, version=__version__, command=request.command, reason=request.reason, bed=plan.bed
    )
    documents: dict[str, Any] = {
        bundle.TRIAL: run.trial,
        bundle.PLAN: plan,
        bundle.FINGERPRINT: _fingerprint(plan, run.files),
        bundle.BUNDLE: about,
    }
    if run.twin:
        documents[bundle.TWIN] = run.twin
    users = {name: content for name, content in run.files.items() if name.startswith("user/")}
    bundle.write_inputs(directory, documents, users or request.inputs)


# --- driving ----------------------------------------------------------------------------------------------------------


def _drive(request: Request, trial: Trial, plan: Plan, directory: Path, *, cut: bool = False) -> None:
    """Until the run has ended or was interrupted; the journal tells where it stands. ``cut``: see store.beds.OpenRun."""
    with Journal(directory / bundle.HISTORY) as book, _interruptible() as interrupted:
        try:
            cursors = request.provider.open(request.bed, plan.run)
            cursors = book.events[0].value["cursors"] if book.events else cursors
            book.append(_opening(request, plan, book, cursors, cut=cut))
            loop = Loop(
                trial=trial,
                plan=plan,
                book=book,
                provider=request.provider,
                now=clock.now,
                look=lambda name: _look(request, name),
                gather=lambda: _gather(request, plan, directory),
                heard=lambda event, state: request.told(event),
                interrupted=(lambda: True) if request.stop else interrupted,
                cursors=cursors,
            )
            loop.run()
            book.sync()
        except (JournalError, OSError) as error:
            raise _cut(request, plan, directory, book.history, error) from error


def _opening(request: Request, plan: Plan, book: Journal, cursors: Any, *, cut: bool) -> Event:
    """What this orchestrator writes first."""
    if not book.events:
        nodes = {name: _identity(node) for name, node in plan.nodes.items()}
        value = {"run": plan.run, "bed": plan.bed, "pid": os.getpid(), "nodes": nodes, "cursors": cursors}
        return _own("run.begin", value)
    found = {"pid": os.getpid(), "torn_bytes": book.torn_bytes, "nodes": _found(request)}
    return _own("run.interrupted", {"reason": "cut off", **found}) if cut else _own("run.resumed", found)


def _cut(
    request: Request, plan: Plan, directory: Path, history: History, error: JournalError | OSError
) -> JournalError:
    """What happens cannot be written down: order nothing more that belongs there, stop the gang and heal the bed."""
    workdir = Path(request.bed.workdir)
    known = error if isinstance(error, JournalError) else _full(error, directory, f"ccbed resume {directory}")
    if not history.events:
        beds.end_run(workdir, plan.run)
        paths.discard(directory)
        return JournalError(*known.problems, hint=f"free space, or --runs-dir DIRECTORY; again: {request.command}")
    with suppress(OSError):
        beds.cut_run(workdir, plan.run, directory)
    try:
        mended = heal.mend(request.provider, request.bed, plan.run, history, secrets.token_hex(3))
        problems = mended.problems
    except (CcbedError, OSError) as worse:
        problems = (str(worse),)
    healed = () if problems else ("the gang is stopped and the bed is healed",)
    return JournalError(*known.problems, *problems, *healed, hint=known.hint)


def _look(request: Request, name: str) -> NodeStatus:
    return request.provider.observe(request.bed).node(name)


def _found(request: Request) -> dict[str, Any]:
    """The nodes that live, for a run that goes on after an interruption."""
    status = request.provider.observe(request.bed)
    return {
        node.name: {"incarnation": node.incarnation, "ordinal": node.ordinal, "pid": node.pid}
        for node in status.nodes
        if node.state in ("warm", "busy", "paused", "starting")
    }


def _identity(node: Any) -> dict[str, Any]:
    return {
        "incarnation": node.incarnation, "ordinal": node.ordinal, "pid": node.pid, "role": node.role, "address": node.address
    }  # fmt: skip


def _own(f: str, value: Mapping[str, Any]) -> Event:
    return Event(type="note", f=f, value=value, at=clock.now(), source=Source(writer="ctl", n=0))


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM asks the loop to heal and stop; the second ends this process as it would without us."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- after it ---------------------------------------------------------------------------------------------------------


def _gather(request: Request, plan: Plan, directory: Path) -> dict[str, Any]:
    """What the nodes left, into the bundle; what could not be had is listed, never silently absent."""
    size, missing, capped = 0, [], []
    for name in plan.nodes:
        for path, to in ((f"runs/{plan.run}", f"nodes/{name}"), ("agent.log", f"nodes/{name}/agent.log")):
            got = request.provider.fetch(name, path, directory / to, GATHER_LIMIT)
            size += got.size
            if got.reason:
                missing.append({"node": name, "path": path, "reason": got.reason})
            if got.capped:
                capped.append({"node": name, "path": path})
    count = sum(1 for file in (directory / "nodes").rglob("*") if file.is_file())
    return {"files": count, "bytes": size, "missing": missing, "capped": capped}


def _ended(directory: Path) -> bool:
    if not (directory / bundle.HISTORY).exists():
        return False
    last = bundle.read_history(directory).last("run.end")
    return last is not None


def _finish(request: Request, directory: Path) -> Result:
    """Seal the evidence, judge it, render it. An interrupted run stays open."""
    if not _ended(directory):
        return Result(run=directory.name, directory=str(directory), code=EXIT_INTERRUPTED)
    if not bundle.is_sealed(directory):
        _write_metrics(bundle.load(directory), directory)
        seal.seal(directory)
    result = conclude(request.catalogue, directory)
    beds.end_run(Path(request.bed.workdir), directory.name)
    if result.code == EXIT_PASS:
        request.provider.forget(request.bed, directory.name)
    return result


def conclude(catalogue: Catalogue, directory: Path) -> Result:
    """Verdicts and reports of a closed run, from its evidence alone. Raises TornBundleError."""
    run = bundle.load(directory, judged=False)
    verdicts = judge.judge(run, catalogue, judge.specs(run.trial, catalogue))
    run = replace(run, verdicts=verdicts)
    bundle.write_derived(directory, verdicts, _rendered(run, catalogue))
    outcome, _, kind = views.ending(run.history)
    return Result(run=directory.name, directory=str(directory), code=judge.exit_code(verdicts, outcome, kind))


def _rendered(run: Run, catalogue: Catalogue) -> dict[str, bytes]:
    """Every report; one that breaks leaves its traceback in its place and takes nothing else with it."""
    rendered: dict[str, bytes] = {}
    for plugin in catalogue.reports.values():
        module: Any = plugin.module
        try:
            rendered.update(module.render(run))
        except Exception:  # noqa: BLE001 a user's plugin: whatever it raises, the verdicts stand
            rendered[f"{plugin.name}-failed.txt"] = traceback.format_exc().encode()
    return rendered


def _write_metrics(run: Run, directory: Path) -> None:
    lines = (json.dumps(codec.plain(metric), separators=(",", ":")) for metric in metrics.of(run))
    paths.write(directory / "metrics.jsonl", "".join(f"{line}\n" for line in lines).encode())
