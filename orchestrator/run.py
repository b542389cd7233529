"""The life of a run, read top-down: prepare, drive, judge, seal. Everything else is called from here."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import __version__, views
from .core import engine, judge, metrics, plan as planning, twin as twins
from .core.state import State
from .loop import Loop
from .model import codec
from .model.bed import BedSpec, NodeStatus
from .model.errors import InfrastructureError, UsageError
from .model.event import Event, Source
from .model.plan import Plan
from .model.plugin import Catalogue
from .model.provider import Provider
from .model.run import Run, Twin
from .model.trial import Trial
from .model.verdict import Verdict
from .store import beds, bundle, clock, fingerprint, payload, paths, seal
from .store import twins as cache
from .store.journal import Journal

#: Per node, what is fetched at most, in bytes; what is cut is recorded.
GATHER_LIMIT = 256 * 1024 * 1024
THREADS = 1


class Listener:
    """Is told what happens, for people. The default says nothing."""

    def planned(self, trial: Trial, plan: Plan, directory: Path, *, twin: bool) -> None: ...

    def heard(self, event: Event, state: State) -> None: ...

    def twin(self, twin: Twin, *, cached: bool) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where a run takes place: the bed and its provider, the plugins, the directories."""

    bed: BedSpec
    provider: Provider
    catalogue: Catalogue
    state: Path
    runs: Path
    listener: Listener = field(default_factory=Listener)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be run. ``argv``: the exact command, for the bundle; ``script``: the user's file, for the payload."""

    trial: Trial
    argv: tuple[str, ...] = ()
    reason: str = "asked for on the command line"
    script: Path | None = None
    data_dir: str | None = None
    twin: bool = True


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of it. ``code``: the exit code."""

    directory: Path
    run: Run
    verdicts: tuple[Verdict, ...]
    code: int


def launch(setting: Setting, request: Request) -> Result:
    """A trial from its beginning to its verdicts. Raises UsageError, InfrastructureError."""
    files = payload.collect(Path(__file__).parent, setting.catalogue, request.script)
    twin = _twin(setting, request, files) if _wants_twin(setting, request) else None
    return _one(setting, request, files, twin)


def resume(setting: Setting, directory: Path) -> Result:
    """Take over a run whose orchestrator is gone, or that was interrupted; a finished one is judged again."""
    trial = bundle.load_trial(directory)
    with beds.run_lock(Path(setting.bed.workdir), directory.name, directory):
        if not _ended(directory):
            plan = _planned(setting, directory)
            _drive(setting, trial, plan, directory)
        return _finish(setting, directory)


def plan_only(setting: Setting, request: Request) -> Plan:
    """What --dry-run prints."""
    return _plan(setting, request, run="(not yet)", at="(not yet)")


# --- the twin ---------------------------------------------------------------------------------------------------------


def _wants_twin(setting: Setting, request: Request) -> bool:
    chosen = judge.specs(request.trial, setting.catalogue)
    return request.twin and judge.needs_twin(chosen, setting.catalogue)


def _twin(setting: Setting, request: Request, files: Mapping[str, bytes]) -> Twin | None:
    """The uninterrupted run of the same trial: from the cache, or run now."""
    plan = _plan(setting, request, run="", at="")
    key = twins.twin_key(request.trial, _fingerprint(plan, files))
    if found := cache.get(setting.state, key):
        setting.listener.twin(found, cached=True)
        return found
    undisturbed = replace(request.trial, faults=(), checks=())
    made = _one(setting, replace(request, trial=undisturbed, reason=f"twin of {request.trial.id}"), files, None, as_twin=True)
    twin = twins.make_twin(made.run)
    if twin is None:
        return None
    cache.put(setting.state, twin)
    setting.listener.twin(twin, cached=False)
    return twin


# --- one run ----------------------------------------------------------------------------------------------------------


def _one(
    setting: Setting, request: Request, files: Mapping[str, bytes], twin: Twin | None, *, as_twin: bool = False
) -> Result:
    workdir = Path(setting.bed.workdir)
    _refuse_busy(workdir)
    name = f"{request.trial.name}-twin" if as_twin else request.trial.name
    directory = bundle.create(setting.runs, name)
    run = directory.name
    with beds.run_lock(workdir, run, directory):
        beds.begin_run(workdir, run, directory.resolve())
        try:
            setting.provider.open(setting.bed, run)
            plan = _plan(setting, request, run=run, at=setting.provider.put(files))
            _write_inputs(setting, request, plan, directory, files, twin)
        except BaseException:
            beds.end_run(workdir)
            paths.discard(directory)
            raise
        bundle.link_latest(directory)
        setting.listener.planned(request.trial, plan, directory, twin=as_twin)
        _drive(setting, request.trial, plan, directory)
        return _finish(setting, directory)


def _refuse_busy(workdir: Path) -> None:
    """Raises UsageError, naming the open run."""
    if beds.open_run(workdir) or beds.driver(workdir):
        raise beds.busy(workdir)


def _plan(setting: Setting, request: Request, *, run: str, at: str) -> Plan:
    hosts = {node.host for node in setting.bed.nodes}
    return planning.plan(
        request.trial,
        setting.bed,
        setting.provider.observe(setting.bed),
        setting.catalogue,
        run=run,
        payload=at,
        capabilities={host: setting.provider.capabilities(host) for host in hosts},
        data_dir=request.data_dir,
    )


def _fingerprint(plan: Plan, files: Mapping[str, bytes]) -> dict[str, Any]:
    return fingerprint.take(code=payload.digest(files), threads=plan.threads, backend=plan.backend)


def _write_inputs(
    setting: Setting, request: Request, plan: Plan, directory: Path, files: Mapping[str, bytes], twin: Twin | None
) -> None:
    about = bundle.describe(
        run=plan.run, version=__version__, command=_command(request.argv), reason=request.reason, bed=plan.bed
    )
    documents: dict[str, Any] = {
        bundle.TRIAL: request.trial,
        bundle.PLAN: plan,
        bundle.FINGERPRINT: _fingerprint(plan, files),
        bundle.BUNDLE: about,
    }
    if twin:
        documents[bundle.TWIN] = twin
    inputs = {name: content for name, content in files.items() if name.startswith("user/")}
    bundle.write_inputs(directory, documents, inputs)


def _command(argv: tuple[str, ...]) -> str:
    import shlex

    return shlex.join(("ccbed", *argv)) if argv else ""


def _planned(setting: Setting, directory: Path) -> Plan:
    plan: Plan = codec.build(Plan, paths.document(directory, bundle.PLAN))
    if plan.bed != setting.bed.name:
        raise UsageError(f"{directory}: was run on bed {plan.bed}, not on {setting.bed.name}", hint=f"--bed {plan.bed}")
    return plan


# --- driving ----------------------------------------------------------------------------------------------------------


def _drive(setting: Setting, trial: Trial, plan: Plan, directory: Path) -> State:
    """Until the run has ended or was interrupted; the journal tells where it stands."""
    with Journal(directory / bundle.HISTORY) as book, _interruptible() as interrupted:
        cursors = setting.provider.open(setting.bed, plan.run)
        if book.events:
            cursors = book.events[0].value["cursors"]
            book.append(_own("run.resumed", {"pid": _pid(), "torn_bytes": book.torn_bytes, "nodes": _found(setting)}))
        else:
            nodes = {name: _identity(node) for name, node in plan.nodes.items()}
            value = {"run": plan.run, "bed": plan.bed, "pid": _pid(), "nodes": nodes, "cursors": cursors}
            book.append(_own("run.begin", value))
        loop = Loop(
            trial=trial,
            plan=plan,
            book=book,
            provider=setting.provider,
            now=clock.now,
            look=lambda name: _look(setting, name),
            gather=lambda: _gather(setting, plan, directory),
            heard=setting.listener.heard,
            interrupted=interrupted,
            cursors=cursors,
        )
        state = loop.run()
        book.sync()
        return state


def _look(setting: Setting, name: str) -> NodeStatus:
    return setting.provider.observe(setting.bed).node(name)


def _found(setting: Setting) -> dict[str, Any]:
    """The nodes that live, for a run that goes on after an interruption."""
    status = setting.provider.observe(setting.bed)
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


def _pid() -> int:
    import os

    return os.getpid()


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


def _gather(setting: Setting, plan: Plan, directory: Path) -> dict[str, Any]:
    """What the nodes left, into the bundle; what could not be had is listed, never silently absent."""
    size, missing, capped = 0, [], []
    for name in plan.nodes:
        for path, to in ((f"runs/{plan.run}", f"nodes/{name}"), ("agent.log", f"nodes/{name}/agent.log")):
            got = setting.provider.fetch(name, path, directory / to, GATHER_LIMIT)
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


def _finish(setting: Setting, directory: Path) -> Result:
    """Seal the evidence, judge it, render it. An interrupted run stays open."""
    if not _ended(directory):
        run = bundle.load(directory)
        return Result(directory=directory, run=run, verdicts=(), code=130)
    run = bundle.load(directory)
    if not bundle.is_sealed(directory):
        _write_metrics(run, directory)
        seal.seal(directory)
    beds.end_run(Path(setting.bed.workdir))
    return conclude(setting.catalogue, directory)


def conclude(catalogue: Catalogue, directory: Path) -> Result:
    """Verdicts and reports of a closed run, from its evidence alone. Raises TornBundleError."""
    run = bundle.load(directory)
    verdicts = judge.judge(run, catalogue, judge.specs(run.trial, catalogue))
    run = replace(run, verdicts=verdicts)
    rendered: dict[str, bytes] = {}
    for plugin in catalogue.reports.values():
        module: Any = plugin.module
        rendered.update(module.render(run))
    bundle.write_derived(directory, verdicts, rendered)
    outcome, _, kind = views.ending(run.history)
    return Result(directory=directory, run=run, verdicts=verdicts, code=judge.exit_code(verdicts, outcome, kind))


def _write_metrics(run: Run, directory: Path) -> None:
    import json

    lines = (json.dumps(codec.plain(metric), separators=(",", ":")) for metric in metrics.of(run))
    paths.write(directory / "metrics.jsonl", "".join(f"{line}\n" for line in lines).encode())
