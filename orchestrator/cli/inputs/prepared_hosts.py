"""Hosts prepared before a bed is looked at: only those that changed, told per host and task, failures with what to do."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from ...model.bed import BedSpec, BedStatus
from ...model.errors import InfrastructureError, UnpreparedError
from . import beds
from .session import Session

if TYPE_CHECKING:
    from ...core.bed.preparation import Due
    from ...prepare import hosts as preparation
    from ...prepare import playbook_runs


def ready(session: Session, bed: BedSpec, *, wanted: bool | None = None) -> BedSpec:
    """The bed with its hosts prepared. ``wanted``: True prepares all of them, False none. Raises InfrastructureError.

    What an emulated fabric needs of this machine is looked for.
    """
    if bed.fabric:
        from ...providers.process import fabric

        fabric.refuse(bed)
    if not _remote(bed):
        return bed
    from ...prepare import hosts as preparation

    if wanted is not False:
        work = preparation.work(session.state, bed, force=wanted is True)
        if work.due:
            session.warm_up(_with_pythons(session, bed))  # hosts that lack nothing are connected while Ansible works
            _prepare(session, work)
    return _with_pythons(session, bed)


def due(session: Session, bed: BedSpec, *, wanted: bool | None = None) -> tuple[Due, ...]:
    """The hosts that would be prepared, and why."""
    if not _remote(bed) or wanted is False:
        return ()
    from ...prepare import hosts as preparation

    return preparation.work(session.state, bed, force=wanted is True).due


def plan(session: Session, bed: BedSpec, *, wanted: bool | None = None) -> None:
    """Say which hosts would be prepared, and why."""
    tell(session, due(session, bed, wanted=wanted))


def tell(session: Session, found: Sequence[Due]) -> None:
    """A line for each reason."""
    for reason in dict.fromkeys(one.reason for one in found):
        hosts = names(one.host for one in found if one.reason == reason)
        session.terminal.line(f"prepare: {hosts} ({reason})")


def lost(session: Session, bed: BedSpec, status: BedStatus, away: Collection[str] = ()) -> tuple[Due, ...]:
    """The hosts that were prepared and are not so any more. ``away``: those that are there and cannot say it."""
    if not _remote(bed):
        return ()
    from ...prepare import hosts as preparation

    return preparation.lost(session.state, bed, {host.name: host.stamp for host in status.hosts}, away)


def forget(session: Session, bed: BedSpec, lost: Sequence[Due]) -> None:
    """They are prepared again."""
    from ...prepare import hosts as preparation

    for reason in dict.fromkeys(one.reason for one in lost):
        hosts = names(one.host for one in lost if one.reason == reason)
        session.terminal.warn(f"{hosts}: {reason}: prepared again")
    preparation.forget(session.state, bed, [one.host for one in lost])


def again(session: Session, bed: BedSpec, lacking: UnpreparedError) -> None:
    """Hosts that lost what they had been prepared with. Raises InfrastructureError, the one that was met for other hosts."""
    from ...prepare import hosts as preparation

    if len(lacking.problems) > len(lacking.hosts):
        raise lacking
    for problem in lacking.problems:
        session.terminal.warn(f"{problem}: prepared again")
    preparation.forget(session.state, bed, lacking.hosts)
    _prepare(session, preparation.work(session.state, bed))
    session.terminal.line()


def counted(bed: BedSpec) -> str:
    """``1 host``, ``3 hosts``."""
    return f"{len(bed.hosts)} host" + ("s" if len(bed.hosts) != 1 else "")


def reset(session: Session, bed: BedSpec, *, force: bool = False) -> None:
    """Undo what is left on the hosts. Raises InfrastructureError, OwnedError for what is another's unless forced."""
    if not _remote(bed):
        return
    from ...prepare import hosts as preparation

    told = _teller(session, "reset", {})
    outcome = preparation.reset(session.state, bed, session.vault, told, force=force)
    _raise(outcome, "undone", f"ccbed down {beds.shown(bed.inventory)} --reset")
    session.terminal.line(f"  reset       {' '.join(outcome.ready)}: containers and {bed.hostdir} are gone")


def _remote(bed: BedSpec) -> bool:
    return any(host.connection == "ssh" for host in bed.hosts)


def _prepare(session: Session, work: preparation.Work) -> None:
    from ...prepare import hosts as preparation

    began = time.monotonic()
    warned: dict[str, list[str]] = {}
    told = _teller(session, "prepare", warned)
    outcome = preparation.prepare(session.state, work, session.vault, told)
    if outcome.ready:
        took = f"{time.monotonic() - began:.1f} s"
        changed = f"{outcome.changed} changed" if outcome.changed else "nothing to change"
        session.terminal.line(f"  prepare     {names(outcome.ready)} ready, {changed}{'':<10} {took}")
    for said, warners in warned.items():
        session.terminal.warn(f"{names(one.host for one in work.due if one.host in warners)}: {said}")
    _raise(outcome, "ready and kept", f"ccbed up {beds.shown(work.bed.inventory)}")


def _teller(session: Session, what: str, warned: dict[str, list[str]]) -> playbook_runs.Told:
    """A line for what changes or fails; what is as it should be passes by in the last line; warnings come together."""
    terminal = session.terminal
    words = {"changed": "changed", "unreachable": "not reached"}

    def told(step: playbook_runs.Step) -> None:
        head = f"  {what:<11} {step.host}  {step.task}"
        if step.state == "warn":
            warned.setdefault(step.said, []).append(step.host)
        elif step.state in words:
            terminal.line(f"{head} {words[step.state]}")
        else:
            terminal.status(f"{head} {step.state}")

    return told


def _raise(outcome: preparation.Outcome, others: str, again: str) -> None:
    if not outcome.failures:
        return
    lines = [f"host {host}: {f'{task}: ' if task else ''}{one.text}" for host, task, one in outcome.failures]
    verb = "is" if len(outcome.ready) == 1 else "are"
    kept = f"{names(outcome.ready)} {verb} {others}; " if outcome.ready else ""
    fixes: dict[str, list[str]] = {}
    for host, _, one in outcome.failures:
        fixes.setdefault(one.fix, []).append(host)
    told = [f"{names(hosts)}: {fix}" for fix, hosts in fixes.items() if fix]
    raise InfrastructureError(*lines, hint="\n".join([*told, f"{kept}to go on: {again}"]))


def names(hosts: Iterable[str]) -> str:
    """``h1 h2 h3``; long rows keep their ends."""
    found = list(hosts)
    return " ".join(found) if len(found) <= 8 else f"{' '.join(found[:3])} … {found[-1]} ({len(found)})"


def _with_pythons(session: Session, bed: BedSpec) -> BedSpec:
    """Where the inventory names no interpreter, the one that preparation found."""
    from ...prepare import hosts as preparation

    known = preparation.python(session.state, bed)
    hosts = tuple(
        dataclasses.replace(host, python=known.get(host.name, host.python)) if host.python == "python3" else host
        for host in bed.hosts
    )
    return dataclasses.replace(bed, hosts=hosts)
