"""Run a trial with a line in the record of acts for each host that gets ranks, and for each fault that is injected and healed there."""

from __future__ import annotations

from pathlib import Path

from ..model.event import Event
from ..model.events import FaultAct, FaultHeal, GangStart
from ..model.frozen import dataclass, field, replace
from ..model.launch import Request, Result
from ..store import beds, bundle
from . import audited
from .session import Session

#: So long a run waits for another ccbed on its bed, such as an `up` that has nothing to change.
CHANGE_S = 30.0
_ACTS = {FaultAct: "fault", FaultHeal: "heal"}
_RESULTS = {"ok": audited.OK, "fail": "failed", "info": audited.UNKNOWN}


def launch(session: Session, request: Request) -> Result:
    """Run the trial, or resume the run, of ``request``. Raises UsageError while another process changes the bed."""
    beds.refuse_changing(session.state, request.bed.name, wait_s=CHANGE_S)
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
            self._record(host, f"{verb} {self.run}", audited.OK)

    def _host(self, node: str | None) -> str:
        names = (spec.host for spec in self.request.bed.all_nodes if spec.name == node)
        return next(names, audited.UNKNOWN)

    def _record(self, host: str, text: str, result: str) -> None:
        audited.record(self.session, self.request.bed, text, {host: result})
