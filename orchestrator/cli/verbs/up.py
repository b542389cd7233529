"""Start the nodes of an inventory; a second `up` changes nothing."""

from __future__ import annotations

import functools
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...core.bed import departed
from ...model.bed import BedSpec, BedStatus, Change, Diff
from ...model.errors import InfrastructureError, UnpreparedError, UnreachedError, UsageError
from ...model.event import Event
from ...model.events import NodeApplyDone
from ...model.provider import Provider
from ...store import beds as store
from ..inputs import beds, options, prepared_hosts, slurm_jobs
from ..inputs.session import Session
from ..render import bed_view
from ..render.terminal import short_list, short_path
from . import prune

if TYPE_CHECKING:
    from ...core.bed.preparation import Due
    from ...providers.interpreters import Interpreter


@options.command()
@click.argument("inventory", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option(
    "--prepare/--no-prepare", default=None, help="Prepare all hosts, or none.  [default: the hosts that changed]"
)
@options.force("Also while a run is open on the bed; it ends.")
@options.vault
@options.slurm_job
@click.pass_obj
def command(session: Session, inventory: Path, dry_run: bool, prepare: bool | None, force: bool) -> int:
    """Start the nodes of INVENTORY and keep them warm; a second `up` changes nothing."""
    bed = beds.wanted(session, inventory)
    if dry_run:
        prepared_hosts.plan(session, bed, wanted=prepare)
        status, diff, _ = compare(session, bed)
        if prepare is None:
            prepared_hosts.show_due(session, prepared_hosts.lost(session, bed, status))
        bed_view.plan(session.terminal, bed, diff)
        return 0
    code = up(session, bed, force=force, prepare=prepare)
    prune.automatic(session, bed)
    return code


def up(session: Session, bed: BedSpec, *, force: bool = False, quiet: bool = False, prepare: bool | None = None) -> int:
    """Make the bed match its inventory. Raises UsageError, InfrastructureError."""
    with store.lock(session.state, bed.name):
        if not force:
            beds.settle(session, bed)
        slurm_jobs.refuse_other_job(session, bed)
        slurm_jobs.take_over(session, bed, force=force)
        bed, (status, diff, provider) = _prepared(session, bed, prepare)
        bed = departed.without_empty_hosts(bed, diff.departed)
        bed_view.away(session.terminal, bed, diff)
        beds.mention_quarantine(session, bed)
        if diff.empty:
            store.write(session.state, bed)
            if store.needs_preflight(session.state, bed.name):
                _preflight(session, bed, status, provider)
            if not quiet:
                session.terminal.line(_unchanged(session, bed, status))
            return 0
        if not force:
            beds.refuse_open(session, bed, "up has changes to make and")
        interpreter = _checked_interpreter(bed)
        is_new = beds.read(session, bed.name) is None
        store.write(session.state, bed)
        store.require_preflight(session.state, bed.name)
        with bed_view.reporting_processes(bed, provider), slurm_jobs.held(session, bed, provider, is_new=is_new):
            _change(session, bed, (status, diff, provider), interpreter, mend=prepare is not False)
    return 0


def _prepared(session: Session, bed: BedSpec, wanted: bool | None) -> tuple[BedSpec, tuple[BedStatus, Diff, Provider]]:
    """Prepare the hosts, and compare the bed with its inventory. A host that lost its preparation is prepared again."""
    bed = prepared_hosts.ready(session, bed, wanted=wanted)
    lost: tuple[Due, ...] = ()
    try:
        comparison = compare(session, bed, settle=True)
        if wanted is not False:
            lost = prepared_hosts.lost(session, bed, comparison[0])
        if not lost:
            return bed, comparison
    except UnreachedError as error:
        if wanted is not False:
            lost = prepared_hosts.lost(session, bed, error.status, error.reached)
        if not lost:
            raise
    prepared_hosts.forget(session, bed, lost)
    bed = prepared_hosts.ready(session, bed)
    return bed, compare(session, bed, settle=True)


def compare(session: Session, bed: BedSpec, *, settle: bool = False) -> tuple[BedStatus, Diff, Provider]:
    """Return the status, the difference to the inventory, and the provider. ``settle``: wait for nodes that start."""
    from ...core.bed import diff
    from ...providers import apply, host_problems

    before = beds.read(session, bed.name)
    if before is not None:
        _refuse_moved(bed, before)
    provider = session.provider(bed)
    status = provider.observe(bed)
    if settle:
        status = apply.settle(provider, bed, status)
    host_problems.refuse_duplicates(bed, status)
    changes = diff.diff(bed, status, before)
    return status, replace(changes, departed=_departed(provider, bed)), provider


def _refuse_moved(bed: BedSpec, before: BedSpec) -> None:
    """Raises UsageError where the running bed has another directory or provider."""
    for was, now in (
        (before.workdir, bed.workdir),
        (before.hostdir or before.workdir, bed.hostdir or bed.workdir),
        (f"provider {before.provider}", f"provider {bed.provider}"),
        (slurm_jobs.summary(before), slurm_jobs.summary(bed)),
    ):
        if was != now:
            raise UsageError(
                f"bed {bed.name} is up in {was}; the inventory now says {now}",
                hint=f"ccbed down {bed.name}, then: ccbed up {short_path(bed.inventory)}",
            )


def _departed(provider: Provider, bed: BedSpec) -> tuple[Change, ...]:
    """Return the nodes on hosts that are no longer in the inventory."""
    if not bed.departed:
        return ()
    try:
        return departed.changes(bed, provider.observe(departed.departed_bed(bed)), {})
    except UnreachedError as error:
        return departed.changes(bed, error.status, error.hosts)


def _change(
    session: Session,
    bed: BedSpec,
    comparison: tuple[BedStatus, Diff, Provider],
    interpreter: Interpreter | None,
    *,
    mend: bool,
) -> None:
    """Apply the difference. ``mend``: prepare hosts again, once, that lack something of the preparation."""
    from ...providers import apply

    terminal, (status, diff, provider) = session.terminal, comparison
    terminal.line(bed_view.headline(bed, status, interpreter))
    bed_view.plan(terminal, bed, diff)
    count = len(diff.of("create")) + len(diff.of("replace"))
    ready: list[str] = []

    def on_event(event: Event) -> None:
        if event.kind is NodeApplyDone:
            ready.append(str(event.node))
            terminal.status(f"  nodes       {len(ready)}/{count} warm")

    def prepared(seconds: float) -> None:
        if diff.keeper and len(bed.hosts) > 1:
            terminal.line(
                f"  keepers     {len(bed.hosts)} of {prepared_hosts.count_hosts(bed)}{'':<20} {seconds:.2f} s"
            )
        elif diff.keeper:
            terminal.lines(bed_view.started_keepers(bed, provider.observe(bed), seconds))

    terminal.status(bed_view.starting_keeper(bed))
    work = functools.partial(apply.apply, provider, bed, diff, on_event=on_event, on_prepared=prepared)
    try:
        done = work(token=secrets.token_hex(3))
    except UnpreparedError as error:
        if not mend:
            raise
        prepared_hosts.prepare_again(session, bed, error)
        done = work(token=secrets.token_hex(3))
    _clear(session, bed, diff, provider)
    status = provider.observe(bed)
    terminal.line(f"  nodes       {bed_view.count(bed, status)}{'':<21} {done.nodes_s:.2f} s")
    _preflight(session, bed, status, provider)
    terminal.line()
    bed_view.table(terminal, bed, status)
    undo = f"undo: ccbed down {bed.name}"
    terminal.line(f"up in {session.took()}     try: ccbed run dp-ring --fail-node 2     {undo}")


def _checked_interpreter(bed: BedSpec) -> Interpreter | None:
    """Inspect the interpreter of process nodes; those of containers are in their images.

    Raises InfrastructureError where it cannot run the nodes: then the bed stays as it is.
    """
    from ...providers import interpreters

    if bed.provider != "process":
        return None
    interpreter = interpreters.probe(interpreters.path_of(bed))
    requirement = interpreters.requirement(interpreter, named=bool(bed.nodes[0].python))
    if requirement.outcome == "fail":
        raise InfrastructureError(f"bed {bed.name}: {requirement.text}", hint=requirement.fix)
    return interpreter


def _clear(session: Session, bed: BedSpec, diff: Diff, provider: Provider) -> None:
    """End the processes on hosts that are no longer in the inventory, and forget the hosts that are empty then."""
    hosts = departed.hosts_to_clear(bed, diff.departed)
    if not hosts:
        return
    ended = provider.retire_hosts(bed, hosts)
    store.write(session.state, departed.without_empty_hosts(bed, _departed(provider, bed)))
    listed = short_list(host.name for host in hosts)
    session.terminal.line(f"  departed    {listed}: {len(ended)} processes ended, none is left")


def _preflight(session: Session, bed: BedSpec, status: BedStatus, provider: Provider) -> None:
    from ...providers import preflight

    findings = preflight.check(bed, status, provider.prober(bed))
    session.terminal.line(f"  preflight   {preflight.summary(findings)}")
    for finding in findings:
        if finding.outcome == "warn":
            session.terminal.warn(f"{finding.name}: {finding.text}; {finding.fix}")
    refused = preflight.failure(findings)
    if refused:
        raise refused
    store.clear_preflight(session.state, bed.name)


def _unchanged(session: Session, bed: BedSpec, status: BedStatus) -> str:
    run = store.open_run(Path(bed.workdir))
    busy = f", run {run.run} is open" if run else ""
    return f"bed {bed.name}: nothing to change, {bed_view.count(bed, status)}{busy} ({session.took()})"
