"""Prepare the hosts of a bed: only those that changed, with a line per host and task, and a hint for every failure."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ..core.bed import selection
from ..model.bed import BedSpec, BedStatus
from ..model.errors import InfrastructureError, UnpreparedError
from . import audited
from .places import short_list, short_path
from .session import Session

if TYPE_CHECKING:
    from ..core.bed.stale_hosts import Due
    from ..prepare import hosts as preparation
    from ..prepare import playbook_runs


def ready(
    session: Session, bed: BedSpec, *, wanted: bool | None = None, hosts: Collection[str] | None = None
) -> BedSpec:
    """Prepare ``hosts`` (None: all) and return the bed. ``wanted``: True prepares each of them, False none.

    For an emulated fabric, check what it needs on this machine. Raises InfrastructureError.
    """
    if bed.fabric:
        from ..providers.process import fabric_checks

        fabric_checks.refuse(bed)
    if not _remote(bed):
        return bed
    from ..prepare import hosts as preparation

    if wanted is not False:
        work = preparation.work(session.state, bed, force=wanted is True, hosts=hosts)
        if work.due:  # hosts that lack nothing are connected while Ansible works
            session.warm_up(_reaching(_with_pythons(session, bed), hosts))
            _prepare(session, work)
    return _with_pythons(session, bed)


def due(
    session: Session, bed: BedSpec, *, wanted: bool | None = None, hosts: Collection[str] | None = None
) -> tuple[Due, ...]:
    """Return the hosts among ``hosts`` (None: all) that `up` would prepare, and why."""
    if not _remote(bed) or wanted is False:
        return ()
    from ..prepare import hosts as preparation

    return preparation.work(session.state, bed, force=wanted is True, hosts=hosts).due


def show_due(session: Session, due_hosts: Sequence[Due]) -> None:
    for reason in dict.fromkeys(host.reason for host in due_hosts):
        hosts = short_list(host.host for host in due_hosts if host.reason == reason)
        session.terminal.line(f"prepare: {hosts} ({reason})")


def lost(session: Session, bed: BedSpec, status: BedStatus, silent: Collection[str] = ()) -> tuple[Due, ...]:
    """Return the hosts that lost their preparation. ``silent``: hosts that are reached, but report no status."""
    if not _remote(bed):
        return ()
    from ..prepare import hosts as preparation

    return preparation.lost(session.state, bed, {host.name: host.stamp for host in status.hosts}, silent)


def forget(session: Session, bed: BedSpec, lost: Sequence[Due]) -> None:
    """Forget that hosts are prepared, so that they are prepared again."""
    from ..prepare import hosts as preparation

    for reason in dict.fromkeys(host.reason for host in lost):
        hosts = short_list(host.host for host in lost if host.reason == reason)
        session.terminal.warn(f"{hosts}: {reason}: prepared again")
    preparation.forget(session.state, bed, [host.host for host in lost])


def _reaching(bed: BedSpec, hosts: Collection[str] | None) -> BedSpec:
    return bed if hosts is None else selection.reaching(bed, hosts)


def prepare_again(session: Session, bed: BedSpec, lacking: UnpreparedError) -> None:
    """Prepare hosts again that lack something. Raises ``lacking`` where it has errors of other hosts as well."""
    from ..prepare import hosts as preparation

    if len(lacking.problems) > len(lacking.hosts):
        raise lacking
    for problem in lacking.problems:
        session.terminal.warn(f"{problem}: prepared again")
    preparation.forget(session.state, bed, lacking.hosts)
    _prepare(session, preparation.work(session.state, bed, hosts=lacking.hosts))
    session.terminal.line()


def check_settings(session: Session, bed: BedSpec) -> None:
    """Raises UsageError for settings of Ansible that were not accepted."""
    if _remote(bed):
        from ..prepare import ansible_settings

        ansible_settings.read(session.state)


def reset(session: Session, bed: BedSpec, *, force: bool = False) -> None:
    """Undo the preparation of the hosts. Raises InfrastructureError; OwnedError for another owner's files, unless forced."""
    if not _remote(bed):
        return
    from ..prepare import hosts as preparation

    show = _progress(session, "reset", {})
    outcome = preparation.reset(session.state, bed, session.vault, show, force=force)
    _record(session, bed, "reset", outcome)
    _raise(outcome, "undone", f"ccbed down {short_path(bed.inventory)} --reset")
    session.terminal.line(f"  reset       {' '.join(outcome.ready)}: containers and {bed.hostdir} are removed")


def _remote(bed: BedSpec) -> bool:
    return any(host.connection == "ssh" for host in bed.hosts)


def _prepare(session: Session, work: preparation.Work) -> None:
    from ..prepare import hosts as preparation

    began = time.monotonic()
    warned: dict[str, list[str]] = {}
    show = _progress(session, "prepare", warned)
    outcome = preparation.prepare(session.state, work, session.vault, show)
    _record(session, work.bed, "prepare", outcome)
    if outcome.ready:
        took = f"{time.monotonic() - began:.1f} s"
        changed = f"{outcome.changed} changed" if outcome.changed else "nothing to change"
        session.terminal.line(f"  prepare     {short_list(outcome.ready)} ready, {changed}{'':<10} {took}")
    for warning, hosts in warned.items():
        session.terminal.warn(f"{short_list(due.host for due in work.due if due.host in hosts)}: {warning}")
    _raise(outcome, "ready and kept", f"ccbed up {short_path(work.bed.inventory)}")


def _record(session: Session, bed: BedSpec, act: str, outcome: preparation.Outcome) -> None:
    """Add a line for each host to the record of acts."""
    failed = {host: f"failed: {failure.text}" for host, _, failure in outcome.failures}
    audited.record(session, bed, act, {**dict.fromkeys(outcome.ready, audited.OK), **failed})


def _progress(session: Session, what: str, warned: dict[str, list[str]]) -> playbook_runs.OnStep:
    """Return a function that prints tasks that change or fail; others show in the last line, warnings are collected."""
    terminal = session.terminal
    words = {"changed": "changed", "unreachable": "not reached"}

    def show(step: playbook_runs.Step) -> None:
        head = f"  {what:<11} {step.host}  {step.task}"
        if step.state == "warn":
            warned.setdefault(step.message, []).append(step.host)
        elif step.state in words:
            terminal.line(f"{head} {words[step.state]}")
        else:
            terminal.status(f"{head} {step.state}")

    return show


def _raise(outcome: preparation.Outcome, state: str, command: str) -> None:
    """Raises InfrastructureError with the failures of the hosts. ``state``: of the other hosts; ``command``: the next step."""
    if not outcome.failures:
        return
    lines = [f"host {host}: {f'{task}: ' if task else ''}{failure.text}" for host, task, failure in outcome.failures]
    verb = "is" if len(outcome.ready) == 1 else "are"
    done = f"{short_list(outcome.ready)} {verb} {state}; " if outcome.ready else ""
    fixes: dict[str, list[str]] = {}
    for host, _, failure in outcome.failures:
        fixes.setdefault(failure.fix, []).append(host)
    hints = [f"{short_list(hosts)}: {fix}" for fix, hosts in fixes.items() if fix]
    raise InfrastructureError(*lines, hint="\n".join([*hints, f"{done}to continue: {command}"]))


def _with_pythons(session: Session, bed: BedSpec) -> BedSpec:
    """Add the interpreter that preparation found, where the inventory names none."""
    from ..prepare import hosts as preparation

    known = preparation.python(session.state, bed)
    hosts = tuple(
        dataclasses.replace(host, python=known.get(host.name, host.python)) if host.python == "python3" else host
        for host in bed.hosts
    )
    return dataclasses.replace(bed, hosts=hosts)
