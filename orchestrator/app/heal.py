"""Heal a bed and close a run whose orchestrator is gone."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from ..core.bed import selection
from ..model.bed import BedSpec
from ..model.errors import CcbedError, InfrastructureError, UnreachedError, UsageError
from ..model.event import History
from ..model.provider import Provider
from ..store import bed_files as store
from ..store import bundle, paths
from . import audited, beds
from .places import short_path
from .requests import OneBedRequest
from .session import Session


def run(session: Session, request: OneBedRequest) -> tuple[BedSpec, str]:
    """Heal a bed, and close the run that is open on it; return the bed and that run, if any. Raises UsageError, InfrastructureError."""
    spec = reachable(session, beds.choose(session, request.bed, hint="ccbed heal {bed}"))
    return spec, heal(session, spec)


def reachable(session: Session, bed: BedSpec) -> BedSpec:
    """Return the bed; without its drained hosts where one of them cannot be reached."""
    drained = beds.drains(bed)
    if drained:
        try:
            session.provider(bed).observe(bed)
        except UnreachedError as error:
            if drained.keys() & error.hosts.keys():
                return beds.usable(bed)
    return bed


def heal(session: Session, spec: BedSpec) -> str:
    """Heal a bed, and close the run that is open on it; return its name. Raises UsageError while another process drives that run."""
    with store.lock(session.state, spec.name):
        _settle(session, spec)
        run = store.open_run(Path(spec.workdir), time.time())
        if run and run.driver:
            raise UsageError(
                f"bed {spec.name}: run {run.run} is being driven by pid {run.driver}",
                hint=f"interrupt that process (Ctrl-C), or watch the run: ccbed watch {short_path(run.directory)}",
            )
        _heal(session, spec, run)
        return run.run if run else ""


def _settle(session: Session, bed: BedSpec) -> None:
    """Settle the open run; one that cannot be judged is abandoned later."""
    try:
        beds.settle(session, bed)
    except (paths.TornBundleError, OSError) as error:
        session.terminal.warn(str(error))


def _heal(session: Session, bed: BedSpec, run: store.OpenRun | None) -> None:
    provider = session.provider(bed)
    what = f"closes run {run.run}" if run else ""
    with audited.act(session, bed, provider, "heal", dict.fromkeys(selection.host_names(bed), what)):
        if run:
            _end_run(session, bed, provider, run)
        done = _mend(session, bed, provider, None)
    for lease in provider.observe(bed).leases:
        session.terminal.line(f"  undo      {lease}")
    text = "is as `up` left it" if run or done else "has nothing to undo"
    session.terminal.line(f"bed {bed.name} {text} ({session.took()})")


def _end_run(session: Session, bed: BedSpec, provider: Provider, run: store.OpenRun) -> None:
    """Close the run by its history; where that cannot be read or written, heal what the nodes report."""
    directory = Path(run.directory)
    try:
        _abandon(session, bed, provider, directory)
        session.terminal.line(
            f"  run {run.run} is closed; its bundle has its checksums as it is: {short_path(directory)}"
        )
    except (CcbedError, OSError) as error:
        _mend(session, bed, provider, run)
        session.terminal.warn(f"{error}; its bundle stays as it is, without checksums")
        session.terminal.line(f"  run {run.run} is abandoned")
    store.end_run(Path(bed.workdir), run.run)


def _abandon(session: Session, bed: BedSpec, provider: Provider, directory: Path) -> None:
    """Interrupt the run by its own history, then close it. Raises InfrastructureError."""
    from ..run import abandon

    trial, plan = bundle.load_trial(directory), bundle.load_plan(directory)
    observer = session.follow.resumed(session, trial, plan.slots, bundle.read_history(directory))
    request = session.request(
        trial, bed, directory.parent, provider=provider, resume=str(directory), stop=True, on_event=observer.event
    )
    session.launch(request)
    abandon.collect_and_close(request, directory, "abandoned by ccbed heal")


def _mend(session: Session, bed: BedSpec, provider: Provider, run: store.OpenRun | None) -> tuple[str, ...]:
    """Return what was healed, stopped and started. Raises InfrastructureError for what could not be."""
    from ..providers import abandoned_run

    history = _history(Path(run.directory)) if run else History()
    mended = abandoned_run.mend(
        provider, bed, run.run if run else "no run", history, secrets.token_hex(3), drained=beds.drains(bed)
    )
    session.terminal.lines(f"  {line}" for line in mended.done)
    if mended.problems:
        hint = f"ccbed down {bed.name} --force, then: ccbed up {short_path(bed.inventory)}"
        raise InfrastructureError(*mended.problems, hint=hint)
    return mended.done


def _history(directory: Path) -> History:
    """Return the run's history; empty where it is missing or damaged: then leases heal its faults."""
    try:
        return bundle.read_history(directory)
    except paths.TornBundleError:
        return History()
