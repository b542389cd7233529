"""Start the nodes of an inventory; a second `up` changes nothing."""

from __future__ import annotations

import functools
import re
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.bed import departed, node_addresses, selection
from ..core.bed import diff as differences
from ..model import codec
from ..model.bed import BedSpec, BedStatus, Change, Diff
from ..model.errors import (
    EXIT_USAGE,
    CcbedError,
    InfrastructureError,
    Interrupted,
    UnpreparedError,
    UnreachedError,
    UsageError,
)
from ..model.event import Event
from ..model.events import NodeApplyDone
from ..model.frozen import dataclass, replace
from ..model.provider import Provider
from ..store import bed_files as store
from . import audited, bed_job, beds, leftovers, prepared_hosts
from .places import short_list, short_path
from .requests import UpRequest
from .session import Session

if TYPE_CHECKING:
    from ..core.bed.stale_hosts import Due
    from ..providers.interpreters import Interpreter


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The changes that `up` would make to a bed on ``hosts``. ``due``: hosts to prepare; ``lost``: those that lost their preparation;
    ``addresses``: which addresses the nodes get, and why."""

    bed: BedSpec
    hosts: tuple[str, ...]
    diff: Diff
    due: tuple[Due, ...]
    lost: tuple[Due, ...]
    addresses: tuple[str, ...] = ()

    @property
    def document(self) -> object:
        """All of it, for programs."""
        due = (*self.due, *(host for host in self.lost if host.host not in {other.host for other in self.due}))
        return {
            "bed": codec.plain(self.bed),
            "hosts": list(self.hosts),
            "prepare": [codec.plain(host) for host in due],
            "job": bed_job.of(self.bed).plan(self.bed),
            "diff": codec.plain(self.diff),
            "empty": self.diff.empty and not due,
        }


def plan(session: Session, request: UpRequest) -> Plan:
    """Return what `up` would do; nothing is changed. Raises UsageError, InfrastructureError: hosts to prepare are shown before."""
    bed, hosts = _meant(session, request)
    due = prepared_hosts.due(session, bed, wanted=request.prepare, hosts=hosts)
    if not session.is_json:
        prepared_hosts.show_due(session, due)
    status, diff, _ = compare(session, bed, hosts)
    lost = prepared_hosts.lost(session, bed, status) if request.prepare is None else ()
    addresses = tuple(node_addresses.describe(bed, status))
    return Plan(bed=node_addresses.place(bed, status), hosts=hosts, diff=diff, due=due, lost=lost, addresses=addresses)


def run(session: Session, request: UpRequest) -> BedSpec:
    """Make the bed match its inventory, and return it. Raises UsageError, InfrastructureError, Interrupted."""
    bed, hosts = _meant(session, request)
    most, force, prepare = request.max_unavailable, request.force, request.prepare
    try:
        if most and len(hosts) > most:
            _roll(session, bed, hosts, most, force=force, prepare=prepare)
        else:
            with bed_job.signals_as_interrupt():
                up(session, bed, force=force, prepare=prepare, limit=request.limit)
    except CcbedError as error:
        error.hint = _with_options(error.hint, bed, request.limit, most)
        raise
    leftovers.prune_automatically(session, selection.reaching(bed, hosts))
    return bed


def _meant(session: Session, request: UpRequest) -> tuple[BedSpec, tuple[str, ...]]:
    """The bed of the inventory, and the hosts that the request acts on."""
    bed = beds.wanted(session, request.inventory)
    if request.max_unavailable:
        beds.require_separate_hosts(bed, "--max-unavailable")
    return bed, beds.acting_hosts(session, bed, request.limit)


def _with_options(hint: str, bed: BedSpec, limit: Sequence[str], max_unavailable: int | None) -> str:
    """The hint, in which `ccbed up` continues on the same hosts, and on as many at a time."""
    options = [f"--limit {shlex.quote(text)}" for text in limit]
    options += [f"--max-unavailable {max_unavailable}"] if max_unavailable else []
    for inventory in dict.fromkeys((bed.inventory, short_path(bed.inventory))):
        pattern = rf"(ccbed up (?:--prepare )?{re.escape(inventory)})(?=\s|$)"
        hint = re.sub(pattern, lambda match: " ".join((match[1], *options)), hint)
    return hint


def _roll(
    session: Session, bed: BedSpec, hosts: tuple[str, ...], size: int, *, force: bool, prepare: bool | None
) -> None:
    """Change ``size`` hosts at a time. Hosts whose nodes are not up come first, so that they are up while others change.

    Raises the first error, with the state of every host.
    """
    rest, done, is_changed = list(hosts), list[str](), False
    with store.lock(session.state, bed.name):
        try:
            while rest := [host for host in rest if host not in beds.drains(bed)]:  # one may be drained meanwhile
                hosts = tuple(host for host in hosts if host not in beds.drains(bed))
                away = _unavailable(session, bed, hosts)
                _refuse_lost(bed, {host: away[host] for host in done if host in away})
                rest.sort(key=lambda host: host not in away)
                batch = tuple(rest[:size])
                session.bed_observer.hosts(batch, len(done) + len(batch), len(hosts))
                is_changed |= _up(session, bed, batch, force=force, prepare=prepare)
                rest, done = rest[size:], [*done, *batch]
            hosts = tuple(host for host in hosts if host not in beds.drains(bed))
            _up(session, bed, hosts, force=force, prepare=None if prepare else prepare)
        except KeyboardInterrupt:
            hint = f"{_describe_states(session, bed, hosts)}\nto continue: ccbed up {short_path(bed.inventory)}"
            raise Interrupted("up was interrupted", hint=hint) from None
        except CcbedError as error:
            if not is_changed and error.exit_code == EXIT_USAGE:
                raise
            error.hint = "\n".join(filter(None, (_describe_states(session, bed, hosts), error.hint)))
            if error.exit_code == EXIT_USAGE:  # it would say that nothing was started
                raise InfrastructureError(*error.problems, hint=error.hint) from error
            raise


def _unavailable(session: Session, bed: BedSpec, hosts: Sequence[str]) -> dict[str, str]:
    """Host of ``hosts`` -> its nodes that cannot be used."""
    reached = selection.reaching(bed, hosts)
    provider = session.provider(reached)
    try:
        status = provider.observe(reached)
    except UnreachedError as error:
        status = error.status
    finally:
        provider.close()
    return selection.unavailable(bed, status, hosts)


def _refuse_lost(bed: BedSpec, lost: Mapping[str, str]) -> None:
    """Raises InfrastructureError where hosts that were changed are not up any more: the change may be the reason."""
    if lost:
        raise InfrastructureError(
            *(f"host {host}: was changed, and is not up any more: {text}" for host, text in lost.items()),
            hint=f"ccbed logs {bed.name}/keeper; once that is mended: ccbed up {short_path(bed.inventory)}",
        )


def _describe_states(session: Session, bed: BedSpec, hosts: Sequence[str]) -> str:
    """Return which hosts are as the inventory wants them, and which are not, as they are observed now."""
    try:
        status, changes, _ = compare(session, bed, hosts)
        away: Mapping[str, str] = {}
    except UnreachedError as error:
        status, away = error.status, error.hosts
        changes = selection.limit(differences.diff(bed, status), bed, hosts)
    except CcbedError as error:
        return f"the state of the hosts is not known: {'; '.join(error.problems)}"
    groups: dict[str, list[str]] = {}
    for host, state in selection.states(bed, status, changes, hosts, away).items():
        groups.setdefault(state, []).append(host)
    order = ("as wanted", "not up", "not reached", "not changed")
    return "; ".join(f"{state}: {short_list(groups[state])}" for state in order if state in groups)


def up(
    session: Session,
    bed: BedSpec,
    *,
    force: bool = False,
    quiet: bool = False,
    prepare: bool | None = None,
    limit: Sequence[str] = (),
) -> int:
    """Make the bed match its inventory, on the hosts of ``limit`` (empty: on all that are not drained).

    ``quiet``: print problems only, so that a document in JSON is the only output. Raises UsageError, InfrastructureError.
    """
    if quiet:
        session = replace(session, terminal=session.terminal.silent())
    with store.lock(session.state, bed.name):
        hosts = beds.acting_hosts(session, bed, limit)
        _up(session, bed, hosts, force=force, prepare=prepare)
    return 0


def _up(
    session: Session, bed: BedSpec, hosts: Sequence[str], *, force: bool = False, prepare: bool | None = None
) -> bool:
    """Make the bed match its inventory on ``hosts``, and return whether anything was changed; the lock of the bed is held."""
    if not force:
        beds.settle(session, bed)
    bed_job.of(bed).refuse_other_job(session, bed)
    bed_job.of(bed).take_over(session, bed, force=force)
    bed, (status, diff, provider) = _prepared(session, bed, hosts, prepare)
    bed = departed.without_empty_hosts(bed, diff.departed, hosts)
    session.bed_observer.away(bed, diff)
    beds.mention_quarantine(session, bed)
    beds.mention_drains(session, bed)
    if diff.empty:
        if diff.settings:
            provider.prepare(selection.reaching(bed, hosts))
        store.write(session.state, bed)
        if store.needs_preflight(session.state, bed.name):
            _preflight(session, bed, hosts, status, provider)
        run, part = store.open_run(Path(bed.workdir)), selection.on_hosts(bed, hosts)
        session.bed_observer.unchanged(part, status, diff.settings, run.run if run else "", session.took())
        return False
    if not force:
        beds.refuse_open(session, bed, "up has changes to make and")
    interpreter = _checked_interpreter(bed)
    is_new = beds.read(session, bed.name) is None
    store.write(session.state, bed)
    store.require_preflight(session.state, bed.name)
    reached = selection.reaching(bed, hosts)
    acts = _changes_by_host(bed, hosts, diff)
    with (
        _reporting_left(reached, provider),
        bed_job.of(bed).held(session, bed, provider, is_new=is_new),
        audited.act(session, reached, provider, "up", acts),
    ):
        status = _change(session, bed, hosts, (status, diff, provider), interpreter, mend=prepare is not False)
        if diff.keeper:
            units = {host.name: f"{host.unit} unit of the host agent" for host in status.hosts if host.unit}
            acts |= {host: f"{text}, {units[host]}" for host, text in acts.items() if host in units}
    return True


def _changes_by_host(bed: BedSpec, hosts: Sequence[str], diff: Diff) -> dict[str, str]:
    """Host -> what is changed there: ``create n0 n1, remove n4``; ``keeper`` where only that is."""
    where = {node.name: node.host for node in bed.nodes}
    texts: dict[str, list[str]] = {host: [] for host in hosts if diff.keeper}
    for action in ("create", "replace", "remove"):
        by_host: dict[str, list[str]] = {}
        for change in (*diff.of(action), *(entry for entry in diff.departed if entry.action == action)):
            by_host.setdefault(change.host or where.get(change.node, hosts[0]), []).append(change.node)
        for host, names in by_host.items():
            texts.setdefault(host, []).append(f"{action} {' '.join(names)}")
    return {host: ", ".join(parts) or "host agent" for host, parts in texts.items()}


def _prepared(
    session: Session, bed: BedSpec, hosts: Sequence[str], wanted: bool | None
) -> tuple[BedSpec, tuple[BedStatus, Diff, Provider]]:
    """Prepare the hosts, and compare the bed with its inventory. A host that lost its preparation is prepared again."""
    bed = prepared_hosts.ready(session, bed, wanted=wanted, hosts=hosts)
    lost: tuple[Due, ...] = ()
    try:
        comparison = compare(session, bed, hosts, settle=True)
        if wanted is not False:
            lost = prepared_hosts.lost(session, bed, comparison[0])
        if not lost:
            return node_addresses.place(bed, comparison[0]), comparison
    except UnreachedError as error:
        if wanted is not False:
            lost = prepared_hosts.lost(session, bed, error.status, error.reached)
        if not lost:
            raise
    prepared_hosts.forget(session, bed, lost)
    bed = prepared_hosts.ready(session, bed, hosts=hosts)
    comparison = compare(session, bed, hosts, settle=True)
    return node_addresses.place(bed, comparison[0]), comparison


def compare(
    session: Session, bed: BedSpec, hosts: Sequence[str], *, settle: bool = False
) -> tuple[BedStatus, Diff, Provider]:
    """Return the status and the difference to the inventory on ``hosts``, and the provider. ``settle``: wait for nodes that start."""
    from ..providers import apply, host_problems

    before = beds.read(session, bed.name)
    if before is not None:
        _refuse_moved(bed, before)
    reached = selection.reaching(bed, hosts)
    provider = session.provider(reached)
    status = provider.observe(reached)
    bed, given = node_addresses.place(bed, status), bed
    if bed != given:  # containers are compared with the requests that have these addresses
        reached = selection.reaching(bed, hosts)
        status = provider.observe(reached)
    if settle:
        status = apply.settle(provider, reached, status)
    host_problems.refuse_duplicates(bed, status)
    changes = selection.limit(differences.diff(bed, status, before), bed, hosts)
    return status, replace(changes, departed=_departed(provider, reached, status)), provider


def _refuse_moved(bed: BedSpec, before: BedSpec) -> None:
    """Raises UsageError where the running bed has another directory, provider, network, engine or job."""
    now = _identity(bed)
    for key, was in _identity(before).items():
        if was != now.get(key, was):
            raise UsageError(
                f"bed {bed.name} is up in {was}; the inventory now says {now[key]}",
                hint=f"ccbed down {bed.name}, then: ccbed up {short_path(bed.inventory)}",
            )


def _identity(bed: BedSpec) -> dict[str, str]:
    """The properties that a bed cannot change while it is up, as an error names them."""
    network = f"the {bed.network} network" if bed.provider == "docker" else ""
    engines = {f"engine of {host.name}": f"the engine {host.engine} of {host.name}" for host in bed.hosts}
    places = {"workdir": bed.workdir, "hostdir": bed.hostdir or bed.workdir, "provider": f"provider {bed.provider}"}
    return {**places, "job": bed_job.of(bed).summary(bed), "network": network, **engines}


def _departed(provider: Provider, bed: BedSpec, status: BedStatus) -> tuple[Change, ...]:
    """Return the nodes on hosts that are no longer in the inventory. ``status``: of those that are."""
    if not bed.departed:
        return ()
    present = {host.directory_id for host in status.hosts if host.directory_id}
    try:
        return departed.changes(bed, provider.observe(departed.departed_bed(bed)), {}, present)
    except UnreachedError as error:
        return departed.changes(bed, error.status, error.hosts, present)


def _change(
    session: Session,
    bed: BedSpec,
    hosts: Sequence[str],
    comparison: tuple[BedStatus, Diff, Provider],
    interpreter: Interpreter | None,
    *,
    mend: bool,
) -> BedStatus:
    """Apply the difference; the status then. ``mend``: prepare hosts again, once, that lack something of the preparation."""
    from ..providers import apply

    observer, (status, diff, provider) = session.bed_observer, comparison
    reached, part = selection.reaching(bed, hosts), selection.on_hosts(bed, hosts)
    observer.planned(part, status, diff, (interpreter.torch, interpreter.python) if interpreter else ("", ""))
    count = len(diff.of("create")) + len(diff.of("replace"))
    ready: list[str] = []

    def on_event(event: Event) -> None:
        if event.kind is NodeApplyDone:
            ready.append(str(event.node))
            observer.node_ready(len(ready), count)

    def prepared(seconds: float) -> None:
        if diff.keeper:
            is_one = len(part.hosts) < 2
            observer.keepers_started(part, provider.observe(reached) if is_one else None, seconds)

    observer.keepers_start(bed)
    work = functools.partial(apply.apply, provider, reached, diff, on_event=on_event, on_prepared=prepared)
    try:
        nodes_s = work(token=secrets.token_hex(3))
    except UnpreparedError as error:
        if not mend:
            raise
        prepared_hosts.prepare_again(session, bed, error)
        nodes_s = work(token=secrets.token_hex(3))
    status = provider.observe(reached)
    _clear(session, bed, hosts, (status, diff, provider))
    observer.nodes_ready(part, status, diff, nodes_s)
    _preflight(session, bed, hosts, status, provider)
    observer.changed(part, status, session.took())
    return status


def _checked_interpreter(bed: BedSpec) -> Interpreter | None:
    """Inspect the interpreter of process nodes; those of containers are in their images.

    Raises InfrastructureError where it cannot run the nodes: then the bed stays as it is.
    """
    from ..providers import interpreters

    if bed.provider != "process":
        return None
    interpreter = interpreters.probe(interpreters.path_of(bed))
    requirement = interpreters.requirement(interpreter, named=bool(bed.nodes[0].python))
    if requirement.outcome == "fail":
        raise InfrastructureError(f"bed {bed.name}: {requirement.text}", hint=requirement.fix)
    return interpreter


def _clear(session: Session, bed: BedSpec, hosts: Sequence[str], comparison: tuple[BedStatus, Diff, Provider]) -> None:
    """End the processes on hosts that are no longer in the inventory, and forget the hosts that are empty then."""
    status, diff, provider = comparison
    reached = selection.reaching(bed, hosts)
    left = departed.hosts_to_clear(reached, diff.departed)
    if not left:
        return
    ended = provider.retire_hosts(reached, left)
    store.write(session.state, departed.without_empty_hosts(bed, _departed(provider, reached, status), hosts))
    listed = short_list(host.name for host in left)
    session.terminal.line(f"  departed    {listed}: {len(ended)} processes ended, none is left")


def _preflight(session: Session, bed: BedSpec, hosts: Sequence[str], status: BedStatus, provider: Provider) -> None:
    """Check ``hosts``; the preflight of a part leaves that of all hosts to the next `up`. Raises InfrastructureError."""
    from ..providers import preflight

    part = selection.on_hosts(bed, hosts)
    findings = preflight.check(part, status, provider.prober(part))
    session.terminal.narrator.line(f"  preflight   {preflight.summary(findings)}")
    for finding in findings:
        if finding.outcome == "warn":
            session.terminal.warn(f"{finding.name}: {finding.text}; {finding.fix}")
    refused = preflight.failure(findings)
    if refused:
        raise refused
    if set(hosts) >= set(beds.acting_hosts(session, bed)):
        store.clear_preflight(session.state, bed.name)


# --- what is left running after a change that failed or was interrupted ---

_RUNNING = ("warm", "busy", "paused", "starting")


@contextmanager
def _reporting_left(bed: BedSpec, provider: Provider) -> Iterator[None]:
    """Add what is left running to an error, and to Ctrl-C."""
    try:
        yield
    except CcbedError as error:
        error.hint = "\n".join(filter(None, (error.hint, _describe_left(bed, provider))))
        raise
    except Exception as error:  # of this machine, such as its limit of processes
        error.add_note(_describe_left(bed, provider))
        raise
    except KeyboardInterrupt:
        raise Interrupted(
            "up was interrupted",
            hint=f"to continue: ccbed up {short_path(bed.inventory)}\n{_describe_left(bed, provider)}",
        ) from None


def _describe_left(bed: BedSpec, provider: Provider) -> str:
    """Return one line: what is left running, nothing, or not known; of a part of a bed, on its hosts."""
    unknown = ""
    names = [host.name for host in bed.hosts]
    is_part = bool(names) and any(node.host not in names for node in bed.nodes)
    where = f" on {short_list(names)}" if is_part else ""
    remove = f"to remove it: ccbed down {bed.name}" + (f" --limit {','.join(names)}" if is_part else "")
    try:
        status = provider.observe(bed)
    except UnreachedError as error:
        status, unknown = error.status, f"; not known of {', '.join(error.hosts)}"
    except (CcbedError, OSError, ValueError, RuntimeError):
        return f"left running{where}: not known; {remove}"
    running = _running_parts(status)
    if not running and not unknown:
        return f"nothing of bed {bed.name} is left running{where}"
    return f"left running{where}: {', '.join(running) or 'nothing'}{unknown}; {remove}"


def _running_parts(status: BedStatus) -> list[str]:
    keepers = [f"the host agent of {host.name}" for host in status.hosts if host.keeper_pid]
    if not status.hosts and status.keeper_pid:
        keepers = ["the host agent"]
    nodes = [node.name for node in status.nodes if node.state in _RUNNING]
    jobs = [f"job {status.job}"] if status.job and not status.nodes else []
    return [*jobs, *keepers, *([f"{'nodes' if len(nodes) > 1 else 'node'} {' '.join(nodes)}"] if nodes else [])]
