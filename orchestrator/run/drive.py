"""One orchestrator at the wheel of a run: from the first line that it writes to the last, or to what keeps it from writing."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.spec import redact
from ..model import codec, redaction, vaulted
from ..model.errors import CcbedError, InfrastructureError, on_disk
from ..model.event import Command, Event, History, Source
from ..model.launch import Request
from ..model.plan import Plan
from ..model.trial import Trial
from ..store import beds, bundle, clock, paths
from ..store.journal import Journal, JournalError
from . import collect
from .loop import Loop
from .probe import Probes


class CutOffError(InfrastructureError):
    """The bed could not be driven any further; the run was left where it stood."""


def drive(request: Request, trial: Trial, plan: Plan, directory: Path, *, cut: bool = False) -> bool:
    """Until the run has ended or was interrupted; the journal tells where it stands. ``cut``: see store.beds.OpenRun.

    Returns whether this process was asked to stop, by its user or by ``request.stop``.
    """
    with Journal(directory / bundle.HISTORY, request.bed.vault) as book, _interruptible() as interrupted:
        try:
            cursors = request.provider.open(request.bed, plan.run)
            cursors = book.events[0].value["cursors"] if book.events else cursors
            probes = Probes(lambda name: request.provider.observe_node(request.bed, name))
            opening = book.append(_opening(request, plan, book, directory, cursors, cut=cut))
            if opening is not None and opening.f == "run.begin":
                request.told(opening)
            loop = Loop(
                trial=trial,
                plan=plan,
                book=book,
                provider=request.provider,
                now=clock.now,
                probe=probes.status,
                start_probe=probes.start,
                gather=lambda: _gather(request, plan, directory, book.events[0].value["cursors"]),
                heard=lambda event, state: request.told(event),
                interrupted=(lambda: True) if request.stop else interrupted,
                cursors=cursors,
                reveal=lambda command: _revealed(command, request.secrets),
            )
            loop.run()
            book.sync()
            return request.stop or interrupted()
        except (JournalError, OSError) as error:
            raise _cut(request, plan, directory, book.history, error) from error


def _revealed(command: Command, secrets: Mapping[str, str]) -> Command:
    """The same command with the secrets of its ranks' arguments."""
    if command.f != "gang.start" or not secrets:
        return command
    params = redact.reveal(command.value["params"], secrets)
    return replace(command, value={**command.value, "params": params})


def _opening(request: Request, plan: Plan, book: Journal, directory: Path, cursors: Any, *, cut: bool) -> Event:
    """What this orchestrator writes first."""
    if not book.events:
        nodes = {name: _identity(node) for name, node in plan.nodes.items()}
        value = {"run": plan.run, "bed": plan.bed, "pid": os.getpid(), "nodes": nodes, "cursors": cursors}
        value |= bundle.identity(directory)
        value |= {"keeper_pids": _keeper_pids(request)}
        value |= {"clocks": codec.plain(plan.clocks)} if plan.clocks else {}
        value |= {"left_out": dict(plan.left_out)} if plan.left_out else {}
        return _own("run.begin", vaulted.hide(codec.plain(value), request.bed.vault))
    found = {"pid": os.getpid(), "torn_bytes": book.torn_bytes, "nodes": _found(request)}
    return _own("run.interrupted", {"reason": "cut off", **found}) if cut else _own("run.resumed", found)


def _cut(
    request: Request, plan: Plan, directory: Path, history: History, error: JournalError | OSError
) -> JournalError | CutOffError:
    """What happens cannot be written down, or not be heard: order nothing more that belongs there, stop the gang and heal the bed."""
    workdir = Path(request.bed.workdir)
    known = error if isinstance(error, JournalError) else full(error, directory, f"ccbed resume {directory}")
    kind = JournalError if isinstance(error, JournalError) or on_disk(error) else CutOffError
    if not history.events:
        again = _command(directory) or request.command
        paths.discard(directory)
        beds.end_run(workdir, plan.run)
        first = "free space, or --runs-dir DIRECTORY; " if kind is JournalError else ""
        return kind(*known.problems, hint=f"{first}again: {again}")
    with suppress(OSError):
        _mark_cut(workdir, plan.run, directory)
    from ..providers import heal

    try:
        mended = heal.mend(request.provider, request.bed, plan.run, history, secrets.token_hex(3))
        problems = mended.problems
    except (CcbedError, OSError) as worse:
        problems = (str(worse),)
    healed = () if problems else ("the gang is stopped and the bed is healed",)
    return kind(*known.problems, *problems, *healed, hint=known.hint)


def _mark_cut(workdir: Path, run: str, directory: Path) -> None:
    """A twin is not gone on with: its run makes another one."""
    open_run = beds.open_run(workdir)
    if open_run and Path(open_run.twin).name == run:
        beds.end_twin(workdir)
    else:
        beds.change_run(workdir, run, directory, cut=True)


def _command(directory: Path) -> str:
    """The command line that asked for the run; empty where its bundle does not tell."""
    with suppress(CcbedError, OSError):
        return str(paths.document(directory, bundle.BUNDLE).get("command", ""))
    return ""


def _found(request: Request) -> dict[str, Any]:
    """The nodes that live, for a run that goes on after an interruption."""
    status = request.provider.observe(request.bed, memory=False)
    return {
        node.name: {"incarnation": node.incarnation, "ordinal": node.ordinal, "pid": node.pid}
        for node in status.nodes
        if node.state in ("warm", "busy", "paused", "starting")
    }


def _keeper_pids(request: Request) -> dict[str, int]:
    """The pid of the keeper on each host, 0 where none lives; a host that does not answer is absent."""
    try:
        status = request.provider.observe(request.bed, memory=False)
    except (CcbedError, OSError):
        return {}
    if status.hosts:
        return {host.name: host.keeper_pid for host in status.hosts}
    return dict.fromkeys((node.host for node in request.bed.nodes), status.keeper_pid)


def _identity(node: Any) -> dict[str, Any]:
    return {
        "incarnation": node.incarnation, "ordinal": node.ordinal, "pid": node.pid, "role": node.role, "address": node.address,
        "host": node.host,
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


def full(error: OSError, directory: Path, again: str) -> InfrastructureError:
    if not on_disk(error):
        return InfrastructureError(str(error), hint=f"once that is mended: {again}")
    place = error.filename or directory
    return InfrastructureError(
        f"{place}: {error.strerror or error}", hint=f"free space or restore the directory, then: {again}"
    )


def _facts(request: Request, name: str) -> tuple[str, ...]:
    """Files of a node that belong to no run; what nvidia-smi says is missed only where a node has GPUs."""
    gpus = any(node.gpus for node in request.bed.nodes if node.name == name)
    return ("agent.log", "system.json", *(("gpu.xml",) if gpus else ()))


def _gather(request: Request, plan: Plan, directory: Path, cursors: Mapping[str, int]) -> Mapping[str, Any]:
    """What the nodes left: their account of themselves first, then what the run has left there."""
    wanted = {
        name: (*((file, file) for file in _facts(request, name)), (f"runs/{plan.run}", "")) for name in plan.nodes
    }
    keepers = bundle.keeper_prefixes(Path(request.bed.workdir), cursors)
    of_nodes = (
        secret for node in request.bed.nodes for secret in redaction.secret_values(node.env, request.secret_names)
    )
    known = (*request.bed.vault, *request.secrets.values(), *of_nodes)
    gathered = collect.gather(request.provider, wanted, directory, secrets=known)
    return {**gathered, "keepers": keepers, "keeper_pids": _keeper_pids(request)}
