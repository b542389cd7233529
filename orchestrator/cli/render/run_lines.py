"""The lines that show a run while it happens, or when it is watched: a table from the class of an event to its lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...app.places import LONG_S, SHORTER, age, short_list
from ...model import events
from ...model.event import Event
from ...model.frozen import dataclass, field
from ...model.payload import Payload
from ...model.trial import INSIDE, SCRIPT, Trial
from ...views import progress, quantities
from . import probe_table

#: The line of a fault that takes longer to inject has its start: its effect may be detected before the line.
SLOW_S = 0.05
#: Steps of a rank, and seconds since the first, after which ranks of the first attempt that have made none are named.
MANY_STEPS, STILL_S = 16, 10.0
#: Seconds of steps after which the time of a step is known.
SEEN_S = 4.0
#: Cases from one line with the remaining time to the next.
_CASES_PER_ESTIMATE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """``t``: seconds since the run began; ``label``: the first column; ``passing``: the next line may replace it."""

    t: float
    label: str
    text: str
    passing: bool = False

    def __str__(self) -> str:
        return f"{self.t:7.3f}  {self.label:<9} {self.text}"


@dataclass(kw_only=True)
class RunLines:
    """State that later lines refer to. Feed it the events in order. ``slots``: group rank -> node, as planned."""

    trial: Trial
    slots: tuple[str, ...] = ()
    _epoch: int = 0
    _last_progress: str = ""
    _cases: Mapping[int, events.CaseFacts] = field(default_factory=dict)
    _expected_s: Mapping[int, float] = field(default_factory=dict)
    _measured: set[int] = field(default_factory=set)
    _planned_at: float = 0.0
    _plan: events.CollectivePlan = events.CollectivePlan(expected_s=None)
    _probed: int = 0
    _joined_at: float = 0.0
    _stopping: bool = False
    _stopped_epoch: int | None = None
    _held: dict[str, Event[Any]] = field(default_factory=dict)
    _inside: dict[str, set[int]] = field(default_factory=dict)
    _first_steps: dict[int, set[int]] = field(default_factory=dict)
    _first_step_at: float = float("inf")
    _fault_epochs: set[int] = field(default_factory=set)
    _reported_culprits: set[object] = field(default_factory=set)
    _is_cold_reported: bool = False
    _unobserved: set[str] = field(default_factory=set)
    _detected: set[tuple[int, str | None]] = field(default_factory=set)
    _replacements: frozenset[str] = frozenset()
    _left: set[tuple[int | None, int]] = field(default_factory=set)
    _is_refused: bool = False
    _is_long: bool = False

    def feed(self, event: Event) -> tuple[Line, ...]:
        """Return the lines of an event; most events have none."""
        if event.type == "note" and event.subject and event.subject in _TEXTS:
            label, template = _TEXTS[event.subject]
            return (self._line(event, label, template.format(data=event.data, node=event.node)),)
        table = _NOTES if event.type == "note" else {} if event.type == "invoke" else _OUTCOMES
        lines = table.get(event.subject) if event.subject else None
        return tuple(lines(self, event)) if lines else ()

    def _line(self, event: Event, label: str, text: str, *, passing: bool = False) -> Line:
        return Line(t=event.t, label=label, text=text, passing=passing)

    def _run_begin(self, event: Event[events.RunBegin]) -> Iterator[Line]:
        nodes = event.data.nodes or {}
        members = [name for name, node in nodes.items() if node.role == "node"]
        self._replacements = frozenset(name for name, node in nodes.items() if node.role == "replacement")
        self.slots = self.slots or tuple(members[: self.trial.world.nodes])
        for spare, reason in (event.data.left_out or {}).items():
            yield self._line(event, "left out", f"spare {spare}: {reason}")

    def _run_resumed(self, event: Event[events.RunResumed]) -> Iterator[Line]:
        self._stopping = False
        torn = event.data.torn_bytes
        repaired = f"; {torn} torn bytes were cut off the journal" if torn else ""
        yield self._line(event, "resumed", f"by pid {event.data.pid}{repaired}")

    def _run_interrupted(self, event: Event[events.RunInterrupted]) -> Iterator[Line]:
        self._stopping = True
        then = "the run ends" if event.data.is_final else "the run stays open"
        yield self._line(event, "interrupt", f"undoing faults, stopping the worker group; {then}")

    def _run_stopped(self, event: Event[events.RunStopped]) -> Iterator[Line]:
        self._stopping = True
        steps, saves = event.data.steps, event.data.saves
        text = f"as planned at {event.data.at}: at least {steps} steps, {saves} save{'s' * (saves != 1)}"
        yield self._line(event, "stop", text)

    def _gang_joined(self, event: Event[events.GangJoined]) -> Iterator[Line]:
        epoch = self._epoch = event.epoch or 0
        self._probed, self._joined_at = 0, event.t
        where = "now on" if epoch else "on"
        yield self._line(event, _start(epoch), f"{self._world_size} ranks {where} {short_list(self.slots)}")

    @property
    def _world_size(self) -> int:
        return len(self.slots) * self.trial.world.ranks_per_node if self.slots else self.trial.world.size

    def _rank_point(self, event: Event[events.RankHeld | events.RankInside]) -> Iterator[Line]:
        if isinstance(event.data, events.RankHeld):
            self._held[event.data.hold] = event
        else:
            self._inside.setdefault(event.data.hold, set()).add(event.data.rank)
        return iter(())

    def _fault_target(self, event: Event[events.FaultTarget]) -> Iterator[Line]:
        """The fault acts now: say which ranks are where."""
        id = event.data.id
        self._fault_epochs.add(self._epoch)
        held, inside = self._held.pop(id, None), self._inside.pop(id, set())
        if held is None:
            return
        phase, step = held.data.phase, held.data.step
        nodes = short_list(self._node_of(rank) for rank in sorted(inside))
        verb = "are" if len(inside) > 1 else "is"
        rest = f"; {nodes} {verb} inside the same collective" if inside and phase in INSIDE else ""
        yield self._line(
            event, f"step {step}" if step else str(phase), f"{held.node} waits in {phase} for its fault{rest}"
        )

    def _fault_injected(self, event: Event[events.FaultInjected | events.FaultVerified]) -> Iterator[Line]:
        is_injected, evidence = isinstance(event.data, events.FaultInjected), _evidence(event.data.evidence)
        began = getattr(event.data, "began", None) if is_injected else None
        took = event.at.mono - began if began is not None else 0.0
        text = f"{self._fault(event)} on {event.node}{f': {evidence}' if evidence else ''}"
        text += f"; began at {event.t - took:.3f}" if took >= SLOW_S else ""
        yield self._line(event, "FAULT" if is_injected else "verified", text)

    def _fault_act_outcome(self, event: Event) -> Iterator[Line]:
        if event.type != "ok":
            yield self._line(event, "FAULT", f"on {event.node} not verified: {_reason(event)}")

    def _fault(self, event: Event[events.FaultInjected | events.FaultVerified]) -> str:
        return next((fault.fault for fault in self.trial.faults if fault.id == event.data.id), "fault")

    def _fault_heal_outcome(self, event: Event) -> Iterator[Line]:
        how = "verified" if event.type == "ok" else f"not verified: {_reason(event)}"
        yield self._line(event, "undone", f"the fault on {event.node}; {how}")

    def _node_exit(self, event: Event[events.NodeExit]) -> Iterator[Line]:
        code = event.data.code
        is_over = self._is_refused or len(self._left) >= len(self.slots) * self.trial.world.ranks_per_node
        if is_over and event.node in self._replacements:  # it ends with the run
            return
        yield from self._report_detection(event, f"{event.node} exited" + ("" if code is None else f", code {code}"))

    def _node_ended(self, event: Event[events.NodeEnded]) -> Iterator[Line]:
        """Report only a node that was out of memory; its exit has a line of its own."""
        if event.data.oom:
            yield self._line(event, "memory", f"{event.node} was killed by the kernel: its container was out of memory")

    def _node_silent(self, event: Event[events.NodeSilent]) -> Iterator[Line]:
        yield from self._report_detection(event, f"{event.node} is silent for {event.data.silent_s or 0:.1f} s")

    def _gang_stalled(self, event: Event[events.GangStalled]) -> Iterator[Line]:
        reason = event.data.reason or f"no step for {event.data.since_s or 0:.1f} s"
        yield from self._report_detection(event, reason)

    def _timer_outcome(self, event: Event) -> Iterator[Line]:
        self._stopping = self._stopping or event.key == "wall"
        return iter(())

    def _store_retried(self, event: Event[events.StoreRetried]) -> Iterator[Line]:
        taken = ", ".join(map(str, event.data.taken or ()))
        yield self._line(event, "store", f"port {taken} of {event.node} is taken; using {event.data.port}")

    def _recovery_growing(self, event: Event[events.RecoveryGrowing]) -> Iterator[Line]:
        """The exits of the ranks of this attempt are no detection."""
        self._stopped_epoch = event.epoch
        names = " and ".join(event.data.joining or ())
        yield self._line(event, "grow", f"{names} can rejoin; the worker group stops after a checkpoint")

    def _rank_exit(self, event: Event[events.RankExit]) -> Iterator[Line]:
        """Report the exit only where no other loss was detected: when a node is lost, the other ranks exit too."""
        if event.data.code == 0:
            self._left.add((event.epoch, event.data.rank))
        old = event.epoch not in (None, self._epoch) or self._stopping or event.epoch == self._stopped_epoch
        if event.data.code and not old and not any(epoch == self._epoch for epoch, _ in self._detected):
            killed = f" ({event.data.error})" if event.data.error and event.data.code < 0 else ""
            what = f"rank {event.data.rank} on {event.node} exited, code {event.data.code}{killed}"
            yield from self._report_detection(event, what)

    def _report_detection(self, event: Event, what: str) -> Iterator[Line]:
        key = (self._epoch, event.node)
        if key not in self._detected:
            self._detected.add(key)
            yield self._line(event, "noticed", what)

    def _node_suspect(self, event: Event[events.NodeSuspect]) -> Iterator[Line]:
        yield self._line(event, "suspect", f"{event.node} silent for {event.data.silent_s or 0:.1f} s", passing=True)

    def _controller_late(self, event: Event[events.ControllerLate]) -> Iterator[Line]:
        late = event.data.late_s or 0.0
        yield self._line(event, "late", f"the controller was delayed by {late:.1f} s; limits are extended")

    def _recovery_waiting(self, event: Event[events.RecoveryWaiting]) -> Iterator[Line]:
        lost = ", ".join(event.data.lost or ())
        hosts = "; ".join(f"{host} {reason}" for host, reason in (event.data.hosts or {}).items())
        yield self._line(event, "waiting", f"for room for {lost}, at most {event.data.wait_s or 0:g} s: {hosts}")

    def _hosts_drained(self, event: Event[events.HostsDrained]) -> Iterator[Line]:
        texts = [f"{host} {reason}" for host, reason in event.data.hosts.items()]
        yield self._line(event, "drains", "; ".join(texts) or "no host is set aside any longer")

    def _recovery_refused(self, event: Event[events.RecoveryRefused]) -> Iterator[Line]:
        self._is_refused = True
        yield self._line(event, "refused", f"no recovery: {event.data.reason}")

    def _recovery_decided(self, event: Event[events.RecoveryDecided]) -> Iterator[Line]:
        self._epoch = event.epoch or self._epoch
        before, self.slots = self.slots, event.data.slots or self.slots
        moved = [(r, new) for r, (old, new) in enumerate(zip(before, self.slots, strict=False)) if old != new]
        lost = ", ".join(event.data.lost or ())
        failed = ", ".join(f"rank {rank}" for rank in event.data.failed or ())
        policy = ", ".join(sorted(set((event.data.policy or {}).values()))) or "restart in place"
        hosts = event.data.hosts or {}
        where = "; ".join(
            f"rank {rank} is now on {node}" + (f" (host {hosts[node]})" if node in hosts else "")
            for rank, node in moved
        )
        where = f"{len(self.slots)} nodes go on" if len(self.slots) < len(before) else where
        text = f"{lost or failed} lost: {policy}" + (f"; {where}" if where else "")
        yield self._line(event, _start(event.epoch), text)

    def _recovery_grown(self, event: Event[events.RecoveryGrown]) -> Iterator[Line]:
        self._epoch = event.epoch or self._epoch
        self.slots = event.data.slots or self.slots
        joined = ", ".join(event.data.joined or ()) or "no node"
        yield self._line(event, _start(event.epoch), f"{joined} rejoined; {len(self.slots)} nodes go on")

    def _recovery_replaced(self, event: Event[events.RecoveryReplaced]) -> Iterator[Line]:
        before, self.slots = self.slots, event.data.slots or self.slots
        lost, policy = next(iter((event.data.policy or {}).items()), ("a node", ""))
        node = self.slots[before.index(lost)] if lost in before else "its replacement"
        yield self._line(event, "replaced", f"{lost} lost: {policy}; its launcher starts on {node}, the others go on")

    def _resume_chosen(self, event: Event[events.ResumeChosen]) -> Iterator[Line]:
        step, sha = event.data.step, (event.data.sha256 or "")[:4]
        if event.epoch:
            own = "from the script's own checkpoint, if it loads one"
            start = own if self.trial.workload == "script" else "from the beginning: no checkpoint yet"
            text = f"from checkpoint {step} (sha256 {sha}…)" if step else start
            yield self._line(event, "resume", text)

    def _rank_step(self, event: Event[events.RankStep]) -> Iterator[Line]:
        step = f"step {event.data.step + (event.data.offset or 0)}"
        if event.data.mark == "newest":
            idle = sorted(set(range(self._world_size)) - self._first_steps.get(event.epoch or 0, set()))
            if not event.epoch and idle and event.data.step >= MANY_STEPS and event.t >= self._first_step_at + STILL_S:
                ranks = f"rank{'s' * (len(idle) > 1)} {short_list(map(str, idle))}"
                yield from self._unjudged(event, f"{ranks} (no step yet, while others have made {MANY_STEPS})")
            if event.data.rank == 0:
                yield from self._long(event)
                yield self._line(event, step, "", passing=True)
            return
        epoch = event.epoch or 0
        done = self._first_steps.setdefault(epoch, set())
        done.add(event.data.rank)
        self._first_step_at = min(self._first_step_at, event.t)
        if epoch and len(done) == self._world_size:
            self._first_steps[epoch] = set()
            yield self._line(event, step, f"first step of restart {epoch} done on all ranks")

    def _long(self, event: Event[events.RankStep]) -> Iterator[Line]:
        """Say once in the first minute of a drill that its steps are long, and how to make it short."""
        done, took_s = event.data.step - 1, event.t - self._first_step_at
        is_drill = self.trial.workload == SCRIPT and self.trial.faults and not self.trial.params.get("stop_at")
        if is_drill and not event.epoch and SEEN_S <= took_s <= 60.0 and took_s >= done > 0 and not self._is_long:
            self._is_long = True
            text = f"a step takes {took_s / done:.1f} s, so {LONG_S * done / took_s:.0f} steps take 5 min; {SHORTER}"
            yield self._line(event, "note", text)

    def _rank_unobserved(self, event: Event[events.RankUnobserved]) -> Iterator[Line]:
        yield from self._unjudged(event, f"{_short(event.data.what)} ({_short(event.data.why, 160)})")

    def _unjudged(self, event: Event, what: str) -> Iterator[Line]:
        """Say once, as early as it is known, what the verdict will not cover."""
        if what not in self._unobserved:
            self._unobserved.add(what)
            yield self._line(event, "note", f"cannot be judged: {what}")

    def _probe_done(self, event: Event[events.ProbeDone]) -> Iterator[Line]:
        figures = probe_table.medians(event.data) or event.data.error or "no figures"
        text = f"{event.data.probe} on {event.node}: {figures}"
        self._probed += 1
        count = len(self.trial.params.get("probes") or ()) * self._world_size
        if self._probed < count:
            seconds = (event.t - self._joined_at) / self._probed * (count - self._probed)
            text += f" · {self._probed} of {count}, about {age(seconds)} left"
        yield self._line(event, "probed", text, passing=True)

    def _link_probing(self, event: Event[events.LinkProbing]) -> Iterator[Line]:
        probe = event.data
        text = f"probing links: {probe.directions or 0} directions, about {probe.limit_s or 0:g} s, longer on a busy machine"
        known = "; that of an earlier run is confirmed first" if probe.known else ""
        yield self._line(event, "links", text + known)

    def _collective_plan(self, event: Event[events.CollectivePlan]) -> Iterator[Line]:
        """Yield how long the measurement takes, and how many iterations it has at least."""
        plan = event.data
        cases = {case.case or 0: case for case in plan.cases or ()}
        self._cases = cases
        self._expected_s = dict(zip(cases, plan.cases_s or (), strict=False))
        self._planned_at, self._plan = event.t, plan
        count = sum(case.iterations or 0 for case in cases.values())
        text = f"{count:,} iteration{'s' * (count != 1)} of {len(cases)} case{'s' * (len(cases) != 1)}"
        if plan.precision:
            text = f"at most {text}; a case stops after {plan.least or 0} or more when its median is known to "
            text += f"{quantities.fraction(plan.precision)}, a size after {plan.precision_s or 0:g} s: --precision-s"
        elif plan.expected_s is not None and (plan.uncosted or 0) != len(cases):
            left_out = f", without {plan.uncosted} whose cost is not known" if plan.uncosted else ""
            text += f", about {plan.expected_s:.3g} s by the cost model with verification{left_out}"
        yield self._line(event, "expected", text)

    def _collective_measured(self, event: Event[events.CollectiveMeasured]) -> Iterator[Line]:
        row, case = event.data, self._cases.get(event.data.case or 0)
        if case is None or row.median_s is None:
            return
        known = row.low_s is not None and row.high_s is not None
        interval = f" ({quantities.milliseconds(row.low_s)} to {quantities.milliseconds(row.high_s)})" if known else ""
        name = f"{case.operation} {case.algorithm}" + (f" {quantities.size(case.bytes)}" if case.bytes else "")
        count = f"{row.iterations:,} iteration{'s' * (row.iterations != 1)}{self._precision(row)}"
        over = "" if row.over == self._plan.over else " of the slowest rank"
        text = f"{name}: p50{over} {quantities.milliseconds(row.median_s)} ms{interval}, {count}"
        text += self._remaining(event)
        yield self._line(event, "measured", text)

    def _precision(self, row: events.CollectiveMeasured) -> str:
        """Return whether the case reached the precision that the user set; empty without one."""
        wanted, width = self._plan.precision, progress.relative_width(row)
        if not wanted:
            return ""
        missed = f": {quantities.fraction(wanted)} not reached in {self._plan.precision_s or 0:g} s"
        return f", known to {quantities.fraction(width)}{missed * (width >= wanted)}"

    def _remaining(self, event: Event[events.CollectiveMeasured]) -> str:
        """Return how many cases are left, and for how long: by the cost model, as fast as the cases so far were beside it."""
        self._measured.add(event.data.case or 0)
        left = [case for case in self._cases if case not in self._measured]
        if not left or len(self._measured) % _CASES_PER_ESTIMATE:
            return ""
        done_s = sum(self._expected_s.get(case, 0.0) for case in self._measured)
        left_s = sum(self._expected_s.get(case, 0.0) for case in left)
        text = f" · {len(left)} case{'s' * (len(left) != 1)} left"
        if not done_s or not left_s:
            return text
        return f"{text}, about {age(left_s * (event.t - self._planned_at) / done_s)}"

    def _progress(self, event: Event[events.Progress]) -> Iterator[Line]:
        self._last_progress = _steps_done(event.data.step, event.data.steps, event.data.loss)
        yield self._line(event, f"step {event.data.step}", self._last_progress, passing=True)

    def _rank_error(self, event: Event[events.RankError]) -> Iterator[Line]:
        """Report an error only where neither an injected fault nor a lost node explains it."""
        if self._epoch in self._fault_epochs or any(epoch == self._epoch for epoch, _ in self._detected):
            return
        culprit = event.data.culprit
        if culprit is not None:
            if culprit in self._reported_culprits:
                return
            self._reported_culprits.add(culprit)
        rank, node = event.data.rank, event.node
        where = f"rank {rank} on {node}" if culprit is None or culprit == rank else self._node_of(culprit)
        what = ": ".join(filter(None, (event.data.kind, _short(event.data.message, 160))))
        yield self._line(event, "error", f"{where}: {what}")

    def _rank_start(self, event: Event[events.RankStart]) -> Iterator[Line]:
        """Report once why ranks start new interpreters."""
        if event.data.cold and not self._is_cold_reported:
            self._is_cold_reported = True
            names = ", ".join(event.data.cold)
            text = f"each rank starts a new interpreter; the bed was brought up with another {_short(names, 160)}"
            yield self._line(event, "cold", text)

    def _rank_finished(self, event: Event[events.RankFinished]) -> Iterator[Line]:
        """The last loss that is shown is the mean over ranks."""
        mean, steps = event.data.loss_mean, event.data.steps
        if isinstance(mean, float):
            self._last_progress = _steps_done(steps, steps, mean)
        elif self._cases:
            self._last_progress = f"{steps or 0} iterations"
        return iter(())

    def _run_end(self, event: Event[events.RunEnd]) -> Iterator[Line]:
        text = event.data.reason or self._last_progress or "all ranks have exited"
        yield self._line(event, str(event.data.outcome), text)

    def _node_of(self, rank: int) -> str:
        slot = rank // max(1, self.trial.workers_per_node)
        return self.slots[slot] if slot < len(self.slots) else f"rank {rank}"


def _start(epoch: int | None) -> str:
    return f"restart {epoch}" if epoch else "start"


def _steps_done(step: int | None, steps: int | None, loss: float | str | None) -> str:
    done = f"{step}/{steps}" if steps else str(step)
    return f"{done} · loss {loss:.4f}" if isinstance(loss, float) else done


def _evidence(value: Any) -> str:
    """``{"killed": [41, 42]}`` -> killed 2; ``{"left": []}`` -> left 0."""
    if not isinstance(value, Mapping):
        return _short(value)
    return ", ".join(f"{name} {_amount(item)}" for name, item in value.items())


def _amount(item: Any) -> str:
    """Return the length of a list, or the distinct values of a mapping, such as the states of processes."""
    if isinstance(item, list):
        return str(len(item))
    return "/".join(sorted(set(map(str, item.values())))) if isinstance(item, Mapping) else str(item)


def _short(value: Any, limit: int = 100) -> str:
    text = " ".join(str(value or "").split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _reason(event: Event) -> str:
    return getattr(event.data, "reason", None) or "no reply"


#: Events with one line that depends on the event alone: its label and the template of its text.
_TEXTS: Mapping[type[Payload], tuple[str, str]] = {
    events.HoldExpired: ("expired", "the hold of rank {data.rank} on {node} was not released"),
    events.FaultUnreached: ("unreached", "fault {data.id}: {data.reason}"),
    events.GangBusy: ("quiet", "{data.reason}"),
    events.GangJoining: ("waiting", "{data.reason}"),
    events.CheckpointSkipped: ("skipped", "checkpoint {data.name}: {data.reason}"),
    events.CheckpointFailed: ("lost", "checkpoint {data.name}: {data.reason}"),
    events.CheckpointRefused: ("refused", "a commit of an earlier start: {data.name}"),
    events.LeaseOver: ("undone", "the time limit of {data.key} is over: the host agent undid the fault"),
}
_Lines = Callable[[RunLines, Event[Any]], Iterator[Line]]
_NOTES: Mapping[type[Payload], _Lines] = {
    events.RunBegin: RunLines._run_begin,
    events.RunResumed: RunLines._run_resumed,
    events.RunInterrupted: RunLines._run_interrupted,
    events.RunStopped: RunLines._run_stopped,
    events.GangJoined: RunLines._gang_joined,
    events.RankHeld: RunLines._rank_point,
    events.RankInside: RunLines._rank_point,
    events.FaultTarget: RunLines._fault_target,
    events.FaultInjected: RunLines._fault_injected,
    events.FaultVerified: RunLines._fault_injected,
    events.NodeExit: RunLines._node_exit,
    events.NodeEnded: RunLines._node_ended,
    events.NodeSilent: RunLines._node_silent,
    events.GangStalled: RunLines._gang_stalled,
    events.StoreRetried: RunLines._store_retried,
    events.RankExit: RunLines._rank_exit,
    events.NodeSuspect: RunLines._node_suspect,
    events.ControllerLate: RunLines._controller_late,
    events.RecoveryRefused: RunLines._recovery_refused,
    events.RecoveryWaiting: RunLines._recovery_waiting,
    events.HostsDrained: RunLines._hosts_drained,
    events.RecoveryReplaced: RunLines._recovery_replaced,
    events.RecoveryDecided: RunLines._recovery_decided,
    events.RecoveryGrowing: RunLines._recovery_growing,
    events.RecoveryGrown: RunLines._recovery_grown,
    events.ResumeChosen: RunLines._resume_chosen,
    events.RankStart: RunLines._rank_start,
    events.RankStep: RunLines._rank_step,
    events.RankUnobserved: RunLines._rank_unobserved,
    events.CollectivePlan: RunLines._collective_plan,
    events.LinkProbing: RunLines._link_probing,
    events.ProbeDone: RunLines._probe_done,
    events.CollectiveMeasured: RunLines._collective_measured,
    events.Progress: RunLines._progress,
    events.RankError: RunLines._rank_error,
    events.RankFinished: RunLines._rank_finished,
    events.RunEnd: RunLines._run_end,
}
#: By the command that the outcome closes.
_OUTCOMES: Mapping[type[Payload], _Lines] = {
    events.FaultAct: RunLines._fault_act_outcome,
    events.FaultHeal: RunLines._fault_heal_outcome,
    events.Timer: RunLines._timer_outcome,
}
