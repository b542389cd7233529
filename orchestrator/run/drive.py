"""Drive one run from its first event to its end, its interruption, or an error that stops the orchestrator; and probe suspect nodes."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.bed import selection
from ..core.spec import redact
from ..model import codec, events, redaction, vaulted
from ..model import event as model
from ..model.bed import BedSpec, BedStatus, HostStatus, NodeStatus
from ..model.errors import CcbedError, InfrastructureError, on_disk
from ..model.event import Command, Event, History, Source
from ..model.frozen import dataclass, field
from ..model.launch import Request
from ..model.payload import Payload
from ..model.plan import HostClock, Plan, PlanNode
from ..model.provider import Provider
from ..model.trial import REPLACE, Trial
from ..store import bed_files, bundle, paths
from ..store.journal import Journal, JournalError, now
from . import collect, known_links
from .loop import Loop


class CutOffError(InfrastructureError):
    """The bed cannot be driven any further. The run stays open where its history ends."""


def drive(
    request: Request, trial: Trial, plan: Plan, directory: Path, *, cut: bool = False, ends_by_interrupt: bool = False
) -> bool:
    """Drive the run until it has ended or is interrupted; the journal says where it stands. ``cut``: see store.bed_files.OpenRun.

    ``ends_by_interrupt``: an interruption ends the run; else the run can be resumed.
    Returns whether this process is to stop: by a signal, or by ``request.stop``.
    """
    with Journal(directory / bundle.HISTORY, request.bed.vault) as journal, _interruptible() as is_interrupted:
        try:
            cursors = request.provider.open(request.bed, plan.run)
            cursors = _first_cursors(journal) if journal.events else cursors
            if journal.events and REPLACE in plan.policy:
                prepare_replacement_hosts(request.provider, request.bed)
            links = known_links.find(request, plan, directory)
            probes = Probes(lambda name: request.provider.observe_node(request.bed, name))
            opening = journal.append(_opening(request, plan, journal, directory, cursors, cut=cut))
            if opening is not None and opening.kind is events.RunBegin:
                request.on_event(opening)
            loop = Loop(
                trial=trial,
                plan=plan,
                journal=journal,
                provider=request.provider,
                now=now,
                probe=probes.status,
                start_probe=probes.start,
                gather=lambda: _gather(
                    request, plan.run, _started(plan, journal.history), directory, _first_cursors(journal)
                ),
                is_gathered=collect.GatheredEvents(directory).has,
                on_event=lambda event, state: request.on_event(event),
                is_interrupted=(lambda: True) if request.stop else is_interrupted,
                ends_by_interrupt=ends_by_interrupt and not request.stop,
                cursors=cursors,
                drains=lambda: _drains(request),
                reveal=lambda command: _revealed(command, request, links),
            )
            loop.run()
            journal.sync()
            return request.stop or is_interrupted()
        except (JournalError, OSError) as error:
            raise _stop_gang_and_heal(request, plan, directory, journal.history, error) from error


def _revealed(command: Command, request: Request, links: Mapping[str, Any] | None) -> Command:
    """Put the secrets into the arguments of the ranks, and the user's variables into their environment.

    A replacement may never have run: the order to start it gets its spec. The ranks of the first attempt also get the
    link probe of an earlier run.
    """
    if command.kind is events.NodeApply:
        specs = (node for node in request.bed.replacements if node.name == command.node)
        return replace(command, value=next(map(codec.plain, specs), command.value))
    if command.kind is not events.GangStart:
        return command
    params = redact.reveal(command.data.params, request.secrets)
    env = {**command.value.get("env", {}), **request.exports}
    known = known_links.of_ranks(links, command.data.ranks or ()) if links and command.epoch == 0 else None
    added = {"params": params, "env": env, "environment": request.environment, "links": known}
    return replace(command, value={**command.value, **added})


def _drains(request: Request) -> Mapping[str, str] | None:
    """Return host -> why it is drained; None where that is not known."""
    with suppress(CcbedError, OSError):
        return request.drains()
    return None


def _started(plan: Plan, history: History) -> tuple[str, ...]:
    """Return the nodes of a run, without replacements that were never started: they have no files."""
    applied = {event.node for event in history.of(events.NodeApplyDone)}
    return tuple(name for name, node in plan.nodes.items() if node.incarnation or name in applied)


def _opening(request: Request, plan: Plan, journal: Journal, directory: Path, cursors: Any, *, cut: bool) -> Event:
    """Return the first event of this orchestrator: the run begins, resumes, or was cut off."""
    if not journal.events:
        begin = events.RunBegin(
            run=plan.run,
            bed=plan.bed,
            pid=os.getpid(),
            nodes={name: _identity(node) for name, node in plan.nodes.items()},
            cursors=cursors,
            **bundle.identity(directory),
            keeper_pids=_keepers(request)[0],
            clocks={boot: _clock(measured) for boot, measured in plan.clocks.items()} or None,
            left_out=plan.left_out or None,
        )
        event = _note(begin)
        return replace(event, value=vaulted.hide(event.value, request.bed.vault))
    pid, torn_bytes, nodes = os.getpid(), journal.torn_bytes, _live_nodes(request)
    if cut:
        return _note(events.RunInterrupted(reason="cut off", pid=pid, torn_bytes=torn_bytes, nodes=nodes))
    return _note(events.RunResumed(pid=pid, torn_bytes=torn_bytes, nodes=nodes))


def _first_cursors(journal: Journal) -> Mapping[str, int]:
    begin = journal.history.first(events.RunBegin)
    return (begin.data.cursors if begin else None) or {}


def _stop_gang_and_heal(
    request: Request, plan: Plan, directory: Path, history: History, error: JournalError | OSError
) -> JournalError | CutOffError:
    """Stop the gang and heal the bed after events could not be written or read; return the error with the next step."""
    workdir = Path(request.bed.workdir)
    if _is_down(request):  # to heal it would start nodes of a bed that no bed file names
        bed_files.end_run(workdir, plan.run)
        command = _command(directory) or request.command
        text = f"{directory}: bed {request.bed.name} was taken down while the run was open"
        return CutOffError(text, hint=f"ccbed up {request.bed.inventory}; run it again: {command}")
    known = error if isinstance(error, JournalError) else storage_error(error, directory, f"ccbed resume {directory}")
    kind = JournalError if isinstance(error, JournalError) or on_disk(error) else CutOffError
    if not history.events:
        command = _command(directory) or request.command
        paths.discard(directory)
        bed_files.end_run(workdir, plan.run)
        first = "free space, or --runs-dir DIRECTORY; " if kind is JournalError else ""
        return kind(*known.problems, hint=f"{first}run it again: {command}")
    with suppress(OSError):
        _record_cut(workdir, plan.run, directory)
    from ..providers import abandoned_run

    try:
        mended = abandoned_run.mend(
            request.provider,
            request.bed,
            plan.run,
            history,
            secrets.token_hex(3),
            drained=selection.hosts_of(request.bed, plan.placement.drained),
        )
        problems = mended.problems
    except (CcbedError, OSError) as worse:
        problems = (str(worse),)
    healed = () if problems else ("the worker group is stopped and the faults are undone",)
    return kind(*known.problems, *problems, *healed, hint=known.hint)


def _is_down(request: Request) -> bool:
    """Return whether `ccbed down` has removed the bed since the run began."""
    state = Path(request.state)
    return (state / "beds").is_dir() and request.bed.name not in bed_files.names(state)


def _record_cut(workdir: Path, run: str, directory: Path) -> None:
    """Record that the run is cut off. A twin is not resumed: its run makes another one."""
    open_run = bed_files.open_run(workdir)
    if open_run and Path(open_run.twin).name == run:
        bed_files.end_twin(workdir)
    else:
        bed_files.change_run(workdir, run, directory, cut=True)


def _command(directory: Path) -> str:
    """Return the command line that started the run; empty where its bundle does not say."""
    with suppress(CcbedError, OSError):
        return str(paths.document(directory, bundle.BUNDLE).get("command", ""))
    return ""


def _live_nodes(request: Request) -> dict[str, events.NodeFacts]:
    """Return the nodes that live when a run is resumed."""
    status = request.provider.observe(request.bed, memory=False)
    return {
        node.name: events.NodeFacts(incarnation=node.incarnation, ordinal=node.ordinal, pid=node.pid)
        for node in status.nodes
        if node.state in ("warm", "busy", "paused", "starting")
    }


def _keepers(request: Request) -> tuple[dict[str, int], dict[str, str]]:
    """Return the pid of the keeper on each host, 0 where none lives, absent where the host does not answer; and why some are gone."""
    try:
        status = request.provider.observe(request.bed, memory=False)
    except (CcbedError, OSError):
        return {}, {}
    hosts: dict[str, HostStatus | BedStatus] = {host.name: host for host in status.hosts}
    hosts = hosts or dict.fromkeys((node.host for node in request.bed.all_nodes), status)
    losses = {name: host.keeper_loss for name, host in hosts.items() if host.keeper_loss}
    return {name: host.keeper_pid for name, host in hosts.items()}, losses


def _identity(node: PlanNode) -> events.NodeFacts:
    return events.NodeFacts(
        incarnation=node.incarnation, ordinal=node.ordinal, pid=node.pid, role=node.role, address=node.address,
        host=node.host,
    )  # fmt: skip


def _clock(measured: HostClock) -> events.ClockFacts:
    return events.ClockFacts(host=measured.host, offset_s=measured.offset_s, uncertainty_s=measured.uncertainty_s)


def _note(payload: Payload) -> Event:
    return model.event(payload, at=now(), source=Source(writer="ctl", n=0))


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Let the loop heal and stop on the first Ctrl-C or SIGTERM; end this process at once on the second.

    So it does on SIGHUP if the caller handles that; else this process ends, and the run stays open for `resume`.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # a thread of a program has no signals
        yield lambda: False
        return

    def receive(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    hangup = [signal.SIGHUP] if callable(signal.getsignal(signal.SIGHUP)) else []
    previous = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM, *hangup)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def storage_error(error: OSError, directory: Path, command: str) -> InfrastructureError:
    """Explain an error of a disk, or of a connection. ``command``: what to do once that is corrected."""
    if not on_disk(error):
        return InfrastructureError(str(error), hint=f"correct that, then: {command}")
    path = error.filename or directory
    return InfrastructureError(
        f"{path}: {error.strerror or error}", hint=f"free space or restore the directory, then: {command}"
    )


def node_files(request: Request, name: str) -> tuple[str, ...]:
    """Return the files of a node that belong to no run. Only a node with GPUs has the output of nvidia-smi."""
    has_gpus = any(node.gpus for node in request.bed.all_nodes if node.name == name)
    return ("agent.log", "system.json", *(("gpu.xml",) if has_gpus else ()))


def _gather(
    request: Request, run: str, nodes: Iterable[str], directory: Path, cursors: Mapping[str, int]
) -> Mapping[str, Any]:
    """Fetch the files of the nodes: those that describe the node first, then those of the run."""
    wanted = {name: (*((file, file) for file in node_files(request, name)), (f"runs/{run}", "")) for name in nodes}
    keepers = bundle.keeper_prefixes(Path(request.bed.workdir), cursors)
    of_nodes = (
        secret for node in request.bed.all_nodes for secret in redaction.secret_values(node.env, request.secret_names)
    )
    variables = {**(request.environment or {}), **request.exports}
    users = {name: value for name, value in variables.items() if not value.startswith("/")}  # such as PWD
    of_user = redaction.secret_values(users, request.secret_names)
    known = (*request.bed.vault, *request.secrets.values(), *of_nodes, *of_user)
    gathered = collect.gather(request.provider, wanted, directory, secrets=known)
    pids, losses = _keepers(request)
    return {**gathered, "keepers": keepers, "keeper_pids": pids, **({"keeper_losses": losses} if losses else {})}


#: A probe that takes longer counts as a host that does not answer.
OVERDUE_S = 1.5
#: A result that is older says nothing about the present.
STALE_S = 3.0
#: An unreachable host is probed again after this time: a link may be back at any moment.
FRESH_S = 0.3
#: A repeated probe is mostly done within this time.
MOMENT_S = 0.05


@dataclass(kw_only=True)
class _Probe:
    started: float
    ended: float = 0.0
    status: NodeStatus | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Probes:
    """The probes under way, by node. ``observe`` may take a second, so each call has a thread of its own."""

    def __init__(self, observe: Callable[[str], NodeStatus], clock: Callable[[], float] = time.monotonic) -> None:
        self._observe = observe
        self._clock = clock
        self._under_way: dict[str, _Probe] = {}

    def start(self, node: str) -> None:
        """Start a probe, unless one is under way. A result that nothing read is replaced once it is stale."""
        probe = self._under_way.get(node)
        if probe is None or self._clock() - probe.started >= STALE_S:
            self._start(node)

    def status(self, node: str) -> NodeStatus:
        """Return the result, each one once; ``starting`` while the probe runs, ``unreachable`` once it is overdue."""
        self.start(node)
        probe = self._under_way[node]
        if probe.status and probe.status.state == "unreachable" and self._clock() - probe.ended > FRESH_S:
            probe = self._start(node)
            probe.done.wait(MOMENT_S)
        if probe.status is None and self._clock() - probe.started < OVERDUE_S:
            return NodeStatus(name=node, state="starting", reason="being probed")
        del self._under_way[node]
        return probe.status or NodeStatus(name=node, state="unreachable", reason="its host does not answer")

    def _start(self, node: str) -> _Probe:
        probe = self._under_way[node] = _Probe(started=self._clock())

        def run() -> None:
            status = self._observe(node)
            probe.ended = self._clock()
            probe.status = status
            probe.done.set()

        threading.Thread(target=run, daemon=True).start()
        return probe


def prepare_replacement_hosts(provider: Provider, bed: BedSpec) -> Mapping[str, str]:
    """Prepare all hosts with room at once, or, where that fails, one by one; host -> why that failed.

    `up` has prepared them, but this process does not know how: the requests for their containers are made anew.
    """
    rooms = [host for host in selection.host_names(bed) if any(node.host == host for node in bed.replacements)]
    if not rooms or not _preparation_problem(provider, bed, rooms):
        return {}
    problems = {host: _preparation_problem(provider, bed, [host]) for host in rooms}
    return {host: f"cannot be prepared: {problem}" for host, problem in problems.items() if problem}


def _preparation_problem(provider: Provider, bed: BedSpec, hosts: list[str]) -> str:
    try:
        provider.prepare(selection.reaching(bed, hosts))
    except InfrastructureError as error:
        return "; ".join(error.problems)
    return ""
