"""The record of acts: who did what to which host of which bed, when, and how it ended. It outlives the beds.

The controller has all lines, in its state directory; a host has those that concern it, in the bed's directory and its system log.
"""

from __future__ import annotations

import datetime
import getpass
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..model import vaulted
from ..model.bed import BedSpec
from ..model.errors import CcbedError
from ..model.event import Event
from ..model.events import FaultAct, FaultHeal, GangStart
from ..model.frozen import dataclass, field, replace
from ..model.launch import Request, Result
from ..model.provider import Provider
from ..store import bed_files, bundle
from .session import Session

FILE = "audit.jsonl"
OK, UNKNOWN = "ok", "unknown"


def user() -> str:
    """``user@machine``; the uid where it has no name, as in a container."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def now() -> str:
    """UTC, in ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@contextmanager
def act(
    session: Session, bed: BedSpec, provider: Provider, verb: str, changes: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """Record a line per host of ``changes`` (host -> what is changed there), with how it ended: ok, unless the body says else."""
    results, ended = dict.fromkeys(changes, UNKNOWN), dict[str, str]()
    try:
        yield ended
        results = dict.fromkeys(changes, OK) | ended
    except CcbedError as error:
        results = _results_of(error, {node.name: node.host for node in bed.nodes}, changes)
        raise
    finally:
        lines: dict[str, str] = {}
        for host, what in changes.items():
            lines |= record(session, bed, f"{verb}: {what}" if what else verb, {host: results[host]})
        provider.record_acts(bed, lines)


def record(session: Session, bed: BedSpec, what: str, results: Mapping[str, str]) -> dict[str, str]:
    """Append a line for each host. ``what``: was done; ``results``: host -> how it ended. The lines, by host.

    Without values from a vault. A line that cannot be written is a warning: the act has happened.
    """
    when, who = now(), user()

    def line(host: str, result: str) -> str:
        what_and_how = vaulted.hide({"act": what, "result": result}, bed.vault)
        head = {"time": when, "user": who, "bed": bed.name, "host": host}
        return json.dumps(head | session.terminal.hidden(what_and_how))

    lines = {host: line(host, result) for host, result in results.items()}
    try:
        _append(session.state, lines.values())
    except OSError as error:
        session.terminal.warn(f"{FILE}: not recorded: {error.strerror or error}")
    return lines


def _append(state: Path, lines: Iterable[str]) -> None:
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(state / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def _results_of(error: CcbedError, nodes: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Return how a failed act ended on each host, by the lines of its error. ``nodes``: node -> host. Without a line it is unknown."""
    failed: dict[str, str] = {}
    for problem in error.problems:
        kind, _, rest = problem.partition(" ")
        name = rest.partition(":")[0]
        host = name if kind == "host" else nodes.get(name, "") if kind == "node" else ""
        failed.setdefault(host, f"failed: {problem}")
    return {host: failed.get(host, UNKNOWN) for host in hosts}


# --- runs: a line for each host that gets ranks, and for each fault that is injected and healed there ---

#: So long a run waits for another ccbed on its bed, such as an `up` that has nothing to change.
CHANGE_S = 30.0
_ACTS = {FaultAct: "fault", FaultHeal: "heal"}
_RESULTS = {"ok": OK, "fail": "failed", "info": UNKNOWN}


def launch(session: Session, request: Request) -> Result:
    """Run the trial, or resume the run, of ``request``. Raises UsageError while another process changes the bed."""
    bed_files.refuse_changing(session.state, request.bed.name, wait_s=CHANGE_S)
    recorder = _Recorder(session=session, request=request)
    return session.launch(replace(request, on_begin=recorder.begin, on_event=recorder.event))


@dataclass(kw_only=True)
class _Recorder:
    """``run``: its name; ``hosts``: those that have a line.

    The history of the run has every detail: this is what an administrator of the hosts needs to find it.
    """

    session: Session
    request: Request
    run: str = ""
    hosts: set[str] = field(default_factory=set)

    def begin(self, directory: str) -> None:
        """A twin begins before its run does. Ranks of a run that is resumed may be running, and are not started again."""
        self.run, self.hosts = Path(directory).name, set()
        if self.request.resume and Path(directory).resolve() == Path(self.request.resume).resolve():
            for node in bundle.load_plan(Path(directory)).slots:
                self._use(node, "resume")
        self.request.on_begin(directory)

    def event(self, event: Event) -> None:
        """The replies to commands arrive here, not the commands."""
        self.request.on_event(event)
        if event.command is GangStart and event.type == "ok":
            self._use(event.node, "run")
        elif event.command in _ACTS and event.type in _RESULTS:
            text = f"{_ACTS[event.command]} {self._fault(event)} on {event.node}: run {self.run}"
            self._record(self._host(event.node), text, _RESULTS[event.type])

    def _fault(self, event: Event) -> str:
        """The name of the fault, else its id, which is the second part of the command's key."""
        number = str(event.key).split("/")[1]
        return next((fault.fault for fault in self.request.trial.faults if fault.id == number), number)

    def _use(self, node: str | None, verb: str) -> None:
        host = self._host(node)
        if host not in self.hosts:
            self.hosts.add(host)
            self._record(host, f"{verb} {self.run}", OK)

    def _host(self, node: str | None) -> str:
        names = (spec.host for spec in self.request.bed.all_nodes if spec.name == node)
        return next(names, UNKNOWN)

    def _record(self, host: str, text: str, result: str) -> None:
        record(self.session, self.request.bed, text, {host: result})
